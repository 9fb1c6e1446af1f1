//! Decides which task goes next, and on which lane: the queues of all peers, the limit on transfers under way, and the
//! table of lanes.
//!
//! Pure: it takes events and the time, and returns actions, which the loops perform.

mod fences;
mod lanes;
#[cfg(test)]
mod near;
mod pace;
mod peer;
mod routes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod weights;
#[cfg(test)]
pub(crate) use tests::{peer, read};

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_data_plane::{Cause, Deadline};
use slackwater_engine::{BatchId, Part, PeerStats};
use slackwater_wire::Incarnation;
use slackwater_wire::data::Segment;

pub(crate) use lanes::{LaneEnd, LaneId, LostLane};
pub(crate) use routes::Route;

use super::config::TcpConfig;
use super::nearness::Nearness;
use super::task::Task;
use lanes::{BestLane, Lane, Need};
use peer::PeerQueue;

/// The scheduler of one TCP mover.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    active: usize,
    peers: BTreeMap<Incarnation, PeerQueue>,
    /// Peers with queued tasks that a lane could take, each once.
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
    pub(crate) nearness: Arc<Nearness>,
}

/// The most peers that are remembered without anything under way.
const PEERS_KEPT: usize = 4096;

/// Counters of a mover's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Lanes that became ready.
    pub created: u64,
    /// Failed attempts to connect.
    pub connect_failed: u64,
    /// Tasks that were started again on another lane.
    pub retries: u64,
    /// Lanes that were closed because they were idle.
    pub closed_idle: u64,
    /// Lanes that the peer or the network closed.
    pub closed_peer: u64,
}

/// What the mover has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Open a lane.
    Connect {
        loop_index: usize,
        lane: LaneId,
        peer: Arc<Segment>,
        route: Route,
    },
    /// Start a task on a lane.
    Start {
        loop_index: usize,
        lane: LaneId,
        task: Task,
    },
    /// End a task that was not started.
    Fail { task: Task, cause: Cause },
    /// Complete a fence.
    Fenced(Part),
    /// Wake the submitters: a full queue has room again.
    Room,
    /// End a fence as cancelled.
    GiveUp(Part),
    /// Call `tick` at this time.
    Wake(Instant),
}

/// A task that has ended, for the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) peer: Incarnation,
    pub(crate) epoch: u64,
    /// The bytes that its lane counted for it.
    pub(crate) bytes: u64,
    /// When it was given to its lane.
    pub(crate) started: Instant,
    pub(crate) moved: Moved,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It was given up before the peer answered.
    Nothing,
    /// The peer refused it.
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
            nearness: Arc::default(),
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

impl Scheduler {
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

    /// Queued transfers.
    pub(crate) fn pending(&self) -> usize {
        self.peers.values().map(PeerQueue::queued).sum()
    }

    /// How long the oldest queued transfer has waited.
    pub(crate) fn oldest_pending(&self, now: Instant) -> Duration {
        self.peers
            .values()
            .filter_map(PeerQueue::oldest)
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

    /// The bytes queued for a peer when its queue is full; none when it has room. A full queue takes nothing until a
    /// quarter of it is free: the waiting submitters are woken together then, not all of them for each task that
    /// leaves.
    pub(crate) fn full(&mut self, segment: &Segment) -> Option<u64> {
        let peer = self.peers.get_mut(&segment.incarnation)?;
        peer.hold_back(&self.limits).then_some(peer.queued_bytes())
    }

    /// Queues tasks, in order.
    pub(crate) fn submit(
        &mut self,
        segment: &Arc<Segment>,
        tasks: Vec<Task>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if self.closed {
            actions.extend(tasks.into_iter().map(|task| Action::Fail {
                task,
                cause: Cause::Closed,
            }));
            return;
        }
        let peer = self.peer(segment);
        let mut first_deadline = Instant::NEVER;
        for mut task in tasks {
            first_deadline = first_deadline.min(task.deadline());
            task.epoch = peer.fences.enter();
            // A region closes, and a batch is marked as cancelled, before the queues are searched: whichever of the two
            // comes first, the task is found.
            match task.given_up() {
                Some(cause) => peer.fail(task, cause, actions),
                None => peer.push_back(task),
            }
        }
        self.ring_peer(segment.incarnation);
        self.serve(now, actions);
        if self
            .peers
            .get(&segment.incarnation)
            .is_some_and(|peer| peer.queued() > 0)
        {
            actions.push(Action::Wake(first_deadline));
        }
    }

    /// Completes `part` when every task submitted before has ended.
    pub(crate) fn fence(&mut self, segment: &Arc<Segment>, part: Part, actions: &mut Vec<Action>) {
        match self.peers.get_mut(&segment.incarnation) {
            Some(peer) => peer.fences.fence(part, actions),
            None => actions.push(Action::Fenced(part)),
        }
    }

    /// A task has ended: its slot passes to the next one.
    pub(crate) fn finished(
        &mut self,
        lane: LaneId,
        done: &Finished,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.leave_lane(lane, done, now);
        if let Some(peer) = self.peers.get_mut(&done.peer) {
            done.moved.count(&mut peer.stats);
            if done.moved != Moved::Nothing {
                peer.routes.answered();
            }
            peer.fences.leave(done.epoch, actions);
        }
        self.ring_peer(done.peer);
        self.serve(now, actions);
    }

    /// Counts a transfer that its caller drove itself.
    pub(crate) fn count_direct(&mut self, segment: &Arc<Segment>, moved: Moved) {
        moved.count(&mut self.peer(segment).stats);
    }

    /// Queues tasks again whose lane was closed before they arrived there.
    pub(crate) fn put_back(&mut self, tasks: Vec<Task>, now: Instant, actions: &mut Vec<Action>) {
        self.take_back(tasks, actions);
        self.serve(now, actions);
        self.wake_when_due(actions);
    }

    /// Cancels the queued tasks of a batch, and its fences.
    pub(crate) fn cancel(&mut self, batch: BatchId, actions: &mut Vec<Action>) {
        for peer in self.peers.values_mut() {
            peer.fail_queued(
                |task| (task.batch() == batch).then_some(Cause::Cancelled),
                actions,
            );
            peer.let_in(&self.limits, actions);
            peer.fences.cancel(batch, actions);
        }
    }

    /// Ends queued tasks whose local region is closing.
    pub(crate) fn release(&mut self, actions: &mut Vec<Action>) {
        for peer in self.peers.values_mut() {
            peer.fail_queued(Task::closing, actions);
            peer.let_in(&self.limits, actions);
        }
    }

    /// Ends queued tasks whose deadline has passed, and tries peers again whose pause is over.
    pub(crate) fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for (incarnation, peer) in &mut self.peers {
            let late = peer
                .last_error
                .clone()
                .unwrap_or(Cause::TimedOut(Deadline::Total));
            peer.fail_queued(
                |task| (task.deadline() <= now).then(|| late.clone()),
                actions,
            );
            peer.let_in(&self.limits, actions);
            if peer.queued() > 0 && !peer.in_ring {
                peer.in_ring = true;
                self.ring.push_back(*incarnation);
            }
        }
        self.serve(now, actions);
        self.wake_when_due(actions);
    }

    /// Takes no more tasks, and ends the queued ones.
    pub(crate) fn close(&mut self, actions: &mut Vec<Action>) {
        self.closed = true;
        for peer in self.peers.values_mut() {
            peer.fail_queued(|_| Some(Cause::Closed), actions);
            peer.let_in(&self.limits, actions);
        }
    }

    /// The queue of a peer, made if there is none. When there are too many, those of idle peers go first.
    fn peer(&mut self, segment: &Arc<Segment>) -> &mut PeerQueue {
        if self.peers.len() >= PEERS_KEPT && !self.peers.contains_key(&segment.incarnation) {
            self.peers.retain(|_, peer| !peer.is_idle());
        }
        let (limits, rng) = (&self.limits, &mut self.rng);
        let peer = self
            .peers
            .entry(segment.incarnation)
            .or_insert_with(|| PeerQueue::new(segment, limits, rng));
        if !Arc::ptr_eq(&peer.segment, segment) && peer.segment != *segment {
            peer.moved(segment, limits, rng);
        }
        peer
    }

    /// Puts tasks back at the front of their queues, unless they were given up; returns how many.
    fn take_back(&mut self, tasks: Vec<Task>, actions: &mut Vec<Action>) -> u64 {
        let mut taken = 0;
        for task in tasks.into_iter().rev() {
            let incarnation = task.peer;
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
            let over = match self.closed {
                true => Some(Cause::Closed),
                false => task.given_up(),
            };
            match over {
                Some(cause) => peer.fail(task, cause, actions),
                None => {
                    peer.push_front(task);
                    taken += 1;
                    self.ring_peer(incarnation);
                }
            }
        }
        taken
    }

    fn wake_when_due(&self, actions: &mut Vec<Action>) {
        let waiting = self.peers.values().filter(|peer| peer.queued() > 0);
        actions.extend(waiting.map(PeerQueue::next_due).min().map(Action::Wake));
    }

    /// Puts a peer in the ring if it has queued tasks.
    fn ring_peer(&mut self, incarnation: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&incarnation)
            && !peer.in_ring
            && peer.queued() > 0
        {
            peer.in_ring = true;
            self.ring.push_back(incarnation);
        }
    }

    /// Gives free slots to the peers in turn, one task each.
    fn serve(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut over_share = Vec::new();
        while self.active < self.limits.max_transfers {
            let Some(incarnation) = self.ring.pop_front() else {
                break;
            };
            if !self.has_share(incarnation) {
                over_share.push(incarnation);
                continue;
            }
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
            peer.in_ring = false;
            if peer.queued() == 0 {
                continue;
            }
            let best = self.best_lane(incarnation, now);
            let need = match &best {
                Some(best) if best.in_flight == 0 && best.is_near => None,
                Some(best) if best.in_flight == 0 => Some(Need::NearLane),
                _ => Some(Need::Lane),
            };
            if let Some(need) = need {
                self.open_lane(incarnation, need, now, actions);
            }
            let Some(BestLane { lane, .. }) = best else {
                continue;
            };
            let Some(peer) = self.peers.get_mut(&incarnation) else {
                continue;
            };
            let Some(mut task) = peer.pop() else { continue };
            task.started = now;
            peer.let_in(&self.limits, actions);
            let Some(entry) = self.lanes.get_mut(&lane) else {
                continue;
            };
            entry.in_flight += 1;
            entry.bytes += task.bytes();
            self.active += 1;
            actions.push(Action::Start {
                loop_index: entry.loop_index,
                lane,
                task,
            });
            self.ring_peer(incarnation);
        }
        // They keep their turn for the next slot that becomes free.
        self.ring.extend(over_share);
    }

    /// Whether a peer may take one more slot: no more than are left free after it, so that a peer which never answers
    /// leaves half of them to the others, and two such peers a quarter (dynamic thresholds: Choudhury and Hahne, 1998).
    fn has_share(&self, incarnation: Incarnation) -> bool {
        let Some(peer) = self.peers.get(&incarnation) else {
            return true;
        };
        let taken: usize = self.lanes_of(peer).map(|(_, lane)| lane.in_flight).sum();
        taken == 0 || taken < self.limits.max_transfers - self.active
    }
}
