//! The one-pass kernels for x86-64 with AVX-512 and carry-less multiplication on vectors.
//!
//! CRC-64/NVME is folded as in Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction" (Intel, 2009), with four 64-byte accumulators: each 128-bit lane is multiplied by x^2048 modulo the
//! polynomial and added to the lane 256 bytes on. What is left are 256 bytes with the same remainder as all that went
//! in; the base crate's checksum finishes from there, so there is one owner of the checksum's definition.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use vector::{LEN_MIN, available, copy_checksum, copy_streaming};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) use portable::{LEN_MIN, available, copy_checksum, copy_streaming};

/// Where there are no kernels, their place is held so that callers need not know.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod portable {
    use slackwater_base::Checksum;

    use super::super::Stores;

    pub(in super::super) const LEN_MIN: usize = usize::MAX;

    pub(in super::super) fn available() -> bool {
        false
    }

    /// # Safety
    /// [`available`] said yes, which it never does.
    pub(in super::super) unsafe fn copy_streaming(_dst: *mut u8, _src: *const u8, _len: usize) {
        unreachable!("no kernel is available")
    }

    /// # Safety
    /// As for [`copy_streaming`].
    pub(in super::super) unsafe fn copy_checksum(
        _: *mut u8,
        _: *const u8,
        _: usize,
        _: Stores,
    ) -> Checksum {
        unreachable!("no kernel is available")
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use std::arch::x86_64::{
        __m512i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm512_clmulepi64_epi128,
        _mm512_loadu_si512, _mm512_set_epi64, _mm512_storeu_si512, _mm512_stream_si512,
        _mm512_ternarylogic_epi64,
    };
    use std::ptr;

    use slackwater_base::{Checksum, Checksummer};

    use super::super::Stores;

    /// The bytes of one vector, one cache line.
    const LINE: usize = 64;
    /// The bytes of one round: four vectors.
    const ROUND: usize = 4 * LINE;
    /// The shortest copy the kernels take: the longest head and one round.
    pub(in super::super) const LEN_MIN: usize = 2 * ROUND;
    /// How far ahead of the loads the prefetches run, in bytes: past the page boundary where the hardware stops.
    const AHEAD: usize = 2048;
    /// CRC-64/NVME without its leading term, bit-reflected (NVM Express Base Specification 2.0, §8.3.2).
    const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
    /// Takes the low half of a lane 256 bytes on: x^(2048 + 63), one less than the distance because the product of two
    /// reflected halves stands one bit low.
    const FOLD_LOW: u64 = x_to_the(ROUND * 8 + 63);
    /// Takes the high half of a lane 256 bytes on.
    const FOLD_HIGH: u64 = x_to_the(ROUND * 8 - 1);

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

    /// Whether this processor has what the kernels use.
    pub(in super::super) fn available() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies past the cache.
    ///
    /// # Safety
    /// - `src` is readable and `dst` writable for `len` bytes, apart from each other.
    /// - `len >= LEN_MIN` and [`available`] said yes.
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(LINE);
        // SAFETY: `head < LINE <= len`.
        unsafe { ptr::copy_nonoverlapping(src, dst, head) };
        let mut at = head;
        while len - at >= ROUND {
            // SAFETY: `at + ROUND <= len`; `dst + at` is a multiple of LINE, which the streaming store needs.
            unsafe {
                let (from, to) = (src.add(at), dst.add(at));
                ahead(from);
                for line in 0..4 {
                    let v = _mm512_loadu_si512(from.add(line * LINE).cast());
                    _mm512_stream_si512(to.add(line * LINE).cast(), v);
                }
            }
            at += ROUND;
        }
        // SAFETY: the rest of both ranges.
        unsafe { ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at) };
        // Streaming stores are weakly ordered: whoever is told that the copy is done must see it.
        _mm_sfence();
    }

    /// Copies and returns the checksum of what was stored.
    ///
    /// # Safety
    /// As for [`copy_streaming`].
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(in super::super) unsafe fn copy_checksum(
        dst: *mut u8,
        src: *const u8,
        len: usize,
        stores: Stores,
    ) -> Checksum {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            match stores {
                Stores::Cached => folded::<false>(dst, src, len),
                Stores::Streaming => folded::<true>(dst, src, len),
            }
        }
    }

    /// # Safety
    /// As for [`copy_streaming`].
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    #[inline]
    unsafe fn folded<const STREAMING: bool>(dst: *mut u8, src: *const u8, len: usize) -> Checksum {
        // The head makes `dst` aligned. It stands at the end of a round of zeros, which leave the remainder of a CRC
        // that starts from zero as it is; the real starting value, all ones, is added to its first eight bytes.
        let mut head = dst.align_offset(LINE);
        if head < 8 {
            head += LINE;
        }
        let mut first = [0u8; ROUND];
        // SAFETY: `8 <= head < 2 * LINE <= ROUND <= len`.
        unsafe {
            ptr::copy_nonoverlapping(src, first.as_mut_ptr().add(ROUND - head), head);
            ptr::copy_nonoverlapping(first.as_ptr().add(ROUND - head), dst, head);
        }
        for byte in &mut first[ROUND - head..ROUND - head + 8] {
            *byte ^= 0xff;
        }
        // SAFETY: `first` holds four vectors.
        let mut sums: [__m512i; 4] = std::array::from_fn(|line| unsafe {
            _mm512_loadu_si512(first.as_ptr().add(line * LINE).cast())
        });

        let (low, high) = (FOLD_LOW.cast_signed(), FOLD_HIGH.cast_signed());
        let by = _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let mut at = head;
        while len - at >= ROUND {
            // SAFETY: `at + ROUND <= len`; `dst + at` is a multiple of LINE, which the streaming store needs.
            unsafe {
                let (from, to) = (src.add(at), dst.add(at));
                ahead(from);
                for (line, sum) in sums.iter_mut().enumerate() {
                    let v = _mm512_loadu_si512(from.add(line * LINE).cast());
                    if STREAMING {
                        _mm512_stream_si512(to.add(line * LINE).cast(), v);
                    } else {
                        _mm512_storeu_si512(to.add(line * LINE).cast(), v);
                    }
                    let a = _mm512_clmulepi64_epi128::<0x00>(*sum, by);
                    let b = _mm512_clmulepi64_epi128::<0x11>(*sum, by);
                    *sum = _mm512_ternarylogic_epi64::<0x96>(a, b, v);
                }
            }
            at += ROUND;
        }
        if STREAMING {
            // Streaming stores are weakly ordered: whoever is told that the copy is done must see it.
            _mm_sfence();
        }

        let mut left = [0u8; ROUND];
        for (line, sum) in sums.iter().enumerate() {
            // SAFETY: `left` holds four vectors.
            unsafe { _mm512_storeu_si512(left.as_mut_ptr().add(line * LINE).cast(), *sum) };
        }
        // The checksum below starts from all ones once more: taken back in the first eight bytes.
        for byte in &mut left[..8] {
            *byte ^= 0xff;
        }
        let mut sum = Checksummer::new();
        sum.update(&left);
        // SAFETY: the rest of both ranges; the part of `dst` is read after it was written, and nobody else writes it.
        unsafe {
            ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at);
            sum.update(std::slice::from_raw_parts(dst.add(at), len - at));
        }
        sum.finish()
    }

    /// Asks for the round `AHEAD` bytes on. A prefetch never faults, so it may point past the end.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn ahead(from: *const u8) {
        for line in 0..4 {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + line * LINE).cast());
        }
    }
}
