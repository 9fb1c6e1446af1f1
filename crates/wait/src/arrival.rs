//! Waits for what comes from outside, such as the bytes of a socket.

use std::time::Duration;

use slackwater_base::Instant;

use crate::futex::Parked;
use crate::routine::{Waiting, Watched, wait};

/// What a thread waits for that the kernel knows of, and no other thread of this process.
pub trait Arrival {
    /// Whether it has come, or never will: one system call, which does not block.
    fn has_come(&self) -> bool;

    /// Sleeps in the kernel until it has come, and for no longer than `longest`; may return early.
    fn sleep(&self, longest: Option<Duration>);
}

/// Waits until it has come, or the deadline passed; says whether it has come.
///
/// The strategy is that of a wait on a word, with fewer looks: each costs a system call.
pub fn wait_for(arrival: &impl Arrival, waiting: &Waiting<'_>) -> bool {
    wait(&Watch(arrival), waiting)
}

struct Watch<'a, A>(&'a A);

/// A system call that finds nothing, beside the pauses between two looks.
const CALL_NANOS: u64 = 250;

impl<A: Arrival> Watched for Watch<'_, A> {
    const LOOK_NANOS: u64 = CALL_NANOS;

    fn done(&self) -> bool {
        self.0.has_come()
    }

    fn park(&self, longest: Option<Duration>, _looks_by: Instant) -> Parked {
        self.0.sleep(longest);
        match self.0.has_come() {
            true => Parked::Woken,
            false => Parked::TimedOut,
        }
    }

    /// The kernel does not tell.
    fn woken_at(&self) -> Instant {
        Instant::ZERO
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::now;
    use crate::site::Site;
    use crate::strategy::{Adaptive, Park, Spin, Wait};

    /// It has come once it was looked at, or slept for, so often.
    #[derive(Default)]
    struct Countdown {
        looks_left: Cell<u32>,
        sleeps_left: Cell<u32>,
        slept: Cell<u32>,
    }

    impl Arrival for Countdown {
        fn has_come(&self) -> bool {
            let left = self.looks_left.get();
            self.looks_left.set(left.saturating_sub(1));
            left == 0 || self.sleeps_left.get() == 0
        }

        fn sleep(&self, longest: Option<Duration>) {
            self.slept.set(self.slept.get() + 1);
            let left = self.sleeps_left.get();
            self.sleeps_left.set(left.saturating_sub(1));
            // What never comes is slept for until the deadline.
            if left == u32::MAX {
                std::thread::sleep(longest.expect("it has a deadline"));
            }
        }
    }

    fn after(looks: u32, sleeps: u32) -> Countdown {
        Countdown {
            looks_left: Cell::new(looks),
            sleeps_left: Cell::new(sleeps),
            slept: Cell::new(0),
        }
    }

    #[test]
    fn what_comes_within_the_spin_is_not_slept_for() {
        let site = Site::new("arrival");
        let waiting = Waiting::at(&site).by(&Spin);
        for looks in [0, 1, 50] {
            let arrival = after(looks, u32::MAX);
            assert!(wait_for(&arrival, &waiting));
            assert_eq!(arrival.slept.get(), 0, "{looks} looks");
        }
        assert_eq!(site.counts().parks, 0);
    }

    #[test]
    fn what_comes_later_is_slept_for_until_it_has_come() {
        let site = Site::new("arrival");
        let strategies: [&dyn Wait; 2] = [&Park, &Adaptive::new()];
        for strategy in strategies {
            let arrival = after(u32::MAX, 3);
            assert!(wait_for(&arrival, &Waiting::at(&site).by(strategy)));
            assert_eq!(arrival.slept.get(), 3, "{strategy:?}");
        }
    }

    #[test]
    fn what_never_comes_is_given_up_at_the_deadline() {
        let site = Site::new("arrival");
        let until = now() + Duration::from_millis(5);
        let waiting = Waiting::at(&site).until(until).by(&Park);
        assert!(!wait_for(&after(u32::MAX, u32::MAX), &waiting));
        assert!(now() >= until);
        assert_eq!(site.counts().timeouts, 1);
    }

    /// Each look was taken to cost what a look at a word does: a spin lasted several times as long as a sleep costs.
    #[test]
    fn fewer_looks_fit_into_a_spin_where_each_is_a_system_call() {
        let site = Site::new("arrival");
        let adaptive = Adaptive::new();
        let _ = wait_for(&after(u32::MAX, 1), &Waiting::at(&site).by(&adaptive));
        let most = adaptive.max_spin.as_nanos() as u64 / CALL_NANOS;
        let looks = site.counts().looks;
        assert!(looks <= most, "{looks} looks of at most {most}");
    }
}
