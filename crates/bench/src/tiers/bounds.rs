use slackwater_report::Bound;

use super::player::Reading;
use super::{Report, Row};

/// Requests at once with which the device is promised to be busy.
const BUSY: usize = 8;
/// Length of the reads beside offloads whose times are promised.
const READ_BYTES: usize = 64 << 10;

/// What memory over SSD promises, held against a report; what was not measured is left out.
pub(super) fn of(report: &Report, block_bytes: usize) -> Vec<Bound> {
    let of = |system: &'static str| report.rows.iter().filter(move |row| row.system == system);
    let mut held = Vec::new();
    for theirs in of("foyer") {
        // Like the peer, views hand out references.
        let mut ours = of(Reading::Views.system());
        if let Some(ours) = ours.find(|row| row.in_flight == theirs.in_flight) {
            held.extend(beside(ours, theirs));
        }
    }
    for reading in [Reading::Copies, Reading::Views] {
        // Without a byte that moved there is no floor.
        let is_busy = |row: &&Row| row.in_flight == BUSY && row.floor_s > 0.0;
        for row in of(reading.system()).filter(is_busy) {
            held.push(Bound::at_most(
                format!(
                    "{}, {BUSY} requests at once: wall over the raw device's",
                    row.system
                ),
                row.wall_over_floor,
                1.15,
            ));
        }
    }
    let Some(of) = &report.contention else {
        return held;
    };
    if block_bytes == READ_BYTES && of.untimed().is_none() {
        for (what, ratio, most) in [
            ("p50", of.beside_p50_us / of.idle_p50_us, 2.0),
            ("p99", of.beside_p99_us / of.idle_p99_us, 5.0),
        ] {
            let what = format!(
                "a read of 64 KiB from SSD beside offloads over one on an idle device: {what}"
            );
            held.push(Bound::at_most(what, ratio, most));
        }
    }
    held.push(Bound::at_least(
        "offloads while nobody reads over raw writes that are synced as they are",
        of.offload_alone_bytes_per_s / of.raw_synced_bytes_per_s,
        0.85,
    ));
    held
}

fn beside(ours: &Row, theirs: &Row) -> [Bound; 3] {
    let what = |what: &str| {
        let (ours, theirs, at_once) = (&ours.system, &theirs.system, theirs.in_flight);
        format!("{ours} over {theirs}, {at_once} at once: {what}")
    };
    let hits = ours.prefix_hit_rate / theirs.prefix_hit_rate;
    [
        Bound::at_most(what("wall"), ours.wall_s / theirs.wall_s, 1.0),
        Bound::at_most(what("CPU"), ours.cpu_s / theirs.cpu_s, 0.8),
        Bound::at_least(what("prefix hits"), hits, 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::{Contention, Limits};

    fn row(system: &str, in_flight: usize, [wall_s, cpu_s, hits, over_floor]: [f64; 4]) -> Row {
        Row {
            system: system.to_owned(),
            in_flight,
            wall_s,
            cpu_s,
            prefix_hit_rate: hits,
            read_p50_us: 1.0,
            read_p99_us: 1.0,
            ssd_read_p50_us: 1.0,
            ssd_read_p99_us: 1.0,
            device_read_bytes: 1,
            device_write_bytes: 1,
            floor_s: 1.0,
            wall_over_floor: over_floor,
        }
    }

    fn check(rows: &[Row], contention: Option<Contention>, block_bytes: usize, expected: &[bool]) {
        let report = Report {
            rows: rows.to_vec(),
            limits: Limits {
                raw_write_bytes_per_s: 1.0,
                raw_read_p50_us: 1.0,
                raw_read_p99_us: 1.0,
            },
            contention,
            io: String::new(),
            skipped: Vec::new(),
            bounds: Vec::new(),
        };
        let holds: Vec<bool> = of(&report, block_bytes).iter().map(Bound::holds).collect();
        assert_eq!(holds, expected, "{rows:?} {contention:?}");
    }

    #[test]
    fn each_promise_is_held_against_its_figures() {
        let (copies, views) = ("slackwater", "slackwater, views");
        let foyer = |at_once| row("foyer", at_once, [10.0, 10.0, 0.4, 2.0]);
        let good = row(views, 1, [10.0, 8.0, 0.4, 2.0]);
        check(std::slice::from_ref(&good), None, READ_BYTES, &[]);
        // Copies do more than the peer, and another number of requests is another load.
        let others = [row(copies, 1, [99.0; 4]), foyer(1), foyer(2)];
        check(
            &[&[good], &others[..]].concat(),
            None,
            READ_BYTES,
            &[true; 3],
        );
        let bad = row(views, 2, [10.1, 8.1, 0.39, 2.0]);
        check(&[bad, foyer(2)], None, READ_BYTES, &[false; 3]);
        let busy = [(copies, 1.15), (views, 1.16)]
            .map(|(system, over)| row(system, 8, [1.0, 1.0, 1.0, over]));
        check(&busy, None, READ_BYTES, &[true, false]);
        let unmoved = busy.map(|row| Row {
            floor_s: 0.0,
            ..row
        });
        check(&unmoved, None, READ_BYTES, &[]);
        let contention = Contention {
            idle_p50_us: 10.0,
            idle_p99_us: 20.0,
            beside_p50_us: 20.0,
            beside_p99_us: 101.0,
            offload_beside_bytes_per_s: 1.0,
            offload_alone_bytes_per_s: 85.0,
            raw_write_bytes_per_s: 200.0,
            raw_rewrite_bytes_per_s: 150.0,
            raw_synced_bytes_per_s: 100.0,
        };
        check(&[], Some(contention), READ_BYTES, &[true, false, true]);
        let slow = Contention {
            offload_alone_bytes_per_s: 84.0,
            ..contention
        };
        check(&[], Some(slow), 1 << 20, &[false]);
    }
}
