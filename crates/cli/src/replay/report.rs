use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use slackwater_node::store::Latency;
use slackwater_node::{Config, Stats};
use slackwater_report::{Axis, Chart, Line, Mark, Page, Scale, Table, Tile, Tone, Unit};

use crate::config::shown;

use super::outcome::{Outcome, Skipped};
use super::tally::{ReplayCounts, share};

/// Everything a run leaves behind.
pub(super) struct Record<'a> {
    pub(super) source: &'a str,
    pub(super) config: &'a Config,
    pub(super) block_bytes: u64,
    /// Why the run ended before the trace did, if so.
    pub(super) cut_short: Option<&'a str>,
    pub(super) tally: &'a ReplayCounts,
    pub(super) stats: &'a Stats,
    pub(super) outcome: &'a Outcome,
    pub(super) moments: &'a [Moment],
}

/// The state of a run after a request. Counters are totals since its start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Moment {
    /// Time in the trace.
    pub(super) trace_s: f64,
    /// Time of the run.
    pub(super) wall_s: f64,
    pub(super) requests: u64,
    pub(super) blocks: u64,
    pub(super) memory_hits: u64,
    pub(super) ssd_hits: u64,
    pub(super) put_bytes: u64,
    pub(super) memory_used_bytes: u64,
    pub(super) ssd_used_bytes: u64,
    pub(super) promotions: u64,
    pub(super) evictions: u64,
    pub(super) offloads: u64,
    /// Blocks that were not written to SSD.
    pub(super) not_written: Skipped,
    /// Time that reads from SSD took longer because blocks were written.
    pub(super) ssd_read_delay_s: f64,
}

impl Record<'_> {
    /// Writes `report.html` and `report.json` into `directory`, which is made where missing; returns the first's path.
    pub(super) fn write(&self, directory: &Path) -> Result<PathBuf> {
        let place = || format!("cannot write the report into {}", directory.display());
        std::fs::create_dir_all(directory).with_context(place)?;
        let html = directory.join("report.html");
        std::fs::write(&html, self.page().html()).with_context(place)?;
        std::fs::write(directory.join("report.json"), self.json()?).with_context(place)?;
        Ok(html)
    }

    fn json(&self) -> Result<String> {
        let settings: serde_json::Map<String, serde_json::Value> = self
            .config
            .explain()
            .into_iter()
            .map(|line| (line.key.to_owned(), line.value.into()))
            .collect();
        let calls = &self.tally.read_calls;
        let mut object = serde_json::to_value(self.outcome)?;
        let more = serde_json::json!({
            "source": self.source,
            "block_bytes": self.block_bytes,
            "cut_short": self.cut_short,
            "read_call_us": {
                "count": calls.len(),
                "p50": micros(calls.value_at_quantile(0.5)),
                "p99": micros(calls.value_at_quantile(0.99)),
            },
            "read_errors": self.tally.read_errors,
            "put_errors": self.tally.put_errors,
            "busy_s": self.tally.busy.as_secs_f64(),
            "store": self.stats,
            "settings": settings,
            "timeline": self.moments,
        });
        if let (Some(object), serde_json::Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        Ok(serde_json::to_string_pretty(&object)? + "\n")
    }

    fn page(&self) -> Page {
        let corrupt = self.outcome.corrupt_reads;
        let alert = match (corrupt, self.cut_short) {
            (0, None) => None,
            (0, Some(why)) => Some(format!(
                "Cut short: {why}. The report covers what was done until then."
            )),
            (corrupt, _) => Some(format!("{corrupt} blocks were not what was put.")),
        };
        Page {
            title: format!("Replay of {}", self.source),
            lead: format!(
                "{} requests with blocks of {}, in {} of memory over {} of SSD, policy {}, offload {}. Every bit of every \
                 block that was read has been compared with what was put.",
                grouped(self.outcome.requests),
                Unit::Bytes.format(self.block_bytes as f64),
                self.config.memory,
                self.config.ssd,
                shown(self.config, "policy"),
                shown(self.config, "offload"),
            ),
            alert,
            tiles: self.tiles(),
            charts: vec![
                self.hit_rate(),
                self.bytes(),
                self.latency(),
                self.movement(),
                self.not_written(),
                self.read_delay(),
            ],
            tables: self.tables(),
            ..Page::default()
        }
    }

    fn tiles(&self) -> Vec<Tile> {
        let outcome = self.outcome;
        let count = |value: u64| Unit::Count.format(value as f64);
        let moved = (outcome.get_bytes + outcome.put_bytes) as f64;
        let micros = |latency: &Latency| match latency.count {
            0 => "–".to_owned(),
            _ => Unit::Micros.format(latency.p50_us),
        };
        let (memory, ssd) = (&self.stats.latency.memory, &self.stats.latency.ssd);
        vec![
            Tile::new(
                "Prefix hit rate",
                Unit::Share.format(outcome.prefix_hit_rate),
                format!("of {} blocks", count(outcome.blocks)),
            ),
            Tile::new(
                "From memory",
                Unit::Share.format(share(outcome.memory_hits, outcome.blocks)),
                format!("p50 {} a block", micros(memory)),
            ),
            Tile::new(
                "From SSD",
                Unit::Share.format(share(outcome.ssd_hits, outcome.blocks)),
                format!("p50 {} a block", micros(ssd)),
            ),
            Tile::new(
                "Throughput",
                Unit::BytesPerSecond.format(moved / outcome.wall_s.max(1e-9)),
                format!(
                    "{} in {}",
                    Unit::Bytes.format(moved),
                    Unit::Seconds.format(outcome.wall_s)
                ),
            ),
            Tile::new(
                "Promoted",
                count(outcome.promotions.completed),
                format!("{} admitted", count(outcome.promotions.admitted)),
            ),
            Tile::new(
                "Corrupt reads",
                count(outcome.corrupt_reads),
                "every bit compared",
            ),
            Tile::new(
                "Peak memory",
                Unit::Bytes.format(outcome.peak_rss_bytes as f64),
                format!("of which {} for values", self.config.memory),
            ),
        ]
    }

    fn hit_rate(&self) -> Chart {
        let share_of = |hits: fn(&Moment) -> u64| {
            self.windows()
                .map(|(x, before, now)| {
                    (
                        x,
                        share(hits(now) - hits(before), now.blocks - before.blocks),
                    )
                })
                .collect()
        };
        let so_far = |moment: &Moment| {
            (
                self.along(moment),
                share(moment.memory_hits + moment.ssd_hits, moment.blocks),
            )
        };
        Chart {
            title: "Hit rate over time".to_owned(),
            note: "Blocks read after all blocks before them, as a share of the blocks asked for since the last point."
                .to_owned(),
            x: self.time(),
            y: Axis::new("share of blocks", Unit::Share),
            lines: vec![
                line("from memory", Tone::Blue, Mark::Stacked, share_of(|moment| moment.memory_hits)),
                line("from SSD", Tone::Orange, Mark::Stacked, share_of(|moment| moment.ssd_hits)),
                line("since the start", Tone::Grey, Mark::Dashed, self.moments.iter().map(so_far).collect()),
            ],
        }
    }

    fn bytes(&self) -> Chart {
        let used = |bytes: fn(&Moment) -> u64| {
            self.moments
                .iter()
                .map(|moment| (self.along(moment), bytes(moment) as f64))
                .collect()
        };
        Chart {
            title: "Bytes by tier".to_owned(),
            note: format!(
                "What the values occupy; capacity {} of memory and {} of SSD.",
                self.config.memory, self.config.ssd
            ),
            x: self.time(),
            y: Axis::new("bytes", Unit::Bytes),
            lines: vec![
                line(
                    "memory",
                    Tone::Blue,
                    Mark::Stacked,
                    used(|moment| moment.memory_used_bytes),
                ),
                line(
                    "SSD",
                    Tone::Orange,
                    Mark::Stacked,
                    used(|moment| moment.ssd_used_bytes),
                ),
            ],
        }
    }

    fn latency(&self) -> Chart {
        let ticks: Vec<(f64, String)> = PERCENTILES
            .iter()
            .map(|(place, name)| (*place, (*name).to_owned()))
            .collect();
        let curve = |latency: &Latency| {
            let values = [
                latency.p50_us,
                latency.p95_us,
                latency.p99_us,
                latency.p999_us,
                latency.max_us,
            ];
            let measured =
                values
                    .into_iter()
                    .take(if latency.count == 0 { 0 } else { values.len() });
            PERCENTILES
                .iter()
                .zip(measured)
                .map(|((place, _), value)| (*place, value))
                .collect()
        };
        Chart {
            title: "Latency percentiles by tier".to_owned(),
            note: "Time of one block's read or put inside the store; the scale is logarithmic."
                .to_owned(),
            x: Axis {
                ticks,
                ..Axis::new("percentile", Unit::Count)
            },
            y: Axis {
                scale: Scale::Log,
                ..Axis::new("time", Unit::Micros)
            },
            lines: vec![
                line(
                    "read from memory",
                    Tone::Blue,
                    Mark::Solid,
                    curve(&self.stats.latency.memory),
                ),
                line(
                    "read from SSD",
                    Tone::Orange,
                    Mark::Solid,
                    curve(&self.stats.latency.ssd),
                ),
                line(
                    "put",
                    Tone::Green,
                    Mark::Solid,
                    curve(&self.stats.latency.put),
                ),
            ],
        }
    }

    fn movement(&self) -> Chart {
        let flow = |count: fn(&Moment) -> u64| {
            self.windows()
                .map(|(x, before, now)| (x, count(now).saturating_sub(count(before)) as f64))
                .collect()
        };
        Chart {
            title: "Promotions and evictions".to_owned(),
            note: "Blocks that moved between the tiers since the last point.".to_owned(),
            x: self.time(),
            y: Axis::new("blocks", Unit::Count),
            lines: vec![
                line(
                    "evicted from memory",
                    Tone::Purple,
                    Mark::Solid,
                    flow(|moment| moment.evictions),
                ),
                line(
                    "written to SSD",
                    Tone::Orange,
                    Mark::Solid,
                    flow(|moment| moment.offloads),
                ),
                line(
                    "promoted",
                    Tone::Blue,
                    Mark::Solid,
                    flow(|moment| moment.promotions),
                ),
            ],
        }
    }

    fn not_written(&self) -> Chart {
        let tones = [
            Tone::Grey,
            Tone::Orange,
            Tone::Purple,
            Tone::Blue,
            Tone::Green,
        ];
        let lines = Skipped::default().reasons().into_iter().zip(tones);
        Chart {
            title: "Not written to SSD".to_owned(),
            note: "Blocks that were not written to SSD since the last point, by reason.".to_owned(),
            x: self.time(),
            y: Axis::new("blocks", Unit::Count),
            lines: lines
                .enumerate()
                .map(|(nth, ((name, _), tone))| {
                    let blocks = |moment: &Moment| moment.not_written.reasons()[nth].1;
                    let flow = self.windows().map(|(x, before, now)| {
                        (x, blocks(now).saturating_sub(blocks(before)) as f64)
                    });
                    line(name, tone, Mark::Solid, flow.collect())
                })
                .collect(),
        }
    }

    fn read_delay(&self) -> Chart {
        let delay = self.windows().map(|(x, before, now)| {
            let more = now.ssd_read_delay_s - before.ssd_read_delay_s;
            (x, more.max(0.0))
        });
        Chart {
            title: "Readers waiting for writes".to_owned(),
            note: "How much longer reads from SSD took since the last point because blocks were written, in sum.".to_owned(),
            x: self.time(),
            y: Axis::new("time", Unit::Seconds),
            lines: vec![line("reads from SSD", Tone::Orange, Mark::Solid, delay.collect())],
        }
    }

    /// Each moment with the one before it, beginning from nothing.
    fn windows(&self) -> impl Iterator<Item = (f64, &Moment, &Moment)> {
        let before = std::iter::once(&START).chain(self.moments);
        before
            .zip(self.moments)
            .map(|(before, now)| (self.along(now), before, now))
    }

    fn time(&self) -> Axis {
        let label = if self.timed() {
            "time in the trace"
        } else {
            "time of the run"
        };
        Axis::new(label, Unit::Seconds)
    }

    fn along(&self, moment: &Moment) -> f64 {
        if self.timed() {
            moment.trace_s
        } else {
            moment.wall_s
        }
    }

    /// Whether the trace tells time: some only tell order.
    fn timed(&self) -> bool {
        self.moments
            .last()
            .is_some_and(|moment| moment.trace_s > 0.0)
    }

    fn tables(&self) -> Vec<Table> {
        let texts = |cells: &[&str]| {
            cells
                .iter()
                .map(|cell| (*cell).to_owned())
                .collect::<Vec<_>>()
        };
        let latency = |name: &str, latency: &Latency| {
            let times = [
                latency.p50_us,
                latency.p95_us,
                latency.p99_us,
                latency.p999_us,
                latency.max_us,
            ];
            let head = [name.to_owned(), Unit::Count.format(latency.count as f64)];
            head.into_iter()
                .chain(times.map(|time| Unit::Micros.format(time)))
                .collect()
        };
        let settings = self
            .config
            .explain()
            .into_iter()
            .map(|line| vec![line.key.to_owned(), line.value]);
        vec![
            Table {
                title: "Figures".to_owned(),
                head: texts(&["", ""]),
                rows: self.figures(),
            },
            Table {
                title: "Latency".to_owned(),
                head: texts(&["", "calls", "p50", "p95", "p99", "p99.9", "max"]),
                rows: vec![
                    latency("read from memory", &self.stats.latency.memory),
                    latency("read from SSD", &self.stats.latency.ssd),
                    latency("put", &self.stats.latency.put),
                ],
            },
            Table {
                title: "Settings".to_owned(),
                head: texts(&["", ""]),
                rows: settings.collect(),
            },
        ]
    }
}

static START: Moment = Moment {
    trace_s: 0.0,
    wall_s: 0.0,
    requests: 0,
    blocks: 0,
    memory_hits: 0,
    ssd_hits: 0,
    put_bytes: 0,
    memory_used_bytes: 0,
    ssd_used_bytes: 0,
    promotions: 0,
    evictions: 0,
    offloads: 0,
    not_written: Skipped {
        full: 0,
        no_room: 0,
        failing: 0,
        not_worth: 0,
        failed: 0,
    },
    ssd_read_delay_s: 0.0,
};

/// Percentiles at even distances: each step is another kind of tail.
const PERCENTILES: [(f64, &str); 5] = [
    (0.0, "50"),
    (1.0, "95"),
    (2.0, "99"),
    (3.0, "99.9"),
    (4.0, "max"),
];

fn line(name: &str, tone: Tone, mark: Mark, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: name.to_owned(),
        tone,
        mark,
        points,
    }
}

/// A number with its thousands apart: `12,031`.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use slackwater_meta::OffloadMetrics;
    use slackwater_node::store::SsdStats;

    use super::super::moment;
    use super::super::outcome::Cost;
    use super::*;

    /// What the SSD had no room for and what it failed to take were one number, and no chart said why blocks were not written.
    #[test]
    fn each_reason_why_blocks_were_not_written_is_in_table_file_and_page() {
        let stats = Stats {
            ssd: Some(SsdStats {
                reads_delayed_us: 2_500_000,
                ..SsdStats::default()
            }),
            offloads: OffloadMetrics {
                skipped_full: 1011,
                skipped_no_disk: 22,
                skipped_failing: 33,
                skipped_not_worth: 44,
                failed: 50,
                expired: 5,
                ..OffloadMetrics::default()
            },
            ..Stats::default()
        };
        let tally = ReplayCounts::default();
        let mut outcome = Outcome::new(&tally, &stats, Cost::default());
        outcome.unwritten_at_close = 77;
        let now = std::time::Instant::now();
        let moments = [
            moment(&tally, &Stats::default(), 1.0, now),
            moment(&tally, &stats, 2.0, now),
        ];
        let record = Record {
            source: "t",
            config: &Config::default(),
            block_bytes: 4096,
            cut_short: None,
            tally: &tally,
            stats: &stats,
            outcome: &outcome,
            moments: &moments,
        };
        let html = record.page().html();
        for (name, value) in [
            (
                "not written: queue full / no room / SSD failing / not worth it / failed",
                "1,011 / 22 / 33 / 44 / 55",
            ),
            ("not written when the store was closed", "77"),
            ("reads from SSD waited for writes", "2.5 s"),
        ] {
            let row = [name.to_owned(), value.to_owned()];
            assert!(
                record.figures().contains(&row.to_vec()),
                "{name}: {:?}",
                record.figures()
            );
            assert!(
                html.contains(name) && html.contains(value),
                "{name}: {html}"
            );
        }
        let last = |chart: Chart| -> Vec<(String, f64)> {
            let lines = chart.lines.into_iter();
            lines.map(|line| (line.name, line.points[1].1)).collect()
        };
        let lines = [last(record.not_written()), last(record.read_delay())].concat();
        let expected = [
            ("queue full", 1011.0),
            ("no room", 22.0),
            ("SSD failing", 33.0),
            ("not worth it", 44.0),
            ("failed", 55.0),
            ("reads from SSD", 2.5),
        ];
        assert_eq!(
            lines,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        for word in [
            "Not written to SSD",
            "SSD failing",
            "Readers waiting for writes",
        ] {
            assert!(html.contains(word), "{word}");
        }
        let file: serde_json::Value = serde_json::from_str(&record.json().unwrap()).unwrap();
        for reasons in [
            &file["offloads_skipped"],
            &file["timeline"][1]["not_written"],
        ] {
            let reason = |name: &str| reasons[name].as_u64().unwrap();
            assert_eq!(
                (reason("no_room"), reason("failing"), reason("not_worth")),
                (22, 33, 44)
            );
        }
        assert_eq!(file["timeline"][1]["ssd_read_delay_s"], 2.5);
        assert_eq!(file["unwritten_at_close"], 77);
    }

    #[test]
    fn thousands_stand_apart() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (12_031, "12,031"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(grouped(value), text);
        }
    }
}
