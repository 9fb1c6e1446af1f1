//! How a promotion is admitted, sent and ended.

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, Promotion, Tenancy};
use slackwater_wire::*;

use super::*;
use crate::world::*;

/// A promotion that expired or was refused at staging freed its node's slot, but the slot was not given to the
/// promotion that waited for it: that one expired in the queue, unless a read caused another promotion on the same
/// node.
#[test]
fn the_next_in_the_queue_is_sent_whichever_way_a_promotion_ends() {
    let exits: [(&str, Exit); 5] = [
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
fn rarely_read_keys_are_not_promoted() {
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
fn a_promotion_is_ordered_by_the_read_that_reaches_the_threshold() {
    let mut world = cold(Promotion::default(), &["a"]);
    let before = world.now;
    earn(&mut world, "a");
    assert_eq!(world.now, before);
}

#[test]
fn a_node_with_an_ssd_alone_promotes_nothing() {
    let other = NodeId(2);
    let mut world = World::memory(config(Promotion::default()), 64 * BLOCK);
    world.mount(other, DISK, SegmentKind::Disk, 64 * BLOCK);
    let entries = vec![reported("a", 1, BLOCK)];
    let segment = DISK;
    world.report(other, Report::Announce { segment, entries });
    let highest = Version(1);
    world.report(other, Report::Announced { segment, highest });
    for _ in 0..5 {
        world.found("a");
    }
    assert_eq!(funnel(&world).admitted, 0);
    assert_eq!(tasks(&mut world), Vec::<Vec<PromoteTask>>::new());
}

#[test]
fn probes_and_descriptions_promote_nothing() {
    let mut world = cold(Promotion::default(), &["a"]);
    for _ in 0..10 {
        world.ask(Request::Exists(Exists {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")].into(),
        }));
        assert!(world.has("a"));
    }
    assert_eq!(
        (funnel(&world).admitted, funnel(&world).rejected_frequency),
        (0, 0)
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
        "which does not prevent its removal"
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

/// It was refused for as long as the promotion took, which writers were told as an error.
#[test]
fn an_upsert_ends_the_promotion_of_what_it_replaces_and_keeps_others_away() {
    for stage in [false, true] {
        let mut world = cold(Promotion::default(), &["a", "b"]);
        let task = earn(&mut world, "a");
        let extent = stage.then(|| staged(&mut world, task.ticket, task.bytes).unwrap());
        let PutStarted::Granted { version, .. } = world.start("a", BLOCK, upsert()) else {
            panic!("refused");
        };
        assert!(cancelled(&mut world, task.ticket));
        assert_eq!(funnel(&world).cancelled, 1);
        let ticket = task.ticket;
        match extent {
            Some(extent) => world.report(NODE, Report::Promoted { ticket, extent }),
            None => assert_eq!(staged(&mut world, ticket, task.bytes), None),
        }
        let before = world.found("a");
        assert!(before.version < version, "what was there can be read");
        assert!(matches!(before.replicas[..], [ReplicaAt::Disk { .. }]));
        assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
        let after = world.found("a");
        assert_eq!(after.version, version);
        assert!(matches!(after.replicas[..], [ReplicaAt::Memory(_)]));

        world.start("b", BLOCK, upsert());
        world.found("b");
        world.found("b");
        assert_eq!(funnel(&world).admitted, 1, "b is being replaced");
    }
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
