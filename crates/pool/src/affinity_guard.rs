use std::cell::Cell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use slackwater_wait::{Sleeper, current_cpu, free_cpus};

/// Keeps a worker off the CPU of the submitter that it works for.
///
/// The kernel may put a woken thread on the CPU of the thread that woke it although another one is idle; Linux does so in
/// guests, where an idle CPU that went back to the hypervisor does not count as idle (`available_idle_cpu` in
/// `kernel/sched`). There the worker waits for the submitter's time slice to end, and the job runs as if on one CPU. A
/// worker that finds itself there moves, and from then on it does not let itself be woken there. Only its sleep is bound:
/// while it runs it may be moved anywhere, and threads that a task starts inherit all CPUs.
#[derive(Debug, Default)]
pub(crate) struct AffinityGuard {
    /// The CPU that the worker shared with a submitter.
    avoided: Cell<Option<usize>>,
    /// Jobs in a row since then whose submitters ran on other CPUs.
    elsewhere: Cell<u32>,
    /// The mask in force during a park.
    narrowed: Cell<Option<Narrowed>>,
}

/// After so many jobs from other CPUs in a row the worker may park on any CPU again.
const ELSEWHERE_MAX: u32 = 64;

impl AffinityGuard {
    /// Before a job whose submitter runs on `cpu`: moves away from there if some CPU is free. Says whether it moved.
    pub(crate) fn meet(&self, cpu: usize) -> bool {
        // All threads of a model run on one CPU.
        if cfg!(loom) {
            return false;
        }
        if current_cpu() == cpu && free_cpus() > 0 {
            let moved = Narrowed::without(cpu).map(Narrowed::undo).is_some();
            self.avoided.set(moved.then_some(cpu));
            self.elsewhere.set(0);
            return moved;
        }
        if self.avoided.get().is_some_and(|avoided| avoided != cpu) {
            self.elsewhere.set(self.elsewhere.get() + 1);
            if self.elsewhere.get() == ELSEWHERE_MAX {
                self.avoided.set(None);
            }
        } else {
            self.elsewhere.set(0);
        }
        false
    }
}

impl Sleeper for AffinityGuard {
    fn before_park(&self) {
        self.narrowed
            .set(self.avoided.get().and_then(Narrowed::without));
    }

    fn after_park(&self) {
        if let Some(narrowed) = self.narrowed.take() {
            narrowed.undo();
        }
    }
}

/// One CPU taken away from the calling thread for a while.
#[derive(Clone, Copy, Debug)]
struct Narrowed {
    from: CpuSet,
    to: CpuSet,
}

impl Narrowed {
    /// Keeps the thread off `cpu`, at once. `None`: it has no other, or the kernel refused.
    fn without(cpu: usize) -> Option<Self> {
        let from = sched_getaffinity(None).ok()?;
        let mut to = from;
        to.unset(cpu);
        (to != from && to.count() > 0 && sched_setaffinity(None, &to).is_ok())
            .then_some(Self { from, to })
    }

    /// Gives the CPU back, unless the thread was given another mask meanwhile, which then holds.
    fn undo(self) {
        if sched_getaffinity(None) == Ok(self.to) {
            // If it fails, the CPUs were taken from the whole process, and those left are all there are.
            let _ = sched_setaffinity(None, &self.from);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn mask() -> CpuSet {
        sched_getaffinity(None).expect("this thread has a mask")
    }

    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn has_another_cpu() -> bool {
        let others = mask().count() > 1;
        if !others {
            eprintln!("skipped: one CPU has no neighbour to move to");
        }
        others
    }

    #[test]
    fn a_worker_beside_its_submitter_moves_and_is_not_woken_there() {
        if !has_another_cpu() {
            return;
        }
        let (all, affinity) = (mask(), AffinityGuard::default());
        // The scheduler may move this thread between the two looks, and other tests may use all CPUs for a moment.
        let cpu = std::iter::repeat_with(current_cpu)
            .take(1_000_000)
            .find(|&cpu| affinity.meet(cpu))
            .unwrap();
        assert_eq!(mask(), all, "awake, it may run anywhere");
        affinity.before_park();
        assert!(!mask().is_set(cpu) && current_cpu() != cpu);
        affinity.after_park();
        assert_eq!(mask(), all);
    }

    #[test]
    fn a_submitter_that_left_is_not_avoided_for_ever() {
        let (all, affinity) = (mask(), AffinityGuard::default());
        affinity.avoided.set(Some(current_cpu()));
        for _ in 0..ELSEWHERE_MAX {
            affinity.meet(CpuSet::MAX_CPU);
        }
        affinity.before_park();
        assert_eq!(mask(), all);
    }

    #[test]
    fn a_choice_made_during_the_sleep_holds() {
        if !has_another_cpu() {
            return;
        }
        let (all, affinity, cpu) = (mask(), AffinityGuard::default(), current_cpu());
        affinity.avoided.set(Some(cpu));
        affinity.before_park();
        let mut chosen = CpuSet::new();
        chosen.set(cpu);
        sched_setaffinity(None, &chosen).unwrap();
        affinity.after_park();
        assert_eq!(mask(), chosen);
        sched_setaffinity(None, &all).unwrap();
    }

    #[test]
    fn the_only_cpu_is_not_given_up() {
        let (all, mut one) = (mask(), CpuSet::new());
        let cpu = current_cpu();
        one.set(cpu);
        sched_setaffinity(None, &one).unwrap();
        assert!(!AffinityGuard::default().meet(cpu) && mask() == one);
        sched_setaffinity(None, &all).unwrap();
    }
}
