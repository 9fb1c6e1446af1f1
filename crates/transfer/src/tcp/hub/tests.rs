use std::sync::Arc;

use slackwater_wire::data::{CapabilityKey, Grant, Op, Rights};

use super::*;
use crate::batch::Batch;
use crate::job::{Buffers, Job, Priority, Remote};
use crate::mover::Notice;
use crate::tcp::work::Kind;

pub(super) const NOW: Instant = Instant::from_nanos(1_000_000);

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

pub(super) fn peer(number: u64) -> Arc<Segment> {
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
        let remote = Remote {
            offset: 0,
            capability: CapabilityKey::new(&[0; 32]).mint(&grant),
            key: None,
        };
        let part = parts.pop().unwrap();
        let job = Job {
            op: Op::Read,
            buffers: Buffers::default(),
            remote,
            deadline,
            priority: Priority::Normal,
            part,
        };
        Work::new(Incarnation(peer), Kind::Job(job))
    }

    fn submit(&mut self, number: u64, count: usize) {
        let works = (0..count)
            .map(|_| self.work(number, Instant::NEVER))
            .collect();
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
                Order::GiveUp(part) => part.fail(Cause::Cancelled),
                Order::Room => self.rooms += 1,
                Order::Wake(_) => {}
            }
        }
        assert!(self.hub.active() <= self.hub.limits.max_transfers);
    }

    fn all_connect(&mut self) {
        self.all_connect_with(Credit {
            requests: 1000,
            bytes: 1 << 28,
        });
    }

    fn all_connect_with(&mut self, credit: Credit) {
        while let Some(lane) = self.connects.pop() {
            self.ask(|hub, orders| hub.lane_ready(lane, credit, NOW, orders));
        }
    }

    /// The lane of what was started last breaks, with everything on it to be begun again.
    fn break_lane(&mut self, now: Instant) {
        let lane = self.started.back().unwrap().0;
        let (on_it, others): (VecDeque<_>, _) =
            self.started.drain(..).partition(|(id, _)| *id == lane);
        self.started = others;
        let again = on_it.into_iter().map(|(_, work)| work).collect();
        let why = Why::Peer(Cause::Lost("cut".to_owned()));
        self.ask(|hub, orders| {
            hub.lane_lost(
                Lost {
                    lane,
                    why,
                    again,
                    failed: Vec::new(),
                },
                now,
                orders,
            )
        });
    }

    fn causes(&self) -> Vec<Option<Cause>> {
        self.batches
            .iter()
            .map(|batch| batch.outcome(0).and_then(|outcome| outcome.cause))
            .collect()
    }

    /// Ends the oldest transfer; whose it was.
    fn finish(&mut self) -> u64 {
        let (lane, work) = self.started.pop_front().unwrap();
        let done = Finished {
            peer: work.peer,
            epoch: work.epoch,
            bytes: work.bytes(),
            moved: Moved::Read(work.bytes()),
        };
        self.ask(|hub, orders| hub.finished(lane, &done, NOW, orders));
        work.end(Ok(0));
        done.peer.0
    }
}

#[test]
fn the_limit_holds_and_slots_pass_on_in_order() {
    let mut world = World::new(3, 2);
    world.submit(1, 10);
    assert_eq!(
        (
            world.hub.active(),
            world.hub.pending(),
            world.connects.len()
        ),
        (0, 10, 1)
    );
    world.all_connect();
    assert_eq!((world.hub.active(), world.hub.pending()), (3, 7));
    for finished in 0..10 {
        let oldest = world.started.front().map(|(_, work)| work.batch());
        assert_eq!(oldest, Some(world.batches[finished].id()));
        world.finish();
    }
    assert_eq!(
        (world.hub.active(), world.hub.pending(), world.started.len()),
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
    let order: Vec<u64> = (0..8).map(|_| world.finish()).collect();
    assert_eq!(
        order.iter().filter(|peer| **peer == 2).count(),
        3,
        "{order:?}"
    );
}

/// Each piece of work that left a full queue woke everybody who waited for room: with 64 threads the wakes cost a third of
/// the throughput.
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
    let first = world.started[0].1.batch();
    world.break_lane(NOW);
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
        let lane = world
            .connects
            .pop()
            .unwrap_or_else(|| panic!("no attempt {attempt}"));
        let why = Why::Peer(Cause::Unreachable("refused".to_owned()));
        let lost = Lost {
            lane,
            why,
            again: Vec::new(),
            failed: Vec::new(),
        };
        world.ask(|hub, orders| hub.lane_lost(lost, NOW, orders));
    }
    assert!(
        world.connects.is_empty(),
        "all addresses failed, so there is a pause"
    );
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
    world
        .ask(|hub, orders| hub.submit(&peer(1), vec![late], NOW - Duration::from_nanos(1), orders));
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

/// A lane broke after the mover was closed, or after its batch was cancelled: its work went back into line, where nobody
/// looked for it any more before its deadline.
#[test]
fn what_nobody_wants_any_more_does_not_go_back_into_line() {
    let mut world = World::new(4, 1);
    world.submit(1, 2);
    world.all_connect();
    world.batches[0].cancel();
    world.break_lane(NOW);
    assert_eq!(world.causes(), [Some(Cause::Cancelled), None]);
    assert_eq!((world.hub.pending(), world.hub.counters().retries), (1, 1));
    world.all_connect();
    let (_, on_its_way) = world.started.pop_front().unwrap();
    world.ask(|hub, orders| hub.close(orders));
    world.ask(|hub, orders| hub.put_back(vec![on_its_way], NOW, orders));
    assert_eq!(
        world.causes(),
        [Some(Cause::Cancelled), Some(Cause::Closed)]
    );
    assert_eq!((world.hub.pending(), world.connects.len()), (0, 0));
    let (batch, mut parts) = Batch::new(1, None, |_| {});
    world.ask(|hub, orders| hub.fence(&peer(1), parts.pop().unwrap(), orders));
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
    world.ask(|hub, orders| hub.close(orders));
    world.finish();
    world.ask(|hub, orders| hub.tick(NOW, orders));
    assert!(world.connects.is_empty());
}

/// A caller gave up waiting at a fence, and waited on: the fence stayed until all work before it was over.
#[test]
fn a_fence_that_is_cancelled_is_over_and_the_next_one_still_waits() {
    let mut world = World::new(4, 1);
    world.submit(1, 1);
    world.all_connect();
    let fences: Vec<Batch> = (0..2)
        .map(|_| {
            let (batch, mut parts) = Batch::new(1, None, |_| {});
            world.ask(|hub, orders| hub.fence(&peer(1), parts.pop().unwrap(), orders));
            batch
        })
        .collect();
    world.ask(|hub, orders| hub.cancel(fences[0].id(), orders));
    assert_eq!(fences[0].outcome(0).unwrap().cause, Some(Cause::Cancelled));
    assert!(!fences[1].is_done());
    world.finish();
    assert_eq!(fences[1].outcome(0).unwrap().cause, None);
}

/// A peer that greeted, and dropped whoever asked for something, was connected to again and again without a pause.
#[test]
fn a_peer_that_greets_and_drops_is_left_alone_for_longer_and_longer() {
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
        let due = world.hub.peers[&Incarnation(1)].next_due();
        pauses.push(now.until(due));
        now = due;
        world.ask(|hub, orders| hub.tick(now, orders));
    }
    assert!(
        pauses.windows(2).all(|pair| pair[0] < pair[1]),
        "{pauses:?}"
    );
    // One answer, even a refusal, and a lane that breaks is replaced at once.
    world.all_connect();
    world.submit(1, 1);
    let (lane, work) = world.started.pop_front().unwrap();
    let done = Finished {
        peer: work.peer,
        epoch: work.epoch,
        bytes: 0,
        moved: Moved::Refused,
    };
    world.ask(|hub, orders| hub.finished(lane, &done, now, orders));
    world.break_lane(now);
    assert_eq!(world.connects.len(), 1);
}

/// Callers that drove their own transfers to ever new peers had the books of all of them kept.
#[test]
fn the_books_of_peers_that_are_gone_make_room() {
    let mut world = World::new(4, 1);
    for number in 0..3 * PEERS_KEPT as u64 {
        world.hub.count_direct(&peer(number), Moved::Read(1));
    }
    assert!(world.hub.peers.len() <= PEERS_KEPT);
}

/// A peer that had died under a batch of a thousand requests kept the room of its line, some 90 KiB, for as long as its
/// books were kept.
#[test]
fn a_peer_without_lanes_and_work_keeps_no_room_for_them() {
    let room = |world: &World| world.hub.peers[&Incarnation(1)].room();
    let mut world = World::new(2000, 1);
    world.submit(1, 1000);
    assert!(room(&world) >= 1000);
    world.ask(|hub, orders| hub.cancel(BatchId(0), orders));
    let late = Lost {
        lane: world.connects[0],
        why: Why::Gone(Cause::Closed),
        again: Vec::new(),
        failed: Vec::new(),
    };
    world.ask(|hub, orders| hub.lane_lost(late, NOW, orders));
    assert_eq!((world.failed, room(&world)), (1000, 0));
    world.connects.clear();
    world.submit(1, 1000);
    world.all_connect();
    assert_eq!((0..1000).map(|_| world.finish()).sum::<u64>(), 1000);
    let lane = *world.hub.lanes.keys().next().unwrap();
    let idle = Lost {
        lane,
        why: Why::Idle,
        again: Vec::new(),
        failed: Vec::new(),
    };
    world.ask(|hub, orders| hub.lane_lost(idle, NOW, orders));
    assert_eq!(room(&world), 0);
}

#[test]
fn a_lane_takes_no_more_bytes_than_its_peer_allows() {
    let mut world = World::new(8, 1);
    let works = (0..3).map(|_| {
        let (batch, mut parts) = Batch::new(1, None, |_| {});
        world.batches.push(batch);
        let notice = Notice {
            name: String::new(),
            bytes: vec![0; 100],
        };
        let kind = Kind::Notify {
            notice,
            part: parts.pop().unwrap(),
            deadline: Instant::NEVER,
        };
        Work::new(Incarnation(1), kind)
    });
    let works = works.collect();
    world.ask(|hub, orders| hub.submit(&peer(1), works, NOW, orders));
    world.all_connect_with(Credit {
        requests: 1000,
        bytes: 250,
    });
    assert_eq!((world.hub.active(), world.hub.pending()), (2, 1));
    world.finish();
    assert_eq!((world.hub.active(), world.hub.pending()), (2, 0));
}
