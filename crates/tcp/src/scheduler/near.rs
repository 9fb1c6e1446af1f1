//! Facts about lanes that are near the memory of tasks.

use std::net::IpAddr;
use std::ptr::NonNull;

use slackwater_data_plane::protocol::Credit;
use slackwater_engine::{Batch, Buffers, Location, Memory, RegionSpec, Regions};
use slackwater_wire::data::Rights;

use super::tests::{NOW, limits, peer, read};
use super::*;
use crate::task::TaskKind;

const FIRST: [u8; 4] = [127, 0, 0, 2];
const SECOND: [u8; 4] = [127, 0, 0, 3];
const BYTES: usize = 4096;

/// One peer, reached from an address near the memory of node 0 and one near that of node 1.
struct World {
    scheduler: Scheduler,
    regions: Regions,
    /// Lanes that are being opened, with the last number of the address that they leave from.
    opening: VecDeque<(LaneId, u8)>,
    /// All lanes.
    lanes: BTreeMap<LaneId, u8>,
    /// The address of the lane of each task that was started, in order, and those tasks.
    started: Vec<u8>,
    under_way: Vec<(LaneId, Task)>,
    batches: Vec<Batch>,
}

impl World {
    fn new() -> Self {
        let near = [(0, FIRST), (1, SECOND)]
            .map(|(node, address)| (Location::Cpu(node), vec![IpAddr::from(address)]));
        let limits = Limits {
            lanes_per_peer: 2,
            local: [FIRST, SECOND].map(IpAddr::from).to_vec(),
            nearness: Arc::new(Nearness::preferring(near.to_vec())),
            ..limits()
        };
        Self {
            scheduler: Scheduler::new(limits, 7),
            regions: Regions::default(),
            opening: VecDeque::new(),
            lanes: BTreeMap::new(),
            started: Vec::new(),
            under_way: Vec::new(),
            batches: Vec::new(),
        }
    }

    fn submit(&mut self, location: Location, count: usize) {
        let tasks = (0..count).map(|_| self.task(location)).collect();
        self.ask(|scheduler, actions| scheduler.submit(&peer(1), tasks, NOW, actions));
    }

    /// A task of a region of its own.
    fn task(&mut self, location: Location) -> Task {
        let start = self.regions.len() * BYTES + BYTES;
        let start = NonNull::new(std::ptr::without_provenance_mut(start)).unwrap();
        // SAFETY: nothing reads or writes the memory: no lane carries the task.
        let memory = unsafe { Memory::borrowed(start, BYTES, location) };
        let spec = RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate: None,
        };
        let region = self.regions.register(spec).unwrap();
        let buffers = Buffers::held([region.access(0, BYTES as u64).unwrap()]);
        let (batch, job) = read(1, BYTES as u64, buffers, Instant::NEVER);
        self.batches.push(batch);
        Task::new(Incarnation(1), TaskKind::Job(job))
    }

    fn ask(&mut self, question: impl FnOnce(&mut Scheduler, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        question(&mut self.scheduler, &mut actions);
        for action in actions {
            match action {
                Action::Connect { lane, route, .. } => {
                    let Some(IpAddr::V4(from)) = route.from else {
                        panic!("{route:?} leaves from no configured address");
                    };
                    self.opening.push_back((lane, from.octets()[3]));
                    self.lanes.insert(lane, from.octets()[3]);
                }
                Action::Start { lane, task, .. } => {
                    self.started.push(self.lanes[&lane]);
                    self.under_way.push((lane, task));
                }
                Action::Wake(_) => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// The lane that is being opened becomes ready: its address.
    fn connect(&mut self) -> u8 {
        let (lane, from) = self.opening.pop_front().unwrap();
        let credit = Credit {
            requests: 100,
            bytes: 1 << 28,
        };
        self.ask(|scheduler, actions| scheduler.lane_ready(lane, credit, NOW, actions));
        from
    }

    /// The lane that is being opened finds nobody: its address.
    fn fail_to_connect(&mut self) -> u8 {
        let (lane, from) = self.opening.pop_front().unwrap();
        let lost = LostLane {
            lane,
            why: LaneEnd::Peer(Cause::Unreachable("no route".to_owned())),
            again: Vec::new(),
            failed: Vec::new(),
        };
        self.ask(|scheduler, actions| scheduler.lane_lost(lost, NOW, actions));
        from
    }

    /// All that is under way ends.
    fn finish(&mut self) {
        for (lane, task) in std::mem::take(&mut self.under_way) {
            let done = Finished {
                peer: Incarnation(1),
                epoch: task.epoch,
                bytes: task.bytes(),
                started: task.started,
                moved: Moved::Read(task.bytes()),
            };
            self.ask(|scheduler, actions| scheduler.finished(lane, &done, NOW, actions));
            task.end(Ok(0));
        }
    }

    fn take_started(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.started)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.finish();
    }
}

#[test]
fn lanes_leave_from_addresses_near_the_memory_of_their_tasks() {
    let mut world = World::new();
    world.submit(Location::Cpu(1), 6);
    assert_eq!((world.connect(), world.connect()), (3, 3));
    assert!(world.opening.is_empty(), "two lanes are the most");
    assert_eq!(world.take_started(), [3; 6]);
    world.finish();

    // The lanes of other memory do not take the places of those that are near this one.
    world.submit(Location::Cpu(0), 1);
    assert_eq!(world.take_started(), [3], "an idle lane serves meanwhile");
    assert_eq!(world.connect(), 2);
    world.submit(Location::Cpu(0), 4);
    assert_eq!(world.connect(), 2);
    world.submit(Location::Cpu(0), 2);
    assert_eq!(world.take_started(), [2; 6]);
    assert!(world.opening.is_empty(), "two of each are the most");
    world.finish();
    world.submit(Location::Cpu(1), 4);
    assert_eq!(world.take_started(), [3; 4]);
}

#[test]
fn far_lanes_help_when_near_ones_have_much_under_way() {
    let mut world = World::new();
    world.submit(Location::Cpu(1), 1);
    assert_eq!(world.connect(), 3);
    world.submit(Location::Cpu(0), 2);
    assert_eq!(world.connect(), 2);
    world.finish();
    world.take_started();
    world.submit(Location::Cpu(0), 12);
    let far = world
        .take_started()
        .iter()
        .filter(|from| **from == 3)
        .count();
    // Bytes on a far lane count five times.
    assert_eq!(far, 2);
}

/// Memory of one location used its near lanes alone, however much those had to do: no far lane was opened while a near address
/// could be reached.
#[test]
fn far_lanes_are_opened_when_near_ones_are_enough_and_have_much_under_way() {
    let mut world = World::new();
    world.submit(Location::Cpu(0), 11);
    assert_eq!(world.connect(), 2);
    assert_eq!(world.take_started(), [2; 11]);
    assert_eq!(world.connect(), 2);
    world.submit(Location::Cpu(0), 5);
    assert!(
        world.opening.is_empty(),
        "the second lane has four under way"
    );
    world.submit(Location::Cpu(0), 1);
    assert_eq!(world.take_started(), [2; 6]);
    assert_eq!(world.connect(), 3);
    world.submit(Location::Cpu(0), 1);
    assert_eq!(world.take_started(), [3]);
    world.finish();

    // At most as many far lanes as near ones.
    world.submit(Location::Cpu(0), 60);
    assert_eq!(world.connect(), 3);
    world.submit(Location::Cpu(0), 60);
    assert!(world.opening.is_empty(), "two of each are the most");
    while !world.under_way.is_empty() {
        world.finish();
    }
    world.take_started();
    world.submit(Location::Cpu(0), 2);
    assert_eq!(world.take_started(), [2; 2]);
    assert!(world.opening.is_empty());
}

#[test]
fn the_rest_is_there_to_fall_back_on() {
    let mut world = World::new();
    world.submit(Location::Cpu(0), 3);
    // Each of the peer's two addresses is tried from the near address.
    assert_eq!((world.fail_to_connect(), world.fail_to_connect()), (2, 2));
    assert_eq!((world.connect(), world.connect()), (3, 3));
    assert!(world.opening.is_empty(), "two lanes are the most");
    assert_eq!(world.take_started(), [3; 3]);
    world.finish();
    world.submit(Location::Cpu(0), 1);
    assert!(world.opening.is_empty(), "the near address rests");
    assert_eq!(world.take_started(), [3]);
}

#[test]
fn memory_without_a_near_address_takes_all_in_turn() {
    let mut world = World::new();
    world.submit(Location::Host, 4);
    assert_eq!((world.connect(), world.connect()), (2, 3));
    world.submit(Location::Host, 4);
    assert!(world.opening.is_empty(), "two lanes are the most");
    let started = world.take_started();
    assert!(started.contains(&2) && started.contains(&3), "{started:?}");
}
