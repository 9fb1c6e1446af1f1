use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::Timespec;
use slackwater_base::Instant;

use crate::bell::Bell;
use crate::clock::now;
use crate::sync::AtomicU32;

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
    bell: Bell,
    state: AtomicU32,
    /// Rings on their way that have not been silenced. Only the sleeper's: the notifier that found it asleep may ring
    /// after the sleeper has left its poll for another reason.
    rings_owed: AtomicU32,
}

impl Parker {
    /// A parker with its eventfd.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            state: AtomicU32::new(AWAKE),
            rings_owed: AtomicU32::new(0),
        })
    }

    /// Tells the sleeper to look. Any number of notifications before it looks are one.
    pub fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            self.bell.ring();
        }
    }

    /// Announces the sleep. `false`: something was said meanwhile, look instead of sleeping.
    #[must_use]
    pub fn prepare(&self) -> bool {
        match self
            .state
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
        {
            // Asleep already: asyncio arms once and leaves it.
            Ok(_) | Err(ASLEEP) => true,
            // Said to somebody awake, so nothing rings.
            Err(_) => {
                self.state.swap(AWAKE, Ordering::AcqRel);
                false
            }
        }
    }

    /// Ends a prepared sleep: call after the poll returned, before looking. Says whether something was said.
    pub fn finish(&self) -> bool {
        let notified = self.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED;
        let owed = self.rings_owed.load(Ordering::Relaxed) + u32::from(notified);
        if owed > 0 {
            // A late ring would keep the descriptor readable, and every later poll from sleeping.
            self.rings_owed
                .store(owed - self.bell.silence().min(owed), Ordering::Relaxed);
        }
        notified
    }

    /// Sleeps until notified or until `deadline`; says whether it was notified.
    pub fn park(&self, deadline: Instant) -> bool {
        loop {
            if !self.prepare() {
                return true;
            }
            let left = now().until(deadline);
            let timeout = (deadline != Instant::NEVER).then(|| Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            let polled = poll(
                &mut [PollFd::new(&self.bell, PollFlags::IN)],
                timeout.as_ref(),
            );
            let notified = self.finish();
            if notified || (polled != Err(Errno::INTR) && now() >= deadline) {
                return notified;
            }
        }
    }
}

#[cfg(all(test, loom))]
impl Parker {
    /// Whether a poll would return at once.
    pub(crate) fn is_readable(&self) -> bool {
        self.bell.rings()
    }
}

/// The descriptor to poll for reading.
impl AsFd for Parker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
