use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use slackwater_base::Instant;

use super::device::Pinned;
use crate::memory::{StageError, Staged, StagingTurn};
use crate::region::Access;

/// Chunks of one half, and the line for them. It decides; what is to be called or made, its owner does.
#[derive(Default)]
pub(super) struct Chunks {
    idle: Vec<Chunk>,
    made: usize,
    line: VecDeque<Waiter>,
    /// Those whose turn it is.
    called: usize,
    /// Nobody in line is late before.
    late_at: Option<Instant>,
}

/// Pinned memory, and whose bytes may still lie in it.
pub(super) struct Chunk {
    pub(super) pinned: Pinned,
    tenant: Option<u64>,
    dirty: usize,
}

/// Who waits for a chunk.
pub(super) enum Waiter {
    Fetch(Fetch),
    Lend { free: Free, until: Instant },
}

/// Calls whoever waits for a loan.
pub(super) type Free = Box<dyn FnOnce(StagingTurn) + Send>;

pub(super) struct Fetch {
    pub(super) access: Arc<Access>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
}

/// What is to be done for the line.
pub(super) enum Next {
    Nothing,
    /// One more chunk is to be made; [`Chunks::made`] or [`Chunks::not_made`] tells what came of it.
    Make,
    Fetch(Fetch, Chunk),
    /// Somebody is to be called, who has the turn until [`Chunks::turn_over`].
    Call(Free),
}

impl Chunks {
    /// The chunk that there always is.
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

    /// The chunks there are have to do.
    pub(super) fn not_made(&mut self) {
        self.made -= 1;
    }

    /// Chunks that were made, and who waits.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.made, self.line.len())
    }

    /// A chunk for a fetch, or a place in line.
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

    /// A chunk while it is somebody's turn, or nobody is in line; otherwise a place in it.
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

    /// Whoever was called has taken a chunk, or does not want one any more; says whether the next is to be called.
    pub(super) fn turn_over(&mut self) -> bool {
        self.called -= 1;
        self.idle.len() > self.called && !self.line.is_empty()
    }

    /// A chunk comes back; says whether somebody waits.
    pub(super) fn back(&mut self, chunk: Chunk) -> bool {
        self.idle.push(chunk);
        !self.line.is_empty()
    }

    /// What is to be done for the line now. As many are called as there are chunks for: who is called in vain stands in
    /// line again, and a crowd that does so for every chunk keeps a thread busy.
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

    /// When somebody in line is late.
    pub(super) fn next_look(&self) -> Instant {
        self.late_at.unwrap_or(Instant::NEVER)
    }

    /// The end of the line: all of it is to be called.
    pub(super) fn turn_away(&mut self) -> VecDeque<Waiter> {
        self.called += self
            .line
            .iter()
            .filter(|wanted| matches!(wanted, Waiter::Lend { .. }))
            .count();
        std::mem::take(&mut self.line)
    }

    /// The first in line that is late: it is called, to find that out.
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
    /// Leaves nothing of another tenant behind, and notes who has the first `bytes` bytes now.
    pub(super) fn prepare(&mut self, tenant: u64, bytes: usize) {
        if self.tenant.is_some_and(|last| last != tenant) {
            // SAFETY: the bytes are within the chunk, which is this caller's alone.
            unsafe { ptr::write_bytes(self.pinned.as_ptr(), 0, self.dirty) };
            self.dirty = 0;
        }
        self.tenant = Some(tenant);
        self.dirty = self.dirty.max(bytes);
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

    /// One half with one chunk, which somebody has.
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

    /// Everybody in line was called for each chunk that came back, and stood in line again but for one: a batch of
    /// thousands of chunks kept the staging thread busy with that.
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

    /// A connection that stood in line twice, or was gone when it was called, kept the chunk from all others.
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
    fn who_is_late_is_called_though_there_is_no_chunk() {
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
