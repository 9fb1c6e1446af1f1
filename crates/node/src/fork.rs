//! What a child of `fork` must not keep open.
//!
//! A lock by `flock` belongs to the open file, not to the process: a child of `fork` holds it as long as it lives, even
//! when its parent was killed, and a socket that listens stays connectable in the child though no thread of it accepts.
//! The child can use neither. So the child puts `/dev/null` in the place of each such descriptor before `fork` returns
//! to it; the numbers stay taken, so that whatever the child drops closes `/dev/null` and unlocks nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Most descriptors that are kept from children; those beyond are inherited, with a warning.
const MOST: usize = 1024;
const FREE: i32 = -1;

/// The descriptors. Read by a child between `fork` and its return, where nothing may lock or allocate.
static DESCRIPTORS: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];
static HANDLER: Once = Once::new();
/// Forks between this process and the one in which the handler was installed.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A number that differs between a process and its children of `fork`: what belongs to threads and locks of the parent
/// is left alone in a child.
pub(crate) fn generation() -> u64 {
    install();
    FORKS.load(Ordering::Relaxed)
}

fn install() {
    HANDLER.call_once(|| {
        // SAFETY: the handler calls only what may be called between `fork` and its return in the child.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::warn!(refused, "a child of fork will hold the directory's lock");
        }
    });
}

/// A descriptor that stays with this process alone. Inherited by children, it is of no use to them.
#[derive(Debug)]
pub(crate) struct ParentOnly<T: AsFd> {
    descriptor: T,
    slot: Option<usize>,
}

impl<T: AsFd> ParentOnly<T> {
    pub(crate) fn new(descriptor: T) -> Self {
        install();
        let number = descriptor.as_fd().as_raw_fd();
        let take = |slot: &AtomicI32| {
            slot.compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let slot = DESCRIPTORS.iter().position(take);
        if slot.is_none() {
            tracing::warn!(
                "more than {MOST} locks and sockets: a child of fork will hold this one"
            );
        }
        Self { descriptor, slot }
    }

    pub(crate) fn get(&self) -> &T {
        &self.descriptor
    }
}

impl<T: AsFd> AsFd for ParentOnly<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<T: AsFd> Drop for ParentOnly<T> {
    /// The descriptor is closed after this, so that no child replaces a number that another file has by then.
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            DESCRIPTORS[slot].store(FREE, Ordering::Release);
        }
    }
}

/// Runs in the child of every `fork`, before it returns there.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the path is a C string; `open` may be called here.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    for slot in &DESCRIPTORS {
        let number = slot.load(Ordering::Acquire);
        if number != FREE {
            // SAFETY: both are open: the second until its slot is free, which no other thread of a child can make it.
            unsafe { libc::dup3(null, number, libc::O_CLOEXEC) };
        }
    }
    // SAFETY: opened above, and not handed on.
    unsafe { libc::close(null) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that stayed listed after its file was closed would cost a child whatever file has that number next.
    #[test]
    fn a_descriptor_is_listed_for_as_long_as_it_is_kept_from_children() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        let listed = || {
            let of_file = |slot: &&AtomicI32| slot.load(Ordering::Acquire) == number;
            DESCRIPTORS.iter().filter(of_file).count()
        };
        for _ in 0..3 {
            let kept = ParentOnly::new(file.as_fd());
            assert_eq!(listed(), 1);
            drop(kept);
            assert_eq!(listed(), 0);
        }
    }
}
