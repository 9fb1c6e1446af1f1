use slackwater_report::Bound;

use super::{Bare, Op, Path, Peer, Report, Row};

const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

/// What a served store promises, held against a report; what was not measured is left out.
pub(super) fn of(report: &Report) -> Vec<Bound> {
    let row_of = |op: Op, path: Path, block: usize, concurrency: usize| -> Option<&Row> {
        report.rows.iter().find(|row| {
            (row.op, row.path, row.block, row.concurrency) == (op, path, block, concurrency)
        })
    };
    let row = |path, block, concurrency| row_of(Op::GetInto, path, block, concurrency);
    let bare = |path: Path, block: usize| -> Option<&Bare> {
        let mut all = report.bare.iter();
        all.find(|bare| (bare.path, bare.block, bare.concurrency) == (path, block, 1))
    };
    let mut held = Vec::new();
    if let (Some(one), Some(bare)) = (row(Path::Tcp, LARGE, 1), bare(Path::Tcp, LARGE)) {
        held.push(Bound::at_most(
            "get_into of 1 MiB over TCP: p50 over that of the bare transfer",
            one.p50_us / bare.p50_us,
            1.2,
        ));
    }
    for concurrency in [16, 64] {
        if let (Some(one), Some(many)) =
            (row(Path::Tcp, LARGE, 1), row(Path::Tcp, LARGE, concurrency))
        {
            held.push(Bound::at_least(
                format!("get_into of 1 MiB over TCP: {concurrency} at once over one"),
                many.gbps / one.gbps,
                0.9,
            ));
        }
    }
    if let Some(one) = row(Path::SameHost, LARGE, 1) {
        held.push(Bound::at_least(
            "get_into of 1 MiB on the same host over a copy past the cache",
            one.gbps / report.limits.streaming_copy_gbps,
            0.85,
        ));
        if let Some(tcp) = row(Path::Tcp, LARGE, 1) {
            held.push(Bound::at_least(
                "get_into of 1 MiB on the same host over that by TCP",
                one.gbps / tcp.gbps,
                2.5,
            ));
        }
    }
    for path in Path::ALL {
        for (op, how, most) in [
            (Op::GetIntoAsked, "with a look-up", 60.0),
            (Op::GetInto, "where it is known to be", 35.0),
        ] {
            if let Some(one) = row_of(op, path, SMALL, 1) {
                let what = format!("get_into of 4 KiB {how} by {}: p50 in µs", path.name());
                held.push(Bound::at_most(what, one.p50_us, most));
            }
        }
    }
    if let Some(Peer::Rows(peers)) = report.peers.get("redis") {
        for peer in peers {
            if peer.block != SMALL || peer.concurrency == 1 {
                continue;
            }
            if let Some(ours) = row(Path::Tcp, SMALL, peer.concurrency) {
                held.push(Bound::at_least(
                    format!(
                        "gets of 4 KiB, {} at once, over those of Redis",
                        peer.concurrency
                    ),
                    ours.ops_per_s / peer.ops_per_s,
                    1.0,
                ));
            }
        }
    }
    if let Some(Peer::Rows(peers)) = report.peers.get("mooncake") {
        for (concurrency, least) in [(1, 1.5), (16, 10.0), (64, 40.0)] {
            let peer = peers
                .iter()
                .find(|peer| (peer.block, peer.concurrency) == (LARGE, concurrency));
            if let (Some(peer), Some(ours)) = (peer, row(Path::Tcp, LARGE, concurrency)) {
                held.push(Bound::at_least(
                    format!("get_into of 1 MiB over TCP, {concurrency} at once, over those of the incumbent"),
                    ours.gbps / peer.gbps,
                    least,
                ));
            }
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::served::{Limits, PeerRow};

    fn row(path: Path, block: usize, concurrency: usize, gbps: f64, p50_us: f64) -> Row {
        Row {
            op: Op::GetInto,
            block,
            concurrency,
            path,
            gbps,
            ops_per_s: gbps * 1e9 / block as f64,
            p50_us,
            p99_us: p50_us,
            client_cores: 1.0,
            node_cores: 1.0,
            master_cores: None,
        }
    }

    #[test]
    fn each_promise_is_held_against_its_figures() {
        let bare = Bare {
            block: LARGE,
            concurrency: 1,
            path: Path::Tcp,
            gbps: 1.0,
            p50_us: 100.0,
            p99_us: 100.0,
        };
        let get = PeerRow {
            op: "GET",
            block: SMALL,
            concurrency: 16,
            gbps: 0.1,
            ops_per_s: 1e5,
            p50_us: 1.0,
            p99_us: 1.0,
        };
        let theirs = |concurrency, gbps| PeerRow {
            op: "get_into",
            block: LARGE,
            concurrency,
            gbps,
            ..get.clone()
        };
        let mut report = Report {
            rows: vec![
                row(Path::Tcp, LARGE, 1, 2.0, 121.0),
                row(Path::Tcp, LARGE, 16, 1.8, 900.0),
                row(Path::Tcp, LARGE, 64, 1.7, 900.0),
                row(Path::SameHost, LARGE, 1, 5.0, 50.0),
                Row {
                    op: Op::GetIntoAsked,
                    ..row(Path::Tcp, SMALL, 1, 0.1, 59.0)
                },
                row(Path::Tcp, SMALL, 1, 0.1, 36.0),
                row(Path::Tcp, SMALL, 16, 0.5, 59.0),
            ],
            limits: Limits {
                streaming_copy_gbps: 5.5,
                ..Limits::default()
            },
            bare: vec![bare],
            peers: BTreeMap::from([
                ("redis", Peer::Rows(vec![get.clone()])),
                (
                    "mooncake",
                    Peer::Rows(vec![theirs(1, 1.0), theirs(16, 0.2)]),
                ),
            ]),
            bounds: Vec::new(),
        };
        let holds =
            |report: &Report| -> Vec<bool> { of(report).iter().map(Bound::holds).collect() };
        assert_eq!(
            holds(&report),
            [
                false, true, false, true, true, true, false, true, true, false
            ]
        );
        report.rows.clear();
        assert!(of(&report).is_empty(), "nothing is claimed of nothing");
    }
}
