//! The licences of everything that is linked in, as their authors wrote them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::vendored::Vendored;
use crate::workspace::Package;

/// How the names of files with such texts begin, in lower case.
const BEGINNINGS: &[&str] = &[
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];

const RULE: &str =
    "--------------------------------------------------------------------------------\n";

/// A list of the packages that are not ours, and each text once, under the packages that it is of.
pub(super) fn render(shipped: &[&Package], vendored: &[Vendored]) -> Result<String> {
    let mut out = String::from(
        "Slackwater is licensed under Apache-2.0. It contains the packages below, each under a licence of its own.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in shipped.iter().filter(|package| package.source.is_some()) {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("no licence named");
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest lies in a folder")?;
        let found = files(folder)?;
        let note = match (found.is_empty(), &package.repository) {
            (false, _) => String::new(),
            (true, Some(repository)) => format!(" (no text in its package; see {repository})"),
            (true, None) => " (no text in its package)".to_owned(),
        };
        writeln!(out, "{name}: {licence}{note}")?;
        for file in found {
            let text = fs::read(&file).with_context(|| file.display().to_string())?;
            let text = String::from_utf8_lossy(&text).replace('\r', "");
            texts
                .entry(text.trim().to_owned())
                .or_default()
                .push(name.clone());
        }
    }
    for part in vendored {
        let name = format!("{} {}", part.name, part.version);
        writeln!(out, "{name}: {}", part.licence)?;
        let text = part.text.trim().to_owned();
        texts.entry(text).or_default().push(name);
    }
    // Texts in the order of the first package that has them.
    let mut texts: Vec<(Vec<String>, String)> = texts
        .into_iter()
        .map(|(text, packages)| (packages, text))
        .collect();
    texts.sort();
    for (mut packages, text) in texts {
        packages.dedup();
        write!(out, "\n{RULE}{}\n{RULE}\n{text}\n", packages.join(", "))?;
    }
    Ok(out)
}

/// The files of a package that hold such texts, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if is_licence(&entry.file_name().to_string_lossy()) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn is_licence(name: &str) -> bool {
    let name = name.to_lowercase();
    let code = [".rs", ".toml", ".py", ".json"]
        .iter()
        .any(|ending| name.ends_with(ending));
    !code
        && BEGINNINGS
            .iter()
            .any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::super::vendored::VENDORED;
    use super::*;

    #[test]
    fn texts_are_told_from_code_by_their_names() {
        let check = |name: &str, is: bool| assert_eq!(is_licence(name), is, "{name}");
        check("LICENSE", true);
        check("LICENSE-MIT", true);
        check("license.txt", true);
        check("COPYING", true);
        check("NOTICE.md", true);
        check("license.rs", false);
        check("README.md", false);
    }

    #[test]
    fn a_text_of_two_packages_stands_once_under_both() {
        let folder = std::env::temp_dir().join(format!("licences-{}", std::process::id()));
        let package = |name: &str, text: Option<&str>| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).unwrap();
            if let Some(text) = text {
                fs::write(folder.join("LICENSE"), text).unwrap();
            }
            Package {
                id: name.to_owned(),
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: Some("MIT".to_owned()),
                source: Some("registry".to_owned()),
                repository: Some("https://example.com".to_owned()),
                manifest_path: folder.join("Cargo.toml"),
                dependencies: Vec::new(),
            }
        };
        let packages = [
            package("a", Some("Copyright A\n")),
            package("b", None),
            package("c", Some("Copyright A\r\n")),
        ];
        let text = render(&packages.iter().collect::<Vec<_>>(), VENDORED).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text.matches("Copyright A").count(), 1, "{text}");
        assert!(text.contains("\nuPlot 1.6.32: MIT\n"), "{text}");
        assert!(text.contains("Leon Sorokin"), "{text}");
        assert!(text.contains("\na 1.0.0, c 1.0.0\n"), "{text}");
        assert!(
            text.contains("b 1.0.0: MIT (no text in its package; see https://example.com)\n"),
            "{text}"
        );
    }
}
