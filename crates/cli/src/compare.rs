//! `slackwater compare`: two runs side by side.

mod figures;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use slackwater_report::{Axis, Chart, Line, Mark, Page, Table, Tone, Unit, figure};

use crate::DONE;
use crate::answer::say;
use figures::{Comparison, Figure};

/// The runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct Compare {
    /// Report of the first run, as --json or --report of replay, policy and bench write it; several of the same run,
    /// separated by commas, tell the noise
    #[arg(
        value_name = "FILE,…",
        value_delimiter = ',',
        required = true,
        num_args = 1
    )]
    before: Vec<PathBuf>,

    /// Report of the second run, or several
    #[arg(
        value_name = "FILE,…",
        value_delimiter = ',',
        required = true,
        num_args = 1
    )]
    after: Vec<PathBuf>,

    /// Show figures whose ratio is clear of the noise only
    #[arg(long)]
    clear: bool,

    /// Directory for compare.html and compare.json [default: none is written]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Print one JSON object on standard output instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Compare) -> Result<u8> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let mut comparison = Comparison::new(&before, &after);
    if comparison.figures.is_empty() {
        bail!(
            "{} and {} have no figure in common: are they reports of the same command?",
            names(&arguments.before),
            names(&arguments.after)
        );
    }
    if arguments.clear {
        comparison
            .figures
            .retain(|figure| figure.clear() != Some(false));
    }
    if let Some(directory) = &arguments.report {
        let page = page(arguments, &comparison, &before, &after);
        write(directory, &page, &comparison)?;
    }
    let text = match arguments.json {
        true => serde_json::to_string(&comparison)?,
        false => told(&comparison) + &lead(arguments),
    };
    say(text)?;
    Ok(DONE)
}

fn told(comparison: &Comparison) -> String {
    let mut text = table(comparison).text();
    for setting in &comparison.settings {
        let [before, after] = [&setting.before, &setting.after];
        text += &format!("{}: {before} \u{2192} {after}\n", setting.name);
    }
    text
}

fn read(files: &[PathBuf]) -> Result<Vec<Value>> {
    let one = |file: &PathBuf| {
        let text =
            fs::read(file).with_context(|| format!("cannot read the report {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| {
            format!(
                "{} is not a report: --json of replay, policy and bench writes them",
                file.display()
            )
        })
    };
    files.iter().map(one).collect()
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
}

/// How the figures are to be read.
fn lead(arguments: &Compare) -> String {
    let (before, after) = (names(&arguments.before), names(&arguments.after));
    let noise = if arguments.before.len() + arguments.after.len() > 2 {
        "The noise is the largest distance between runs of one side as a share of their median; a ratio is clear when it \
         is farther from 1 than that."
    } else {
        "One run of each side tells no noise: give several, separated by commas."
    };
    format!("Medians of {before} and of {after}. {noise}")
}

const HEAD: [&str; 6] = ["figure", "before", "after", "ratio", "noise", "clear"];

fn table(comparison: &Comparison) -> Table {
    Table::new("Figures", &HEAD, comparison.figures.iter().map(cells))
}

fn cells(one: &Figure) -> Vec<String> {
    let clear = match one.clear() {
        None => "",
        Some(true) => "yes",
        Some(false) => "no",
    };
    let share = |share: Option<f64>| {
        share
            .map(|share| Unit::Share.format(share))
            .unwrap_or_default()
    };
    vec![
        one.name.clone(),
        figure(one.before),
        figure(one.after),
        one.ratio.map(figure).unwrap_or_default(),
        share(one.noise),
        clear.to_owned(),
    ]
}

fn page(arguments: &Compare, comparison: &Comparison, before: &[Value], after: &[Value]) -> Page {
    let settings = comparison.settings.iter();
    let settings = settings.map(|it| vec![it.name.clone(), it.before.clone(), it.after.clone()]);
    let settings = Table::new("What else differs", &["what", "before", "after"], settings);
    let mut tables = vec![table(comparison)];
    if !settings.rows.is_empty() {
        tables.push(settings);
    }
    Page {
        title: "Two runs side by side".to_owned(),
        lead: lead(arguments),
        charts: hits(before, after).into_iter().collect(),
        tables,
        ..Page::default()
    }
}

/// The share of blocks that were hit until each moment of a trace, where both sides are replays.
fn hits(before: &[Value], after: &[Value]) -> Option<Chart> {
    let line = |name: &str, tone: Tone, runs: &[Value]| {
        let moments = runs.first()?.get("timeline")?.as_array()?;
        let at = |moment: &Value, field: &str| moment.get(field)?.as_f64();
        let points = moments.iter().filter_map(|moment| {
            let hits = at(moment, "memory_hits")? + at(moment, "ssd_hits")?;
            Some((
                at(moment, "trace_s")?,
                hits / at(moment, "blocks")?.max(1.0),
            ))
        });
        Some(Line {
            name: name.to_owned(),
            tone,
            mark: Mark::Solid,
            points: points.collect(),
        })
    };
    Some(Chart {
        title: "Hits over the trace".to_owned(),
        note: "Share of all blocks until then that were read, from either tier.".to_owned(),
        x: Axis::new("time in the trace", Unit::Seconds),
        y: Axis::new("share of blocks", Unit::Share),
        lines: vec![
            line("before", Tone::Orange, before)?,
            line("after", Tone::Blue, after)?,
        ],
    })
}

fn write(directory: &Path, page: &Page, comparison: &Comparison) -> Result<()> {
    let place = || format!("cannot write the report into {}", directory.display());
    fs::create_dir_all(directory).with_context(place)?;
    fs::write(directory.join("compare.html"), page.html()).with_context(place)?;
    let json = serde_json::to_string_pretty(comparison)? + "\n";
    fs::write(directory.join("compare.json"), json).with_context(place)
}
