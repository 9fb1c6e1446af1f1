//! `slackwater policy`: eviction policies side by side on one trace.

mod robust;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use slackwater_base::Instant;
use slackwater_bench::policy::{Options, Report, Row, TierRow, run as compare};
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::Request;
use slackwater_replay::{Hints, add_hints};
use slackwater_report::{Axis, Chart, Line, Mark, Page, Scale, Tone, Unit};

use crate::DONE;
use crate::answer::say;
use crate::args::Policy;
use crate::source::Source;

pub(crate) fn run(arguments: &Policy) -> Result<u8> {
    let source = Source::open(&arguments.origin)?;
    let label = source.label.clone();
    let requests = source.collect::<Result<Vec<_>>>()?;
    if requests.is_empty() {
        bail!("{label} holds no request");
    }
    if !arguments.traffic.is_empty() {
        return robust::run(arguments, &label, &requests);
    }
    let options = Options {
        hinted: arguments.hints.map(|share| hinted(&requests, share)),
        ..options(arguments)
    };
    let bar = progress_bar();
    let count = requests.len();
    let report = compare(&options, requests.into_iter().map(known), |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if let Some(directory) = &arguments.report {
        write(directory, &label, count, &report)?;
    }
    if arguments.json {
        say(serde_json::to_string(&report)?)?;
    } else {
        let rows = report.rows.iter().map(cells);
        say(table(&head(&report), rows, &report.limits.offline))?;
        if !report.tiers.is_empty() {
            let rows = report.tiers.iter().map(tier_cells);
            say(table(&TIERS_HEAD, rows, &BTreeMap::new()))?;
        }
    }
    Ok(DONE)
}

pub(crate) fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style =
        ProgressStyle::with_template("{bar:28.cyan/dim} {percent:>3} % · {elapsed} · {eta} left");
    bar.set_style(
        style
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─"),
    );
    bar
}

/// The requests with hints of the documented kind, for `share` of them.
fn hinted(requests: &[slackwater_replay::Request], share: f64) -> Vec<Request> {
    const ACCURACY: f64 = 0.8;
    const SEED: u64 = 1;
    let mut requests = requests.to_vec();
    let hints = Hints {
        share,
        accuracy: ACCURACY,
        seed: SEED,
    };
    add_hints(&mut requests, hints);
    requests.into_iter().map(known).collect()
}

fn sizes(arguments: &Policy) -> Vec<usize> {
    let mut sizes = arguments.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn options(arguments: &Policy) -> Options {
    let named = !arguments.policies.is_empty();
    let policies = if named {
        arguments.policies.clone()
    } else {
        PolicyKind::ALL.to_vec()
    };
    Options {
        policies,
        sizes: sizes(arguments),
        ssd_blocks: arguments.ssd,
        block_tokens: arguments.block_tokens,
        hinted: None,
    }
}

/// A request as policies know it.
pub(crate) fn known(request: slackwater_replay::Request) -> Request {
    Request {
        now: Instant::ZERO + request.at,
        blocks: request.blocks,
        input_tokens: request.input_tokens,
        output_tokens: Some(u32::try_from(request.output_tokens).unwrap_or(u32::MAX)),
        hint: request.hint,
        expect: request.expect,
    }
}

const HEAD: [&str; 6] = [
    "policy",
    "blocks",
    "hit rate",
    "of the optimum",
    "ns an access",
    "bytes a block",
];
const HINTED_HEAD: [&str; 2] = ["with hints", "gain"];
const TIERS_HEAD: [&str; 6] = [
    "policy",
    "blocks",
    "on SSD",
    "hits in memory",
    "hits in both",
    "writes a put",
];

fn table(
    head: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    offline: &BTreeMap<usize, f64>,
) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(head);
    table.add_rows(rows);
    for (size, rate) in offline {
        table.add_row([
            "optimum".to_owned(),
            size.to_string(),
            format!("{rate:.4}"),
            String::new(),
        ]);
    }
    align(&mut table);
    table
}

/// All but the first column to the right.
fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn head(report: &Report) -> Vec<&'static str> {
    let hinted = report.rows.iter().any(|row| row.hinted_hit_rate.is_some());
    let extra = HINTED_HEAD.into_iter().filter(|_| hinted);
    HEAD.into_iter().chain(extra).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![
        row.policy.to_owned(),
        row.size.to_string(),
        format!("{:.4}", row.hit_rate),
        Unit::Share.format(row.offline_share),
        format!("{:.0}", row.ns_per_access),
        format!("{:.1}", row.bytes_per_block),
    ];
    if let Some(hinted) = row.hinted_hit_rate {
        cells.push(format!("{hinted:.4}"));
        cells.push(format!("{:+.4}", hinted - row.hit_rate));
    }
    cells
}

fn tier_cells(row: &TierRow) -> Vec<String> {
    vec![
        row.policy.to_owned(),
        row.size.to_string(),
        row.ssd.to_string(),
        format!("{:.4}", row.memory_hit_rate),
        format!("{:.4}", row.hit_rate),
        format!("{:.3}", row.writes_per_put),
    ]
}

fn write(directory: &Path, label: &str, requests: usize, report: &Report) -> Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    write_pages(directory, &page(label, requests, report), &json)
}

/// Writes `policy.html` and `policy.json`.
fn write_pages(directory: &Path, page: &Page, json: &str) -> Result<()> {
    let place = || format!("cannot write the report into {}", directory.display());
    std::fs::create_dir_all(directory).with_context(place)?;
    std::fs::write(directory.join("policy.html"), page.html()).with_context(place)?;
    std::fs::write(directory.join("policy.json"), json).with_context(place)
}

fn page(label: &str, requests: usize, report: &Report) -> Page {
    Page {
        title: format!("Eviction on {label}"),
        lead: format!(
            "{} requests, replayed without I/O. A block counts as a hit only when all blocks before it in its chain were \
             there too.",
            Unit::Count.format(requests as f64)
        ),
        charts: vec![
            Chart {
                title: "Hit rate by size".to_owned(),
                note:
                    "The dashed line is an eviction that knows the future: no policy can pass it."
                        .to_owned(),
                x: Axis {
                    scale: Scale::Log,
                    ..Axis::new("blocks in the cache", Unit::Count)
                },
                y: Axis::new("share of blocks", Unit::Share),
                lines: curves(report, |row| row.hit_rate)
                    .chain(std::iter::once(optimum(report)))
                    .collect(),
            },
            Chart {
                title: "Share of the optimum".to_owned(),
                note: "The same hits as a part of what was possible at that size.".to_owned(),
                x: Axis {
                    scale: Scale::Log,
                    ..Axis::new("blocks in the cache", Unit::Count)
                },
                y: Axis::new("share of the optimum's hits", Unit::Share),
                lines: curves(report, |row| row.offline_share).collect(),
            },
        ],
        tables: vec![slackwater_report::Table {
            title: "All figures".to_owned(),
            head: head(report).into_iter().map(str::to_owned).collect(),
            rows: report.rows.iter().map(cells).collect(),
        }],
        ..Page::default()
    }
}

fn curves(report: &Report, value: fn(&Row) -> f64) -> impl Iterator<Item = Line> {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.policy) {
            names.push(row.policy);
        }
    }
    names
        .into_iter()
        .zip(Tone::SERIES.into_iter().cycle())
        .map(move |(name, tone)| {
            let own = report.rows.iter().filter(|row| row.policy == name);
            Line {
                name: name.to_owned(),
                tone,
                mark: Mark::Solid,
                points: own.map(|row| (row.size as f64, value(row))).collect(),
            }
        })
}

fn optimum(report: &Report) -> Line {
    let points = report
        .limits
        .offline
        .iter()
        .map(|(size, rate)| (*size as f64, *rate))
        .collect();
    Line {
        name: "optimum".to_owned(),
        tone: Tone::Grey,
        mark: Mark::Dashed,
        points,
    }
}
