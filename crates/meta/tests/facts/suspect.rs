use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_meta::{MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

fn accuse(world: &mut World, version: Version, at: ReplicaAt) {
    world.ask(Request::Suspect {
        tenant: Tenant::DEFAULT,
        key: key("a"),
        version,
        at,
    });
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

/// A reader was paused past its lease; meanwhile the key was replaced. Its report about the old bytes must not drop the
/// new value.
#[test]
fn a_late_report_drops_nothing() {
    let mut world = World::memory(Default::default(), 1 << 20);
    world.put("a", 5000);
    let old = world.found("a");
    world.put_with("a", 5000, upsert());
    let new = world.found("a");
    accuse(&mut world, old.version, old.replicas[0]);
    accuse(&mut world, new.version, old.replicas[0]);
    assert_eq!(world.found("a").checksum, Checksum(new.checksum.0));
}

/// A block was leaving memory when a reader reported another node's record of it as wrong. That cancelled its offload,
/// and it was never named as victim again: its bytes counted as leaving for ever.
#[test]
fn a_report_about_a_record_keeps_no_other_copy_in_memory() {
    let offload = Offload {
        mode: OffloadMode::OnEvict,
        ..Offload::default()
    };
    let config = MasterConfig {
        offload,
        lease_ttl: Duration::ZERO,
        ..plain()
    };
    let mut world = World::tiers(config, 20 * BLOCK, 1024 * BLOCK);
    let version = world.put("a", BLOCK);
    for n in 0..19 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let leaving = offloads(&mut world);
    assert!(leaving.iter().any(|task| task.entry.key == key("a")));
    let (node, segment) = (NodeId(2), SegmentId(8));
    world.mount(node, segment, SegmentKind::Disk, 1024 * BLOCK);
    world.report(
        node,
        Report::Announce {
            segment,
            entries: vec![reported("a", version.0, BLOCK)],
        },
    );
    accuse(&mut world, version, ReplicaAt::Disk { node, segment });
    let done = leaving.iter().map(|task| (task.ticket, Ok(()))).collect();
    world.report(NODE, Report::Offloaded(done));
    assert_eq!(world.used(MEMORY), (20 - leaving.len() as u64) * BLOCK);
    assert_eq!(
        world.found("a").replicas,
        [ReplicaAt::Disk {
            node: NODE,
            segment: DISK
        }]
    );
}
