use std::sync::Arc;

use slackwater_data_plane::protocol::Credit;
use slackwater_engine::{Batch, Buffers, Job, Notice, Priority, Remote};
use slackwater_wire::data::{CapabilityKey, Grant, Op, Rights};

use super::*;
use crate::task::TaskKind;

pub(super) const NOW: Instant = Instant::from_nanos(1_000_000);

/// A scheduler with its actions, and the names of its tasks.
struct World {
    scheduler: Scheduler,
    started: VecDeque<(LaneId, Task)>,
    connects: Vec<LaneId>,
    failed: usize,
    fenced: usize,
    rooms: usize,
    batches: Vec<Batch>,
}

pub(crate) fn peer(number: u64) -> Arc<Segment> {
    let addresses = vec![
        "127.0.0.1:1".parse().unwrap(),
        "127.0.0.1:2".parse().unwrap(),
    ];
    Arc::new(Segment {
        name: number.to_string(),
        incarnation: Incarnation(number),
        addresses,
        public_key: None,
        host: None,
    })
}

/// A read of so many bytes from a peer, and the batch that it is part of.
pub(crate) fn read(peer: u64, bytes: u64, buffers: Buffers, deadline: Instant) -> (Batch, Job) {
    let (batch, mut parts) = Batch::new(1, None, |_| {});
    let grant = Grant {
        incarnation: Incarnation(peer),
        region: 0,
        generation: 1,
        offset: 0,
        bytes,
        rights: Rights::BOTH,
        tenant: 0,
        holder: Incarnation(0),
        expires_nanos: u64::MAX,
        nonce: 0,
    };
    let job = Job {
        op: Op::Read,
        buffers,
        remote: Remote {
            offset: 0,
            capability: CapabilityKey::new(&[0; 32]).mint(&grant),
            key: None,
            trace: None,
        },
        deadline,
        priority: Priority::Normal,
        part: parts.pop().unwrap(),
    };
    (batch, job)
}

pub(super) fn limits() -> Limits {
    Limits::of(&TcpConfig::default())
}

impl World {
    fn new(max_transfers: usize, lanes_per_peer: usize) -> Self {
        let config = TcpConfig {
            io_threads: 2,
            max_transfers,
            lanes_per_peer,
            ..TcpConfig::default()
        };
        Self {
            scheduler: Scheduler::new(Limits::of(&config), 7),
            started: VecDeque::new(),
            connects: Vec::new(),
            failed: 0,
            fenced: 0,
            rooms: 0,
            batches: Vec::new(),
        }
    }

    fn task(&mut self, peer: u64, deadline: Instant) -> Task {
        let (batch, job) = read(peer, 1, Buffers::default(), deadline);
        self.batches.push(batch);
        Task::new(Incarnation(peer), TaskKind::Job(job))
    }

    fn submit(&mut self, number: u64, count: usize) {
        let tasks = (0..count)
            .map(|_| self.task(number, Instant::NEVER))
            .collect();
        self.ask(|scheduler, actions| scheduler.submit(&peer(number), tasks, NOW, actions));
    }

    fn ask(&mut self, question: impl FnOnce(&mut Scheduler, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        question(&mut self.scheduler, &mut actions);
        for action in actions {
            match action {
                Action::Connect { lane, .. } => self.connects.push(lane),
                Action::Start { lane, task, .. } => self.started.push_back((lane, task)),
                Action::Fail { task, cause } => {
                    self.failed += 1;
                    task.end(Err(cause));
                }
                Action::Fenced(part) => {
                    self.fenced += 1;
                    part.complete(0);
                }
                Action::GiveUp(part) => part.fail(Cause::Cancelled),
                Action::Room => self.rooms += 1,
                Action::Wake(_) => {}
            }
        }
        assert!(self.scheduler.active() <= self.scheduler.limits.max_transfers);
    }

    fn all_connect(&mut self) {
        self.all_connect_with(Credit {
            requests: 1000,
            bytes: 1 << 28,
        });
    }

    fn all_connect_with(&mut self, credit: Credit) {
        while let Some(lane) = self.connects.pop() {
            self.ask(|scheduler, actions| scheduler.lane_ready(lane, credit, NOW, actions));
        }
    }

    /// Breaks the lane of the task that was started last; all its tasks can be started again.
    fn break_lane(&mut self, now: Instant) {
        let lane = self.started.back().unwrap().0;
        let (on_it, others): (VecDeque<_>, _) =
            self.started.drain(..).partition(|(id, _)| *id == lane);
        self.started = others;
        let again = on_it.into_iter().map(|(_, task)| task).collect();
        let why = LaneEnd::Peer(Cause::Lost("cut".to_owned()));
        self.ask(|scheduler, actions| {
            scheduler.lane_lost(
                LostLane {
                    lane,
                    why,
                    again,
                    failed: Vec::new(),
                },
                now,
                actions,
            )
        });
    }

    fn causes(&self) -> Vec<Option<Cause>> {
        self.batches
            .iter()
            .map(|batch| batch.outcome(0).and_then(|outcome| outcome.cause))
            .collect()
    }

    /// Ends the oldest transfer; returns its peer.
    fn finish(&mut self) -> u64 {
        let (lane, task) = self.started.pop_front().unwrap();
        let done = Finished {
            peer: task.peer,
            epoch: task.epoch,
            bytes: task.bytes(),
            started: task.started,
            moved: Moved::Read(task.bytes()),
        };
        self.ask(|scheduler, actions| scheduler.finished(lane, &done, NOW, actions));
        task.end(Ok(0));
        done.peer.0
    }
}

#[test]
fn the_limit_holds_and_slots_pass_on_in_order() {
    let mut world = World::new(6, 2);
    world.submit(1, 10);
    assert_eq!(
        (
            world.scheduler.active(),
            world.scheduler.pending(),
            world.connects.len()
        ),
        (0, 10, 1)
    );
    world.all_connect();
    assert_eq!(
        (world.scheduler.active(), world.scheduler.pending()),
        (3, 7)
    );
    for finished in 0..10 {
        let oldest = world.started.front().map(|(_, task)| task.batch());
        assert_eq!(oldest, Some(world.batches[finished].id()));
        world.finish();
    }
    assert_eq!(
        (
            world.scheduler.active(),
            world.scheduler.pending(),
            world.started.len()
        ),
        (0, 0, 0)
    );
    assert!(world.batches.iter().all(Batch::is_done));
}

#[test]
fn a_busy_peer_does_not_hold_the_slots_of_another() {
    let mut world = World::new(2, 1);
    world.submit(1, 50);
    world.submit(2, 3);
    world.all_connect();
    let action: Vec<u64> = (0..8).map(|_| world.finish()).collect();
    assert_eq!(
        action.iter().filter(|peer| **peer == 2).count(),
        3,
        "{action:?}"
    );
}

/// One peer that had stopped took every slot, and nothing was carried to any other until its requests timed out.
#[test]
fn peers_that_never_answer_leave_slots_to_the_others() {
    let mut world = World::new(64, 4);
    for frozen in 1..=3 {
        world.submit(frozen, 100);
        world.all_connect();
    }
    assert_eq!(world.scheduler.active(), 32 + 16 + 8);
    world.started.clear();
    world.submit(9, 40);
    world.all_connect();
    for _ in 0..40 {
        assert_eq!(world.finish(), 9);
    }
    assert_eq!(world.scheduler.active(), 32 + 16 + 8);
}

/// Each task that left a full queue woke every submitter that waited for room: with 64 threads the wakes cost a third
/// of the throughput.
#[test]
fn submitters_are_woken_once_a_quarter_of_the_queue_is_free() {
    let mut world = World::new(1, 1);
    world.scheduler.limits.queue_entries = 8;
    world.submit(1, 7);
    assert_eq!(world.scheduler.full(&peer(1)), None);
    world.submit(1, 1);
    assert_eq!(world.scheduler.full(&peer(1)), Some(0));
    world.all_connect();
    let told: Vec<(usize, bool)> = (0..3)
        .map(|_| {
            world.finish();
            (world.rooms, world.scheduler.full(&peer(1)).is_some())
        })
        .collect();
    assert_eq!(told, [(0, true), (1, false), (1, false)]);
}

#[test]
fn a_broken_lane_gives_its_work_back_to_the_front() {
    let mut world = World::new(8, 1);
    world.submit(1, 4);
    world.all_connect();
    let first = world.started[0].1.batch();
    world.break_lane(NOW);
    assert_eq!(
        (world.scheduler.active(), world.scheduler.pending()),
        (0, 4)
    );
    world.all_connect();
    assert_eq!(world.started[0].1.batch(), first);
    assert_eq!(world.scheduler.counters().retries, 4);
    assert_eq!((0..4).map(|_| world.finish()).sum::<u64>(), 4);
}

#[test]
fn a_dead_address_rests_while_the_other_is_tried_and_then_all_do() {
    let mut world = World::new(4, 1);
    world.submit(1, 1);
    for attempt in 0..2 {
        let lane = world
            .connects
            .pop()
            .unwrap_or_else(|| panic!("no attempt {attempt}"));
        let why = LaneEnd::Peer(Cause::Unreachable("refused".to_owned()));
        let lost = LostLane {
            lane,
            why,
            again: Vec::new(),
            failed: Vec::new(),
        };
        world.ask(|scheduler, actions| scheduler.lane_lost(lost, NOW, actions));
    }
    assert!(
        world.connects.is_empty(),
        "all addresses failed, so there is a pause"
    );
    world.ask(|scheduler, actions| scheduler.tick(NOW + Duration::from_secs(2), actions));
    assert_eq!(world.connects.len(), 1);
    assert_eq!(world.scheduler.counters().connect_failed, 2);
}

#[test]
fn late_and_cancelled_work_leaves_the_queue_and_fences_wait_for_all_before_them() {
    let mut world = World::new(1, 1);
    world.submit(1, 2);
    let (batch, mut parts) = Batch::new(1, None, |_| {});
    let fence = parts.pop().unwrap();
    world.ask(|scheduler, actions| scheduler.fence(&peer(1), fence, actions));
    let late = world.task(1, NOW);
    world.ask(|scheduler, actions| {
        scheduler.submit(&peer(1), vec![late], NOW - Duration::from_nanos(1), actions)
    });
    world.ask(|scheduler, actions| scheduler.tick(NOW, actions));
    assert_eq!((world.failed, world.fenced), (1, 0));
    let cancelled = world.batches[0].id();
    world.ask(|scheduler, actions| scheduler.cancel(cancelled, actions));
    assert_eq!((world.failed, world.fenced), (2, 0));
    world.all_connect();
    world.finish();
    assert!(batch.is_done());
    assert_eq!(world.fenced, 1);
}

/// A lane broke after the mover was closed, or after its batch was cancelled: its tasks were queued again, and ended
/// only at their deadlines.
#[test]
fn cancelled_tasks_are_not_queued_again() {
    let mut world = World::new(4, 1);
    world.submit(1, 2);
    world.all_connect();
    world.batches[0].cancel();
    world.break_lane(NOW);
    assert_eq!(world.causes(), [Some(Cause::Cancelled), None]);
    assert_eq!(
        (
            world.scheduler.pending(),
            world.scheduler.counters().retries
        ),
        (1, 1)
    );
    world.all_connect();
    let (_, on_its_way) = world.started.pop_front().unwrap();
    world.ask(|scheduler, actions| scheduler.close(actions));
    world.ask(|scheduler, actions| scheduler.put_back(vec![on_its_way], NOW, actions));
    assert_eq!(
        world.causes(),
        [Some(Cause::Cancelled), Some(Cause::Closed)]
    );
    assert_eq!((world.scheduler.pending(), world.connects.len()), (0, 0));
    let (batch, mut parts) = Batch::new(1, None, |_| {});
    world.ask(|scheduler, actions| scheduler.fence(&peer(1), parts.pop().unwrap(), actions));
    assert!(
        batch.is_done(),
        "nothing is left that a fence would wait for"
    );
}

#[test]
fn a_closed_hub_opens_no_lane() {
    let mut world = World::new(4, 2);
    world.submit(1, 4);
    world.all_connect();
    assert_eq!(world.connects.len(), 0);
    world.ask(|scheduler, actions| scheduler.close(actions));
    world.finish();
    world.ask(|scheduler, actions| scheduler.tick(NOW, actions));
    assert!(world.connects.is_empty());
}

/// A cancelled fence ended only when all tasks before it had ended.
#[test]
fn a_fence_that_is_cancelled_is_over_and_the_next_one_still_waits() {
    let mut world = World::new(4, 1);
    world.submit(1, 1);
    world.all_connect();
    let fences: Vec<Batch> = (0..2)
        .map(|_| {
            let (batch, mut parts) = Batch::new(1, None, |_| {});
            world
                .ask(|scheduler, actions| scheduler.fence(&peer(1), parts.pop().unwrap(), actions));
            batch
        })
        .collect();
    world.ask(|scheduler, actions| scheduler.cancel(fences[0].id(), actions));
    assert_eq!(fences[0].outcome(0).unwrap().cause, Some(Cause::Cancelled));
    assert!(!fences[1].is_done());
    world.finish();
    assert_eq!(fences[1].outcome(0).unwrap().cause, None);
}

/// A peer that greeted, and closed the connection at the first request, was connected to again and again without a pause.
#[test]
fn pauses_grow_for_a_peer_that_greets_and_drops() {
    let mut world = World::new(4, 1);
    world.submit(1, 1);
    let mut pauses = Vec::new();
    let mut now = NOW;
    for _ in 0..4 {
        // Both addresses are tried before there is a pause.
        for _ in 0..2 {
            assert_eq!(world.connects.len(), 1);
            world.all_connect();
            world.break_lane(now);
        }
        assert!(world.connects.is_empty());
        let due = world.scheduler.peers[&Incarnation(1)].next_due();
        pauses.push(now.until(due));
        now = due;
        world.ask(|scheduler, actions| scheduler.tick(now, actions));
    }
    assert!(
        pauses.windows(2).all(|pair| pair[0] < pair[1]),
        "{pauses:?}"
    );
    // After one answer, even a refusal, a lane that breaks is replaced at once.
    world.all_connect();
    world.submit(1, 1);
    let (lane, task) = world.started.pop_front().unwrap();
    let done = Finished {
        peer: task.peer,
        epoch: task.epoch,
        bytes: 0,
        started: task.started,
        moved: Moved::Refused,
    };
    world.ask(|scheduler, actions| scheduler.finished(lane, &done, now, actions));
    world.break_lane(now);
    assert_eq!(world.connects.len(), 1);
}

/// Callers that drove their own transfers to ever new peers left a table entry for each of them.
#[test]
fn the_books_of_peers_that_are_gone_make_room() {
    let mut world = World::new(4, 1);
    for number in 0..3 * PEERS_KEPT as u64 {
        world.scheduler.count_direct(&peer(number), Moved::Read(1));
    }
    assert!(world.scheduler.peers.len() <= PEERS_KEPT);
}

/// A peer that had ended under a batch of a thousand requests kept the memory of its queue, some 90 KiB, for as long as
/// its table entry was kept.
#[test]
fn a_peer_without_lanes_and_work_keeps_no_room_for_them() {
    let room = |world: &World| world.scheduler.peers[&Incarnation(1)].room();
    let mut world = World::new(2000, 1);
    world.submit(1, 1000);
    assert!(room(&world) >= 1000);
    world.ask(|scheduler, actions| scheduler.cancel(BatchId(0), actions));
    let late = LostLane {
        lane: world.connects[0],
        why: LaneEnd::Gone(Cause::Closed),
        again: Vec::new(),
        failed: Vec::new(),
    };
    world.ask(|scheduler, actions| scheduler.lane_lost(late, NOW, actions));
    assert_eq!((world.failed, room(&world)), (1000, 0));
    world.connects.clear();
    world.submit(1, 1000);
    world.all_connect();
    assert_eq!((0..1000).map(|_| world.finish()).sum::<u64>(), 1000);
    let lane = *world.scheduler.lanes.keys().next().unwrap();
    let idle = LostLane {
        lane,
        why: LaneEnd::Idle,
        again: Vec::new(),
        failed: Vec::new(),
    };
    world.ask(|scheduler, actions| scheduler.lane_lost(idle, NOW, actions));
    assert_eq!(room(&world), 0);
}

#[test]
fn a_lane_takes_no_more_bytes_than_its_peer_allows() {
    let mut world = World::new(8, 1);
    let tasks = (0..3).map(|_| {
        let (batch, mut parts) = Batch::new(1, None, |_| {});
        world.batches.push(batch);
        let notice = Notice {
            name: String::new(),
            bytes: vec![0; 100],
        };
        let kind = TaskKind::Notify {
            notice,
            part: parts.pop().unwrap(),
            deadline: Instant::NEVER,
        };
        Task::new(Incarnation(1), kind)
    });
    let tasks = tasks.collect();
    world.ask(|scheduler, actions| scheduler.submit(&peer(1), tasks, NOW, actions));
    world.all_connect_with(Credit {
        requests: 1000,
        bytes: 250,
    });
    assert_eq!(
        (world.scheduler.active(), world.scheduler.pending()),
        (2, 1)
    );
    world.finish();
    assert_eq!(
        (world.scheduler.active(), world.scheduler.pending()),
        (2, 0)
    );
}
