//! Numbers of the README that come from `docs/figures.md`, held against it.
//!
//! Such a number is followed by `<!-- figures: SECTION > ROW > COLUMN -->`: the heading of a section of that page, the first cell of a
//! row of one of its tables, and the head of a column. In the tables of the section `Figures` every number has one.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result, bail};

use crate::verdict;

const README: &str = "README.md";
const FIGURES: &str = "docs/figures.md";

pub(crate) fn check() -> Result<Vec<String>> {
    let readme = fs::read_to_string(README).context(README)?;
    let figures = match fs::read_to_string(FIGURES) {
        Ok(figures) => figures,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let marked = readme.matches(MARK).count();
            return Ok(vec![format!(
                "figures: {FIGURES} is not there yet, so {marked} marked numbers of {README} are not compared"
            )]);
        }
        Err(error) => bail!("{FIGURES}: {error}"),
    };
    let (marked, problems) = compare(&readme, &figures);
    verdict("figures", marked, problems)
}

const MARK: &str = "<!-- figures:";

/// How many numbers are marked, and what is wrong with them.
fn compare(readme: &str, figures: &str) -> (usize, Vec<String>) {
    let (mut marked, mut problems) = (0, Vec::new());
    let mut among_figures = false;
    for (number, line) in (1..).zip(readme.lines()) {
        if let Some(title) = line.strip_prefix("## ") {
            among_figures = title.trim() == "Figures";
        }
        if let Some(bare) = unmarked(line).filter(|_| among_figures) {
            problems.push(format!("{README}:{number}: `{bare}` has no mark"));
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once(MARK) {
            marked += 1;
            let place = format!("{README}:{number}");
            let Some((name, after)) = after.split_once("-->") else {
                problems.push(format!("{place}: a mark that does not end on its line"));
                break;
            };
            if let Err(problem) = agree(before, name, figures) {
                problems.push(format!("{place}: {problem}"));
            }
            rest = after;
        }
    }
    (marked, problems)
}

/// A word with a number in the second cell of a row which no mark follows.
fn unmarked(line: &str) -> Option<&str> {
    let mut cell = line.strip_prefix("| ")?.split(" | ").nth(1)?;
    let bare = |text: &'_ str| text.contains(|c: char| c.is_ascii_digit());
    while let Some((before, after)) = cell.split_once(MARK) {
        let (others, _) = before.rsplit_once(char::is_whitespace).unwrap_or_default();
        if let Some(word) = others.split_whitespace().find(|word| bare(word)) {
            return Some(word);
        }
        (_, cell) = after.split_once("-->")?;
    }
    cell.split_whitespace().find(|word| bare(word))
}

/// Whether the number that ends `before` is the one that `name` names.
fn agree(before: &str, name: &str, figures: &str) -> Result<(), String> {
    let text = before.split_whitespace().last().unwrap_or_default();
    let Some((written, digits)) = number(text) else {
        return Err(format!("`{text}` before a mark is no number"));
    };
    let path: Vec<&str> = name.split(" > ").map(str::trim).collect();
    let [section, row, column] = path[..] else {
        return Err(format!("`{}` is not SECTION > ROW > COLUMN", name.trim()));
    };
    let name = name.trim();
    let found = match cells(figures, section, row, column)[..] {
        [one] => one,
        [] => return Err(format!("{FIGURES} has no `{name}`")),
        ref several => {
            let count = several.len();
            return Err(format!("{FIGURES} has {count} cells that are `{name}`"));
        }
    };
    let median = found.split_whitespace().next().unwrap_or_default();
    let Some((measured, _)) = number(median) else {
        return Err(format!("`{name}` is `{found}`, no number"));
    };
    // The README may round, but not differ.
    let step = 10_f64.powi(-digits);
    match (written - measured).abs() <= step * 0.5 + measured.abs() * 1e-9 {
        true => Ok(()),
        false => Err(format!(
            "{text}, but {FIGURES} says {measured} for `{name}`"
        )),
    }
}

/// A number and its digits after the point.
fn number(text: &str) -> Option<(f64, i32)> {
    let text = text.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-');
    let end = text.find(|c: char| !c.is_ascii_digit() && !"-.,".contains(c));
    let text = text[..end.unwrap_or(text.len())].replace(',', "");
    let digits = text.split_once('.').map_or(0, |(_, after)| after.len());
    Some((text.parse().ok()?, digits as i32))
}

/// The cells of the tables of a section that a mark may mean: one, unless several rows begin alike.
fn cells<'a>(figures: &'a str, section: &str, row: &str, column: &str) -> Vec<&'a str> {
    let (mut inside, mut found) = (false, Vec::new());
    let mut at = None;
    for line in figures.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            inside = title.trim() == section;
        }
        if line.starts_with("|-") {
            continue;
        }
        let Some(cells) = line.strip_prefix("| ").filter(|_| inside) else {
            at = None;
            continue;
        };
        let cells: Vec<&str> = cells
            .trim_end_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect();
        match at {
            // The first line of a table is its head.
            None => at = Some(cells.iter().position(|cell| *cell == column)),
            Some(Some(at)) if cells[0] == row => found.extend(cells.get(at).copied()),
            Some(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Figures

## Links

| before, their fix and ours | before | ours |
|---|---|---|
| 200 links: CPU | 29.8 × 1.20 | 0.2961 × 1.05 |
| 2,000 links: CPU | 101 | 0.3100 |

| what must hold | measured |
|---|---|
| 200 links: CPU | 0.5 |

## Pools

| figure | ours |
|---|---|
| 200 links: CPU | 7 |
| messages | 12345 |

| strategy | waiters | µs |
|---|---|---|
| park | 1 | 5 |
| park | 4 | 9 |
";

    #[test]
    fn every_number_among_the_figures_has_a_mark() {
        let mark = "<!-- figures: Pools > messages > ours -->";
        let check = |cell: &str, bare: Option<&str>| {
            let row = format!("| 4 KiB | {cell} | `--links 7` |");
            let page = |section| {
                format!("## {section}\n\n| what | figure | command |\n|---|---|---|\n{row}\n")
            };
            let (_, problems) = compare(&page("Figures"), PAGE);
            let told = bare.map(|bare| format!("README.md:5: `{bare}` has no mark"));
            assert_eq!(problems, Vec::from_iter(told), "{cell}");
            assert!(compare(&page("Limits"), PAGE).1.is_empty(), "{cell}");
        };
        check(&format!("12,345{mark}"), None);
        check(
            &format!("12,345{mark} messages, of those 12345{mark} µs"),
            None,
        );
        check("12,345", Some("12,345"));
        check(&format!("from 9 to 12,345{mark}"), Some("9"));
        check(&format!("12,345{mark} of 9"), Some("9"));
        check("as much", None);
    }

    #[test]
    fn a_number_is_the_one_that_its_mark_names() {
        let check = |text: &str, wrong: Option<&str>| {
            let (marked, problems) = compare(text, PAGE);
            assert_eq!(marked, text.matches(MARK).count(), "{text}");
            match wrong {
                None => assert!(problems.is_empty(), "{text}: {problems:?}"),
                Some(part) => assert!(
                    problems.len() == 1 && problems[0].contains(part),
                    "{text}: {problems:?}"
                ),
            }
        };
        let mark = |column: &str| format!("<!-- figures: Links > 200 links: CPU > {column} -->");
        let of = |number: &str, column: &str| format!("| CPU | {number}{} % | it |", mark(column));
        check(&of("0.30", "ours"), None);
        check(&of("0.2961", "ours"), None);
        check(&of("about 29.8", "before"), None);
        check(
            &format!("{}, {}", of("30", "before"), of("0.3", "ours")),
            None,
        );
        check(&of("0.5", "measured"), None);
        check("nothing marked: 12 GB/s", None);
        check(
            &of("0.31", "ours"),
            Some("README.md:1: 0.31, but docs/figures.md says 0.2961"),
        );
        check(&of("0.2962", "ours"), Some("says 0.2961"));
        check(
            &format!("{} and {}", of("29.8", "before"), of("0.4", "ours")),
            Some("0.4, but"),
        );
        check(
            &of("0.30", "theirs"),
            Some("has no `Links > 200 links: CPU > theirs`"),
        );
        check(
            "7<!-- figures: Links > 200 links > ours -->",
            Some("has no"),
        );
        check("7<!-- figures: Links -->", Some("SECTION > ROW > COLUMN"));
        check(
            "fast<!-- figures: Links > 200 links: CPU > ours -->",
            Some("is no number"),
        );
        check(
            "7<!-- figures: Links > 200 links: CPU > ours",
            Some("does not end"),
        );
        check("7<!-- figures: Pools > 200 links: CPU > ours -->", None);
        check("12,345<!-- figures: Pools > messages > ours -->", None);
        // The first of them was taken, whichever was meant.
        check(
            "5<!-- figures: Pools > park > µs -->",
            Some("has 2 cells that are `Pools > park > µs`"),
        );
        check(
            "101<!-- figures: Links > 2,000 links: CPU > before -->",
            None,
        );
    }
}
