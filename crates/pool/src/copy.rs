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
#[cfg(test)]
mod conformance;
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
pub use isa::{Isa, IsaChoice, IsaError};
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

/// [`copy_checksum`] to a place among `room` bytes that are all written in turn; see [`Tuning::stores_among`].
///
/// # Safety
/// As for [`copy`].
#[must_use]
pub unsafe fn copy_checksum_among(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    room: usize,
) -> Checksum {
    let stores = Tuning::current().stores_among(len, room);
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
