//! Copies and checksums of large objects: one pass over the bytes, past the cache when that is faster.
//!
//! [`copy_checksum`] loads every byte once, stores it and folds it into the checksum from the register, so the
//! checksum is that of the bytes *stored*: a peer that rewrites shared memory meanwhile cannot make a checksum vouch for
//! bytes that were never delivered.

mod batch;
mod fold;
mod tuning;

use std::ptr;

use slackwater_base::{Checksum, Checksummer};

pub use batch::{Copied, Piece, checksum_all, copy_all, copy_all_checksum};
pub use tuning::{Stores, Tuning};

/// The piece that the portable path copies and then checksums while it is still in the first-level cache, in bytes.
const PIECE_BYTES: usize = 16 * 1024;

/// Copies `len` bytes, past the cache from [`Tuning::streaming_bytes_min`] on.
///
/// # Safety
/// - `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, for the whole call.
/// - The two ranges do not overlap.
/// - Nothing else writes or reads `dst` meanwhile. `src` may be memory that another *process* writes: the copy is
///   then some mixture of old and new bytes.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    match Tuning::current().stores(len) {
        // SAFETY: the caller's promises are those of `copy_with`.
        Stores::Cached => unsafe { ptr::copy_nonoverlapping(src, dst, len) },
        // SAFETY: as above.
        Stores::Streaming => unsafe { copy_with(dst, src, len, Stores::Streaming) },
    }
}

/// [`copy`] with the kind of store chosen by the caller.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_with(dst: *mut u8, src: *const u8, len: usize, stores: Stores) {
    if stores == Stores::Streaming && fold::available() && len >= fold::LEN_MIN {
        // SAFETY: the ranges are the caller's; the processor has the instructions and `len` reaches the minimum.
        unsafe { fold::copy_streaming(dst, src, len) }
    } else {
        // SAFETY: the ranges are valid and apart, by the caller's promise.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) }
    }
}

/// Copies `len` bytes and returns the checksum of the bytes written.
///
/// # Safety
/// As for [`copy`].
#[must_use]
pub unsafe fn copy_checksum(dst: *mut u8, src: *const u8, len: usize) -> Checksum {
    // SAFETY: the caller's promises are those of `copy_checksum_with`.
    unsafe { copy_checksum_with(dst, src, len, Tuning::current().stores(len)) }
}

/// [`copy_checksum`] with the kind of store chosen by the caller.
///
/// # Safety
/// As for [`copy`].
#[must_use]
pub unsafe fn copy_checksum_with(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    stores: Stores,
) -> Checksum {
    if fold::available() && len >= fold::LEN_MIN {
        // SAFETY: the ranges are the caller's; the processor has the instructions and `len` reaches the minimum.
        return unsafe { fold::copy_checksum(dst, src, len, stores) };
    }
    // SAFETY: the ranges are the caller's.
    unsafe { copy_checksum_pieces(dst, src, len) }
}

/// The portable form: copies a piece, then checksums what arrived while it is in the cache.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_checksum_pieces(dst: *mut u8, src: *const u8, len: usize) -> Checksum {
    let mut sum = Checksummer::new();
    let mut at = 0;
    while at < len {
        let piece = PIECE_BYTES.min(len - at);
        // SAFETY: `at + piece <= len`, so both ranges lie within the caller's; they are apart by its promise.
        unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), piece) };
        // SAFETY: the piece was just written, and nobody else writes `dst` during the call.
        sum.update(unsafe { std::slice::from_raw_parts(dst.add(at), piece) });
        at += piece;
    }
    sum.finish()
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
        let lengths = (0..700).chain([1023, 1024, 4096, 16 * 1024 + 1, 100_003]);
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

    #[test]
    fn every_form_copies_exactly_and_sums_what_it_copied() {
        for stores in [Stores::Cached, Stores::Streaming] {
            // SAFETY: `check` hands out ranges of two vectors that live through the call.
            check(|dst, src, len| unsafe {
                copy_with(dst, src, len, stores);
                None
            });
            // SAFETY: as above.
            check(|dst, src, len| Some(unsafe { copy_checksum_with(dst, src, len, stores) }));
        }
        // SAFETY: as above.
        check(|dst, src, len| Some(unsafe { copy_checksum_pieces(dst, src, len) }));
        // SAFETY: as above.
        check(|dst, src, len| Some(unsafe { copy_checksum(dst, src, len) }));
    }

    #[test]
    fn a_flipped_bit_changes_the_checksum() {
        let mut source = vec![0u8; 4096];
        let mut target = vec![0u8; 4096];
        let clean = Checksum::of(&source);
        for at in [0, 7, 8, 63, 64, 255, 256, 2048, 4095] {
            source[at] ^= 1;
            // SAFETY: two vectors of 4096 bytes.
            let changed = unsafe { copy_checksum(target.as_mut_ptr(), source.as_ptr(), 4096) };
            assert_ne!(changed, clean, "byte {at}");
            source[at] ^= 1;
        }
    }
}
