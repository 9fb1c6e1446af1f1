//! Ctrl-C: the first one asks the run to end, another one ends the process. What follows within half a second is taken
//! for the same one: `timeout` and other wrappers signal their child and then their whole group.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater_wait::{Event, Park, Site, Waiting, now};

/// How long after the first signal others are taken for the same one.
const SAME_PRESS: Duration = Duration::from_millis(500);

static SITE: Site = Site::new("interrupt");

/// Whether the user has asked to stop, which closes the event. Clones share the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    stop: Arc<Event>,
    /// The first signal; 0 before it.
    signal: Arc<AtomicI32>,
}

impl Interrupt {
    /// Takes SIGINT and SIGTERM over, for this thread and all that it starts from now on: a thread of its own waits
    /// for them, so that nothing runs inside a signal handler.
    pub(crate) fn install() -> Result<Self> {
        Self::install_with(None, || {}, || {})
    }

    /// The same, and calls `hung_up` at each SIGHUP.
    pub(crate) fn install_for_service(hung_up: impl Fn() + Send + 'static) -> Result<Self> {
        Self::install_with(Some(libc::SIGHUP), hung_up, || {})
    }

    /// The same, and calls `resized` when the terminal has another size, and `leave` before another signal ends the process.
    pub(crate) fn install_for_terminal(
        resized: impl Fn() + Send + 'static,
        leave: fn(),
    ) -> Result<Self> {
        Self::install_with(Some(libc::SIGWINCH), resized, leave)
    }

    /// Takes one more signal over, which asks for no end but calls `told`.
    fn install_with(
        also: Option<libc::c_int>,
        told: impl Fn() + Send + 'static,
        leave: fn(),
    ) -> Result<Self> {
        let numbers = [libc::SIGINT, libc::SIGTERM].into_iter().chain(also);
        let signals = block_signals(numbers).context("cannot take signals over")?;
        let interrupt = Self::default();
        let other = interrupt.clone();
        let next = move || {
            loop {
                match wait(&signals) {
                    signal if Some(signal) == also => told(),
                    signal => return signal,
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                other.signal.store(next(), Ordering::Release);
                other.request();
                let asked = Instant::now();
                next();
                while asked.elapsed() < SAME_PRESS {
                    next();
                }
                leave();
                std::process::exit(i32::from(crate::INTERRUPTED));
            })
            .context("cannot start a thread")?;
        Ok(interrupt)
    }

    /// Whether it is time to stop.
    pub(crate) fn requested(&self) -> bool {
        self.stop.is_closed()
    }

    /// Whether it was SIGTERM that asked to stop, by which services are ended.
    pub(crate) fn is_termination(&self) -> bool {
        self.signal.load(Ordering::Acquire) == libc::SIGTERM
    }

    /// Sleeps until `deadline`; returns early, with true, when it is time to stop.
    pub(crate) fn sleep_until(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.sleep(Waiting::at(&SITE).until(now() + left));
        self.requested()
    }

    /// Sleeps until it is time to stop.
    pub(crate) fn wait(&self) {
        self.sleep(Waiting::at(&SITE));
    }

    fn sleep(&self, waiting: Waiting<'_>) {
        // Nobody notifies: it ends when the event is closed, or at its deadline.
        let _ = self.stop.wait(self.stop.seen(), &waiting.by(&Park));
    }

    fn request(&self) {
        self.stop.close();
    }
}

/// Blocks signals in this thread and returns their set.
pub(crate) fn block_signals(
    numbers: impl Iterator<Item = libc::c_int>,
) -> std::io::Result<libc::sigset_t> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given; the set is valid for writes.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in numbers {
        // SAFETY: the set is initialised and the signal numbers are valid.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: the set is initialised; no old mask is asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(set),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

/// Waits for one of the signals and says which it was.
fn wait(signals: &libc::sigset_t) -> libc::c_int {
    let mut signal = 0;
    // SAFETY: the set is initialised and the place for the signal's number is valid for writes.
    while unsafe { libc::sigwait(signals, &raw mut signal) } != 0 {}
    signal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_wakes_the_sleeper() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.requested() && !interrupt.sleep_until(Instant::now()));
        let other = interrupt.clone();
        let sleeper = std::thread::spawn(move || {
            other.sleep_until(Instant::now() + Duration::from_secs(3600))
        });
        interrupt.request();
        assert!(sleeper.join().unwrap() && interrupt.requested());
    }
}
