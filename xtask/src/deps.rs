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

/// Most crates, ours included, that a face may be built from: by default, and with every feature.
const BUDGETS: &[(&str, [usize; 2])] = &[
    ("slackwater-cli", [207, 224]),
    ("slackwater-py", [137, 163]),
    ("slackwater-c", [116, 116]),
];

pub(crate) fn check() -> Result<Vec<String>> {
    // What anybody may build counts, not what is built by default.
    let metadata = Metadata::read_all()?;
    let mut problems = Vec::new();
    let shipped: Vec<_> = metadata
        .members()
        .flat_map(|member| metadata.closure(member))
        .collect();
    let checked = shipped.len();
    for package in shipped {
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
    let built = [
        (Metadata::read()?, "by default"),
        (metadata, "with every feature"),
    ];
    for (at, (metadata, how)) in built.iter().enumerate() {
        problems.extend(over_budget(metadata, at, how));
    }
    problems.sort();
    problems.dedup();
    verdict("deps", checked, problems)
}

/// The faces that are built from more than they may be.
fn over_budget(metadata: &Metadata, at: usize, how: &str) -> Vec<String> {
    let over = BUDGETS.iter().filter_map(|(name, budgets)| {
        let face = metadata.members().find(|member| member.name == *name)?;
        let (crates, budget) = (metadata.closure(face).len(), budgets[at]);
        (crates > budget)
            .then(|| format!("{name}: built {how} from {crates} crates, {budget} allowed"))
    });
    over.collect()
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

    /// Crates that only a feature brings were not looked at, though the guide says how to build with it.
    #[test]
    fn what_a_feature_brings_is_looked_at() {
        let of = |metadata: Metadata| {
            let face = metadata.members().find(|it| it.name == "slackwater-cli");
            let below = metadata.closure(face.unwrap()).into_iter();
            below.map(|it| it.name.clone()).collect::<Vec<_>>()
        };
        let name = "opentelemetry_sdk".to_owned();
        assert!(of(Metadata::read_all().unwrap()).contains(&name));
        assert!(!of(Metadata::read().unwrap()).contains(&name));
        let named = ["slackwater-cli/otel".to_owned()];
        let named = Metadata::read_with_features(&named).unwrap();
        assert!(of(named).contains(&name));
    }

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
