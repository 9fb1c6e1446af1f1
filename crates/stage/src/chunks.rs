use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use slackwater_base::{BLOCK_BYTES, Instant};
use slackwater_engine::{Access, StageError, Staged, StagingTurn};

use super::device::Pinned;

/// The chunks of one half, and the queue for them. It decides; its owner calls the waiters and makes the chunks.
#[derive(Default)]
pub(super) struct Chunks {
    idle: Vec<Chunk>,
    made: usize,
    line: VecDeque<Waiter>,
    /// Waiters whose turn it is.
    called: usize,
    /// The earliest deadline in the queue.
    late_at: Option<Instant>,
}

/// Pinned memory, and the tenant whose bytes may still be in it.
pub(super) struct Chunk {
    pub(super) pinned: Pinned,
    tenant: Option<u64>,
    dirty: usize,
}

/// A waiter for a chunk.
pub(super) enum Waiter {
    Fetch(Fetch),
    Lend { free: Free, until: Instant },
}

/// Called when it is a waiter's turn.
pub(super) type Free = Box<dyn FnOnce(StagingTurn) + Send>;

pub(super) struct Fetch {
    pub(super) access: Arc<Access>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
}

/// What the owner has to do for the queue.
pub(super) enum Next {
    Nothing,
    /// Make one more chunk; [`Chunks::made`] or [`Chunks::not_made`] reports the result.
    Make,
    Fetch(Fetch, Chunk),
    /// Call a waiter, which has the turn until [`Chunks::turn_over`].
    Call(Free),
}

impl Chunks {
    /// Adds the first chunk, which always exists.
    pub(super) fn first(&mut self, pinned: Pinned) {
        self.made = 1;
        self.made(pinned);
    }

    pub(super) fn made(&mut self, pinned: Pinned) {
        self.idle.push(Chunk {
            pinned,
            tenant: None,
            dirty: 0,
        });
    }

    /// No chunk could be made.
    pub(super) fn not_made(&mut self) {
        self.made -= 1;
    }

    /// The number of chunks, and of waiters.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.made, self.line.len())
    }

    /// A chunk for a fetch; without a free one the fetch is queued.
    pub(super) fn fetch(&mut self, fetch: Fetch) -> Option<(Fetch, Chunk)> {
        if self.line.is_empty()
            && self.idle.len() > self.called
            && let Some(chunk) = self.take(fetch.access.tenant())
        {
            return Some((fetch, chunk));
        }
        self.line.push_back(Waiter::Fetch(fetch));
        None
    }

    /// A chunk, while it is a waiter's turn or the queue is empty; otherwise the caller is queued.
    pub(super) fn lend(&mut self, tenant: u64, until: Instant, free: Free) -> Option<Chunk> {
        if (self.called > 0 || self.line.is_empty())
            && let Some(chunk) = self.take(tenant)
        {
            return Some(chunk);
        }
        self.late_at = Some(self.late_at.map_or(until, |at| at.min(until)));
        self.line.push_back(Waiter::Lend { free, until });
        None
    }

    /// A called waiter has taken a chunk, or does not want one any more; says whether the next is to be called.
    pub(super) fn turn_over(&mut self) -> bool {
        self.called -= 1;
        self.idle.len() > self.called && !self.line.is_empty()
    }

    /// A chunk comes back; says whether there are waiters.
    pub(super) fn back(&mut self, chunk: Chunk) -> bool {
        self.idle.push(chunk);
        !self.line.is_empty()
    }

    /// What the owner has to do now. As many waiters are called as there are free chunks: waiters that are called and
    /// find none queue again, and many of them doing so for every chunk keep a thread busy.
    pub(super) fn next(&mut self, at: Instant, made_max: usize) -> Next {
        if let Some(free) = self.late(at) {
            self.called += 1;
            return Next::Call(free);
        }
        if self.line.is_empty() {
            return Next::Nothing;
        }
        if self.idle.len() <= self.called {
            if self.made >= made_max {
                return Next::Nothing;
            }
            self.made += 1;
            return Next::Make;
        }
        match self.line.pop_front() {
            Some(Waiter::Fetch(fetch)) => match self.take(fetch.access.tenant()) {
                Some(chunk) => Next::Fetch(fetch, chunk),
                None => Next::Nothing,
            },
            Some(Waiter::Lend { free, .. }) => {
                self.called += 1;
                Next::Call(free)
            }
            None => Next::Nothing,
        }
    }

    /// When the first waiter is late.
    pub(super) fn next_look(&self) -> Instant {
        self.late_at.unwrap_or(Instant::NEVER)
    }

    /// Empties the queue: all waiters are to be called.
    pub(super) fn turn_away(&mut self) -> VecDeque<Waiter> {
        self.called += self
            .line
            .iter()
            .filter(|wanted| matches!(wanted, Waiter::Lend { .. }))
            .count();
        std::mem::take(&mut self.line)
    }

    /// The first late waiter, which is called to find that out.
    fn late(&mut self, at: Instant) -> Option<Free> {
        if self.late_at.is_none_or(|late_at| at < late_at) {
            return None;
        }
        let until = |wanted: &Waiter| match wanted {
            Waiter::Lend { until, .. } => *until,
            Waiter::Fetch(_) => Instant::NEVER,
        };
        match self
            .line
            .iter()
            .position(|wanted| until(wanted) <= at)
            .and_then(|late| self.line.remove(late))
        {
            Some(Waiter::Lend { free, .. }) => Some(free),
            _ => {
                self.late_at = self.line.iter().map(until).min();
                None
            }
        }
    }

    /// A free chunk, one that the same tenant had last if there is one.
    fn take(&mut self, tenant: u64) -> Option<Chunk> {
        let same = self
            .idle
            .iter()
            .rposition(|chunk| chunk.tenant == Some(tenant));
        same.map(|at| self.idle.swap_remove(at))
            .or_else(|| self.idle.pop())
    }
}

impl Chunk {
    /// Wipes the bytes of another tenant, and records the tenant of the first `bytes` bytes and of the rest of their
    /// last block, since a device may read in whole blocks.
    pub(super) fn prepare(&mut self, tenant: u64, bytes: usize) {
        if self.tenant.is_some_and(|last| last != tenant) {
            // SAFETY: the bytes are within the chunk, which is this caller's alone.
            unsafe { ptr::write_bytes(self.pinned.as_ptr(), 0, self.dirty) };
            self.dirty = 0;
        }
        self.tenant = Some(tenant);
        let blocks = bytes.next_multiple_of(BLOCK_BYTES as usize);
        self.dirty = self.dirty.max(blocks.min(self.pinned.len()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pinned() -> Pinned {
        let mut bytes = vec![0u8; 64].into_boxed_slice();
        let at = bytes.as_mut_ptr();
        // SAFETY: the box is kept as long as the value and reached by it alone.
        unsafe { Pinned::new(at, 64, Box::new(bytes)) }
    }

    /// One half with one chunk, which is lent.
    fn lent_out() -> (Chunks, Chunk) {
        let mut chunks = Chunks::default();
        chunks.first(pinned());
        let chunk = chunks.lend(0, Instant::NEVER, Box::new(|_| {})).unwrap();
        (chunks, chunk)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Duration::from_millis(millis)
    }

    fn stand(chunks: &mut Chunks, until: Instant) {
        assert!(chunks.lend(0, until, Box::new(|_| {})).is_none());
    }

    fn calls(chunks: &mut Chunks, at: Instant) -> usize {
        let mut calls = 0;
        while let Next::Call(_) = chunks.next(at, 1) {
            calls += 1;
        }
        calls
    }

    /// A device that reads whole blocks leaves more than was asked for; the next tenant was shown the rest.
    #[test]
    fn the_rest_of_a_block_is_wiped_for_another_tenant() {
        let (_, mut chunk) = lent_out();
        chunk.prepare(1, 10);
        // SAFETY: the chunk is that long and this test's alone.
        let last = unsafe { &mut *chunk.pinned.as_ptr().add(63) };
        *last = 7;
        chunk.prepare(1, 10);
        assert_eq!(*last, 7, "its own bytes are not wiped");
        chunk.prepare(2, 10);
        assert_eq!(*last, 0);
    }

    /// Every waiter was called for each chunk that came back, and all but one queued again: a batch of thousands of
    /// chunks kept the staging thread busy with that.
    #[test]
    fn as_many_are_called_as_there_are_chunks() {
        let (mut chunks, chunk) = lent_out();
        (0..100).for_each(|_| stand(&mut chunks, Instant::NEVER));
        assert_eq!(calls(&mut chunks, at(0)), 0);
        assert!(chunks.back(chunk));
        assert_eq!(calls(&mut chunks, at(0)), 1);
        let chunk = chunks
            .lend(0, Instant::NEVER, Box::new(|_| {}))
            .expect("who was called gets it");
        assert!(!chunks.turn_over(), "there is none for the next");
        assert_eq!(calls(&mut chunks, at(1)), 0);
        chunks.back(chunk);
        assert_eq!(calls(&mut chunks, at(1)), 1);
        assert_eq!(chunks.counts(), (1, 98));
    }

    /// A connection that was queued twice, or was gone when it was called, kept the chunk from all others.
    #[test]
    fn a_turn_that_is_not_used_passes_on() {
        let (mut chunks, chunk) = lent_out();
        (0..2).for_each(|_| stand(&mut chunks, Instant::NEVER));
        chunks.back(chunk);
        assert_eq!(calls(&mut chunks, at(0)), 1);
        assert!(chunks.turn_over());
        assert_eq!(calls(&mut chunks, at(0)), 1);
    }

    #[test]
    fn a_late_waiter_is_called_though_there_is_no_chunk() {
        let (mut chunks, _chunk) = lent_out();
        stand(&mut chunks, Instant::NEVER);
        stand(&mut chunks, at(50));
        stand(&mut chunks, at(10));
        assert_eq!(chunks.next_look(), at(10));
        assert_eq!(calls(&mut chunks, at(9)), 0);
        assert_eq!(calls(&mut chunks, at(10)), 1);
        assert_eq!(chunks.next_look(), at(50));
        assert_eq!(calls(&mut chunks, at(60)), 1);
        assert_eq!(
            (chunks.next_look(), chunks.counts()),
            (Instant::NEVER, (1, 1))
        );
    }
}
