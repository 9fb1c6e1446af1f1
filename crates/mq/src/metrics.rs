use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use slackwater_net::Counter;
use slackwater_wait::Event;

/// What a message layer has done since it began.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Links that came up.
    pub links_up: Counter,
    /// Links that went down after they had been up.
    pub links_down: Counter,
    /// Messages received.
    pub messages_in: Counter,
    /// Messages put on the wire.
    pub messages_out: Counter,
    /// Reconnections begun.
    pub reconnects: Counter,
    /// Peers refused at admission.
    pub refused: Counter,
    /// Requests sent.
    pub requests: Counter,
    /// Requests that ended by their timeout.
    pub timeouts: Counter,
    /// Replies without a waiting request.
    pub late_replies: Counter,
    /// Protocol words that are not valid in the state of their link.
    pub misplaced_words: Counter,
    /// Commands refused because their queue was full.
    pub busy: Counter,
    /// Handlers that panicked.
    pub handlers_failed: Counter,
    /// Other jobs that panicked.
    pub jobs_panicked: Counter,
    /// Messages refused because the link's queue was full.
    pub queue_full: Counter,
    /// Topics that subscribers of streams have asked for.
    pub subscriptions: Counter,
    /// Event-stream messages dropped for slow subscribers.
    pub stream_dropped: Counter,
    by_cause: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    changed: Event,
}

impl Metrics {
    /// Notified after anything but traffic was counted, after a link was removed, and when the number of waiting commands
    /// changes.
    #[must_use]
    pub fn changed(&self) -> &Event {
        &self.changed
    }

    /// Counts something rare under a family and a cause.
    pub(crate) fn count(&self, family: &'static str, cause: &'static str) {
        *self
            .by_cause
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((family, cause))
            .or_default() += 1;
        self.changed.notify_all();
    }

    /// Raises one of the counters that traffic does not.
    pub(crate) fn rare(&self, counter: &Counter) {
        counter.add(1);
        self.changed.notify_all();
    }

    /// How often `cause` came up in `family`: `link` (ends of links) or `refusal` (answers to commands).
    #[must_use]
    pub fn caused(&self, family: &str, cause: &str) -> u64 {
        let causes = self.by_cause.lock().unwrap_or_else(PoisonError::into_inner);
        causes
            .iter()
            .filter(|((f, c), _)| *f == family && *c == cause)
            .map(|(_, count)| *count)
            .sum()
    }

    /// All causes that came up, as (family, cause, count).
    #[must_use]
    pub fn causes(&self) -> Vec<(&'static str, &'static str, u64)> {
        let causes = self.by_cause.lock().unwrap_or_else(PoisonError::into_inner);
        causes
            .iter()
            .map(|((family, cause), count)| (*family, *cause, *count))
            .collect()
    }
}
