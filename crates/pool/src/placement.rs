//! The CPUs and the memory node of workers, and whether this process was forked from the one that has them.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::affinity;
use crate::config::{Config, CrewPlan, Pin};
use slackwater_wait::NumaId;

/// The CPUs that one worker runs on and the node that its memory comes from.
#[derive(Debug)]
pub(crate) struct Placement {
    cpus: Vec<usize>,
    memory: Option<NumaId>,
}

impl Placement {
    /// That of the thread with this seat in a crew; in the first crew the caller has seat 0.
    pub(crate) fn of(config: &Config, plan: &CrewPlan, seat: usize, crews: usize) -> Self {
        let cpus = match config.pin {
            Pin::Core => plan.node.cores[seat % plan.node.cores.len()]
                .iter()
                .take(1)
                .copied()
                .collect(),
            Pin::Node if crews > 1 || !config.nodes.is_empty() => plan.node.cpus(),
            Pin::Node => Vec::new(),
        };
        let memory = (config.bind_memory && crews > 1).then_some(plan.node.id);
        Self { cpus, memory }
    }

    pub(crate) fn take(&self) -> io::Result<()> {
        if !self.cpus.is_empty() {
            slackwater_wait::run_on(&self.cpus)?;
        }
        self.memory.map_or(Ok(()), affinity::allocate_on)
    }
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How often this process came from a fork since the first pool was started.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        slackwater_wait::forked();
    }
    ONCE.call_once(|| {
        // SAFETY: the handler only changes atomics, which is allowed between fork and exec.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(result, 0, "out of memory for a fork handler");
    });
}
