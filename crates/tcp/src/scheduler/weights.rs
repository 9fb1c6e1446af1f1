//! Facts about lanes of different throughput.

use slackwater_data_plane::protocol::Credit;
use slackwater_engine::{Batch, Buffers};

use super::tests::{NOW, limits, peer, read};
use super::*;
use crate::task::TaskKind;

const MIB: u64 = 1 << 20;
const MILLISECOND: Duration = Duration::from_millis(1);

/// One peer with two lanes, each of which carries its transfers one behind the other, in virtual time.
struct World {
    scheduler: Scheduler,
    now: Instant,
    /// How long a lane takes for a MiB.
    takes: [Duration; 2],
    lanes: Vec<LaneId>,
    /// What each lane has under way, with the time at which it ends.
    under_way: [VecDeque<(Instant, Task)>; 2],
    carried: [u64; 2],
    batches: Vec<Batch>,
}

impl World {
    fn new(takes: [Duration; 2]) -> Self {
        let scheduler = Scheduler::new(
            Limits {
                lanes_per_peer: 2,
                max_transfers: 64,
                ..limits()
            },
            7,
        );
        let mut world = Self {
            scheduler,
            now: NOW,
            takes,
            lanes: Vec::new(),
            under_way: Default::default(),
            carried: [0; 2],
            batches: Vec::new(),
        };
        // The second lane is opened for what finds the first one busy, and nothing is known of either before it was used.
        world.carry(4, MIB);
        world.carry(4, MIB);
        assert_eq!((world.lanes.len(), world.carried), (2, [6, 2]));
        world
    }

    fn submit(&mut self, count: usize, bytes: u64) {
        let tasks = (0..count).map(|_| self.task(bytes)).collect();
        self.ask(|scheduler, now, actions| scheduler.submit(&peer(1), tasks, now, actions));
    }

    fn task(&mut self, bytes: u64) -> Task {
        // SAFETY: nothing reads or writes the buffers: no lane carries the task.
        let buffers = unsafe { Buffers::borrowed(std::ptr::dangling_mut::<u8>(), bytes as usize) };
        let (batch, job) = read(1, bytes, buffers, Instant::NEVER);
        self.batches.push(batch);
        Task::new(Incarnation(1), TaskKind::Job(job))
    }

    fn ask(&mut self, question: impl FnOnce(&mut Scheduler, Instant, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        question(&mut self.scheduler, self.now, &mut actions);
        let mut left = VecDeque::from(actions);
        while let Some(action) = left.pop_front() {
            match action {
                Action::Connect { lane, .. } => {
                    self.lanes.push(lane);
                    let credit = Credit {
                        requests: 1000,
                        bytes: 1 << 30,
                    };
                    let mut actions = Vec::new();
                    self.scheduler
                        .lane_ready(lane, credit, self.now, &mut actions);
                    left.extend(actions);
                }
                Action::Start { lane, task, .. } => self.start(lane, task),
                _ => {}
            }
        }
    }

    fn start(&mut self, lane: LaneId, task: Task) {
        let index = self.lanes.iter().position(|known| *known == lane).unwrap();
        let before = self.under_way[index].back().map_or(self.now, |(at, _)| *at);
        let takes = self.takes[index].as_nanos() as u64 * task.bytes() / MIB;
        let ends = before.max(self.now) + Duration::from_nanos(takes);
        self.under_way[index].push_back((ends, task));
    }

    /// Ends the transfer that is over first.
    fn end_next(&mut self) {
        let ends = |index: &usize| self.under_way[*index].front().map(|(at, _)| *at);
        let index = (0..2)
            .filter(|index| ends(index).is_some())
            .min_by_key(ends);
        self.end_at_once(index.expect("something is under way"), 1);
    }

    /// Ends so many transfers of one lane when the last of them is over.
    fn end_at_once(&mut self, index: usize, count: usize) {
        let over: Vec<(Instant, Task)> = self.under_way[index].drain(..count).collect();
        self.now = over.last().unwrap().0.max(self.now);
        self.carried[index] += count as u64;
        let done: Vec<Finished> = over
            .iter()
            .map(|(_, task)| Finished {
                peer: task.peer,
                epoch: task.epoch,
                bytes: task.bytes(),
                started: task.started,
                moved: Moved::Read(task.bytes()),
            })
            .collect();
        let lane = self.lanes[index];
        self.ask(|scheduler, now, actions| {
            done.iter()
                .for_each(|done| scheduler.finished(lane, done, now, actions));
        });
        over.into_iter().for_each(|(_, task)| task.end(Ok(0)));
    }

    /// Carries so many transfers of `bytes`, all submitted at once; returns how many went by each lane, and how long they took.
    fn carry(&mut self, count: usize, bytes: u64) -> ([u64; 2], Duration) {
        let (before, begun) = (self.carried, self.now);
        self.submit(count, bytes);
        for _ in 0..count {
            self.end_next();
        }
        let carried = [0, 1].map(|index| self.carried[index] - before[index]);
        (carried, begun.until(self.now))
    }
}

/// The lane with the fewest bytes under way was taken: a batch of 32 MiB gave half of its bytes to a lane of a tenth of the
/// throughput, and waited for that one ten times as long as for the other.
#[test]
fn a_slow_lane_is_given_less_and_a_batch_ends_sooner() {
    let mut world = World::new([MILLISECOND, 10 * MILLISECOND]);
    let (carried, took) = world.carry(32, MIB);
    assert_eq!(carried.iter().sum::<u64>(), 32);
    assert!((1..=4).contains(&carried[1]), "{carried:?}");
    assert!(took <= 40 * MILLISECOND, "{took:?}");
    assert_eq!(world.scheduler.slow_lanes(world.now), 1);
}

#[test]
fn lanes_that_are_alike_are_given_the_same() {
    for takes in [
        [MILLISECOND, MILLISECOND],
        [MILLISECOND, Duration::from_micros(1900)],
    ] {
        let mut world = World::new(takes);
        let (carried, _) = world.carry(32, MIB);
        assert_eq!(carried, [16, 16], "{takes:?}");
        assert_eq!(world.scheduler.slow_lanes(world.now), 0);
    }
}

/// A lane that was slow once would be left alone for ever.
#[test]
fn a_lane_that_was_slow_is_tried_again_and_has_its_share_when_it_is_not() {
    let mut world = World::new([MILLISECOND, 10 * MILLISECOND]);
    world.takes[1] = MILLISECOND;
    // Lone transfers go by the other lane meanwhile.
    assert_eq!(world.carry(1, MIB).0, [1, 0]);
    world.now += Duration::from_secs(2);
    assert_eq!(world.carry(2, MIB).0, [1, 1]);
    assert_eq!(world.carry(32, MIB).0, [16, 16]);
}

/// One that is still slow costs one transfer now and then.
#[test]
fn a_lane_that_is_still_slow_is_tried_with_one_transfer() {
    let mut world = World::new([MILLISECOND, 40 * MILLISECOND]);
    world.now += Duration::from_secs(2);
    assert_eq!(world.carry(8, MIB).0, [7, 1]);
    assert_eq!(world.carry(8, MIB).0, [8, 0]);
}

/// Their times say how long a wake takes, and a lane that has less to do waits for more of them.
#[test]
fn small_transfers_say_nothing_of_a_lane() {
    let mut world = World::new([MILLISECOND, MILLISECOND]);
    world.takes[1] = 100 * MILLISECOND;
    world.carry(64, 4096);
    assert_eq!(world.scheduler.slow_lanes(world.now), 0);
}

/// A loop tells the ends of all that a turn has brought at once: the first was taken to have lasted as long as all of them, and
/// the others no time. Behind a small one even the first that counts took none, and beside a lane of no time every other
/// one is as slow as can be: it was given next to nothing of the following batch.
#[test]
fn transfers_whose_ends_are_told_at_once_have_shared_the_time() {
    let check = |pause: u64, sizes: &[u64], of_first: usize| {
        let mut world = World::new([MILLISECOND, MILLISECOND]);
        world.now += Duration::from_secs(pause);
        sizes.iter().for_each(|bytes| world.submit(1, *bytes));
        let under_way = [0, 1].map(|index| world.under_way[index].len());
        assert_eq!(under_way, [of_first, sizes.len() - of_first], "{sizes:?}");
        world.end_at_once(0, of_first);
        while !world.under_way[1].is_empty() {
            world.end_at_once(1, 1);
        }
        assert_eq!(world.scheduler.slow_lanes(world.now), 0, "{sizes:?}");
        assert_eq!(world.carry(32, MIB).0, [16, 16], "{sizes:?}");
    };
    for pause in [0, 2] {
        check(pause, &[4096, MIB, MIB], 2);
        check(pause, &[MIB; 8], 4);
        check(pause, &[MIB; 32], 16);
    }
}
