use super::{LinksRow, Report, RpcRow};
use slackwater_report::{Better, Bound, Compared};

/// What the message layer promises, held against a report; what was not measured is left out.
pub(super) fn of(report: &Report) -> Vec<Bound> {
    let mut held = Vec::new();
    links(report, &mut held);
    requests(report, &mut held);
    bursts(report, &mut held);
    held
}

/// Clients that ask all their sockets, the same with epoll, and ours, by each number of links.
pub(super) fn compared(rows: &[LinksRow]) -> Vec<Compared> {
    let mut compared = Vec::new();
    let of_rate = || rows.iter().filter(|row| row.rate == RARE);
    for ours in of_rate().filter(|row| row.client == OURS && row.mechanism == "NULL") {
        let same = |client| {
            of_rate().find(|row| {
                (row.client, row.n, row.heartbeats) == (client, ours.n, ours.heartbeats)
            })
        };
        let (before, fix) = (same("libzmq poll"), same("libzmq epoll"));
        let mut row = |what: &str, pick: fn(&LinksRow) -> f64| {
            let what = format!("{} links, heartbeats {}: {what}", ours.n, ours.heartbeats);
            compared.push(
                Compared::new(what, Better::Less, pick(ours))
                    .before(before.map(pick))
                    .their_fix(fix.map(pick)),
            );
        };
        row("CPU of the client, % of a core", |row| row.cpu_percent);
        row("p50 from send to handler, µs", |row| row.p50_us);
        row("p99 from send to handler, µs", |row| row.p99_us);
    }
    compared
}

const OURS: &str = "ours";
const RARE: u32 = 1_000;
const SMALL: usize = 64;

fn links(report: &Report, held: &mut Vec<Bound>) {
    let ours = |row: &&LinksRow| row.client == OURS && row.mechanism == "NULL";
    let null = || report.links.iter().filter(ours);
    let most = null().map(|row| row.n).max().unwrap_or_default();
    for ratio in report
        .ratios
        .iter()
        .filter(|ratio| ratio.rate == RARE && ratio.most > ratio.least)
    {
        let what = format!(
            "{}: CPU per message at {} links over that at {}",
            ratio.client, ratio.most, ratio.least
        );
        held.push(Bound::at_most(what, ratio.ratio, 1.25));
    }
    if let Some(row) =
        null().find(|row| row.n == most && row.rate == RARE && row.heartbeats == "off")
    {
        held.push(Bound::at_most(
            format!("CPU at {most} links, a message every ms, % of a core"),
            row.cpu_percent,
            5.0,
        ));
    }
    let calls = report.links.iter().filter_map(|row| row.syscalls_per_msg);
    if let Some(calls) = calls.reduce(f64::max) {
        held.push(Bound::at_most(
            "system calls per message, at any number of links",
            calls,
            6.0,
        ));
    }
    for (mechanism, bound) in [("NULL", 8192.0), ("CURVE", 10_240.0)] {
        // Of few links, what the process itself needs is most of it.
        let rows: Vec<LinksRow> = report
            .links
            .iter()
            .filter(|row| row.client == OURS && row.mechanism == mechanism)
            .filter(|row| row.n >= RARE as usize)
            .cloned()
            .collect();
        if let Some(bytes) = worst(&rows, |row| row.bytes_per_link) {
            held.push(Bound::at_most(
                format!("bytes of user memory per idle link, {mechanism}"),
                bytes,
                bound,
            ));
        }
    }
    let fewer = null()
        .filter(|row| row.n < most && row.n >= RARE as usize)
        .map(|row| row.connect_seconds / row.n as f64);
    let all = null()
        .find(|row| row.n == most)
        .map(|row| row.connect_seconds / row.n as f64);
    if let (Some(fewer), Some(all)) = (fewer.reduce(f64::max), all) {
        held.push(Bound::at_most(
            format!("time to connect one of {most} links over one of fewer"),
            all / fewer,
            2.0,
        ));
    }
}

fn requests(report: &Report, held: &mut Vec<Bound>) {
    let find = |mechanism: &str, links: usize| -> Option<&RpcRow> {
        report
            .rpc
            .iter()
            .find(|row| row.mechanism == mechanism && row.links == links && row.size == SMALL)
    };
    for mechanism in ["NULL", "CURVE"] {
        if let Some(row) = find(mechanism, 1)
            && let Some(peer) = row.peer_p50_us
        {
            held.push(Bound::at_least(
                format!("64 B on one link, p50: pyzmq over ours, {mechanism}"),
                peer / row.p50_us,
                2.5,
            ));
        }
        if let Some(row) = find(mechanism, 64)
            && let Some(peer) = row.peer_rps_per_cpu
        {
            let what =
                format!("64 B on 64 links, replies per CPU second: ours over pyzmq, {mechanism}");
            held.push(Bound::at_least(what, row.rps_per_cpu / peer, 1.0));
        }
    }
    if let (Some(null), Some(curve)) = (find("NULL", 1), find("CURVE", 1)) {
        held.push(Bound::at_most(
            "64 B on one link, p50: CURVE over NULL",
            curve.p50_us / null.p50_us,
            1.3,
        ));
    }
}

fn bursts(report: &Report, held: &mut Vec<Bound>) {
    for row in report.bursts.iter().filter(|row| row.client == OURS) {
        let (requests, queue) = (row.requests, row.queue);
        held.push(Bound::at_least(
            format!(
                "burst of {requests} over a queue of {queue}: answered of what the queue holds"
            ),
            row.answered as f64 / requests.min(queue) as f64,
            1.0,
        ));
        held.push(Bound::at_most(
            format!(
                "burst of {requests} over a queue of {queue}: requests without answer or refusal"
            ),
            (requests - (row.answered + row.refused).min(requests)) as f64,
            0.0,
        ));
        held.push(Bound::at_most(
            format!("burst of {requests} over a queue of {queue}: memory of the server, MiB"),
            row.server_bytes as f64 / f64::from(1 << 20),
            8.0,
        ));
    }
}

fn worst(rows: &[LinksRow], pick: fn(&LinksRow) -> f64) -> Option<f64> {
    rows.iter().map(pick).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mq::{BurstRow, LinksRatio};

    #[test]
    fn every_promise_is_held_against_what_was_measured() {
        let links = |n: usize, mechanism, connect_seconds| LinksRow {
            client: OURS,
            heartbeats: "off",
            n,
            mechanism,
            rate: RARE,
            cpu_percent: 0.5,
            syscalls_per_msg: Some(2.0),
            bytes_per_link: 9_000.0,
            connect_seconds,
            ..LinksRow::default()
        };
        let rpc = |links, mechanism, p50_us| RpcRow {
            links,
            size: SMALL,
            mechanism,
            p50_us,
            rps_per_cpu: 10.0,
            peer_p50_us: Some(25.0),
            peer_rps_per_cpu: Some(11.0),
            ..RpcRow::default()
        };
        let report = Report {
            links: vec![
                links(200, "NULL", 1.0),
                links(2_000, "NULL", 1.0),
                links(20_000, "NULL", 30.0),
                links(2_000, "CURVE", 1.0),
            ],
            ratios: vec![LinksRatio {
                client: "ours",
                least: 200,
                most: 20_000,
                rate: RARE,
                ratio: 1.26,
            }],
            rpc: vec![
                rpc(1, "NULL", 10.0),
                rpc(64, "NULL", 10.0),
                rpc(1, "CURVE", 12.0),
            ],
            bursts: vec![
                BurstRow {
                    client: OURS,
                    requests: 200,
                    queue: 100,
                    answered: 101,
                    refused: 98,
                    failed: 1,
                    server_bytes: 9 << 20,
                    ..BurstRow::default()
                },
                BurstRow {
                    client: "libzmq",
                    ..BurstRow::default()
                },
            ],
            ..Report::default()
        };
        let holds: Vec<bool> = of(&report).iter().map(Bound::holds).collect();
        let links = [false, true, true, false, true, false];
        let requests = [true, false, false, true];
        let bursts = [true, false, false];
        assert_eq!(holds, [&links[..], &requests, &bursts].concat());
        assert!(of(&Report::default()).is_empty());
    }

    #[test]
    fn a_row_stands_beside_the_peers_of_its_own_links_and_heartbeats() {
        let row = |client, n, heartbeats, cpu_percent| LinksRow {
            client,
            n,
            heartbeats,
            mechanism: "NULL",
            rate: RARE,
            cpu_percent,
            ..LinksRow::default()
        };
        let rows = [
            row(OURS, 200, "off", 2.0),
            row("libzmq poll", 200, "off", 30.0),
            row("libzmq epoll", 200, "off", 4.0),
            row(OURS, 200, "on", 3.0),
            row("libzmq poll", 2_000, "on", 90.0),
            LinksRow {
                rate: 10 * RARE,
                ..row(OURS, 200, "off", 9.0)
            },
        ];
        let compared = compared(&rows);
        assert_eq!(compared.len(), 6, "three figures of two rows: {compared:?}");
        let first = "200 links, heartbeats off: CPU of the client, % of a core";
        assert_eq!(
            compared[0],
            Compared::new(first, Better::Less, 2.0)
                .before(Some(30.0))
                .their_fix(Some(4.0))
        );
        assert_eq!(
            compared[3].ahead(),
            None,
            "another number of links is another row"
        );
    }
}
