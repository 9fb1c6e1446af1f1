use slackwater_base::Checksum;
use slackwater_wire::{Lookup, ReplicaAt, Request, Tenant, Version};

use crate::world::{World, key};

fn accuse(world: &mut World, version: Version, at: ReplicaAt) {
    world.ask(Request::Suspect { tenant: Tenant::DEFAULT, key: key("a"), version, at });
}

#[test]
fn a_replica_with_wrong_bytes_is_dropped_and_its_room_comes_back() {
    let mut world = World::memory(Default::default(), 1 << 20);
    world.put("a", 5000);
    let object = world.found("a");
    accuse(&mut world, object.version, object.replicas[0]);

    assert_eq!(world.get("a"), Lookup::Missing);
    assert_eq!(world.master.books().segments[0].free, 1 << 20);
    world.master.check_books().unwrap();
}

/// A reader was paused past its lease; meanwhile the key was replaced. What it says about the old bytes must not cost
/// the new value.
#[test]
fn a_late_accusation_hits_nobody() {
    let mut world = World::memory(Default::default(), 1 << 20);
    world.put("a", 5000);
    let old = world.found("a");
    world.put_with("a", 5000, crate::world::upsert());
    let new = world.found("a");
    accuse(&mut world, old.version, old.replicas[0]);
    accuse(&mut world, new.version, old.replicas[0]);
    assert_eq!(world.found("a").checksum, Checksum(new.checksum.0));
}
