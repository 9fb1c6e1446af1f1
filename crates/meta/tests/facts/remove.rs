use slackwater_meta::{Input, Limits, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

fn world() -> World {
    World::tiers(plain(), 1024 * BLOCK, 1024 * BLOCK)
}

fn matching(pattern: &str, force: bool) -> Request {
    Request::RemoveMatching(RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: pattern.to_owned(),
        force,
    })
}

fn list(pattern: Option<&str>, after: Option<&str>, limit: u32) -> Request {
    let after = after.map(key);
    Request::List(List {
        tenant: Tenant::DEFAULT,
        pattern: pattern.map(str::to_owned),
        after,
        limit,
    })
}

fn names(reply: Reply) -> (Vec<String>, bool) {
    let Reply::List(listed) = reply else {
        panic!("{reply:?}")
    };
    (
        listed.keys.iter().map(ToString::to_string).collect(),
        listed.more,
    )
}

#[test]
fn removal_frees_and_a_second_one_finds_nothing() {
    let mut world = world();
    world.put("a", BLOCK);
    assert_eq!(world.remove("a"), Ok(()));
    assert_eq!(world.remove("a"), Err(ErrorCode::ObjectNotFound));
    assert_eq!((world.get("a"), world.used(MEMORY)), (Lookup::Missing, 0));
}

#[test]
fn what_is_being_written_cannot_be_removed_even_by_force() {
    let mut world = world();
    world.start("a", 1, PutConfig::default());
    assert_eq!(
        world.remove_with("a", true),
        Err(ErrorCode::ReplicaIsNotReady)
    );
}

#[test]
fn patterns_search_anywhere_in_the_key() {
    let mut world = world();
    for name in ["user-1/a", "user-1/b", "user-2/a"] {
        world.put(name, 1);
    }
    assert_eq!(
        world.ask(matching("(", false)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
    assert_eq!(
        world.ask(matching(&"(a{100}){100}".repeat(99), false)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
    assert_eq!(world.ask(matching("er-1", false)), Reply::Count(2));
    assert_eq!(world.ask(matching("^er", false)), Reply::Count(0));
    assert!(world.has("user-2/a"));
}

#[test]
fn removal_of_many_skips_what_is_leased_unless_forced() {
    let mut world = world();
    for name in ["a", "b", "c"] {
        world.put(name, 1);
    }
    world.start("open", 1, PutConfig::default());
    world.found("b");
    let all = |force| {
        Request::RemoveAll(RemoveAll {
            tenant: None,
            force,
        })
    };
    assert_eq!(world.ask(all(false)), Reply::Count(2));
    assert_eq!(world.ask(all(true)), Reply::Count(1));
    assert_eq!(world.master.books().objects, 1, "the put in flight goes on");
}

#[test]
fn a_long_scan_lets_requests_through() {
    let limits = Limits {
        scan_step: 10,
        scans: 1,
        ..Limits::default()
    };
    let mut world = World::memory(MasterConfig { limits, ..plain() }, 1024 * BLOCK);
    for n in 0..100 {
        world.put(&format!("k{n:03}"), 1);
    }
    let call = world.send(ME, matching("k", false));
    assert_eq!(world.reply(call), None);
    assert!(world.has("k099"), "served in between");
    assert_eq!(
        world.ask(matching("k", false)),
        Reply::Failed(ErrorCode::TaskPendingLimitExceeded)
    );
    world.pass(seconds(0));
    assert_eq!(world.reply(call), Some(Reply::Count(100)));
}

#[test]
fn lists_come_in_order_and_in_pages() {
    let limits = Limits {
        scan_step: 3,
        ..Limits::default()
    };
    let mut world = World::memory(MasterConfig { limits, ..plain() }, 1024 * BLOCK);
    for name in ["d", "b", "a", "c", "x"] {
        world.put(name, 1);
    }
    let mut page = |request: Request| {
        let call = world.send(ME, request);
        world.pass(seconds(0));
        names(world.reply(call).unwrap())
    };
    assert_eq!(
        page(list(None, None, 3)),
        (vec!["a".into(), "b".into(), "c".into()], true)
    );
    assert_eq!(
        page(list(None, Some("c"), 3)),
        (vec!["d".into(), "x".into()], false)
    );
    assert_eq!(page(list(Some("[ax]"), None, 1)), (vec!["a".into()], true));
    assert_eq!(
        world.ask(list(None, None, 0)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
}

#[test]
fn a_removal_is_acknowledged_when_no_crash_can_undo_it() {
    let mut world = world();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.obedient = false;
    let call = world.send(ME, remove("a", false));
    assert_eq!((world.reply(call), world.get("a")), (None, Lookup::Missing));
    let again = world.send(OTHER, remove("a", false));
    assert_eq!(world.reply(again), None, "nor is a second one");
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(
        world.reply(again),
        Some(Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]))
    );
}

#[test]
fn removal_of_many_waits_for_all_their_records() {
    for request in [
        matching("k", false),
        Request::RemoveAll(RemoveAll {
            tenant: None,
            force: false,
        }),
    ] {
        let mut world = world();
        let entries = (0..5)
            .map(|n| reported(&format!("k{n}"), 1, BLOCK))
            .collect();
        world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries,
            },
        );
        world.obedient = false;
        let call = world.send(ME, request);
        assert_eq!((world.reply(call), world.master.books().drops), (None, 5));
        world.obey();
        assert_eq!(world.reply(call), Some(Reply::Count(5)));
    }
}

/// A removal of many looked at every drop under way in one step, under the lock that all others wait for.
#[test]
fn removal_of_many_waits_for_drops_that_are_under_way_however_many_steps_that_takes() {
    let limits = Limits {
        scan_step: 2,
        ..Limits::default()
    };
    let config = MasterConfig { limits, ..plain() };
    let mut world = World::tiers(config, 1024 * BLOCK, 1024 * BLOCK);
    let entries = (0..7)
        .map(|n| reported(&format!("k{n}"), 1, BLOCK))
        .collect();
    let segment = DISK;
    world.report(NODE, Report::Announce { segment, entries });
    world.obedient = false;
    let removals: Vec<_> = (0..7)
        .map(|n| world.send(ME, remove(&format!("k{n}"), false)))
        .collect();
    let others = world.send(OTHER, matching("k[1-6]", false));
    world.pass(seconds(0));
    assert_eq!((world.reply(others), world.master.books().drops), (None, 7));
    let last = world.orders.pop_back();
    world.obey();
    let Some((node, Order::Drop(entries))) = last else {
        panic!("{last:?}");
    };
    assert_eq!(world.reply(others), None);
    world.report(node, Report::Dropped(entries));
    assert_eq!(world.reply(others), Some(Reply::Count(0)));
    for removal in removals {
        assert_eq!(world.reply(removal), Some(Reply::Each(vec![Ok(())])));
    }
}

#[test]
fn an_overwrite_is_acknowledged_when_the_old_record_is_gone() {
    let mut world = world();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.obedient = false;
    let PutStarted::Granted { version, .. } = world.start("a", 1, upsert()) else {
        panic!()
    };
    let call = world.send(ME, end("a", version));
    assert_eq!(
        (world.reply(call), world.found("a").version),
        (None, version),
        "seen, but not yet acknowledged"
    );
    let again = world.send(ME, end("a", version));
    assert_eq!(
        world.reply(again),
        None,
        "a repeated end promises no more than the first"
    );
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(world.reply(again), Some(Reply::Each(vec![Ok(())])));
}

#[test]
fn a_put_after_an_unfinished_removal_waits_for_it_too() {
    let mut world = world();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.obedient = false;
    world.send(ME, remove("a", false));
    let PutStarted::Granted { version, .. } = world.start("a", 1, PutConfig::default()) else {
        panic!()
    };
    let call = world.send(ME, end("a", version));
    assert_eq!(world.reply(call), None);
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
}

#[test]
fn a_node_lost_before_it_dropped_fails_the_removal_and_is_told_again() {
    let mut world = world();
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.obedient = false;
    let call = world.send(ME, remove("a", false));
    world.input(Input::NodeLost(NODE));
    let unavailable = ErrorCode::UnavailableInCurrentStatus;
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Err(unavailable)])));
    world.orders.clear();
    world.mount(NODE, DISK, SegmentKind::Disk, 1024 * BLOCK);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    assert_eq!(world.get("a"), Lookup::Missing);
    let drops = world.taken(|order| {
        if let Order::Drop(entries) = order {
            Some(entries.clone())
        } else {
            None
        }
    });
    assert_eq!(drops.concat(), [reported("a", 1, BLOCK).entry]);
}

/// A node is away while its keys are removed in every possible way; its announcement must not bring them back.
#[test]
fn what_is_removed_while_a_node_is_away_stays_removed() {
    let removals: [fn(&mut World); 4] = [
        |world| assert_eq!(world.remove("a"), Err(ErrorCode::ObjectNotFound)),
        |world| assert_eq!(world.ask(matching("a", false)), Reply::Count(0)),
        |world| {
            assert_eq!(
                world.ask(Request::RemoveAll(RemoveAll {
                    tenant: None,
                    force: true
                })),
                Reply::Count(0)
            )
        },
        |world| {
            world.mount(NodeId(2), SegmentId(9), SegmentKind::Memory, MIB);
            world.put("a", 1);
            assert_eq!(world.remove("a"), Ok(()));
        },
    ];
    for removal in removals {
        let mut world = world();
        let entries = || vec![reported("a", 1, BLOCK), reported("b", 2, BLOCK)];
        world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries: entries(),
            },
        );
        world.input(Input::NodeLost(NODE));
        removal(&mut world);
        world.mount(NODE, DISK, SegmentKind::Disk, 1024 * BLOCK);
        world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries: entries(),
            },
        );
        assert_eq!(world.get("a"), Lookup::Missing);
        world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries: vec![],
            },
        );
        world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries: vec![reported("c", 3, BLOCK)],
            },
        );
        assert!(world.has("c"));
    }
}

/// A master restarted, a client put a key and removed it with all others, and the node whose SSD held an older value
/// of the key mounted only then: the older value was served (seed 501455 of the decaying disk). The same happened
/// after an eviction of the newer value.
#[test]
fn what_is_removed_before_a_node_is_met_stays_removed() {
    let put_and_remove: fn(&mut World) = |world| {
        world.put("a", 1);
        assert_eq!(world.remove("a"), Ok(()));
    };
    let put_and_remove_all: fn(&mut World) = |world| {
        world.put("a", 1);
        let all = RemoveAll {
            tenant: None,
            force: true,
        };
        assert_eq!(world.ask(Request::RemoveAll(all)), Reply::Count(3));
    };
    let remove_matching: fn(&mut World) =
        |world| assert_eq!(world.ask(matching("a", false)), Reply::Count(0));
    let put_and_lose: fn(&mut World) = |world| {
        world.put("a", 1);
        world.input(Input::NodeLost(NodeId(2)));
    };
    let check = |nodes: usize, happens: fn(&mut World), expect: [bool; 2]| {
        let limits = Limits {
            nodes,
            ..Limits::default()
        };
        let mut world = World::new(MasterConfig { limits, ..plain() });
        world.mount(NodeId(2), SegmentId(9), SegmentKind::Memory, MIB);
        // The versions of this master are above those of the one before it.
        world.put("first", 1);
        world.mount(NodeId(3), SegmentId(10), SegmentKind::Disk, MIB);
        let entries = vec![reported("z", 40, BLOCK)];
        let segment = SegmentId(10);
        world.report(NodeId(3), Report::Announce { segment, entries });
        let highest = Version(40);
        world.report(NodeId(3), Report::Announced { segment, highest });
        happens(&mut world);
        world.mount(NODE, DISK, SegmentKind::Disk, MIB);
        for _ in 0..2 {
            let entries = vec![reported("a", 30, BLOCK), reported("b", 31, BLOCK)];
            let segment = DISK;
            world.report(NODE, Report::Announce { segment, entries });
        }
        assert_eq!(["a", "b"].map(|name| world.has(name)), expect, "{nodes}");
    };
    check(2, put_and_remove, [false, true]);
    check(2, remove_matching, [false, true]);
    check(2, put_and_lose, [false, true]);
    check(2, put_and_remove_all, [false, false]);
    check(2, |_| {}, [true, true]);
    check(1, |_| {}, [false, false]);
}

/// An announcement of a record of this version: of key `a`, or of another when it only tells of the version.
fn announcement(segment: SegmentId, version: u64) -> Report {
    let name = if segment == DISK { "a" } else { "z" };
    let entries = vec![reported(name, version, BLOCK)];
    Report::Announce { segment, entries }
}

/// A step of a story about two nodes with an SSD.
#[derive(Clone, Copy, Debug)]
enum Step {
    Mount(NodeId, SegmentId),
    /// The node has announced everything.
    Announced(NodeId, SegmentId),
    Lose(NodeId),
    /// A value is put and its only replica is lost: nothing is ordered of anyone, and the key is unknown again.
    PutAndLose,
}

/// Removals are kept as long as a node may come that was not told, and no longer than they are needed.
#[test]
fn removals_stay_until_every_node_has_announced_its_records() {
    use Step::*;
    const OTHER: (NodeId, SegmentId) = (NodeId(3), SegmentId(10));
    let mount = Mount(OTHER.0, OTHER.1);
    let announced = Announced(OTHER.0, OTHER.1);
    let check = |nodes: usize, steps: &[Step]| {
        let limits = Limits {
            nodes,
            ..Limits::default()
        };
        let mut world = World::new(MasterConfig { limits, ..plain() });
        let highest = Version(40);
        for step in steps {
            match *step {
                Mount(node, segment) => world.mount(node, segment, SegmentKind::Disk, MIB),
                Announced(node, segment) => {
                    world.report(node, Report::Announced { segment, highest });
                }
                Lose(node) => world.input(Input::NodeLost(node)),
                PutAndLose => {
                    world.mount(NodeId(2), SegmentId(9), SegmentKind::Memory, MIB);
                    world.put("first", 1);
                    world.report(OTHER.0, announcement(OTHER.1, 40));
                    world.put("a", 1);
                    world.input(Input::NodeLost(NodeId(2)));
                }
            }
        }
        world.report(NODE, announcement(DISK, 30));
        assert!(!world.has("a"), "{nodes}: {steps:?}");
    };
    // Another node has announced its records, and this one has not been met.
    check(3, &[mount, PutAndLose, announced, Mount(NODE, DISK)]);
    // No further node may come, but this one has not announced its records when another has.
    check(2, &[mount, PutAndLose, Mount(NODE, DISK), announced]);
    // Every node that may come was met, and this one is away.
    let begun = [mount, announced, Mount(NODE, DISK), Announced(NODE, DISK)];
    let away = [Lose(NODE), PutAndLose, Mount(NODE, DISK)];
    check(2, &[&begun[..], &away].concat());
}

#[test]
fn too_many_removals_while_a_node_is_away_give_up_what_it_holds() {
    let limits = Limits {
        owed: 2,
        ..Limits::default()
    };
    let mut world = World::tiers(MasterConfig { limits, ..plain() }, MIB, MIB);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("z", 1, 1)],
        },
    );
    world.input(Input::NodeLost(NODE));
    for name in ["a", "b", "c"] {
        assert_eq!(world.remove(name), Err(ErrorCode::ObjectNotFound));
    }
    world.mount(NODE, DISK, SegmentKind::Disk, MIB);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("z", 1, 1)],
        },
    );
    assert!(!world.has("z"), "forgotten rather than brought back");
}

/// The limits of removals that are kept for a node were shared by all tenants: one that removed many unknown keys, or by
/// many patterns, made the master give up the records of every other.
#[test]
fn a_tenant_that_removes_much_loses_its_own_records_only() {
    let tenant = |name: &str| Tenant::new(name).expect("a valid name");
    let many_keys: fn(&mut World, &Tenant) = |world, beta| {
        for name in ["a", "b", "c"] {
            let remove = Remove {
                tenant: beta.clone(),
                keys: vec![key(name)],
                force: false,
            };
            let missing = Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]);
            assert_eq!(world.ask(Request::Remove(remove)), missing);
        }
    };
    let many_patterns: fn(&mut World, &Tenant) = |world, beta| {
        for _ in 0..65 {
            let remove = RemoveMatching {
                tenant: beta.clone(),
                pattern: "nothing".into(),
                force: false,
            };
            assert_eq!(world.ask(Request::RemoveMatching(remove)), Reply::Count(0));
        }
    };
    let all: fn(&mut World, &Tenant) = |world, beta| {
        let remove = RemoveAll {
            tenant: Some(beta.clone()),
            force: false,
        };
        assert_eq!(world.ask(Request::RemoveAll(remove)), Reply::Count(0));
    };
    for happens in [many_keys, many_patterns, all] {
        let config = MasterConfig {
            tenancy: slackwater_meta::Tenancy::On,
            limits: Limits {
                owed: 2,
                ..Limits::default()
            },
            ..plain()
        };
        let mut world = World::tiers(config, MIB, MIB);
        let names = ["acme", "beta"].map(tenant);
        for tenant in &names {
            let quota = Request::SetQuota {
                tenant: tenant.clone(),
                memory_bytes: MIB,
                disk_bytes: MIB,
            };
            assert_eq!(world.ask(quota), Reply::Done);
        }
        let entries = || {
            let of = |tenant: &Tenant| {
                let mut reported = reported("z", 1, 1);
                reported.entry.tenant = tenant.clone();
                reported
            };
            names.iter().map(of).collect()
        };
        let announce = |world: &mut World| {
            let segment = DISK;
            let entries = entries();
            world.report(NODE, Report::Announce { segment, entries });
        };
        announce(&mut world);
        world.input(Input::NodeLost(NODE));
        happens(&mut world, &names[1]);
        world.mount(NODE, DISK, SegmentKind::Disk, MIB);
        announce(&mut world);
        let there = names.clone().map(|tenant| {
            let exists = Exists {
                tenant,
                keys: vec![key("z")].into(),
            };
            world.ask(Request::Exists(exists)) == Reply::Exists(vec![true])
        });
        assert_eq!(there, [true, false]);
    }
}

#[test]
fn replicas_are_cleared_by_their_writer_only() {
    let mut world = world();
    world.put("a", BLOCK);
    let clear = |segment: Option<&str>| {
        let segment = segment.map(str::to_owned);
        Request::ReplicaClear(ReplicaClear {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
            segment,
        })
    };
    let refused = |code| Reply::Each(vec![Err(code)]);
    assert_eq!(
        world.ask_as(OTHER, clear(None)),
        refused(ErrorCode::IllegalClient)
    );
    assert_eq!(
        world.ask(clear(Some("segment-2"))),
        refused(ErrorCode::ReplicaNotFound)
    );
    world.found("a");
    assert_eq!(
        world.ask(clear(Some("segment-1"))),
        refused(ErrorCode::ObjectHasLease)
    );
    world.pass(seconds(11));
    world.get_with("a", Hold::Guard);
    assert_eq!(
        world.ask(clear(None)),
        refused(ErrorCode::ObjectReplicaBusy)
    );
    world.input(Input::ClientLost(ME));
    assert_eq!(
        world.ask(clear(Some("segment-1"))),
        Reply::Each(vec![Ok(())])
    );
    assert_eq!(world.ask(clear(None)), refused(ErrorCode::ObjectNotFound));
}
