//! The last known copy of a value goes with one node, while another one was told to forget its own: what that has still is as good as
//! before, until something ends the value.

use slackwater_base::KeyHash;
use slackwater_meta::{Input, Limits, MasterConfig};
use slackwater_wire::*;

use crate::jobs::{SECOND, THIRD, shift};
use crate::kept_drops::{ENDS, Pool};
use crate::world::*;

/// The memory of the second node, which goes with its master.
const OTHERS: SegmentId = SegmentId(20);

/// Carries the value from the memory of the first node to that of the second one.
fn carry(pool: &mut Pool, name: &str) {
    (pool.world).mount(SECOND, OTHERS, SegmentKind::Memory, 16 * BLOCK);
    pool.world.begin(shift(name, None, "2"));
    pool.world.copied(Ok(()));
}

/// A value in the memory of the second node. The first one has its record, and is told to forget that.
fn carried(name: &str) -> Pool {
    carried_in(Pool::new(), name)
}

fn carried_in(mut pool: Pool, name: &str) -> Pool {
    let version = pool.world.put(name, BLOCK);
    offload_all(&mut pool.world);
    pool.records.push(reported(name, version.0, BLOCK));
    carry(&mut pool, name);
    let quota = Request::SetQuota {
        tenant: Tenant::DEFAULT,
        memory_bytes: 16 * BLOCK,
        disk_bytes: 1,
    };
    assert_eq!(pool.world.ask(quota), Reply::Done);
    assert_eq!(pool.world.nodes_of(name), [2]);
    pool
}

/// The second node is lost, and with it the last copy.
fn lose_last(pool: &mut Pool, name: &str) {
    pool.world.input(Input::NodeLost(SECOND));
    assert!(!pool.world.has(name));
}

/// Whether the value is there once the first node was lost and is back.
fn is_back(mut pool: Pool, name: &str) -> bool {
    pool.lose();
    pool.comes_back();
    pool.world.has(name)
}

/// The record counted as removed when its node was lost too.
#[test]
fn a_record_lives_though_the_last_known_copy_is_gone() {
    for (end, ends) in ENDS {
        for removed in [None, Some(0), Some(1), Some(2)] {
            let mut pool = carried("a");
            for at in 0..3 {
                if removed == Some(at) {
                    pool.world.send(ME, remove("a", true));
                }
                match at {
                    0 => pool.world.input(Input::NodeLost(SECOND)),
                    1 => pool.lose(),
                    _ => ends(&mut pool),
                }
            }
            pool.comes_back();
            let case = format!("removed {removed:?}, {end}");
            assert_eq!(pool.world.has("a"), removed.is_none(), "{case}");
        }
    }
}

fn removals() -> [Request; 3] {
    [
        remove("a", true),
        Request::RemoveAll(RemoveAll {
            tenant: Some(Tenant::DEFAULT),
            force: true,
        }),
        Request::RemoveMatching(RemoveMatching {
            tenant: Tenant::DEFAULT,
            pattern: "a".to_owned(),
            force: true,
        }),
    ]
}

#[test]
fn what_ends_a_value_ends_its_record_too() {
    for removal in removals() {
        let mut pool = carried("a");
        lose_last(&mut pool, "a");
        let call = pool.world.send(ME, removal.clone());
        pool.world.pass(std::time::Duration::from_millis(10));
        assert_eq!(pool.world.reply(call), None, "{removal:?}: it is there");
        assert!(!is_back(pool, "a"), "{removal:?}");
    }
    // A newer value.
    let mut pool = carried("a");
    lose_last(&mut pool, "a");
    pool.world.start("a", BLOCK, PutConfig::default());
    assert!(is_back(pool, "a"), "it was begun, and is not there");
    let mut pool = carried("a");
    lose_last(&mut pool, "a");
    let PutStarted::Granted { version, .. } = pool.world.start("a", BLOCK, PutConfig::default())
    else {
        panic!("there is room");
    };
    pool.world.send(ME, end("a", version));
    assert!(!is_back(pool, "a"));
    // Another one ends nothing.
    let mut pool = carried("a");
    lose_last(&mut pool, "a");
    pool.world.send(ME, remove("b", true));
    assert!(is_back(pool, "a"));
}

/// A newer value that is announced has replaced older ones, also when it is gone before their node is.
#[test]
fn an_announced_value_ends_the_records_of_older_ones() {
    let (version, segment) = (1 << 41, SegmentId(30));
    let mut pool = carried("a");
    lose_last(&mut pool, "a");
    (pool.world).mount(THIRD, segment, SegmentKind::Disk, 16 * BLOCK);
    let entries = vec![reported("a", version, BLOCK)];
    pool.world
        .report(THIRD, Report::Announce { segment, entries });
    let entry = reported("a", version, BLOCK).entry;
    pool.world.report(THIRD, Report::Lost(vec![entry]));
    assert!(!is_back(pool, "a"));
}

/// Two keys of one hash: the removal of one ended the record of the other.
#[test]
fn a_removal_ends_no_record_of_another_key_with_the_same_hash() {
    // Of 16 bytes, chosen by what XXH3-128 makes of them.
    const FIRST: &str = "the first of two";
    const SECOND: [u8; 16] = [
        0x09, 0x0e, 0x88, 0x22, 0x4c, 0x20, 0xf7, 0xa9, 0x27, 0x68, 0x9d, 0x10, 0x4c, 0x1f, 0x60,
        0xf0,
    ];
    let hash = |key: &[u8]| KeyHash::of(0, key).low64();
    assert_eq!(hash(FIRST.as_bytes()), hash(&SECOND));
    let mut pool = carried(FIRST);
    lose_last(&mut pool, FIRST);
    let removal = Request::Remove(Remove {
        tenant: Tenant::DEFAULT,
        keys: vec![Key::new(&SECOND).expect("a key")],
        force: true,
    });
    let done = Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]);
    assert_eq!(pool.world.ask(removal), done, "it waits for nothing");
    assert!(is_back(pool, FIRST));
}

/// A record was being written on a node that was hidden, from memory that a job had moved elsewhere, when the last known copy went: its
/// drop was kept for the node before anybody knew that nothing had ended the value, and the record was refused.
#[test]
fn what_is_written_on_a_hidden_node_lives_though_the_last_known_copy_is_gone() {
    for (end, ends) in ENDS {
        for is_removed in [false, true] {
            let mut pool = Pool::new();
            let version = pool.world.put("a", BLOCK);
            assert_eq!(offloads(&mut pool.world).len(), 1);
            carry(&mut pool, "a");
            assert_eq!(pool.world.nodes_of("a"), [2]);
            pool.hide();
            lose_last(&mut pool, "a");
            if is_removed {
                let call = pool.world.send(ME, remove("a", true));
                assert!(pool.world.reply(call).is_some(), "it is kept for the node");
            }
            // It was written, which nobody heard.
            pool.records.push(reported("a", version.0, BLOCK));
            ends(&mut pool);
            pool.comes_back();
            assert_eq!(pool.world.has("a"), !is_removed, "{end}");
        }
    }
}

/// A removal of all keys, which looks at one object or drop a step, and what goes before it and in the middle of it.
#[test]
fn a_removal_of_many_ends_what_it_has_not_come_to() {
    let limits = Limits {
        scan_step: 1,
        ..MasterConfig::DEFAULT.limits
    };
    type Goes = fn(&mut Pool);
    let (nothing, last): (Goes, Goes) = (|_| {}, |pool| lose_last(pool, "a"));
    let own: Goes = |pool| pool.lose();
    let both: Goes = |pool| {
        lose_last(pool, "a");
        pool.lose();
    };
    let cases = [
        (
            "the last copy, and the removal comes to the end",
            last,
            nothing,
        ),
        ("the last copy, and the node in the middle", last, own),
        ("the last copy in the middle", nothing, last),
        ("the last copy and the node in the middle", nothing, both),
    ];
    for (case, before, between) in cases {
        let mut pool = Pool::with(limits.clone());
        (pool.world).mount(THIRD, SegmentId(30), SegmentKind::Memory, 16 * BLOCK);
        for n in 0..8 {
            pool.world.put_at(&format!("k{n}"), BLOCK, "segment-30");
        }
        let mut pool = carried_in(pool, "a");
        before(&mut pool);
        let all = RemoveAll {
            tenant: Some(Tenant::DEFAULT),
            force: true,
        };
        let call = pool.world.send(ME, Request::RemoveAll(all));
        let next = pool.world.master.next_deadline();
        assert_eq!(next, Some(pool.world.now), "it takes several steps");
        between(&mut pool);
        pool.world.pass(std::time::Duration::from_millis(1));
        let is_there = pool.world.master.has_node(NODE);
        assert_eq!(pool.world.reply(call).is_none(), is_there, "{case}");
        assert!(!is_back(pool, "a"), "{case}");
    }
}
