//! The page of all figures: of several runs of each benchmark the median, and how far they lie apart.

use std::fmt::Write as _;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::kept::{Origin, Run};
use super::plan::Part;

/// A benchmark with its runs, or why there are none.
pub(super) struct Measured {
    pub(super) part: Part,
    pub(super) command: String,
    pub(super) runs: Vec<Run>,
    pub(super) failure: Option<String>,
}

/// A number of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    /// The largest over the smallest; none where they are not all above zero, or alike.
    ratio: Option<f64>,
}

impl Measured {
    /// What should hold and does not at the median of the runs.
    pub(super) fn broken(&self) -> usize {
        let bounds = self.bounds();
        bounds.iter().filter(|bound| !bound.holds()).count()
    }

    fn bounds(&self) -> Vec<Kept> {
        let lists: Option<Vec<&Vec<Value>>> = self
            .runs
            .iter()
            .map(|run| run.report.get("bounds")?.as_array())
            .collect();
        let Some(lists) = lists.filter(|lists| !lists.is_empty()) else {
            return Vec::new();
        };
        let first = lists[0].iter().filter_map(Value::as_object);
        let of = first.filter_map(|bound| {
            let what = bound.get("what")?.as_str()?;
            let same = lists.iter().filter_map(|list| {
                let mut list = list.iter();
                list.find(|it| it.get("what").and_then(Value::as_str) == Some(what))
            });
            let same: Vec<&Value> = same.collect();
            let values: Vec<f64> = same.iter().filter_map(|it| it["value"].as_f64()).collect();
            let held = same.iter().filter(|it| it["holds"] == true).count();
            Some(Kept {
                what: what.to_owned(),
                limit: bound.get("bound").map(text).unwrap_or_default(),
                value: spread(&values),
                held,
                runs: same.len(),
            })
        });
        of.collect()
    }
}

/// A bound over the runs.
struct Kept {
    what: String,
    limit: String,
    value: Option<Spread>,
    held: usize,
    runs: usize,
}

impl Kept {
    /// Whether it held in more than half of the runs.
    fn holds(&self) -> bool {
        2 * self.held > self.runs
    }
}

/// The whole page; `origin` is of the program that writes it.
pub(super) fn page(measured: &[Measured], origin: &Origin) -> String {
    let mut page = String::from(
        "# Figures\n\nWritten by `slackwater bench all`. Each figure is the median of its runs; `× 1.20` beside it says that the \
         largest was 1.20 times the smallest. Figures of different machines, and of different days on a virtual one, are not to be \
         compared: ratios within a run are.\n",
    );
    page.push_str(&origins(measured, origin));
    for part in measured {
        section(&mut page, part);
    }
    page
}

/// What the runs are of: one program on one machine, or which run is of which.
fn origins(measured: &[Measured], origin: &Origin) -> String {
    let mut of: BTreeMap<&Origin, Vec<String>> = BTreeMap::new();
    for part in measured {
        for (number, run) in (1..).zip(&part.runs) {
            let runs = of.entry(&run.origin).or_default();
            runs.push(format!("{} {number}", part.part.name));
        }
    }
    match &of.keys().collect::<Vec<_>>()[..] {
        [] => format!("\nProgram: {origin}.\n"),
        [one] => format!("\nProgram: {one}.\n"),
        several => {
            let mut text = format!(
                "\n**The runs are of {} different programs or machines, so a median may lie between things that differ:**\n\n",
                several.len()
            );
            for (origin, runs) in &of {
                writeln!(text, "- {origin}: {}", runs.join(", "))
                    .expect("a text takes what it is given");
            }
            text
        }
    }
}

fn section(page: &mut String, measured: &Measured) {
    let part = &measured.part;
    let line = |page: &mut String, text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line(page, &format!("\n## {}\n", part.title));
    line(page, part.published);
    line(
        page,
        &format!("\n`{}`, {} runs.", measured.command, measured.runs.len()),
    );
    if let Some(failure) = &measured.failure {
        line(page, &format!("\nNot measured: {}", one_line(failure)));
    }
    let Some(first) = measured.runs.first() else {
        return;
    };
    if let Some(machine) = first.report.get("machine").and_then(Value::as_object) {
        line(page, &format!("\nMachine: {}.", of_machine(machine)));
    }
    let reports: Vec<&Value> = measured.runs.iter().map(|run| &run.report).collect();
    compared(page, &reports, part.behind);
    let bounds = measured.bounds();
    if !bounds.is_empty() {
        line(
            page,
            "\n| what must hold | bound | measured | held |\n|---|---|---|---|",
        );
        for bound in bounds {
            let value = bound.value.map(shown).unwrap_or_default();
            let (what, limit) = (cell(&bound.what), cell(&bound.limit));
            let held = format!("{} of {}", bound.held, bound.runs);
            line(page, &format!("| {what} | {limit} | {value} | {held} |"));
        }
    }
    let (mut figures, mut lists) = (Vec::new(), Vec::new());
    gather("", &reports, &mut figures, &mut lists);
    if !figures.is_empty() {
        line(page, "\n| figure | value |\n|---|---|");
        for (name, value) in figures {
            line(page, &format!("| {} | {value} |", cell(&name)));
        }
    }
    for (name, rows) in lists {
        line(page, &format!("\n{name}:\n"));
        table(page, &rows);
    }
}

/// The system with the fault, its repair and ours side by side, and the rows in which ours is behind.
fn compared(page: &mut String, reports: &[&Value], reasons: &[(&str, &str)]) {
    let lists: Option<Vec<&Vec<Value>>> = reports
        .iter()
        .map(|report| report.get("compared")?.as_array())
        .collect();
    let Some(lists) = lists.filter(|lists| lists.iter().any(|list| !list.is_empty())) else {
        return;
    };
    page.push_str("\n| before, their fix and ours | before | their fix | ours | times ahead |\n|---|---|---|---|---|\n");
    let mut behind = Vec::new();
    for row in lists[0] {
        let what = row["what"].as_str().unwrap_or_default();
        let same: Vec<&Value> = lists
            .iter()
            .filter_map(|list| list.iter().find(|it| it["what"] == what))
            .collect();
        let of = |column: &str| {
            let values: Vec<f64> = same.iter().filter_map(|it| it[column].as_f64()).collect();
            spread(&values)
        };
        let cells = ["before", "their_fix", "ours", "ahead"]
            .map(|column| of(column).map_or_else(|| "–".to_owned(), shown));
        writeln!(page, "| {} | {} |", cell(what), cells.join(" | "))
            .expect("a text takes what it is given");
        if of("ahead").is_some_and(|ahead| ahead.median < 1.0) {
            behind.push(what);
        }
    }
    if !behind.is_empty() {
        page.push_str("\nNot ahead of what was before:\n\n");
    }
    for what in behind {
        let why = reasons.iter().find(|(row, _)| what.contains(row));
        let why = why.map(|(_, why)| format!(": {why}")).unwrap_or_default();
        writeln!(page, "- {}{why}", cell(what)).expect("a text takes what it is given");
    }
}

/// What says nothing of the speed of anything, or has a table of its own.
const LEFT_OUT: &[&str] = &["machine", "bounds", "bench", "timeline", "compared"];

type Rows<'a> = Vec<Vec<&'a Map<String, Value>>>;

/// The single figures of all runs, and their lists of rows: the same row of each run together. A list whose rows are not the same
/// ones in each run is left to the reports of the runs.
fn gather<'a>(
    name: &str,
    runs: &[&'a Value],
    figures: &mut Vec<(String, String)>,
    lists: &mut Vec<(String, Rows<'a>)>,
) {
    match runs[0] {
        Value::Object(fields) => {
            for field in fields.keys() {
                let of_field: Vec<&Value> = runs.iter().filter_map(|run| run.get(field)).collect();
                if of_field.len() < runs.len() || LEFT_OUT.contains(&field.as_str()) {
                    continue;
                }
                let name = match name {
                    "" => field.clone(),
                    above => format!("{above}.{field}"),
                };
                gather(&name, &of_field, figures, lists);
            }
        }
        Value::Array(first) => {
            let all: Option<Vec<&Vec<Value>>> = runs.iter().map(|run| run.as_array()).collect();
            let all = all.filter(|all| all.iter().all(|list| list.len() == first.len()));
            let rows: Option<Rows<'a>> = all.and_then(|all| {
                let row = |at: usize| all.iter().map(|list| list[at].as_object()).collect();
                (0..first.len()).map(row).collect()
            });
            match rows.filter(|rows| !rows.is_empty() && rows.iter().all(|row| alike(row))) {
                Some(rows) => lists.push((name.to_owned(), rows)),
                None => figures.extend(words(first).map(|words| (name.to_owned(), words))),
            }
        }
        _ => figures.extend(joined(runs).map(|value| (name.to_owned(), value))),
    }
}

/// Whether rows of several runs are about the same: their words are the same.
fn alike(rows: &[&Map<String, Value>]) -> bool {
    let words = |row: &Map<String, Value>| -> Vec<(String, String)> {
        let words = row.iter().filter(|(_, value)| value.is_string());
        words
            .map(|(name, value)| (name.clone(), text(value)))
            .collect()
    };
    rows.iter().all(|row| words(row) == words(rows[0]))
}

/// A list of words, as one.
fn words(list: &[Value]) -> Option<String> {
    let words: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
    (!words.is_empty()).then(|| cell(&words.join("; ")))
}

fn table(page: &mut String, rows: &Rows<'_>) {
    let mut columns: Vec<&String> = rows[0][0].keys().collect();
    columns.retain(|column| {
        rows.iter()
            .any(|row| joined(&of_column(row, column)).is_some())
    });
    // What a row is about comes before its figures.
    columns.sort_by_key(|column| !rows[0][0][*column].is_string());
    let line = |page: &mut String, cells: &[String]| {
        writeln!(page, "| {} |", cells.join(" | ")).expect("a text takes what it is given");
    };
    line(
        page,
        &columns
            .iter()
            .map(|column| cell(column))
            .collect::<Vec<_>>(),
    );
    line(page, &vec!["---".to_owned(); columns.len()]);
    for row in rows {
        let cells = columns
            .iter()
            .map(|column| joined(&of_column(row, column)).unwrap_or_default());
        line(page, &cells.collect::<Vec<_>>());
    }
}

fn of_column<'a>(row: &[&'a Map<String, Value>], column: &str) -> Vec<&'a Value> {
    row.iter().filter_map(|run| run.get(column)).collect()
}

/// What several runs say of one thing; none where that is nothing.
fn joined(values: &[&Value]) -> Option<String> {
    let numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
    if let Some(spread) = spread(&numbers).filter(|_| numbers.len() == values.len()) {
        return Some(shown(spread));
    }
    let mut texts: Vec<String> = values
        .iter()
        .filter(|it| !it.is_null())
        .map(|it| text(it))
        .collect();
    texts.dedup();
    (!texts.is_empty()).then(|| cell(&texts.join(" / ")))
}

fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    };
    let differs = least > 0.0 && least < most;
    Some(Spread {
        median,
        ratio: differs.then(|| most / least),
    })
}

fn shown(spread: Spread) -> String {
    let median = number(spread.median);
    match spread.ratio {
        Some(ratio) => format!("{median} × {ratio:.2}"),
        None => median,
    }
}

/// A figure with the digits that mean something.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(of) => of.as_f64().map_or_else(|| of.to_string(), number),
        other => other.to_string(),
    }
}

fn of_machine(machine: &Map<String, Value>) -> String {
    let word = |name: &str| machine.get(name).map(text).unwrap_or_default();
    let gibibytes = machine
        .get("memory_bytes")
        .and_then(Value::as_f64)
        .unwrap_or(0.0)
        / f64::from(1 << 30);
    let guest = if machine.get("guest") == Some(&Value::Bool(true)) {
        ", a virtual machine"
    } else {
        ""
    };
    let (cpu, cores, isa, kernel) = (word("cpu"), word("cores"), word("isa"), word("kernel"));
    format!("{cpu}, {cores} CPUs, {gibibytes:.0} GiB, {isa}, Linux {kernel}{guest}")
}

/// A text that ends no cell of a table.
fn cell(text: &str) -> String {
    one_line(text).replace('|', "\\|")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::all::plan::PARTS;

    fn measured(runs: Vec<Value>) -> Measured {
        Measured {
            part: Part {
                behind: &[("GB", "it copies twice")],
                ..PARTS[0]
            },
            command: "slackwater bench wait".to_owned(),
            runs: runs.into_iter().map(|report| of("a", report)).collect(),
            failure: None,
        }
    }

    fn of(binary: &str, report: Value) -> Run {
        Run {
            command: "slackwater bench wait".to_owned(),
            origin: origin(binary),
            seconds: 1.0,
            report,
        }
    }

    fn origin(binary: &str) -> Origin {
        Origin {
            version: "1.0".to_owned(),
            binary: binary.to_owned(),
            machine: "one".to_owned(),
        }
    }

    fn run(us: f64, holds: bool) -> Value {
        json!({
            "bench": "wait",
            "machine": { "cpu": "EPYC", "cores": 2, "isa": "avx512", "kernel": "6.1", "memory_bytes": 25769803776_u64, "guest": true },
            "movers": 1,
            "limits": { "memcpy_gbps": us / 10.0 },
            "rows": [
                { "strategy": "park", "waiters": 4, "us": us, "peer": null },
                { "strategy": "a|b", "waiters": 4, "us": 7.5, "peer": null },
            ],
            "notes": ["no peer"],
            "compared": [
                { "what": "mean µs", "better": "less", "before": 4.0 * us, "their_fix": null, "ours": us, "ahead": 4.0 },
                { "what": "GB/s", "better": "more", "before": 9.0, "their_fix": 8.0, "ours": 4.5, "ahead": 0.5 },
            ],
            "bounds": [{ "what": "time of a wait", "value": us, "bound": "≤ 20", "holds": holds }],
        })
    }

    #[test]
    fn figures_have_their_median_and_spread_and_their_machine() {
        let of_runs = measured(vec![run(10.0, true), run(15.0, true), run(30.0, false)]);
        assert_eq!(of_runs.broken(), 0, "two of three runs held");
        let page = page(&[of_runs], &origin("a"));
        for line in [
            "## Waiting for completions",
            "`slackwater bench wait`, 3 runs.",
            "Machine: EPYC, 2 CPUs, 24 GiB, avx512, Linux 6.1, a virtual machine.",
            "| time of a wait | ≤ 20 | 15 × 3.00 | 2 of 3 |",
            "| movers | 1 |",
            "| limits.memcpy_gbps | 1.50 × 3.00 |",
            "| notes | no peer |",
            "| strategy | us | waiters |",
            "| park | 15 × 3.00 | 4 |",
            "| a\\|b | 7.50 | 4 |",
            "Program: version 1.0, binary a, on one.",
            "| mean µs | 60 × 3.00 | – | 15 × 3.00 | 4 |",
            "| GB/s | 9 | 8 | 4.50 | 0.5000 |",
            "- GB/s: it copies twice",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
        assert!(page.contains(PARTS[0].published));
        assert_eq!(measured(vec![run(30.0, false)]).broken(), 1);
    }

    #[test]
    fn what_differs_between_runs_is_not_joined() {
        let mut other = run(10.0, true);
        other["rows"][0]["strategy"] = json!("spin");
        other["movers"] = json!("all");
        let page = page(&[measured(vec![run(10.0, true), other])], &origin("a"));
        assert!(!page.contains("| strategy"), "{page}");
        assert!(page.contains("| movers | 1 / all |"), "{page}");
    }

    #[test]
    fn runs_of_different_programs_are_told_apart() {
        let mut mixed = measured(vec![run(10.0, true), run(11.0, true)]);
        mixed.runs.push(of("b", run(12.0, true)));
        let page = page(&[mixed], &origin("b"));
        for line in [
            "2 different programs or machines",
            "- version 1.0, binary a, on one: wait 1, wait 2",
            "- version 1.0, binary b, on one: wait 3",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn what_could_not_be_measured_is_said() {
        let failed = Measured {
            failure: Some("exit code 1:\nno | room".to_owned()),
            ..measured(Vec::new())
        };
        let page = page(&[failed], &origin("b"));
        assert!(
            page.contains("0 runs.") && page.contains("Not measured: exit code 1: no | room"),
            "{page}"
        );
    }
}
