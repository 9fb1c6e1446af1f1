use slackwater_meta::{Input, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

fn world() -> World {
    World::memory(MasterConfig::default(), 16 * BLOCK)
}

#[test]
fn what_was_put_is_found_with_its_checksum_and_extent() {
    let mut world = world();
    let PutStarted::Granted { version, extents } = world.start("a", 100, PutConfig::default()) else { panic!() };
    assert_eq!(world.get("a"), Lookup::NotReady);
    assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
    let object = world.found("a");
    assert_eq!((object.version, object.bytes, object.checksum.0), (version, 100, version.0 * 31));
    assert_eq!(object.replicas, [ReplicaAt::Memory(extents[0])]);
    assert_eq!(extents[0].bytes, 4096);
}

#[test]
fn a_full_segment_evicts_for_new_puts() {
    let mut world = world();
    for n in 0..100 {
        world.put(&format!("k{n}"), BLOCK);
        world.pass(seconds(1));
    }
    assert!(world.used(MEMORY) <= 16 * BLOCK);
    assert!(matches!(world.get("k99"), Lookup::Found(_)));
    assert_eq!(world.get("k0"), Lookup::Missing);
}

#[test]
fn lost_client_gives_room_back_at_once() {
    let mut world = world();
    world.start("a", 16 * BLOCK, PutConfig::default());
    assert_eq!(world.used(MEMORY), 16 * BLOCK);
    world.input(Input::ClientLost(ME));
    assert_eq!((world.used(MEMORY), world.get("a")), (0, Lookup::Missing));
}
