//! Promotion on hit.

mod bring;
mod life;
mod retry;
mod review;
mod wishes;

use std::time::Duration;

use slackwater_meta::{MasterConfig, Offload, OffloadMode, OnHit, Promotion, PromotionMetrics};
use slackwater_wire::*;

use crate::world::*;

/// A way in which a promotion may end.
pub(super) type Exit = fn(&mut World, &PromoteTask);

pub(super) fn config(promotion: Promotion) -> MasterConfig {
    MasterConfig {
        promotion: Promotion {
            on_hit: OnHit::Promote,
            ..promotion
        },
        offload: Offload {
            mode: OffloadMode::OnEvict,
            ..Offload::default()
        },
        lease_ttl: Duration::from_millis(1),
        ..plain()
    }
}

/// One node whose SSD announces `names`, a block each; nothing is in memory.
pub(super) fn cold_as(config: MasterConfig, names: &[&str]) -> World {
    let mut world = World::tiers(config, 64 * BLOCK, 1024 * BLOCK);
    let entries = names.iter().map(|name| reported(name, 1, BLOCK)).collect();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
    world
}

pub(super) fn cold(promotion: Promotion, names: &[&str]) -> World {
    cold_as(config(promotion), names)
}

pub(super) fn tasks(world: &mut World) -> Vec<Vec<PromoteTask>> {
    world.taken(|order| {
        if let Order::Promote(tasks) = order {
            Some(tasks.clone())
        } else {
            None
        }
    })
}

pub(super) fn task(world: &mut World) -> PromoteTask {
    let mut orders = tasks(world);
    assert_eq!(
        (orders.len(), orders[0].len()),
        (1, 1),
        "one order with one task"
    );
    orders.remove(0).remove(0)
}

/// Reads often enough for a promotion and takes its task.
pub(super) fn earn(world: &mut World, name: &str) -> PromoteTask {
    world.found(name);
    world.found(name);
    task(world)
}

pub(super) fn staged(world: &mut World, ticket: TicketId, bytes: u64) -> Option<ExtentRef> {
    world.report(NODE, Report::Stage { ticket, bytes });
    let mut extents = world.taken(|order| match order {
        Order::Staged {
            ticket: other,
            extent,
        } if *other == ticket => Some(*extent),
        _ => None,
    });
    extents.pop()
}

pub(super) fn finish(world: &mut World, task: &PromoteTask) {
    let extent = staged(world, task.ticket, task.bytes).expect("there is room");
    world.report(
        NODE,
        Report::Promoted {
            ticket: task.ticket,
            extent,
        },
    );
}

pub(super) fn funnel(world: &World) -> PromotionMetrics {
    world.master.metrics().promotion
}

pub(super) fn cancelled(world: &mut World, ticket: TicketId) -> bool {
    let is = |order: &Order| {
        matches!(order, Order::Cancel { ticket: other } if *other == ticket).then_some(())
    };
    !world.taken(is).is_empty()
}

pub(super) fn in_memory(world: &mut World, name: &str) -> bool {
    matches!(world.found(name).replicas[0], ReplicaAt::Memory(_))
}

/// What was promoted where eviction had begun by its node's own watermark would have gone again.
#[test]
fn nothing_is_promoted_beyond_a_nodes_own_watermark() {
    for (high, promoted) in [(0.25, 0), (0.5, 1)] {
        let mut world = World::new(config(Promotion::default()));
        for (segment, kind, bytes, watermarks) in [
            (
                MEMORY,
                SegmentKind::Memory,
                64,
                Some(Watermarks { low: 0.1, high }),
            ),
            (DISK, SegmentKind::Disk, 1024, None),
        ] {
            let mount = Mount {
                segment,
                name: format!("segment-{segment}"),
                node: NODE,
                incarnation: Incarnation(1),
                kind,
                bytes: bytes * BLOCK,
                host: String::new(),
                generations: None,
                watermarks,
            };
            assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
        }
        let entries = vec![reported("a", 1, BLOCK)];
        let segment = DISK;
        world.report(NODE, Report::Announce { segment, entries });
        let highest = Version(1);
        world.report(NODE, Report::Announced { segment, highest });
        for n in 0..16 {
            world.put(&format!("other{n}"), BLOCK);
        }
        world.found("a");
        world.found("a");
        assert_eq!(
            tasks(&mut world).len(),
            promoted,
            "eviction begins at {high}"
        );
        assert_eq!(funnel(&world).rejected_watermark, 1 - promoted as u64);
    }
}
