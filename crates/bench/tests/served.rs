//! The benchmark of a served store end to end, small: every row is there and its figures make sense.

use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_bench::served::{self, Op, Options, Path, Peer};
use slackwater_bench::transfer;

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
}
