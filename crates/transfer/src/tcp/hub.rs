//! Who goes next, and on which lane: the queues of all peers, the limit on transfers under way, and the table of lanes.
//!
//! Pure: it takes what happened and the time, and gives orders. The loops carry them out.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Rng};
use slackwater_wait::Backoff;
use slackwater_wire::Incarnation;

use super::config::TcpConfig;
use super::work::Work;
use crate::batch::{BatchId, Part};
use crate::cause::{Cause, Clock};
use crate::mover::PeerStats;
use crate::segment::Segment;

/// The books of one TCP mover.
#[derive(Debug)]
pub(crate) struct Hub {
    limits: Limits,
    active: usize,
    peers: BTreeMap<Incarnation, Peer>,
    /// Peers with work in line that a lane could take, each once.
    ring: VecDeque<Incarnation>,
    next_loop: usize,
    next_lane: u64,
    lanes: BTreeMap<LaneId, Lane>,
    counters: LaneCounters,
    closed: bool,
    rng: Rng,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) loops: usize,
    pub(crate) max_transfers: usize,
    pub(crate) lanes_per_peer: usize,
    pub(crate) queue_bytes: u64,
    pub(crate) queue_entries: usize,
    pub(crate) retry: (Duration, Duration),
    pub(crate) address_rest: Duration,
}

/// Peers of which the books are kept although nothing is under way.
const PEERS_KEPT: usize = 4096;

/// One connection to a peer, from the order to connect until it is gone; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(pub(crate) u64);

/// What became of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Lanes that came to stand.
    pub created: u64,
    /// Transfers that found a lane standing.
    pub reused: u64,
    /// Attempts to connect that came to nothing.
    pub connect_failed: u64,
    /// Transfers begun again on another lane.
    pub retries: u64,
    /// Lanes closed because they had no work.
    pub closed_idle: u64,
    /// Lanes that the peer, or the way to it, ended.
    pub closed_peer: u64,
}

#[derive(Debug)]
struct Lane {
    peer: Incarnation,
    loop_index: usize,
    address: SocketAddr,
    ready: bool,
    in_flight: usize,
    bytes: u64,
    /// Transfers that the peer lets this lane have.
    credit: usize,
}

#[derive(Debug)]
struct Peer {
    segment: Arc<Segment>,
    urgent: VecDeque<Work>,
    normal: VecDeque<Work>,
    queued_bytes: u64,
    /// The queue was full: nobody is let in before it has room for many.
    held_back: bool,
    in_ring: bool,
    lanes: Vec<LaneId>,
    rests: BTreeMap<SocketAddr, Instant>,
    next_address: usize,
    backoff: Backoff,
    retry_at: Instant,
    last_error: Option<Cause>,
    stats: PeerStats,
    /// Unfinished work by epoch; a fence ends one.
    epochs: VecDeque<Epoch>,
    first_epoch: u64,
}

#[derive(Debug, Default)]
struct Epoch {
    unfinished: usize,
    fence: Option<Part>,
}

/// What a loop shall do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Open a lane.
    Connect { loop_index: usize, lane: LaneId, peer: Arc<Segment>, address: SocketAddr },
    /// Begin work on a lane.
    Start { loop_index: usize, lane: LaneId, work: Work },
    /// End work that never began.
    Fail { work: Work, cause: Cause },
    /// A fence is reached.
    Fenced(Part),
    /// A queue that was full has room.
    Room,
    /// Come back at this time.
    Wake(Instant),
}

impl Limits {
    pub(crate) fn of(config: &TcpConfig) -> Self {
        Self {
            loops: config.io_threads,
            max_transfers: config.max_transfers,
            lanes_per_peer: config.lanes_per_peer,
            queue_bytes: config.queue_bytes,
            queue_entries: config.queue_entries,
            retry: config.retry,
            address_rest: config.address_rest,
        }
    }
}

impl Hub {
    pub(crate) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            active: 0,
            peers: BTreeMap::new(),
            ring: VecDeque::new(),
            next_loop: 0,
            next_lane: 1,
            lanes: BTreeMap::new(),
            counters: LaneCounters::default(),
            closed: false,
            rng: Rng::new(seed),
        }
    }

    /// Transfers under way; never above the limit.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Transfers in line.
    pub(crate) fn pending(&self) -> usize {
        self.peers.values().map(Peer::queued).sum()
    }

    /// How long the oldest transfer in line has waited.
    pub(crate) fn oldest_pending(&self, now: Instant) -> Duration {
        let fronts = self.peers.values().flat_map(|peer| [peer.urgent.front(), peer.normal.front()]).flatten();
        fronts.map(|work| now.since(work.since)).max().unwrap_or_default()
    }

    pub(crate) fn counters(&self) -> LaneCounters {
        self.counters
    }

    /// Lanes by loop.
    pub(crate) fn lanes_by_loop(&self) -> Vec<usize> {
        let mut lanes = vec![0; self.limits.loops];
        self.lanes.values().for_each(|lane| lanes[lane.loop_index] += 1);
        lanes
    }

    pub(crate) fn stats(&self, peer: Incarnation) -> PeerStats {
        self.peers.get(&peer).map_or_else(PeerStats::default, |peer| PeerStats {
            active: self.lanes_of(peer).map(|lane| lane.in_flight as u64).sum(),
            pending: peer.queued() as u64,
            ..peer.stats
        })
    }

    /// Bytes in line for a peer when its queue takes no more; none when it does. Once full, it takes none until a quarter
    /// of it is free: those who wait are woken together then, not all of them for each piece that leaves.
    pub(crate) fn full(&mut self, segment: &Segment) -> Option<u64> {
        let peer = self.peers.get_mut(&segment.incarnation)?;
        let full = peer.queued_bytes >= self.limits.queue_bytes || peer.queued() >= self.limits.queue_entries;
        peer.held_back |= full;
        peer.held_back.then_some(peer.queued_bytes)
    }

    /// Takes work in, in order.
    pub(crate) fn submit(&mut self, segment: &Arc<Segment>, works: Vec<Work>, now: Instant, orders: &mut Vec<Order>) {
        if self.closed {
            orders.extend(works.into_iter().map(|work| Order::Fail { work, cause: Cause::Closed }));
            return;
        }
        if self.peers.len() >= PEERS_KEPT {
            self.peers.retain(|_, peer| !peer.is_idle());
        }
        let (limits, rng) = (&self.limits, &mut self.rng);
        let peer = self.peers.entry(segment.incarnation).or_insert_with(|| Peer::new(segment, limits, rng));
        let mut first_deadline = Instant::NEVER;
        for mut work in works {
            first_deadline = first_deadline.min(work.deadline());
            work.epoch = peer.enter();
            peer.push_back(work);
        }
        self.serve_peer(segment.incarnation, now, orders);
        if self.peers.get(&segment.incarnation).is_some_and(|peer| peer.queued() > 0) {
            orders.push(Order::Wake(first_deadline));
        }
    }

    /// Completes `part` when everything submitted before is over.
    pub(crate) fn fence(&mut self, segment: &Arc<Segment>, part: Part, orders: &mut Vec<Order>) {
        match self.peers.get_mut(&segment.incarnation) {
            Some(peer) => peer.fence(part, orders),
            None => orders.push(Order::Fenced(part)),
        }
    }

    /// Work is over, however it ended: its slot passes to whoever is next.
    pub(crate) fn finished(&mut self, lane: LaneId, done: &Finished, now: Instant, orders: &mut Vec<Order>) {
        self.leave_lane(lane, done.bytes);
        if let Some(peer) = self.peers.get_mut(&done.peer) {
            done.moved.count(&mut peer.stats);
            peer.leave(done.epoch, orders);
        }
        self.ring_peer(done.peer);
        self.serve(now, orders);
    }

    /// A transfer that its caller drove itself is over.
    pub(crate) fn count_direct(&mut self, segment: &Arc<Segment>, moved: Moved) {
        let (limits, rng) = (&self.limits, &mut self.rng);
        let peer = self.peers.entry(segment.incarnation).or_insert_with(|| Peer::new(segment, limits, rng));
        moved.count(&mut peer.stats);
    }

    /// A lane stands.
    pub(crate) fn lane_ready(&mut self, lane: LaneId, credit: usize, now: Instant, orders: &mut Vec<Order>) {
        self.counters.created += 1;
        let Some(entry) = self.lanes.get_mut(&lane) else { return };
        (entry.ready, entry.credit) = (true, credit.max(1));
        let (incarnation, address) = (entry.peer, entry.address);
        if let Some(peer) = self.peers.get_mut(&incarnation) {
            peer.backoff.reset();
            peer.rests.remove(&address);
            peer.last_error = None;
            peer.retry_at = Instant::ZERO;
        }
        self.ring_peer(incarnation);
        self.serve(now, orders);
    }

    /// A lane is gone. What it carried, as far as it can be begun again, comes back as `again`.
    pub(crate) fn lane_lost(&mut self, lost: Lost, now: Instant, orders: &mut Vec<Order>) {
        let Some(lane) = self.lanes.remove(&lost.lane) else { return };
        self.active -= lane.in_flight;
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return };
        peer.lanes.retain(|id| *id != lost.lane);
        for epoch in lost.failed {
            peer.leave(epoch, orders);
            peer.stats.failed += 1;
        }
        match lost.why {
            Why::Idle => self.counters.closed_idle += 1,
            Why::Peer(cause) if lane.ready => {
                self.counters.closed_peer += 1;
                peer.last_error = Some(cause);
            }
            Why::Peer(cause) => {
                self.counters.connect_failed += 1;
                let others = peer
                    .segment
                    .addresses
                    .iter()
                    .any(|other| *other != lane.address && peer.rests.get(other).is_none_or(|until| *until <= now));
                peer.rests.insert(lane.address, now + self.limits.address_rest);
                // Another address is tried at once; when all have failed, after a pause.
                peer.retry_at = if others { now } else { now + peer.backoff.pause() };
                if !others {
                    peer.rests.clear();
                }
                peer.last_error = Some(cause);
            }
            Why::Gone(cause) => {
                let works = peer.take_all();
                peer.let_in(&self.limits, orders);
                for work in works {
                    peer.leave(work.epoch, orders);
                    peer.stats.failed += 1;
                    orders.push(Order::Fail { work, cause: cause.clone() });
                }
                for work in lost.again {
                    peer.leave(work.epoch, orders);
                    peer.stats.failed += 1;
                    orders.push(Order::Fail { work, cause: cause.clone() });
                }
                return self.serve(now, orders);
            }
        }
        for work in lost.again.into_iter().rev() {
            self.counters.retries += 1;
            peer.stats.retries += 1;
            peer.push_front(work);
        }
        let again = lane.peer;
        self.serve_peer(again, now, orders);
        self.serve(now, orders);
        let due = self.next_due();
        if due < Instant::NEVER {
            orders.push(Order::Wake(due));
        }
    }

    /// Work whose lane was gone before the order to begin it arrived.
    pub(crate) fn put_back(&mut self, works: Vec<Work>, now: Instant, orders: &mut Vec<Order>) {
        for work in works.into_iter().rev() {
            let incarnation = work.peer;
            if let Some(peer) = self.peers.get_mut(&incarnation) {
                peer.push_front(work);
            }
            self.ring_peer(incarnation);
        }
        self.serve(now, orders);
        let due = self.next_due();
        if due < Instant::NEVER {
            orders.push(Order::Wake(due));
        }
    }

    /// Takes a batch out of every queue.
    pub(crate) fn cancel(&mut self, batch: BatchId, orders: &mut Vec<Order>) {
        self.drop_queued(|work| (work.batch() == batch).then_some(Cause::Cancelled), orders);
    }

    /// Time has passed: work whose deadline is over leaves the queues, and peers that rested are tried again.
    pub(crate) fn tick(&mut self, now: Instant, orders: &mut Vec<Order>) {
        let errors: BTreeMap<Incarnation, Option<Cause>> =
            self.peers.iter().map(|(id, peer)| (*id, peer.last_error.clone())).collect();
        self.drop_queued(
            |work| {
                let late = || match errors.get(&work.peer).cloned().flatten() {
                    Some(Cause::Lost(reason)) => Cause::Lost(reason),
                    Some(error) => error,
                    None => Cause::TimedOut(Clock::Total),
                };
                (work.deadline() <= now).then(late)
            },
            orders,
        );
        let waiting: Vec<Incarnation> =
            self.peers.iter().filter(|(_, peer)| peer.queued() > 0).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|peer| self.serve_peer(peer, now, orders));
        let due = self.next_due();
        if due < Instant::NEVER {
            orders.push(Order::Wake(due));
        }
    }

    /// Takes no more work, and ends what waits.
    pub(crate) fn close(&mut self, orders: &mut Vec<Order>) {
        self.closed = true;
        self.drop_queued(|_| Some(Cause::Closed), orders);
    }

    fn drop_queued(&mut self, over: impl Fn(&Work) -> Option<Cause>, orders: &mut Vec<Order>) {
        for peer in self.peers.values_mut() {
            for work in peer.take_all() {
                match over(&work) {
                    Some(cause) => {
                        peer.leave(work.epoch, orders);
                        peer.stats.failed += 1;
                        orders.push(Order::Fail { work, cause });
                    }
                    None => peer.push_back(work),
                }
            }
            peer.let_in(&self.limits, orders);
        }
    }

    fn next_due(&self) -> Instant {
        let waiting = self.peers.values().filter(|peer| peer.queued() > 0);
        waiting.map(Peer::next_due).min().unwrap_or(Instant::NEVER)
    }

    fn serve_peer(&mut self, incarnation: Incarnation, now: Instant, orders: &mut Vec<Order>) {
        self.ring_peer(incarnation);
        self.serve(now, orders);
    }

    /// Puts a peer in the ring if it has work in line.
    fn ring_peer(&mut self, incarnation: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&incarnation)
            && !peer.in_ring
            && peer.queued() > 0
        {
            peer.in_ring = true;
            self.ring.push_back(incarnation);
        }
    }

    /// Gives free slots to the peers in turn, one piece of work each.
    fn serve(&mut self, now: Instant, orders: &mut Vec<Order>) {
        while self.active < self.limits.max_transfers {
            let Some(incarnation) = self.ring.pop_front() else { return };
            let Some(peer) = self.peers.get_mut(&incarnation) else { continue };
            peer.in_ring = false;
            if peer.queued() == 0 {
                continue;
            }
            let best = self.best_lane(incarnation);
            let busy = best.is_none_or(|(_, in_flight)| in_flight > 0);
            if busy {
                self.open_lane(incarnation, now, orders);
            }
            let Some((lane, _)) = best else { continue };
            let Some(peer) = self.peers.get_mut(&incarnation) else { continue };
            let Some(work) = peer.pop() else { continue };
            peer.let_in(&self.limits, orders);
            let Some(entry) = self.lanes.get_mut(&lane) else { continue };
            entry.in_flight += 1;
            entry.bytes += work.bytes();
            self.active += 1;
            self.counters.reused += 1;
            orders.push(Order::Start { loop_index: entry.loop_index, lane, work });
            self.ring_peer(incarnation);
        }
    }

    /// The ready lane with the least to do, and how much that is.
    fn best_lane(&self, incarnation: Incarnation) -> Option<(LaneId, usize)> {
        let peer = self.peers.get(&incarnation)?;
        let ready = peer.lanes.iter().filter_map(|id| self.lanes.get(id).map(|lane| (*id, lane)));
        ready
            .filter(|(_, lane)| lane.ready && lane.in_flight < lane.credit)
            .min_by_key(|(_, lane)| (lane.bytes, lane.in_flight))
            .map(|(id, lane)| (id, lane.in_flight))
    }

    /// Orders one more lane, unless there are enough, one is on its way, or the peer rests.
    fn open_lane(&mut self, incarnation: Incarnation, now: Instant, orders: &mut Vec<Order>) {
        let Some(peer) = self.peers.get_mut(&incarnation) else { return };
        let connecting = peer.lanes.iter().any(|id| self.lanes.get(id).is_some_and(|lane| !lane.ready));
        if connecting || peer.lanes.len() >= self.limits.lanes_per_peer || peer.retry_at > now {
            return;
        }
        let Some(address) = peer.pick_address(now) else { return };
        let (lane, loop_index) = (LaneId(self.next_lane), self.next_loop);
        self.next_lane += 1;
        self.next_loop = (self.next_loop + 1) % self.limits.loops;
        peer.lanes.push(lane);
        let entry = Lane { peer: incarnation, loop_index, address, ready: false, in_flight: 0, bytes: 0, credit: 1 };
        self.lanes.insert(lane, entry);
        orders.push(Order::Connect { loop_index, lane, peer: Arc::clone(&peer.segment), address });
    }

    fn leave_lane(&mut self, lane: LaneId, bytes: u64) {
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.in_flight -= 1;
            entry.bytes -= bytes;
            self.active -= 1;
        }
    }

    fn lanes_of<'a>(&'a self, peer: &'a Peer) -> impl Iterator<Item = &'a Lane> {
        peer.lanes.iter().filter_map(|id| self.lanes.get(id))
    }
}

/// Work that is over, for the books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) peer: Incarnation,
    pub(crate) epoch: u64,
    /// What its lane counted for it.
    pub(crate) bytes: u64,
    pub(crate) moved: Moved,
}

/// What finished work brought.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moved {
    Nothing,
    Read(u64),
    Written(u64),
    Answered,
}

impl Moved {
    fn count(self, stats: &mut PeerStats) {
        match self {
            Moved::Nothing => stats.failed += 1,
            Moved::Read(bytes) => (stats.completed, stats.bytes_read) = (stats.completed + 1, stats.bytes_read + bytes),
            Moved::Written(bytes) => {
                (stats.completed, stats.bytes_written) = (stats.completed + 1, stats.bytes_written + bytes);
            }
            Moved::Answered => {}
        }
    }
}

/// A lane that is gone.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) lane: LaneId,
    pub(crate) why: Why,
    pub(crate) again: Vec<Work>,
    /// The epochs of work that failed with it.
    pub(crate) failed: Vec<u64>,
}

/// Why a lane is gone.
#[derive(Debug)]
pub(crate) enum Why {
    Idle,
    /// It broke, or never stood.
    Peer(Cause),
    /// Somebody else answers at the peer's addresses.
    Gone(Cause),
}

impl Peer {
    fn new(segment: &Arc<Segment>, limits: &Limits, rng: &mut Rng) -> Self {
        Self {
            segment: Arc::clone(segment),
            urgent: VecDeque::new(),
            normal: VecDeque::new(),
            queued_bytes: 0,
            held_back: false,
            in_ring: false,
            lanes: Vec::new(),
            rests: BTreeMap::new(),
            next_address: 0,
            backoff: Backoff::new(limits.retry.0, limits.retry.1, rng.split()),
            retry_at: Instant::ZERO,
            last_error: None,
            stats: PeerStats::default(),
            epochs: VecDeque::from([Epoch::default()]),
            first_epoch: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.lanes.is_empty() && self.queued() == 0 && self.epochs.iter().all(|epoch| epoch.unfinished == 0)
    }

    fn queued(&self) -> usize {
        self.urgent.len() + self.normal.len()
    }

    fn push_back(&mut self, work: Work) {
        self.queued_bytes += work.bytes();
        self.line(&work).push_back(work);
    }

    fn push_front(&mut self, work: Work) {
        self.queued_bytes += work.bytes();
        self.line(&work).push_front(work);
    }

    fn line(&mut self, work: &Work) -> &mut VecDeque<Work> {
        if work.is_urgent() { &mut self.urgent } else { &mut self.normal }
    }

    fn pop(&mut self) -> Option<Work> {
        let work = self.urgent.pop_front().or_else(|| self.normal.pop_front())?;
        self.queued_bytes -= work.bytes();
        Some(work)
    }

    /// Tells those who were held back, if there is room for many.
    fn let_in(&mut self, limits: &Limits, orders: &mut Vec<Order>) {
        let bytes_low = limits.queue_bytes - limits.queue_bytes / 4;
        let entries_low = limits.queue_entries - limits.queue_entries / 4;
        if self.held_back && self.queued_bytes < bytes_low && self.queued() < entries_low {
            self.held_back = false;
            orders.push(Order::Room);
        }
    }

    fn take_all(&mut self) -> Vec<Work> {
        self.queued_bytes = 0;
        self.urgent.drain(..).chain(self.normal.drain(..)).collect()
    }

    fn next_due(&self) -> Instant {
        let deadline = self.urgent.iter().chain(&self.normal).map(Work::deadline).min().unwrap_or(Instant::NEVER);
        // With a lane on its way, or standing, nothing is to be done before a deadline.
        if self.lanes.is_empty() { deadline.min(self.retry_at) } else { deadline }
    }

    /// The addresses in turn, without those that rest.
    fn pick_address(&mut self, now: Instant) -> Option<SocketAddr> {
        let count = self.segment.addresses.len();
        let turn = (0..count).map(|step| (self.next_address + step) % count);
        let fit = |index: &usize| self.rests.get(&self.segment.addresses[*index]).is_none_or(|until| *until <= now);
        let index = turn.into_iter().find(fit)?;
        self.next_address = index + 1;
        Some(self.segment.addresses[index])
    }

    fn enter(&mut self) -> u64 {
        let last = self.epochs.len() - 1;
        self.epochs[last].unfinished += 1;
        self.first_epoch + last as u64
    }

    fn leave(&mut self, epoch: u64, orders: &mut Vec<Order>) {
        let index = (epoch - self.first_epoch) as usize;
        self.epochs[index].unfinished -= 1;
        self.pass_fences(orders);
    }

    fn fence(&mut self, part: Part, orders: &mut Vec<Order>) {
        if let Some(last) = self.epochs.back_mut() {
            last.fence = Some(part);
        }
        self.epochs.push_back(Epoch::default());
        self.pass_fences(orders);
    }

    fn pass_fences(&mut self, orders: &mut Vec<Order>) {
        while let Some(first) = self.epochs.front_mut() {
            if first.unfinished > 0 || first.fence.is_none() {
                return;
            }
            orders.extend(first.fence.take().map(Order::Fenced));
            self.epochs.pop_front();
            self.first_epoch += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::data::{CapabilityKey, Grant, Op, Rights};

    use super::*;
    use crate::batch::Batch;
    use crate::job::{Buffers, Job, Priority, Remote};
    use crate::tcp::work::Kind;

    const NOW: Instant = Instant::from_nanos(1_000_000);

    /// A hub with its orders, and what each piece of work is called.
    struct World {
        hub: Hub,
        started: VecDeque<(LaneId, Work)>,
        connects: Vec<LaneId>,
        failed: usize,
        fenced: usize,
        rooms: usize,
        batches: Vec<Batch>,
    }

    fn peer(number: u64) -> Arc<Segment> {
        let addresses = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        Arc::new(Segment {
            name: number.to_string(),
            incarnation: Incarnation(number),
            addresses,
            public_key: None,
            host: None,
        })
    }

    impl World {
        fn new(max_transfers: usize, lanes_per_peer: usize) -> Self {
            let config = TcpConfig { io_threads: 2, max_transfers, lanes_per_peer, ..TcpConfig::default() };
            Self {
                hub: Hub::new(Limits::of(&config), 7),
                started: VecDeque::new(),
                connects: Vec::new(),
                failed: 0,
                fenced: 0,
                rooms: 0,
                batches: Vec::new(),
            }
        }

        fn work(&mut self, peer: u64, deadline: Instant) -> Work {
            let (batch, mut parts) = Batch::new(1, None, |_| {});
            self.batches.push(batch);
            let grant = Grant {
                incarnation: Incarnation(peer),
                region: 0,
                generation: 1,
                offset: 0,
                bytes: 1,
                rights: Rights::BOTH,
                tenant: 0,
                holder: Incarnation(0),
                expires_nanos: u64::MAX,
                nonce: 0,
            };
            let remote = Remote { offset: 0, capability: CapabilityKey::new(&[0; 32]).mint(&grant), key: None };
            let part = parts.pop().unwrap();
            let job =
                Job { op: Op::Read, buffers: Buffers::default(), remote, deadline, priority: Priority::Normal, part };
            Work::new(Incarnation(peer), Kind::Job(job))
        }

        fn submit(&mut self, number: u64, count: usize) {
            let works = (0..count).map(|_| self.work(number, Instant::NEVER)).collect();
            self.ask(|hub, orders| hub.submit(&peer(number), works, NOW, orders));
        }

        fn ask(&mut self, question: impl FnOnce(&mut Hub, &mut Vec<Order>)) {
            let mut orders = Vec::new();
            question(&mut self.hub, &mut orders);
            for order in orders {
                match order {
                    Order::Connect { lane, .. } => self.connects.push(lane),
                    Order::Start { lane, work, .. } => self.started.push_back((lane, work)),
                    Order::Fail { work, cause } => {
                        self.failed += 1;
                        work.end(Err(cause));
                    }
                    Order::Fenced(part) => {
                        self.fenced += 1;
                        part.complete(0);
                    }
                    Order::Room => self.rooms += 1,
                    Order::Wake(_) => {}
                }
            }
            assert!(self.hub.active() <= self.hub.limits.max_transfers);
        }

        fn all_connect(&mut self) {
            while let Some(lane) = self.connects.pop() {
                self.ask(|hub, orders| hub.lane_ready(lane, 1000, NOW, orders));
            }
        }

        /// Ends the oldest transfer; whose it was.
        fn finish(&mut self) -> u64 {
            let (lane, work) = self.started.pop_front().unwrap();
            let done =
                Finished { peer: work.peer, epoch: work.epoch, bytes: work.bytes(), moved: Moved::Read(work.bytes()) };
            self.ask(|hub, orders| hub.finished(lane, &done, NOW, orders));
            work.end(Ok(0));
            done.peer.0
        }
    }

    #[test]
    fn the_limit_holds_and_slots_pass_on_in_order() {
        let mut world = World::new(3, 2);
        world.submit(1, 10);
        assert_eq!((world.hub.active(), world.hub.pending(), world.connects.len()), (0, 10, 1));
        world.all_connect();
        assert_eq!((world.hub.active(), world.hub.pending()), (3, 7));
        for finished in 0..10 {
            let oldest = world.started.front().map(|(_, work)| work.batch());
            assert_eq!(oldest, Some(world.batches[finished].id()));
            world.finish();
        }
        assert_eq!((world.hub.active(), world.hub.pending(), world.started.len()), (0, 0, 0));
        assert!(world.batches.iter().all(Batch::is_done));
    }

    #[test]
    fn a_busy_peer_does_not_hold_the_slots_of_another() {
        let mut world = World::new(2, 1);
        world.submit(1, 50);
        world.submit(2, 3);
        world.all_connect();
        let order: Vec<u64> = (0..8).map(|_| world.finish()).collect();
        assert_eq!(order.iter().filter(|peer| **peer == 2).count(), 3, "{order:?}");
    }

    /// Each piece of work that left a full queue woke everybody who waited for room: with 64 threads the wakes cost a
    /// third of the throughput.
    #[test]
    fn those_who_wait_for_room_are_told_once_for_a_quarter_of_the_queue() {
        let mut world = World::new(1, 1);
        world.hub.limits.queue_entries = 8;
        world.submit(1, 7);
        assert_eq!(world.hub.full(&peer(1)), None);
        world.submit(1, 1);
        assert_eq!(world.hub.full(&peer(1)), Some(0));
        world.all_connect();
        let told: Vec<(usize, bool)> = (0..3)
            .map(|_| {
                world.finish();
                (world.rooms, world.hub.full(&peer(1)).is_some())
            })
            .collect();
        assert_eq!(told, [(0, true), (1, false), (1, false)]);
    }

    #[test]
    fn a_broken_lane_gives_its_work_back_to_the_front() {
        let mut world = World::new(4, 1);
        world.submit(1, 4);
        world.all_connect();
        let lane = world.started[0].0;
        let again: Vec<Work> = world.started.drain(..).map(|(_, work)| work).collect();
        let first = again[0].batch();
        let why = Why::Peer(Cause::Lost("cut".to_owned()));
        world.ask(|hub, orders| hub.lane_lost(Lost { lane, why, again, failed: Vec::new() }, NOW, orders));
        assert_eq!((world.hub.active(), world.hub.pending()), (0, 4));
        world.all_connect();
        assert_eq!(world.started[0].1.batch(), first);
        assert_eq!(world.hub.counters().retries, 4);
        assert_eq!((0..4).map(|_| world.finish()).sum::<u64>(), 4);
    }

    #[test]
    fn a_dead_address_rests_while_the_other_is_tried_and_then_all_do() {
        let mut world = World::new(4, 1);
        world.submit(1, 1);
        for attempt in 0..2 {
            let lane = world.connects.pop().unwrap_or_else(|| panic!("no attempt {attempt}"));
            let why = Why::Peer(Cause::Unreachable("refused".to_owned()));
            let lost = Lost { lane, why, again: Vec::new(), failed: Vec::new() };
            world.ask(|hub, orders| hub.lane_lost(lost, NOW, orders));
        }
        assert!(world.connects.is_empty(), "all addresses failed, so there is a pause");
        world.ask(|hub, orders| hub.tick(NOW + Duration::from_secs(2), orders));
        assert_eq!(world.connects.len(), 1);
        assert_eq!(world.hub.counters().connect_failed, 2);
    }

    #[test]
    fn late_and_cancelled_work_leaves_the_queue_and_fences_wait_for_all_before_them() {
        let mut world = World::new(1, 1);
        world.submit(1, 2);
        let (batch, mut parts) = Batch::new(1, None, |_| {});
        let fence = parts.pop().unwrap();
        world.ask(|hub, orders| hub.fence(&peer(1), fence, orders));
        let late = world.work(1, NOW);
        world.ask(|hub, orders| hub.submit(&peer(1), vec![late], NOW - Duration::from_nanos(1), orders));
        world.ask(|hub, orders| hub.tick(NOW, orders));
        assert_eq!((world.failed, world.fenced), (1, 0));
        let cancelled = world.batches[0].id();
        world.ask(|hub, orders| hub.cancel(cancelled, orders));
        assert_eq!((world.failed, world.fenced), (2, 0));
        world.all_connect();
        world.finish();
        assert!(batch.is_done());
        assert_eq!(world.fenced, 1);
    }
}
