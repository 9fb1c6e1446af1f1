use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Isa, copy_checksum_with};

/// How bytes reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Through the cache: best when the destination is in it, or is read again soon.
    Cached,
    /// Past the cache: memory is written without being read first, and what the cache holds stays there.
    Streaming,
}

/// What the copies know of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Copies of at least this many bytes (a batch counts as one) write past the cache.
    pub streaming_bytes_min: usize,
}

/// The threshold in force; 0 is not asked for yet.
static STREAMING_BYTES_MIN: AtomicUsize = AtomicUsize::new(0);

/// The shortest copy that goes past the cache into memory that is not in it, in bytes: of a shorter one the wait until
/// its last lines have left the processor costs what they save; the README of this crate has the figures.
const COLD_BYTES_MIN: usize = 32 << 10;

/// The last-level cache that is taken where the system names none, in bytes.
const LAST_LEVEL_FALLBACK: usize = 32 << 20;

impl Tuning {
    /// The tuning in force: the one given to [`Tuning::install`], or else [`Tuning::from_caches`] of this machine.
    #[must_use]
    pub fn current() -> Self {
        match STREAMING_BYTES_MIN.load(Ordering::Relaxed) {
            0 => {
                let found = Self::from_caches(Path::new("/sys"));
                // Two threads may read it at once; they find the same.
                let _ = STREAMING_BYTES_MIN.compare_exchange(
                    0,
                    found.streaming_bytes_min,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                found
            }
            streaming_bytes_min => Self {
                streaming_bytes_min,
            },
        }
    }

    /// Puts this tuning in force for the whole process. A threshold of 0 counts as 1.
    pub fn install(self) {
        STREAMING_BYTES_MIN.store(self.streaming_bytes_min.max(1), Ordering::Relaxed);
    }

    /// Half of the last-level cache that sysfs under `root` names for the first processor: a destination of more than
    /// that cannot have stayed cached beside the source, so reading it before writing it is wasted.
    #[must_use]
    pub fn from_caches(root: &Path) -> Self {
        let last_level = (0..8)
            .filter_map(|index| {
                let dir = root.join(format!("devices/system/cpu/cpu0/cache/index{index}"));
                parse_cache_size(&fs::read_to_string(dir.join("size")).ok()?)
            })
            .max()
            .unwrap_or(LAST_LEVEL_FALLBACK);
        Self {
            streaming_bytes_min: last_level / 2,
        }
    }

    /// Times both kinds of store on this machine and takes the smallest destination from which streaming wins.
    ///
    /// Takes some 0.2 s and twice the last-level cache in memory, so it belongs to the start of a long-lived process
    /// or to a benchmark. A destination is written again and again, the source comes from memory each time.
    #[must_use]
    pub fn measure() -> Self {
        if Isa::current() == Isa::Portable {
            return Self {
                streaming_bytes_min: usize::MAX,
            };
        }
        let last_level = Self::from_caches(Path::new("/sys")).streaming_bytes_min * 2;
        // Written, not only zeroed: untouched pages would all be one page of zeros, in the cache.
        let source: Vec<u8> = (0..last_level * 2).map(|at| at as u8).collect();
        let mut destination = vec![1u8; last_level];
        let mut streaming_bytes_min = last_level;
        let mut size = last_level;
        while size >= 1 << 20 {
            let cached = pass(&mut destination[..size], &source, Stores::Cached);
            let streaming = pass(&mut destination[..size], &source, Stores::Streaming);
            if streaming > cached {
                break;
            }
            streaming_bytes_min = size;
            size /= 2;
        }
        Self {
            streaming_bytes_min,
        }
    }

    /// The kind of store for a copy, or a batch of copies, of `len` bytes.
    #[must_use]
    pub fn stores(self, len: usize) -> Stores {
        if len >= self.streaming_bytes_min {
            Stores::Streaming
        } else {
            Stores::Cached
        }
    }

    /// The kind of store for a copy of `len` bytes to some place among `room` bytes of which all are written in turn, as
    /// values are in a segment: where they are more than the last-level cache, the place has left it since it was last
    /// written.
    #[must_use]
    pub fn stores_among(self, len: usize, room: usize) -> Stores {
        if room / 2 >= self.streaming_bytes_min && len >= COLD_BYTES_MIN {
            Stores::Streaming
        } else {
            self.stores(len)
        }
    }
}

/// The best time of five to copy all of `source` through `destination`.
fn pass(destination: &mut [u8], source: &[u8], stores: Stores) -> Duration {
    (0..5)
        .map(|_| {
            let start = Instant::now();
            for piece in source.chunks_exact(destination.len()) {
                // SAFETY: both slices are `destination.len()` long; one is borrowed alone, so they are apart.
                let sum = unsafe {
                    copy_checksum_with(
                        Isa::current(),
                        destination.as_mut_ptr(),
                        piece.as_ptr(),
                        piece.len(),
                        stores,
                    )
                };
                black_box(sum);
            }
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

/// Reads `32768K` and `36M` as sysfs writes them.
fn parse_cache_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_read_as_sysfs_writes_them() {
        for (text, bytes) in [
            ("32768K\n", Some(32 << 20)),
            ("36M", Some(36 << 20)),
            ("512", Some(512)),
            ("", None),
        ] {
            assert_eq!(parse_cache_size(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn half_of_the_largest_cache_is_the_threshold() {
        let root = std::env::temp_dir().join(format!("slackwater-tuning-{}", std::process::id()));
        for (index, size) in [(0, "48K"), (2, "1024K"), (3, "16M")] {
            let dir = root.join(format!("devices/system/cpu/cpu0/cache/index{index}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("size"), size).unwrap();
        }
        assert_eq!(Tuning::from_caches(&root).streaming_bytes_min, 8 << 20);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            Tuning::from_caches(&root).streaming_bytes_min,
            LAST_LEVEL_FALLBACK / 2
        );
    }

    #[test]
    fn the_threshold_itself_streams() {
        let tuning = Tuning {
            streaming_bytes_min: 100,
        };
        assert_eq!(tuning.stores(99), Stores::Cached);
        assert_eq!(tuning.stores(100), Stores::Streaming);
    }

    /// A value of 64 KiB is short beside any cache, so it was stored through it, at half the speed: a segment of
    /// hundreds of MiB has none of its places there when their turn comes.
    #[test]
    fn a_place_in_more_memory_than_the_cache_holds_is_written_past_it() {
        let tuning = Tuning {
            streaming_bytes_min: 16 << 20,
        };
        for (len, room, expected) in [
            (64 << 10, 512 << 20, Stores::Streaming),
            (COLD_BYTES_MIN, 32 << 20, Stores::Streaming),
            (COLD_BYTES_MIN - 1, 512 << 20, Stores::Cached),
            (64 << 10, (32 << 20) - 2, Stores::Cached),
            (16 << 20, 16 << 20, Stores::Streaming),
            (0, usize::MAX, Stores::Cached),
        ] {
            let stores = tuning.stores_among(len, room);
            assert_eq!(stores, expected, "{len} bytes among {room}");
        }
    }
}
