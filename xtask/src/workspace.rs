//! What cargo and git know about the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// `cargo metadata`, as far as the checks need it.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Option<Resolve>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) repository: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

impl Edge {
    /// Whether anything but tests is built from it.
    fn shipped(&self) -> bool {
        let kinds = &mut self.dep_kinds.iter();
        kinds.any(|kind| kind.kind.as_deref() != Some("dev"))
    }

    /// Whether it is a part of the program, and not only of tests or of what builds it.
    fn linked(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

impl Metadata {
    /// Asks cargo, for the platform that is built here, and features that are on by default.
    pub(crate) fn read() -> Result<Self> {
        Self::read_with(&[])
    }

    /// With every feature of ours.
    pub(crate) fn read_all() -> Result<Self> {
        Self::read_with(&["--all-features"])
    }

    /// With these features as well, as `PACKAGE/FEATURE`.
    pub(crate) fn read_with_features(features: &[String]) -> Result<Self> {
        match features {
            [] => Self::read(),
            some => Self::read_with(&["--features", &some.join(",")]),
        }
    }

    fn read_with(features: &[&str]) -> Result<Self> {
        let host = run("rustc", &["--print", "host-tuple"])?;
        let args = [
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            host.trim(),
        ];
        serde_json::from_str(&run("cargo", &[&args, features].concat())?)
            .context("cargo metadata is not what was expected")
    }

    /// The workspace's own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// What `package` itself names as what it is built from: normal and build dependencies.
    pub(crate) fn built_from(&self, package: &Package) -> impl Iterator<Item = &Package> {
        let nodes = self.resolve.iter().flat_map(|resolve| &resolve.nodes);
        let below: BTreeSet<&str> = nodes
            .filter(|node| node.id == package.id)
            .flat_map(|node| &node.deps)
            .filter(|edge| edge.shipped())
            .map(|edge| edge.pkg.as_str())
            .collect();
        self.packages
            .iter()
            .filter(move |package| below.contains(package.id.as_str()))
    }

    /// Everything that `root` is built from: normal and build dependencies, all the way down, itself included.
    pub(crate) fn closure(&self, root: &Package) -> Vec<&Package> {
        self.reached(root, |_, edge| edge.shipped())
    }

    /// The part of it that is in the program itself, without what these arrows from one crate to another lead to: what builds
    /// it is left out.
    pub(crate) fn linked(&self, root: &Package, without: &[(&str, &str)]) -> Vec<&Package> {
        let packages = self.packages.iter();
        let names: BTreeMap<&str, &str> = packages
            .map(|package| (package.id.as_str(), package.name.as_str()))
            .collect();
        self.reached(root, |from, edge| {
            let arrow = (names[from], names[edge.pkg.as_str()]);
            edge.linked() && !without.contains(&arrow)
        })
    }

    fn reached(&self, root: &Package, along: impl Fn(&str, &Edge) -> bool) -> Vec<&Package> {
        let nodes: BTreeMap<&str, &Node> = self
            .resolve
            .iter()
            .flat_map(|resolve| &resolve.nodes)
            .map(|node| (node.id.as_str(), node))
            .collect();
        let (mut seen, mut open) = (BTreeSet::from([root.id.as_str()]), vec![root.id.as_str()]);
        while let Some(id) = open.pop() {
            for edge in nodes.get(id).iter().flat_map(|node| &node.deps) {
                if along(id, edge) && seen.insert(&edge.pkg) {
                    open.push(&edge.pkg);
                }
            }
        }
        self.packages
            .iter()
            .filter(|package| seen.contains(package.id.as_str()))
            .collect()
    }
}

/// Files that git tracks or would track, relative to the root, which is the current folder.
pub(crate) fn files() -> Result<Vec<PathBuf>> {
    let list = run(
        "git",
        &[
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ],
    )?;
    Ok(list
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|path| path.exists())
        .collect())
}

/// The output of a program that must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {}: {stderr}",
        args.join(" ")
    );
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no UTF-8"))
}
