//! What a node says to a master that knows nothing of it.

use slackwater_wire::{ChainPlace, ClientId, Durability, Pin};

use super::*;
use crate::arena::Access;

fn world(seed: u64) -> World {
    let config = AgentConfig {
        outlives: true,
        ..agent_config()
    };
    let mut world = World::with(small_log(2 << 20), config, seed);
    world.rest();
    world
}

impl World {
    fn begin(&mut self) {
        let mut out = Vec::new();
        self.offloads.clear();
        self.agent.begin_announcing(self.now, &mut out);
        self.take(out);
    }

    /// Announces as much as there is to be said now.
    fn tell(&mut self, quiet: bool) {
        let mut out = Vec::new();
        while self.agent.announce(self.now, quiet, &mut out) {}
        self.take(out);
    }

    /// The next part.
    fn tell_once(&mut self) {
        let mut out = Vec::new();
        assert!(self.agent.announce(self.now, true, &mut out));
        self.take(out);
    }

    fn ask_first(&mut self, keys: &[&[u8]]) {
        let names = keys
            .iter()
            .map(|key| (Tenant::DEFAULT, Key::new(key).unwrap()));
        self.agent.announce_first(&names.collect::<Vec<_>>());
    }

    /// Publishes a value in an extent that is free; where it is.
    fn publish(&mut self, key: &[u8], version: u64, pin: Pin) -> ExtentRef {
        self.generation += 1;
        let extent = ExtentRef {
            generation: self.generation,
            ..self.free.pop().expect("there is memory")
        };
        let entry = entry(key, version);
        let published = Published {
            extent,
            bytes: 100,
            checksum: Checksum::of(&value_of(&entry, 100)),
            entry,
            writer: ClientId(7),
            pin,
            durability: Durability::Memory,
            group: None,
            chain: ChainPlace::default(),
        };
        self.give(AgentInput::Order(Order::Published(vec![published])));
        extent
    }

    fn extents_told(&self) -> Vec<ExtentRef> {
        self.holds.iter().map(|it| it.extent).collect()
    }
}

#[test]
fn memory_is_announced_as_it_was_published_until_it_is_fenced() {
    let mut world = world(1);
    let soft = Pin::Soft(Some(Duration::from_secs(10)));
    let [a, b, c] = [(b"a", soft), (b"b", Pin::Hard), (b"c", Pin::None)]
        .map(|(key, pin)| world.publish(key, 1, pin));
    let reader = world.agent.begin_access(c, Access::Read).unwrap();
    world.give(AgentInput::Order(Order::Fence(vec![c, a])));
    assert_eq!(
        (&world.fenced[..], &world.retired[..]),
        (&[a][..], &[c][..])
    );
    // A fence of an earlier use, which comes late, changes nothing.
    let earlier = ExtentRef { generation: 1, ..b };
    world.give(AgentInput::Order(Order::Fence(vec![earlier])));
    let d = world.publish(b"d", 2, soft);
    world.now += Duration::from_secs(3);
    world.begin();
    world.tell(false);
    let mut expected = [b, d];
    expected.sort_by_key(|extent| extent.offset);
    assert_eq!(world.extents_told(), expected);
    let pins: BTreeSet<_> = world
        .holds
        .iter()
        .map(|it| format!("{:?}", it.pin))
        .collect();
    assert!(
        pins.contains("Soft(Some(7s))") && pins.contains("Hard"),
        "{pins:?}"
    );
    assert_eq!(world.told_all, [DISK], "memory is still accessed");
    world.tell(true);
    world.rest();
    world.tell(true);
    assert_eq!(world.told_all, [DISK, MEMORY]);
    assert!(!world.agent.is_announcing());
    assert_eq!(world.agent.highest_generation(), world.generation);
    world.agent.end_access(reader, &mut Vec::new());
}

#[test]
fn memory_that_is_dead_when_it_is_published_is_not_announced() {
    let mut world = world(1);
    let extent = world.publish(b"a", 1, Pin::None);
    world.give(AgentInput::Order(Order::Fence(vec![extent])));
    world.free.push(ExtentRef {
        generation: 0,
        ..extent
    });
    world.generation -= 1;
    assert_eq!(world.publish(b"a", 1, Pin::None), extent);
    world.begin();
    world.tell(true);
    assert!(world.holds.is_empty());
}

#[test]
fn many_extents_are_announced_in_parts() {
    let mut world = world(1);
    let (segment, incarnation) = (MEMORY, Incarnation(world.incarnation));
    let granules = ARENA_BYTES / 4096;
    let before = world.free.clone();
    world.free = (0..granules)
        .map(|at| ExtentRef {
            segment,
            incarnation,
            offset: at * 4096,
            bytes: 4096,
            generation: 0,
        })
        .collect();
    for at in 0..granules {
        world.publish(&at.to_be_bytes(), 1, Pin::None);
    }
    world.free = before;
    world.begin();
    let mut out = Vec::new();
    assert!(world.agent.announce(world.now, true, &mut out));
    world.take(out);
    let first = world.holds.len();
    assert!((1..=1024).contains(&first));
    world.tell(true);
    let told = world.extents_told();
    assert_eq!(told.len() as u64, granules);
    assert!(told.is_sorted_by_key(|extent| extent.offset));
}

#[test]
fn records_are_announced_when_asked_for_and_not_as_the_log_opens() {
    let mut world = world(1);
    for key in 0..20 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    world.remove(&[3], 1);
    world.put(&[4], 2, 200);
    world.rest();
    let expected: BTreeMap<Vec<u8>, u64> = (0..20)
        .filter(|key| *key != 3)
        .map(|key| (vec![key], 1 + u64::from(key == 4)))
        .collect();
    // Of a process that lives on, and of one that begins.
    for again in [false, true] {
        if again {
            world.reopen(Crash::Process, "as it was");
        }
        assert!(world.announced.is_empty());
        world.begin();
        world.tell(true);
        world.rest();
        world.tell(true);
        assert_eq!(world.announced, expected, "again {again}");
        assert_eq!(world.told_all.last(), Some(&DISK));
    }
}

/// A record that was being written when the master died was in no announcement. It was not dropped with its object, and
/// came back when the node's process did.
#[test]
fn what_an_earlier_master_ordered_is_over_before_the_log_is_announced() {
    let mut world = world(1);
    world.put(b"kept", 1, 100);
    world.rest();
    world.results.clear();
    world.put(b"written", 1, 100);
    world.step_to_deadline();
    let queued = world.put(b"queued", 1, 100);
    world.remove(b"kept", 1);
    world.begin();
    world.tell(true);
    assert_eq!(world.told_all, [MEMORY]);
    assert!(world.announced.is_empty(), "the log says nothing yet");
    world.rest();
    world.tell(true);
    assert_eq!(world.announced, BTreeMap::from([(b"written".to_vec(), 1)]));
    assert_eq!(world.told_all, [MEMORY, DISK]);
    assert!(world.results.is_empty(), "nobody waits for {queued:?}");
    assert_eq!(world.agent.arena().accesses(), 0);
    // The next master's orders are carried out.
    let ticket = world.put(b"queued", 1, 100);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
}

/// What was written only waited for a sync that was due by time, with an idle device.
#[test]
fn what_an_earlier_master_had_written_is_synced_for_the_announcement() {
    let mut world = world(1);
    let ticket = world.offer(b"offered", 1, 9000);
    world.until_answered(ticket);
    assert!(world.disk.has_unsynced());
    world.begin();
    world.drain();
    world.tell(true);
    assert_eq!(world.announced, BTreeMap::from([(b"offered".to_vec(), 1)]));
    assert_eq!(world.told_all, [MEMORY, DISK], "no time has to pass");
}

#[test]
fn an_extent_that_the_device_still_fills_keeps_memory_from_being_given_out() {
    let mut world = world(1);
    world.put(b"a", 1, 100);
    world.rest();
    let waiting = world.promote(b"a", 1, 100);
    assert_eq!(world.stages.remove(0).0, waiting);
    let extent = world.free.pop().unwrap();
    let ticket = waiting;
    world.give(AgentInput::Order(Order::Staged { ticket, extent }));
    world.begin();
    world.tell(true);
    assert_eq!(world.told_all, [DISK], "memory is being written");
    world.rest();
    world.tell(true);
    assert!(world.told_all.contains(&MEMORY));
    assert!(world.promoted.is_empty() && world.promotions_failed.is_empty());
    assert!(world.holds.is_empty(), "nobody published it");
}

/// A master that had forgotten the node was still being told when the next one took it in. That one heard first that all was
/// announced, and then what was held, which it did not believe any more: it lost the object, removed it without telling the
/// node, and the master after it heard of the object again.
#[test]
fn what_is_left_of_an_announcement_is_not_said_to_the_next_master() {
    let mut world = world(1);
    let a = world.publish(b"a", 1, Pin::None);
    world.begin();
    world.agent.stop_announcing();
    world.tell(true);
    assert!(!world.agent.is_announcing());
    assert!(world.extents_told().is_empty() && world.told_all.is_empty());
    world.begin();
    world.tell(true);
    assert_eq!(world.extents_told(), [a]);
}

/// A key was announced in its turn only, while somebody waited for it: seconds later, with a million values.
#[test]
fn what_is_asked_for_is_announced_ahead_of_its_turn() {
    let mut world = world(1);
    world.config.announce_extents_max = 4;
    world.boot();
    world.rest();
    let extents: Vec<ExtentRef> = (0..12u8)
        .map(|key| world.publish(&[key], 1, Pin::None))
        .collect();
    let newer = world.publish(&[1], 2, Pin::None);
    for key in 0..20u8 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    world.asked_records = true;
    let mut in_order = extents.clone();
    in_order.push(newer);
    in_order.sort_by_key(|extent| extent.offset);

    world.ask_first(&[&[0]]);
    world.begin();
    world.tell_once();
    assert_eq!(
        world.extents_told(),
        in_order[..4],
        "nothing was asked of this announcement"
    );
    let is_told = |extent: &ExtentRef| in_order[..4].contains(extent);
    world.ask_first(&[&[0], &[1], &[5], &[7], &[99], &[11], &[5]]);
    world.give(AgentInput::Order(Order::Fence(vec![extents[7]])));
    world.tell_once();
    let mut asked = vec![extents[0], newer, extents[5], extents[11]];
    asked.retain(|extent| !is_told(extent));
    asked.sort_by_key(|extent| extent.offset);
    let ahead: Vec<ExtentRef> = world.ahead.iter().map(|it| it.extent).collect();
    assert_eq!(ahead, asked);
    assert!(ahead.len() < 4, "some were told before: {ahead:?}");
    world.tell(true);
    world.ask_first(&[&[5]]);
    world.tell(true);
    in_order.retain(|extent| *extent != extents[7]);
    assert_eq!(world.extents_told(), in_order, "each in its turn too");
    assert_eq!(world.ahead.len(), asked.len(), "its turn has passed");
}

/// Of the log nothing is said before everything could be: what an earlier master had written may not be durable yet.
#[test]
fn records_that_are_asked_for_come_first_once_the_log_is_announced() {
    let mut world = world(1);
    for key in 0..30u8 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    world.remove(&[4], 1);
    world.put(&[40], 1, 100);
    world.step_to_deadline();
    world.begin();
    world.ask_first(&[&[3], &[4], &[9], &[99]]);
    world.tell(true);
    assert!(world.announced.is_empty(), "the log says nothing yet");
    world.rest();
    world.asked_records = true;
    world.tell_once();
    let first: Vec<Vec<u8>> = world.announced.keys().cloned().collect();
    assert_eq!(first, [[3], [9]]);
    world.tell(true);
    assert_eq!(world.announced.len(), 30, "each in its turn too");
    world.ask_first(&[&[3]]);
    assert!(!world.agent.is_announcing());
}
