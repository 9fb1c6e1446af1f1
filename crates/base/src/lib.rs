//! The pure basics of Slackwater: units, time, randomness, hashing, checksums, places of memory, the sketch and the extent
//! allocator.
//!
//! Nothing here uses the operating system, threads or a clock.
#![forbid(unsafe_code)]

mod backoff;
mod checksum;
mod extent;
mod hash;
mod heavy;
mod location;
mod planted;
mod rng;
mod sketch;
mod tally;
mod time;
mod units;

pub use backoff::{Backoff, Jitter};
pub use checksum::{Checksum, Checksummer};
pub use extent::{AllocError, Extent, ExtentAllocator, ExtentBooks, Turn};
pub use hash::{KeyHash, Map, Set, hash64};
pub use heavy::{Counter, HeavyHitters};
pub use location::{Location, NoLocation};
#[cfg(feature = "planted")]
pub use planted::plant;
pub use planted::{Planted, planted};
pub use rng::Rng;
pub use sketch::Sketch;
pub use tally::{Counted, Tally};
pub use time::Instant;
pub use units::{ByteSize, ParseUnitError, format_duration, parse_duration};

/// The block size that direct I/O needs of offsets, lengths and buffer addresses, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Rounds `bytes` up to a whole number of [`BLOCK_BYTES`].
///
/// Saturates at the largest multiple that fits, so a hostile length cannot wrap to a small one.
#[must_use]
pub const fn round_to_block(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(BLOCK_BYTES) {
        Some(rounded) => rounded,
        None => u64::MAX - (BLOCK_BYTES - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_up_to_blocks_and_never_wrap() {
        for (bytes, rounded) in [
            (0, 0),
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (u64::MAX - 4095, u64::MAX - 4095),
            (u64::MAX - 4094, u64::MAX - 4095),
            (u64::MAX, u64::MAX - 4095),
        ] {
            assert_eq!(round_to_block(bytes), rounded, "{bytes}");
        }
    }
}
