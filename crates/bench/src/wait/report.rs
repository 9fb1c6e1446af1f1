//! What `bench wait` found, as text, page and verdicts.

use super::{Idle, Ratios, Report, Row};
use slackwater_report::{Bars, Better, Bound, Compared, Page, Table, figure};

const HEADING: [&str; 7] = [
    "strategy",
    "waiters",
    "cores",
    "GB/s",
    "mean µs",
    "p99 µs",
    "looks/100 ms",
];

impl Report {
    /// The rows and the bounds as tables of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let idle = self
            .idle
            .map_or_else(String::new, |idle| idle.line() + "\n");
        let tables = self.tables().map(|table| table.text() + "\n");
        tables.concat() + &idle + "\n" + &Bound::table(&self.bounds).text()
    }

    /// The report as a page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut bars = Vec::new();
        for (title, unit, value) in [
            (
                "Throughput",
                "GB/s, more is better",
                (|row: &Row| row.gbps) as fn(&Row) -> f64,
            ),
            ("CPUs used", "cores, less is better", |row| row.cores),
            ("Mean latency", "µs, less is better", |row| row.avg_us),
            ("99th percentile of latency", "µs, less is better", |row| {
                row.p99_us
            }),
        ] {
            bars.push(self.bars(title, unit, value));
        }
        let method = format!(
            "{} mover threads copy, the waiters ask again as soon as they are served, and the whole process waits by \
             the strategy named. Adaptive waiters make the copy themselves while fewer threads copy than there are \
             movers. Medians over runs in turns.",
            self.movers
        );
        let page = Page {
            title: "Waiting: 1 MiB transfers by strategy".to_owned(),
            lead: self.machine.line(),
            bars,
            tables: self
                .tables()
                .into_iter()
                .chain([Bound::table(&self.bounds)])
                .collect(),
            notes: std::iter::once(method)
                .chain(self.idle.map(Idle::line))
                .collect(),
            ..Page::default()
        };
        page.html()
    }

    fn bars(&self, title: &str, unit: &'static str, value: fn(&Row) -> f64) -> Bars {
        let mut series: Vec<String> = Vec::new();
        let mut concurrencies: Vec<usize> = Vec::new();
        for row in &self.rows {
            if !series.contains(&row.strategy) {
                series.push(row.strategy.clone());
            }
            if !concurrencies.contains(&row.concurrency) {
                concurrencies.push(row.concurrency);
            }
        }
        let find = |concurrency: usize, strategy: &String| {
            let row = self
                .rows
                .iter()
                .find(|row| row.concurrency == concurrency && row.strategy == *strategy);
            row.map(value)
        };
        let group = |concurrency: usize| {
            let values = series
                .iter()
                .map(|strategy| find(concurrency, strategy))
                .collect();
            (format!("{concurrency} waiters"), values)
        };
        let groups = concurrencies.into_iter().map(group).collect();
        Bars {
            title: title.to_owned(),
            unit,
            series: series.clone(),
            groups,
        }
    }

    fn tables(&self) -> [Table; 3] {
        [
            Compared::table(&self.compared),
            Self::table("Copies", &self.rows),
            Self::table("Reads of 1 MiB from a served store", &self.store_rows),
        ]
    }

    fn table(title: &str, rows: &[Row]) -> Table {
        let cells = |row: &Row| {
            let figures = [row.cores, row.gbps, row.avg_us, row.p99_us].map(figure);
            [row.strategy.clone(), row.concurrency.to_string()]
                .into_iter()
                .chain(figures)
                .chain([row.looks_per_100ms.map_or_else(|| "-".to_owned(), figure)])
                .collect()
        };
        Table::new(title, &HEADING, rows.iter().map(cells))
    }
}

/// Callers that look all the time, callers that sleep between looks, and ours, by each number of them.
pub(super) fn compared(of: &str, rows: &[Row]) -> Vec<Compared> {
    let mut compared = Vec::new();
    for ours in rows.iter().filter(|row| row.strategy == "adaptive") {
        let same = |strategy| {
            let mut rows = rows.iter();
            rows.find(|row| row.strategy == strategy && row.concurrency == ours.concurrency)
        };
        let (before, fix) = (same("spin"), same("sleep:10us"));
        let mut row = |what: &str, better, pick: fn(&Row) -> Option<f64>| {
            let what = format!("{of}{} waiters: {what}", ours.concurrency);
            compared.extend(pick(ours).map(|value| {
                Compared::new(what, better, value)
                    .before(before.and_then(pick))
                    .their_fix(fix.and_then(pick))
            }));
        };
        row("looks in 100 ms", Better::Less, |row| row.looks_per_100ms);
        row("cores", Better::Less, |row| Some(row.cores));
        row("GB/s", Better::More, |row| Some(row.gbps));
        row("mean µs", Better::Less, |row| Some(row.avg_us));
    }
    compared
}

/// What the figures should be.
pub(super) fn bounds(ratios: &[Ratios], idle: Option<Idle>) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for ratios in ratios {
        let what = |what: &str| format!("adaptive, {} waiters: {what}", ratios.concurrency);
        if ratios.concurrency == 1 {
            bounds.extend(
                ratios
                    .avg_over_spin
                    .map(|value| Bound::at_most(what("mean over spin"), value, 1.05)),
            );
            bounds.extend(
                ratios
                    .cores_over_spin
                    .map(|value| Bound::at_most(what("cores over spin"), value, 0.8)),
            );
            continue;
        }
        bounds.push(Bound::at_most(
            what("mean over the best"),
            ratios.avg_over_best,
            1.05,
        ));
        bounds.push(Bound::at_least(
            what("GB/s over the best"),
            ratios.gbps_over_best,
            0.98,
        ));
        bounds.push(Bound::at_most(
            what("cores over the thriftiest"),
            ratios.cores_over_thriftiest,
            1.1,
        ));
        if ratios.concurrency >= CROWD {
            bounds.extend(
                ratios
                    .gbps_over_spin
                    .map(|value| Bound::at_least(what("GB/s over spin"), value, 3.0)),
            );
        }
    }
    // 0.0 when it is written with one digit.
    bounds
        .extend(idle.map(|idle| Bound::at_most("idle: percent of a core", idle.cpu_percent, 0.05)));
    bounds
}

/// So many spinners for each CPU leave no time to those who copy.
const CROWD: usize = 64;

impl Idle {
    fn line(self) -> String {
        format!(
            "idle: {} parked waiters and a pool of {} used {:.3} % of a core in {:.0} s, with {} context switches",
            self.waiters, self.pool_threads, self.cpu_percent, self.seconds, self.switches
        )
    }
}
