//! What we take from others: licences, sources and how much of it.

use anyhow::Result;

use crate::verdict;
use crate::workspace::Metadata;

/// Licences that may be shipped; one of the alternatives of a licence expression is enough.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "BSL-1.0",
    "Unicode-3.0",
    "CC0-1.0",
    "Unlicense",
    "0BSD",
    "Apache-2.0 WITH LLVM-exception",
];

/// Most crates, ours included, that a face may be built from.
const BUDGETS: &[(&str, usize)] = &[
    ("slackwater-cli", 200),
    ("slackwater-py", 130),
    ("slackwater-c", 115),
];

pub(crate) fn check() -> Result<Vec<String>> {
    let metadata = Metadata::read()?;
    let mut problems = Vec::new();
    let shipped: Vec<_> = metadata
        .members()
        .flat_map(|member| metadata.closure(member))
        .collect();
    for package in &shipped {
        let licence = package.license.as_deref().unwrap_or("none");
        if !allowed(licence) {
            problems.push(format!(
                "{} {}: licence `{licence}` is not on the list",
                package.name, package.version
            ));
        }
        if package
            .source
            .as_deref()
            .is_some_and(|source| source.starts_with("git"))
        {
            problems.push(format!(
                "{} {}: comes from a git repository",
                package.name, package.version
            ));
        }
    }
    for (name, budget) in BUDGETS {
        let Some(face) = metadata.members().find(|member| member.name == *name) else {
            continue;
        };
        let crates = metadata.closure(face).len();
        if crates > *budget {
            problems.push(format!(
                "{name}: built from {crates} crates, {budget} allowed"
            ));
        }
    }
    problems.sort();
    problems.dedup();
    verdict("deps", shipped.len(), problems)
}

/// Whether an SPDX expression leaves us a choice that is on the list.
fn allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|choice| LICENCES.contains(&choice.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_alternative_is_enough_and_every_part_needs_one() {
        assert!(allowed("MIT OR Apache-2.0"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(!allowed("MIT AND GPL-3.0"));
        assert!(!allowed("MPL-2.0"));
        assert!(!allowed("none"));
    }
}
