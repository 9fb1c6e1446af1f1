//! Packages: a wheel and a Debian package with the command, its manual, and what it is built from.
//!
//! Compiling is cargo's and maturin's work. What they made is packed here by the tools that own each format.

mod debian;
mod elf;
mod licences;
mod sbom;
mod standalone;
mod vendored;
mod wheel;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use self::vendored::{VENDORED, Vendored};
use crate::workspace::{Metadata, Package, run};

/// What every package is called.
const NAME: &str = "slackwater";
/// The file with the licences of what others wrote.
const THIRD_PARTY: &str = "THIRD-PARTY-LICENSES.txt";
/// The file with the bill of materials.
const BILL: &str = "slackwater.cdx.json";

/// What is packed: the crates whose binaries it holds, and what else is linked into them.
#[derive(Clone, Copy)]
struct Contents {
    faces: &'static [&'static str],
    vendored: &'static [Vendored],
}

/// The Python module and the command.
const WHEEL: Contents = Contents {
    faces: &["slackwater-cli", "slackwater-py"],
    vendored: VENDORED,
};
/// The command alone.
const COMMAND: Contents = Contents {
    faces: &["slackwater-cli"],
    vendored: VENDORED,
};
/// The library for C and C++.
const LIBRARY: Contents = Contents {
    faces: &["slackwater-c"],
    vendored: &[],
};

/// `cargo xtask wheel`: the wheel of the Python module with the command inside.
pub(crate) fn wheel(arguments: &[String]) -> Result<Vec<String>> {
    let usage = "usage: cargo xtask wheel --binary FILE [--native FILE] --wheel FILE --python FILE [--features LIST] --out DIR";
    let needed = ["binary", "wheel", "python", "out"];
    let given = flags(arguments, &needed, &["native", "features"], usage)?;
    let command = Binary {
        file: &given["binary"],
        native: given.get("native").map(PathBuf::as_path),
    };
    let with = Accompanying::gather(&metadata(&given, WHEEL)?, WHEEL)?;
    let made = wheel::make(
        command,
        (&given["wheel"], &with),
        &given["python"],
        &given["out"],
    )?;
    Ok(vec![made.display().to_string()])
}

/// `cargo xtask deb`: a Debian package of the command and its services.
pub(crate) fn deb(arguments: &[String]) -> Result<Vec<String>> {
    let usage = "usage: cargo xtask deb --binary FILE [--features LIST] --out DIR";
    let given = flags(arguments, &["binary", "out"], &["features"], usage)?;
    let made = debian::make(&given["binary"], &metadata(&given, COMMAND)?, &given["out"])?;
    Ok(vec![made.display().to_string()])
}

/// `cargo xtask static`: the command as one file that needs nothing of the system.
pub(crate) fn standalone(arguments: &[String]) -> Result<Vec<String>> {
    let usage = "usage: cargo xtask static --binary FILE [--features LIST] --out DIR";
    let given = flags(arguments, &["binary", "out"], &["features"], usage)?;
    let metadata = metadata(&given, COMMAND)?;
    let made = standalone::make(&given["binary"], &metadata, &given["out"])?;
    let beside = |ending: &str| PathBuf::from(format!("{}.{ending}", made.display()));
    let with = Accompanying::gather(&metadata, COMMAND)?;
    write(&beside("licenses.txt"), with.licences.as_bytes())?;
    write(&beside("cdx.json"), with.sbom.as_bytes())?;
    Ok(vec![made.display().to_string()])
}

/// `cargo xtask sbom`: the licences of what something is built from, and a list of it, as CycloneDX.
pub(crate) fn sbom(arguments: &[String]) -> Result<Vec<String>> {
    let usage = "usage: cargo xtask sbom --of command|library [--features LIST] --out DIR";
    let given = flags(arguments, &["of", "out"], &["features"], usage)?;
    let of = match text(&given["of"])? {
        "command" => COMMAND,
        "library" => LIBRARY,
        other => bail!("nothing is called `{other}`; {usage}"),
    };
    let with = Accompanying::gather(&metadata(&given, of)?, of)?;
    let out = &given["out"];
    write(&out.join(THIRD_PARTY), with.licences.as_bytes())?;
    write(&out.join(BILL), with.sbom.as_bytes())?;
    Ok(vec![out.display().to_string()])
}

/// A command to be packed.
#[derive(Clone, Copy)]
struct Binary<'a> {
    file: &'a Path,
    /// The same for this machine, where the one that is packed is for another: it came without symbols from its linker.
    native: Option<&'a Path>,
}

impl<'a> From<&'a Path> for Binary<'a> {
    /// One that runs here.
    fn from(file: &'a Path) -> Self {
        Self { file, native: None }
    }
}

/// `--name value` of each of `needed`, none left out, and of `others`, and nothing else.
fn flags<'a>(
    arguments: &[String],
    needed: &[&'a str],
    others: &[&'a str],
    usage: &'static str,
) -> Result<BTreeMap<&'a str, PathBuf>> {
    let mut given = BTreeMap::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let name = argument.strip_prefix("--").unwrap_or_default();
        let mut known = needed.iter().chain(others);
        let Some(name) = known.find(|known| **known == name) else {
            bail!("unknown argument `{argument}`; {usage}");
        };
        let value = rest
            .next()
            .with_context(|| format!("--{name} needs a value; {usage}"))?;
        given.insert(*name, PathBuf::from(value));
    }
    ensure!(
        needed.iter().all(|name| given.contains_key(name)),
        "{usage}"
    );
    Ok(given)
}

/// What cargo knows with the features that are given, by the names that they have in each face.
fn metadata(given: &BTreeMap<&str, PathBuf>, of: Contents) -> Result<Metadata> {
    let names = given.get("features").map(|names| text(names)).transpose()?;
    let names = names.unwrap_or_default().split(',');
    let named = names.filter(|name| !name.is_empty());
    let features = named.flat_map(|name| of.faces.iter().map(move |face| format!("{face}/{name}")));
    Metadata::read_with_features(&features.collect::<Vec<_>>())
}

/// Every package that the shipped binaries are built from, ours included, each once.
fn shipped(metadata: &Metadata, of: Contents) -> Result<Vec<&Package>> {
    let mut all = BTreeMap::new();
    for face in of.faces {
        let root = metadata.members().find(|member| member.name == *face);
        let root = root.with_context(|| format!("there is no crate {face}"))?;
        let below = metadata.closure(root);
        all.extend(
            below
                .into_iter()
                .map(|package| ((&package.name, &package.version), package)),
        );
    }
    Ok(all.into_values().collect())
}

/// The version of everything that is packed.
pub(crate) fn version(metadata: &Metadata) -> Result<&str> {
    let mut members = metadata.members();
    let face = members.find(|member| COMMAND.faces.contains(&member.name.as_str()));
    Ok(&face.context("the workspace has no command")?.version)
}

/// The licences and the bill of materials of what is shipped, as packages hold them.
pub(crate) fn accompanying(metadata: &Metadata) -> Result<(String, String)> {
    let Accompanying { licences, sbom } = Accompanying::gather(metadata, WHEEL)?;
    Ok((licences, sbom))
}

/// Files that go with the command into every package.
struct Accompanying {
    licences: String,
    sbom: String,
}

impl Accompanying {
    fn gather(metadata: &Metadata, of: Contents) -> Result<Self> {
        let shipped = shipped(metadata, of)?;
        Ok(Self {
            licences: licences::render(&shipped, of.vendored)?,
            sbom: sbom::render(metadata, &shipped, of)?,
        })
    }
}

/// Copies the command without its symbols.
fn install_binary(binary: Binary<'_>, to: &Path) -> Result<()> {
    let Binary { file, native } = binary;
    write_parent(to)?;
    fs::copy(file, to)
        .with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    if native.is_none() {
        run("strip", &["--strip-all", text(to)?])?;
    }
    Ok(())
}

/// Writes the manual pages and the shells' scripts below `share`, as the command itself gives them.
fn install_manual(binary: &Path, share: &Path) -> Result<()> {
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    let binary = text(binary)?;
    run(binary, &["man", text(&pages)?])?;
    for (shell, file) in [
        ("bash", "bash-completion/completions/slackwater"),
        ("zsh", "zsh/site-functions/_slackwater"),
        ("fish", "fish/vendor_completions.d/slackwater.fish"),
    ] {
        let script = run(binary, &["completions", shell])?;
        write(&share.join(file), script.as_bytes())?;
    }
    Ok(())
}

/// Writes a file and the folders above it.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    write_parent(path)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn write_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}

/// An empty folder for what is being packed.
fn scratch(name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&target).join("package").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_needed_and_no_other_is_taken() {
        let check = |line: &str, good: bool| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(
                flags(&arguments, &["binary", "out"], &["native"], "usage").is_ok(),
                good,
                "{line}"
            );
        };
        check("--binary a --out b", true);
        check("--out b --binary a", true);
        check("--binary a --out b --native c", true);
        check("--binary a --native c", false);
        check("--binary a", false);
        check("--binary a --out", false);
        check("--binary a --out b --more c", false);
        check("a b", false);
    }
}
