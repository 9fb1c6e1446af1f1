//! The table of lanes: which are ready, what each carries, and what follows when one is closed.

use std::net::IpAddr;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::Credit;
use slackwater_wire::Incarnation;

use super::pace::Pace;
use super::peer::PeerQueue;
use super::routes::Route;
use super::{Action, Finished, Moved, Scheduler};
use crate::task::Task;

/// Names one connection to a peer, from the action that opens it until it is closed; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(pub(crate) u64);

#[derive(Debug)]
pub(super) struct Lane {
    peer: Incarnation,
    pub(super) loop_index: usize,
    route: Route,
    ready: bool,
    /// The peer has answered a request on it.
    answered: bool,
    pub(super) in_flight: usize,
    pub(super) bytes: u64,
    credit: Credit,
    pace: Pace,
}

/// The lane for the next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BestLane {
    pub(super) lane: LaneId,
    pub(super) in_flight: usize,
    /// It leaves from an address that is near the memory of the task, or none is nearer than others.
    pub(super) is_near: bool,
}

/// What a peer's next task lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A lane: all are busy.
    Lane,
    /// A lane that is near its memory: an idle one is not.
    NearLane,
}

/// What bytes on a lane count that is not near the memory of the next task: TENT (Mooncake's newer transfer engine) multiplies
/// the time that it predicts by 5 for its second tier.
const FAR_PENALTY: u64 = 5;

/// A lane that was closed.
#[derive(Debug)]
pub(crate) struct LostLane {
    pub(crate) lane: LaneId,
    pub(crate) why: LaneEnd,
    /// Tasks of the lane that can be started again.
    pub(crate) again: Vec<Task>,
    /// The fence epochs of the tasks that failed with it.
    pub(crate) failed: Vec<u64>,
}

/// Why a lane was closed.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    Idle,
    /// It broke, or never became ready.
    Peer(Cause),
    /// Another process answers at the peer's addresses.
    Gone(Cause),
}

impl Scheduler {
    /// The number of lanes of each loop.
    pub(crate) fn lanes_by_loop(&self) -> Vec<usize> {
        let mut lanes = vec![0; self.limits.loops];
        self.lanes
            .values()
            .for_each(|lane| lanes[lane.loop_index] += 1);
        lanes
    }

    /// A lane is ready.
    pub(crate) fn lane_ready(
        &mut self,
        lane: LaneId,
        credit: Credit,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.counters.created += 1;
        let Some(entry) = self.lanes.get_mut(&lane) else {
            return;
        };
        (entry.ready, entry.credit) = (true, credit);
        let (incarnation, route) = (entry.peer, entry.route);
        if let Some(peer) = self.peers.get_mut(&incarnation) {
            peer.routes.stood(route);
            peer.last_error = None;
        }
        self.ring_peer(incarnation);
        self.serve(now, actions);
    }

    /// A lane was closed.
    pub(crate) fn lane_lost(&mut self, lost: LostLane, now: Instant, actions: &mut Vec<Action>) {
        let Some(lane) = self.lanes.remove(&lost.lane) else {
            return;
        };
        self.active -= lane.in_flight;
        let Some(peer) = self.peers.get_mut(&lane.peer) else {
            return;
        };
        peer.leave_lane(lost.lane);
        for epoch in lost.failed {
            peer.fences.leave(epoch, actions);
            peer.stats.failed += 1;
        }
        match lost.why {
            LaneEnd::Idle => self.counters.closed_idle += 1,
            LaneEnd::Peer(cause) => {
                let counter = if lane.ready {
                    &mut self.counters.closed_peer
                } else {
                    &mut self.counters.connect_failed
                };
                *counter += 1;
                // A peer that greets and then closes at the first request counts as one that cannot be reached.
                if !lane.ready || lane.in_flight > 0 && !lane.answered {
                    peer.routes
                        .failed(lane.route, now, self.limits.address_rest);
                }
                peer.last_error = Some(cause);
            }
            LaneEnd::Gone(cause) => {
                peer.fail_queued(|_| Some(cause.clone()), actions);
                peer.let_in(&self.limits, actions);
                lost.again
                    .into_iter()
                    .for_each(|task| peer.fail(task, cause.clone(), actions));
                return self.serve(now, actions);
            }
        }
        let again = self.take_back(lost.again, actions);
        self.counters.retries += again;
        if let Some(peer) = self.peers.get_mut(&lane.peer) {
            peer.stats.retries += again;
        }
        self.ring_peer(lane.peer);
        self.serve(now, actions);
        self.wake_when_due(actions);
    }

    /// The ready lane that ends the next queued task first, of those that have credit for it. That is the one with the fewest
    /// bytes under way, those of slow lanes counted as often as they are slower, and those of lanes that are not near the memory
    /// of the task as often as the penalty says.
    pub(super) fn best_lane(&self, incarnation: Incarnation, now: Instant) -> Option<BestLane> {
        let peer = self.peers.get(&incarnation)?;
        let (next_bytes, near) = (peer.front()?.bytes(), self.near(peer));
        let fastest = self.fastest(peer);
        self.lanes_of(peer)
            .filter(|(_, lane)| lane.takes(next_bytes))
            .min_by_key(|(_, lane)| {
                let bytes = lane.bytes_ahead(next_bytes, fastest, now);
                let penalty = if lane.route.is_near(near) {
                    1
                } else {
                    FAR_PENALTY
                };
                (bytes * penalty, lane.in_flight)
            })
            .map(|(id, lane)| BestLane {
                lane: id,
                in_flight: lane.in_flight,
                is_near: lane.route.is_near(near),
            })
    }

    /// Lanes that are at least twice as slow as another one of their peer.
    pub(crate) fn slow_lanes(&self, now: Instant) -> usize {
        let slow = |peer: &PeerQueue| {
            let fastest = self.fastest(peer);
            self.lanes_of(peer)
                .filter(|(_, lane)| lane.pace.times_slower(fastest, false, now) > 1)
                .count()
        };
        self.peers.values().map(slow).sum()
    }

    /// The least time for a MiB on a lane of a peer.
    fn fastest(&self, peer: &PeerQueue) -> Option<u64> {
        self.lanes_of(peer)
            .filter_map(|(_, lane)| lane.pace.nanos_per_mib())
            .min()
    }

    /// The addresses near the memory of the next queued task; none where none is preferred.
    fn near(&self, peer: &PeerQueue) -> &[IpAddr] {
        if self.limits.nearness.is_indifferent() {
            return &[];
        }
        let location = peer.front().and_then(Task::location);
        location.map_or(&[], |location| self.limits.nearness.near(location))
    }

    /// Opens one more lane for the next queued task, unless there are enough, one is being opened, or the peer rests.
    ///
    /// Lanes near the task's memory are counted by themselves: those of other memory do not take their place. When those are
    /// enough and a far lane would serve the task earlier than each of them, a far one is opened.
    pub(super) fn open_lane(
        &mut self,
        incarnation: Incarnation,
        need: Need,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get(&incarnation) else {
            return;
        };
        let near = self.near(peer);
        // The usual case of a busy peer asks for nothing else.
        if near.is_empty() && peer.lanes.len() >= self.limits.lanes_per_peer {
            return;
        }
        let connecting = self.lanes_of(peer).any(|(_, lane)| !lane.ready);
        if self.closed || connecting {
            return;
        }
        let Some(route) = self.route_to_open(peer, near, need, now) else {
            return;
        };
        let (lane, loops) = (LaneId(self.next_lane), self.limits.loops);
        let loop_index = self
            .limits
            .nearness
            .loop_of(route.from, self.next_loop, loops);
        self.next_lane += 1;
        self.next_loop = self.next_loop.wrapping_add(1);
        let Some(peer) = self.peers.get_mut(&incarnation) else {
            return;
        };
        peer.routes.take(route);
        peer.lanes.push(lane);
        let entry = Lane {
            peer: incarnation,
            loop_index,
            route,
            ready: false,
            answered: false,
            in_flight: 0,
            bytes: 0,
            credit: Credit {
                requests: 0,
                bytes: 0,
            },
            pace: Pace::default(),
        };
        self.lanes.insert(lane, entry);
        actions.push(Action::Connect {
            loop_index,
            lane,
            peer: Arc::clone(&peer.segment),
            route,
        });
    }

    /// The route of the next lane for the next queued task, if one more is of use.
    fn route_to_open(
        &self,
        peer: &PeerQueue,
        near: &[IpAddr],
        need: Need,
        now: Instant,
    ) -> Option<Route> {
        let most = self.limits.lanes_per_peer;
        let is_near = |(_, lane): &(LaneId, &Lane)| lane.route.is_near(near);
        let near_lanes = self.lanes_of(peer).filter(is_near).count();
        if near_lanes < most {
            let route = peer.routes.next(now, near)?;
            let is_wanted = route.is_near(near) || need == Need::Lane && peer.lanes.len() < most;
            return is_wanted.then_some(route);
        }
        let far_lanes = peer.lanes.len() - near_lanes;
        if need != Need::Lane || far_lanes >= most {
            return None;
        }
        let (next_bytes, fastest) = (peer.front()?.bytes(), self.fastest(peer));
        let is_late = |(_, lane): (LaneId, &Lane)| {
            lane.bytes_ahead(next_bytes, fastest, now) > FAR_PENALTY * next_bytes
        };
        let mut near_lanes = self.lanes_of(peer).filter(is_near);
        near_lanes
            .all(is_late)
            .then(|| peer.routes.next_far(now, near))?
    }

    /// A task has left its lane.
    pub(super) fn leave_lane(&mut self, lane: LaneId, done: &Finished, now: Instant) {
        if let Some(entry) = self.lanes.get_mut(&lane) {
            let moved = matches!(done.moved, Moved::Read(_) | Moved::Written(_));
            entry.pace.ended(done.bytes, moved, done.started, now);
            entry.in_flight -= 1;
            entry.bytes -= done.bytes;
            entry.answered |= done.moved != Moved::Nothing;
            self.active -= 1;
        }
    }

    pub(super) fn lanes_of<'a>(
        &'a self,
        peer: &'a PeerQueue,
    ) -> impl Iterator<Item = (LaneId, &'a Lane)> {
        peer.lanes
            .iter()
            .filter_map(|id| self.lanes.get(id).map(|lane| (*id, lane)))
    }
}

impl Lane {
    /// The bytes under way when the next task's are, counted as often as the lane is slower than the fastest one.
    fn bytes_ahead(&self, next_bytes: u64, fastest: Option<u64>, now: Instant) -> u64 {
        let times_slower = self.pace.times_slower(fastest, self.in_flight == 0, now);
        (self.bytes + next_bytes) * times_slower
    }

    fn takes(&self, bytes: u64) -> bool {
        self.ready
            && self.in_flight < self.credit.requests
            && self.bytes + bytes <= self.credit.bytes
    }
}
