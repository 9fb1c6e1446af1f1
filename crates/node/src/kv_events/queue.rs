use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use slackwater_wait::Event;
use slackwater_wire::Epoch;
use slackwater_wire::kv_events::{KvBatch, KvEvent, KvEventCounts};

use super::pace::Need;
use crate::serve::epoch;

/// Events between the master and the thread that publishes them.
///
/// Where there is no room, all that waits is dropped: readers who have missed a removal, which nobody tells again, would
/// take for held what is not, so that they begin anew. The master then tells them what there is, a slice at a time and only
/// when it is asked to, which is when nothing waits: such a slice needs no room among the others.
pub(crate) struct EventQueue {
    waiting: Mutex<Waiting>,
    capacity: usize,
    /// Rung when there is something to take.
    pub(super) bell: Event,
    ask: OnceLock<Ask>,
    /// Whether a reader has missed events that are not kept for it.
    is_missed: AtomicBool,
    /// Messages that the message layer has not taken yet.
    under_way: AtomicUsize,
    batches: AtomicU64,
    events: AtomicU64,
    dropped: AtomicU64,
    unparsed: AtomicU64,
}

/// What the master is to tell readers of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoreEvents {
    /// Of up to so many more of the objects that there are, if nothing waits for readers.
    Objects(usize),
    /// Of all objects once more.
    Repeated,
}

/// Has the master tell more; false when there is no master any more.
type Ask = Box<dyn Fn(MoreEvents) -> bool + Send + Sync>;

/// Events for which there was no room: those that waited, and those that came. To free them takes a while, so that it is
/// left to when others may use the master.
pub(crate) type Dropped = (VecDeque<KvEvent>, Vec<KvEvent>);

/// A queue that is to be rung, and events that are to be freed.
pub(crate) type Rung = (Arc<EventQueue>, Dropped);

#[derive(Default)]
struct Waiting {
    events: VecDeque<KvEvent>,
    /// How many of the oldest the master was asked for.
    asked: usize,
    /// The number of the oldest of them, among all there ever were.
    first: u64,
    /// Whether events before the oldest were dropped.
    is_behind_a_gap: bool,
    /// Whether the master has more to tell when it is asked.
    has_more: bool,
}

/// Events that were taken, in order. Where events just before them were dropped they begin with the news that nothing is held.
pub(super) struct Taken {
    pub(super) events: Vec<KvEvent>,
    /// The number of the first of them.
    pub(super) first: u64,
    /// Whether events just before them were dropped.
    pub(super) is_behind_a_gap: bool,
}

/// Messages that may wait for the message layer: the others wait as events, which can be dropped.
const UNDER_WAY_MAX: usize = 16;

impl EventQueue {
    /// A queue of so many events.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            capacity,
            bell: Event::new(),
            ask: OnceLock::new(),
            is_missed: AtomicBool::new(false),
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

    /// Has the master asked by this to tell more, until it returns false because there is no master any more.
    pub(crate) fn ask_by(&self, ask: impl Fn(MoreEvents) -> bool + Send + Sync + 'static) {
        let first = self.ask.set(Box::new(ask)).is_ok();
        assert!(first, "a queue has one master");
    }

    /// Adds events.
    ///
    /// # Errors
    /// When there is no room: then all that wait are taken out, and readers will be told that nothing is held.
    pub(crate) fn push(&self, events: Vec<KvEvent>) -> Result<(), Dropped> {
        let mut waiting = self.waiting();
        let count = waiting.events.len() + events.len();
        if count - waiting.asked <= self.capacity {
            waiting.events.extend(events);
            return Ok(());
        }
        waiting.asked = 0;
        waiting.first += count as u64;
        waiting.is_behind_a_gap = true;
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
        Err((std::mem::take(&mut waiting.events), events))
    }

    /// Adds events for which there is room, because the master was asked for them when nothing waited.
    pub(crate) fn push_asked(&self, events: Vec<KvEvent>) {
        let mut waiting = self.waiting();
        assert!(
            waiting.events.is_empty(),
            "the master tells more when nothing waits"
        );
        waiting.events.extend(events);
        waiting.asked = waiting.events.len();
    }

    /// Whether nothing waits, not even the news of a gap.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    /// Says whether the master has more to tell when it is asked.
    pub(crate) fn set_more(&self, has_more: bool) {
        self.waiting().has_more = has_more;
    }

    /// Has the thread that takes events look at what there is.
    pub(crate) fn ring(&self) {
        self.bell.notify_all();
    }

    /// What the master could be asked for.
    pub(super) fn need(&self) -> Need {
        let waiting = self.waiting();
        Need {
            is_missed: self.is_missed.load(Ordering::Acquire),
            has_more: waiting.has_more,
            is_idle: waiting.is_empty() && !self.is_full(),
        }
    }

    /// A reader has missed events that are not kept for it.
    pub(super) fn miss(&self) {
        // Who asks again and again is heard once.
        if !self.is_missed.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Asks the master to tell more, which takes its lock.
    pub(super) fn ask(&self, more: MoreEvents) {
        if more == MoreEvents::Repeated {
            self.is_missed.store(false, Ordering::Release);
        }
        if self.ask.get().is_some_and(|ask| !ask(more)) {
            self.set_more(false);
        }
    }

    /// Takes up to `limit` events; none when there are none, or the message layer has enough to do. A queue that is closed
    /// waits for it no more.
    pub(super) fn take(&self, limit: usize) -> Option<Taken> {
        if self.is_full() && !self.bell.is_closed() {
            return None;
        }
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            return None;
        }
        let count = waiting.events.len().min(limit);
        let is_behind_a_gap = std::mem::take(&mut waiting.is_behind_a_gap);
        // It has the number of the last one that was dropped.
        let cleared = is_behind_a_gap.then_some(KvEvent::Cleared);
        let first = waiting.first - u64::from(is_behind_a_gap);
        waiting.first += count as u64;
        waiting.asked = waiting.asked.saturating_sub(count);
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

    /// Whether the message layer has enough to do.
    fn is_full(&self) -> bool {
        self.under_way.load(Ordering::Acquire) >= UNDER_WAY_MAX
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.is_behind_a_gap
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
    use slackwater_base::{Checksum, Instant};
    use slackwater_meta::{Master, MasterConfig};
    use slackwater_wire::kv_events::Held;
    use slackwater_wire::{
        Chain, Incarnation, Key, Mount, NodeId, PutConfig, PutDone, PutEnd, PutEntry, PutStart,
        PutStarted, Remove, Reply, Request, SegmentId, SegmentKind, Tenant,
    };

    use super::*;
    use crate::host::{Asked, MasterHost};

    fn key(name: u64) -> Key {
        Key::new(name.to_string().as_bytes()).unwrap()
    }

    fn held(name: u64) -> Held {
        Held {
            tenant: Tenant::DEFAULT,
            key: key(name),
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

    /// Whether the master would be asked for more, if it is time.
    fn wants_more(queue: &EventQueue) -> bool {
        let need = queue.need();
        need.has_more && need.is_idle
    }

    #[test]
    fn all_that_wait_are_dropped_where_there_is_no_room() {
        let queue = queue(4, 10);
        check(&queue, 9, None);
        assert!(queue.push(events(10..13)).is_ok());
        check(&queue, 2, Some((10, 12, false)));
        assert!(queue.push(events(13..20)).is_err());
        assert_eq!(queue.counts().dropped_events, 8);
        assert!(!queue.is_empty(), "there is the news of it");
        check(&queue, 3, Some((20, 20, true)));
        check(&queue, 3, None);
        assert!(queue.push(events(20..24)).is_ok());
        check(&queue, 3, Some((20, 23, false)));
        assert!(queue.push(events(24..124)).is_err());
        assert!(queue.push(events(124..129)).is_err());
        assert_eq!(queue.counts().dropped_events, 8 + 101 + 5);
        assert!(queue.push(events(129..130)).is_ok());
        check(&queue, 9, Some((129, 130, true)));
    }

    /// What readers were told anew filled the queue, so that the next event had them told anew again.
    #[test]
    fn what_the_master_was_asked_for_needs_no_room() {
        let queue = queue(4, 0);
        assert!(!wants_more(&queue));
        queue.set_more(true);
        assert!(wants_more(&queue));
        queue.push_asked(events(0..10));
        assert!(!wants_more(&queue) && !queue.is_empty());
        assert!(queue.push(events(10..14)).is_ok());
        check(&queue, 6, Some((0, 6, false)));
        assert!(queue.push(events(14..14)).is_ok());
        check(&queue, 6, Some((6, 12, false)));
        assert!(queue.push(events(14..16)).is_ok());
        assert!(
            queue.push(events(16..17)).is_err(),
            "what was asked for is gone"
        );
        assert!(!wants_more(&queue), "not before the news of the gap");
        check(&queue, 9, Some((17, 17, true)));
        assert!(wants_more(&queue));
        queue.push_asked(events(17..30));
        assert!(queue.push(events(30..35)).is_err());
        check(&queue, 9, Some((35, 35, true)));
        assert!(queue.push(events(35..39)).is_ok());
        assert!(queue.push(events(39..40)).is_err(), "no more than others");
    }

    #[test]
    fn nothing_is_asked_for_once_there_is_no_master() {
        let queue = queue(4, 0);
        queue.set_more(true);
        queue.ask_by(|more| more == MoreEvents::Repeated);
        let seen = queue.bell.seen();
        queue.miss();
        assert!(queue.need().is_missed);
        let rung = queue.bell.seen();
        assert_ne!(rung, seen);
        queue.miss();
        assert_eq!(queue.bell.seen(), rung, "that is known");
        queue.ask(MoreEvents::Repeated);
        assert!(wants_more(&queue) && !queue.need().is_missed);
        queue.ask(MoreEvents::Objects(7));
        assert!(!wants_more(&queue));
    }

    #[test]
    fn events_wait_while_the_message_layer_has_enough_to_do() {
        let queue = Arc::new(EventQueue::new(4));
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| queue.begin()).collect();
        queue.set_more(true);
        assert!(!wants_more(&queue));
        assert!(queue.push(events(0..1)).is_ok());
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
        assert!(queue.push(events(0..3)).is_ok());
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
            assert!(queue.push(events(0..1)).is_ok());
            let first = queue.take(1).unwrap().first;
            assert!(first > last + 100_000, "{epoch:?}: {first}");
            last = first;
        }
        assert!(last < 1 << 62);
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const CAPACITY: usize = 4;

    /// A master whose readers of events follow what it holds.
    struct World {
        host: MasterHost,
        queue: Arc<EventQueue>,
        held: BTreeSet<Key>,
        read: BTreeSet<Key>,
        /// The number of the next event that the reader takes, where none is missing.
        next: u64,
    }

    impl World {
        fn new() -> Self {
            let queue = Arc::new(EventQueue::new(CAPACITY));
            let host = MasterHost::new(Master::new(MasterConfig::default(), 7));
            let host = host.telling(Some(Arc::clone(&queue)), Epoch(1));
            let next = queue.waiting().first;
            let mut world = Self {
                host,
                next,
                queue,
                held: BTreeSet::new(),
                read: BTreeSet::new(),
            };
            let mount = Mount {
                segment: SegmentId(1),
                name: "memory".to_owned(),
                node: NodeId(1),
                incarnation: Incarnation(1),
                kind: SegmentKind::Memory,
                bytes: 64 << 20,
                host: String::new(),
                generations: None,
                watermarks: None,
            };
            assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
            world
        }

        fn ask(&mut self, request: Request) -> Reply {
            self.host.begin(NOW, request);
            match self.host.end() {
                Asked::Now(reply) => reply,
                Asked::Later(_) => panic!("it is answered at once"),
            }
        }

        /// Stores a value, or removes it if it is there.
        fn toggle(&mut self, name: u64) {
            let tenant = Tenant::DEFAULT;
            if self.held.remove(&key(name)) {
                let removed = self.ask(Request::Remove(Remove {
                    tenant,
                    keys: vec![key(name)],
                    force: true,
                }));
                assert_eq!(removed, Reply::Each(vec![Ok(())]));
                return;
            }
            let begun = self.ask(Request::PutStart(PutStart {
                tenant: tenant.clone(),
                entries: vec![PutEntry {
                    key: key(name),
                    bytes: 100,
                }],
                chain: Chain::default(),
                config: PutConfig::default(),
            }));
            let Reply::PutStart(begun) = begun else {
                panic!("{begun:?}");
            };
            let PutStarted::Granted { version, .. } = begun[0] else {
                panic!("{begun:?}");
            };
            let puts = vec![PutDone {
                key: key(name),
                version,
                checksum: Checksum(0),
            }];
            let ended = self.ask(Request::PutEnd(PutEnd {
                tenant,
                puts,
                hosts: None,
            }));
            assert_eq!(ended, Reply::Each(vec![Ok(())]));
            self.held.insert(key(name));
        }

        fn take(&mut self, limit: usize) -> bool {
            let Some(taken) = self.queue.take(limit) else {
                return false;
            };
            assert!(taken.first >= self.next);
            assert_eq!(taken.first > self.next, taken.is_behind_a_gap);
            self.next = taken.first + taken.events.len() as u64;
            for event in taken.events {
                match event {
                    KvEvent::Stored(held) => assert!(self.read.insert(held.key), "twice"),
                    KvEvent::Removed(held) => assert!(self.read.remove(&held.key), "unknown"),
                    KvEvent::Repeated(held) => assert!(self.read.contains(&held.key), "new"),
                    KvEvent::Cleared => self.read.clear(),
                }
            }
            true
        }

        /// Asks for more, if there is a need; says whether there was.
        fn tell_more(&mut self, count: usize) -> bool {
            let wants = wants_more(&self.queue);
            if wants {
                self.host.tell_more_events(MoreEvents::Objects(count));
            }
            wants
        }
    }

    /// The thread that takes events was woken by a system call while the master was locked.
    #[test]
    fn the_thread_that_takes_events_is_rung_for_by_the_owner_of_the_master() {
        let mut world = World::new();
        assert!(
            world.host.take_rung().is_none(),
            "nothing of a mount is told"
        );
        let seen = world.queue.bell.seen();
        world.toggle(1);
        assert_eq!(world.queue.bell.seen(), seen);
        let (rung, (waiting, told)) = world.host.take_rung().unwrap();
        assert!(waiting.is_empty() && told.is_empty());
        rung.ring();
        assert_ne!(world.queue.bell.seen(), seen);
        assert!(world.host.take_rung().is_none());
        (2..8).for_each(|name| world.toggle(name));
        let (_, (waiting, told)) = world.host.take_rung().unwrap();
        assert_eq!(
            waiting.len() + told.len(),
            CAPACITY + 1,
            "nobody waits until they are freed"
        );
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// These values are stored if they are not, and removed if they are.
        Toggle(u64, u64),
        Take(usize),
        More(usize),
        Repeat,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..12_u64, 1..6_u64).prop_map(|(from, count)| Step::Toggle(from, count)),
            2 => (1..6_usize).prop_map(Step::Take),
            2 => (1..4_usize).prop_map(Step::More),
            1 => Just(Step::Repeat),
        ]
    }

    proptest! {
        /// Behind a gap a reader knew less than there was, until values were stored again. Whatever is stored and removed
        /// while it is told anew, it knows in the end what is held, and little waits for it.
        #[test]
        fn a_reader_knows_what_is_held_once_it_has_taken_all(
            steps in prop::collection::vec(step(), 1..100),
            slice in 1..20_usize,
        ) {
            let mut world = World::new();
            for step in steps {
                match step {
                    Step::Toggle(from, count) => (from..from + count).for_each(|name| world.toggle(name)),
                    Step::Take(limit) => _ = world.take(limit),
                    Step::More(count) => _ = world.tell_more(count),
                    Step::Repeat => world.host.tell_more_events(MoreEvents::Repeated),
                }
                prop_assert!(world.queue.waiting().events.len() <= CAPACITY + 2 * 4);
            }
            while world.take(3) || world.tell_more(slice) {}
            prop_assert_eq!(&world.read, &world.held);
            prop_assert!(!world.host.core.has_more_to_tell());
        }
    }
}
