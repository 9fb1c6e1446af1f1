//! Measured processes: started from this very program, spoken to in lines, never waited for without a deadline.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use slackwater_pool::copy::{Isa, IsaChoice};
use thiserror::Error;

use crate::tied;

/// Why a measured process gave no figures.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// A process could not be started or spoken to.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// A process said something that was not expected.
    #[error("a measured process said `{0}`")]
    Said(String),
    /// A process did not say in time what was expected.
    #[error("`{part}` did not say `{word}` within {after:?}")]
    Silent {
        /// Its part in the measurement.
        part: String,
        /// What it should have said.
        word: &'static str,
        /// How long it was given.
        after: Duration,
    },
    /// A process ended before it had said what was expected.
    #[error("`{part}` ended without saying `{word}`")]
    Ended {
        /// Its part in the measurement.
        part: String,
        /// What it should have said.
        word: &'static str,
    },
    /// The options do not say how to start a child.
    #[error("no command for child processes is given")]
    NoChild,
}

/// A measured process; killed when dropped, and with this process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: Receiver<io::Result<String>>,
    input: ChildStdin,
    part: String,
    patience: Duration,
}

impl Process {
    /// Starts this program in a part; each of its lines may take as long as `patience`.
    pub(crate) fn start(
        program: &[OsString],
        arguments: &[&str],
        patience: Duration,
    ) -> Result<Self, ProcessError> {
        Self::start_in(program, arguments, &[], patience)
    }

    /// The same, with more in its environment.
    pub(crate) fn start_in(
        program: &[OsString],
        arguments: &[&str],
        environment: &[(&str, &OsStr)],
        patience: Duration,
    ) -> Result<Self, ProcessError> {
        let (first, leading) = program.split_first().ok_or(ProcessError::NoChild)?;
        let mut command = Command::new(first);
        // Figures of one run are of one path.
        command.env(IsaChoice::ENV, Isa::current().name());
        command.args(leading).args(arguments);
        command.envs(environment.iter().copied());
        Self::spawn(command, &arguments.join(" "), patience)
    }

    /// Starts any command; its errors count as lines too if they are piped.
    pub(crate) fn spawn(
        mut command: Command,
        part: &str,
        patience: Duration,
    ) -> Result<Self, ProcessError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tied::start(command).map_err(|error| ProcessError::Io {
            what: "start a process",
            error,
        })?;
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(ProcessError::Said("nothing: it has no pipes".into()));
        };
        let (heard, lines) = channel();
        if let Some(errors) = child.stderr.take() {
            listen(errors, heard.clone());
        }
        listen(output, heard);
        Ok(Self {
            child,
            lines,
            input,
            part: part.to_owned(),
            patience,
        })
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), ProcessError> {
        writeln!(self.input, "{line}").map_err(|error| ProcessError::Io {
            what: "speak to a process",
            error,
        })
    }

    /// The rest of the next line after `word`.
    pub(crate) fn hear(&mut self, word: &'static str) -> Result<String, ProcessError> {
        let line = self.line(word)?;
        let said = line
            .trim()
            .strip_prefix(word)
            .ok_or_else(|| ProcessError::Said(line.trim().to_owned()))?;
        Ok(said.trim().to_owned())
    }

    /// The next line that has `word` in it.
    pub(crate) fn hear_of(&mut self, word: &'static str) -> Result<String, ProcessError> {
        loop {
            let line = self.line(word)?;
            if line.contains(word) {
                return Ok(line);
            }
        }
    }

    /// Everything it says until it ends, which `word` stands for.
    pub(crate) fn hear_out(&mut self, word: &'static str) -> Result<String, ProcessError> {
        let mut said = String::new();
        loop {
            match self.line(word) {
                Ok(line) => said.extend([line.as_str(), "\n"]),
                Err(ProcessError::Ended { .. }) => return Ok(said),
                Err(error) => return Err(error),
            }
        }
    }

    fn line(&self, word: &'static str) -> Result<String, ProcessError> {
        let line = self
            .lines
            .recv_timeout(self.patience)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => ProcessError::Silent {
                    part: self.part.clone(),
                    word,
                    after: self.patience,
                },
                RecvTimeoutError::Disconnected => ProcessError::Ended {
                    part: self.part.clone(),
                    word,
                },
            })?;
        line.map_err(|error| ProcessError::Io {
            what: "listen to a process",
            error,
        })
    }

    /// The numbers in the rest of the next line after `word`.
    pub(crate) fn numbers<const N: usize>(
        &mut self,
        word: &'static str,
    ) -> Result<[f64; N], ProcessError> {
        let said = self.hear(word)?;
        let numbers: Vec<f64> = said
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        numbers.try_into().map_err(|_| ProcessError::Said(said))
    }

    /// Holds all its threads to a CPU, or lets them go anywhere again; it answers with [`pin`].
    pub(crate) fn pin(&mut self, cpu: Option<usize>) -> Result<(), ProcessError> {
        self.say(&cpu.map_or_else(|| "pin any".to_owned(), |cpu| format!("pin {cpu}")))?;
        self.hear("pinned").map(drop)
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far by all its threads, those that ended included, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.id())
    }

    /// Ends it as `kill -9` does and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<(), ProcessError> {
        let gone = self.child.kill().and_then(|()| self.child.wait());
        gone.map(drop).map_err(|error| ProcessError::Io {
            what: "kill a process",
            error,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends with the process, whose pipe it reads.
fn listen(pipe: impl Read + Send + 'static, heard: Sender<io::Result<String>>) {
    std::thread::spawn(move || {
        BufReader::new(pipe)
            .lines()
            .try_for_each(|line| heard.send(line))
    });
}

/// CPU time of a process over all its threads, by the clock that the kernel keeps for it; zero when it is gone.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let mut clock = 0;
    // SAFETY: the call writes one clock id.
    if unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } != 0 {
        return 0.0;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0.0;
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Voluntary and involuntary context switches of all threads that a process has; zero when it is gone.
pub fn switches(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let of_thread = |status: String| -> u64 {
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts
            .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
            .sum()
    };
    let statuses = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    statuses.map(of_thread).sum()
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> u64 {
    resident_bytes_of(std::process::id())
}

/// Resident memory of a process; zero when it is gone.
pub(crate) fn resident_bytes_of(pid: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = pages
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Raises the soft limit of descriptors to the hard one and returns it.
pub(crate) fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() {
        limit.maximum
    } else {
        limit.current
    };
    current.map_or(1 << 20, |limit| limit as usize)
}

/// Says a line to the parent.
pub(crate) fn tell(line: &str) -> Result<(), ProcessError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| ProcessError::Io {
            what: "speak",
            error,
        })
}

/// The lines of the parent in words, until it ends.
pub(crate) fn orders() -> impl Iterator<Item = Vec<String>> {
    io::stdin()
        .lines()
        .map_while(Result::ok)
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
}

/// Does what [`Process::pin`] asked, if that is what the order is. Threads that are started later are held as well.
pub(crate) fn pin(order: &[String]) -> Result<Option<()>, ProcessError> {
    let [word, cpu] = order else { return Ok(None) };
    if word != "pin" {
        return Ok(None);
    }
    let mut held = CpuSet::new();
    match cpu.parse() {
        Ok(cpu) => held.set(cpu),
        Err(_) => (0..CpuSet::MAX_CPU).for_each(|cpu| held.set(cpu)),
    }
    let io = |error: io::Error| ProcessError::Io {
        what: "pin a process",
        error,
    };
    for thread in std::fs::read_dir("/proc/self/task").map_err(io)?.flatten() {
        let id = thread
            .file_name()
            .to_str()
            .and_then(|id| id.parse().ok())
            .and_then(Pid::from_raw);
        match sched_setaffinity(id, &held) {
            // One that has ended since needs no CPU.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(io(error.into())),
        }
    }
    tell("pinned")?;
    Ok(Some(()))
}

/// The CPUs that this process may run on.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(
            &["sh".into(), "-c".into()],
            &[script],
            Duration::from_millis(200),
        )
        .unwrap()
    }

    #[test]
    fn a_process_that_hangs_ends_or_babbles_is_an_error_that_names_it() {
        let mut talking = shell("echo count 3 4; read line; echo \"got $line\"");
        assert_eq!(talking.numbers::<2>("count").unwrap(), [3.0, 4.0]);
        talking.say("this").unwrap();
        assert_eq!(talking.hear("got").unwrap(), "this");
        assert!(matches!(
            talking.hear("more"),
            Err(ProcessError::Ended { word: "more", .. })
        ));
        assert_eq!(
            shell("echo a; echo b c; echo d").hear_of("b").unwrap(),
            "b c"
        );
        assert_eq!(
            shell("echo a; echo b").hear_out("an end").unwrap(),
            "a\nb\n"
        );
        let silent = shell("read line").hear("word").unwrap_err();
        assert_eq!(
            silent.to_string(),
            "`read line` did not say `word` within 200ms"
        );
        assert!(
            matches!(shell("echo no").hear("yes"), Err(ProcessError::Said(said)) if said == "no")
        );
        assert!(matches!(
            Process::start(&[], &[], Duration::ZERO),
            Err(ProcessError::NoChild)
        ));
    }

    #[test]
    fn the_clock_of_a_process_counts_threads_that_ended() {
        let own = std::process::id();
        let before = cpu_seconds(own);
        let busy = || {
            let began = crate::usage::thread_cpu();
            while crate::usage::thread_cpu() - began < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
        };
        std::thread::spawn(busy).join().unwrap();
        assert!(cpu_seconds(own) - before >= 0.005);
        // More than the kernel ever gives out.
        assert_eq!(cpu_seconds((1 << 22) + 1), 0.0);
    }
}
