//! Arrows only point down, and the pure crates stay pure.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::verdict;
use crate::workspace::{Metadata, Package};

/// Crate, whether it is pure, and what it may build on. A crate that is not here must be placed before it builds.
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
    (
        "mq",
        Kind::Shell,
        &["base", "wire", "zmtp", "wait", "net", "keys"],
    ),
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
            "keys",
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
        &["base", "wire", "zmtp", "meta", "tier", "client"],
    ),
    ("report", Kind::Shell, &[]),
    ("admin", Kind::Shell, &["base", "wire"]),
    ("replay", Kind::Shell, &["base", "wire", "meta", "node"]),
    (
        "bench",
        Kind::Proof,
        &[
            "base", "wire", "zmtp", "meta", "tier", "client", "wait", "memory", "pool", "net",
            "mq", "transfer", "node", "remote", "replay", "report",
        ],
    ),
    (
        "cli",
        Kind::Face,
        &[
            "base", "wire", "meta", "wait", "trace", "otel", "pool", "node", "remote", "mq",
            "zmtp", "net", "bench", "replay", "report", "admin",
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
];

/// Crates whose presence in a pure crate's program means a way to the operating system; what builds it may have one.
const FENCED_CRATES: &[&str] = &[
    "libc", "rustix", "mio", "socket2", "tokio", "nix", "io-uring", "memmap2",
];

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
        for dependency in &package.dependencies {
            let Some(other) = dependency.name.strip_prefix("slackwater-") else {
                continue;
            };
            let tests_only = dependency.kind.as_deref() == Some("dev");
            if !below.contains(&other) && !tests_only {
                problems.push(format!(
                    "{name} builds on {other}: that arrow does not point down"
                ));
            }
        }
        if *kind == Kind::Pure {
            problems.extend(impurities(&metadata, package)?);
        }
    }
    verdict("layers", checked, problems)
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
    for below in metadata.linked(package) {
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
                let code = line.split("//").next().unwrap_or_default();
                for word in FENCED.iter().filter(|word| code.contains(**word)) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!has(metadata.linked(data_plane), "libc"));
        assert!(has(metadata.linked(data_plane), "aws-lc-sys"));
        let net = metadata.members().find(|it| it.name == "slackwater-net");
        assert!(has(metadata.linked(net.unwrap()), "libc"));
    }
}
