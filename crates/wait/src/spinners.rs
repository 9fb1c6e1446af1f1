//! How many threads may spin at once: a spinner must never hold the CPU that the awaited work needs.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

use crate::cpus::Cpus;

static SPINNING: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(0));
static WORKING: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(0));
/// The most spinners by configuration; the machine may allow fewer.
static LIMIT: AtomicU32 = AtomicU32::new(u32::MAX);

/// The right to spin, given back on drop.
#[derive(Debug)]
pub(crate) struct Token(());

impl Token {
    /// A token, if fewer threads spin than there are CPUs beyond those that work. At least one CPU is left for work
    /// that was not declared.
    pub(crate) fn take() -> Option<Self> {
        let free = free_cpus()
            .min(Cpus::current().usable - 1)
            .min(LIMIT.load(Ordering::Relaxed));
        // Read first: if there is no token, this saves a write to the shared line.
        if SPINNING.load(Ordering::Relaxed) >= free {
            return None;
        }
        if SPINNING.fetch_add(1, Ordering::Relaxed) >= free {
            give_back(&SPINNING);
            return None;
        }
        Some(Self(()))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        give_back(&SPINNING);
    }
}

/// The CPUs beyond the threads that declared themselves [`working`]: how many more can run something now.
#[must_use]
pub fn free_cpus() -> u32 {
    Cpus::current()
        .usable
        .saturating_sub(WORKING.load(Ordering::Relaxed))
}

/// Allows at most `count` spinners at a time in this process.
pub(crate) fn limit(count: u32) {
    LIMIT.store(count, Ordering::Relaxed);
}

/// Declares that this thread computes until the value is dropped: its CPU is not free for spinners.
#[must_use = "the thread counts as working only while the value lives"]
#[derive(Debug)]
pub struct Working(());

/// Declares the calling thread as working.
pub fn working() -> Working {
    WORKING.fetch_add(1, Ordering::Relaxed);
    Working(())
}

impl Drop for Working {
    fn drop(&mut self) {
        give_back(&WORKING);
    }
}

/// Tells that this process has just been forked: the threads that spun or worked stayed in the parent. Only stores to atomics, so it
/// may be called between fork and exec.
pub fn forked() {
    SPINNING.store(0, Ordering::Relaxed);
    WORKING.store(0, Ordering::Relaxed);
}

/// Not below zero: what is given back may have been taken before a fork.
fn give_back(count: &AtomicU32) {
    let less = |count: u32| count.checked_sub(1);
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_given_while_every_cpu_works() {
        let cpus = Cpus::current().usable;
        let _all: Vec<_> = (0..cpus).map(|_| working()).collect();
        assert!(Token::take().is_none());
    }
}
