use std::time;

use slackwater_base::Instant;

/// The one clock of a store: monotonic, its origin the moment the store was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: time::Instant::now() }
    }

    pub(crate) fn now(self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
