//! Processes that end with this one, however that ends: a server would serve for ever.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{gettid, sched_getaffinity, sched_setaffinity};

/// Starts a command. The kernel kills its process when this one is ended in a way that drops nothing.
///
/// # Errors
/// As [`Command::spawn`].
pub fn start(mut command: Command) -> io::Result<Child> {
    let us = getpid();
    let arm = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It would not be told of an end before this.
        match getppid() == Some(us) {
            true => Ok(()),
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: between fork and exec it only makes system calls, without memory to allocate or locks to take.
    unsafe { command.pre_exec(arm) };
    // The kernel goes by the thread that starts it, and the first one lives as long as the process.
    if gettid() == us {
        return command.spawn();
    }
    // A thread hands its CPUs down, and the one that starts it may have others than the caller. Where CPUs cannot be read or set, the
    // process has those.
    if let Ok(cpus) = sched_getaffinity(None) {
        let place = move || {
            let _ = sched_setaffinity(None, &cpus);
            Ok(())
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(place) };
    }
    let (told, started) = channel();
    let stopped = || io::Error::other("no thread starts processes");
    STARTER.send((command, told)).map_err(|_| stopped())?;
    started.recv().map_err(|_| stopped())?
}

/// Runs a command that is given nothing until its end, and takes what it says.
///
/// # Errors
/// As [`Command::output`].
pub fn output(mut command: Command) -> io::Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    start(command)?.wait_with_output()
}

type Order = (Command, Sender<io::Result<Child>>);

/// Starts what threads want that may end before the process: its own never does.
static STARTER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, told) in orders {
            // The caller waits.
            let _ = told.send(command.spawn());
        }
    });
    sender
});

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use rustix::process::Pid;
    use rustix::thread::CpuSet;

    use super::*;
    use crate::process::{Process, orders, tell};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// What a thread other than the first had started, such as iperf3 at a far end, ran on when the process was killed.
    #[test]
    fn what_another_thread_starts_ends_with_the_process() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let alone = "tied::tests::alone_a_thread_starts_what_outlives_it";
        command
            .args(["--exact", "--ignored", "--nocapture", alone])
            .stderr(Stdio::piped());
        let mut alone = Process::spawn(command, "a process of its own", PATIENCE).unwrap();
        alone.hear_of("it outlives its thread").unwrap();
        alone.kill().unwrap();
        // What it has started has the same pipe for its errors.
        alone
            .hear_out("the end of what it has started")
            .expect("it runs on");
    }

    /// The kernel would have killed it at the end of the thread that starts it.
    #[test]
    #[ignore = "the test above starts it in a process of its own"]
    fn alone_a_thread_starts_what_outlives_it() {
        let script = "echo here; read line; echo \"got $line\"; exec sleep 60";
        let starting = || {
            let mut process = Process::spawn(shell(script), "a shell", PATIENCE).unwrap();
            process.hear("here").unwrap();
            (process, gettid())
        };
        let (mut process, thread) = std::thread::spawn(starting).join().unwrap();
        // It is gone from here once the kernel has told its children.
        while task(thread).exists() {
            std::thread::yield_now();
        }
        process.say("this").unwrap();
        assert_eq!(process.hear("got").unwrap(), "this");
        tell("it outlives its thread").unwrap();
        // Until this process is killed, or nobody is left to do it.
        orders().for_each(drop);
    }

    fn task(thread: Pid) -> PathBuf {
        PathBuf::from(format!("/proc/self/task/{}", thread.as_raw_nonzero()))
    }

    #[test]
    fn a_process_has_the_cpus_of_the_thread_that_wants_it() {
        let all = sched_getaffinity(None).unwrap();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
            let allowed = move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one).unwrap();
                output(shell("grep Cpus_allowed_list /proc/self/status")).unwrap()
            };
            let said = std::thread::spawn(allowed).join().unwrap().stdout;
            let said = String::from_utf8(said).unwrap();
            assert_eq!(said.split_whitespace().last(), Some(&*cpu.to_string()));
        }
    }
}
