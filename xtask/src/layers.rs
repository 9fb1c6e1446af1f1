//! Arrows only point down, and the pure crates stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::verdict;
use crate::workspace::{Metadata, Package};

/// Crate, whether it is pure, and what it may build on, which it does: an arrow that nobody needs is no decision. A crate that is
/// not here must be placed before it builds.
const LAYERS: &[(&str, Kind, &[&str])] = &[
    ("base", Kind::Pure, &[]),
    ("wire", Kind::Pure, &["base"]),
    ("zmtp", Kind::Pure, &["base"]),
    ("meta", Kind::Pure, &["base", "wire"]),
    ("tier", Kind::Pure, &["base", "wire"]),
    ("client", Kind::Pure, &["base", "wire"]),
    ("data-plane", Kind::Pure, &["base", "wire", "zmtp"]),
    ("wait", Kind::Shell, &["base"]),
    ("memory", Kind::Shell, &[]),
    ("pool", Kind::Shell, &["base", "wait"]),
    ("net", Kind::Shell, &["base", "wait"]),
    ("trace", Kind::Shell, &["base", "wire", "wait"]),
    ("otel", Kind::Shell, &["trace"]),
    ("keys", Kind::Shell, &["zmtp"]),
    ("mq", Kind::Shell, &["base", "zmtp", "wait", "net", "keys"]),
    (
        "engine",
        Kind::Shell,
        &[
            "base",
            "wire",
            "zmtp",
            "data-plane",
            "wait",
            "trace",
            "keys",
            "memory",
            "pool",
        ],
    ),
    (
        "stage",
        Kind::Shell,
        &["base", "wire", "engine", "wait", "memory"],
    ),
    (
        "same-host",
        Kind::Shell,
        &[
            "base",
            "wire",
            "zmtp",
            "data-plane",
            "engine",
            "wait",
            "net",
            "memory",
            "pool",
        ],
    ),
    (
        "tcp",
        Kind::Shell,
        &[
            "base",
            "wire",
            "zmtp",
            "data-plane",
            "engine",
            "wait",
            "trace",
            "net",
            "keys",
            "pool",
        ],
    ),
    (
        "transfer",
        Kind::Shell,
        &["engine", "tcp", "same-host", "stage", "wait"],
    ),
    (
        "node",
        Kind::Shell,
        &[
            "base", "wire", "zmtp", "meta", "tier", "client", "wait", "trace", "memory", "pool",
            "net", "mq", "transfer",
        ],
    ),
    (
        "remote",
        Kind::Shell,
        &[
            "base", "wire", "zmtp", "client", "wait", "trace", "pool", "mq", "transfer",
        ],
    ),
    (
        "sim",
        Kind::Proof,
        &["base", "wire", "meta", "tier", "client"],
    ),
    ("report", Kind::Shell, &[]),
    ("admin", Kind::Shell, &["base", "wire"]),
    ("replay", Kind::Shell, &["base", "wire"]),
    (
        "bench",
        Kind::Proof,
        &[
            "base", "wire", "zmtp", "meta", "tier", "wait", "memory", "pool", "net", "mq",
            "transfer", "node", "remote", "replay", "report",
        ],
    ),
    (
        "cli",
        Kind::Face,
        &[
            "base", "wire", "meta", "wait", "trace", "otel", "pool", "net", "transfer", "node",
            "remote", "mq", "zmtp", "bench", "replay", "report", "admin",
        ],
    ),
    (
        "py",
        Kind::Face,
        &[
            "base", "wait", "trace", "otel", "wire", "memory", "transfer", "node", "mq", "remote",
        ],
    ),
    (
        "c",
        Kind::Face,
        &[
            "base", "wire", "wait", "pool", "net", "mq", "transfer", "remote",
        ],
    ),
];

/// What a pure crate must not name: the operating system, threads and clocks.
const FENCED: &[&str] = &[
    "std::net",
    "std::fs",
    "std::thread",
    "std::process",
    "std::env",
    "std::os",
    "Instant::now",
    "SystemTime",
    "libc::",
    "ring::rand",
];

/// Crates whose presence in a pure crate's program means a way to the operating system; what builds it may have one.
const FENCED_CRATES: &[&str] = &[
    "libc", "rustix", "mio", "socket2", "tokio", "nix", "io-uring", "memmap2",
];

/// What a crate of a pure crate's program brings along and calls for nobody: `ring` asks the system for random bytes in
/// `ring::rand` alone, which no pure crate names.
const UNCALLED: &[(&str, &str)] = &[("ring", "getrandom")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pure,
    Shell,
    Face,
    Proof,
}

pub(crate) fn check() -> Result<Vec<String>> {
    let metadata = Metadata::read()?;
    let layers: BTreeMap<&str, (Kind, &[&str])> = LAYERS
        .iter()
        .map(|(name, kind, below)| (*name, (*kind, *below)))
        .collect();
    let mut problems = Vec::new();
    let mut checked = 0;
    for package in metadata.members().filter(|package| package.name != "xtask") {
        checked += 1;
        let Some(name) = package.name.strip_prefix("slackwater-") else {
            problems.push(format!(
                "{}: a crate of the house is called slackwater-NAME",
                package.name
            ));
            continue;
        };
        let Some((kind, below)) = layers.get(name) else {
            problems.push(format!(
                "{name}: has no layer yet; give it one in xtask/src/layers.rs and ARCHITECTURE.md"
            ));
            continue;
        };
        let dependencies = package.dependencies.iter();
        let built_on: BTreeSet<&str> = dependencies
            .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
            .filter_map(|dependency| dependency.name.strip_prefix("slackwater-"))
            .collect();
        let is_pure = |other: &str| matches!(layers.get(other), Some((Kind::Pure, _)));
        problems.extend(arrows((name, *kind), below, &built_on, is_pure));
        if *kind == Kind::Pure {
            problems.extend(impurities(&metadata, package)?);
        }
    }
    verdict("layers", checked, problems)
}

/// What is wrong between the arrows of a crate and those that it may have.
fn arrows(
    (name, kind): (&str, Kind),
    below: &[&str],
    built_on: &BTreeSet<&str>,
    is_pure: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut problems = Vec::new();
    for other in built_on {
        if !below.contains(other) {
            problems.push(format!(
                "{name} builds on {other}: that arrow does not point down"
            ));
        }
        if kind == Kind::Pure && !is_pure(other) {
            problems.push(format!(
                "{name} is pure and builds on {other}, which is not"
            ));
        }
    }
    let unused = below.iter().filter(|other| !built_on.contains(*other));
    problems.extend(unused.map(|other| {
        format!(
            "{name} may build on {other} and does not: take the arrow out of xtask/src/layers.rs"
        )
    }));
    problems
}

fn impurities(metadata: &Metadata, package: &Package) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let folder = package
        .manifest_path
        .parent()
        .context("a manifest lies in a folder")?;
    let root = fs::read_to_string(folder.join("src/lib.rs"))?;
    if !root.contains("#![forbid(unsafe_code)]") {
        problems.push(format!(
            "{}: a pure crate forbids unsafe code in its lib.rs",
            package.name
        ));
    }
    let fence = fs::read_to_string(folder.join("clippy.toml")).unwrap_or_default();
    if fence != fs::read_to_string("lints/pure.toml")? {
        problems.push(format!(
            "{}: clippy.toml must be a link to lints/pure.toml",
            package.name
        ));
    }
    for below in metadata.linked(package, UNCALLED) {
        if FENCED_CRATES.contains(&below.name.as_str()) {
            problems.push(format!(
                "{}: has a path to {}, which reaches the operating system",
                package.name, below.name
            ));
        }
    }
    scan(&folder.join("src"), &mut problems)?;
    Ok(problems)
}

fn scan(folder: &Path, problems: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            scan(&path, problems)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            for (number, line) in text.lines().enumerate() {
                for word in fenced(line) {
                    problems.push(format!(
                        "{}:{}: `{word}` in a pure crate",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The words of a line of a pure crate's code that may not be there.
fn fenced(line: &str) -> impl Iterator<Item = &'static str> {
    let code = line.split("//").next().unwrap_or_default();
    FENCED.iter().copied().filter(|word| code.contains(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate that might have built on another, and did not, could have begun to without a decision; and that a pure crate
    /// builds on pure ones alone was only so.
    #[test]
    fn arrows_are_those_of_the_table() {
        let check = |kind, below: &[&str], built_on: &[&str], expected: &[&str]| {
            let built_on = built_on.iter().copied().collect();
            let found = arrows(("it", kind), below, &built_on, |other| other == "wire");
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (problem, words) in found.iter().zip(expected) {
                assert!(problem.contains(words), "{problem}");
            }
        };
        check(Kind::Shell, &["wire", "net"], &["net", "wire"], &[]);
        check(Kind::Shell, &["wire"], &["net", "wire"], &["builds on net"]);
        check(
            Kind::Face,
            &["wire", "net"],
            &["wire"],
            &["may build on net"],
        );
        check(Kind::Pure, &["wire"], &["wire"], &[]);
        check(
            Kind::Pure,
            &["wire", "net"],
            &["net", "wire"],
            &["is pure and builds on net"],
        );
    }

    /// A cipher library that a build script compiles counted as a way to the operating system: its compiler driver has one.
    #[test]
    fn what_builds_a_pure_crate_is_not_in_it() {
        let metadata = Metadata::read().unwrap();
        let data_plane = metadata
            .members()
            .find(|it| it.name == "slackwater-data-plane");
        let has = |below: Vec<&Package>, name: &str| below.iter().any(|it| it.name == name);
        let data_plane = data_plane.unwrap();
        assert!(has(metadata.closure(data_plane), "libc"));
        assert!(!has(metadata.linked(data_plane, UNCALLED), "libc"));
        assert!(has(metadata.linked(data_plane, &[]), "aws-lc-sys"));
        let net = metadata.members().find(|it| it.name == "slackwater-net");
        assert!(has(metadata.linked(net.unwrap(), &[]), "libc"));
    }

    /// The random bytes of a cipher library counted as a way to the operating system, though nothing asks for them. A crate that
    /// has another way there is found all the same, and so is one that names what asks.
    #[test]
    fn what_is_linked_and_not_called_is_left_out_alone() {
        let metadata = Metadata::read().unwrap();
        let member = |name: &str| metadata.members().find(|it| it.name == name).unwrap();
        let has = |below: Vec<&Package>, name: &str| below.iter().any(|it| it.name == name);
        let data_plane = member("slackwater-data-plane");
        for (from, to) in UNCALLED {
            assert!(has(metadata.linked(data_plane, &[]), from), "{from}");
            assert!(has(metadata.linked(data_plane, &[]), to), "{to}");
            assert!(has(metadata.linked(data_plane, UNCALLED), from));
            assert!(!has(metadata.linked(data_plane, UNCALLED), to));
        }
        let tcp = member("slackwater-tcp");
        assert!(has(metadata.linked(tcp, UNCALLED), "libc"));
        assert_eq!(fenced("use ring::aead;").count(), 0);
        assert_eq!(fenced("use ring::rand::SystemRandom;").count(), 1);
    }
}
