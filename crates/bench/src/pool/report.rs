//! What `bench pool` found, as text, page and verdicts.

use slackwater_wait::Cpus;

use super::{NAMES, Ratios, Report, Row};
use crate::peer::Skipped;
use slackwater_report::{Bars, Bound, Page, Table, figure};

const METHOD: &str = "A token is 48 layers of three bursts with 192, 64 and 1 tasks. Medians over runs in turns. CPU is \
that of the pool's threads and the caller, without the caller's own in the gaps.";

const HEADING: [&str; 9] = [
    "pool",
    "threads",
    "task µs",
    "gap µs",
    "wall ms/token",
    "CPU ms/token",
    "overhead p50 µs",
    "p99 µs",
    "clock reads/spin",
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
            tables: vec![self.table(), Bound::table(&self.bounds)],
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
            ]
        };
        Table::new("Figures", &HEADING, self.rows.iter().map(cells))
    }
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
