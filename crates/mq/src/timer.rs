use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::RunOn;
use crate::context::Context;
use crate::shard::LoopCommand;

/// A periodic timer. Dropping the handle leaves it running; [`Timer::cancel`] ends it and frees its function.
#[derive(Clone)]
pub struct Timer {
    pub(crate) context: Arc<Context>,
    pub(crate) shard: u16,
    pub(crate) number: u64,
}

/// How a timer runs.
#[derive(Clone, Debug)]
pub struct TimerOptions {
    /// Between runs; at least a millisecond.
    pub interval: Duration,
    /// Whether a run is left out while an earlier one is queued or running.
    pub squelch: bool,
    /// The thread that runs the function.
    pub on: RunOn,
}

/// A timer as its loop keeps it.
#[derive(Clone)]
pub(crate) struct Ticking {
    pub(crate) interval: Duration,
    pub(crate) squelch: bool,
    pub(crate) on: RunOn,
    pub(crate) function: Arc<dyn Fn() + Send + Sync>,
    pub(crate) busy: Arc<AtomicBool>,
}

impl Timer {
    /// Ends the timer; a run that has begun ends by itself. Doing it twice does nothing.
    pub fn cancel(&self) {
        self.context
            .order(self.shard, LoopCommand::CancelTimer(self.number));
    }
}

/// Marks a run as over however it ends.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Ticking {
    pub(crate) fn fire(self, context: &Arc<Context>) {
        if self.squelch && self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let busy = Busy(self.busy);
        let function = self.function;
        // A run that finds its queue full is left out, and the next one is due soon.
        let _ = self.on.run(
            context,
            Box::new(move || {
                let _busy = busy;
                function();
            }),
        );
    }
}
