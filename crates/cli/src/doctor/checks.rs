use serde::Serialize;
use slackwater_base::ByteSize;
use slackwater_node::Config;
use slackwater_node::config::{HugePages, IoBackend};
use slackwater_node::disk::HANDLES_MAX;
use slackwater_pool::copy::Isa;

use super::facts::Facts;

/// How good a finding is. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but slower or with less than there could be.
    Warn,
    /// The store could not be opened as configured.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// What was looked at.
    pub(super) name: &'static str,
    /// How good it is.
    pub(super) verdict: Verdict,
    /// The state of the machine in this respect.
    pub(super) found: String,
    /// What to do about it.
    pub(super) advice: Option<String>,
}

impl Verdict {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }
}

/// Judges the facts against what the configuration needs.
pub(super) fn examine(facts: &Facts, config: &Config) -> Vec<Check> {
    vec![
        kernel(facts),
        io_uring(facts, config),
        memory(facts, config),
        huge_pages(facts, config),
        locked_memory(facts, config),
        files(facts, config),
        nodes(facts),
        clock(facts),
        copies(facts),
        sealing(facts),
        directory(facts),
        direct(facts),
        space(facts, config),
    ]
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Ok,
        found: found.into(),
        advice: None,
    }
}

fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Warn,
        found: found.into(),
        advice: Some(advice.into()),
    }
}

fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Fail,
        found: found.into(),
        advice: Some(advice.into()),
    }
}

fn kernel(facts: &Facts) -> Check {
    let mut parts = facts
        .kernel
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST_KERNEL {
        ok("kernel", &facts.kernel)
    } else {
        let (major, minor) = OLDEST_KERNEL;
        warn(
            "kernel",
            &facts.kernel,
            format!("Slackwater is tested on Linux {major}.{minor} and later"),
        )
    }
}

const OLDEST_KERNEL: (u32, u32) = (5, 10);

fn io_uring(facts: &Facts, config: &Config) -> Check {
    let Some(refusal) = &facts.io_uring else {
        return ok("io_uring", "a ring can be made");
    };
    let advice = match facts.io_uring_disabled {
        Some(level) if level > 0 => {
            format!("kernel.io_uring_disabled is {level}: `sysctl kernel.io_uring_disabled=0` allows it")
        }
        _ => "in a container, allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile"
            .to_owned(),
    };
    match config.io {
        IoBackend::Uring => fail("io_uring", format!("refused: {}", refusal.0), advice),
        IoBackend::Pread => ok(
            "io_uring",
            format!("refused ({}), and not asked for", refusal.0),
        ),
        IoBackend::Auto => warn(
            "io_uring",
            format!(
                "refused: {}; SSD reads and writes go by pread and pwrite",
                refusal.0
            ),
            advice,
        ),
    }
}

fn memory(facts: &Facts, config: &Config) -> Check {
    let limits = [facts.memory_available, facts.memory_limit];
    let Some(room) = limits.into_iter().flatten().min() else {
        return warn(
            "memory",
            "the system does not say how much is free",
            "compare `memory` with what `free` shows",
        );
    };
    let found = format!(
        "{} can be had, {} wanted for values",
        ByteSize(room),
        config.memory
    );
    if room < config.memory.0 {
        fail(
            "memory",
            found,
            format!("lower `memory` below {}, or free some", ByteSize(room)),
        )
    } else if room - config.memory.0 < config.memory.0 / 10 {
        warn(
            "memory",
            found,
            "leave a tenth free for metadata, buffers and everybody else",
        )
    } else {
        ok("memory", found)
    }
}

fn huge_pages(facts: &Facts, config: &Config) -> Check {
    const NAME: &str = "huge pages";
    match config.huge_pages {
        HugePages::Off => ok(NAME, "not asked for"),
        HugePages::Transparent => match facts.transparent_pages.as_deref() {
            Some(mode @ ("always" | "madvise")) => ok(NAME, format!("transparent ones: {mode}")),
            Some(mode) => warn(
                NAME,
                format!("transparent ones: {mode}"),
                "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`: first touches are several times faster",
            ),
            None => warn(
                NAME,
                "this kernel has no transparent ones",
                "reserve some and set `huge_pages` = reserved",
            ),
        },
        HugePages::Reserved => {
            let (free, size) = facts.reserved_pages;
            let wanted = config.memory.0.div_ceil(size.max(1));
            let found = format!("{free} of {} free, {wanted} wanted", ByteSize(size));
            if size > 0 && free >= wanted {
                ok(NAME, found)
            } else {
                warn(
                    NAME,
                    found,
                    format!(
                        "`sysctl vm.nr_hugepages={wanted}`, best at boot; ordinary pages serve until then"
                    ),
                )
            }
        }
    }
}

fn locked_memory(facts: &Facts, config: &Config) -> Check {
    const NAME: &str = "locked memory";
    match facts.locked_bytes {
        None => ok(NAME, "no limit"),
        Some(bytes) if bytes >= config.memory.0 => ok(NAME, format!("up to {}", ByteSize(bytes))),
        Some(bytes) => warn(
            NAME,
            format!("up to {}: less than `memory`", ByteSize(bytes)),
            "only needed to pin memory for RDMA or GPU copies: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in a unit",
        ),
    }
}

fn files(facts: &Facts, config: &Config) -> Check {
    const NAME: &str = "open files";
    let log = (config.ssd.0 / config.file_bytes.0.max(1)).min(HANDLES_MAX as u64);
    let wanted = log + FILES_BESIDE_LOG;
    let (now, most) = facts.files;
    let found = format!(
        "{} allowed, about {wanted} wanted",
        now.map_or("any number".to_owned(), |now| now.to_string())
    );
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    // The store raises the soft limit itself, and with fewer files opens and closes those of its log as it goes.
    if enough(now) {
        ok(NAME, found)
    } else if enough(most) {
        ok(NAME, format!("{found}: the store raises the limit"))
    } else {
        warn(
            NAME,
            found,
            format!(
                "raise the hard limit to {wanted} (limits.conf, LimitNOFILE), or raise `file_bytes`"
            ),
        )
    }
}

/// Sockets, rings, libraries and the process's own files.
const FILES_BESIDE_LOG: u64 = 256;

fn nodes(facts: &Facts) -> Check {
    match facts.nodes {
        0 | 1 => ok("NUMA", "one memory node"),
        nodes => warn(
            "NUMA",
            format!("{nodes} memory nodes"),
            "run one store a node, bound with `numactl --cpunodebind=N --membind=N`: far memory is slower",
        ),
    }
}

fn clock(facts: &Facts) -> Check {
    match facts.clock.as_deref() {
        Some(clock @ ("tsc" | "kvm-clock" | "arch_sys_counter")) => ok("clock", clock),
        Some(clock) => warn(
            "clock",
            clock,
            "reading this clock is a system call; boot with `tsc=reliable` where the machine allows it",
        ),
        None => ok("clock", "not named by the system"),
    }
}

fn copies(facts: &Facts) -> Check {
    const NAME: &str = "copies";
    let (Some(isa), Some(widest)) = (facts.isa, facts.isa_widest) else {
        return ok(NAME, "not looked at");
    };
    let streaming = ByteSize(facts.streaming_bytes_min);
    let found = format!("{isa} instructions, from {streaming} on past the cache");
    if isa != widest {
        let advice = "for tests and benchmarks; remove `isa` otherwise";
        warn(
            NAME,
            format!("{found}: asked for, where the processor has {widest}"),
            advice,
        )
    } else if isa == Isa::Portable {
        warn(
            NAME,
            found,
            "verified copies run at about half the speed of plain ones; processors with carry-less \
             multiplication on vectors do without the difference",
        )
    } else {
        ok(NAME, found)
    }
}

fn sealing(facts: &Facts) -> Check {
    let found = match facts.aes {
        Some(library) => format!("AES-256-GCM by {library}"),
        None => "ChaCha20-Poly1305: AES has no instructions here, or none that are used".to_owned(),
    };
    ok("sealing", found)
}

fn directory(facts: &Facts) -> Check {
    const NAME: &str = "directory";
    let disk = &facts.disk;
    let found = format!("{} on {}", disk.path.display(), disk.kind);
    match (&disk.write, disk.kind.as_str()) {
        (Some(refusal), _) => fail(
            NAME,
            format!("{found}: {}", refusal.0),
            "set `dir` to a directory that this user may write",
        ),
        (None, "tmpfs") => warn(
            NAME,
            found,
            "this is memory, not a disk: values on it are lost at shutdown and cost DRAM twice",
        ),
        (None, "nfs" | "fuse") => warn(
            NAME,
            found,
            "a network file system is slow and may lie about what is durable",
        ),
        (None, _) => ok(NAME, found),
    }
}

fn direct(facts: &Facts) -> Check {
    match (&facts.disk.write, &facts.disk.direct) {
        (Some(_), _) => warn(
            "direct I/O",
            "cannot be tried in a directory that cannot be written",
            "see above",
        ),
        (None, None) => ok(
            "direct I/O",
            "a block was written and read past the page cache",
        ),
        (None, Some(refusal)) => warn(
            "direct I/O",
            format!("refused: {}", refusal.0),
            "the page cache will hold values a second time; ext4 and xfs on a disk of their own do better",
        ),
    }
}

fn space(facts: &Facts, config: &Config) -> Check {
    const NAME: &str = "free space";
    let Some(free) = facts.disk.free else {
        return warn(
            NAME,
            "the system does not say",
            "compare `ssd` with what `df` shows",
        );
    };
    let found = format!("{} free, `ssd` = {}", ByteSize(free), config.ssd);
    if free < config.ssd.0 {
        let advice = "lower `ssd` or free some: a full disk is survived, but new values then stay in memory alone";
        warn(NAME, found, advice)
    } else {
        ok(NAME, found)
    }
}

#[cfg(test)]
mod tests {
    use slackwater_transfer::AesLibrary;

    use super::super::facts::Refusal;
    use super::*;

    fn good() -> Facts {
        let mut facts = Facts {
            kernel: "6.1.0-13-amd64".to_owned(),
            transparent_pages: Some("madvise".to_owned()),
            memory_available: Some(64 << 30),
            files: (Some(65_536), Some(65_536)),
            nodes: 1,
            clock: Some("tsc".to_owned()),
            isa: Some(Isa::Avx2),
            isa_widest: Some(Isa::Avx2),
            streaming_bytes_min: 16 << 20,
            aes: Some(AesLibrary::AwsLc),
            ..Facts::default()
        };
        facts.disk.kind = "ext4".to_owned();
        facts.disk.free = Some(1 << 40);
        facts
    }

    fn config(flags: &[(&str, &str)]) -> Config {
        let flags: Vec<(String, String)> = flags
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Config::load(None, std::iter::empty(), &flags).unwrap()
    }

    fn check(
        name: &str,
        flags: &[(&str, &str)],
        spoil: impl FnOnce(&mut Facts),
        verdict: Verdict,
        words: &str,
    ) {
        let mut facts = good();
        spoil(&mut facts);
        let checks = examine(&facts, &config(flags));
        let found = checks.iter().find(|check| check.name == name).unwrap();
        assert_eq!(found.verdict, verdict, "{found:?}");
        let text = format!(
            "{} {}",
            found.found,
            found.advice.clone().unwrap_or_default()
        );
        assert!(text.contains(words), "{text}");
        assert_eq!(
            found.advice.is_none(),
            verdict == Verdict::Ok,
            "a finding that is not ok says what to do"
        );
    }

    #[test]
    fn a_good_machine_has_nothing_to_hear() {
        assert!(
            examine(&good(), &config(&[]))
                .iter()
                .all(|check| check.verdict == Verdict::Ok)
        );
    }

    #[test]
    fn each_shortcoming_is_named_with_its_cure() {
        use Verdict::{Fail, Ok, Warn};
        let refused = || Some(Refusal("Operation not permitted".to_owned()));
        check(
            "kernel",
            &[],
            |facts| facts.kernel = "4.19.0".to_owned(),
            Warn,
            "5.10",
        );
        check(
            "io_uring",
            &[],
            |facts| facts.io_uring = refused(),
            Warn,
            "seccomp",
        );
        check(
            "io_uring",
            &[("io", "uring")],
            |facts| facts.io_uring = refused(),
            Fail,
            "not permitted",
        );
        check(
            "io_uring",
            &[("io", "pread")],
            |facts| facts.io_uring = refused(),
            Ok,
            "not asked for",
        );
        let disabled =
            |facts: &mut Facts| (facts.io_uring, facts.io_uring_disabled) = (refused(), Some(2));
        check(
            "io_uring",
            &[],
            disabled,
            Warn,
            "sysctl kernel.io_uring_disabled=0",
        );
        check(
            "copies",
            &[],
            |facts| (facts.isa, facts.isa_widest) = (Some(Isa::Portable), Some(Isa::Portable)),
            Warn,
            "half the speed",
        );
        check(
            "copies",
            &[],
            |facts| facts.isa = Some(Isa::Sse),
            Warn,
            "sse instructions, from 16MiB on past the cache: asked for, where the processor has avx2",
        );
        check("copies", &[], |_| (), Ok, "avx2 instructions");
        check("sealing", &[], |_| (), Ok, "AES-256-GCM by aws-lc");
        let ring = |facts: &mut Facts| facts.aes = Some(AesLibrary::Ring);
        check("sealing", &[], ring, Ok, "AES-256-GCM by ring");
        check(
            "sealing",
            &[],
            |facts| facts.aes = None,
            Ok,
            "ChaCha20-Poly1305: AES has no instructions here, or none that are used",
        );
        check(
            "memory",
            &[("memory", "65GiB")],
            |_| (),
            Fail,
            "below 64GiB",
        );
        check("memory", &[("memory", "60GiB")], |_| (), Warn, "a tenth");
        check(
            "memory",
            &[("memory", "8GiB")],
            |facts| facts.memory_limit = Some(4 << 30),
            Fail,
            "below 4GiB",
        );
        check(
            "huge pages",
            &[],
            |facts| facts.transparent_pages = Some("never".to_owned()),
            Warn,
            "echo madvise",
        );
        let reserved = [("huge-pages", "reserved"), ("memory", "1GiB")];
        check(
            "huge pages",
            &reserved,
            |facts| facts.reserved_pages = (3, 2 << 20),
            Warn,
            "vm.nr_hugepages=512",
        );
        check(
            "huge pages",
            &reserved,
            |facts| facts.reserved_pages = (512, 2 << 20),
            Ok,
            "512",
        );
        check(
            "locked memory",
            &[],
            |facts| facts.locked_bytes = Some(8 << 20),
            Warn,
            "LimitMEMLOCK",
        );
        let ssd = [("ssd", "64GiB"), ("dir", "/d")];
        check(
            "open files",
            &ssd,
            |facts| facts.files = (Some(1024), Some(1024)),
            Ok,
            "about 768",
        );
        check(
            "open files",
            &ssd,
            |facts| facts.files = (Some(256), None),
            Ok,
            "raises the limit",
        );
        check(
            "open files",
            &ssd,
            |facts| facts.files = (Some(256), Some(512)),
            Warn,
            "hard limit to 768",
        );
        check("NUMA", &[], |facts| facts.nodes = 2, Warn, "numactl");
        check(
            "clock",
            &[],
            |facts| facts.clock = Some("hpet".to_owned()),
            Warn,
            "system call",
        );
        check(
            "directory",
            &[],
            |facts| facts.disk.write = refused(),
            Fail,
            "may write",
        );
        check(
            "directory",
            &[],
            |facts| facts.disk.kind = "tmpfs".to_owned(),
            Warn,
            "memory, not a disk",
        );
        check(
            "direct I/O",
            &[],
            |facts| facts.disk.direct = refused(),
            Warn,
            "page cache",
        );
        check(
            "free space",
            &ssd,
            |facts| facts.disk.free = Some(1 << 30),
            Warn,
            "1GiB free",
        );
    }
}
