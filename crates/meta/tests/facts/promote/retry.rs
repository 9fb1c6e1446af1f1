//! Promotions that are refused for lack of room are tried again.

use std::time::Duration;

use slackwater_meta::{Eviction, MasterConfig, Promotion};
use slackwater_wire::*;

use super::*;
use crate::world::*;

#[test]
fn a_full_node_evicts_and_the_refused_key_is_tried_again() {
    let mut world = cold(
        Promotion {
            watermark: 0.5,
            ..Promotion::default()
        },
        &["hot"],
    );
    for n in 0..40 {
        world.put(&format!("k{n}"), BLOCK);
    }
    world.found("hot");
    world.found("hot");
    let metrics = funnel(&world);
    assert_eq!(
        (
            metrics.rejected_watermark,
            metrics.candidate_recorded,
            metrics.admitted
        ),
        (1, 1, 0)
    );
    for n in 0..40 {
        assert_eq!(world.remove(&format!("k{n}")), Ok(()));
    }
    world.pass(Duration::from_millis(50));
    let metrics = funnel(&world);
    assert_eq!(
        (
            metrics.admitted,
            metrics.candidate_admitted,
            metrics.candidates
        ),
        (1, 1, 0)
    );
}

#[test]
fn a_candidate_is_given_up_after_its_retries_or_its_time() {
    let check = |promotion: Promotion, pass: Duration, evaluated: u64, unevaluated: u64| {
        let mut world = cold(
            Promotion {
                watermark: 0.0,
                ..promotion
            },
            &["a"],
        );
        world.found("a");
        world.found("a");
        world.pass(pass);
        let metrics = funnel(&world);
        let expired = (
            metrics.candidate_expired_evaluated,
            metrics.candidate_expired_unevaluated,
        );
        assert_eq!(expired, (evaluated, unevaluated));
        assert_eq!((metrics.candidates, metrics.admitted), (0, 0));
        assert_eq!(world.master.books().deadlines, 0);
    };
    check(Promotion::default(), seconds(60), 1, 0);
    check(
        Promotion {
            candidate_retries: 0,
            ..Promotion::default()
        },
        seconds(1),
        0,
        1,
    );
    let short = Promotion {
        candidate_ttl: Duration::from_millis(5),
        ..Promotion::default()
    };
    check(short, Duration::from_millis(5), 0, 1);
}

/// Each key that was refused once woke the master for itself, more than a thousand times a second under load.
#[test]
fn candidates_of_one_pause_are_tried_together() {
    let names = ["a", "b", "c", "d", "e"];
    let promotion = Promotion {
        watermark: 0.0,
        ..Promotion::default()
    };
    let (pause, between) = (promotion.backoff.first, Duration::from_millis(1));
    let mut world = cold(promotion, &names);
    let into_pause = world.now.as_nanos() % pause.as_nanos() as u64;
    world.pass(pause - Duration::from_nanos(into_pause));
    for name in names {
        world.pass(between);
        world.found(name);
        world.found(name);
    }
    let tries = |pauses: u32, world: &mut World| {
        let before = funnel(world).candidate_admission_rejected;
        let mut steps = Vec::new();
        for _ in 0..pauses * pause.as_millis() as u32 {
            world.pass(between);
            steps.push(funnel(world).candidate_admission_rejected - before);
        }
        steps.dedup();
        steps
    };
    assert_eq!(tries(2, &mut world), [0, 5]);
    assert_eq!(tries(2, &mut world), [0, 5]);
}

#[test]
fn of_candidates_that_find_room_the_hottest_goes_first() {
    let names: Vec<String> = (0..12).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let promotion = Promotion {
        watermark: 0.5,
        batch_max: 1,
        ..Promotion::default()
    };
    let mut world = cold(promotion, &names);
    for n in 0..40 {
        world.put(&format!("k{n}"), BLOCK);
    }
    for name in &names {
        world.found(name);
        world.found(name);
    }
    for _ in 0..5 {
        world.found("c11");
    }
    for n in 0..40 {
        assert_eq!(world.remove(&format!("k{n}")), Ok(()));
    }
    world.pass(Duration::from_millis(100));
    assert_eq!(funnel(&world).candidate_admitted, 12);
    let mut order = Vec::new();
    while let Some(task) = tasks(&mut world).concat().pop() {
        order.push(task.entry.key.to_string());
        finish(&mut world, &task);
    }
    assert_eq!(order.len(), 12);
    let at = order.iter().position(|name| name == "c11");
    assert!(
        at <= Some(1),
        "the first that is tried again goes at once: {order:?}"
    );
}

#[test]
fn candidates_are_bounded() {
    let promotion = Promotion {
        watermark: 0.0,
        candidates_limit: 1,
        ..Promotion::default()
    };
    let mut world = cold(promotion, &["a", "b"]);
    for name in ["a", "a", "b", "b"] {
        world.found(name);
    }
    let metrics = funnel(&world);
    assert_eq!(
        (metrics.candidates, metrics.candidate_dropped_limit),
        (1, 1)
    );
}

#[test]
fn retries_do_not_count_as_reads() {
    let promotion = Promotion {
        watermark: 0.0,
        threshold: 3,
        ..Promotion::default()
    };
    let mut world = cold(promotion, &["a"]);
    for _ in 0..3 {
        world.found("a");
    }
    world.pass(seconds(60));
    assert!(funnel(&world).candidate_admission_rejected >= 8);
    assert_eq!(
        funnel(&world).rejected_frequency,
        2,
        "three reads are three reads"
    );
}

#[test]
fn no_room_at_staging_is_a_failure_and_a_candidate() {
    let mut world = cold(
        Promotion {
            watermark: 1.0,
            ..Promotion::default()
        },
        &["a"],
    );
    let task = earn(&mut world, "a");
    for n in 0..60 {
        world.start(&format!("k{n}"), BLOCK, PutConfig::default());
    }
    for n in 60..64 {
        world.start(&format!("k{n}"), BLOCK, PutConfig::default());
    }
    assert_eq!(world.used(MEMORY), 64 * BLOCK);
    assert_eq!(staged(&mut world, task.ticket, task.bytes), None);
    let metrics = funnel(&world);
    assert_eq!(
        (
            metrics.failed,
            metrics.candidate_recorded,
            metrics.in_flight
        ),
        (1, 1, 0)
    );
}

/// Two members of a group, on SSD alone, below a memory that is too full to promote either.
fn group_below_a_full_memory(promotion: Promotion) -> World {
    let mut world = cold(
        Promotion {
            watermark: 0.5,
            ..promotion
        },
        &[],
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
    for n in 0..64 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    assert!(!in_memory(&mut world, "a") && !in_memory(&mut world, "b"));
    world
}

fn empty_memory(world: &mut World) {
    for n in 0..64 {
        assert_eq!(world.remove_with(&format!("k{n}"), true), Ok(()));
    }
}

fn promoted_names(world: &mut World) -> Vec<String> {
    tasks(world)
        .concat()
        .iter()
        .map(|task| task.entry.key.to_string())
        .collect()
}

/// A member that was refused and tried again was admitted alone, and its group stayed on SSD until the rest was read
/// often enough.
#[test]
fn a_member_that_is_tried_again_is_promoted_with_its_group() {
    let mut world = group_below_a_full_memory(Promotion::default());
    world.found("a");
    assert_eq!(funnel(&world).candidates, 1);
    empty_memory(&mut world);
    world.pass(Duration::from_millis(50));
    assert_eq!(promoted_names(&mut world), ["a", "b"]);
}

/// A refused member was promoted with its group, and was still tried again.
#[test]
fn a_member_that_comes_with_its_group_is_not_tried_again() {
    let mut world = group_below_a_full_memory(Promotion::default());
    world.found("b");
    assert_eq!(funnel(&world).candidates, 1);
    empty_memory(&mut world);
    world.found("a");
    assert_eq!(promoted_names(&mut world), ["a", "b"]);
    assert_eq!(funnel(&world).candidates, 0);
}

/// Memory was full of values on their way to SSD, and counted as nearly empty. Each read of a value on SSD had a promotion
/// admitted that found no room when it was staged: a hundred times as many as came to an end.
#[test]
fn what_is_leaving_memory_is_no_room_for_a_promotion_until_it_has_left() {
    let config = MasterConfig {
        eviction: Eviction {
            high_watermark: 0.5,
            low_watermark: 0.25,
            ..Eviction::default()
        },
        ..config(Promotion::default())
    };
    let mut world = cold_as(config, &["hot"]);
    for n in 0..60 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let leaving = offloads(&mut world);
    assert!(!leaving.is_empty(), "some are being evicted");
    let mut n = 0;
    while world.used(MEMORY) < 64 * BLOCK {
        world.start(&format!("more{n}"), BLOCK, PutConfig::default());
        n += 1;
    }
    world.found("hot");
    world.found("hot");
    let metrics = funnel(&world);
    assert_eq!((metrics.rejected_watermark, metrics.admitted), (1, 0));
}

/// A queue of one promotion, and a node that finished none in time: each member of a group that was tried again pushed the
/// other one out and was remembered with no retries used up, so that the two took turns for ever without a read.
#[test]
fn members_that_push_each_other_out_of_the_queue_are_given_up() {
    let mut world = group_below_a_full_memory(Promotion {
        queue_limit: 1,
        window: Duration::from_millis(1),
        candidate_ttl: seconds(3600),
        ..Promotion::default()
    });
    world.found("a");
    empty_memory(&mut world);
    world.pass(seconds(1800));
    let metrics = funnel(&world);
    assert!(metrics.admitted > 0 && metrics.in_flight == 0);
    assert_eq!(metrics.candidates, 0);
    assert_eq!(world.master.books().deadlines, 0);
}
