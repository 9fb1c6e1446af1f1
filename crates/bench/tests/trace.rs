//! Replays a published trace where one is given: `SLACKWATER_TRACE=path cargo test --release -p slackwater-bench
//! --test trace -- --nocapture`. With `SLACKWATER_TRACE_FLOORS` set as well, the trace has to be the conversation trace
//! and the rates are checked.
#![expect(clippy::print_stdout, reason = "the table is what the run is for")]

use std::time::Duration;

use serde_json::Value;
use slackwater_base::Instant;
use slackwater_bench::policy::{Options, Report, run};
use slackwater_meta::replay::Request;

/// Reads the published format; panics on anything else, since only tests come here.
fn parse(text: &str) -> Vec<Request> {
    let request = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("one JSON object a line");
        let number = |key: &str| value[key].as_u64().expect("a number");
        Request {
            now: Instant::ZERO + Duration::from_millis(number("timestamp")),
            blocks: value["hash_ids"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|id| id.as_u64().expect("an id"))
                .collect(),
            input_tokens: number("input_length"),
            output_tokens: Some(number("output_length") as u32),
            hint: value["hint"].as_u64().map(|hint| hint as u32),
            expect: None,
        }
    };
    text.lines().map(request).collect()
}

#[test]
fn trace_rates() {
    let Some(path) = std::env::var_os("SLACKWATER_TRACE") else {
        println!("skipped: SLACKWATER_TRACE names no trace");
        return;
    };
    let requests = parse(&std::fs::read_to_string(path).expect("the trace can be read"));
    let sizes = vec![1_000, 3_000, 10_000, 20_000, 30_000, 60_000, 100_000];
    let report = run(
        &Options {
            sizes,
            ssd_blocks: Some(10_000),
            ..Options::default()
        },
        requests,
        |_, _| (),
    );
    print_table(&report);
    if std::env::var_os("SLACKWATER_TRACE_FLOORS").is_some() {
        check_floors(&report);
        check_tiers(&report);
    }
}

/// What the learning policy has to reach on the hour of chat traffic published with the Mooncake paper (FAST 2025).
fn check_floors(report: &Report) {
    let row = |policy: &str, size: usize| {
        report
            .rows
            .iter()
            .find(|row| row.policy == policy && row.size == size)
            .expect("replayed above")
    };
    let floors = [
        (1_000, 0.083),
        (3_000, 0.130),
        (10_000, 0.236),
        (20_000, 0.302),
        (30_000, 0.328),
    ];
    for (size, floor) in floors {
        let row = row("adaptive", size);
        assert!(
            row.hit_rate >= floor,
            "{size} blocks: {:.4}, wanted {floor}",
            row.hit_rate
        );
    }
    for &size in report.limits.offline.keys() {
        let adaptive = row("adaptive", size);
        assert!(
            adaptive.bytes_per_block <= 64.0,
            "{size} blocks: {:.1} bytes a block",
            adaptive.bytes_per_block
        );
        for other in ["lru", "s3fifo", "arc", "twoq"] {
            let other = row(other, size);
            assert!(
                adaptive.hit_rate >= other.hit_rate - 0.003,
                "{size} blocks: below {}",
                other.policy
            );
        }
    }
}

/// Two tiers lose nothing that the SSD's size gives alone, and memory little of what it gives alone; what is not worth
/// writing is not written.
fn check_tiers(report: &Report) {
    let tiers = |policy: &str| {
        let found = report
            .tiers
            .iter()
            .find(|row| row.policy == policy && row.size == 3_000);
        found.expect("replayed above")
    };
    let alone = |size: usize| {
        let found = report
            .rows
            .iter()
            .find(|row| row.policy == "adaptive" && row.size == size);
        found.expect("replayed above").hit_rate
    };
    let (adaptive, lru) = (tiers("adaptive"), tiers("lru"));
    assert!(
        adaptive.memory_hit_rate >= alone(3_000) - 0.005,
        "{adaptive:?}"
    );
    assert!(adaptive.hit_rate >= alone(10_000), "{adaptive:?}");
    assert!(
        adaptive.writes_per_put <= 0.85 * lru.writes_per_put,
        "{adaptive:?}, {lru:?}"
    );
}

fn print_table(report: &Report) {
    println!(
        "{:<10}{}",
        "offline",
        report
            .limits
            .offline
            .values()
            .map(|rate| format!("{rate:>8.4}"))
            .collect::<String>()
    );
    let mut policies: Vec<&str> = report.rows.iter().map(|row| row.policy).collect();
    policies.dedup();
    for policy in policies {
        let rows: Vec<_> = report
            .rows
            .iter()
            .filter(|row| row.policy == policy)
            .collect();
        let line = |figure: &dyn Fn(usize) -> String| {
            (0..rows.len())
                .map(|at| format!("{:>8}", figure(at)))
                .collect::<String>()
        };
        println!(
            "{policy:<10}{}",
            line(&|at| format!("{:.4}", rows[at].hit_rate))
        );
        println!(
            "{:<10}{}",
            "  ns",
            line(&|at| format!("{:.0}", rows[at].ns_per_access))
        );
        println!(
            "{:<10}{}",
            "  bytes",
            line(&|at| format!("{:.1}", rows[at].bytes_per_block))
        );
    }
    for row in &report.tiers {
        let (memory, both, writes) = (row.memory_hit_rate, row.hit_rate, row.writes_per_put);
        println!(
            "{:<10}{:>8} over {}: {memory:.4} {both:.4} {writes:.3}",
            row.policy, row.size, row.ssd
        );
    }
}
