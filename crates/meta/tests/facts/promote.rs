//! Promotion on hit. `rN` names the requirement of the public review that a fact stands for.

use std::time::Duration;

use slackwater_meta::{
    Input, MasterConfig, Offload, OffloadMode, OnHit, Promotion, PromotionMetrics, Tenancy,
};
use slackwater_wire::*;

use crate::world::*;

fn config(promotion: Promotion) -> MasterConfig {
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
fn cold_as(config: MasterConfig, names: &[&str]) -> World {
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

fn cold(promotion: Promotion, names: &[&str]) -> World {
    cold_as(config(promotion), names)
}

fn tasks(world: &mut World) -> Vec<Vec<PromoteTask>> {
    world.taken(|order| {
        if let Order::Promote(tasks) = order {
            Some(tasks.clone())
        } else {
            None
        }
    })
}

fn task(world: &mut World) -> PromoteTask {
    let mut orders = tasks(world);
    assert_eq!(
        (orders.len(), orders[0].len()),
        (1, 1),
        "one order with one task"
    );
    orders.remove(0).remove(0)
}

/// Reads often enough and takes the task that this earns.
fn earn(world: &mut World, name: &str) -> PromoteTask {
    world.found(name);
    world.found(name);
    task(world)
}

fn staged(world: &mut World, ticket: TicketId, bytes: u64) -> Option<ExtentRef> {
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

fn finish(world: &mut World, task: &PromoteTask) {
    let extent = staged(world, task.ticket, task.bytes).expect("there is room");
    world.report(
        NODE,
        Report::Promoted {
            ticket: task.ticket,
            extent,
        },
    );
}

fn funnel(world: &World) -> PromotionMetrics {
    world.master.metrics().promotion
}

fn cancelled(world: &mut World, ticket: TicketId) -> bool {
    let is = |order: &Order| {
        matches!(order, Order::Cancel { ticket: other } if *other == ticket).then_some(())
    };
    !world.taken(is).is_empty()
}

fn in_memory(world: &mut World, name: &str) -> bool {
    matches!(world.found(name).replicas[0], ReplicaAt::Memory(_))
}

#[test]
fn r1_a_burst_is_delivered_in_bounded_orders_hottest_first_and_none_is_lost() {
    let names: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = cold(
        Promotion {
            batch_max: 3,
            ..Promotion::default()
        },
        &names,
    );
    for name in &names {
        world.found(name);
        world.found(name);
    }
    for _ in 0..5 {
        world.found("k19");
    }
    let first: Vec<PromoteTask> = tasks(&mut world).concat();
    assert_eq!(first.len(), 3, "no more than the node may work on");
    let mut open = first;
    let mut order = Vec::new();
    while let Some(task) = open.pop() {
        order.push(task.entry.key.to_string());
        finish(&mut world, &task);
        let next = tasks(&mut world).concat();
        assert!(
            next.len() <= 1,
            "a slot that is free takes one more at once"
        );
        open.extend(next);
    }
    assert_eq!(order.len(), 20, "every one is served once");
    assert_eq!(
        order[1], "k19",
        "of those that waited the hottest goes first"
    );
    assert_eq!(funnel(&world).completed, 20);
}

#[test]
fn r2_reads_before_touch_the_ssd_and_reads_after_do_not() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    assert_eq!(
        (
            world.master.metrics().get_disk_hits,
            world.master.metrics().get_memory_hits
        ),
        (2, 0)
    );
    finish(&mut world, &task);
    world.found("a");
    assert_eq!(
        (
            world.master.metrics().get_disk_hits,
            world.master.metrics().get_memory_hits
        ),
        (2, 1)
    );
}

#[test]
fn r3_memory_is_named_before_ssd_as_soon_as_it_is_published() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    let extent = staged(&mut world, task.ticket, task.bytes).unwrap();
    assert!(!in_memory(&mut world, "a"), "staged is not published");
    world.report(
        NODE,
        Report::Promoted {
            ticket: task.ticket,
            extent,
        },
    );
    let replicas = world.found("a").replicas;
    assert_eq!(
        replicas,
        [
            ReplicaAt::Memory(extent),
            ReplicaAt::Disk {
                node: NODE,
                segment: DISK
            }
        ]
    );
}

#[test]
fn r4_expiry_frees_the_staged_room() {
    let mut world = cold(
        Promotion {
            window: seconds(5),
            ..Promotion::default()
        },
        &["a"],
    );
    let task = earn(&mut world, "a");
    staged(&mut world, task.ticket, task.bytes).unwrap();
    assert_eq!(world.used(MEMORY), BLOCK);
    world.pass(seconds(6));
    assert_eq!(
        (
            world.used(MEMORY),
            funnel(&world).expired,
            funnel(&world).in_flight
        ),
        (0, 1, 0)
    );
    assert!(
        cancelled(&mut world, task.ticket),
        "the node is told to forget it"
    );
}

#[test]
fn r5_one_cap_for_the_whole_cluster() {
    let mut world = cold(
        Promotion {
            queue_limit: 1,
            ..Promotion::default()
        },
        &["a", "b"],
    );
    earn(&mut world, "a");
    world.found("b");
    world.found("b");
    assert_eq!(
        (funnel(&world).admitted, funnel(&world).rejected_cap),
        (1, 1)
    );
    assert!(tasks(&mut world).is_empty());
}

#[test]
fn r6_every_exit_gives_the_slot_back() {
    type Exit = fn(&mut World, &PromoteTask);
    let exits: [(&str, Exit); 5] = [
        ("success", finish),
        ("failure", |world, task| {
            let failure = PromotionFailure::Device;
            world.report(
                NODE,
                Report::PromotionFailed {
                    ticket: task.ticket,
                    failure,
                },
            );
        }),
        ("expiry", |world, _| world.pass(seconds(11))),
        ("cancel", |world, _| {
            assert_eq!(world.remove_with("a", true), Ok(()))
        }),
        ("refusal", |world, task| {
            assert_eq!(staged(world, task.ticket, task.bytes + 1), None)
        }),
    ];
    for (name, exit) in exits {
        for (slots, promotion) in [
            (
                "of the cluster",
                Promotion {
                    queue_limit: 1,
                    ..Promotion::default()
                },
            ),
            (
                "of the node",
                Promotion {
                    batch_max: 1,
                    ..Promotion::default()
                },
            ),
        ] {
            let mut world = cold(promotion, &["a", "b"]);
            let task = earn(&mut world, "a");
            exit(&mut world, &task);
            assert_eq!(funnel(&world).in_flight, 0, "{name}, the slot {slots}");
            earn(&mut world, "b");
            let metrics = funnel(&world);
            assert_eq!(
                (metrics.admitted, metrics.in_flight),
                (2, 1),
                "{name}, the slot {slots}"
            );
        }
    }
}

/// A promotion that expired or was refused at staging gave its node's slot back, and nobody gave the slot to the promotion
/// that waited for it: that one expired in the queue, unless a read happened to earn another one on the same node.
#[test]
fn the_next_in_the_queue_is_sent_whichever_way_a_promotion_ends() {
    let exits: [(&str, fn(&mut World, &PromoteTask)); 5] = [
        ("completion", finish),
        ("failure", |world, task| {
            let failure = PromotionFailure::Device;
            world.report(
                NODE,
                Report::PromotionFailed {
                    ticket: task.ticket,
                    failure,
                },
            );
        }),
        ("expiry", |world, _| world.pass(seconds(6))),
        ("cancel", |world, _| {
            assert_eq!(world.remove_with("a", true), Ok(()))
        }),
        ("refusal", |world, task| {
            assert_eq!(staged(world, task.ticket, task.bytes + 1), None)
        }),
    ];
    for (name, exit) in exits {
        let mut world = cold(
            Promotion {
                batch_max: 1,
                window: seconds(10),
                ..Promotion::default()
            },
            &["a", "b"],
        );
        let first = earn(&mut world, "a");
        world.pass(seconds(5));
        world.found("b");
        world.found("b");
        assert!(tasks(&mut world).is_empty(), "{name}: the slot is taken");
        exit(&mut world, &first);
        let next = task(&mut world);
        assert_eq!(next.entry.key, key("b"), "{name}");
    }
}

#[test]
fn r7_waiting_and_transfer_each_have_their_own_window() {
    let mut world = cold(
        Promotion {
            window: seconds(10),
            ..Promotion::default()
        },
        &["a"],
    );
    let task = earn(&mut world, "a");
    world.pass(seconds(9));
    let extent = staged(&mut world, task.ticket, task.bytes).unwrap();
    world.pass(seconds(9));
    world.report(
        NODE,
        Report::Promoted {
            ticket: task.ticket,
            extent,
        },
    );
    assert_eq!((funnel(&world).completed, funnel(&world).expired), (1, 0));
}

#[test]
fn r8_only_the_holder_publishes_and_only_the_staged_extent() {
    let mut world = cold(Promotion::default(), &["a", "b"]);
    let task = earn(&mut world, "a");
    let extent = staged(&mut world, task.ticket, task.bytes).unwrap();
    world.report(
        NodeId(9),
        Report::Promoted {
            ticket: task.ticket,
            extent,
        },
    );
    world.report(
        NodeId(9),
        Report::PromotionFailed {
            ticket: task.ticket,
            failure: PromotionFailure::Device,
        },
    );
    assert!(!in_memory(&mut world, "a"));
    assert_eq!(funnel(&world).in_flight, 1, "others cannot end it either");
    let wrong = ExtentRef {
        generation: extent.generation + 1,
        ..extent
    };
    world.report(
        NODE,
        Report::Promoted {
            ticket: task.ticket,
            extent: wrong,
        },
    );
    assert_eq!((funnel(&world).failed, world.used(MEMORY)), (1, 0));

    let other = earn(&mut world, "b");
    world.report(
        NODE,
        Report::Promoted {
            ticket: other.ticket,
            extent,
        },
    );
    assert_eq!(
        (funnel(&world).failed, world.used(MEMORY)),
        (2, 0),
        "nothing was staged"
    );
}

#[test]
fn r9_failure_frees_at_once_and_may_be_said_twice() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    staged(&mut world, task.ticket, task.bytes).unwrap();
    for _ in 0..2 {
        let failure = PromotionFailure::Device;
        world.report(
            NODE,
            Report::PromotionFailed {
                ticket: task.ticket,
                failure,
            },
        );
        assert_eq!((world.used(MEMORY), funnel(&world).failed), (0, 1));
    }
    earn(&mut world, "a");
}

#[test]
fn r11_racing_readers_earn_one_promotion() {
    let mut world = cold(Promotion::default(), &["a"]);
    for client in 1..50 {
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a"); 3],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        };
        world.ask_as(ClientId(client), Request::Get(get));
    }
    assert_eq!(
        (funnel(&world).admitted, tasks(&mut world).concat().len()),
        (1, 1)
    );
}

#[test]
fn r12_staging_is_refused_when_the_promotion_was_reaped() {
    let mut world = cold(
        Promotion {
            window: seconds(5),
            ..Promotion::default()
        },
        &["a"],
    );
    let task = earn(&mut world, "a");
    world.pass(seconds(6));
    assert!(cancelled(&mut world, task.ticket));
    assert_eq!(staged(&mut world, task.ticket, task.bytes), None);
    assert!(
        cancelled(&mut world, task.ticket),
        "the late node is told again"
    );
    assert_eq!(
        (world.used(MEMORY), world.master.books().replicas),
        (0, 1),
        "no replica without an owner"
    );
}

#[test]
fn r13_another_size_than_admitted_is_refused() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    assert_eq!(staged(&mut world, task.ticket, task.bytes - 1), None);
    assert_eq!((funnel(&world).failed, world.used(MEMORY)), (1, 0));
    assert!(cancelled(&mut world, task.ticket));
}

#[test]
fn r14_nothing_is_promoted_when_it_is_off_in_memory_or_not_on_ssd() {
    let quiet = |world: &mut World, name: &str| {
        for _ in 0..10 {
            world.get(name);
        }
        assert_eq!((funnel(world).admitted, tasks(world).len()), (0, 0));
    };
    let off = MasterConfig {
        promotion: Promotion {
            on_hit: OnHit::Stay,
            ..Promotion::DEFAULT
        },
        ..config(Promotion::default())
    };
    quiet(&mut cold_as(off, &["a"]), "a");
    quiet(&mut cold(Promotion::default(), &["a"]), "absent");
    let mut world = cold(Promotion::default(), &[]);
    world.put("a", BLOCK);
    quiet(&mut world, "a");
}

#[test]
fn r15_every_read_is_counted_under_the_tier_that_served_it() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    finish(&mut world, &task);
    for reads in 1..=1000 {
        world.found("a");
        let metrics = world.master.metrics();
        assert_eq!((metrics.get_disk_hits, metrics.get_memory_hits), (2, reads));
        assert_eq!(
            (metrics.get_disk_bytes, metrics.get_memory_bytes),
            (2 * BLOCK, reads * BLOCK)
        );
    }
}

#[test]
fn seldom_read_keys_stay_where_they_are() {
    let mut world = cold(
        Promotion {
            threshold: 3,
            ..Promotion::default()
        },
        &["a"],
    );
    world.found("a");
    world.found("a");
    assert_eq!(
        (funnel(&world).rejected_frequency, funnel(&world).admitted),
        (2, 0)
    );
    world.found("a");
    assert_eq!(funnel(&world).admitted, 1);
}

#[test]
fn a_promotion_is_ordered_by_the_very_read_that_earns_it() {
    let mut world = cold(Promotion::default(), &["a"]);
    let before = world.now;
    earn(&mut world, "a");
    assert_eq!(world.now, before);
}

#[test]
fn probes_and_descriptions_promote_nothing() {
    let mut world = cold(Promotion::default(), &["a"]);
    for _ in 0..10 {
        world.ask(Request::Exists(Exists {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
        }));
        assert!(world.has("a"));
    }
    assert_eq!(
        (funnel(&world).admitted, funnel(&world).rejected_frequency),
        (0, 0)
    );
}

#[test]
fn a_full_holder_makes_way_and_the_refused_key_is_tried_again() {
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
    check(short, seconds(1), 0, 1);
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
fn the_byte_budget_spaces_promotions_out() {
    let promotion = Promotion {
        bytes_per_second: Some(10 * BLOCK),
        ..Promotion::default()
    };
    let names: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = cold(promotion, &names);
    for name in &names {
        world.found(name);
        world.found(name);
    }
    let at_once = tasks(&mut world).concat().len();
    assert!((1..=2).contains(&at_once), "{at_once} at once");
    world.pass(Duration::from_millis(500));
    let after = tasks(&mut world).concat().len();
    assert!((4..=6).contains(&after), "{after} in half a second");
    world.pass(seconds(2));
    assert_eq!(at_once + after + tasks(&mut world).concat().len(), 12);
}

#[test]
fn the_promoted_copy_survives_the_next_eviction_pass() {
    let mut world = cold(
        Promotion {
            grace: seconds(10),
            ..Promotion::default()
        },
        &["a"],
    );
    let task = earn(&mut world, "a");
    finish(&mut world, &task);
    // Its first read used to end its grace: a guard that was given back made any replica a victim again.
    let Lookup::Found(object) = world.get_with("a", Hold::Guard) else {
        panic!("it was promoted")
    };
    world.ask(Request::GetEnd(GetEnd {
        guards: vec![object.guard.unwrap()],
    }));
    for n in 0..200 {
        world.start(&format!("k{n}"), BLOCK, PutConfig::default());
        world.input(Input::ClientLost(ME));
        world.put(&format!("p{n}"), BLOCK);
        offload_all(&mut world);
    }
    assert!(in_memory(&mut world, "a"), "it has its grace");
    assert_eq!(
        world.remove_with("a", true),
        Ok(()),
        "which keeps nobody from removing it"
    );
}

#[test]
fn removal_cancels_what_is_queued_or_sent_and_waits_for_what_is_staged() {
    let mut world = cold(
        Promotion {
            batch_max: 1,
            ..Promotion::default()
        },
        &["sent", "queued"],
    );
    let sent = earn(&mut world, "sent");
    world.found("queued");
    world.found("queued");
    assert_eq!(world.remove_with("queued", true), Ok(()));
    assert_eq!(funnel(&world).cancelled, 1);
    let extent = staged(&mut world, sent.ticket, sent.bytes).unwrap();
    assert_eq!(
        world.remove_with("sent", true),
        Err(ErrorCode::ReplicaIsNotReady)
    );
    world.report(
        NODE,
        Report::Promoted {
            ticket: sent.ticket,
            extent,
        },
    );
    assert_eq!(world.remove_with("sent", true), Ok(()));
    assert_eq!(
        (world.get("sent"), world.used(MEMORY)),
        (Lookup::Missing, 0)
    );
}

#[test]
fn a_sent_promotion_of_a_removed_object_publishes_nothing() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    assert_eq!(world.remove_with("a", true), Ok(()));
    assert!(cancelled(&mut world, task.ticket));
    world.put("a", BLOCK);
    assert_eq!(staged(&mut world, task.ticket, task.bytes), None);
    assert_eq!(funnel(&world).cancelled, 1);
}

#[test]
fn an_upsert_waits_for_the_promotion_and_a_put_in_flight_keeps_it_away() {
    let mut world = cold(Promotion::default(), &["a", "b"]);
    let task = earn(&mut world, "a");
    assert_eq!(
        world.start("a", BLOCK, upsert()),
        PutStarted::Failed(ErrorCode::ObjectHasReplicationTask)
    );
    finish(&mut world, &task);
    assert!(matches!(
        world.start("a", BLOCK, upsert()),
        PutStarted::Granted { .. }
    ));

    world.start("b", BLOCK, upsert());
    world.found("b");
    world.found("b");
    assert_eq!(funnel(&world).admitted, 1, "b is being replaced");
}

#[test]
fn a_lost_owner_cancels_its_promotions() {
    for stage in [false, true] {
        let mut world = cold(Promotion::default(), &["a"]);
        let task = earn(&mut world, "a");
        if stage {
            staged(&mut world, task.ticket, task.bytes).unwrap();
        }
        world.input(Input::NodeLost(NODE));
        let metrics = funnel(&world);
        assert_eq!((metrics.cancelled, metrics.in_flight), (1, 0));
        let books = world.master.books();
        assert_eq!((books.objects, books.replicas, books.deadlines), (0, 0, 0));
    }
}

#[test]
fn unmounting_the_staged_segment_cancels_and_keeps_the_record() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    staged(&mut world, task.ticket, task.bytes).unwrap();
    assert_eq!(world.ask(Request::Unmount { segment: MEMORY }), Reply::Done);
    assert_eq!((funnel(&world).cancelled, world.has("a")), (1, true));
    assert!(cancelled(&mut world, task.ticket));
}

#[test]
fn a_corrupt_record_is_dropped_and_its_object_with_it() {
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    staged(&mut world, task.ticket, task.bytes).unwrap();
    let failure = PromotionFailure::Corrupt;
    world.report(
        NODE,
        Report::PromotionFailed {
            ticket: task.ticket,
            failure,
        },
    );
    assert_eq!(
        (world.get("a"), world.used(MEMORY), world.used(DISK)),
        (Lookup::Missing, 0, 0)
    );
}

#[test]
fn quota_is_charged_at_staging_and_refunded() {
    let tenant = Tenant::new("acme").unwrap();
    let config = MasterConfig {
        tenancy: Tenancy::On,
        ..config(Promotion::default())
    };
    let mut world = World::tiers(config, 64 * BLOCK, 1024 * BLOCK);
    let quota = |memory_bytes| Request::SetQuota {
        tenant: tenant.clone(),
        memory_bytes,
        disk_bytes: 100 * BLOCK,
    };
    assert_eq!(world.ask(quota(0)), Reply::Done);
    let entry = DiskEntry {
        tenant: tenant.clone(),
        ..reported("a", 1, BLOCK).entry
    };
    let entries = vec![ReportedEntry {
        entry,
        ..reported("a", 1, BLOCK)
    }];
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
    let get = Get {
        tenant: tenant.clone(),
        keys: vec![key("a")],
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only: false,
    };
    let earn = |world: &mut World| {
        for _ in 0..2 {
            world.ask(Request::Get(get.clone()));
        }
        task(world)
    };
    let refused = earn(&mut world);
    assert_eq!(
        staged(&mut world, refused.ticket, refused.bytes),
        None,
        "there is no quota for it"
    );
    assert_eq!(funnel(&world).failed, 1);
    assert_eq!(world.ask(quota(BLOCK)), Reply::Done);
    let task = earn(&mut world);
    let charged = |world: &World| {
        world
            .master
            .books()
            .tenants
            .iter()
            .map(|state| state.memory_bytes)
            .sum::<u64>()
    };
    staged(&mut world, task.ticket, task.bytes).unwrap();
    assert_eq!(charged(&world), BLOCK);
    let failure = PromotionFailure::Device;
    world.report(
        NODE,
        Report::PromotionFailed {
            ticket: task.ticket,
            failure,
        },
    );
    assert_eq!(charged(&world), 0);
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
fn group_below_a_full_memory() -> World {
    let mut world = cold(
        Promotion {
            watermark: 0.5,
            ..Promotion::default()
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

/// A member that was refused and tried again was admitted alone, and its group stayed on SSD until somebody read the
/// rest often enough.
#[test]
fn a_member_that_is_tried_again_brings_its_group() {
    let mut world = group_below_a_full_memory();
    world.found("a");
    assert_eq!(funnel(&world).candidates, 1);
    empty_memory(&mut world);
    world.pass(Duration::from_millis(50));
    assert_eq!(promoted_names(&mut world), ["a", "b"]);
}

/// A refused member was promoted with its group, and went on being tried again all the same.
#[test]
fn a_member_that_comes_with_its_group_is_not_tried_again() {
    let mut world = group_below_a_full_memory();
    world.found("b");
    assert_eq!(funnel(&world).candidates, 1);
    empty_memory(&mut world);
    world.found("a");
    assert_eq!(promoted_names(&mut world), ["a", "b"]);
    assert_eq!(funnel(&world).candidates, 0);
}
