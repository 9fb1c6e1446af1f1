use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_pool::copy::{Stores, Tuning};

/// Which memory was written by the last copies and is probably still in the cache.
///
/// A copy into memory that is not in the cache runs a third faster past the cache, because the old bytes need not be
/// read first. Into a buffer that was just written it is slower. Only the history of copies tells the two apart, so the
/// last writes are recorded here in pieces of [`PIECE_BYTES`]. A wrong guess costs time and nothing else; so there are
/// no locks, and two pieces may replace each other.
#[derive(Debug)]
pub(super) struct CacheHistory {
    /// Bytes copied so far.
    copied: AtomicU64,
    /// Per slot: the piece, and the bytes that had been copied when it was written, both in pieces.
    written: [AtomicU64; SLOTS],
    /// The smallest destination that is looked up; a smaller one is taken to be cached once it is used.
    asked_bytes_min: u64,
    /// The bytes copied after which a destination has left the cache.
    cache_bytes: u64,
}

/// The unit in which writes are recorded: half of the smallest destination that is told from its neighbours.
const PIECE_BYTES: u64 = 32 << 10;
/// Several times the pieces of a last-level cache.
const SLOTS: usize = 8192;
/// Bytes that are submitted together and fit into a core's own cache are written through it.
const ASKED_BYTES_MIN: u64 = 1 << 20;

impl CacheHistory {
    /// The history of this machine, with nothing in the cache.
    pub(super) fn new() -> Self {
        let cache_bytes = Tuning::current().streaming_bytes_min as u64;
        Self {
            copied: AtomicU64::new(0),
            written: std::array::from_fn(|_| AtomicU64::new(0)),
            asked_bytes_min: ASKED_BYTES_MIN,
            cache_bytes,
        }
    }

    /// How to write `bytes` bytes at `into`, of `together` that were submitted at once; notes that they are written.
    pub(super) fn stores(&self, into: *const u8, bytes: u64, submitted_bytes: u64) -> Stores {
        if submitted_bytes < self.asked_bytes_min {
            return Stores::Cached;
        }
        let before = self.copied.fetch_add(bytes, Ordering::Relaxed) / PIECE_BYTES;
        if submitted_bytes >= self.cache_bytes {
            return Stores::Streaming;
        }
        let start = into.addr() as u64;
        let (first, last) = (
            start / PIECE_BYTES,
            (start + bytes.max(1) - 1) / PIECE_BYTES,
        );
        // Its ends may lie in pieces that were written a moment ago with what is beside it.
        let middle = (start + bytes / 2) / PIECE_BYTES;
        let within = self.cache_bytes / PIECE_BYTES;
        // The low halves suffice: a piece that is met again after 2^32 others is a wrong guess at worst.
        let low = |number: u64| number & u64::from(u32::MAX);
        let mut warm = false;
        for piece in first..=last {
            let entry = low(piece) << 32 | low(before);
            let old = self.written[piece as usize % SLOTS].swap(entry, Ordering::Relaxed);
            let age = low(before.wrapping_sub(low(old)));
            warm |= piece == middle && old >> 32 == low(piece) && old != 0 && age <= within;
        }
        if warm {
            Stores::Cached
        } else {
            Stores::Streaming
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn cache_history() -> CacheHistory {
        CacheHistory {
            cache_bytes: 16 * MIB,
            ..CacheHistory::new()
        }
    }

    fn at(mib: u64) -> *const u8 {
        std::ptr::without_provenance((mib * MIB + (1 << 40)) as usize)
    }

    /// A lone read of 1 MiB went through the cache at 0.8 of a copy past it, because each by itself would have fitted
    /// there, though a reader that walks through memory finds none of it again.
    #[test]
    fn memory_that_is_walked_through_is_written_past_the_cache() {
        let cache_history = cache_history();
        for round in 0..3 {
            for mib in 0..256 {
                assert_eq!(
                    cache_history.stores(at(mib), MIB, MIB),
                    Stores::Streaming,
                    "round {round}, MiB {mib}"
                );
            }
        }
    }

    /// Memory from an allocator begins 16 bytes after a page: of each buffer the first piece was the last of the buffer before,
    /// so that all but the first went through the cache, a quarter slower.
    #[test]
    fn buffers_side_by_side_are_told_apart_wherever_they_begin() {
        for (bytes, together) in [(MIB, MIB), (64 << 10, 8 * MIB), (MIB + 4096, 2 * MIB)] {
            for offset in [16, 4096, 20_000, 32 << 10] {
                let cache_history = cache_history();
                for buffer in 0..128 * MIB / bytes {
                    let into = at(0).wrapping_add((buffer * bytes + offset) as usize);
                    assert_eq!(
                        cache_history.stores(into, bytes, together),
                        Stores::Streaming,
                        "buffer {buffer} of {bytes}, {offset} beyond"
                    );
                }
            }
        }
    }

    #[test]
    fn a_buffer_that_is_used_again_is_written_through_the_cache() {
        let cache_history = cache_history();
        for buffers in [1, 4, 15] {
            for round in 0..3 {
                for mib in 0..buffers {
                    let stores = cache_history.stores(at(buffers * 100 + mib), MIB, MIB);
                    let expected = if round == 0 {
                        Stores::Streaming
                    } else {
                        Stores::Cached
                    };
                    assert_eq!(stores, expected, "{buffers} buffers, round {round}");
                }
            }
        }
    }

    #[test]
    fn little_stays_in_the_cache_and_much_passes_it() {
        let cache_history = cache_history();
        assert_eq!(cache_history.stores(at(0), 4096, 4096), Stores::Cached);
        assert_eq!(
            cache_history.stores(at(0), 4096, 2 * MIB),
            Stores::Streaming,
            "many small ones together"
        );
        assert_eq!(cache_history.stores(at(1), MIB, MIB), Stores::Streaming);
        assert_eq!(
            cache_history.stores(at(1), MIB, 16 * MIB),
            Stores::Streaming,
            "warm, but too much for the cache"
        );
    }
}
