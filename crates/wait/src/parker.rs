use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::Timespec;
use slackwater_base::Instant;

use crate::clock::now;

/// Nobody sleeps and nothing was said.
const AWAKE: u32 = 0;
/// The sleeper is in its poll, or about to be.
const ASLEEP: u32 = 1;
/// Something was said since the sleeper last looked.
const NOTIFIED: u32 = 2;

/// Wakes a thread that waits for file descriptors: an event loop or asyncio.
///
/// The loop announces its sleep with [`Parker::prepare`]; only then does a notification cost a system call.
#[derive(Debug)]
pub struct Parker {
    fd: OwnedFd,
    state: AtomicU32,
}

impl Parker {
    /// A parker with its eventfd.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, state: AtomicU32::new(AWAKE) })
    }

    /// Tells the sleeper to look. Any number of notifications before it looks are one.
    pub fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            // Adding 1 to the counter cannot fill it: it is read to zero between two sleeps, and each sleep gets one.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Announces the sleep. `false`: something was said meanwhile, look instead of sleeping.
    #[must_use]
    pub fn prepare(&self) -> bool {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        // Asleep already (asyncio arms once and leaves it), or notified.
        if self.state.load(Ordering::Acquire) == ASLEEP {
            return true;
        }
        self.finish();
        false
    }

    /// Ends the sleep: call after the poll returned, before looking. Says whether something was said.
    pub fn finish(&self) -> bool {
        let before = self.state.swap(AWAKE, Ordering::AcqRel);
        if before == NOTIFIED {
            let mut counter = [0; 8];
            // Empty if the notification came while nobody slept.
            let _ = rustix::io::read(&self.fd, &mut counter);
        }
        before == NOTIFIED
    }

    /// Sleeps until notified or until `deadline`; says whether it was notified.
    pub fn park(&self, deadline: Instant) -> bool {
        loop {
            if !self.prepare() {
                return true;
            }
            let left = now().until(deadline);
            let timeout = (deadline != Instant::NEVER)
                .then(|| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) });
            let polled = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout.as_ref());
            let notified = self.finish();
            if notified || (polled != Err(Errno::INTR) && now() >= deadline) {
                return notified;
            }
        }
    }
}

/// The descriptor to poll for reading.
impl AsFd for Parker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
