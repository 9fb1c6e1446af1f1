//! What all loops of one TCP mover share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use slackwater_base::Instant;
use slackwater_data_plane::protocol::{CloseReason, SLICE_BYTES_MAX};
use slackwater_data_plane::seal::{Channel, InitiatorHandshake, SealError};
use slackwater_data_plane::{Cause, Deadline};
use slackwater_engine::{Home, entropy};
use slackwater_net::{Loop, WeakLoop};
use slackwater_wait::{Event, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, HANDSHAKE_BYTES, Segment, VERSION};
use slackwater_zmtp::PublicKey;

use super::config::TcpConfig;
use super::direct::Direct;
use super::loop_state::{Command, LoopState};
use super::nearness::Nearness;
use super::scheduler::{Action, LaneId, Scheduler};
use super::task::{Task, end};

pub(crate) struct TcpContext {
    pub(crate) home: Arc<Home>,
    pub(crate) config: TcpConfig,
    pub(crate) scheduler: Mutex<Scheduler>,
    pub(crate) direct: Direct,
    /// Notified when a queue has room again, or a lane was closed.
    pub(crate) room: Event,
    pub(crate) refused: RefusalCounters,
    pub(crate) rotation: LoopRotation,
    pub(crate) nearness: Arc<Nearness>,
    /// The number of connections from each peer, as far as peers can be told apart.
    connections: Arc<Mutex<BTreeMap<Incarnation, usize>>>,
    /// Weak, because the loops keep this context.
    pub(crate) loops: OnceLock<Vec<WeakLoop<LoopState>>>,
    /// When the scheduler's deadlines are checked next.
    armed: Mutex<Instant>,
}

/// Counters of the connections of peers that were ended here.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounters {
    /// Initiators that offered no key of the allow-list.
    peers: AtomicU64,
    /// Records that did not open.
    records: AtomicU64,
    /// Connections that were closed because their peer went over a limit.
    limits: AtomicU64,
    /// Connections whose peer sent or read nothing for too long, with requests under way.
    stalled: AtomicU64,
    /// Connections without requests for too long.
    idle: AtomicU64,
}

impl RefusalCounters {
    pub(crate) fn count_peer(&self) {
        self.peers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts why a connection was ended that a peer had made, or that a forged record came on.
    pub(crate) fn count(&self, reason: &CloseReason) {
        let (counter, why) = match reason {
            CloseReason::Limit(why) => (&self.limits, *why),
            CloseReason::KeyRevoked => (&self.peers, "its key was removed from the allow-list"),
            CloseReason::Lost(Cause::TimedOut(Deadline::Progress)) => {
                (&self.stalled, "it sent or read nothing for too long")
            }
            CloseReason::Idle => (&self.idle, "it asked for nothing for too long"),
            CloseReason::Forged => (&self.records, "a record did not open"),
            CloseReason::Lost(_) | CloseReason::Gone(_) => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(why, "the connection of a peer is ended");
    }

    /// By name, for metrics.
    pub(crate) fn all(&self) -> [(&'static str, u64); 5] {
        [
            ("peers_refused", &self.peers),
            ("records_refused", &self.records),
            ("limits_exceeded", &self.limits),
            ("connections_stalled", &self.stalled),
            ("connections_idle", &self.idle),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// Counts one connection of a peer for as long as it lives.
#[derive(Debug)]
pub(crate) struct ConnectionCount {
    peer: Incarnation,
    all: Arc<Mutex<BTreeMap<Incarnation, usize>>>,
}

/// The loop that serves the next connection of each peer.
#[derive(Debug)]
pub(crate) struct LoopRotation {
    loops: usize,
    last: Mutex<BTreeMap<Incarnation, usize>>,
}

/// The most peers that are remembered.
const ROTATIONS_KEPT: usize = 4096;

impl LoopRotation {
    /// The loop after the one that served the last connection of `peer`; `own` for the first.
    pub(crate) fn next(&self, peer: Incarnation, own: usize) -> usize {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= ROTATIONS_KEPT && !last.contains_key(&peer) {
            last.clear();
        }
        let turn = last
            .entry(peer)
            .and_modify(|last| *last = (*last + 1) % self.loops)
            .or_insert(own);
        *turn
    }
}

impl TcpContext {
    pub(crate) fn new(
        home: Arc<Home>,
        config: TcpConfig,
        scheduler: Scheduler,
        nearness: Arc<Nearness>,
    ) -> Self {
        let rotation = LoopRotation {
            loops: config.io_threads,
            last: Mutex::default(),
        };
        Self {
            home,
            config,
            rotation,
            nearness,
            scheduler: Mutex::new(scheduler),
            direct: Direct::default(),
            room: Event::new(),
            refused: RefusalCounters::default(),
            connections: Arc::default(),
            loops: OnceLock::new(),
            armed: Mutex::new(Instant::NEVER),
        }
    }

    pub(crate) fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop with this index; none when the mover is closed.
    pub(crate) fn event_loop(&self, index: usize) -> Option<Loop<LoopState>> {
        self.loops.get()?.get(index)?.upgrade()
    }

    /// The list of keys has changed.
    pub(crate) fn relisted(&self) {
        let loops = self.loops.get().into_iter().flatten();
        loops
            .filter_map(WeakLoop::upgrade)
            .for_each(|each| each.command(Command::Relisted));
    }

    pub(crate) fn greeting(&self, expects: Incarnation, features: Features) -> Greeting {
        Greeting {
            version_min: VERSION,
            version_max: VERSION,
            features,
            incarnation: self.home.incarnation(),
            expects,
            frame_bytes_max: SLICE_BYTES_MAX as u32,
            requests_max: self.config.requests_max,
            in_flight_bytes_max: self.config.in_flight_bytes_max,
            handshake: [0; HANDSHAKE_BYTES],
        }
    }

    /// Counts a connection of a peer until the result is dropped; none when the peer has as many as it may.
    pub(crate) fn count_connection(&self, peer: Incarnation) -> Option<ConnectionCount> {
        let mut all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(peer).or_default();
        if *count >= self.config.connections_per_peer_max {
            return None;
        }
        *count += 1;
        Some(ConnectionCount {
            peer,
            all: Arc::clone(&self.connections),
        })
    }

    /// The connections of authenticated peers.
    pub(crate) fn connections(&self) -> usize {
        let all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.values().sum()
    }

    /// Begins the handshake with a peer; none when neither end seals.
    pub(crate) fn handshake(
        &self,
        peer: &Segment,
        hello: Greeting,
    ) -> Result<Option<InitiatorHandshake>, SealError> {
        match (&self.config.seal, peer.public_key) {
            (Some(seal), Some(key)) => {
                let key = PublicKey::from_bytes(key);
                let entropy = entropy()?;
                InitiatorHandshake::begin(&seal.keys, &entropy, key, hello, &Channel::TCP).map(Some)
            }
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(SealError::Unsealed),
        }
    }

    /// Calls the scheduler, and performs the actions that it returns. `own` takes the commands for the loop that the
    /// caller is inside of.
    pub(crate) fn schedule(
        &self,
        own: Option<(usize, &mut Vec<Command>)>,
        call: impl FnOnce(&mut Scheduler, Instant, &mut Vec<Action>),
    ) {
        let mut actions = Vec::new();
        call(&mut self.scheduler(), now(), &mut actions);
        self.perform(actions, own);
    }

    fn perform(&self, actions: Vec<Action>, mut own: Option<(usize, &mut Vec<Command>)>) {
        let mut send = |loop_index: usize, command: Command| match &mut own {
            Some((index, commands)) if *index == loop_index => commands.push(command),
            _ => {
                if let Some(target) = self.event_loop(loop_index) {
                    target.command(command);
                }
            }
        };
        let mut starts: Vec<(usize, LaneId, Vec<Task>)> = Vec::new();
        let (mut over, mut fenced, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        let mut room = false;
        for action in actions {
            match action {
                Action::Start {
                    loop_index,
                    lane,
                    task,
                } => match starts.iter_mut().find(|(_, known, _)| *known == lane) {
                    Some((_, _, tasks)) => tasks.push(task),
                    None => starts.push((loop_index, lane, vec![task])),
                },
                Action::Connect {
                    loop_index,
                    lane,
                    peer,
                    route,
                } => {
                    send(loop_index, Command::Connect { lane, peer, route });
                }
                Action::Fail { task, cause } => over.push((task, cause)),
                Action::Fenced(part) => fenced.push(part),
                Action::GiveUp(part) => given_up.push(part),
                Action::Room => room = true,
                Action::Wake(at) => {
                    if self.arm(at) {
                        send(0, Command::Wake(at));
                    }
                }
            }
        }
        if room {
            self.room.notify_all();
        }
        for (loop_index, lane, tasks) in starts {
            send(loop_index, Command::Start { lane, tasks });
        }
        over.into_iter()
            .for_each(|(task, cause)| task.end(Err(cause)));
        given_up
            .into_iter()
            .for_each(|part| end(part, Err(Cause::Cancelled)));
        for part in fenced {
            match &mut own {
                // A loop first ends the tasks that it has just reported to the scheduler.
                Some((_, commands)) => commands.push(Command::Fenced(part)),
                None => end(part, Ok(0)),
            }
        }
    }

    /// Moves the next check of the scheduler's deadlines forward to `at`; says whether `at` is earlier than before.
    fn arm(&self, at: Instant) -> bool {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = at < *armed;
        if earlier {
            *armed = at;
        }
        earlier
    }

    /// Whether the check is due; disarms it then.
    pub(crate) fn disarm(&self, now: Instant) -> bool {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let due = *armed <= now;
        if due {
            *armed = Instant::NEVER;
        }
        due
    }

    pub(crate) fn armed(&self) -> Instant {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.peer);
            }
        }
    }
}

impl std::fmt::Debug for TcpContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's hash chose the loop: of four connections of one peer three or all fell to one of two loops more often
    /// than not, and the peer got two thirds of the throughput.
    #[test]
    fn connections_of_a_peer_go_to_the_loops_in_turn() {
        let rotation = LoopRotation {
            loops: 3,
            last: Mutex::default(),
        };
        let next = |peer, own| rotation.next(Incarnation(peer), own);
        assert_eq!(
            [
                next(1, 2),
                next(1, 2),
                next(2, 1),
                next(1, 2),
                next(2, 2),
                next(1, 0)
            ],
            [2, 0, 1, 1, 2, 2]
        );
    }
}
