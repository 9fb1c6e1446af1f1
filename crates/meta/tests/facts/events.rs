//! What is told of the tiers that hold a value.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use slackwater_meta::{Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::kv_events::{Held, KvEvent};
use slackwater_wire::*;

use crate::absence::{FAR, FAR_MEMORY, hidden_after, put_on, two_nodes};
use crate::world::*;

/// What a reader who was told everything takes for held, and one who came late.
#[derive(Default)]
pub(crate) struct Told(BTreeSet<(Key, bool)>, BTreeSet<(Key, bool)>);

impl Told {
    /// Loses what was told, and all that is known by it.
    pub(crate) fn lose(&mut self, world: &mut World) {
        drop(world.master.take_events());
        self.0.clear();
        self.1.clear();
        world.master.tell_again();
    }

    /// Another reader comes, who knows nothing and is told of everything once more.
    pub(crate) fn join(&mut self, world: &mut World) {
        self.1.clear();
        world.master.repeat_events();
    }

    /// Takes what was told, each of which must change something. Where there is no more to tell, it is what can be read of
    /// these keys.
    pub(crate) fn follow(&mut self, world: &mut World, keys: impl Iterator<Item = Key>) {
        for event in world.master.take_events() {
            match &event {
                KvEvent::Stored(held) => assert!(self.0.insert(of(held)), "twice: {held:?}"),
                KvEvent::Removed(held) => assert!(self.0.remove(&of(held)), "unknown: {held:?}"),
                KvEvent::Repeated(held) => assert!(self.0.contains(&of(held)), "new: {held:?}"),
                KvEvent::Cleared => self.0.clear(),
            }
            // The other may have missed that it was stored.
            match &event {
                KvEvent::Stored(held) | KvEvent::Repeated(held) => _ = self.1.insert(of(held)),
                KvEvent::Removed(held) => _ = self.1.remove(&of(held)),
                KvEvent::Cleared => self.1.clear(),
            }
        }
        if world.master.has_more_to_tell() {
            return;
        }
        let found = keys.flat_map(|key| {
            let tiers = tiers_of(world, &key);
            tiers.into_iter().map(move |disk| (key.clone(), disk))
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), self.0);
        assert_eq!(self.1, self.0);
    }

    /// Is told in slices of this many objects until there is no more to tell.
    pub(crate) fn catch_up(
        &mut self,
        world: &mut World,
        slice: usize,
        keys: impl Iterator<Item = Key> + Clone,
    ) {
        for _ in 0..10_000 {
            if !world.master.has_more_to_tell() {
                return self.follow(world, keys);
            }
            world.master.tell_more(slice);
            self.follow(world, keys.clone());
        }
        panic!("there is always more to tell");
    }
}

fn of(held: &Held) -> (Key, bool) {
    (held.key.clone(), held.tier == SegmentKind::Disk)
}

/// The tiers that a value can be read from, each true for an SSD.
fn tiers_of(world: &mut World, key: &Key) -> BTreeSet<bool> {
    let (tenant, key) = (Tenant::DEFAULT, key.clone());
    let Reply::Describe(known) = world.ask(Request::Describe { tenant, key }) else {
        return BTreeSet::new();
    };
    let segments = world.master.segments().into_iter();
    let hidden = segments.filter(|it| it.presence == Presence::Hidden);
    let hidden: BTreeSet<SegmentId> = hidden.map(|it| it.segment).collect();
    let complete = known.replicas.iter();
    let complete = complete.filter(|(_, state, _)| *state == ReplicaState::Complete);
    let places = complete.map(|(at, ..)| match at {
        ReplicaAt::Disk { segment, .. } => (*segment, true),
        ReplicaAt::Memory(extent) => (extent.segment, false),
    });
    let shown = places.filter(|(segment, _)| !hidden.contains(segment));
    shown.map(|(_, disk)| disk).collect()
}

/// What was told since the last call, in short: `+` stored and `-` removed, the key, `m` memory or `d` SSD; `0` cleared.
fn taken(world: &mut World) -> String {
    let told = world.master.take_events().into_iter().map(|event| {
        let tier = |held: &Held| ['m', 'd'][usize::from(held.tier == SegmentKind::Disk)];
        match event {
            KvEvent::Stored(held) => format!("+{}{}", held.key, tier(&held)),
            KvEvent::Removed(held) => format!("-{}{}", held.key, tier(&held)),
            KvEvent::Repeated(held) => format!("={}{}", held.key, tier(&held)),
            KvEvent::Cleared => "0".to_owned(),
        }
    });
    told.collect::<Vec<_>>().join(" ")
}

fn telling(mut world: World) -> World {
    world.master.tell_events();
    assert_eq!(taken(&mut world), "0");
    world
}

#[test]
fn nothing_is_told_unless_it_is_wanted() {
    let mut world = World::memory(plain(), MIB);
    world.put("a", BLOCK);
    assert_eq!(world.remove("a"), Ok(()));
    assert_eq!(taken(&mut world), "");
}

#[test]
fn a_value_is_told_when_it_can_be_read_and_when_it_is_gone() {
    let mut world = telling(World::memory(plain(), MIB));
    let PutStarted::Granted { version, .. } = world.start("a", BLOCK, PutConfig::default()) else {
        panic!("no room");
    };
    assert_eq!(taken(&mut world), "", "nobody can read it yet");
    world.end(ME, "a", version);
    assert_eq!(taken(&mut world), "+am");
    world.put_with("a", BLOCK, upsert());
    assert_eq!(taken(&mut world), "-am +am", "another value of the key");
    assert_eq!(world.remove("a"), Ok(()));
    assert_eq!(taken(&mut world), "-am");
    let PutStarted::Granted { version, .. } = world.start("b", BLOCK, PutConfig::default()) else {
        panic!("no room");
    };
    let puts = vec![(key("b"), version)];
    world.ask(Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts,
    });
    assert_eq!(taken(&mut world), "", "it was never there");
}

#[test]
fn each_tier_is_told_apart_and_only_its_first_and_last_replica_are() {
    let config = MasterConfig {
        offload: Offload {
            mode: OffloadMode::Eager,
            ..Offload::default()
        },
        lease_ttl: Duration::from_millis(1),
        ..plain()
    };
    let mut world = telling(World::tiers(config, 4 * MIB, 8 * MIB));
    world.mount(NodeId(2), SegmentId(3), SegmentKind::Memory, 4 * MIB);
    let twice = PutConfig {
        replicas: 2,
        ..PutConfig::default()
    };
    world.put_with("a", BLOCK, twice);
    assert_eq!(taken(&mut world), "+am", "two replicas, one event");
    offload_all(&mut world);
    assert_eq!(taken(&mut world), "+ad");
    world.input(Input::NodeLost(NodeId(2)));
    assert_eq!(taken(&mut world), "", "the other replica in memory is left");
    assert_eq!(world.remove("a"), Ok(()));
    let told = taken(&mut world);
    assert!(["-am -ad", "-ad -am"].contains(&told.as_str()), "{told}");
}

#[test]
fn what_eviction_takes_is_told() {
    let mut world = telling(World::memory(plain(), 16 * BLOCK));
    let mut told = Told::default();
    let names = || (0..64).map(|n| key(&format!("k{n}")));
    for n in 0..64 {
        world.put(&format!("k{n}"), BLOCK);
        told.follow(&mut world, names());
    }
    assert!(world.master.metrics().evictions > 0);
    assert!(!told.0.is_empty() && told.0.len() < 64);
}

#[test]
fn what_a_recovered_log_holds_is_told() {
    let mut world = telling(World::memory(plain(), MIB));
    world.mount(NODE, DISK, SegmentKind::Disk, 8 * MIB);
    let entries = vec![reported("a", 3, BLOCK), reported("b", 4, BLOCK)];
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
    assert_eq!(taken(&mut world), "+ad +bd");
}

/// A reader that had missed events took what it had missed the removal of for held, although everything was removed.
#[test]
fn everything_is_told_to_be_gone_once_it_is() {
    let mut world = telling(World::memory(plain(), MIB));
    let all = |force| {
        Request::RemoveAll(RemoveAll {
            tenant: Some(Tenant::DEFAULT),
            force,
        })
    };
    world.put("a", BLOCK);
    world.put("b", BLOCK);
    world.found("b");
    taken(&mut world);
    assert_eq!(world.ask(all(false)), Reply::Count(1));
    assert_eq!(taken(&mut world), "-am", "b has a lease, and stays");
    assert_eq!(world.ask(all(true)), Reply::Count(1));
    assert_eq!(taken(&mut world), "-bm 0");
}

/// Behind a gap readers were told that nothing is held, and nothing more: of what was stored before it they never knew again.
#[test]
fn readers_who_know_nothing_are_told_what_there_is_in_slices() {
    let mut world = telling(World::memory(plain(), MIB));
    for name in ["a", "b", "c", "d"] {
        world.put(name, BLOCK);
    }
    assert_eq!(taken(&mut world), "+am +bm +cm +dm");
    assert!(!world.master.has_more_to_tell());
    world.master.tell_again();
    assert_eq!(world.remove("b"), Ok(()));
    assert_eq!(taken(&mut world), "", "its turn has not come");
    world.master.tell_more(1);
    assert_eq!(taken(&mut world), "+am");
    assert_eq!(world.remove("a"), Ok(()));
    assert_eq!(world.remove("d"), Ok(()));
    assert_eq!(taken(&mut world), "-am", "the turn of d has not come");
    assert!(world.master.has_more_to_tell());
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "+cm");
    assert!(!world.master.has_more_to_tell());
    world.put("d", BLOCK);
    assert_eq!(taken(&mut world), "+dm");
}

/// Who came late asked for what was not kept any more, and knew too little until values were stored again.
#[test]
fn who_comes_late_is_told_of_everything_once_more() {
    let mut world = telling(World::memory(plain(), MIB));
    for name in ["a", "b", "c"] {
        world.put(name, BLOCK);
    }
    assert_eq!(taken(&mut world), "+am +bm +cm");
    world.master.repeat_events();
    world.master.tell_more(1);
    assert_eq!(taken(&mut world), "=am");
    assert_eq!(world.remove("b"), Ok(()));
    assert_eq!(taken(&mut world), "-bm", "the others know of it");
    assert!(world.master.has_more_to_tell());
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "=cm");
    assert!(!world.master.has_more_to_tell());
}

#[test]
fn what_a_master_held_before_it_was_asked_is_told_too() {
    let mut world = World::memory(plain(), MIB);
    world.put("a", BLOCK);
    world.master.tell_events();
    assert_eq!(taken(&mut world), "0");
    world.put("b", BLOCK);
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "+am +bm");
}

/// Routers sent requests to values of a node that had died, for the ten minutes in which it could have come back.
#[test]
fn what_is_hidden_is_told_to_be_gone_until_its_node_is_back() {
    let mut world = telling(two_nodes());
    let both = PutConfig {
        replicas: 2,
        ..PutConfig::default()
    };
    put_on(&mut world, "a", FAR_MEMORY);
    put_on(&mut world, "b", MEMORY);
    world.put_with("c", BLOCK, both);
    assert_eq!(taken(&mut world), "+am +bm +cm");
    let hide = |world: &mut World| {
        world.input(Input::NodeAway(FAR));
        assert!(!world.master.has_more_to_tell(), "it may be back at once");
        world.pass(hidden_after());
        assert_eq!(taken(world), "");
    };
    hide(&mut world);
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "-am", "c can be read elsewhere");
    assert!(!world.master.has_more_to_tell());
    assert_eq!(world.remove_with("a", true), Ok(()));
    assert_eq!(taken(&mut world), "", "that is known");
    world.input(Input::NodeBack(FAR));
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "");
    put_on(&mut world, "d", FAR_MEMORY);
    assert_eq!(taken(&mut world), "+dm");
    hide(&mut world);
    world.input(Input::NodeBack(FAR));
    assert_eq!(taken(&mut world), "0", "half of them were told otherwise");
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "+dm +bm +cm");
    hide(&mut world);
    world.input(Input::NodeLost(FAR));
    assert_eq!(
        taken(&mut world),
        "-dm",
        "it was not hidden for readers yet"
    );
    world.master.tell_more(10);
    assert_eq!(taken(&mut world), "");
}

/// A step for each of many nodes would look at every object for each of them.
#[test]
fn where_many_nodes_are_hidden_at_once_everything_is_told_anew() {
    let check = |nodes: u32, at_once: &str, then: &str| {
        let mut world = telling(two_nodes());
        let far: Vec<NodeId> = (10..10 + nodes).map(NodeId).collect();
        for node in &far {
            let segment = SegmentId(node.0);
            world.mount(*node, segment, SegmentKind::Memory, 16 * BLOCK);
            put_on(&mut world, &format!("k{}", node.0), segment);
        }
        put_on(&mut world, "here", MEMORY);
        taken(&mut world);
        for node in far {
            world.input(Input::NodeAway(node));
        }
        world.pass(hidden_after());
        assert_eq!(taken(&mut world), at_once, "{nodes} nodes");
        while world.master.has_more_to_tell() {
            world.master.tell_more(100);
        }
        assert_eq!(taken(&mut world), then, "{nodes} nodes");
    };
    check(4, "", "-k10m -k11m -k12m -k13m");
    check(5, "0", "+herem");
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Remove(u8),
    RemoveAll,
    Offload,
    Away(bool),
    Back(bool),
    /// The far node is lost, and another begins in its place.
    Lost,
    Pass(u8),
    /// What was told since the last look is lost on its way.
    Overflow,
    Join,
    Tell(u8),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..16u8).prop_map(Step::Put),
        3 => (0..16u8).prop_map(Step::Remove),
        1 => Just(Step::RemoveAll),
        4 => Just(Step::Offload),
        2 => any::<bool>().prop_map(Step::Away),
        2 => any::<bool>().prop_map(Step::Back),
        1 => Just(Step::Lost),
        3 => (0..12u8).prop_map(Step::Pass),
        2 => Just(Step::Overflow),
        2 => Just(Step::Join),
        6 => (1..6u8).prop_map(Step::Tell),
        6 => Just(Step::Look),
    ]
}

fn take_step(world: &mut World, reader: &mut Told, step: Step) {
    let name = |n: u8| format!("k{n}");
    let node = |far: bool| if far { FAR } else { NODE };
    match step {
        Step::Put(n) => {
            let call = world.send(ME, start(&name(n), BLOCK, upsert()));
            let Some(Reply::PutStart(results)) = world.reply(call) else {
                return;
            };
            if let PutStarted::Granted { version, .. } = results[0] {
                world.send(ME, end(&name(n), version));
            }
        }
        Step::Remove(n) => {
            world.send(ME, remove(&name(n), true));
        }
        Step::RemoveAll => {
            let everything = RemoveAll {
                tenant: None,
                force: true,
            };
            world.send(ME, Request::RemoveAll(everything));
            world.pass(Duration::ZERO);
        }
        Step::Offload => offload_all(world),
        Step::Away(far) => world.input(Input::NodeAway(node(far))),
        Step::Back(far) => world.input(Input::NodeBack(node(far))),
        Step::Lost => {
            world.input(Input::NodeLost(FAR));
            world.mount(FAR, FAR_MEMORY, SegmentKind::Memory, 8 * BLOCK);
        }
        Step::Pass(seconds) => world.pass(Duration::from_secs(seconds.into())),
        Step::Overflow => reader.lose(world),
        Step::Join => reader.join(world),
        Step::Tell(count) => world.master.tell_more(count.into()),
        Step::Look => reader.follow(world, (0..16).map(|n| key(&name(n)))),
    }
}

proptest! {
    /// Whatever happens while readers are told anew, or of nodes that are hidden and shown, they are told of nothing twice,
    /// and know in the end what can be read.
    #[test]
    fn readers_know_what_can_be_read_once_there_is_no_more_to_tell(
        steps in prop::collection::vec(step(), 1..80),
        slice in 1..20usize,
    ) {
        let config = MasterConfig {
            offload: Offload {
                mode: OffloadMode::Eager,
                ..Offload::default()
            },
            ..plain()
        };
        let mut world = World::tiers(config, 8 * BLOCK, 24 * BLOCK);
        world.mount(FAR, FAR_MEMORY, SegmentKind::Memory, 8 * BLOCK);
        world.master.tell_events();
        let mut reader = Told::default();
        for step in steps {
            take_step(&mut world, &mut reader, step);
        }
        reader.catch_up(&mut world, slice, (0..16).map(|n| key(&format!("k{n}"))));
    }
}
