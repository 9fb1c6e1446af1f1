//! 16-byte vectors of x86-64: SSE4.1 and PCLMULQDQ.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_prefetch, _mm_set_epi64x,
    _mm_sfence, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

super::kernel::kernels!("sse4.1,pclmulqdq", Lanes, 8);

#[derive(Clone, Copy)]
struct Lanes(__m128i);

impl kernel::Vector for Lanes {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn splat(low: u64, high: u64) -> Self {
        // SAFETY: the caller runs on a processor with these instructions; so below.
        Self(unsafe { _mm_set_epi64x(high.cast_signed(), low.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 16 bytes are readable, by the caller's promise.
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 16 bytes are writable, by the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as for `store`, and `to` is aligned.
        unsafe { _mm_stream_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fold(self, keys: Self, next: Self) -> Self {
        // SAFETY: the processor has the instructions.
        unsafe {
            let low = _mm_clmulepi64_si128::<0x00>(self.0, keys.0);
            let high = _mm_clmulepi64_si128::<0x11>(self.0, keys.0);
            Self(_mm_xor_si128(low, _mm_xor_si128(high, next.0)))
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
