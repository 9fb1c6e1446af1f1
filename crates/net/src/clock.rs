use slackwater_base::Instant;

/// The monotonic clock of the process, as the cores count time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Time since it began; never zero, so that zero stays free for "never happened".
    #[must_use]
    pub fn now(&self) -> Instant {
        let nanos = self.0.elapsed().as_nanos() + 1;
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
