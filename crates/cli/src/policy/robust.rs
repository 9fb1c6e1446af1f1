//! `slackwater policy --traffic`: one policy beside its peers on many traffics.

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use slackwater_bench::policy::robust::{self, Options, Report, Row, TOLERANCE};
use slackwater_replay::{Request, Variant};
use slackwater_report::Page;

use super::{align, known, progress_bar, sizes, write_pages};
use crate::answer::say;
use crate::args::{Named, Policy};
use crate::{DONE, WRONG};

pub(super) fn run(arguments: &Policy, label: &str, trace: &[Request]) -> Result<u8> {
    let variants = variants(&arguments.traffic);
    let bar = progress_bar();
    bar.set_length(variants.len() as u64);
    let traffics = variants.into_iter().map(|variant| {
        let requests = variant.requests(trace).into_iter().map(known);
        (variant.to_string(), requests)
    });
    let report = robust::run(&options(arguments)?, traffics, |done| {
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if let Some(directory) = &arguments.report {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        write_pages(directory, &page(label, &report), &json)?;
    }
    if arguments.json {
        say(serde_json::to_string(&report)?)?;
    } else {
        say(format_args!("{}\n{}", table(&report), verdict(&report)))?;
    }
    Ok(if report.holds { DONE } else { WRONG })
}

/// The named traffics, each once, in the order of the set.
fn variants(named: &[Named]) -> Vec<Variant> {
    let is_named = |variant: &Variant| {
        let mut named = named.iter();
        named.any(|it| matches!(it, Named::All) || matches!(it, Named::One(one) if one == variant))
    };
    Variant::all().into_iter().filter(is_named).collect()
}

fn options(arguments: &Policy) -> Result<Options> {
    let mut options = Options {
        sizes: sizes(arguments),
        block_tokens: arguments.block_tokens,
        ..Options::default()
    };
    if let Some((subject, peers)) = arguments.policies.split_last() {
        if peers.is_empty() {
            bail!("--policies names {subject} only; expected the peers, and last the judged one");
        }
        options.subject = *subject;
        options.peers = peers.to_vec();
    }
    Ok(options)
}

fn head(report: &Report) -> Vec<String> {
    let policies = report.rows.first().into_iter().flat_map(|row| &row.rates);
    let mut head = vec!["traffic".to_owned(), "blocks".to_owned()];
    head.extend(policies.map(|rate| rate.policy.to_owned()));
    head.extend(["margin", "first half", "second half"].map(str::to_owned));
    if report.rows.iter().any(|row| row.rule.is_some()) {
        head.extend(["follows", "lead", "changes"].map(str::to_owned));
    }
    head
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.traffic.clone(), row.size.to_string()];
    cells.extend(row.rates.iter().map(|rate| format!("{:.4}", rate.whole)));
    let margins = [row.margin, row.margin_first_half, row.margin_second_half];
    cells.extend(margins.map(|margin| format!("{margin:+.4}")));
    if let Some(rule) = row.rule {
        cells.push(rule.name.to_owned());
        cells.push(format!("{:+.4}", rule.lead));
        cells.push(rule.changes.to_string());
    }
    cells
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(head(report));
    table.add_rows(report.rows.iter().map(cells));
    align(&mut table);
    table
}

fn verdict(report: &Report) -> String {
    let below: Vec<String> = report
        .rows
        .iter()
        .filter(|row| !row.holds)
        .map(|row| format!("{} at {} blocks", row.traffic, row.size))
        .collect();
    let subject = report.subject;
    if below.is_empty() {
        format!("{subject} is nowhere below the best of the others by more than {TOLERANCE}")
    } else {
        let (count, places) = (below.len(), below.join(", "));
        format!(
            "{subject} is below the best of the others by more than {TOLERANCE} in {count}: {places}"
        )
    }
}

fn page(label: &str, report: &Report) -> Page {
    Page {
        title: format!("{} beside its peers, with {label}", report.subject),
        lead: verdict(report),
        tables: vec![slackwater_report::Table {
            title: "Hit rates, and margins to the best peer".to_owned(),
            head: head(report),
            rows: report.rows.iter().map(cells).collect(),
        }],
        ..Page::default()
    }
}
