//! Who goes next, and on which lane: the queues of all peers, the limit on transfers under way, and the table of lanes.
//!
//! Pure: it takes what happened and the time, and gives orders. The loops carry them out.

mod fences;
mod lanes;
mod peer;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_wire::Incarnation;

pub(crate) use lanes::{Credit, LaneId, Lost, Why};
pub(crate) use routes::Route;

use super::config::TcpConfig;
use super::work::Work;
use crate::batch::{BatchId, Part};
use crate::cause::{Cause, Clock};
use crate::mover::PeerStats;
use crate::segment::Segment;
use lanes::Lane;
use peer::Peer;

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
    pub(crate) retry: Backoff,
    pub(crate) address_rest: Duration,
    pub(crate) local: Vec<IpAddr>,
}

/// Peers of which the books are kept although nothing is under way.
const PEERS_KEPT: usize = 4096;

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

/// What a loop shall do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Open a lane.
    Connect {
        loop_index: usize,
        lane: LaneId,
        peer: Arc<Segment>,
        route: Route,
    },
    /// Begin work on a lane.
    Start {
        loop_index: usize,
        lane: LaneId,
        work: Work,
    },
    /// End work that never began.
    Fail { work: Work, cause: Cause },
    /// A fence is reached.
    Fenced(Part),
    /// A queue that was full has room.
    Room,
    /// A fence that nobody waits for any more.
    GiveUp(Part),
    /// Come back at this time.
    Wake(Instant),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It was given up without a word of the peer.
    Nothing,
    /// The peer said no.
    Refused,
    Read(u64),
    Written(u64),
    Answered,
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
            local: config.local.clone(),
        }
    }
}

impl Moved {
    fn count(self, stats: &mut PeerStats) {
        match self {
            Moved::Nothing | Moved::Refused => stats.failed += 1,
            Moved::Read(bytes) => {
                (stats.completed, stats.bytes_read) =
                    (stats.completed + 1, stats.bytes_read + bytes)
            }
            Moved::Written(bytes) => {
                (stats.completed, stats.bytes_written) =
                    (stats.completed + 1, stats.bytes_written + bytes);
            }
            Moved::Answered => {}
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
        self.peers
            .values()
            .filter_map(Peer::oldest)
            .map(|since| now.since(since))
            .max()
            .unwrap_or_default()
    }

    pub(crate) fn counters(&self) -> LaneCounters {
        self.counters
    }

    pub(crate) fn stats(&self, peer: Incarnation) -> PeerStats {
        self.peers
            .get(&peer)
            .map_or_else(PeerStats::default, |peer| PeerStats {
                active: self
                    .lanes_of(peer)
                    .map(|(_, lane)| lane.in_flight as u64)
                    .sum(),
                pending: peer.queued() as u64,
                ..peer.stats
            })
    }

    /// Bytes in line for a peer when its queue takes no more; none when it does. Once full, it takes none until a quarter
    /// of it is free: those who wait are woken together then, not all of them for each piece that leaves.
    pub(crate) fn full(&mut self, segment: &Segment) -> Option<u64> {
        let peer = self.peers.get_mut(&segment.incarnation)?;
        peer.hold_back(&self.limits).then_some(peer.queued_bytes())
    }

    /// Takes work in, in order.
    pub(crate) fn submit(
        &mut self,
        segment: &Arc<Segment>,
        works: Vec<Work>,
        now: Instant,
        orders: &mut Vec<Order>,
    ) {
        if self.closed {
            orders.extend(works.into_iter().map(|work| Order::Fail {
                work,
                cause: Cause::Closed,
            }));
            return;
        }
        let peer = self.peer(segment);
        let mut first_deadline = Instant::NEVER;
        for mut work in works {
            first_deadline = first_deadline.min(work.deadline());
            work.epoch = peer.fences.enter();
            peer.push_back(work);
        }
        self.ring_peer(segment.incarnation);
        self.serve(now, orders);
        if self
            .peers
            .get(&segment.incarnation)
            .is_some_and(|peer| peer.queued() > 0)
        {
            orders.push(Order::Wake(first_deadline));
        }
    }

    /// Completes `part` when everything submitted before is over.
    pub(crate) fn fence(&mut self, segment: &Arc<Segment>, part: Part, orders: &mut Vec<Order>) {
        match self.peers.get_mut(&segment.incarnation) {
            Some(peer) => peer.fences.fence(part, orders),
            None => orders.push(Order::Fenced(part)),
        }
    }

    /// Work is over, however it ended: its slot passes to whoever is next.
    pub(crate) fn finished(
        &mut self,
        lane: LaneId,
        done: &Finished,
        now: Instant,
        orders: &mut Vec<Order>,
    ) {
        self.leave_lane(lane, done);
        if let Some(peer) = self.peers.get_mut(&done.peer) {
            done.moved.count(&mut peer.stats);
            if done.moved != Moved::Nothing {
                peer.routes.answered();
            }
            peer.fences.leave(done.epoch, orders);
        }
        self.ring_peer(done.peer);
        self.serve(now, orders);
    }

    /// A transfer that its caller drove itself is over.
    pub(crate) fn count_direct(&mut self, segment: &Arc<Segment>, moved: Moved) {
        moved.count(&mut self.peer(segment).stats);
    }

    /// Work whose lane was gone before the order to begin it arrived.
    pub(crate) fn put_back(&mut self, works: Vec<Work>, now: Instant, orders: &mut Vec<Order>) {
        self.take_back(works, orders);
        self.serve(now, orders);
        self.wake_when_due(orders);
    }

    /// Gives up a batch: what of it is in line, and its fences.
    pub(crate) fn cancel(&mut self, batch: BatchId, orders: &mut Vec<Order>) {
        for peer in self.peers.values_mut() {
            peer.fail_queued(
                |work| (work.batch() == batch).then_some(Cause::Cancelled),
                orders,
            );
            peer.let_in(&self.limits, orders);
            peer.fences.cancel(batch, orders);
        }
    }

    /// Time has passed: work whose deadline is over leaves the queues, and peers that rested are tried again.
    pub(crate) fn tick(&mut self, now: Instant, orders: &mut Vec<Order>) {
        for (incarnation, peer) in &mut self.peers {
            let late = peer
                .last_error
                .clone()
                .unwrap_or(Cause::TimedOut(Clock::Total));
            peer.fail_queued(
                |work| (work.deadline() <= now).then(|| late.clone()),
                orders,
            );
            peer.let_in(&self.limits, orders);
            if peer.queued() > 0 && !peer.in_ring {
                peer.in_ring = true;
                self.ring.push_back(*incarnation);
            }
        }
        self.serve(now, orders);
        self.wake_when_due(orders);
    }

    /// Takes no more work, and ends what waits.
    pub(crate) fn close(&mut self, orders: &mut Vec<Order>) {
        self.closed = true;
        for peer in self.peers.values_mut() {
            peer.fail_queued(|_| Some(Cause::Closed), orders);
            peer.let_in(&self.limits, orders);
        }
    }

    /// The books of a peer, opened if there are none. Those of many peers that are long gone make room first.
    fn peer(&mut self, segment: &Arc<Segment>) -> &mut Peer {
        if self.peers.len() >= PEERS_KEPT && !self.peers.contains_key(&segment.incarnation) {
            self.peers.retain(|_, peer| !peer.is_idle());
        }
        let (limits, rng) = (&self.limits, &mut self.rng);
        let peer = self
            .peers
            .entry(segment.incarnation)
            .or_insert_with(|| Peer::new(segment, limits, rng));
        if !Arc::ptr_eq(&peer.segment, segment) && peer.segment != *segment {
            peer.moved(segment, limits, rng);
        }
        peer
    }

    /// Puts work that has left the line back in front of it, unless nobody wants it any more; says how much of it.
    fn take_back(&mut self, works: Vec<Work>, orders: &mut Vec<Order>) -> u64 {
        let mut taken = 0;
        for work in works.into_iter().rev() {
            let incarnation = work.peer;
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
            // A cancellation marks the batch before it looks for its work in line: whichever came first, one of the two
            // finds it.
            let over = if self.closed {
                Some(Cause::Closed)
            } else {
                work.part().is_cancelled().then_some(Cause::Cancelled)
            };
            match over {
                Some(cause) => peer.fail(work, cause, orders),
                None => {
                    peer.push_front(work);
                    taken += 1;
                    self.ring_peer(incarnation);
                }
            }
        }
        taken
    }

    fn wake_when_due(&self, orders: &mut Vec<Order>) {
        let waiting = self.peers.values().filter(|peer| peer.queued() > 0);
        orders.extend(waiting.map(Peer::next_due).min().map(Order::Wake));
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
            let Some(incarnation) = self.ring.pop_front() else {
                return;
            };
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
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
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
            let Some(work) = peer.pop() else { continue };
            peer.let_in(&self.limits, orders);
            let Some(entry) = self.lanes.get_mut(&lane) else {
                continue;
            };
            entry.in_flight += 1;
            entry.bytes += work.bytes();
            self.active += 1;
            self.counters.reused += 1;
            orders.push(Order::Start {
                loop_index: entry.loop_index,
                lane,
                work,
            });
            self.ring_peer(incarnation);
        }
    }
}
