//! 16-byte vectors of aarch64: NEON, and PMULL of the AES extension.

use std::arch::aarch64::{
    uint64x2_t, vcombine_u64, vcreate_u64, veorq_u64, vgetq_lane_u64, vld1q_u8, vmull_p64,
    vreinterpretq_u8_u64, vreinterpretq_u64_p128, vreinterpretq_u64_u8, vst1q_u8,
};

super::kernel::kernels!("neon,aes", Lanes, 8);

#[derive(Clone, Copy)]
struct Lanes(uint64x2_t);

impl kernel::Vector for Lanes {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn splat(low: u64, high: u64) -> Self {
        // SAFETY: the caller runs on a processor with these instructions; so below.
        Self(unsafe { vcombine_u64(vcreate_u64(low), vcreate_u64(high)) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 16 bytes are readable, by the caller's promise.
        Self(unsafe { vreinterpretq_u64_u8(vld1q_u8(from)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 16 bytes are writable, by the caller's promise.
        unsafe { vst1q_u8(to, vreinterpretq_u8_u64(self.0)) }
    }

    /// A plain store: aarch64's non-temporal pairs have no intrinsic, and its processors detect streams of stores.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as for `store`.
        unsafe { self.store(to) }
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn fold(self, keys: Self, next: Self) -> Self {
        let low = vmull_p64(vgetq_lane_u64::<0>(self.0), vgetq_lane_u64::<0>(keys.0));
        let high = vmull_p64(vgetq_lane_u64::<1>(self.0), vgetq_lane_u64::<1>(keys.0));
        let (low, high) = (vreinterpretq_u64_p128(low), vreinterpretq_u64_p128(high));
        Self(veorq_u64(low, veorq_u64(high, next.0)))
    }

    /// Nothing: the prefetch of aarch64 has no stable intrinsic.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}

    /// Nothing: the stores are plain ones.
    #[inline(always)]
    unsafe fn fence() {}
}
