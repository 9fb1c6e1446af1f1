use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_wait::Event;
use slackwater_wire::Epoch;
use slackwater_wire::kv_events::{KvBatch, KvEvent, KvEventCounts};

use crate::serve::epoch;

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

/// Events that were taken, in order. Where events just before them were dropped they begin with the news that nothing is held:
/// who has missed a removal, which nobody tells again, knows too little rather than something wrong.
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
    /// A queue of so many events.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                events: VecDeque::new(),
                first: 0,
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

    /// Has events numbered from the first one of this life of the master. None has been added yet.
    pub(crate) fn begin_life(&self, epoch: Epoch) {
        self.waiting().first = epoch::versions_above(epoch).0;
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

    /// Takes up to `limit` events; none when there are none, or the message layer has enough to do. A queue that is closed
    /// waits for it no more.
    pub(super) fn take(&self, limit: usize) -> Option<Taken> {
        let is_full = self.under_way.load(Ordering::Acquire) >= UNDER_WAY_MAX;
        if is_full && !self.bell.is_closed() {
            return None;
        }
        let mut waiting = self.waiting();
        let count = waiting.events.len().min(limit);
        if count == 0 {
            return None;
        }
        let is_behind_a_gap = std::mem::take(&mut waiting.is_behind_a_gap);
        // It has the number of the last one that was dropped.
        let cleared = is_behind_a_gap.then_some(KvEvent::Cleared);
        let first = waiting.first - u64::from(is_behind_a_gap);
        waiting.first += count as u64;
        let events = cleared.into_iter().chain(waiting.events.drain(..count));
        Some(Taken {
            events: events.collect(),
            first,
            is_behind_a_gap,
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use slackwater_wire::kv_events::Held;
    use slackwater_wire::{Key, SegmentKind, Tenant};

    use super::*;

    fn held(name: u64) -> Held {
        Held {
            tenant: Tenant::DEFAULT,
            key: Key::new(name.to_string().as_bytes()).unwrap(),
            tier: SegmentKind::Memory,
        }
    }

    fn events(names: std::ops::Range<u64>) -> Vec<KvEvent> {
        names.map(|name| KvEvent::Stored(held(name))).collect()
    }

    fn queue(capacity: usize, first: u64) -> EventQueue {
        let queue = EventQueue::new(capacity);
        queue.waiting().first = first;
        queue
    }

    /// Each event is named by its number, so that a wrong one shows; those behind a gap follow the news of it.
    fn check(queue: &EventQueue, limit: usize, expected: Option<(u64, u64, bool)>) {
        let taken = queue.take(limit).map(|mut taken| {
            if taken.is_behind_a_gap {
                assert_eq!(taken.events.remove(0), KvEvent::Cleared);
                taken.first += 1;
            }
            let last = taken.first + taken.events.len() as u64;
            assert_eq!(taken.events, events(taken.first..last));
            (taken.first, last, taken.is_behind_a_gap)
        });
        assert_eq!(taken, expected);
    }

    #[test]
    fn the_oldest_are_dropped_and_the_gap_is_where_they_were() {
        let queue = queue(4, 10);
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
        let queue = Arc::new(EventQueue::new(4));
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| queue.begin()).collect();
        queue.push(events(0..1));
        check(&queue, 1, None);
        let seen = queue.bell.seen();
        under_way.pop();
        assert_ne!(queue.bell.seen(), seen, "its end rings");
        check(&queue, 1, Some((0, 1, false)));
    }

    /// A server that stopped while its subscribers were slow kept to itself what still waited.
    #[test]
    fn what_waits_is_taken_when_the_queue_is_closed() {
        let queue = Arc::new(EventQueue::new(4));
        let _under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| queue.begin()).collect();
        queue.push(events(0..3));
        check(&queue, 2, None);
        queue.close();
        check(&queue, 2, Some((0, 2, false)));
        check(&queue, 2, Some((2, 3, false)));
        check(&queue, 2, None);
    }

    /// The numbers followed the clock: a master that was started again after its clock had been set back told old numbers.
    #[test]
    fn a_life_is_numbered_from_its_epoch_on() {
        let mut last = 0;
        for epoch in [Epoch(1), Epoch(2), Epoch(1 << 41)] {
            let queue = EventQueue::new(4);
            queue.begin_life(epoch);
            queue.push(events(0..1));
            let first = queue.take(1).unwrap().first;
            assert!(first > last + 100_000, "{epoch:?}: {first}");
            last = first;
        }
        assert!(last < 1 << 62);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// These values are stored if they are not, and removed if they are.
        Toggle(u64, u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6_u64, 1..5_u64).prop_map(|(from, count)| Step::Toggle(from, count)),
            (1..6_usize).prop_map(Step::Take),
        ]
    }

    proptest! {
        /// Behind a gap a reader took for held what had been removed in it. It never does, and knows all where nothing was
        /// dropped.
        #[test]
        fn a_reader_takes_nothing_for_held_that_is_not(steps in prop::collection::vec(step(), 1..60)) {
            let queue = queue(4, 1);
            // What is held behind each event.
            let mut history = vec![BTreeSet::new()];
            let mut read = BTreeSet::new();
            for step in steps.into_iter().chain([Step::Take(9)]) {
                match step {
                    Step::Toggle(from, count) => {
                        let told = (from..from + count).map(|name| {
                            let mut now = history.last().unwrap().clone();
                            let event = if now.remove(&held(name).key) {
                                KvEvent::Removed(held(name))
                            } else {
                                now.insert(held(name).key);
                                KvEvent::Stored(held(name))
                            };
                            history.push(now);
                            event
                        });
                        queue.push(told.collect());
                    }
                    Step::Take(limit) => {
                        let Some(taken) = queue.take(limit) else { continue };
                        let last = taken.first + taken.events.len() as u64 - 1;
                        for event in taken.events {
                            match event {
                                KvEvent::Stored(held) => drop(read.insert(held.key)),
                                KvEvent::Removed(held) => drop(read.remove(&held.key)),
                                KvEvent::Cleared => read.clear(),
                            }
                        }
                        let all = &history[last as usize];
                        prop_assert!(read.is_subset(all), "{read:?} {all:?}");
                        if queue.counts().dropped_events == 0 {
                            prop_assert_eq!(&read, all);
                        }
                    }
                }
            }
        }
    }
}
