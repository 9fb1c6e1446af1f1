use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slackwater_wait::{NumaId, Site, SiteCounts};

/// What one thread of the pool did, kept by that thread alone.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) idle: Site,
    pub(crate) busy_nanos: AtomicU64,
    pub(crate) steal_nanos: AtomicU64,
    pub(crate) clock_reads: AtomicU64,
    pub(crate) jobs: AtomicU64,
    pub(crate) tasks: AtomicU64,
    pub(crate) claims: AtomicU64,
    pub(crate) steals: AtomicU64,
    pub(crate) background: AtomicU64,
    pub(crate) moves: AtomicU64,
}

impl Record {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            idle: Site::new(name),
            busy_nanos: AtomicU64::new(0),
            steal_nanos: AtomicU64::new(0),
            clock_reads: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
            claims: AtomicU64::new(0),
            steals: AtomicU64::new(0),
            background: AtomicU64::new(0),
            moves: AtomicU64::new(0),
        }
    }

    pub(crate) fn counts(&self, thread: usize, node: Option<NumaId>) -> ThreadCounts {
        ThreadCounts {
            thread,
            node,
            busy_nanos: self.busy_nanos.load(Relaxed),
            steal_nanos: self.steal_nanos.load(Relaxed),
            clock_reads: self.clock_reads.load(Relaxed),
            jobs: self.jobs.load(Relaxed),
            tasks: self.tasks.load(Relaxed),
            claims: self.claims.load(Relaxed),
            steals: self.steals.load(Relaxed),
            background: self.background.load(Relaxed),
            moves: self.moves.load(Relaxed),
            waits: self.idle.counts(),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Relaxed);
    }
}

/// What one thread of the pool did so far.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThreadCounts {
    /// Its index; 0 stands for all callers together.
    pub thread: usize,
    /// The node it belongs to, if the pool knows nodes.
    pub node: Option<NumaId>,
    /// Time in jobs, in nanoseconds.
    pub busy_nanos: u64,
    /// Time spent looking for indices of others, in nanoseconds; part of the busy time.
    pub steal_nanos: u64,
    /// Clock reads in jobs, for the figures above.
    pub clock_reads: u64,
    /// Jobs taken part in.
    pub jobs: u64,
    /// Indices run.
    pub tasks: u64,
    /// Times indices were claimed.
    pub claims: u64,
    /// Of these, from another's range.
    pub steals: u64,
    /// Background tasks run.
    pub background: u64,
    /// Times it moved away from the CPU of a job's submitter.
    pub moves: u64,
    /// How it waited: for work, or (thread 0) for the others to end a job.
    pub waits: SiteCounts,
}

/// What a pool did so far.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolCounts {
    /// By thread; the first is all callers together.
    pub threads: Vec<ThreadCounts>,
    /// Jobs started.
    pub jobs: u64,
    /// Of these, run by the caller alone.
    pub alone: u64,
    /// Jobs that a panic ended.
    pub panics: u64,
    /// Threads woken for jobs.
    pub wakes: u64,
    /// Background tasks waiting.
    pub queued: usize,
}

impl PoolCounts {
    /// The busiest thread's time over the mean of all threads; 1 is a perfect split.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let times = self.threads.iter().map(|thread| thread.busy_nanos as f64);
        let (most, sum) = times.fold((0.0, 0.0), |(most, sum): (f64, f64), time| {
            (most.max(time), sum + time)
        });
        if sum == 0.0 {
            1.0
        } else {
            most * self.threads.len() as f64 / sum
        }
    }
}
