//! 32-byte vectors of x86-64: AVX2 and VPCLMULQDQ.

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_clmulepi64_epi128, _mm256_loadu_si256,
    _mm256_set_epi64x, _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
};

super::kernel::kernels!("avx2,vpclmulqdq", Lanes, 8);

#[derive(Clone, Copy)]
struct Lanes(__m256i);

impl kernel::Vector for Lanes {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn splat(low: u64, high: u64) -> Self {
        let (low, high) = (low.cast_signed(), high.cast_signed());
        // SAFETY: the caller runs on a processor with these instructions; so below.
        Self(unsafe { _mm256_set_epi64x(high, low, high, low) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 32 bytes are readable, by the caller's promise.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 32 bytes are writable, by the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as for `store`, and `to` is aligned.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fold(self, keys: Self, next: Self) -> Self {
        // SAFETY: the processor has the instructions.
        unsafe {
            let low = _mm256_clmulepi64_epi128::<0x00>(self.0, keys.0);
            let high = _mm256_clmulepi64_epi128::<0x11>(self.0, keys.0);
            Self(_mm256_xor_si256(low, _mm256_xor_si256(high, next.0)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() }
    }
}
