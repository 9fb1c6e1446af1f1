//! Requests that have read and may insert later: the two calls of the catalog are one request for the policy.

use super::class::Features;

/// What the insertion needs to know of the read before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    pub(super) key: u64,
    pub(super) features: Features,
    pub(super) ghosts: GhostRuns,
    pub(super) found: Found,
    /// Whether the simulated caches see the request.
    pub(super) sampled: bool,
}

/// Reuse counts of the known blocks that follow what was resident, as runs: the position after a run, and its count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GhostRuns {
    ends: [u32; RUNS],
    counts: [u8; RUNS],
    length: u8,
}

/// The segments of the blocks found, root first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    segments: [(u32, u8); SEGMENTS],
    length: u8,
}

const RUNS: usize = 4;
/// The number of buckets of reuse count: more segments are rare, and the deepest matter most.
const SEGMENTS: usize = 6;
const REQUESTS: usize = 512;

impl GhostRuns {
    /// The blocks before `end` (and after the last run) were used `count` times. Beyond the limit of runs the last one
    /// is lengthened.
    pub(super) fn push(&mut self, end: u32, count: u8) {
        let at = usize::from(self.length).min(RUNS - 1);
        if usize::from(self.length) == RUNS {
            self.ends[at] = end;
            return;
        }
        (self.ends[at], self.counts[at]) = (end, count);
        self.length += 1;
    }

    /// The count of the block at `position`; zero beyond the runs.
    pub(super) fn count(&self, position: u32) -> u8 {
        let runs = self
            .ends
            .iter()
            .zip(self.counts)
            .take(usize::from(self.length));
        runs.into_iter()
            .find(|&(&end, _)| position < end)
            .map_or(0, |(_, count)| count)
    }
}

impl Found {
    /// Adds a deeper segment; the one nearest the root is dropped if there are too many.
    pub(super) fn push(&mut self, segment: (u32, u8)) {
        if usize::from(self.length) == SEGMENTS {
            self.segments.rotate_left(1);
            self.segments[SEGMENTS - 1] = segment;
            return;
        }
        self.segments[usize::from(self.length)] = segment;
        self.length += 1;
    }

    pub(super) fn segments(&self) -> &[(u32, u8)] {
        &self.segments[..usize::from(self.length)]
    }
}

/// The latest requests, by the hash of the block that the next insertion continues: a table of fixed size in which
/// newer entries overwrite older ones.
#[derive(Debug)]
pub(super) struct Requests {
    slots: Vec<Option<Pending>>,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            slots: vec![None; REQUESTS],
        }
    }

    pub(super) fn put(&mut self, pending: Pending) {
        self.slots[slot(pending.key)] = Some(pending);
    }

    pub(super) fn take(&mut self, key: u64) -> Option<Pending> {
        self.slots[slot(key)].take_if(|pending| pending.key == key)
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Pending>>()
    }
}

const fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % REQUESTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_tell_the_count_by_position() {
        let mut runs = GhostRuns::default();
        runs.push(8, 3);
        runs.push(10, 1);
        assert_eq!([0, 7, 8, 9, 10].map(|at| runs.count(at)), [3, 3, 1, 1, 0]);
    }

    #[test]
    fn the_deepest_segments_are_kept() {
        let mut found = Found::default();
        for segment in 0..8 {
            found.push((segment, 0));
        }
        assert_eq!(
            found
                .segments()
                .iter()
                .map(|segment| segment.0)
                .collect::<Vec<_>>(),
            [2, 3, 4, 5, 6, 7]
        );
    }

    #[test]
    fn a_request_is_taken_once_by_its_own_key() {
        let mut requests = Requests::new();
        requests.put(Pending {
            key: 5,
            ..Pending::default()
        });
        assert!(requests.take(5 + (1 << 50)).is_none());
        assert!(requests.take(5).is_some());
        assert!(requests.take(5).is_none());
    }
}
