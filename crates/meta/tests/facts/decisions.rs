//! What is told of single decisions, and for whom they are kept.

use std::time::Duration;

use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{
    Choice, Eviction, EvictionCause, Input, MasterConfig, Offload, OffloadCause, OffloadMode,
    OffloadRefusal, OnHit, Promotion, PromotionCause, PromotionRefusal, Tenancy,
};
use slackwater_wire::*;

use crate::world::*;

/// Decisions of one kind that are kept between two looks.
const KEPT_A_LOOK: usize = 16;

/// The latest decisions, without those about keys that were told before.
fn told(world: &mut World) -> Vec<(String, Choice)> {
    let (latest, _) = world.master.decisions();
    let latest = latest.into_iter();
    latest.map(|it| (it.key.to_string(), it.choice)).collect()
}

fn evicted(cause: EvictionCause, last: bool) -> Choice {
    Choice::Evicted { cause, last }
}

fn config(mode: OffloadMode) -> MasterConfig {
    MasterConfig {
        offload: Offload {
            mode,
            ..Offload::default()
        },
        lease_ttl: Duration::from_millis(1),
        ..plain()
    }
}

fn fill(world: &mut World, count: usize) {
    for n in 0..count {
        world.put(&format!("k{n}"), BLOCK);
    }
}

#[test]
fn nothing_is_kept_before_somebody_looks_and_a_few_of_each_kind_between_looks() {
    let mut world = World::memory(config(OffloadMode::Off), 64 * BLOCK);
    fill(&mut world, 200);
    let before = world.master.metrics().evictions;
    assert!(before > 100);
    assert_eq!(world.master.decisions(), (Vec::new(), before));
    for n in 200..300 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let made = world.master.metrics().evictions;
    let (latest, counted) = world.master.decisions();
    assert_eq!((latest.len(), counted), (KEPT_A_LOOK, made));
    let numbers: Vec<u64> = latest.iter().map(|it| it.number - before).collect();
    assert_eq!(numbers, (1..=KEPT_A_LOOK as u64).collect::<Vec<_>>());
    let first = &latest[0];
    assert_eq!((first.segment, first.tier), (MEMORY, SegmentKind::Memory));
    assert_eq!((first.bytes, first.at), (BLOCK, world.now));
    assert!(first.tenant.is_default());
    // However often somebody looks, the latest of one kind take no more than their own room.
    for n in 300..2000 {
        world.put(&format!("k{n}"), BLOCK);
        world.master.decisions();
    }
    let (latest, _) = world.master.decisions();
    assert_eq!(latest.len(), KEPT_A_LOOK);
    assert!(latest.windows(2).all(|two| two[0].number < two[1].number));
}

#[test]
fn a_rating_is_told_with_what_goes() {
    for (policy, rated) in [(PolicyKind::Adaptive, true), (PolicyKind::Lru, false)] {
        let eviction = Eviction {
            policy,
            ..plain().eviction
        };
        let mut world = World::memory(
            MasterConfig {
                eviction,
                ..config(OffloadMode::Off)
            },
            64 * BLOCK,
        );
        world.master.decisions();
        world.put("read", BLOCK);
        world.found("read");
        world.pass(seconds(60));
        fill(&mut world, 100);
        let (latest, _) = world.master.decisions();
        assert!(
            latest.iter().all(|it| it.rating.is_some() == rated),
            "{policy:?}"
        );
        if let Some(rating) = &latest[0].rating {
            assert!(
                rating.class.contains("reused") && rating.returns.len() > 1,
                "{rating:?}"
            );
        }
    }
}

#[test]
fn an_eviction_says_what_becomes_of_the_value() {
    let mut world = World::tiers(config(OffloadMode::OnEvict), 20 * BLOCK, 1024 * BLOCK);
    world.master.decisions();
    fill(&mut world, 20);
    let first = told(&mut world).remove(0);
    assert_eq!(first.1, Choice::Offloaded(OffloadCause::Eviction));
    offload_all(&mut world);
    let all = told(&mut world);
    let of_first: Vec<Choice> = all
        .iter()
        .filter(|it| it.0 == first.0)
        .map(|it| it.1)
        .collect();
    assert_eq!(
        of_first,
        [
            Choice::Offloaded(OffloadCause::Eviction),
            evicted(EvictionCause::Written, false)
        ]
    );
    // Without an SSD that accepts anything the last copy goes.
    let mut world = World::memory(config(OffloadMode::OnEvict), 20 * BLOCK);
    world.master.decisions();
    fill(&mut world, 20);
    let all = told(&mut world);
    let choices: Vec<Choice> = all.iter().map(|it| it.1).take(2).collect();
    assert_eq!(
        choices,
        [
            Choice::NotOffloaded(OffloadRefusal::NoDisk),
            evicted(EvictionCause::Room, true)
        ]
    );
    assert_eq!(all[0].0, all[1].0);
}

#[test]
fn an_eager_offload_and_its_later_eviction_are_told() {
    let mut world = World::tiers(config(OffloadMode::Eager), 20 * BLOCK, 1024 * BLOCK);
    world.master.decisions();
    world.put("a", BLOCK);
    assert_eq!(
        told(&mut world),
        [("a".to_owned(), Choice::Offloaded(OffloadCause::Eager))]
    );
    offload_all(&mut world);
    for n in 0..20 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    assert!(told(&mut world).contains(&("a".to_owned(), evicted(EvictionCause::Room, false))));
}

#[test]
fn a_tenant_at_its_quota_is_named_as_the_cause() {
    let tenancy = Tenancy::On;
    let mut world = World::memory(
        MasterConfig {
            tenancy,
            ..config(OffloadMode::Off)
        },
        100 * BLOCK,
    );
    let of = Tenant::new("a").unwrap();
    let set = |blocks: u64| Request::SetQuota {
        tenant: Tenant::new("a").unwrap(),
        memory_bytes: blocks * BLOCK,
        disk_bytes: BLOCK,
    };
    assert_eq!(world.ask(set(10)), Reply::Done);
    for n in 0..8 {
        let Request::PutStart(request) = start(&format!("k{n}"), BLOCK, PutConfig::default())
        else {
            panic!()
        };
        let request = Request::PutStart(PutStart {
            tenant: of.clone(),
            ..request
        });
        let Reply::PutStart(started) = world.ask(request) else {
            panic!()
        };
        let PutStarted::Granted { version, .. } = started[0] else {
            panic!()
        };
        let Request::PutEnd(ended) = end(&format!("k{n}"), version) else {
            panic!()
        };
        world.ask(Request::PutEnd(PutEnd {
            tenant: of.clone(),
            ..ended
        }));
    }
    world.master.decisions();
    assert_eq!(world.ask(set(4)), Reply::Done);
    let (latest, _) = world.master.decisions();
    assert!(latest.len() >= 4, "{latest:?}");
    assert!(
        latest
            .iter()
            .all(|it| it.choice == evicted(EvictionCause::Quota, true) && it.tenant == of)
    );
}

#[test]
fn promotions_name_the_reads_and_the_gate() {
    let promotion = |it: Promotion| MasterConfig {
        promotion: Promotion {
            on_hit: OnHit::Promote,
            ..it
        },
        ..config(OffloadMode::OnEvict)
    };
    let cold = |config: MasterConfig, names: &[&str]| {
        let mut world = World::tiers(config, 64 * BLOCK, 1024 * BLOCK);
        let entries = names.iter().map(|name| reported(name, 1, BLOCK)).collect();
        let segment = DISK;
        world.report(NODE, Report::Announce { segment, entries });
        world.master.decisions();
        world
    };
    let mut world = cold(
        promotion(Promotion {
            threshold: 2,
            queue_limit: 1,
            ..Promotion::default()
        }),
        &["a", "b"],
    );
    world.found("a");
    world.found("a");
    world.found("b");
    world.found("b");
    let refused = |refusal| Choice::NotPromoted(refusal);
    let expected = [
        ("a", refused(PromotionRefusal::Reads(1))),
        ("a", Choice::Promoted(PromotionCause::Reads(2))),
        ("b", refused(PromotionRefusal::Reads(1))),
        ("b", refused(PromotionRefusal::Busy)),
    ];
    assert_eq!(
        told(&mut world),
        expected.map(|(name, choice)| (name.to_owned(), choice))
    );
    let (latest, _) = world.master.decisions();
    assert_eq!(
        (latest[0].segment, latest[0].tier),
        (DISK, SegmentKind::Disk)
    );
    let mut world = cold(
        promotion(Promotion {
            watermark: 0.0,
            ..Promotion::default()
        }),
        &["a"],
    );
    world.found("a");
    world.found("a");
    let last = told(&mut world).pop();
    assert_eq!(
        last,
        Some(("a".to_owned(), refused(PromotionRefusal::Watermark)))
    );
}

/// An eviction said that a value was gone when its other replica was at a node without a link, and the value was there again a
/// moment later.
#[test]
fn a_value_with_a_replica_at_a_node_that_is_away_is_not_gone() {
    let mut world = World::memory(config(OffloadMode::Off), 20 * BLOCK);
    let other = NodeId(2);
    world.mount(other, SegmentId(20), SegmentKind::Memory, 20 * BLOCK);
    let two = PutConfig {
        replicas: 2,
        ..PutConfig::default()
    };
    world.put_with("two", BLOCK, two);
    world.pass(seconds(60));
    world.input(Input::NodeAway(other));
    world.master.decisions();
    fill(&mut world, 20);
    let all = told(&mut world);
    let first = (all[0].0.as_str(), all[0].1);
    assert_eq!(first, ("two", evicted(EvictionCause::Room, false)));
    assert_eq!(all[1].1, evicted(EvictionCause::Room, true));
}

/// Values that went to SSD and those that were refused for it shared their places: where every offload was refused, none that
/// was made was told of.
#[test]
fn refused_offloads_leave_room_for_those_that_are_made() {
    let config = MasterConfig {
        offload: Offload {
            mode: OffloadMode::Eager,
            queue_limit: 1,
            ..Offload::default()
        },
        ..config(OffloadMode::Eager)
    };
    let mut world = World::tiers(config, 64 * BLOCK, 1024 * BLOCK);
    world.put("busy", BLOCK);
    world.master.decisions();
    for name in 0..KEPT_A_LOOK + 4 {
        world.put(&format!("k{name}"), BLOCK);
    }
    offload_all(&mut world);
    world.put("made", BLOCK);
    let all = told(&mut world);
    let made = all.iter().find(|it| matches!(it.1, Choice::Offloaded(_)));
    assert!(made.is_some(), "{all:?}");
}
