//! The control page of one link, through which the owner of memory and the process that copies synchronise without
//! messages.
//!
//! One 64-bit word per window, on a cache line of its own:
//!
//! | bits | meaning | written by |
//! |---|---|---|
//! | 0 | the owner sleeps until the count is zero | owner sets, initiator clears |
//! | 1 | closed: the initiator's process is gone | owner |
//! | 2–31 | copies in flight | initiator |
//! | 32–63 | epoch of the window | owner |
//!
//! Count and epoch share a word, so one atomic step both announces a copy and tells whether it may begin, and one both
//! ends it and tells whether it counted. The argument: in the modification order of the word a mark comes either before
//! the owner's new epoch, and then the owner sees the count, or after, and then the initiator sees the epoch and
//! touches nothing. The README of the crate walks through it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use slackwater_memory::{Mapping, RefusedMemory};
use slackwater_wait::{SharedWord, Waiting};

const CLOSED: u64 = 1 << 1;
const COPY: u64 = 1 << 2;
const COPIES: u64 = (1 << 32) - COPY;
const EPOCH: u64 = 1 << 32;
const STRIDE: usize = 64;

/// The page itself; the owner and the initiator each have a mapping of it.
#[derive(Debug)]
pub(crate) struct ControlPage {
    memory: Mapping,
    slots: u32,
}

/// The window was revoked since it was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// A copy in flight. Dropped without [`Mark::finish`], it ends without counting.
#[derive(Debug)]
#[must_use = "the owner of the memory waits until the mark is gone"]
pub(crate) struct Mark<'a> {
    word: &'a SharedWord,
    epoch: u32,
}

impl ControlPage {
    pub(crate) fn create(slots: u32) -> io::Result<Self> {
        Ok(Self {
            memory: Mapping::shared(slots as usize * STRIDE)?,
            slots,
        })
    }

    /// The page that the owner passed.
    pub(crate) fn open(fd: OwnedFd, slots: u32) -> Result<Self, RefusedMemory> {
        Ok(Self {
            memory: Mapping::open(fd, u64::from(slots) * STRIDE as u64)?,
            slots,
        })
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn word(&self, slot: u32) -> &SharedWord {
        assert!(slot < self.slots, "slot {slot} of a page of {}", self.slots);
        // SAFETY: the slot lies within the mapping, which lives as long as `self` and starts on a page; in this process
        // the page is reached by these words alone.
        unsafe {
            SharedWord::at(
                self.memory
                    .start()
                    .as_ptr()
                    .add(slot as usize * STRIDE)
                    .cast(),
            )
        }
    }

    /// The epoch of a slot: that of the window that has it, or that the next one begins with.
    pub(crate) fn epoch(&self, slot: u32) -> u32 {
        epoch(self.word(slot).load())
    }

    /// Owner: no copy that has not begun may begin. Epochs do not come around: a slot is used 2^32 - 1 times at most,
    /// see [`ControlPage::is_worn`].
    pub(crate) fn revoke(&self, slot: u32) {
        self.word(slot).add(EPOCH);
    }

    /// Owner: whether the slot has no further epoch to give.
    pub(crate) fn is_worn(&self, slot: u32) -> bool {
        self.epoch(slot) == u32::MAX
    }

    /// Owner: whether a copy is in flight that can still touch memory.
    pub(crate) fn is_busy(&self, slot: u32) -> bool {
        busy(self.word(slot).load())
    }

    /// Owner: waits until no copy is in flight, or the process that copies is gone; says whether that came in time.
    pub(crate) fn drain(&self, slot: u32, waiting: &Waiting<'_>) -> bool {
        self.word(slot).wait(waiting, |value| !busy(value))
    }

    /// Owner: the initiator's process is gone, and with it every copy. Ends all waits.
    pub(crate) fn close(&self) {
        for slot in 0..self.slots {
            let word = self.word(slot);
            let before = word.set(CLOSED);
            word.wake(before);
        }
    }

    /// Initiator: begins a copy under `epoch`.
    pub(crate) fn mark(&self, slot: u32, epoch_then: u32) -> Result<Mark<'_>, Stale> {
        let word = self.word(slot);
        // Checked first, so that a revoked window is not marked again and again while its owner waits.
        if epoch(word.load()) != epoch_then {
            return Err(Stale);
        }
        let before = word.add(COPY);
        let mark = Mark {
            word,
            epoch: epoch_then,
        };
        if epoch(before) == epoch_then {
            Ok(mark)
        } else {
            Err(Stale)
        }
    }
}

impl Mark<'_> {
    /// Whether the copy does not count any more, so that its rest need not be copied.
    pub(crate) fn is_stale(&self) -> bool {
        epoch(self.word.load()) != self.epoch
    }

    /// Ends the copy, and says whether it counted: whether the window was in force until now.
    pub(crate) fn finish(self) -> Result<(), Stale> {
        let mark = std::mem::ManuallyDrop::new(self);
        if epoch(mark.leave()) == mark.epoch {
            Ok(())
        } else {
            Err(Stale)
        }
    }

    fn leave(&self) -> u64 {
        let before = self.word.subtract(COPY);
        if before & COPIES == COPY {
            self.word.wake(before);
        }
        before
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AsFd for ControlPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let file = self.memory.file();
        file.expect("a shared mapping has a file").as_fd()
    }
}

fn epoch(value: u64) -> u32 {
    (value >> 32) as u32
}

fn busy(value: u64) -> bool {
    value & COPIES != 0 && value & CLOSED == 0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    use slackwater_wait::{Site, now};

    use super::*;

    static SITE: Site = Site::new("page test");

    fn soon() -> Waiting<'static> {
        Waiting::at(&SITE).until(now() + Duration::from_secs(30))
    }

    fn pair() -> (ControlPage, ControlPage) {
        let owner = ControlPage::create(4).unwrap();
        let initiator = ControlPage::open(owner.as_fd().try_clone_to_owned().unwrap(), 4).unwrap();
        (owner, initiator)
    }

    #[test]
    fn a_copy_counts_while_its_epoch_lasts() {
        let (owner, initiator) = pair();
        let epoch = owner.epoch(2);
        let mark = initiator.mark(2, epoch).unwrap();
        assert!(owner.is_busy(2) && !mark.is_stale());
        assert_eq!(mark.finish(), Ok(()));
        assert!(!owner.is_busy(2));
    }

    #[test]
    fn a_revoked_window_takes_no_copy_and_commits_none() {
        let (owner, initiator) = pair();
        let epoch = owner.epoch(1);
        let mark = initiator.mark(1, epoch).unwrap();
        owner.revoke(1);
        assert!(mark.is_stale() && owner.is_busy(1));
        assert_eq!(
            initiator.mark(1, epoch).err(),
            Some(Stale),
            "no second copy while the first runs"
        );
        assert!(!owner.drain(
            1,
            &Waiting::at(&SITE).until(now() + Duration::from_millis(1))
        ));
        assert_eq!(mark.finish(), Err(Stale));
        assert!(owner.drain(1, &soon()));
        assert!(
            initiator.mark(1, owner.epoch(1)).is_ok(),
            "the next window of the slot"
        );
    }

    #[test]
    fn the_end_of_the_peer_ends_the_wait() {
        let (owner, initiator) = pair();
        let mark = initiator.mark(0, owner.epoch(0)).unwrap();
        owner.revoke(0);
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(owner.drain(0, &soon())));
            owner.close();
        });
        drop(mark);
    }

    /// Copies and revocations race; after each drain the owner reuses the memory, and nothing of an old epoch may land.
    #[test]
    fn after_a_drain_no_copy_of_an_older_epoch_touches_memory() {
        let (owner, initiator) = pair();
        let memory = AtomicU32::new(0);
        let granted = AtomicU32::new(owner.epoch(3));
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let epoch = granted.load(Ordering::Relaxed);
                        let Ok(mark) = initiator.mark(3, epoch) else {
                            continue;
                        };
                        memory.store(epoch, Ordering::Relaxed);
                        let _ = mark.finish();
                    }
                });
            }
            for _ in 0..20_000 {
                owner.revoke(3);
                assert!(owner.drain(3, &soon()));
                let epoch = owner.epoch(3);
                memory.store(epoch, Ordering::Relaxed);
                assert_eq!(
                    memory.load(Ordering::Relaxed),
                    epoch,
                    "nothing may write before the new epoch is granted"
                );
                granted.store(epoch, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
