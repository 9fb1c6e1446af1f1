use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::now;

/// What the elements of a wait cost on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// One pause instruction (26 ns on one guest, 10 cycles on old processors: measured, never assumed).
    pub pause: Duration,
    /// One read of the clock.
    pub clock: Duration,
    /// From a completer's wake to the waiter running again; follows the wakes seen.
    pub wake: Duration,
}

impl Costs {
    /// The costs as known now. The first call in a process measures pause and clock, which takes some 50 µs.
    #[must_use]
    pub fn now() -> Self {
        let pace = Pace::get();
        Self {
            pause: Duration::from_nanos(pace.pause_nanos),
            clock: Duration::from_nanos(pace.clock_nanos),
            wake: Duration::from_nanos(wake_nanos()),
        }
    }
}

/// The course of a spin: the pauses between two looks grow to `pauses_max`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pause_nanos: u64,
    clock_nanos: u64,
    pub(crate) pauses_max: u32,
    pub(crate) look_nanos: u64,
    relax: Relax,
}

/// Looks between two reads of the clock.
pub(crate) const LOOKS_PER_CLOCK: u64 = 128;

/// Longest time of the pauses between two looks, and so the longest delay until a change is seen.
const BETWEEN_LOOKS_NANOS: u64 = 64;
/// And are no more than this, as in other spin loops.
const PAUSES_LIMIT: u64 = 64;

/// What a wake is taken to cost before one was seen: between the warm core and the idle virtual CPU.
const WAKE_NANOS_FIRST: u64 = 25_000;
/// The least average cost of a wake. A wake onto the waker's own CPU seems cheap, because the sleeping thread only
/// waits for the waker to stop; with that cost all waits would park at once and both threads would stay on that CPU.
const WAKE_NANOS_MIN: u64 = 10_000;
/// Nor more than this: where CPUs are so busy that wakes come late, spinning makes it worse.
const WAKE_NANOS_MAX: u64 = 50_000;
/// A later wake than this was delayed by something else and does not count. Slow wakes up to here do: the rare slow
/// wake of an idle virtual CPU is a part of the cost of parking.
const WAKE_SAMPLE_MAX: u64 = 500_000;

static WAKE_NANOS: AtomicU64 = AtomicU64::new(WAKE_NANOS_FIRST);

/// The learned cost of a park and its wake.
pub(crate) fn wake_nanos() -> u64 {
    WAKE_NANOS.load(Ordering::Relaxed)
}

/// Takes in one wake latency; the average moves by a thirty-second, so that it holds the tail in view.
pub(crate) fn learn_wake(nanos: u64) {
    let average = wake_nanos();
    let moved = average - average / 32 + nanos.min(WAKE_SAMPLE_MAX) / 32;
    WAKE_NANOS.store(
        moved.clamp(WAKE_NANOS_MIN, WAKE_NANOS_MAX),
        Ordering::Relaxed,
    );
}

impl Pace {
    pub(crate) fn get() -> Self {
        static PACE: OnceLock<Pace> = OnceLock::new();
        *PACE.get_or_init(Self::measure)
    }

    fn measure() -> Self {
        let relax = Relax::detect();
        let clock_nanos = per_step(100, || {
            black_box(now());
        })
        .max(1);
        let pause_nanos = per_step(200, || relax.once()).max(1);
        let pauses_max = (BETWEEN_LOOKS_NANOS / pause_nanos).clamp(1, PAUSES_LIMIT) as u32;
        Self {
            pause_nanos,
            clock_nanos,
            pauses_max,
            look_nanos: pause_nanos * u64::from(pauses_max),
            relax,
        }
    }

    /// Pauses `count` times.
    #[inline]
    pub(crate) fn relax(&self, count: u32) {
        for _ in 0..count {
            self.relax.once();
        }
    }

    /// The same with looks that cost so much more than a read of a word.
    pub(crate) fn with_looks_of(self, nanos: u64) -> Self {
        Self {
            look_nanos: self.look_nanos + nanos,
            ..self
        }
    }

    /// The looks that fit into `nanos`.
    pub(crate) fn looks_in(&self, nanos: u64) -> u64 {
        nanos / self.look_nanos
    }
}

/// The best of five averages, so that a preemption does not count.
fn per_step(steps: u32, step: impl Fn()) -> u64 {
    (0..5)
        .map(|_| {
            let start = now();
            for _ in 0..steps {
                step();
            }
            now().since(start).as_nanos() as u64 / u64::from(steps)
        })
        .min()
        .unwrap_or(1)
}

/// The instruction that tells the processor that this thread is spinning.
#[derive(Clone, Copy, Debug)]
enum Relax {
    /// `pause`, or what the architecture has for it.
    Pause,
    /// `tpause` in its lighter state: the core's other thread gets the execution units, and power falls (Intel SDM
    /// volume 2, "TPAUSE"; the kernel caps it at 100,000 cycles).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    TimedPause,
}

/// The cycles one `tpause` lasts: about as long as a pause on the processors that have the instruction.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TIMED_PAUSE_CYCLES: u64 = 100;

impl Relax {
    fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            // Leaf 7, ECX bit 5 is WAITPKG.
            if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 5) != 0 {
                return Self::TimedPause;
            }
        }
        Self::Pause
    }

    #[inline]
    fn once(self) {
        match self {
            Self::Pause => std::hint::spin_loop(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: `detect` chose this only where the processor has the instruction.
            Self::TimedPause => unsafe { timed_pause(TIMED_PAUSE_CYCLES) },
        }
    }
}

/// # Safety
/// The processor has WAITPKG.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn timed_pause(cycles: u64) {
    // SAFETY: reading the cycle counter has no precondition in user mode on Linux.
    let until = unsafe { std::arch::x86_64::_rdtsc() } + cycles;
    // SAFETY: the caller guarantees that the CPU has the instruction; it only waits, and writes flags.
    unsafe {
        std::arch::asm!(
            "tpause {state:e}",
            state = in(reg) 1u32,
            in("eax") until as u32,
            in("edx") (until >> 32) as u32,
            options(nomem, nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_never_farther_apart_than_one_pause_or_the_limit() {
        let pace = Pace::measure();
        assert!(pace.pauses_max >= 1 && u64::from(pace.pauses_max) <= PAUSES_LIMIT);
        assert!(
            pace.pauses_max == 1 || pace.look_nanos <= BETWEEN_LOOKS_NANOS,
            "{pace:?}"
        );
    }

    #[test]
    fn wakes_move_the_average_within_its_bounds() {
        for _ in 0..200 {
            learn_wake(3_000_000_000);
        }
        assert_eq!(wake_nanos(), WAKE_NANOS_MAX);
        for _ in 0..200 {
            learn_wake(500);
        }
        assert!(wake_nanos() < WAKE_NANOS_MIN + 1_000, "{}", wake_nanos());
    }
    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn the_timed_pause_is_encoded_as_the_manual_says() {
        let code = timed_pause as unsafe fn(u64) as *const u8;
        // SAFETY: the function is longer than these bytes: it reads the counter, adds, waits and returns, and what follows
        // it belongs to the same segment of this program, which has other functions.
        let code = unsafe { std::slice::from_raw_parts(code, 64) };
        // TPAUSE r32 is 66 0F AE /6, register form, with a REX prefix for the upper registers.
        let is_tpause = |bytes: &[u8]| match bytes {
            [0x66, 0x0f, 0xae, operand, ..] | [0x66, 0x41, 0x0f, 0xae, operand, ..] => {
                operand & 0xf8 == 0xf0
            }
            _ => false,
        };
        assert!(code.windows(5).any(is_tpause), "{code:x?}");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn the_timed_pause_runs_exactly_where_the_kernel_lists_it() {
        let listed =
            std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" waitpkg"));
        let chosen = matches!(Relax::detect(), Relax::TimedPause);
        assert_eq!(chosen, listed);
        if chosen {
            let pause_nanos = per_step(200, || Relax::TimedPause.once());
            assert!((1..10_000).contains(&pause_nanos), "{pause_nanos} ns");
        } else {
            skipped("this processor has no WAITPKG, so tpause was decoded but not run");
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn skipped(why: &str) {
        eprintln!("skipped: {why}");
    }
}
