//! Copies and checksums of large objects: one pass over the bytes, past the cache when that is faster.
//!
//! [`copy_checksum`] loads every byte once, stores it and folds it into the checksum from the register, so the
//! checksum is that of the bytes *stored*: a peer that rewrites shared memory meanwhile cannot make a checksum confirm
//! bytes that were never delivered.
//!
//! `kernel` holds the algorithm, once; `avx512`, `avx2`, `sse` and `neon` hold the instructions, and [`Isa`] chooses.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512;
mod batch;
mod isa;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod kernel;
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod neon;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sse;
mod tuning;

use std::ptr;

use slackwater_base::{Checksum, Checksummer};

pub use batch::{Copied, Piece, checksum_all, copy_all, copy_all_checksum};
pub use isa::{Isa, IsaMissing, IsaUnknown};
pub use tuning::{Stores, Tuning};

/// The piece that the portable path copies and then checksums while it is still in the first-level cache, in bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// A cache line, in bytes.
const LINE_BYTES: usize = 64;
/// The shortest copy that the kernels take, in bytes; shorter ones take the portable path.
const KERNEL_BYTES_MIN: usize = 512;

/// Calls a function of the path of an [`Isa`] that this target has, or else evaluates the portable expression.
macro_rules! dispatch {
    ($isa:expr, $len:expr, $function:ident($($argument:expr),*), $portable:expr) => {
        match $isa {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx512 if $len >= KERNEL_BYTES_MIN => avx512::$function($($argument),*),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Avx2 if $len >= KERNEL_BYTES_MIN => avx2::$function($($argument),*),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Isa::Sse if $len >= KERNEL_BYTES_MIN => sse::$function($($argument),*),
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Isa::Neon if $len >= KERNEL_BYTES_MIN => neon::$function($($argument),*),
            _ => $portable,
        }
    };
}

/// Copies `len` bytes, past the cache from [`Tuning::streaming_bytes_min`] on.
///
/// # Safety
/// - `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, for the whole call.
/// - The two ranges do not overlap.
/// - Nothing else writes or reads `dst` meanwhile. `src` may be memory that another *process* writes: the copy is
///   then some mixture of old and new bytes.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promises are those of `copy_with`.
    unsafe { copy_with(Isa::current(), dst, src, len, Tuning::current().stores(len)) }
}

/// [`copy`] with the path and the kind of store chosen by the caller.
///
/// # Safety
/// As for [`copy`], and `isa` is [available](Isa::available).
pub unsafe fn copy_with(isa: Isa, dst: *mut u8, src: *const u8, len: usize, stores: Stores) {
    debug_assert!(isa.available(), "{isa} is not available");
    // Through the cache the C library's copy is the best there is, but for one trap.
    let by_library = stores == Stores::Cached && !slows_string_instructions(dst, src);
    let isa = if by_library { Isa::Portable } else { isa };
    // SAFETY: the ranges are the caller's, as is the promise about the path; a kernel gets its minimal length.
    unsafe {
        dispatch!(
            isa,
            len,
            copy(dst, src, len, stores),
            ptr::copy_nonoverlapping(src, dst, len)
        )
    }
}

/// Whether the string instructions that C libraries copy with are slow here: five times with glibc 2.36 on Zen 3 where
/// the destination lies a few bytes behind the source modulo a page, as an aligned value read into a buffer from
/// `malloc` does.
fn slows_string_instructions(dst: *const u8, src: *const u8) -> bool {
    const PAGE: usize = 4096;
    let behind = dst.addr().wrapping_sub(src.addr()) % PAGE;
    (1..LINE_BYTES).contains(&behind)
}

/// Copies `len` bytes and returns the checksum of the bytes written.
///
/// # Safety
/// As for [`copy`].
#[must_use]
pub unsafe fn copy_checksum(dst: *mut u8, src: *const u8, len: usize) -> Checksum {
    let stores = Tuning::current().stores(len);
    // SAFETY: the caller's promises are those of `copy_checksum_with`.
    unsafe { copy_checksum_with(Isa::current(), dst, src, len, stores) }
}

/// [`copy_checksum`] with the path and the kind of store chosen by the caller.
///
/// # Safety
/// As for [`copy_with`].
#[must_use]
pub unsafe fn copy_checksum_with(
    isa: Isa,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    stores: Stores,
) -> Checksum {
    debug_assert!(isa.available(), "{isa} is not available");
    // SAFETY: as in `copy_with`.
    unsafe {
        dispatch!(
            isa,
            len,
            copy_checksum(dst, src, len, stores),
            copy_checksum_pieces(dst, src, len)
        )
    }
}

/// The checksum of `bytes`, by the path in force.
#[must_use]
pub fn checksum(bytes: &[u8]) -> Checksum {
    checksum_with(Isa::current(), bytes)
}

/// [`checksum`] by a chosen path; one that is not [available](Isa::available) counts as the portable one.
#[must_use]
pub fn checksum_with(isa: Isa, bytes: &[u8]) -> Checksum {
    let isa = if isa.available() { isa } else { Isa::Portable };
    // SAFETY: the slice is readable, the path is available, and a kernel gets its minimal length.
    unsafe {
        dispatch!(
            isa,
            bytes.len(),
            checksum(bytes.as_ptr(), bytes.len()),
            Checksum::of(bytes)
        )
    }
}

/// The portable form: copies a piece, then checksums what arrived while it is in the cache.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_checksum_pieces(dst: *mut u8, src: *const u8, len: usize) -> Checksum {
    let mut sum = Checksummer::new();
    let mut at = 0;
    let mut piece = dst.align_offset(LINE_BYTES).min(len);
    while at < len {
        // SAFETY: `at + piece <= len`, so both ranges lie within the caller's; they are apart by its promise. All
        // pieces but the first begin at a line of `dst`.
        unsafe { copy_words(dst.add(at), src.add(at), piece) };
        // SAFETY: the piece was just written, and nothing else writes `dst` during the call.
        sum.update(unsafe { std::slice::from_raw_parts(dst.add(at), piece) });
        at += piece;
        piece = PIECE_BYTES.min(len - at);
    }
    sum.finish()
}

/// Copies word by word where `dst` is aligned for it; see [`slows_string_instructions`].
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
    let words = if dst.cast::<u64>().is_aligned() {
        len / size_of::<u64>()
    } else {
        0
    };
    for word in 0..words {
        // SAFETY: the word lies within both ranges, and `dst` is aligned for it.
        unsafe {
            let value = src.cast::<u64>().add(word).read_unaligned();
            dst.cast::<u64>().add(word).write_volatile(value);
        }
    }
    let done = words * size_of::<u64>();
    // SAFETY: the rest of both ranges.
    unsafe { ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done) };
}

#[cfg(test)]
mod tests {
    use slackwater_base::Rng;

    use super::*;

    const GUARD: u8 = 0xa5;

    /// Runs one form of copy on every small length and some large ones, at many alignments of both ends, and compares
    /// the bytes, the bytes around them, and the checksum if the form has one.
    fn check(form: impl Fn(*mut u8, *const u8, usize) -> Option<Checksum>) {
        let mut rng = Rng::new(7);
        let every = if cfg!(miri) { 97 } else { 1 };
        let lengths = (0..1300).chain([4096, 16 * 1024 + 1, 100_003]);
        for len in lengths.step_by(every) {
            let (from, to) = (rng.below(130) as usize, rng.below(130) as usize);
            let source: Vec<u8> = (0..from + len).map(|_| rng.next_u64() as u8).collect();
            let mut target = vec![GUARD; to + len + 64];
            let sum = form(target[to..].as_mut_ptr(), source[from..].as_ptr(), len);
            assert_eq!(
                target[to..to + len],
                source[from..],
                "len {len} from {from} to {to}"
            );
            assert!(
                target[..to]
                    .iter()
                    .chain(&target[to + len..])
                    .all(|&byte| byte == GUARD),
                "len {len} to {to}"
            );
            if let Some(sum) = sum {
                assert_eq!(
                    sum,
                    Checksum::of(&source[from..]),
                    "len {len} from {from} to {to}"
                );
            }
        }
    }

    /// The paths that this processor has; the others are named, so that a run shows what it did not test.
    #[expect(clippy::print_stdout, reason = "a skipped path is named")]
    fn paths() -> impl Iterator<Item = Isa> {
        Isa::ALL.iter().copied().filter(|isa| {
            if !isa.available() {
                println!("skipped: {isa}, which this processor does not have");
            }
            isa.available()
        })
    }

    #[test]
    fn every_path_copies_exactly_and_sums_what_it_copied() {
        for isa in paths() {
            for stores in [Stores::Cached, Stores::Streaming] {
                // SAFETY: `check` hands out ranges of two vectors that live through the call.
                check(|dst, src, len| unsafe {
                    copy_with(isa, dst, src, len, stores);
                    None
                });
                // SAFETY: as above.
                check(|dst, src, len| unsafe {
                    Some(copy_checksum_with(isa, dst, src, len, stores))
                });
            }
            // SAFETY: as above.
            check(|dst, src, len| unsafe {
                copy(dst, src, len);
                Some(checksum_with(isa, std::slice::from_raw_parts(src, len)))
            });
        }
        // SAFETY: as above.
        check(|dst, src, len| unsafe { Some(copy_checksum(dst, src, len)) });
    }

    /// Every offset of both ends within a line, beside lengths of whole rounds and one byte around them.
    #[test]
    #[cfg_attr(
        miri,
        ignore = "Miri has the portable path only, which the test above covers"
    )]
    fn every_alignment_is_copied_and_summed() {
        let source: Vec<u8> = (0..4096u32).map(|at| ((at * 131) >> 3) as u8).collect();
        let mut target = vec![0u8; 4096];
        for isa in paths() {
            for (from, to) in (0..64).flat_map(|from| (0..64).map(move |to| (from, to))) {
                for len in [512, 639, 640, 641, 767, 768, 769, 1024] {
                    target.fill(GUARD);
                    // SAFETY: both ranges end within their vectors.
                    let sum = unsafe {
                        let (dst, src) = (target.as_mut_ptr().add(to), source.as_ptr().add(from));
                        copy_checksum_with(isa, dst, src, len, Stores::Cached)
                    };
                    let context = format!("{isa}: {len} bytes from {from} to {to}");
                    assert_eq!(sum, Checksum::of(&source[from..from + len]), "{context}");
                    assert!(
                        target[to..to + len] == source[from..from + len],
                        "{context}"
                    );
                    assert_eq!(
                        (target[to + len], to == 0 || target[to - 1] == GUARD),
                        (GUARD, true),
                        "{context}"
                    );
                }
            }
        }
    }

    /// The bytes before and behind the whole rounds of a kernel go through a buffer, from which they are stored and summed.
    /// The compiler copied them to the destination from the source instead, a second read: a peer that wrote its shared
    /// memory in between had bytes delivered that no checksum covered. It does so only when it optimises.
    #[test]
    #[cfg_attr(miri, ignore = "another thread writes the source, which Miri reports")]
    fn a_source_that_changes_meanwhile_is_summed_as_it_was_stored() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        // As many bytes behind the last whole round of every kernel as there can be, over many lines.
        const BEFORE_TAIL: usize = 71 + 512;
        let rounds = if cfg!(debug_assertions) {
            1_000
        } else {
            200_000
        };
        let len = BEFORE_TAIL + 255;
        let source: Vec<AtomicU64> = (0..len / 8 + 1).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let mut target = vec![0u8; 64 + len];
        let at = (target.as_ptr().align_offset(64) + 57) % 64;
        let differs = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    value = !value;
                    for word in &source[BEFORE_TAIL / 8..] {
                        word.store(value, Ordering::Relaxed);
                    }
                }
            });
            let mut differs = Vec::new();
            for isa in paths() {
                for stores in [Stores::Cached, Stores::Streaming] {
                    let differ = (0..rounds).any(|_| {
                        // SAFETY: both ranges lie within their vectors. The thread above plays the process that writes
                        // the source.
                        let sum = unsafe {
                            let dst = target.as_mut_ptr().add(at);
                            copy_checksum_with(isa, dst, source.as_ptr().cast(), len, stores)
                        };
                        sum != Checksum::of(&target[at..at + len])
                    });
                    if differ {
                        differs.push((isa, stores));
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            differs
        });
        assert_eq!(differs, []);
    }

    #[test]
    fn a_flipped_bit_changes_the_checksum() {
        let mut source = vec![0u8; 4096];
        let mut target = vec![0u8; 4096];
        let clean = Checksum::of(&source);
        for isa in paths() {
            for at in [0, 7, 8, 63, 64, 255, 256, 2048, 4095] {
                source[at] ^= 1;
                // SAFETY: two vectors of 4096 bytes.
                let sum = unsafe {
                    let (dst, src) = (target.as_mut_ptr(), source.as_ptr());
                    copy_checksum_with(isa, dst, src, 4096, Stores::Cached)
                };
                assert_ne!(sum, clean, "{isa}: byte {at}");
                source[at] ^= 1;
            }
        }
    }
}
