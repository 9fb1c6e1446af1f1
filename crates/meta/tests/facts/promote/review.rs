//! What the public review of a promotion on hit required; `rN` names the requirement.

use slackwater_meta::{MasterConfig, OnHit, Promotion};
use slackwater_wire::*;

use super::*;
use crate::world::*;

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

/// An object was being promoted into a segment when a job was to copy it there, or the other way about: it had two replicas
/// on one segment, and the second one was of no use.
#[test]
fn a_promotion_and_a_copy_do_not_meet_on_one_segment() {
    let copy = || {
        Request::StartJob(JobSpec {
            work: JobWork::Copy {
                tenant: Tenant::DEFAULT,
                key: key("a"),
                targets: vec![format!("segment-{MEMORY}")],
            },
            concurrency: 0,
            bytes_per_second: None,
            time: None,
        })
    };
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    let extent = staged(&mut world, task.ticket, task.bytes);
    assert!(extent.is_some());
    world.ask(copy());
    assert!(world.copies.is_empty(), "it is on its way there");
    let mut world = cold(Promotion::default(), &["a"]);
    let task = earn(&mut world, "a");
    world.ask(copy());
    assert_eq!(world.copies.len(), 1);
    assert_eq!(staged(&mut world, task.ticket, task.bytes), None);
}
