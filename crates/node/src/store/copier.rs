use std::sync::OnceLock;

use slackwater_pool::Pool;
use slackwater_wait::Choice;

/// Bytes of one read, or batch of reads, from which several threads copy them; measured in `docs/design/embedded.md`.
/// From there on the pool decides by what it has learned on this machine of the cost of a copy and of a wake.
pub(super) const READ_BYTES_MIN: usize = 512 << 10;

/// The same of puts, whose memory is often touched for the first time.
pub(super) const PUT_BYTES_MIN: usize = 4 << 20;

/// The threads that help callers with large copies, started when the first one comes.
pub(super) struct Copier {
    threads: usize,
    wait: Choice,
    pool: OnceLock<Option<Pool>>,
}

impl Copier {
    /// With `threads` threads, the caller among them.
    pub(super) fn new(threads: usize, wait: Choice) -> Self {
        Self {
            threads,
            wait,
            pool: OnceLock::new(),
        }
    }

    /// The threads for a call that copies `bytes` bytes; `None` when its caller does so alone, as below `bytes_min`.
    pub(super) fn pool(&self, bytes: usize, bytes_min: usize) -> Option<&Pool> {
        if self.threads < 2 || bytes < bytes_min {
            return None;
        }
        self.pool.get_or_init(|| self.start()).as_ref()
    }

    fn start(&self) -> Option<Pool> {
        let config = slackwater_pool::Config {
            wait: Some(self.wait),
            ..slackwater_pool::Config::threads(self.threads)
        };
        let started = Pool::start(&config);
        started
            .inspect_err(
                |error| tracing::warn!(%error, "no threads to copy with: callers copy alone"),
            )
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_start_with_the_first_call_that_is_large_enough() {
        let copier = Copier::new(2, Choice::default());
        assert!(copier.pool(99, 100).is_none() && copier.pool.get().is_none());
        assert_eq!(copier.pool(100, 100).map(Pool::threads), Some(2));
        for alone in [0, 1] {
            assert!(
                Copier::new(alone, Choice::default())
                    .pool(1 << 30, 1)
                    .is_none()
            );
        }
    }
}
