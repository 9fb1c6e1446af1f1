//! What is told of the tiers that hold a value.

use std::collections::BTreeSet;
use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::kv_events::{Held, KvEvent};
use slackwater_wire::*;

use crate::world::*;

/// What a reader who was told everything takes for held.
#[derive(Default)]
pub(crate) struct Told(BTreeSet<(Key, bool)>);

impl Told {
    /// Takes what was told, each of which must change something, and compares it with what can be read of these keys.
    pub(crate) fn follow(&mut self, world: &mut World, keys: impl Iterator<Item = Key>) {
        for event in world.master.take_events() {
            match &event {
                KvEvent::Stored(held) => assert!(self.0.insert(of(held)), "twice: {held:?}"),
                KvEvent::Removed(held) => assert!(self.0.remove(&of(held)), "unknown: {held:?}"),
                KvEvent::Cleared => self.0.clear(),
            }
        }
        let found = keys.flat_map(|key| {
            let tiers = tiers_of(world, &key);
            tiers.into_iter().map(move |disk| (key.clone(), disk))
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), self.0);
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
    let complete = known.replicas.iter();
    let complete = complete.filter(|(_, state, _)| *state == ReplicaState::Complete);
    let on_disk = |at: &ReplicaAt| matches!(at, ReplicaAt::Disk { .. });
    complete.map(|(at, ..)| on_disk(at)).collect()
}

/// What was told since the last call, in short: `+` stored and `-` removed, the key, `m` memory or `d` SSD; `0` cleared.
fn taken(world: &mut World) -> String {
    let told = world.master.take_events().into_iter().map(|event| {
        let tier = |held: &Held| ['m', 'd'][usize::from(held.tier == SegmentKind::Disk)];
        match event {
            KvEvent::Stored(held) => format!("+{}{}", held.key, tier(&held)),
            KvEvent::Removed(held) => format!("-{}{}", held.key, tier(&held)),
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
