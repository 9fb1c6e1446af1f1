//! What the policies of two tiers exchange.

use std::time::Duration;

use slackwater_meta::{
    Held, MasterConfig, Offload, OffloadMode, OnHit, Opinion, Promotion, PromotionAdmission,
};
use slackwater_wire::*;

use crate::inventory::all_announced;
use crate::world::*;

fn config() -> MasterConfig {
    let offload = Offload {
        mode: OffloadMode::OnEvict,
        ..Offload::default()
    };
    MasterConfig {
        offload,
        lease_ttl: Duration::ZERO,
        ..plain()
    }
}

fn opinions(world: &World, name: &str) -> Vec<Opinion> {
    world
        .master
        .explain(world.now, &Tenant::DEFAULT, &key(name))
        .unwrap_or_default()
}

fn ages(world: &World, name: &str) -> Vec<(SegmentKind, Held, u64)> {
    let age = |opinion: Opinion| {
        let explanation = opinion.explanation.expect("the default policy explains");
        (
            opinion.kind,
            opinion.held,
            explanation.age.as_secs_f64().round() as u64,
        )
    };
    opinions(world, name).into_iter().map(age).collect()
}

fn written(world: &mut World) -> Vec<Key> {
    offloads(world)
        .into_iter()
        .map(|task| task.entry.key)
        .collect()
}

#[test]
fn a_block_is_as_old_to_the_ssd_as_to_memory_and_stays_so_when_it_is_written() {
    use SegmentKind::{Disk, Memory};
    let mut world = World::tiers(config(), 20 * BLOCK, 100 * BLOCK);
    world.put("old", BLOCK);
    world.pass(seconds(100));
    assert_eq!(
        ages(&world, "old"),
        [(Memory, Held::Here, 100), (Disk, Held::Above, 100)]
    );
    for n in 0..19 {
        world.put(&format!("k{n}"), BLOCK);
    }
    offload_all(&mut world);
    assert_eq!(
        ages(&world, "old"),
        [(Disk, Held::Here, 100)],
        "the copy keeps its age"
    );
    world.remove("old").unwrap();
    assert_eq!(opinions(&world, "old"), []);
}

#[test]
fn what_is_older_than_its_ssd_is_no_prospect_until_it_is_written() {
    let mut world = World::memory(config(), 20 * BLOCK);
    world.put("b", BLOCK);
    assert_eq!(opinions(&world, "b").len(), 1);
    world.mount(NODE, DISK, SegmentKind::Disk, 100 * BLOCK);
    all_announced(&mut world, Vec::new());
    world.put("c", BLOCK);
    assert_eq!(
        (opinions(&world, "b").len(), opinions(&world, "c").len()),
        (1, 2)
    );
    for n in 0..18 {
        world.put(&format!("k{n}"), BLOCK);
    }
    assert!(
        written(&mut world).contains(&key("b")),
        "the SSD takes over the standing of a block that it did not know"
    );
}

/// A full SSD of old blocks, with `a`, read just now, and `b`, hardly younger than the blocks on the SSD, in the memory
/// above. Returns the names of what was about to be written when the first of the two was.
fn full(config_of: impl Fn() -> PutConfig) -> (World, Vec<Key>) {
    let mut world = World::tiers(config(), 20 * BLOCK, 10 * (BLOCK + 512));
    for n in 0..9 {
        world.put(&format!("x{n}"), BLOCK);
    }
    world.pass(seconds(100));
    for name in ["b", "a"] {
        world.put_with(name, BLOCK, config_of());
    }
    world.pass(seconds(900));
    world.found("a");
    for n in 0..17 {
        world.put(&format!("y{n}"), BLOCK);
        for _ in 0..9 {
            let tasks = offloads(&mut world);
            let names: Vec<Key> = tasks.iter().map(|task| task.entry.key.clone()).collect();
            if names.contains(&key("a")) || names.contains(&key("b")) {
                return (world, names);
            }
            let done: Vec<_> = tasks
                .into_iter()
                .map(|task| (task.ticket, Ok(())))
                .collect();
            world.report(NODE, Report::Offloaded(done));
        }
    }
    (world, Vec::new())
}

#[test]
fn what_is_hardly_better_than_the_lowest_is_not_written() {
    let (mut world, writing) = full(PutConfig::default);
    assert_eq!(writing, []);
    assert!(!world.has("b") && world.has("a"));
    assert_eq!(
        world.master.metrics().offload.completed,
        9,
        "all of the old ones"
    );
    assert!(world.master.metrics().offload.skipped_not_worth > 0);
}

/// A part of a block is of no use without the others: if one member is worth writing, all are.
#[test]
fn a_group_is_written_as_one() {
    let (mut world, writing) = full(|| PutConfig {
        group: Some(1),
        ..PutConfig::default()
    });
    assert!(
        writing.contains(&key("a")) && writing.contains(&key("b")),
        "{writing:?}"
    );
    assert!(world.has("b") && world.has("a"));
}

#[test]
fn a_group_is_promoted_as_one() {
    let promotion = Promotion {
        on_hit: OnHit::Promote,
        ..Promotion::default()
    };
    let mut world = World::tiers(
        MasterConfig {
            promotion,
            ..config()
        },
        20 * BLOCK,
        100 * BLOCK,
    );
    for name in ["a", "b"] {
        world.put_with(
            name,
            BLOCK,
            PutConfig {
                group: Some(1),
                ..PutConfig::default()
            },
        );
    }
    world.pass(seconds(10));
    for n in 0..18 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    assert_eq!(
        opinions(&world, "a").len() + opinions(&world, "b").len(),
        2,
        "both on SSD only"
    );
    world.remove("k0").unwrap();
    world.remove("k1").unwrap();
    world.found("a");
    world.found("a");
    let tasks = world.taken(|order| {
        if let Order::Promote(tasks) = order {
            Some(tasks.clone())
        } else {
            None
        }
    });
    let names: Vec<Key> = tasks
        .concat()
        .into_iter()
        .map(|task| task.entry.key)
        .collect();
    assert_eq!(names, [key("a"), key("b")]);
}

#[test]
fn admission_by_index_asks_what_memory_would_keep() {
    let promotion = Promotion {
        on_hit: OnHit::Promote,
        admission: PromotionAdmission::Index,
        watermark: 0.95,
        ..Promotion::default()
    };
    let mut world = World::tiers(
        MasterConfig {
            promotion,
            ..config()
        },
        20 * BLOCK,
        100 * BLOCK,
    );
    let entries = ["a", "b", "c"]
        .iter()
        .map(|name| reported(name, 1, BLOCK))
        .collect();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
    world.found("a");
    assert_eq!(
        world.master.metrics().promotion.admitted,
        1,
        "there is room, and one read is enough"
    );
    for n in 0..18 {
        world.put(&format!("k{n}"), BLOCK);
    }
    world.found("b");
    let funnel = |world: &World| {
        (
            world.master.metrics().promotion.admitted,
            world.master.metrics().promotion.rejected_index,
        )
    };
    assert_eq!(funnel(&world), (1, 1), "no better than what has just come");
    world.pass(seconds(3600));
    world.found("c");
    assert_eq!(
        funnel(&world),
        (2, 1),
        "better than what was not read for an hour"
    );
}
