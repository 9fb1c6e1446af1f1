//! Which generations of a gated region's extents are dead, in memory that readers of the same host map.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use slackwater_memory::{Mapping, RefusedMemory, read_only};

/// One word for each granule of a region: generations of the extent that begins there are dead below it.
///
/// A reader that maps the region and this table needs nobody's permission for a copy: it looks at the word of its extent
/// before the first byte and once more after the last one, as with a sequence lock. The owner raises the word before it
/// gives the bytes another use. A reader that has met a byte of that use therefore finds the word raised, and discards what
/// it has read. So the owner need not wait for readers.
///
/// The owner decides by books of its own: what other processes do to the table harms readers alone.
#[derive(Debug)]
pub struct GenerationTable {
    memory: Mapping,
    granule: u64,
    granules: u64,
}

impl GenerationTable {
    /// The table of a region of `bytes` bytes whose extents begin at multiples of `granule`; nothing is dead.
    ///
    /// # Errors
    /// The region has no granule, or the kernel gives no memory.
    pub fn create(bytes: u64, granule: u64) -> io::Result<Self> {
        let granules = bytes.checked_div(granule).unwrap_or(0);
        let words = usize::try_from(granules).map_err(io::Error::other)?;
        Ok(Self {
            memory: Mapping::shared(words * size_of::<u64>())?,
            granule,
            granules,
        })
    }

    /// The table that an owner passed, of a region of `granules` granules.
    ///
    /// # Errors
    /// The memory is not sealed, or shorter than that.
    pub fn open(file: OwnedFd, granule: u64, granules: u64) -> Result<Self, RefusedMemory> {
        let bytes = granules.saturating_mul(size_of::<u64>() as u64);
        Ok(Self {
            memory: Mapping::open(file, bytes)?,
            granule,
            granules,
        })
    }

    /// Makes generations below `dead_below` of the extent at `offset` dead, before its bytes get another use.
    ///
    /// # Panics
    /// When no extent can begin there, or this is not the owner's.
    pub fn raise(&self, offset: u64, dead_below: u64) {
        assert!(self.memory.is_writable(), "the table is another process's");
        let word = self.word(offset).expect("extents begin at granules");
        word.fetch_max(dead_below, Ordering::AcqRel);
    }

    /// Whether an extent is still in that use. What was read of its bytes before counts, if it is.
    #[must_use]
    #[inline]
    pub fn is_live(&self, offset: u64, generation: u64) -> bool {
        // The loads of the bytes must not be put off beyond the look at the word.
        fence(Ordering::SeqCst);
        let word = self.word(offset);
        word.is_some_and(|word| generation >= word.load(Ordering::Acquire))
    }

    /// Bytes from one place where an extent may begin to the next.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Its words.
    pub fn granules(&self) -> u64 {
        self.granules
    }

    /// A descriptor for readers.
    ///
    /// # Errors
    /// The kernel gives none.
    ///
    /// # Panics
    /// When it is another process's table.
    pub fn descriptor(&self) -> io::Result<Arc<OwnedFd>> {
        let file = self.memory.file();
        let file = file.expect("shared memory has a file");
        read_only(file).map(Arc::new)
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let at = offset.checked_div(self.granule)?;
        if at >= self.granules || !offset.is_multiple_of(self.granule) {
            return None;
        }
        let words = self.memory.start().as_ptr().cast::<AtomicU64>();
        // SAFETY: the word lies within the mapping, which lives as long as `self` and starts on a page; in this process it
        // is reached by these words alone, and stored to by its owner only.
        Some(unsafe { &*words.add(at as usize) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const GRANULE: u64 = 4096;

    fn pair() -> (GenerationTable, GenerationTable) {
        let owner = GenerationTable::create(4 * GRANULE + 1, GRANULE).unwrap();
        let file = Arc::into_inner(owner.descriptor().unwrap()).unwrap();
        let reader = GenerationTable::open(file, owner.granule(), owner.granules()).unwrap();
        (owner, reader)
    }

    #[test]
    fn a_reader_sees_what_the_owner_has_raised_and_nothing_else() {
        let (owner, reader) = pair();
        owner.raise(2 * GRANULE, 8);
        owner.raise(2 * GRANULE, 5);
        let check = |offset, generation, live: bool| {
            assert_eq!(
                reader.is_live(offset, generation),
                live,
                "{generation} at {offset}"
            );
        };
        check(2 * GRANULE, 7, false);
        check(2 * GRANULE, 8, true);
        check(GRANULE, 0, true);
        check(3 * GRANULE, 0, true);
        check(4 * GRANULE, 9, false);
        check(GRANULE + 1, 9, false);
        check(u64::MAX, 9, false);
        let raised = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.raise(0, 1)));
        assert!(raised.is_err(), "it is mapped for reading alone");
    }

    #[test]
    fn a_region_without_a_granule_has_no_table() {
        assert!(GenerationTable::create(GRANULE - 1, GRANULE).is_err());
        assert!(GenerationTable::create(GRANULE, 0).is_err());
    }

    /// What is read between two looks at a live generation is that generation's, however the owner races.
    #[test]
    fn bytes_of_another_use_never_count() {
        let (owner, reader) = pair();
        let (bytes, over) = ([const { AtomicU64::new(0) }; 8], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in 1..20_000 {
                    owner.raise(0, generation);
                    bytes
                        .iter()
                        .for_each(|byte| byte.store(generation, Ordering::Relaxed));
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                let generation = bytes[7].load(Ordering::Relaxed);
                if !reader.is_live(0, generation) {
                    continue;
                }
                let read = [0, 3, 7].map(|at| bytes[at].load(Ordering::Relaxed));
                if reader.is_live(0, generation) {
                    assert!(
                        read.iter().all(|byte| *byte <= generation),
                        "{read:?} in {generation}"
                    );
                }
            }
        });
    }
}
