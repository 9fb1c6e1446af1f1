//! What a master knows again after a restart.

use slackwater_meta::{Dead, Input, Journaled, MasterConfig, Note, Tenancy};
use slackwater_wire::*;

use crate::inventory::{announced, entry, holds, mount_as};
use crate::world::*;

const LONG: u64 = 700;

/// A master that knows what is kept.
fn restored(journal: &Journaled, config: MasterConfig) -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        absence: slackwater_meta::Absence {
            restart_wait: std::time::Duration::ZERO,
            ..config.absence
        },
        ..config
    });
    world.obedient = false;
    world.master.restore(world.now, journal.clone());
    world
}

fn mount(world: &mut World) {
    mount_as(world, MEMORY, SegmentKind::Memory, 1 << 20);
}

fn keep(world: &mut World, journal: &mut Journaled) -> Vec<Note> {
    let notes = world.master.take_notes();
    notes.iter().for_each(|note| journal.apply(note));
    notes
}

/// A removal was known to the master alone. The master died, and the node came back to the next one with what was removed.
#[test]
fn a_removal_is_kept_for_an_absent_node_over_restarts() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    mount(&mut world);
    announced(&mut world);
    world.input(Input::NodeLost(NODE));
    world.master.start_above(Version(50));
    assert_eq!(world.remove("a"), Err(ErrorCode::ObjectNotFound));
    keep(&mut world, &mut journal);
    assert!(!journal.nodes[&NODE]);
    // One that dies before the node is back, and knows of another removal.
    let mut world = restored(&journal, plain());
    assert!(world.master.is_partial(), "the node may be back");
    world.master.start_above(Version(55));
    assert_eq!(world.remove("c"), Err(ErrorCode::ObjectNotFound));
    keep(&mut world, &mut journal);
    assert_eq!(journal.debts.len(), 2);
    let mut world = restored(&journal, plain());
    assert_eq!(keep(&mut world, &mut journal), [], "nothing has changed");
    world.master.start_above(Version(1 << 30));
    mount(&mut world);
    let later = entry("c", 60, 3);
    holds(
        &mut world,
        vec![entry("a", 50, 0), entry("b", 50, 1), later],
    );
    assert_eq!(world.get("a"), Lookup::Missing);
    assert!(matches!(world.get("b"), Lookup::Found(_)));
    assert!(
        matches!(world.get("c"), Lookup::Found(_)),
        "it is of a later put"
    );
    assert!(world.master.is_partial());
    announced(&mut world);
    assert!(!world.master.is_partial());
    assert_eq!(
        keep(&mut world, &mut journal),
        [],
        "the node has not forgotten it"
    );
    world.obey();
    assert_eq!(keep(&mut world, &mut journal), [Note::Paid(NODE)]);
    assert!(journal.debts.is_empty());
}

#[test]
fn quotas_are_kept() {
    let config = || MasterConfig {
        tenancy: Tenancy::On,
        ..plain()
    };
    let (mut journal, a, b) = (
        Journaled::default(),
        Tenant::new("a").unwrap(),
        Tenant::new("b").unwrap(),
    );
    let mut world = restored(&journal, config());
    for tenant in [&a, &b] {
        let set = Request::SetQuota {
            tenant: tenant.clone(),
            memory_bytes: 5,
            disk_bytes: 7,
        };
        assert_eq!(world.ask(set), Reply::Done);
    }
    assert_eq!(
        world.ask(Request::DeleteQuota { tenant: b.clone() }),
        Reply::Done
    );
    keep(&mut world, &mut journal);
    let mut world = restored(&journal, config());
    let Reply::Quotas(quotas) = world.ask(Request::Quotas) else {
        panic!("there are quotas");
    };
    let set = |of: &Tenant| {
        quotas
            .iter()
            .find(|it| it.tenant == *of)
            .map(|it| (it.memory_quota, it.disk_quota))
    };
    assert_eq!(set(&a), Some((Some(5), Some(7))));
    assert_eq!(set(&b), None);
}

#[test]
fn a_node_without_an_ssd_is_forgotten_after_long_and_what_it_had_is_dead() {
    for restart in [false, true] {
        let mut journal = Journaled::default();
        let mut world = restored(&journal, plain());
        mount(&mut world);
        announced(&mut world);
        world.input(Input::NodeLost(NODE));
        if restart {
            keep(&mut world, &mut journal);
            world = restored(&journal, plain());
        }
        world.pass(seconds(LONG));
        assert!(!world.master.is_partial());
        assert_eq!(
            keep(&mut world, &mut journal).last(),
            Some(&Note::Forget(NODE))
        );
        assert!(journal.nodes.is_empty() && journal.debts.is_empty());
        if restart {
            // The journal is empty again, but not as one that begins.
            world = restored(&journal, plain());
        }
        world.master.start_above(Version(50));
        mount(&mut world);
        holds(&mut world, vec![entry("a", 50, 0)]);
        announced(&mut world);
        assert_eq!(world.get("a"), Lookup::Missing, "restart {restart}");
    }
}

/// A node came back after it had been forgotten, and the master died before the node had announced what it held. The next
/// master knew the node, but not that all of that was dead, and removed objects were hits again.
#[test]
fn what_a_forgotten_node_has_is_dead_to_the_masters_after_too() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    mount(&mut world);
    announced(&mut world);
    world.input(Input::NodeLost(NODE));
    world.pass(seconds(LONG));
    world.master.start_above(Version(50));
    mount(&mut world);
    keep(&mut world, &mut journal);
    let mut world = restored(&journal, plain());
    world.master.start_above(Version(1 << 30));
    mount(&mut world);
    holds(&mut world, vec![entry("a", 50, 0), entry("b", 51, 1)]);
    announced(&mut world);
    assert_eq!(world.get("a"), Lookup::Missing);
    assert!(matches!(world.get("b"), Lookup::Found(_)), "a later put");
    world.obey();
    keep(&mut world, &mut journal);
    assert!(journal.debts.is_empty(), "{journal:?}");
}

/// A journal that begins when nodes have been there for long: what was removed before such a node was met was known to the
/// master alone, which died before the node had announced what it held.
#[test]
fn what_was_removed_before_a_node_was_met_is_dead_to_the_masters_after_too() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    world.master.start_above(Version(50));
    assert_eq!(world.remove("a"), Err(ErrorCode::ObjectNotFound));
    let remove = Request::RemoveMatching(RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: "^x".to_owned(),
        force: true,
    });
    world.ask(remove);
    mount(&mut world);
    keep(&mut world, &mut journal);
    assert_eq!(journal.debts.len(), 2);
    let mut world = restored(&journal, plain());
    world.master.start_above(Version(1 << 30));
    mount(&mut world);
    let held = ["a", "x1", "b"].into_iter().zip(0..);
    holds(
        &mut world,
        held.map(|(name, at)| entry(name, 50, at)).collect(),
    );
    announced(&mut world);
    let found = ["a", "x1", "b"].map(|name| matches!(world.get(name), Lookup::Found(_)));
    assert_eq!(found, [false, false, true]);
}

#[test]
fn a_node_with_an_ssd_is_known_for_ever_and_waited_for_in_vain_no_longer() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    mount(&mut world);
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    keep(&mut world, &mut journal);
    assert!(journal.nodes[&NODE]);
    let mut world = restored(&journal, plain());
    world.pass(seconds(LONG));
    assert!(!world.master.is_partial());
    assert_eq!(keep(&mut world, &mut journal), []);
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    let (segment, highest) = (DISK, Version(9));
    let entries = vec![reported("a", 5, BLOCK)];
    world.report(NODE, Report::Announce { segment, entries });
    world.report(NODE, Report::Announced { segment, highest });
    assert!(matches!(world.get("a"), Lookup::Found(_)));
}

#[test]
fn removals_of_many_keys_are_kept_as_one() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    mount(&mut world);
    announced(&mut world);
    let versions = ["x1", "x2", "y1"].map(|name| world.put(name, BLOCK));
    world.input(Input::NodeLost(NODE));
    world.remove("y1").unwrap_err();
    let remove = Request::RemoveMatching(RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: "^x".to_owned(),
        force: true,
    });
    world.ask(remove);
    keep(&mut world, &mut journal);
    let pattern = (NODE, Dead::Pattern(Tenant::DEFAULT, "^x".to_owned()));
    assert!(journal.debts.contains_key(&pattern), "{journal:?}");
    let back = |journal: &Journaled| {
        let mut world = restored(journal, plain());
        mount(&mut world);
        let names = ["x1", "x2", "y1"].into_iter().zip(versions).enumerate();
        let entries = names.map(|(at, (name, version))| entry(name, version.0, at as u64));
        holds(&mut world, entries.chain([entry("z", 1, 9)]).collect());
        ["x1", "x2", "y1", "z"].map(|name| matches!(world.get(name), Lookup::Found(_)))
    };
    assert_eq!(back(&journal), [false, false, false, true]);
    let all = Request::RemoveAll(RemoveAll {
        tenant: None,
        force: true,
    });
    world.ask(all);
    keep(&mut world, &mut journal);
    assert_eq!(
        journal.debts.keys().collect::<Vec<_>>(),
        [&(NODE, Dead::All)]
    );
    assert_eq!(back(&journal), [false; 4]);
}

#[test]
fn removals_of_records_are_kept_for_a_node_that_is_away_for_long() {
    let mut journal = Journaled::default();
    let mut world = restored(&journal, plain());
    mount(&mut world);
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    announced(&mut world);
    let (segment, highest) = (DISK, Version(9));
    let entries = vec![reported("a", 5, BLOCK)];
    world.report(NODE, Report::Announce { segment, entries });
    world.report(NODE, Report::Announced { segment, highest });
    world.input(Input::NodeAway(NODE));
    world.pass(seconds(20));
    assert_eq!(world.remove("a"), Ok(()));
    keep(&mut world, &mut journal);
    assert_eq!(journal.debts.len(), 1);
    // It is back, and the order to drop the record is under way: it is owed until that is done.
    world.input(Input::NodeBack(NODE));
    assert_eq!(keep(&mut world, &mut journal), []);
    world.obey();
    assert_eq!(keep(&mut world, &mut journal), [Note::Paid(NODE)]);
}

/// A node beyond the limit of those that removals are kept for was noted like any other. Its old records were dead for this
/// master, but the next one believed them.
#[test]
fn a_node_beyond_the_limit_is_not_noted() {
    let config = || MasterConfig {
        limits: slackwater_meta::Limits {
            nodes: 1,
            ..plain().limits
        },
        ..plain()
    };
    let mut journal = Journaled::default();
    let mut world = restored(&journal, config());
    mount(&mut world);
    world.mount(NodeId(2), SegmentId(21), SegmentKind::Disk, MIB);
    keep(&mut world, &mut journal);
    assert_eq!(journal.nodes.keys().collect::<Vec<_>>(), [&NODE]);
}
