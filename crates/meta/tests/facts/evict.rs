use std::time::Duration;

use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

fn world(policy: PolicyKind) -> World {
    let eviction = Eviction {
        policy,
        ..Eviction::default()
    };
    World::memory(
        MasterConfig {
            eviction,
            ..plain()
        },
        100 * BLOCK,
    )
}

/// Puts the blocks of one request, each the parent of the next.
fn put_chain(world: &mut World, numbers: std::ops::Range<u64>, bytes: u64) {
    put_chain_as(world, numbers, bytes, Chain::default());
}

fn put_chain_as(world: &mut World, numbers: std::ops::Range<u64>, bytes: u64, chain: Chain) {
    let names: Vec<Key> = numbers.map(|n| key(&format!("k{n}"))).collect();
    let entries = names
        .iter()
        .map(|key| PutEntry {
            key: key.clone(),
            bytes,
        })
        .collect();
    let config = PutConfig::default();
    let start = PutStart {
        tenant: Tenant::DEFAULT,
        entries,
        chain,
        config,
    };
    let Reply::PutStart(started) = world.ask(Request::PutStart(start)) else {
        panic!("no room")
    };
    let done = |(key, started)| match started {
        PutStarted::Granted { version, .. } => PutDone {
            key,
            version,
            checksum: slackwater_base::Checksum(0),
        },
        other => panic!("{other:?}"),
    };
    let puts = names.into_iter().zip(started).map(done).collect();
    world.ask(Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts,
        hosts: None,
    }));
}

/// What the policy takes the hint of an object to say.
fn hinted(world: &World, number: u64) -> String {
    let opinions = world
        .master
        .explain(world.now, &Tenant::DEFAULT, &key(&format!("k{number}")))
        .expect("the object is there");
    let explanation = opinions.into_iter().find_map(|it| it.explanation);
    let class = explanation.expect("the default policy explains").class;
    class
        .split_once(", with a hint")
        .and_then(|(_, after)| after.split(',').next())
        .map_or(String::new(), str::to_owned)
}

#[test]
fn what_a_caller_expects_of_a_chain_reaches_the_policy_with_puts_and_reads() {
    let mut world = world(PolicyKind::Adaptive);
    let chain = |expect| Chain {
        expect,
        ..Chain::default()
    };
    put_chain_as(&mut world, 0..3, BLOCK, chain(Some(Expectation::Ends)));
    put_chain_as(
        &mut world,
        10..13,
        BLOCK,
        chain(Some(Expectation::Continues)),
    );
    put_chain(&mut world, 20..23, BLOCK);
    let found = [2, 12, 22].map(|number| hinted(&world, number));
    let (few, many) = (" after which few return", " after which many return");
    assert_eq!(found, [few, many, ""]);
    let get = |numbers: std::ops::Range<u64>, expect| {
        Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: numbers.map(|n| key(&format!("k{n}"))).collect(),
            chain: chain(expect),
            hold: Hold::Lease,
            prefix_only: true,
        })
    };
    world.pass(seconds(5));
    world.ask(get(0..3, None));
    world.ask(get(20..23, Some(Expectation::Continues)));
    let found = [2, 12, 22].map(|number| hinted(&world, number));
    assert_eq!(found, ["", many, many]);
}

#[test]
fn eviction_begins_over_the_high_watermark_and_ends_under_the_low_one() {
    for policy in PolicyKind::ALL {
        let mut world = world(policy);
        for n in 0..95 {
            world.put(&format!("k{n}"), BLOCK);
        }
        assert_eq!(
            (world.used(MEMORY), world.master.metrics().evictions),
            (95 * BLOCK, 0),
            "{policy}"
        );
        world.put("one more", BLOCK);
        assert_eq!(
            (world.used(MEMORY), world.master.metrics().evictions),
            (90 * BLOCK, 6),
            "{policy}"
        );
        assert_eq!(world.master.metrics().eviction_bytes, 6 * BLOCK);
    }
}

/// A memory segment of 100 blocks on a node of this number, with these watermarks.
fn mounted(number: u32, watermarks: Option<(f64, f64)>) -> Request {
    Request::Mount(Mount {
        segment: SegmentId(10 * number),
        name: format!("segment-{number}"),
        node: NodeId(number),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: 100 * BLOCK,
        host: String::new(),
        generations: None,
        watermarks: watermarks.map(|(low, high)| Watermarks { low, high }),
    })
}

/// All nodes had the watermarks of the master, whatever else their machines did with the memory.
#[test]
fn each_node_may_have_watermarks_of_its_own() {
    let mut world = World::new(plain());
    assert_eq!(world.ask(mounted(1, None)), Reply::Done);
    assert_eq!(world.ask(mounted(2, Some((0.25, 0.5)))), Reply::Done);
    assert_eq!(world.ask(mounted(3, Some((1.0, 1.0)))), Reply::Done);
    let told = world.master.watermarks();
    let told: Vec<(f64, f64)> = told.iter().map(|it| (it.low, it.high)).collect();
    assert_eq!(told, [(0.90, 0.95), (0.25, 0.5), (1.0, 1.0)]);
    let mut check = |number: u32, fits: u64, left: u64| {
        let (segment, name) = (SegmentId(10 * number), format!("segment-{number}"));
        for n in 0..fits {
            world.put_at(&format!("{number}-{n}"), BLOCK, &name);
        }
        assert_eq!(world.used(segment), fits * BLOCK, "{name}");
        if left < fits {
            world.put_at(&format!("{number}-more"), BLOCK, &name);
        }
        assert_eq!(world.used(segment), left * BLOCK, "{name}");
    };
    check(1, 95, 90);
    check(2, 50, 25);
    check(3, 100, 100);
}

#[test]
fn watermarks_that_eviction_cannot_keep_to_are_refused() {
    let mut world = World::new(plain());
    for wrong in [
        (0.9, 0.5),
        (-0.1, 0.5),
        (0.0, 0.001),
        (0.5, 1.01),
        (f64::NAN, 0.5),
        (0.5, f64::NAN),
        (0.5, f64::INFINITY),
    ] {
        let refused = Reply::Failed(ErrorCode::InvalidParams);
        assert_eq!(world.ask(mounted(1, Some(wrong))), refused, "{wrong:?}");
    }
    assert_eq!(world.ask(mounted(1, Some((0.0, 0.01)))), Reply::Done);
}

#[test]
fn watermarks_count_bytes_and_not_objects() {
    let mut world = world(PolicyKind::Lru);
    for n in 0..800 {
        world.put(&format!("small{n}"), 4096);
    }
    world.put("large", 45 * BLOCK);
    assert_eq!(world.master.metrics().evictions, 0);
    world.put("another", BLOCK);
    world.put("and another", BLOCK);
    let evicted = world.master.metrics().eviction_bytes;
    assert!(
        (5 * BLOCK..8 * BLOCK).contains(&evicted),
        "{evicted} bytes of small ones went"
    );
    assert!(world.has("large"));
}

#[test]
fn each_segment_has_watermarks_of_its_own() {
    let mut world = World::new(plain());
    world.mount(NodeId(1), SegmentId(1), SegmentKind::Memory, 20 * BLOCK);
    world.mount(NodeId(2), SegmentId(2), SegmentKind::Memory, 1000 * BLOCK);
    let prefer = || PutConfig {
        preferred: vec!["segment-1".to_owned()],
        ..PutConfig::default()
    };
    for n in 0..200 {
        world.put_with(&format!("k{n}"), BLOCK, prefer());
    }
    assert!(
        world.used(SegmentId(1)) <= 19 * BLOCK,
        "the small one stays under its own mark"
    );
}

#[test]
fn what_was_read_lately_stays() {
    let mut world = world(PolicyKind::Lru);
    for n in 0..90 {
        world.put(&format!("k{n}"), BLOCK);
    }
    world.found("k0");
    world.pass(seconds(11));
    for n in 0..80 {
        world.put(&format!("new{n}"), BLOCK);
    }
    assert!(world.has("k0") && !world.has("k1"));
}

#[test]
fn the_tail_of_a_chain_goes_before_its_head() {
    let mut world = world(PolicyKind::Lru);
    put_chain(&mut world, 0..95, BLOCK);
    world.put("one more", BLOCK);
    assert!(world.has("k0") && world.has("k88") && !world.has("k94"));
}

#[test]
fn a_put_larger_than_any_gap_is_served_in_the_end() {
    let mut world = world(PolicyKind::Lru);
    for n in 0..95 {
        world.put(&format!("k{n}"), BLOCK);
        if n % 2 == 0 {
            world.found(&format!("k{n}"));
        }
    }
    world.pass(seconds(20));
    let call = world.send(ME, start("large", 50 * BLOCK, wait(seconds(10))));
    world.pass(seconds(10));
    assert!(is_granted(&world.reply(call)));
}

#[test]
fn metadata_of_chains_takes_no_more_than_200_bytes_an_object() {
    for (policy, objects) in PolicyKind::ALL.map(|policy| (policy, 61_440)) {
        let eviction = Eviction {
            policy,
            ..Eviction::default()
        };
        let mut world = World::new(MasterConfig {
            eviction,
            ..plain()
        });
        world.checks = false;
        world.mount(NODE, MEMORY, SegmentKind::Memory, objects * 5000);
        for first in (0..objects).step_by(16) {
            put_chain(&mut world, first..first + 16, 4096);
        }
        let each = world.master.overhead_bytes() as u64 / objects;
        assert!(
            each <= 200,
            "{policy}: {each} bytes each at {objects} objects"
        );
    }
}

#[test]
fn a_long_eviction_lets_requests_through() {
    let eviction = Eviction {
        step: 4,
        low_watermark: 0.1,
        ..Eviction::default()
    };
    let mut world = World::memory(
        MasterConfig {
            eviction,
            ..plain()
        },
        100 * BLOCK,
    );
    for n in 0..96 {
        world.put(&format!("k{n}"), BLOCK);
    }
    assert_eq!(world.master.metrics().evictions, 4, "one step");
    // One call used to do all steps, as each scheduled the next for `now`: requests waited for all of them.
    world.master.on_deadline(world.now, &mut Vec::new());
    assert_eq!(world.master.metrics().evictions, 8, "one more step a call");
    world.pass(seconds(0));
    assert!(world.used(MEMORY) <= 10 * BLOCK, "and the rest right after");
}

/// A group may have 65,536 members, and the eviction of one evicted all the others in one step, while every request
/// waited.
#[test]
fn a_large_group_is_evicted_in_steps() {
    let (members, step) = (500, 16);
    let eviction = Eviction {
        step,
        ..Eviction::default()
    };
    let mut world = World::memory(
        MasterConfig {
            eviction,
            lease_ttl: Duration::ZERO,
            ..plain()
        },
        600 * 4096,
    );
    world.checks = false;
    for n in 0..members {
        let config = PutConfig {
            group: Some(1),
            ..PutConfig::default()
        };
        world.put_with(&format!("m{n}"), 4096, config);
    }
    let mut out = Vec::new();
    for n in 0..120 {
        let before = world.master.metrics().evictions;
        world.put(&format!("k{n}"), 4096);
        let gone = world.master.metrics().evictions - before;
        assert!(gone <= 2 * step as u64, "a put waits for {gone} evictions");
    }
    let mut left = (0..members).filter(|n| world.has(&format!("m{n}"))).count();
    assert!(left < members, "its eviction began");
    while world
        .master
        .next_deadline()
        .is_some_and(|at| at <= world.now)
    {
        let before = world.master.metrics().evictions;
        world.master.on_deadline(world.now, &mut out);
        let gone = world.master.metrics().evictions - before;
        assert!(gone <= 2 * step as u64, "{gone} evictions in one call");
    }
    left = (0..members).filter(|n| world.has(&format!("m{n}"))).count();
    assert_eq!(left, 0, "what was begun is finished, call by call");
    world.master.check_books().unwrap();
}

/// A pool that is only read has no other deadline: without that of its policy it would learn nothing.
#[test]
fn a_policy_that_wants_to_run_is_a_deadline_of_the_master() {
    let mut world = world(PolicyKind::Gittins);
    world.put("a", BLOCK);
    world.pass(seconds(3600));
    assert_eq!(world.master.next_deadline(), None);
    for _ in 0..20 {
        world.found("a");
    }
    assert_eq!(world.master.next_deadline(), Some(world.now));
    world.pass(Duration::ZERO);
    assert_ne!(world.master.next_deadline(), Some(world.now), "it has run");
}

/// A large group whose eviction is under way is read between two steps: the lease is kept, and the rest stays.
#[test]
fn a_read_between_two_steps_keeps_what_is_left_of_a_group() {
    let eviction = Eviction {
        policy: PolicyKind::Lru,
        step: 4,
        ..Eviction::default()
    };
    let mut world = World::memory(
        MasterConfig {
            eviction,
            ..plain()
        },
        20 * BLOCK,
    );
    for n in 0..18 {
        let config = PutConfig {
            group: Some(1),
            ..PutConfig::default()
        };
        world.put_with(&format!("m{n}"), BLOCK, config);
    }
    world.put("x", 2 * BLOCK);
    let left: Vec<String> = (0..18)
        .map(|n| format!("m{n}"))
        .filter(|name| world.has(name))
        .collect();
    assert_eq!(left.len(), 14, "one step");
    world.found(&left[0]);
    world.pass(seconds(1));
    assert!(left.iter().all(|name| world.has(name)), "they are leased");
    for n in 0..20 {
        world.start(&format!("k{n}"), BLOCK, wait(Duration::ZERO));
    }
    assert!(
        left.iter().all(|name| world.has(name)),
        "also under pressure"
    );
}

/// A long put that does not wait was refused again and again, with a few short values gone each time.
#[test]
fn a_put_that_does_not_wait_finds_room_the_second_time() {
    let mut config = plain();
    config.eviction.step = 2;
    let mut world = World::memory(config, 200 * BLOCK);
    for n in 0..180 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let refused = PutStarted::Failed(ErrorCode::NoAvailableHandle);
    let long = 24 * BLOCK;
    assert_eq!(world.start("long", long, wait(Duration::ZERO)), refused);
    let second = world.start("long", long, wait(Duration::ZERO));
    assert!(matches!(second, PutStarted::Granted { .. }), "{second:?}");
}

/// Offloading one member of a group made room on a full SSD by evicting another member's only copy, and the loop over
/// the members then accessed an object that was gone.
#[test]
fn a_group_may_lose_a_member_while_it_is_evicted() {
    let offload = Offload {
        mode: OffloadMode::OnEvict,
        ..Offload::default()
    };
    let config = MasterConfig {
        offload,
        lease_ttl: Duration::ZERO,
        ..plain()
    };
    let mut world = World::tiers(config, 8 * BLOCK, BLOCK * 5 / 4);
    let group = || PutConfig {
        group: Some(7),
        ..PutConfig::default()
    };
    world.put("first", BLOCK);
    world.put_with("b", BLOCK, group());
    world.remove("first").unwrap();
    let fill = |world: &mut World, round: usize| {
        for n in 0..8 {
            let call = world.send(ME, start(&format!("{round}-{n}"), BLOCK, wait(seconds(1))));
            let tasks = world.taken(|order| {
                if let Order::Offload(tasks) = order {
                    Some(tasks.clone())
                } else {
                    None
                }
            });
            for task in tasks.concat() {
                world.report(NODE, Report::Offloaded(vec![(task.ticket, Ok(()))]));
            }
            if let Some(Reply::PutStart(results)) = world.reply(call)
                && let PutStarted::Granted { version, .. } = results[0]
            {
                world.end(ME, &format!("{round}-{n}"), version);
            }
        }
    };
    fill(&mut world, 0);
    world.put_with(
        "a",
        BLOCK,
        PutConfig {
            wait: Some(Duration::ZERO),
            ..group()
        },
    );
    fill(&mut world, 1);
    world.master.check_books().unwrap();
}
