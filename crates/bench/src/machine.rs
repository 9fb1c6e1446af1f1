//! What a figure was measured on.

use std::fs;
use std::path::Path;

use serde::Serialize;
use slackwater_pool::copy::Isa;
use slackwater_transfer::{AesLibrary, Cipher};
use slackwater_wait::Cpus;

/// The machine of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The instructions that copies and checksums of the run were made of.
    pub isa: &'static str,
    /// Whose AES-256-GCM sealed the connections of the run that are sealed, to a machine with its instructions too; none
    /// without them, where ChaCha20-Poly1305 did.
    pub aes: Option<&'static str>,
    /// Threads that this process can run at a time.
    pub cores: u32,
    /// Hardware threads of a core.
    pub threads_per_core: usize,
    /// NUMA nodes.
    pub nodes: usize,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Whether a hypervisor runs below.
    pub guest: bool,
    /// The driver of the idle CPU, where the system tells: a polling one flatters parks.
    pub idle_driver: Option<String>,
    /// The frequency governor, where there is one.
    pub governor: Option<String>,
}

impl Machine {
    /// Looks at this machine. What cannot be read is left empty.
    #[must_use]
    pub fn detect() -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        let siblings = read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
        let meminfo = read("/proc/meminfo").unwrap_or_default();
        let memory_kib = field(&meminfo, "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            isa: Isa::current().name(),
            aes: Cipher::has_aes().then(|| AesLibrary::current().name()),
            cores: Cpus::current().usable,
            threads_per_core: siblings
                .and_then(|text| slackwater_wait::cpu_list(&text))
                .map_or(1, |list| list.len()),
            nodes: read("/sys/devices/system/node/online")
                .and_then(|text| slackwater_wait::cpu_list(&text))
                .map_or(1, |list| list.len()),
            memory_bytes: memory_kib.unwrap_or_default() << 10,
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            guest: flags.split(' ').any(|flag| flag == "hypervisor"),
            idle_driver: read("/sys/devices/system/cpu/cpuidle/current_driver"),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }

    /// One line for the head of a report.
    #[must_use]
    pub fn line(&self) -> String {
        let guest = if self.guest { ", a guest" } else { "" };
        let memory = slackwater_base::ByteSize(self.memory_bytes);
        format!(
            "{} ({} copies), {} usable CPUs, {memory}, kernel {}{guest}",
            self.cpu, self.isa, self.cores, self.kernel
        )
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new(path)).ok()?.trim().to_owned())
        .filter(|text| !text.is_empty())
}

/// The value of `name : value` in the files under `/proc`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text
        .lines()
        .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_a_kernel_and_cores() {
        let machine = Machine::detect();
        assert!(
            !machine.cpu.is_empty() && !machine.kernel.is_empty() && machine.cores >= 1,
            "{machine:?}"
        );
        assert!(machine.memory_bytes > 0, "{machine:?}");
        assert_eq!(machine.aes.is_some(), Cipher::has_aes(), "{machine:?}");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 2\nmodel name\t: AMD EPYC\nMemTotal:       24 kB\n";
        assert_eq!(field(text, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(field(text, "MemTotal").as_deref(), Some("24 kB"));
        assert_eq!(field(text, "name"), None);
    }
}
