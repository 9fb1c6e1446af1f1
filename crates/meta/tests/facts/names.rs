//! Segments by the names of their nodes.

use slackwater_wire::*;

use crate::put::granted;
use crate::world::*;

fn twins() -> World {
    let mut world = World::memory(plain(), 16 * BLOCK);
    for segment in [5, 6] {
        let (node, segment) = (NodeId(segment), SegmentId(segment));
        world.mount_as("twins", node, segment, SegmentKind::Memory, 2 * BLOCK);
    }
    world
}

/// Nodes may share a name, as what one client lends in several pieces does.
#[test]
fn a_name_that_segments_share_means_any_of_them() {
    let mut world = twins();
    let prefer = PutConfig {
        preferred: vec!["twins".to_owned()],
        ..PutConfig::default()
    };
    let names = ["a", "b", "c", "d", "e"];
    let mut segments = names.map(|name| {
        let (_, extents) = granted(world.start(name, BLOCK, prefer.clone()));
        extents[0].segment.0
    });
    segments.sort_unstable();
    assert_eq!(segments, [1, 5, 5, 6, 6]);
    let both = PutConfig {
        replicas: 2,
        ..prefer
    };
    let mut world = twins();
    world.put_with("a", BLOCK, both);
    let (tenant, name) = (Tenant::DEFAULT, key("a"));
    let Reply::Describe(found) = world.ask(Request::Describe { tenant, key: name }) else {
        panic!("it is there");
    };
    assert_eq!(found.names, ["twins", "twins"]);
    let clear = ReplicaClear {
        tenant: Tenant::DEFAULT,
        keys: vec![key("a")],
        segment: Some("twins".to_owned()),
    };
    let cleared = world.ask(Request::ReplicaClear(clear));
    assert_eq!(cleared, Reply::Each(vec![Ok(())]));
    assert!(world.nodes_of("a").is_empty(), "all of them");
}
