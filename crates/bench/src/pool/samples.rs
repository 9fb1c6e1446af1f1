//! What the threads of this process do with their CPU time, by a signal that the kernel sends for each few milliseconds of it.
//!
//! The signal comes to the thread that is running, and its handler notes what that thread does: a task (the thread says so, in
//! its own memory), the caller's business between two bursts, a read of the clock (the instruction is one of the vDSO), or the
//! rest: looking at words, the pool's own work and the kernel. Threads that sleep have no CPU time and get no signal.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Samples by what the thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    /// In a task.
    pub(crate) compute: u64,
    /// In the vDSO, reading the clock.
    pub(crate) clock: u64,
    /// Anywhere else.
    pub(crate) rest: u64,
}

impl Samples {
    pub(crate) fn all(self) -> u64 {
        self.compute + self.clock + self.rest
    }

    fn now() -> Self {
        let [compute, clock, rest] = COUNTS.each_ref().map(|count| count.load(Relaxed));
        Self {
            compute,
            clock,
            rest,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            compute: self.compute - before.compute,
            clock: self.clock - before.clock,
            rest: self.rest - before.rest,
        }
    }
}

impl std::ops::Add for Samples {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            compute: self.compute + other.compute,
            clock: self.clock + other.clock,
            rest: self.rest + other.rest,
        }
    }
}

impl std::iter::Sum for Samples {
    fn sum<I: Iterator<Item = Self>>(samples: I) -> Self {
        samples.fold(Self::default(), std::ops::Add::add)
    }
}

/// What a thread says of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Waiting,
    Task,
    Elsewhere,
}

thread_local! {
    // Without an initialiser to run and without a drop, so that a signal handler may read it.
    static DOING: Cell<Doing> = const { Cell::new(Doing::Waiting) };
}

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// The instructions of the vDSO; empty where it was not found.
static VDSO: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Runs a task that counts as computing.
pub(crate) fn computing(task: impl FnOnce()) {
    DOING.set(Doing::Task);
    task();
    DOING.set(Doing::Waiting);
}

/// Runs what the caller does between two bursts, which does not count.
pub(crate) fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    DOING.set(Doing::Elsewhere);
    let done = work();
    DOING.set(Doing::Waiting);
    done
}

/// The samples of all threads while `run` runs. None where the kernel gives no such signal; one sampling at a time.
pub(crate) fn sampling<T>(run: impl FnOnce() -> T) -> (T, Option<Samples>) {
    static HANDLER: OnceLock<bool> = OnceLock::new();
    if !*HANDLER.get_or_init(|| install().is_ok()) || set_timer(INTERVAL_MICROS).is_err() {
        return (run(), None);
    }
    let before = Samples::now();
    let done = run();
    let samples = Samples::now().since(before);
    let stopped = set_timer(0);
    debug_assert!(stopped.is_ok(), "a timer that was set can be unset");
    (done, Some(samples))
}

/// Below the kernel's own tick, so that each tick of CPU time is a sample.
const INTERVAL_MICROS: libc::suseconds_t = 1_000;

fn install() -> io::Result<()> {
    let code = vdso(&std::fs::read_to_string("/proc/self/maps")?).unwrap_or_default();
    VDSO[0].store(code.start, Relaxed);
    VDSO[1].store(code.end, Relaxed);
    // SAFETY: all zeros is a value of this plain struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = note;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the action is whole, its handler has the signature that SA_SIGINFO asks for and calls nothing that may not be
    // called in a signal handler.
    match unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_timer(micros: libc::suseconds_t) -> io::Result<()> {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: micros,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: both pointers may be read or are null.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The addresses of the vDSO's instructions in the list of a process's mappings.
fn vdso(maps: &str) -> Option<Range<usize>> {
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

/// The signal's handler: only atomics and memory of the thread itself.
extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let at = match DOING.get() {
        Doing::Elsewhere => return,
        Doing::Task => 0,
        Doing::Waiting => {
            let code = VDSO[0].load(Relaxed)..VDSO[1].load(Relaxed);
            // SAFETY: the kernel gives an SA_SIGINFO handler its own ucontext, which nothing else uses meanwhile.
            let interrupted = unsafe { instruction(context) };
            if code.contains(&interrupted) { 1 } else { 2 }
        }
    };
    COUNTS[at].fetch_add(1, Relaxed);
}

/// The instruction at which a signal interrupted its thread.
///
/// # Safety
/// `context` is the third argument of an SA_SIGINFO handler that is still running.
unsafe fn instruction(context: *mut libc::c_void) -> usize {
    // SAFETY: by the contract of this function it points to a ucontext.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let at = context.uc_mcontext.pc as usize;
    at
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_wait::now;

    use super::*;
    use crate::pool::bursts::{steps_of, task};
    use crate::usage::thread_cpu;

    /// A process has one such timer and its other threads are sampled too, so the test has a process of its own.
    #[test]
    fn samples_tell_what_threads_do() {
        let this = std::env::current_exe().unwrap();
        let alone = "pool::samples::tests::alone_samples_tell_tasks_clock_reads_and_the_rest_apart";
        let output = std::process::Command::new(this)
            .args(["--exact", "--ignored", "--test-threads=1", alone])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[test]
    #[ignore = "the test above starts it in a process of its own"]
    fn alone_samples_tell_tasks_clock_reads_and_the_rest_apart() {
        let time = Duration::from_millis(20);
        let steps = steps_of(time);
        let computes = || computing(|| task(steps));
        let reads_clocks = || {
            // By its own CPU time, which asks the kernel: a busy machine leaves it little of the wall time.
            let began = thread_cpu();
            while thread_cpu() - began < time {
                for _ in 0..1_000 {
                    std::hint::black_box(now());
                }
            }
        };
        // A neighbour on the host may take ticks away, but not all of them.
        let until_seen = |run: &dyn Fn()| {
            let mut seen = Samples::default();
            for _ in 0..500 {
                let ((), samples) = sampling(run);
                seen = seen + samples.expect("Linux has SIGPROF");
                if seen.all() >= 10 {
                    return seen;
                }
            }
            panic!("{seen:?} in 10 s of CPU time");
        };
        let seen = until_seen(&computes);
        assert!(seen.compute >= 8, "{seen:?}");
        let seen = until_seen(&reads_clocks);
        assert!(seen.compute == 0 && seen.clock > 0, "{seen:?}");
        let seen = until_seen(&|| task(steps));
        assert!(seen.rest >= 8, "{seen:?}");
        let runs: [&dyn Fn(); 2] = [&|| elsewhere(reads_clocks), &|| std::thread::sleep(time)];
        for unseen in runs {
            let ((), samples) = sampling(unseen);
            assert!(samples.expect("as before").all() <= 1, "{samples:?}");
        }
    }

    #[test]
    fn the_vdso_is_found_by_its_name() {
        let maps =
            "7f00-7f10 r--p 00000000 00:00 0   [vvar]\n7f10-7f30 r-xp 00000000 00:00 0   [vdso]\n";
        assert_eq!(vdso(maps), Some(0x7f10..0x7f30));
        assert_eq!(vdso("7f00-7f10 r--p 0 00:00 0 /lib/it\n"), None);
    }
}
