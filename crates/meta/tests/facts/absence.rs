//! Nodes that lose their link, and come back or do not.

use slackwater_meta::{Input, MasterConfig};
use slackwater_wire::*;

use super::world::*;

pub(crate) const FAR: NodeId = NodeId(2);
pub(crate) const FAR_MEMORY: SegmentId = SegmentId(3);

/// Two nodes with a memory each; what is put prefers the far one.
pub(crate) fn two_nodes() -> World {
    let mut world = World::new(plain());
    world.mount(NODE, MEMORY, SegmentKind::Memory, 16 * BLOCK);
    world.mount(FAR, FAR_MEMORY, SegmentKind::Memory, 16 * BLOCK);
    world
}

pub(crate) fn put_on(world: &mut World, name: &str, segment: SegmentId) {
    let preferring = PutConfig {
        preferred: vec![format!("segment-{segment}")],
        ..PutConfig::default()
    };
    world.put_with(name, BLOCK, preferring);
    let found = world.found(name);
    let on = |at: &ReplicaAt| matches!(at, ReplicaAt::Memory(extent) if extent.segment == segment);
    assert!(found.replicas.iter().all(on));
}

pub(crate) fn hidden_after() -> std::time::Duration {
    MasterConfig::DEFAULT.absence.hidden_after
}

#[test]
fn a_node_without_a_link_keeps_its_objects_for_a_while_and_is_given_no_new_ones() {
    let mut world = two_nodes();
    put_on(&mut world, "k", FAR_MEMORY);
    world.input(Input::NodeAway(FAR));
    assert!(reads(&mut world, "k"), "the link may be back in a moment");
    for round in 0..12 {
        world.put(&format!("k{round}"), BLOCK);
    }
    assert_eq!(world.used(FAR_MEMORY), BLOCK);
    world.pass(hidden_after());
    assert!(!reads(&mut world, "k") && world.get("k") == Lookup::Missing);
    assert!(reads(&mut world, "k0"));
    assert_eq!(world.master.metrics().nodes_hidden, 1);
    world.input(Input::NodeBack(FAR));
    assert!(reads(&mut world, "k"));
    assert_eq!(world.found("k").bytes, BLOCK);
    world.pass(2 * hidden_after());
    assert!(reads(&mut world, "k"), "nothing is waited for any more");
}

/// Puts of a key whose only replica nobody could read were answered with `Exists`, and reads with a miss.
#[test]
fn what_is_hidden_can_be_put_again_and_the_old_value_never_returns() {
    let mut world = two_nodes();
    put_on(&mut world, "k", FAR_MEMORY);
    let old = world.found("k").version;
    world.input(Input::NodeAway(FAR));
    world.pass(hidden_after());
    let new = world.put("k", BLOCK);
    assert!(new > old && world.found("k").version == new);
    world.input(Input::NodeBack(FAR));
    let found = world.found("k");
    assert_eq!((found.version, found.replicas.len()), (new, 1));
    assert_eq!(world.used(FAR_MEMORY), 0);
}

/// They were named last, and a reader that chose by itself waited for a dead node until its deadline.
#[test]
fn replicas_of_a_node_without_a_link_are_named_only_when_there_are_no_others() {
    let mut world = two_nodes();
    let both = PutConfig {
        replicas: 2,
        ..PutConfig::default()
    };
    world.put_with("k", BLOCK, both);
    for away in [NODE, FAR] {
        world.input(Input::NodeAway(away));
        let replicas = world.found("k").replicas;
        let on = |at: &ReplicaAt| match at {
            ReplicaAt::Memory(extent) => extent.segment,
            ReplicaAt::Disk { segment, .. } => *segment,
        };
        let other = if away == NODE { FAR_MEMORY } else { MEMORY };
        assert_eq!((replicas.len(), on(&replicas[0])), (1, other));
        world.pass(hidden_after());
        assert_eq!(world.found("k").replicas.len(), 1);
        world.input(Input::NodeBack(away));
        assert_eq!(world.found("k").replicas.len(), 2);
    }
    world.input(Input::NodeAway(NODE));
    world.input(Input::NodeAway(FAR));
    assert_eq!(world.found("k").replicas.len(), 2);
}

#[test]
fn a_node_that_never_comes_back_is_given_up() {
    let mut world = two_nodes();
    put_on(&mut world, "k", FAR_MEMORY);
    world.input(Input::NodeAway(FAR));
    let absence = MasterConfig::DEFAULT.absence;
    world.pass(absence.hidden_after + absence.given_up_after);
    assert!(!world.master.has_node(FAR) && world.master.has_node(NODE));
    assert_eq!(world.master.metrics().nodes_given_up, 1);
    world.input(Input::NodeBack(FAR));
    assert!(!reads(&mut world, "k"));
    world.put("k", BLOCK);
}

/// A removal waited for the record of a node that was away until its caller gave up, and each that followed likewise.
#[test]
fn a_removal_from_a_hidden_ssd_fails_at_once_and_reaches_it_when_it_comes_back() {
    let mut world = World::tiers(MasterConfig::DEFAULT, MIB, 64 * MIB);
    for name in ["a", "b"] {
        world.put(name, BLOCK);
    }
    offload_all(&mut world);
    world.obedient = false;
    world.input(Input::NodeAway(NODE));
    let operation = world.send(ME, remove("a", true));
    assert_eq!(
        world.reply(operation),
        None,
        "the node may be back in a moment"
    );
    world.pass(hidden_after());
    let failed = Reply::Each(vec![Err(ErrorCode::UnavailableInCurrentStatus)]);
    assert_eq!(world.reply(operation), Some(failed.clone()));
    let operation = world.send(ME, remove("b", true));
    assert_eq!(world.reply(operation), Some(failed));
    world.input(Input::NodeBack(NODE));
    assert!(!reads(&mut world, "a") && !reads(&mut world, "b"));
    let drops = world.taken(|order| match order {
        Order::Drop(entries) => Some(entries.len()),
        _ => None,
    });
    assert_eq!(drops.iter().sum::<usize>(), 2);
}

/// A node that began another life while its old one was away was hidden when the old one's time was over.
#[test]
fn a_node_in_another_life_is_not_hidden_for_the_absence_of_the_old_one() {
    let mut world = two_nodes();
    world.input(Input::NodeAway(FAR));
    world.input(Input::NodeLost(FAR));
    world.mount(FAR, FAR_MEMORY, SegmentKind::Memory, 16 * BLOCK);
    put_on(&mut world, "k", FAR_MEMORY);
    world.pass(2 * hidden_after());
    assert!(reads(&mut world, "k"));
}

#[test]
fn the_nodes_with_a_record_are_named_for_its_version_alone() {
    let mut world = World::tiers(MasterConfig::DEFAULT, MIB, 64 * MIB);
    let version = world.put("k", BLOCK);
    offload_all(&mut world);
    let check = |version, expected: &[NodeId]| {
        let entry = DiskEntry {
            tenant: Tenant::DEFAULT,
            key: key("k"),
            version,
        };
        assert_eq!(world.master.nodes_with_record(&entry), expected);
    };
    check(version, &[NODE]);
    check(Version(version.0 + 1), &[]);
}

fn reads(world: &mut World, name: &str) -> bool {
    matches!(world.get(name), Lookup::Found(_))
}
