use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

fn world(policy: PolicyKind) -> World {
    let eviction = Eviction { policy, ..Eviction::default() };
    World::memory(MasterConfig { eviction, ..MasterConfig::default() }, 100 * BLOCK)
}

#[test]
fn eviction_begins_over_the_high_watermark_and_ends_under_the_low_one() {
    for policy in PolicyKind::ALL {
        let mut world = world(policy);
        for n in 0..95 {
            world.put(&format!("k{n}"), BLOCK);
        }
        assert_eq!((world.used(MEMORY), world.master.metrics().evictions), (95 * BLOCK, 0), "{policy}");
        world.put("one more", BLOCK);
        assert_eq!((world.used(MEMORY), world.master.metrics().evictions), (90 * BLOCK, 6), "{policy}");
        assert_eq!(world.master.metrics().eviction_bytes, 6 * BLOCK);
    }
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
    assert!((5 * BLOCK..8 * BLOCK).contains(&evicted), "{evicted} bytes of small ones went");
    assert!(world.has("large"));
}

#[test]
fn each_segment_is_judged_by_itself() {
    let mut world = World::new(MasterConfig::default());
    world.mount(NodeId(1), SegmentId(1), SegmentKind::Memory, 20 * BLOCK);
    world.mount(NodeId(2), SegmentId(2), SegmentKind::Memory, 1000 * BLOCK);
    let prefer = || PutConfig { preferred: vec!["segment-1".to_owned()], ..PutConfig::default() };
    for n in 0..200 {
        world.put_with(&format!("k{n}"), BLOCK, prefer());
    }
    assert!(world.used(SegmentId(1)) <= 19 * BLOCK, "the small one stays under its own mark");
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
    let entries = (0..95).map(|n| PutEntry { key: key(&format!("k{n}")), bytes: BLOCK }).collect();
    let (chain, config) = (Chain::default(), PutConfig::default());
    let Reply::PutStart(started) =
        world.ask(Request::PutStart(PutStart { tenant: Tenant::DEFAULT, entries, chain, config }))
    else {
        panic!()
    };
    let done = started.iter().enumerate().map(|(n, started)| {
        let PutStarted::Granted { version, .. } = started else { panic!() };
        PutDone { key: key(&format!("k{n}")), version: *version, checksum: slackwater_base::Checksum(0) }
    });
    let puts = done.collect();
    world.ask(Request::PutEnd(PutEnd { tenant: Tenant::DEFAULT, puts }));
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
    assert!(
        matches!(world.reply(call), Some(Reply::PutStart(results)) if matches!(results[0], PutStarted::Granted { .. }))
    );
}

#[test]
fn a_long_eviction_lets_requests_through() {
    let eviction = Eviction { step: 4, low_watermark: 0.1, ..Eviction::default() };
    let mut world = World::memory(MasterConfig { eviction, ..MasterConfig::default() }, 100 * BLOCK);
    for n in 0..96 {
        world.put(&format!("k{n}"), BLOCK);
    }
    assert_eq!(world.master.metrics().evictions, 4, "one step");
    world.pass(seconds(0));
    assert!(world.used(MEMORY) <= 10 * BLOCK, "and the rest right after");
}
