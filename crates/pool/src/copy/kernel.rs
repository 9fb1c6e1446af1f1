//! Copy and checksum in one pass, written once for vectors of every width.
//!
//! CRC-64/NVME is folded as in Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction" (Intel, 2009): the bytes of a round lie in several accumulators; each 128-bit lane of an accumulator is
//! multiplied by x to the bits of a round modulo the polynomial and added to the lane one round on. What is left is one
//! round of bytes with the same remainder as all that went in; the base crate's checksum finishes from there, so there is
//! one owner of the checksum's definition.
//!
//! Functions here are generic over [`Vector`] and always inlined, so that the instructions of a vector are compiled into
//! the one function of each path that enables them.

use std::arch::asm;
use std::ptr;

use slackwater_base::Checksum;

/// A cache line, in bytes: the alignment that a destination is brought to.
const LINE: usize = 64;
/// The largest round, in bytes.
const ROUND_MAX: usize = 256;
/// How far ahead of the loads the prefetches run, in bytes: past the page boundary where the hardware stops.
const AHEAD: usize = 2048;
/// The longest head and one round must fit into the shortest copy that the kernels take.
const _: () = assert!(super::KERNEL_BYTES_MIN >= 2 * LINE + ROUND_MAX);

/// CRC-64/NVME without its leading term, bit-reflected (NVM Express Base Specification 2.0, §8.3.2).
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x^`power` modulo the polynomial, reflected: bit 63 is x^0.
const fn x_to_the(power: usize) -> u64 {
    let mut value = 1 << 63;
    let mut done = 0;
    while done < power {
        value = (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
        done += 1;
    }
    value
}

/// What the low and the high half of a lane are multiplied by to take them `round` bytes on. The low half stands one bit
/// low in the product of two reflected halves, and 64 bits before the high one.
pub(super) const fn keys(round: usize) -> (u64, u64) {
    (x_to_the(round * 8 + 63), x_to_the(round * 8 - 1))
}

/// Vector instructions of one width.
///
/// # Safety
/// An implementation's functions may use instructions that the processor does not have: they are called only from
/// functions that enable them, on processors that were asked.
pub(super) trait Vector: Copy {
    /// The bytes of a vector.
    const BYTES: usize;

    /// A vector with `low` and `high` in each 128-bit lane.
    unsafe fn splat(low: u64, high: u64) -> Self;
    /// Reads a vector from anywhere.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes a vector anywhere.
    unsafe fn store(self, to: *mut u8);
    /// Writes a vector past the cache; `to` is a multiple of [`Vector::BYTES`].
    unsafe fn stream(self, to: *mut u8);
    /// Each lane times `keys`, plus the lane of `next`.
    unsafe fn fold(self, keys: Self, next: Self) -> Self;
    /// Asks for the line at `from`, which may lie outside of any allocation.
    unsafe fn prefetch(from: *const u8);
    /// Orders streaming stores before everything that follows.
    unsafe fn fence();
}

/// What a kernel does with the bytes that it folds.
pub(super) trait Sink {
    /// The destination has to be aligned.
    const STORES: bool;
    /// The stores go past the cache.
    const STREAMS: bool;
}

/// Bytes are stored through the cache.
pub(super) struct Cached;
/// Bytes are stored past the cache.
pub(super) struct Streaming;
/// Bytes are summed only.
pub(super) struct Nowhere;

impl Sink for Cached {
    const STORES: bool = true;
    const STREAMS: bool = false;
}

impl Sink for Streaming {
    const STORES: bool = true;
    const STREAMS: bool = true;
}

impl Sink for Nowhere {
    const STORES: bool = false;
    const STREAMS: bool = false;
}

/// Bytes at the start of a cache line.
#[repr(C, align(64))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// Copies `len` bytes.
///
/// # Safety
/// - `src` is readable and `dst` writable for `len` bytes, apart from each other.
/// - `len >= KERNEL_BYTES_MIN`, and the processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector, S: Sink, const ACCUMULATORS: usize>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
) {
    let round = ACCUMULATORS * V::BYTES;
    let head = dst.align_offset(LINE);
    // SAFETY: `head < LINE <= len`.
    unsafe { ptr::copy_nonoverlapping(src, dst, head) };
    let mut at = head;
    while len - at >= round {
        // SAFETY: `at + round <= len`; `dst + at` is a multiple of LINE, which streaming stores need.
        unsafe {
            let (from, to) = (src.add(at), dst.add(at));
            prefetch::<V>(from, round);
            for index in 0..ACCUMULATORS {
                let vector = V::load(from.add(index * V::BYTES));
                put::<V, S>(vector, to.add(index * V::BYTES));
            }
        }
        at += round;
    }
    // SAFETY: the rest of both ranges.
    unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at) };
    if S::STREAMS {
        // SAFETY: the processor has the instructions, by the caller's promise.
        unsafe { V::fence() };
    }
}

/// Folds `len` bytes, stores them as `S` says, and returns the checksum of what was stored.
///
/// # Safety
/// - As for [`copy`], but where `S` stores nothing, `dst` is not touched and may be anything.
/// - `keys` is [`keys`] of `ACCUMULATORS * V::BYTES`, which is at least two lines and at most [`ROUND_MAX`].
#[inline(always)]
pub(super) unsafe fn fold<V: Vector, S: Sink, const ACCUMULATORS: usize>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    keys: (u64, u64),
) -> Checksum {
    let round = ACCUMULATORS * V::BYTES;
    // The head brings the destination, or else the source, to a line. The head stands at the end of a round of zeros,
    // which leave the remainder of a CRC that starts from zero as it is; the real starting value, all ones, is added
    // to its first eight bytes.
    let mut head = if S::STORES {
        dst.align_offset(LINE)
    } else {
        src.align_offset(LINE)
    };
    if head < 8 {
        head += LINE;
    }
    let mut first = Aligned([0u8; ROUND_MAX]);
    // SAFETY: `8 <= head < 2 * LINE <= round <= ROUND_MAX <= len`.
    unsafe {
        let to = first.0.as_mut_ptr().add(round - head);
        read_once(src, to, head);
        if S::STORES {
            ptr::copy_nonoverlapping(to, dst, head);
        }
    }
    for byte in &mut first.0[round - head..round - head + 8] {
        *byte ^= 0xff;
    }
    // SAFETY: a round lies in `first`; the processor has the instructions, by the caller's promise.
    let mut sums: [V; ACCUMULATORS] =
        std::array::from_fn(|index| unsafe { V::load(first.0.as_ptr().add(index * V::BYTES)) });
    // SAFETY: as above.
    let by = unsafe { V::splat(keys.0, keys.1) };
    let mut at = head;
    while len - at >= round {
        // SAFETY: `at + round <= len`; where bytes are stored, `dst + at` is a multiple of LINE.
        unsafe {
            let from = src.add(at);
            prefetch::<V>(from, round);
            for (index, sum) in sums.iter_mut().enumerate() {
                let vector = V::load(from.add(index * V::BYTES));
                if S::STORES {
                    put::<V, S>(vector, dst.add(at + index * V::BYTES));
                }
                *sum = sum.fold(by, vector);
            }
        }
        at += round;
    }
    if S::STREAMS {
        // SAFETY: the processor has the instructions, by the caller's promise.
        unsafe { V::fence() };
    }

    // What is left of the sums and the bytes of no whole round, one behind the other, so that one call sums them.
    let mut last = Aligned([0u8; 2 * ROUND_MAX]);
    let rest = len - at;
    // SAFETY: a round and less than a round lie in `last`; `rest` bytes are left of both ranges.
    unsafe {
        for (index, sum) in sums.iter().enumerate() {
            sum.store(last.0.as_mut_ptr().add(index * V::BYTES));
        }
        let to = last.0.as_mut_ptr().add(round);
        read_once(src.add(at), to, rest);
        if S::STORES {
            ptr::copy_nonoverlapping(to, dst.add(at), rest);
        }
    }
    // The checksum below starts from all ones once more: taken back in the first eight bytes.
    for byte in &mut last.0[..8] {
        *byte ^= 0xff;
    }
    Checksum::of(&last.0[..round + rest])
}

/// Reads `len` bytes that another process may write meanwhile. What is read from `to` afterwards is what was read here:
/// the compiler may assume that `src` does not change, and would otherwise read `src` again to copy `to` further.
///
/// # Safety
/// `src` is readable and `to` writable for `len` bytes, apart from each other.
#[inline(always)]
unsafe fn read_once(src: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise. The assembly is empty; the compiler has to take it for code that may write all memory.
    unsafe {
        ptr::copy_nonoverlapping(src, to, len);
        asm!("/* {0} */", in(reg) to, options(nostack, preserves_flags));
    }
}

/// # Safety
/// `to` is writable for a vector, and aligned where `S` streams.
#[inline(always)]
unsafe fn put<V: Vector, S: Sink>(vector: V, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if S::STREAMS {
            vector.stream(to);
        } else {
            vector.store(to);
        }
    }
}

/// Prefetches the round [`AHEAD`] bytes ahead. A prefetch never faults, so it may point past the end.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn prefetch<V: Vector>(from: *const u8, round: usize) {
    for line in 0..round / LINE {
        // SAFETY: the caller's promise.
        unsafe { V::prefetch(from.wrapping_add(AHEAD + line * LINE)) };
    }
}

/// The functions of one path, as `copy.rs` calls them.
macro_rules! kernels {
    ($features:literal, $vector:ty, $accumulators:literal) => {
        use slackwater_base::Checksum;

        use super::Stores;
        use super::kernel::{self, Cached, Nowhere, Streaming};

        const KEYS: (u64, u64) = kernel::keys($accumulators * <$vector as kernel::Vector>::BYTES);

        /// Copies `len` bytes.
        ///
        /// # Safety
        /// - `src` is readable and `dst` writable for `len` bytes, apart from each other.
        /// - `len >= KERNEL_BYTES_MIN`, and the processor has the path.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, stores: Stores) {
            // SAFETY: the caller's promises, and this function enables the instructions.
            unsafe {
                match stores {
                    Stores::Cached => kernel::copy::<$vector, Cached, $accumulators>(dst, src, len),
                    Stores::Streaming => {
                        kernel::copy::<$vector, Streaming, $accumulators>(dst, src, len);
                    }
                }
            }
        }

        /// Copies and returns the checksum of what was stored.
        ///
        /// # Safety
        /// As for [`copy`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn copy_checksum(
            dst: *mut u8,
            src: *const u8,
            len: usize,
            stores: Stores,
        ) -> Checksum {
            // SAFETY: the caller's promises, and this function enables the instructions.
            unsafe {
                match stores {
                    Stores::Cached => {
                        kernel::fold::<$vector, Cached, $accumulators>(dst, src, len, KEYS)
                    }
                    Stores::Streaming => {
                        kernel::fold::<$vector, Streaming, $accumulators>(dst, src, len, KEYS)
                    }
                }
            }
        }

        /// The checksum of `len` bytes.
        ///
        /// # Safety
        /// - `src` is readable for `len` bytes.
        /// - `len >= KERNEL_BYTES_MIN`, and the processor has the path.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn checksum(src: *const u8, len: usize) -> Checksum {
            let nowhere = std::ptr::null_mut();
            // SAFETY: the caller's promises; nothing is stored, and this function enables the instructions.
            unsafe { kernel::fold::<$vector, Nowhere, $accumulators>(nowhere, src, len, KEYS) }
        }
    };
}

pub(super) use kernels;
