//! One home for every concept: a type that several crates need is declared in one of them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::verdict;
use crate::workspace::files;

/// A name of a type, and the one folder that may declare a type of that name outside tests.
const HOMES: &[(&str, &str)] = &[
    ("Backoff", "crates/base"),
    ("Instant", "crates/base"),
    ("Tally", "crates/base"),
    ("Completion", "crates/wait"),
    ("SkippingClock", "crates/node"),
    ("DriftingClock", "crates/sim"),
    ("AllowList", "crates/keys"),
    ("KeyFileError", "crates/keys"),
    ("Mapping", "crates/memory"),
];

pub(crate) fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut found = vec![Vec::new(); HOMES.len()];
    for path in files()? {
        let product = path.starts_with("crates") && !path.iter().any(|part| part == "tests");
        if !product || path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for (number, line) in text.lines().enumerate() {
            let Some(name) = declared(line) else { continue };
            if let Some(index) = HOMES.iter().position(|(concept, _)| *concept == name) {
                found[index].push((path.clone(), number + 1));
            }
        }
    }
    for ((concept, home), places) in HOMES.iter().zip(&found) {
        problems.extend(judge(concept, Path::new(home), places));
    }
    verdict("homes", HOMES.len(), problems)
}

/// The name of the type that a line of Rust declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest
            .strip_prefix("(crate)")
            .or(rest.strip_prefix("(super)"))
            .unwrap_or(rest);
        rest.trim_start()
    });
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = ["struct ", "enum ", "union ", "trait "]
        .iter()
        .find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&rest[..end])
}

fn judge(concept: &str, home: &Path, places: &[(PathBuf, usize)]) -> Vec<String> {
    let (at_home, elsewhere): (Vec<_>, Vec<_>) =
        places.iter().partition(|(path, _)| path.starts_with(home));
    let mut problems: Vec<String> = elsewhere
        .iter()
        .map(|(path, line)| {
            let home = home.display();
            format!(
                "{}:{line}: `{concept}` has its home in {home}",
                path.display()
            )
        })
        .collect();
    if at_home.len() != 1 {
        let count = at_home.len();
        problems.push(format!(
            "{}: declares `{concept}` {count} times",
            home.display()
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_is_told_from_a_use() {
        let check = |line: &str, name: Option<&str>| assert_eq!(declared(line), name, "{line}");
        check("pub struct Backoff {", Some("Backoff"));
        check("    pub(crate) enum Completion<T> {", Some("Completion"));
        check("pub unsafe trait Clock: Sized {", Some("Clock"));
        check("let backoff = Backoff { first };", None);
        check("// pub struct Backoff", None);
        check("use base::Backoff;", None);
    }

    #[test]
    fn a_second_home_and_a_missing_one_are_reported() {
        let home = Path::new("crates/base");
        let at = |path: &str| (PathBuf::from(path), 7);
        let check = |places: &[(PathBuf, usize)], problems: usize| {
            assert_eq!(judge("Backoff", home, places).len(), problems, "{places:?}");
        };
        check(&[at("crates/base/src/backoff.rs")], 0);
        check(&[], 1);
        check(&[at("crates/mq/src/backoff.rs")], 2);
        check(
            &[
                at("crates/base/src/backoff.rs"),
                at("crates/mq/src/backoff.rs"),
            ],
            1,
        );
    }
}
