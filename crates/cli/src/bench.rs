//! `slackwater bench`: runs a scenario of the bench crate and prints its report, for people or for scripts.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use slackwater_bench::{promotion, store};
use tempfile::TempDir;

use crate::DONE;
use crate::args::{Bench, BenchPromotion, BenchStore};

pub(crate) fn run(scenario: &Bench) -> Result<u8> {
    match scenario {
        Bench::Store(arguments) => {
            let directory = passing(&arguments.dir)?;
            show(&store::run(&of_store(arguments, directory.path()))?, arguments.json)
        }
        Bench::Promotion(arguments) => {
            let directory = passing(&arguments.dir)?;
            show(&promotion::run(&of_promotion(arguments, directory.path()))?, arguments.json)
        }
    }
}

/// A directory on the device to be measured that goes with the run.
fn passing(parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("slackwater-bench-").tempdir_in(parent);
    made.with_context(|| format!("cannot make a directory in {}", parent.display()))
}

fn of_store(arguments: &BenchStore, directory: &Path) -> store::Options {
    let mut options = store::Options::new(directory.to_owned());
    options.value_bytes = arguments.value_bytes.0 as usize;
    options.passes = arguments.passes as usize;
    options.depth = arguments.depth as usize;
    options
}

fn of_promotion(arguments: &BenchPromotion, directory: &Path) -> promotion::Options {
    let mut options = promotion::Options::new(directory.to_owned());
    options.samples = arguments.samples as usize;
    options.value_bytes = arguments.value_bytes.0 as usize;
    options
}

#[expect(clippy::print_stdout, reason = "the answer of the command")]
fn show(report: &impl Serialize, json: bool) -> Result<u8> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(DONE);
    }
    for (name, table) in tables(&serde_json::to_value(report)?) {
        println!("{name}\n{table}");
    }
    Ok(DONE)
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
        let cell = |row: &Map<String, Value>, column: &str| row.get(column).map(text).unwrap_or_default();
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
        tables.push((name, table(&columns, &cells)));
    }
    tables
}

type List<'a> = (String, Vec<&'a Map<String, Value>>);

/// Names of nested figures are joined: `pre.p50_us`.
fn flatten<'a>(name: &str, value: &'a Value, figures: &mut Vec<Vec<String>>, lists: &mut Vec<List<'a>>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&name, value, figures, lists);
            }
        }
        Value::Array(items) => {
            let rows: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
            if rows.first().is_some_and(|row| !row.is_empty()) {
                lists.push((name.to_owned(), rows));
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
        });
        let tables = tables(&report);
        let texts: Vec<String> = tables.iter().map(|(name, table)| format!("{name} {table}")).collect();
        assert_eq!(texts.len(), 2);
        for word in ["pre.p50_us", "812", "0.9432", "1000", "uring"] {
            assert!(texts[0].contains(word), "{word}: {}", texts[0]);
        }
        assert!(texts[1].starts_with("rows") && texts[1].contains("12.35"), "{}", texts[1]);
        let head = texts[1].lines().nth(1).unwrap();
        assert!(head.find("what") < head.find("gbps"), "{head}");
    }
}
