//! The benchmark of a served store end to end, small: every row is there and its figures make sense.

use std::ffi::OsString;
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_bench::served::{self, Op, Options, Path, Peer};
use slackwater_bench::{transfer, wait};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("served") => {
            return served::child(&arguments[1..]).expect("the parent knows its parts");
        }
        Some("transfer") => {
            return transfer::child(&arguments[1..]).expect("the parent knows its parts");
        }
        _ => {}
    }
    let this = std::env::current_exe().expect("this is a program");
    let child = |part: &str| vec![this.clone().into(), part.into()];
    let place = tempfile::tempdir().expect("a directory");
    let report = served::run(&Options {
        blocks: vec![64 << 10],
        concurrency: vec![1, 4],
        batch: 3,
        window: Duration::from_millis(30),
        rounds: 1,
        memory: ByteSize::gib(1),
        child: child("served"),
        transfer_child: child("transfer"),
        ..Options::new(place.path().to_owned())
    })
    .expect("loopback");
    let found: Vec<(Path, Op, usize)> = report
        .rows
        .iter()
        .map(|row| (row.path, row.op, row.concurrency))
        .collect();
    let mut expected = Vec::new();
    for path in Path::ALL {
        for op in Op::ALL {
            expected.extend([1, 4].map(|concurrency| (path, op, concurrency)));
        }
    }
    assert_eq!(found, expected);
    for row in &report.rows {
        assert!(
            row.ops_per_s > 1.0 && row.p50_us > 0.0 && row.p50_us <= row.p99_us,
            "{row:?}"
        );
        let gbps = row.ops_per_s * row.block as f64 / 1e9;
        assert!((row.gbps - gbps).abs() < 1e-9, "{row:?}");
        assert!(row.client_cores > 0.0 && row.node_cores >= 0.0, "{row:?}");
        assert_eq!(row.master_cores, None, "one process is both: {row:?}");
    }
    assert_eq!(report.bare.len(), 4);
    assert!(
        report
            .bare
            .iter()
            .all(|bare| bare.gbps > 0.0 && bare.p50_us > 0.0)
    );
    let limits = &report.limits;
    assert!(limits.blocking_socket_gbps > 0.0 && limits.streaming_copy_gbps > 0.0);
    match &report.peers["redis"] {
        Peer::Rows(rows) => assert!(rows.len() == 2 && rows.iter().all(|row| row.ops_per_s > 1.0)),
        Peer::Skipped(reason) => assert!(reason.contains("redis-server"), "{reason}"),
    }
    match &report.peers["mooncake"] {
        Peer::Rows(rows) => assert!(rows.len() == 2 && rows.iter().all(|row| row.ops_per_s > 1.0)),
        Peer::Skipped(reason) => assert!(reason.contains("no mooncake package"), "{reason}"),
    }
    let json = serde_json::to_value(&report).expect("plain figures");
    for field in [
        "op",
        "block",
        "concurrency",
        "path",
        "gbps",
        "ops_per_s",
        "p50_us",
        "p99_us",
        "client_cores",
        "node_cores",
        "master_cores",
    ] {
        assert!(json["rows"][0].get(field).is_some(), "{field}: {json}");
    }
    assert_eq!(json["rows"][0]["path"], "tcp");
    strategies_over_a_store(child("served"));
}

/// Clients of a served store wait by each strategy of `bench wait`, and stand in its report beside copies.
fn strategies_over_a_store(store_child: Vec<OsString>) {
    let strategies = ["spin", "sleep:10us", "adaptive"].map(str::to_owned);
    let report = wait::run(&wait::Options {
        concurrency: vec![1, 2],
        strategies: strategies.to_vec(),
        source_bytes: 2 << 20,
        run: Duration::from_millis(30),
        rounds: 1,
        idle: Duration::ZERO,
        store_child,
        ..wait::Options::default()
    })
    .expect("loopback");
    assert_eq!(report.store_rows.len(), 6);
    for row in &report.store_rows {
        assert!(
            row.gbps > 0.0 && row.cores > 0.0 && row.avg_us > 0.0 && row.p99_us > 0.0,
            "{row:?}"
        );
    }
    let json = serde_json::to_value(&report).expect("plain figures");
    let compared = json["compared"].as_array().expect("a list");
    let whats: Vec<&str> = compared
        .iter()
        .filter_map(|row| row["what"].as_str())
        .collect();
    // Looks are counted in this process alone.
    assert_eq!(whats.len(), 2 * 4 + 2 * 3, "{whats:?}");
    assert!(whats.contains(&"reads of a served store, 2 waiters: GB/s"));
    for row in compared {
        assert!(
            row["before"].is_number() && row["their_fix"].is_number(),
            "{row}"
        );
    }
}
