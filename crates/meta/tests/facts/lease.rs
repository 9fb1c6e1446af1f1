use slackwater_meta::Input;
use slackwater_wire::*;

use crate::world::*;

fn world() -> World {
    World::memory(plain(), 16 * BLOCK)
}

fn exists(world: &mut World, name: &str) -> bool {
    let reply = world.ask(Request::Exists(Exists {
        tenant: Tenant::DEFAULT,
        keys: vec![key(name)].into(),
    }));
    reply == Reply::Exists(vec![true])
}

/// Puts so much that everything that may be evicted is.
fn flood(world: &mut World) {
    for n in 0..40 {
        let call = world.send(
            ME,
            start(
                &format!("flood{n}-{}", world.now),
                BLOCK,
                wait(std::time::Duration::ZERO),
            ),
        );
        if let Some(Reply::PutStart(results)) = world.reply(call)
            && let PutStarted::Granted { version, .. } = results[0]
        {
            world.end(ME, &format!("flood{n}-{}", world.now), version);
        }
    }
}

/// Keys of one call are prepared together, and each has the answer that it has alone.
#[test]
fn truths_of_many_keys_are_in_their_order() {
    let mut world = world();
    for name in ["a", "c", "d"] {
        world.put(name, BLOCK);
    }
    // More than are prepared at once.
    let names = ["a", "b", "c", "a", "d", "e", "f"].repeat(40);
    let keys: Vec<Key> = names.into_iter().map(key).collect();
    let asked = Request::Exists(Exists {
        tenant: Tenant::DEFAULT,
        keys: keys.into(),
    });
    let there = [true, false, true, true, true, false, false].repeat(40);
    assert_eq!(world.ask(asked), Reply::Exists(there));
    // Each of them has a lease now.
    for name in ["a", "c", "d"] {
        assert_eq!(world.remove(name), Err(ErrorCode::ObjectHasLease));
    }
}

/// The places of one key are gathered in what the next key uses too.
#[test]
fn each_key_of_a_look_up_has_its_own_replicas() {
    let mut world = world();
    let names = ["a", "b", "c"];
    for name in names {
        world.put(name, BLOCK);
    }
    // Of a node that is here no more than was found is named.
    world.input(Input::NodeAway(NODE));
    let alone = names.map(|name| world.found(name).replicas);
    let get = Get {
        tenant: Tenant::DEFAULT,
        keys: names.map(key).to_vec(),
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only: false,
    };
    let Reply::Get(lookups) = world.ask(Request::Get(get)) else {
        panic!("no look-ups");
    };
    for (lookup, alone) in lookups.iter().zip(alone) {
        let Lookup::Found(object) = lookup else {
            panic!("{lookup:?}");
        };
        assert_eq!((object.replicas.len(), &object.replicas), (1, &alone));
    }
}

#[test]
fn a_read_blocks_eviction_and_removal_for_the_ttl() {
    let mut world = world();
    world.put("a", BLOCK);
    world.found("a");
    flood(&mut world);
    assert!(world.has("a"));
    assert_eq!(world.remove("a"), Err(ErrorCode::ObjectHasLease));
    world.pass(seconds(10));
    flood(&mut world);
    assert!(!world.has("a"));
}

/// A client that reads where it knows an object to be asks nobody: what it read most was evicted first.
#[test]
fn reads_that_needed_no_look_up_lease_as_others_do() {
    let mut world = world();
    for name in ["a", "b", "c"] {
        world.put(name, BLOCK);
    }
    let call = |names: &[&str]| ReadCall {
        keys: names.iter().map(|name| key(name)).collect(),
        versions: Vec::new(),
        chain: Chain::default(),
    };
    let reads = |calls| {
        Request::Reads(Reads {
            tenant: Tenant::DEFAULT,
            calls,
        })
    };
    let reply = world.ask(reads(vec![call(&["a", "gone"]), call(&["b"])]));
    let Reply::Get(lookups) = reply else {
        panic!("{reply:?}");
    };
    let found =
        |lookup: &Lookup| matches!(lookup, Lookup::Found(object) if !object.lease.is_zero());
    assert_eq!(
        lookups.iter().map(found).collect::<Vec<_>>(),
        [true, false, true]
    );
    flood(&mut world);
    assert_eq!(
        ["a", "b", "c"].map(|name| world.has(name)),
        [true, true, false]
    );
    let names: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    let many = names.iter().map(|name| call(&[name])).collect();
    assert_eq!(
        world.ask(reads(many)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
}

/// A client told of its reads within a second, by key: what another client had put in the place of what was read was leased,
/// and could not be removed.
#[test]
fn a_report_of_reads_leases_only_the_versions_that_were_read() {
    let mut world = world();
    let read = ["a", "b"].map(|name| world.put(name, BLOCK));
    assert_eq!(world.remove("a"), Ok(()));
    world.put("a", BLOCK);
    let report = |keys: &[&str], versions: &[Version]| {
        Request::Reads(Reads {
            tenant: Tenant::DEFAULT,
            calls: vec![ReadCall {
                keys: keys.iter().map(|name| key(name)).collect(),
                versions: versions.to_vec(),
                chain: Chain::default(),
            }],
        })
    };
    let Reply::Get(lookups) = world.ask(report(&["a", "b"], &read)) else {
        panic!("a report is answered as a look-up is");
    };
    assert!(matches!(lookups[..], [Lookup::Missing, Lookup::Found(_)]));
    let misses = world.master.metrics().get_misses;
    assert_eq!(misses, 0, "it was there when it was read");
    assert_eq!(world.remove("a"), Ok(()));
    assert_eq!(world.remove("b"), Err(ErrorCode::ObjectHasLease));
    assert_eq!(
        world.ask(report(&["b"], &read)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
}

#[test]
fn a_forced_removal_overrides_leases() {
    let mut world = world();
    world.put("a", BLOCK);
    world.found("a");
    assert_eq!(world.remove_with("a", true), Ok(()));
    assert_eq!(world.remove_with("a", true), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn probes_lease_once_and_never_for_ever() {
    let mut world = world();
    world.put("a", BLOCK);
    assert!(exists(&mut world, "a"));
    flood(&mut world);
    assert!(world.has("a"), "the first probe leases");
    for _ in 0..11 {
        assert!(exists(&mut world, "a"));
        world.pass(seconds(1));
    }
    flood(&mut world);
    assert!(!exists(&mut world, "a"), "later probes prolong nothing");
}

#[test]
fn probes_answer_what_is_readable() {
    let mut world = world();
    assert!(!exists(&mut world, "a"));
    let PutStarted::Granted { version, .. } = world.start("a", 1, PutConfig::default()) else {
        panic!()
    };
    assert!(!exists(&mut world, "a"));
    world.end(ME, "a", version);
    assert!(exists(&mut world, "a"));
}

#[test]
fn a_guard_holds_until_it_ends_or_its_client_is_lost() {
    let ends: [fn(&mut World, GuardId); 2] = [
        |world, guard| {
            assert_eq!(
                world.ask(Request::GetEnd(GetEnd {
                    guards: vec![guard]
                })),
                Reply::Done
            )
        },
        |world, _| world.input(Input::ClientLost(ME)),
    ];
    for end in ends {
        let mut world = world();
        world.put("a", BLOCK);
        let Lookup::Found(object) = world.get_with("a", Hold::Guard) else {
            panic!()
        };
        world.pass(seconds(1000));
        flood(&mut world);
        assert!(world.has("a"));
        assert_eq!(world.remove("a"), Err(ErrorCode::ObjectHasLease));
        end(&mut world, object.guard.unwrap());
        flood(&mut world);
        assert!(!world.has("a"));
    }
}

#[test]
fn bytes_under_a_guard_outlive_their_object() {
    let mut world = world();
    world.put("a", BLOCK);
    let Lookup::Found(object) = world.get_with("a", Hold::Guard) else {
        panic!()
    };
    assert_eq!(world.remove_with("a", true), Ok(()));
    assert_eq!(
        (world.get("a"), world.used(MEMORY)),
        (Lookup::Missing, BLOCK)
    );
    assert_eq!(world.master.books().orphans, 1);
    let guards = vec![object.guard.unwrap()];
    world.ask_as(
        OTHER,
        Request::GetEnd(GetEnd {
            guards: guards.clone(),
        }),
    );
    assert_eq!(world.used(MEMORY), BLOCK, "a guard is its client's");
    for _ in 0..2 {
        world.ask(Request::GetEnd(GetEnd {
            guards: guards.clone(),
        }));
        assert_eq!((world.used(MEMORY), world.master.books().orphans), (0, 0));
    }
}

#[test]
fn a_group_is_leased_and_evicted_together() {
    let mut world = world();
    let grouped = || PutConfig {
        group: Some(1),
        ..PutConfig::default()
    };
    for name in ["a", "b", "c"] {
        world.put_with(name, BLOCK, grouped());
    }
    world.found("b");
    flood(&mut world);
    assert!(world.has("a") && world.has("b") && world.has("c"));
    assert_eq!(world.remove("a"), Err(ErrorCode::ObjectHasLease));
    world.pass(seconds(10));
    flood(&mut world);
    assert!(!world.has("a") && !world.has("b") && !world.has("c"));
}

#[test]
fn a_guarded_member_holds_its_group_and_its_end_frees_it() {
    let mut world = world();
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
    let Lookup::Found(object) = world.get_with("b", Hold::Guard) else {
        panic!()
    };
    flood(&mut world);
    assert!(world.has("a") && world.has("b"));
    world.ask(Request::GetEnd(GetEnd {
        guards: vec![object.guard.unwrap()],
    }));
    flood(&mut world);
    assert!(!world.has("a") && !world.has("b"));
}

/// At the end of every read of a member all members were examined again, and for each of them all others: with a group
/// of tens of thousands, one read took minutes.
#[test]
fn reads_of_a_held_group_do_not_examine_its_members_again() {
    let mut world = world();
    for n in 0..12 {
        world.put_with(
            &format!("m{n}"),
            BLOCK,
            PutConfig {
                group: Some(1),
                ..PutConfig::default()
            },
        );
    }
    let guard = |world: &mut World, name| match world.get_with(name, Hold::Guard) {
        Lookup::Found(object) => object.guard.unwrap(),
        other => panic!("{other:?}"),
    };
    let first = guard(&mut world, "m0");
    flood(&mut world);
    let excluded = world.master.metrics().victims_excluded;
    for _ in 0..10 {
        let second = guard(&mut world, "m1");
        world.ask(Request::GetEnd(GetEnd {
            guards: vec![second],
        }));
        flood(&mut world);
    }
    let again = world.master.metrics().victims_excluded - excluded;
    assert!(
        again <= 10,
        "only the one that was read is tried again: {again}"
    );
    assert!((0..12).all(|n| world.has(&format!("m{n}"))));
    world.ask(Request::GetEnd(GetEnd {
        guards: vec![first],
    }));
    flood(&mut world);
    assert!((0..12).all(|n| !world.has(&format!("m{n}"))));
}

/// A hard-pinned member lost its last replica while an upsert of it was in flight, and its object stayed for the upsert's
/// sake. The upsert ended as a first put does and set its own pin, but the old pin was never given back: the group was
/// held for ever, and none of its members could be evicted again.
#[test]
fn an_upsert_of_what_was_lost_holds_its_group_no_longer() {
    for group in [None, Some(1)] {
        for again in [Pin::None, Pin::Hard] {
            let mut world = world();
            let (other, its_memory) = (NodeId(2), SegmentId(9));
            world.mount(other, its_memory, SegmentKind::Memory, 20 * BLOCK);
            let on = |segment: &str, pin, group| PutConfig {
                pin,
                group,
                preferred: vec![segment.to_owned()],
                ..PutConfig::default()
            };
            world.put_with("a", BLOCK, on("segment-9", Pin::Hard, Some(1)));
            world.put_with("b", BLOCK, on("segment-1", Pin::None, Some(1)));
            let config = PutConfig {
                mode: PutMode::Upsert,
                ..on("segment-1", again, group)
            };
            let PutStarted::Granted { version, .. } = world.start("a", BLOCK, config) else {
                panic!("no room")
            };
            world.input(Input::NodeLost(other));
            assert_eq!(
                world.end(ME, "a", version),
                Reply::Each(vec![Ok(())]),
                "and the books balance"
            );
            flood(&mut world);
            let held = group.is_some() && again == Pin::Hard;
            assert_eq!(world.has("b"), held, "group {group:?}, pin {again:?}");
        }
    }
}

/// A hard-pinned member whose last copy was lost with its record held its group no longer. The put that waited for the
/// others' room was not served: it waited until its time was over.
#[test]
fn the_loss_of_a_pinned_member_serves_puts_that_wait_for_its_group() {
    let mut world = World::tiers(plain(), 4 * BLOCK, 1024 * BLOCK);
    let pinned = || PutConfig {
        pin: Pin::Hard,
        group: Some(1),
        durability: Durability::Disk,
        ..PutConfig::default()
    };
    let PutStarted::Granted { version, .. } = world.start("pinned", BLOCK, pinned()) else {
        panic!("no room")
    };
    world.send(ME, end("pinned", version));
    offload_all(&mut world);
    let clear = ReplicaClear {
        tenant: Tenant::DEFAULT,
        keys: vec![key("pinned")],
        segment: Some("segment-1".to_owned()),
    };
    assert_eq!(
        world.ask(Request::ReplicaClear(clear)),
        Reply::Each(vec![Ok(())])
    );
    for name in ["a", "b", "c", "d"] {
        world.put_with(
            name,
            BLOCK,
            PutConfig {
                group: Some(1),
                ..PutConfig::default()
            },
        );
    }
    let call = world.send(ME, start("next", BLOCK, wait(seconds(60))));
    world.pass(seconds(20));
    assert_eq!(world.reply(call), None, "the pin holds the group");
    world.report(
        NODE,
        Report::Lost(vec![reported("pinned", version.0, BLOCK).entry]),
    );
    world.pass(std::time::Duration::ZERO);
    let Some(Reply::PutStart(results)) = world.reply(call) else {
        panic!("it still waits")
    };
    assert!(
        matches!(results[0], PutStarted::Granted { .. }),
        "{results:?}"
    );
}

#[test]
fn soft_pins_go_last_and_hard_pins_never() {
    let mut world = world();
    world.put_with(
        "hard",
        BLOCK,
        PutConfig {
            pin: Pin::Hard,
            ..PutConfig::default()
        },
    );
    world.put_with(
        "soft",
        BLOCK,
        PutConfig {
            pin: Pin::Soft(None),
            ..PutConfig::default()
        },
    );
    flood(&mut world);
    assert!(
        world.has("hard") && world.has("soft"),
        "others could be evicted"
    );
    for n in 0..14 {
        let config = PutConfig {
            pin: Pin::Hard,
            ..PutConfig::default()
        };
        let PutStarted::Granted { version, .. } = world.start(&format!("h{n}"), BLOCK, config)
        else {
            break;
        };
        world.end(ME, &format!("h{n}"), version);
    }
    world.start("more", BLOCK, PutConfig::default());
    assert!(
        world.has("hard") && !world.has("soft"),
        "nothing unpinned was left"
    );
}

#[test]
fn a_soft_pin_is_over_after_its_time() {
    let mut world = world();
    world.put_with(
        "soft",
        BLOCK,
        PutConfig {
            pin: Pin::Soft(Some(seconds(60))),
            ..PutConfig::default()
        },
    );
    world.pass(seconds(30));
    world.found("soft");
    world.pass(seconds(30));
    flood(&mut world);
    assert!(!world.has("soft"), "reads do not prolong it");
}

#[test]
fn a_description_does_not_count_as_a_read() {
    let mut world = world();
    world.put("a", BLOCK);
    let before = world.master.metrics().clone();
    assert!(world.has("a"));
    assert_eq!(*world.master.metrics(), before);
    flood(&mut world);
    assert!(!world.has("a"));
}
