//! What `bench pool` found, as text, page and verdicts.

use slackwater_wait::Cpus;

use super::{NAMES, Ratios, Report, Row, Shares};
use crate::peer::Skipped;
use slackwater_report::{Bars, Better, Bound, Compared, Page, Table, figure};

const METHOD: &str = "A token is 48 layers of three bursts with 192, 64 and 1 tasks. Medians over runs in turns. CPU is \
that of the pool's threads and the caller, without the caller's own in the gaps.";

const HEADING: [&str; 10] = [
    "pool",
    "threads",
    "task µs",
    "gap µs",
    "wall ms/token",
    "CPU ms/token",
    "overhead p50 µs",
    "p99 µs",
    "clock reads/spin",
    "compute + spin + clock + sleep",
];

impl Report {
    /// The rows and the bounds as tables of text, and what was skipped.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = self.table().text() + "\n" + &Bound::table(&self.bounds).text();
        for Skipped { peer, reason } in &self.skipped {
            text += &format!("skipped {peer}: {reason}\n");
        }
        text
    }

    /// The report as a page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut settings: Vec<(usize, f64)> = self
            .rows
            .iter()
            .map(|row| (row.threads, row.task_us))
            .collect();
        settings.dedup();
        let mut bars = Vec::new();
        for (threads, task_us) in settings {
            for (what, unit, value) in [
                (
                    "wall time per token",
                    "ms",
                    (|row: &Row| row.wall_ms_per_token) as fn(&Row) -> f64,
                ),
                ("CPU time per token", "ms", |row| row.cpu_ms_per_token),
            ] {
                let title = format!("{threads} threads, tasks of {task_us} µs: {what}");
                bars.push(self.bars(title, unit, (threads, task_us), value));
            }
        }
        let skipped = self
            .skipped
            .iter()
            .map(|Skipped { peer, reason }| format!("Skipped {peer}: {reason}"));
        let page = Page {
            title: "Worker pool: bursts of a decoding token".to_owned(),
            lead: self.machine.line(),
            bars,
            tables: vec![
                Compared::table(&self.compared),
                self.table(),
                Bound::table(&self.bounds),
            ],
            notes: std::iter::once(METHOD.to_owned()).chain(skipped).collect(),
            ..Page::default()
        };
        page.html()
    }

    fn bars(
        &self,
        title: String,
        unit: &'static str,
        of: (usize, f64),
        value: fn(&Row) -> f64,
    ) -> Bars {
        let rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| (row.threads, row.task_us) == of)
            .collect();
        let mut gaps: Vec<f64> = rows.iter().map(|row| row.gap_us).collect();
        gaps.dedup();
        let group = |gap: f64| {
            let find = |name: &&str| {
                rows.iter()
                    .find(|row| row.gap_us == gap && row.pool == *name)
                    .map(|row| value(row))
            };
            (format!("gap {gap} µs"), NAMES.iter().map(find).collect())
        };
        let series = NAMES.iter().map(|&name| name.to_owned()).collect();
        Bars {
            title,
            unit,
            series,
            groups: gaps.into_iter().map(group).collect(),
        }
    }

    fn table(&self) -> Table {
        let cells = |row: &Row| {
            vec![
                row.pool.to_owned(),
                row.threads.to_string(),
                row.task_us.to_string(),
                row.gap_us.to_string(),
                figure(row.wall_ms_per_token),
                figure(row.cpu_ms_per_token),
                figure(row.overhead_p50_us),
                figure(row.overhead_p99_us),
                row.clock_reads_per_spin
                    .map_or_else(|| "-".to_owned(), |reads| format!("{reads:.4}")),
                row.shares.map_or_else(|| "-".to_owned(), Shares::text),
            ]
        };
        Table::new("Figures", &HEADING, self.rows.iter().map(cells))
    }
}

impl Shares {
    fn text(self) -> String {
        let Self {
            compute_share,
            spin_share,
            clock_share,
            sleep_share,
        } = self;
        [compute_share, spin_share, clock_share, sleep_share]
            .map(|share| format!("{:.1} %", 100.0 * share))
            .join(" + ")
    }

    /// Of the time on a CPU, the share in percent of what `pick` picks, as a profile shows it.
    fn of_cpu(self, pick: fn(&Self) -> f64) -> f64 {
        100.0 * pick(&self) / (1.0 - self.sleep_share)
    }
}

/// The pool that spins for 50 ms, the same with its repair, and this one, in each setting.
pub(super) fn compared(rows: &[Row]) -> Vec<Compared> {
    let mut compared = Vec::new();
    for ours in rows.iter().filter(|row| row.pool == "slackwater") {
        let same = |pool| {
            let setting = |row: &Row| (row.threads, row.task_us.to_bits(), row.gap_us.to_bits());
            let mut rows = rows.iter();
            rows.find(|row| row.pool == pool && setting(row) == setting(ours))
        };
        let (before, fix) = (same("spinning"), same("spinning-sparse"));
        let (threads, task, gap) = (ours.threads, ours.task_us, ours.gap_us);
        let mut row = |what: &str, better, pick: &dyn Fn(&Row) -> Option<f64>| {
            let what = format!("{threads} threads, task {task} µs, gap {gap} µs: {what}");
            let row = pick(ours).map(|value| {
                Compared::new(what, better, value)
                    .before(before.and_then(pick))
                    .their_fix(fix.and_then(pick))
            });
            compared.extend(row);
        };
        row("clock, % of CPU samples", Better::Less, &|row| {
            Some(row.shares?.of_cpu(|shares| shares.clock_share))
        });
        row("compute, % of CPU samples", Better::More, &|row| {
            Some(row.shares?.of_cpu(|shares| shares.compute_share))
        });
        row("CPU ms a token", Better::Less, &|row| {
            Some(row.cpu_ms_per_token)
        });
        row("wall ms a token", Better::Less, &|row| {
            Some(row.wall_ms_per_token)
        });
        row("overhead of a burst, p50 µs", Better::Less, &|row| {
            Some(row.overhead_p50_us)
        });
    }
    compared
}

/// What the figures should be: the wall time of a pool that spins at the CPU time of one that sleeps, where there are as
/// many threads as CPUs; and no worse than the pools that know how to share where there are more.
pub(super) fn bounds(rows: &[Row], ratios: &[Ratios]) -> Vec<Bound> {
    let cpus = Cpus::current().usable as usize;
    let mut bounds = Vec::new();
    for ratios in ratios {
        let Ratios {
            threads,
            task_us,
            gap_us,
            ..
        } = *ratios;
        let what =
            |what: &str| format!("{threads} threads, task {task_us} µs, gap {gap_us} µs: {what}");
        if threads == cpus {
            // Short gaps are the hard ones: worth neither a sleep nor a spin.
            let (wall, cpu) = if gap_us > 0.0 && gap_us < 1e3 {
                (1.06, 1.25)
            } else {
                (1.03, 1.15)
            };
            let active = ratios.wall_over_openmp_active;
            bounds.extend(
                active.map(|value| Bound::at_most(what("wall over active OpenMP"), value, wall)),
            );
            let passive = ratios.cpu_over_openmp_passive;
            bounds.extend(
                passive.map(|value| Bound::at_most(what("CPU over passive OpenMP"), value, cpu)),
            );
        } else if threads > cpus && gap_us == 0.0 {
            let best = ratios.wall_over_best_of_tbb_rayon;
            bounds.extend(best.map(|value| {
                Bound::at_most(what("wall over the best of oneTBB and rayon"), value, 1.05)
            }));
        }
        if gap_us >= 2e3 {
            bounds.extend(
                ratios
                    .gap_cores
                    .map(|value| Bound::at_most(what("cores in the gaps"), value, 0.05)),
            );
        }
    }
    let reads = rows
        .iter()
        .filter_map(|row| row.clock_reads_per_spin)
        .reduce(f64::max);
    bounds
        .extend(reads.map(|value| Bound::at_most("clock reads for a look, at most", value, 0.01)));
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_stands_beside_the_spinning_pools_of_the_same() {
        let row = |pool, gap_us, clock_share| Row {
            pool,
            threads: 2,
            task_us: 2.0,
            gap_us,
            wall_ms_per_token: 10.0,
            cpu_ms_per_token: 20.0,
            overhead_p50_us: 1.0,
            overhead_p99_us: 1.0,
            clock_reads_per_spin: None,
            shares: Some(Shares {
                compute_share: 0.1,
                spin_share: 0.4 - clock_share,
                clock_share,
                sleep_share: 0.5,
            }),
        };
        let rows = [
            row("slackwater", 100.0, 0.01),
            row("spinning", 100.0, 0.3),
            row("spinning-sparse", 0.0, 0.2),
        ];
        let compared = compared(&rows);
        assert_eq!(compared.len(), 5);
        let clock = serde_json::to_value(&compared[0]).unwrap();
        let percent = |name: &str| clock[name].as_f64().map(f64::round);
        assert_eq!(
            (percent("before"), percent("their_fix"), percent("ours")),
            (Some(60.0), None, Some(2.0)),
            "{clock}"
        );
    }
}
