//! 64-byte vectors of x86-64: AVX-512F and VPCLMULQDQ.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm512_clmulepi64_epi128, _mm512_loadu_si512,
    _mm512_set_epi64, _mm512_storeu_si512, _mm512_stream_si512, _mm512_ternarylogic_epi64,
};

super::kernel::kernels!("avx512f,vpclmulqdq", Lanes, 4);

#[derive(Clone, Copy)]
struct Lanes(__m512i);

impl kernel::Vector for Lanes {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn splat(low: u64, high: u64) -> Self {
        let (low, high) = (low.cast_signed(), high.cast_signed());
        // SAFETY: the caller runs on a processor with these instructions; so below.
        Self(unsafe { _mm512_set_epi64(high, low, high, low, high, low, high, low) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 bytes are readable, by the caller's promise.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are writable, by the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as for `store`, and `to` is aligned.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fold(self, keys: Self, next: Self) -> Self {
        // SAFETY: the processor has the instructions.
        unsafe {
            let low = _mm512_clmulepi64_epi128::<0x00>(self.0, keys.0);
            let high = _mm512_clmulepi64_epi128::<0x11>(self.0, keys.0);
            Self(_mm512_ternarylogic_epi64::<0x96>(low, high, next.0))
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
