use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_wait::Event;
use slackwater_wire::kv_events::{KvBatch, KvEvent, KvEventCounts};

/// Events between the master and the thread that publishes them.
pub(crate) struct EventQueue {
    waiting: Mutex<Waiting>,
    capacity: usize,
    /// Rung when there is something to take.
    pub(super) bell: Event,
    /// Messages that the message layer has not taken yet.
    under_way: AtomicUsize,
    batches: AtomicU64,
    events: AtomicU64,
    dropped: AtomicU64,
    unparsed: AtomicU64,
}

struct Waiting {
    events: VecDeque<KvEvent>,
    /// The number of the oldest of them, among all there ever were.
    first: u64,
    /// Whether events before the oldest were dropped.
    is_behind_a_gap: bool,
}

/// Events that were taken, in order.
pub(super) struct Taken {
    pub(super) events: Vec<KvEvent>,
    /// The number of the first of them.
    pub(super) first: u64,
    /// Whether events just before them were dropped.
    pub(super) is_behind_a_gap: bool,
}

/// Messages that may wait for the message layer: the others wait as events, of which the oldest can be dropped.
const UNDER_WAY_MAX: usize = 16;

impl EventQueue {
    /// A queue of so many events, the first of which has this number.
    pub(super) fn new(capacity: usize, first: u64) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                events: VecDeque::new(),
                first,
                is_behind_a_gap: false,
            }),
            capacity,
            bell: Event::new(),
            under_way: AtomicUsize::new(0),
            batches: AtomicU64::new(0),
            events: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unparsed: AtomicU64::new(0),
        }
    }

    /// Adds events; where there is no room the oldest go.
    pub(crate) fn push(&self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let mut waiting = self.waiting();
        waiting.events.extend(events);
        let over = waiting.events.len().saturating_sub(self.capacity);
        if over > 0 {
            waiting.events.drain(..over);
            waiting.first += over as u64;
            waiting.is_behind_a_gap = true;
            self.dropped.fetch_add(over as u64, Ordering::Relaxed);
        }
        drop(waiting);
        self.bell.notify_all();
    }

    /// Takes up to `limit` events; none when there are none, or the message layer has enough to do.
    pub(super) fn take(&self, limit: usize) -> Option<Taken> {
        if self.under_way.load(Ordering::Acquire) >= UNDER_WAY_MAX {
            return None;
        }
        let mut waiting = self.waiting();
        let count = waiting.events.len().min(limit);
        let events: Vec<KvEvent> = waiting.events.drain(..count).collect();
        let first = waiting.first;
        waiting.first += count as u64;
        (count > 0).then(|| Taken {
            events,
            first,
            is_behind_a_gap: std::mem::take(&mut waiting.is_behind_a_gap),
        })
    }

    /// Counts what a batch tells.
    pub(super) fn told(&self, batch: &KvBatch) {
        let published = u64::from(batch.body.is_some());
        self.batches.fetch_add(published, Ordering::Relaxed);
        self.events.fetch_add(batch.events, Ordering::Relaxed);
        self.unparsed.fetch_add(batch.unparsed, Ordering::Relaxed);
    }

    /// A message goes to the message layer, which has it until the value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> impl Send + use<> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(self))
    }

    /// No more will be pushed.
    pub(super) fn close(&self) {
        self.bell.close();
    }

    /// What was told so far.
    pub(crate) fn counts(&self) -> KvEventCounts {
        KvEventCounts {
            enabled: true,
            published_batches: self.batches.load(Ordering::Relaxed),
            published_events: self.events.load(Ordering::Relaxed),
            dropped_events: self.dropped.load(Ordering::Relaxed),
            skipped_unparsed_keys: self.unparsed.load(Ordering::Relaxed),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct UnderWay(Arc<EventQueue>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == UNDER_WAY_MAX {
            self.0.bell.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::kv_events::Held;
    use slackwater_wire::{Key, SegmentKind, Tenant};

    use super::*;

    fn events(names: std::ops::Range<u64>) -> Vec<KvEvent> {
        let event = |name: u64| {
            KvEvent::Stored(Held {
                tenant: Tenant::DEFAULT,
                key: Key::new(name.to_string().as_bytes()).unwrap(),
                tier: SegmentKind::Memory,
            })
        };
        names.map(event).collect()
    }

    /// Each event is named by its number, so that a wrong one shows.
    fn check(queue: &EventQueue, limit: usize, expected: Option<(u64, u64, bool)>) {
        let taken = queue.take(limit).map(|taken| {
            let last = taken.first + taken.events.len() as u64;
            assert_eq!(taken.events, events(taken.first..last));
            (taken.first, last, taken.is_behind_a_gap)
        });
        assert_eq!(taken, expected);
    }

    #[test]
    fn the_oldest_are_dropped_and_the_gap_is_where_they_were() {
        let queue = EventQueue::new(4, 10);
        check(&queue, 9, None);
        queue.push(events(10..13));
        check(&queue, 2, Some((10, 12, false)));
        queue.push(events(13..20));
        assert_eq!(queue.counts().dropped_events, 4);
        check(&queue, 3, Some((16, 19, true)));
        check(&queue, 3, Some((19, 20, false)));
        check(&queue, 3, None);
        queue.push(events(20..120));
        assert_eq!(queue.counts().dropped_events, 100);
        check(&queue, 9, Some((116, 120, true)));
    }

    #[test]
    fn events_wait_while_the_message_layer_has_enough_to_do() {
        let queue = Arc::new(EventQueue::new(4, 0));
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| queue.begin()).collect();
        queue.push(events(0..1));
        check(&queue, 1, None);
        let seen = queue.bell.seen();
        under_way.pop();
        assert_ne!(queue.bell.seen(), seen, "its end rings");
        check(&queue, 1, Some((0, 1, false)));
    }
}
