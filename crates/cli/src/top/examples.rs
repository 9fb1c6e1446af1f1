//! Samples of a store with nothing, a busy one, one in trouble, and a pool of ten nodes, as servers tell them.

use serde_json::{Value, json};

use super::sample::Sample;
use super::sample::tests::told;
use super::view::{History, View};

/// Longer than any terminal: a line that shows its beginning shows its end, or an ellipsis.
pub(super) fn long(beginning: &str) -> String {
    format!("{beginning}{}THE-END", "-and-so-on".repeat(40))
}

/// What a store that was just started tells.
pub(super) fn empty(time_s: f64) -> Value {
    json!({
        "time_s": time_s,
        "version": "0.1.0",
        "address": "tcp://127.0.0.1:50051",
        "epoch": 7,
        "ready": true,
        "not_ready": null,
        "stats": {
            "objects": 0,
            "memory": { "capacity_bytes": 1 << 30, "used_bytes": 0 },
            "ssd": null,
            "reads": { "memory_hits": 0, "ssd_hits": 0, "misses": 0, "memory_bytes": 0, "ssd_bytes": 0 },
            "puts": { "stored": 0, "existed": 0, "refused": 0, "bytes": 0, "waited": 0 },
            "eviction_rules": [],
        },
        "segments": [segment(300, "memory", "here", 0)],
        "quotas": [],
        "tenants_left": 0,
        "decisions": { "made": 0, "latest": [] },
        "hottest": { "reads": 0.0, "chains": [] },
        "jobs": [],
        "warnings": [],
    })
}

fn segment(node: u64, tier: &str, presence: &str, used_mib: u64) -> Value {
    json!({
        "id": node, "name": format!("{tier}-{node}"), "node": node, "tier": tier, "presence": presence, "status": "OK",
        "used_bytes": used_mib << 20, "capacity_bytes": 1u64 << 30, "endpoint": "10.0.0.1:50052",
        "low_watermark": 0.85, "high_watermark": 0.95,
    })
}

/// A store with an SSD, that has worked for `time_s` seconds.
pub(super) fn busy(time_s: f64) -> Value {
    let turn = time_s as u64;
    let mut sample = empty(time_s);
    sample["stats"] = json!({
        "objects": 12_003,
        "memory": { "capacity_bytes": 1u64 << 30, "used_bytes": 921u64 << 20 },
        "ssd": { "capacity_bytes": 1u64 << 40, "used_bytes": 300u64 << 30, "accepting": true },
        "reads": {
            "memory_hits": 600 * turn, "ssd_hits": 300 * turn, "misses": 100 * turn,
            "memory_bytes": (600 << 20) * turn, "ssd_bytes": (300 << 20) * turn,
        },
        "puts": { "stored": 40 * turn, "existed": turn, "refused": 0, "bytes": (40 << 20) * turn, "waited": 0 },
        "promotions": { "completed": 10 * turn, "rejected_frequency": 20 * turn, "failed": 1, "expired": 2 },
        "offloads": { "completed": 40 * turn, "skipped_not_worth": 3 * turn },
        "evictions": { "count": 35 * turn, "bytes": 0 },
        "ssd_evictions": { "count": 0, "bytes": 0 },
        "eviction_rules": [
            { "segment": 300, "tier": "memory", "followed": "learned", "hit_rates": [["learned", 0.61], ["lru", 0.5]] },
            { "segment": 301, "tier": "memory", "followed": "learned", "hit_rates": [["learned", 0.63], ["lru", 0.5]] },
        ],
        "latency": {
            "memory": { "count": 9, "p50_us": 46.7, "p95_us": 80.0, "p99_us": 120.0, "p999_us": 800.0 },
            "ssd": { "count": 9, "p50_us": 388.0, "p95_us": 700.0, "p99_us": 1_200.0, "p999_us": 9_000.0 },
            "put": { "count": 0 },
        },
        "phases": { "look_up": { "count": 9, "p50_us": 1.2, "p95_us": 2.0, "p99_us": 3.0, "p999_us": 4.0 } },
    });
    sample["segments"] = json!([
        segment(300, "memory", "here", 921),
        segment(300, "ssd", "here", 300)
    ]);
    sample["quotas"] = json!([
        { "tenant_id": "default", "memory_quota_bytes": null, "ssd_quota_bytes": null, "memory_bytes": 7 << 20, "ssd_bytes": 0, "objects": 3 },
        { "tenant_id": long("tenant"), "memory_quota_bytes": 16 << 20, "ssd_quota_bytes": 1u64 << 40, "memory_bytes": 15 << 20, "ssd_bytes": 1u64 << 30, "objects": 12_000 },
    ]);
    sample["tenants_left"] = json!(3);
    let learned = json!({
        "class": "system prompt", "age_s": 75.0, "index": 0.01, "lowest_index": 0.001, "rule": "learned",
        "returns": [{ "within_s": 60.0, "chance": 0.1 }, { "within_s": 600.0, "chance": 0.42 }],
    });
    let decision = |number: u64, decision: &str, key: String, learned: Value| {
        json!({
            "number": number, "age_s": 2.0, "decision": decision, "cause": "x", "why": "room was needed; another copy stays",
            "tenant": "default", "key": key, "bytes": 65_536, "segment": 300, "tier": "memory", "learned": learned,
        })
    };
    sample["decisions"] = json!({ "made": 5 * turn, "latest": [
        decision(5 * turn + 1, "evicted", "model@1".to_owned(), learned),
        decision(5 * turn + 2, "not_promoted", long("key"), Value::Null),
    ]});
    sample["hottest"] = json!({ "reads": 1000.0, "chains": [
        { "tenant": "default", "key": long("chain"), "reads": 400.0, "excess": 0.0 },
        { "tenant": "guests", "key": "prefix-2", "reads": 30.0, "excess": 0.0 },
    ]});
    sample["jobs"] = json!([
        { "job_id": "7", "status": "RUNNING", "work": { "type": "drain", "segments": ["memory-300"] }, "age_ms": 90_000,
          "migrated_bytes": 1 << 20, "left_bytes": 3 << 20, "succeeded_units": 12, "failed_units": 0, "errors": [] },
        { "job_id": "8", "status": "FAILED", "work": { "type": "copy", "key": "k", "targets": ["4", "5"] }, "age_ms": 900,
          "migrated_bytes": 0, "left_bytes": 0, "succeeded_units": 0, "failed_units": 1, "errors": [{ "key": "k", "error_name": "NO_SPACE" }] },
    ]);
    sample
}

/// A pool of ten nodes, each with memory and an SSD, of which one is away and one is gone.
pub(super) fn ten_nodes(time_s: f64) -> Value {
    let mut sample = busy(time_s);
    let presence = |node: u64| match node {
        108 => "away",
        109 => "hidden",
        _ => "here",
    };
    let numbers = 100..110u64;
    let nodes = numbers.clone().map(|node| {
        json!({
            "node": node, "presence": presence(node), "data_address": format!("10.0.0.{node}:50052"),
            "fingerprint": "6668-7aad-f862-bd77",
        })
    });
    let nodes: Vec<Value> = nodes.collect();
    sample["stats"]["nodes"] = json!({ "clients": 3, "nodes": nodes, "partial": false });
    let segments = numbers.flat_map(|node| {
        ["memory", "ssd"].map(|tier| segment(node, tier, presence(node), 100 * (node - 100)))
    });
    sample["segments"] = segments.collect();
    sample["segments"][2]["status"] = json!("DRAINING");
    sample["warnings"] = json!([
        { "severity": "warning", "what": "node 109 has no link", "action": long("Reads of what it holds miss.") },
        { "severity": "warning", "what": "node 108 has lost its link a moment ago", "action": "Reads of what it holds wait for it." },
    ]);
    sample
}

/// A pool without nodes, that does not serve.
pub(super) fn failing(time_s: f64) -> Value {
    let mut sample = empty(time_s);
    sample["ready"] = json!(false);
    sample["not_ready"] = json!("no node lends memory: start one with `slackwater node`");
    sample["segments"] = json!([]);
    sample["stats"]["memory"]["capacity_bytes"] = json!(0);
    let warning = |severity: &str, what: &str| json!({ "severity": severity, "what": what, "action": "Do what is needed." });
    sample["warnings"] = json!([
        warning("critical", "not serving: no node lends memory\u{1b}[2J"),
        warning("critical", "2 replicas had wrong bytes"),
        warning("warning", "the SSD takes no records"),
        warning("note", "x has no effect"),
        warning("note", "nodes have yet to say what they hold"),
    ]);
    sample
}

pub(super) fn sampled(value: Value) -> Sample {
    told(value)
}

/// What is seen after a minute of samples.
pub(super) fn seen(of: fn(f64) -> Value) -> View {
    let mut history = History::default();
    for second in 1..=60 {
        assert!(history.push(sampled(of(f64::from(second)))));
    }
    history.view().unwrap()
}
