//! `slackwater bench`: runs a scenario of the bench crate and prints its report, for people or for scripts.

mod across;
mod all;
mod args;
mod cluster;
mod copy;
mod passing;
mod served;

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use slackwater_bench::cluster::Programs;
use slackwater_bench::machine::Machine;
use slackwater_bench::{meta, mq, pool, promotion, store, tiers, transfer, wait};

use crate::answer;
use crate::{DONE, WRONG};
pub(crate) use args::Bench;
use args::Output;
use passing::Passing;

pub(crate) fn run(scenario: &Bench) -> Result<u8> {
    match scenario {
        Bench::All(arguments) => all::run(arguments, this_program()?),
        Bench::Store(arguments) => {
            arguments.instructions.install()?;
            let directory = Passing::new(&arguments.dir)?;
            if arguments.served {
                let report = slackwater_bench::served::run(&slackwater_bench::served::Options {
                    child: ourselves("served-child")?,
                    transfer_child: ourselves("transfer-child")?,
                    ..arguments.served_options(directory.path(), this_program()?)
                })?;
                return Shown::plain("store-served", &on_this_machine(report))?
                    .show(&arguments.output);
            }
            let report = on_this_machine(store::run(&arguments.options(directory.path()))?);
            Shown::plain("store", &report)?.show(&arguments.output)
        }
        Bench::Promotion(arguments) => {
            arguments.instructions.install()?;
            let directory = Passing::new(&arguments.dir)?;
            let mut options = arguments.options(directory.path());
            let name = match arguments.served {
                true => "promotion-served",
                false => "promotion",
            };
            if arguments.served {
                options.served = Some(ourselves("cluster-child")?);
            }
            Shown::plain(name, &promotion::run(&options)?)?.show(&arguments.output)
        }
        Bench::Tiers(arguments) => {
            let directory = Passing::new(&arguments.dir)?;
            let report = on_this_machine(tiers::run(&arguments.options(directory.path())?)?);
            Shown::plain("tiers", &report)?.show(&arguments.output)
        }
        Bench::Copy(arguments) => {
            let report = slackwater_bench::copy::run(&arguments.options())?;
            let (text, html) = (report.to_text(), Some(report.to_html()));
            Shown {
                text,
                html,
                ..Shown::plain("copy", &report)?
            }
            .show(&arguments.output)
        }
        Bench::Meta(arguments) => {
            let report = on_this_machine(meta::run(&arguments.options()));
            Shown::plain("meta", &report)?.show(&arguments.output)
        }
        Bench::Wait(arguments) => {
            arguments.instructions.install()?;
            let mut options = arguments.options();
            if !arguments.copies_only {
                options.store_child = ourselves("served-child")?;
            }
            let report = wait::run(&options)?;
            let (text, html) = (report.to_text(), Some(report.to_html()));
            Shown {
                text,
                html,
                ..Shown::plain("wait", &report)?
            }
            .show(&arguments.output)
        }
        Bench::Pool(arguments) => {
            let peers = arguments.has_peers().then(Passing::anywhere).transpose()?;
            let report = pool::run(&arguments.options(peers.as_ref().map(Passing::path)))?;
            let (text, html) = (report.to_text(), Some(report.to_html()));
            Shown {
                text,
                html,
                ..Shown::plain("pool", &report)?
            }
            .show(&arguments.output)
        }
        Bench::Mq(arguments) => {
            let report = mq::run(&arguments.options(ourselves("mq-child")?))?;
            let html = Some(report.to_html());
            Shown {
                html,
                ..Shown::plain("mq", &on_this_machine(report))?
            }
            .show(&arguments.output)
        }
        Bench::Transfer(arguments) => {
            arguments.instructions.install()?;
            if let Some(library) = arguments.aes {
                library.install();
            }
            if let Some(code) = arguments.machines.run(arguments)? {
                return Ok(code);
            }
            let report = transfer::run(&arguments.options(ourselves("transfer-child")?))?;
            across::show(&report, &arguments.output)
        }
        Bench::Master(arguments) => {
            let directory = Passing::new(&arguments.dir)?;
            let options = arguments.options(directory.path(), programs()?);
            let report = slackwater_bench::cluster::master::run(&options)?;
            Shown::plain("master", &on_this_machine(report))?.show(&arguments.output)
        }
        Bench::Idle(arguments) => {
            let directory = Passing::new(&arguments.dir)?;
            let options = arguments.options(directory.path(), programs()?);
            let report = slackwater_bench::cluster::idle::run(&options)?;
            Shown::plain("idle", &on_this_machine(report))?.show(&arguments.output)
        }
        Bench::Page(arguments) => {
            let directory = Passing::new(&arguments.dir)?;
            let options = arguments.options(directory.path(), programs()?);
            let report = slackwater_bench::cluster::page::run(&options)?;
            Shown::plain("page", &on_this_machine(report))?.show(&arguments.output)
        }
        Bench::Restart(arguments) => {
            let directory = Passing::new(&arguments.dir)?;
            let options = arguments.options(directory.path(), programs()?);
            let report = slackwater_bench::cluster::restart::run(&options)?;
            Shown::plain("restart", &on_this_machine(report))?.show(&arguments.output)
        }
        Bench::ClusterChild { arguments } => {
            slackwater_bench::cluster::child(arguments)?;
            Ok(DONE)
        }
        Bench::TransferChild { arguments } => {
            transfer::child(arguments)?;
            Ok(DONE)
        }
        Bench::ServedChild { arguments } => {
            slackwater_bench::served::child(arguments)?;
            Ok(DONE)
        }
        Bench::MqChild { arguments } => {
            mq::child(arguments)?;
            Ok(DONE)
        }
        Bench::RemoveChild { directory } => {
            passing::remove(directory)?;
            Ok(DONE)
        }
    }
}

/// How to start this program as a measured process.
fn ourselves(child: &str) -> Result<Vec<OsString>> {
    Ok(vec![this_program()?, "bench".into(), child.into()])
}

/// How to start the processes of a pool, and those that ask them.
fn programs() -> Result<Programs> {
    Ok(Programs {
        program: vec![this_program()?],
        child: ourselves("cluster-child")?,
    })
}

fn this_program() -> Result<OsString> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    Ok(program.into_os_string())
}

/// A report with the machine that its figures belong to.
#[derive(Serialize)]
struct OnMachine<T> {
    #[serde(flatten)]
    report: T,
    machine: Machine,
}

fn on_this_machine<T>(report: T) -> OnMachine<T> {
    OnMachine {
        report,
        machine: Machine::detect(),
    }
}

/// A report in the forms that it can be asked for.
struct Shown {
    name: &'static str,
    json: String,
    text: String,
    html: Option<String>,
}

impl Shown {
    fn plain(name: &'static str, report: &impl Serialize) -> Result<Self> {
        let tables = tables(&serde_json::to_value(report)?);
        let text = tables
            .into_iter()
            .map(|(name, table)| format!("{name}\n{table}\n"))
            .collect();
        Ok(Self {
            name,
            json: serde_json::to_string(report)?,
            text,
            html: None,
        })
    }

    fn show(&self, output: &Output) -> Result<u8> {
        if let Some(directory) = &output.report {
            self.write(directory)
                .with_context(|| format!("cannot write the report into {}", directory.display()))?;
        }
        if output.json {
            answer::say(&self.json)?;
        } else {
            answer::write(self.text.as_bytes())?;
        }
        Ok(
            match output.strict && broken(&serde_json::from_str(&self.json)?) {
                true => WRONG,
                false => DONE,
            },
        )
    }

    fn write(&self, directory: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(directory)?;
        std::fs::write(
            directory.join(format!("{}.json", self.name)),
            format!("{}\n", self.json),
        )?;
        let Some(html) = &self.html else {
            return Ok(());
        };
        std::fs::write(directory.join(format!("{}.html", self.name)), html)
    }
}

/// Whether a bound of a report does not hold.
fn broken(report: &Value) -> bool {
    let bounds = report.get("bounds").and_then(Value::as_array);
    let mut bounds = bounds.into_iter().flatten();
    bounds.any(|bound| bound["holds"] == false)
}

/// One table of the single figures, and one for each list of rows, with their names.
fn tables(report: &Value) -> Vec<(String, Table)> {
    let mut figures = Vec::new();
    let mut lists = Vec::new();
    flatten("", report, &mut figures, &mut lists);
    let mut tables = vec![("figures".to_owned(), table(&[], &figures))];
    for (name, rows) in lists {
        let mut columns: Vec<&str> = rows[0].keys().map(String::as_str).collect();
        // What a row is about comes before its figures.
        columns.sort_by_key(|column| !rows[0][*column].is_string());
        let cell =
            |row: &Map<String, Value>, column: &str| row.get(column).map(text).unwrap_or_default();
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| columns.iter().map(|column| cell(row, column)).collect())
            .collect();
        tables.push((name, table(&columns, &cells)));
    }
    tables
}

type List<'a> = (String, Vec<&'a Map<String, Value>>);

/// Names of nested figures are joined: `pre.p50_us`.
fn flatten<'a>(
    name: &str,
    value: &'a Value,
    figures: &mut Vec<Vec<String>>,
    lists: &mut Vec<List<'a>>,
) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() {
                    field.clone()
                } else {
                    format!("{name}.{field}")
                };
                flatten(&name, value, figures, lists);
            }
        }
        Value::Array(items) => {
            let rows: Vec<&Map<String, Value>> =
                items.iter().filter_map(Value::as_object).collect();
            if rows.first().is_some_and(|row| !row.is_empty()) {
                lists.push((name.to_owned(), rows));
            } else if !items.is_empty() {
                let words: Vec<String> = items.iter().map(text).collect();
                figures.push(vec![name.to_owned(), words.join("; ")]);
            }
        }
        single => figures.push(vec![name.to_owned(), text(single)]),
    }
}

/// A figure with the digits that mean something.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => match number.as_f64().unwrap_or(0.0) {
            value if value.abs() >= 100.0 => format!("{value:.0}"),
            value if value.abs() >= 1.0 => format!("{value:.2}"),
            value => format!("{value:.4}"),
        },
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

fn table(head: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    if !head.is_empty() {
        table.set_header(head);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_and_rows_become_tables() {
        let report = json!({
            "io": "uring",
            "pre": { "p50_us": 812.4, "p99_us": 1_500.7 },
            "ratio": 0.94321,
            "samples": 1000,
            "rows": [{ "what": "memcpy", "pass": 1, "gbps": 12.345 }, { "what": "get_into", "pass": 1, "gbps": 11.0 }],
            "limits": [],
            "peer": null,
            "notes": ["left out", "why"],
        });
        let tables = tables(&report);
        let texts: Vec<String> = tables
            .iter()
            .map(|(name, table)| format!("{name} {table}"))
            .collect();
        assert_eq!(texts.len(), 2);
        for word in [
            "pre.p50_us",
            "812",
            "0.9432",
            "1000",
            "uring",
            "–",
            "left out; why",
        ] {
            assert!(texts[0].contains(word), "{word}: {}", texts[0]);
        }
        assert!(
            texts[1].starts_with("rows") && texts[1].contains("12.35"),
            "{}",
            texts[1]
        );
        let head = texts[1].lines().nth(1).unwrap();
        assert!(head.find("what") < head.find("gbps"), "{head}");
    }

    #[test]
    fn a_report_is_broken_by_a_bound_that_does_not_hold() {
        let report = |holds: &[bool]| {
            let bounds = holds
                .iter()
                .map(|holds| json!({ "what": "it", "holds": holds }));
            json!({ "bounds": bounds.collect::<Vec<_>>() })
        };
        assert!(broken(&report(&[true, false])));
        assert!(!broken(&report(&[true])) && !broken(&json!({ "rows": [] })));
    }
}
