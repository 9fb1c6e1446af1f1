//! The book: what `mdbook` builds the site from, put together so that every link of the repository holds there too.
//!
//! Chapters lie in several places of the repository, and the tool takes one folder. They are copied with the places that
//! they have, so that links between them, and to the files that they name, stay as they are written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::links::{CONTENTS, chapters, links};
use crate::verdict;

/// `cargo xtask book --out DIR`: the sources of the book; links are checked before.
pub(crate) fn assemble(out: &Path) -> Result<Vec<String>> {
    let checked = crate::links::check()?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    let contents = fs::read_to_string(CONTENTS).context(CONTENTS)?;
    let chapters = chapters(&contents);
    let mut files: BTreeSet<PathBuf> = chapters.iter().cloned().collect();
    for chapter in &chapters {
        let text = fs::read_to_string(chapter)?;
        let links = links(&text);
        let named = links.iter().filter_map(|link| link.local(chapter));
        files.extend(named.map(|(file, _)| file));
    }
    for file in &files {
        let to = out.join(file);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(file, &to).with_context(|| file.display().to_string())?;
    }
    fs::write(out.join("SUMMARY.md"), from_root(&contents))?;
    let line = format!("book: {} files in {}", files.len(), out.display());
    Ok([checked, vec![line]].concat())
}

/// The contents with paths from the root of the book, where the tool looks for them.
fn from_root(contents: &str) -> String {
    let mut lines: Vec<String> = contents.lines().map(str::to_owned).collect();
    for link in links(contents) {
        if let Some((file, _)) = link.local(Path::new(CONTENTS)) {
            let line = &mut lines[link.line - 1];
            *line = line.replace(
                &format!("]({})", link.target),
                &format!("]({})", file.display()),
            );
        }
    }
    lines.join("\n") + "\n"
}

/// `cargo xtask site --at DIR`: whether every link of a built site leads to one of its files, and to a place in it.
pub(crate) fn check_site(at: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(at, &mut pages)?;
    ensure!(!pages.is_empty(), "{}: there is no page", at.display());
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| (path, values(text, "id").collect()))
        .collect();
    let mut problems = BTreeSet::new();
    for (page, text) in &pages {
        for target in values(text, "href").chain(values(text, "src")) {
            if let Some(why) = unreachable(page, target, &ids) {
                problems.insert(format!("{}: `{target}`: {why}", page.display()));
            }
        }
    }
    verdict(
        "pages of the site",
        pages.len(),
        problems.into_iter().collect(),
    )
}

/// Why a target is not there, if it is not.
fn unreachable(
    page: &Path,
    target: &str,
    ids: &BTreeMap<&PathBuf, BTreeSet<&str>>,
) -> Option<&'static str> {
    let foreign = ["http://", "https://", "mailto:", "data:", "javascript:"];
    if foreign.iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.parent()?;
    let file = match path {
        "" => page.to_owned(),
        path => folder.join(path),
    };
    let Ok(file) = file.canonicalize() else {
        return Some("there is no such file");
    };
    let found = ids.iter().find(|(known, _)| {
        let known = known.canonicalize();
        known.is_ok_and(|known| known == file)
    });
    match found {
        Some((_, ids)) if !anchor.is_empty() && !ids.contains(anchor) => {
            Some("no such place in it")
        }
        None if path.ends_with(".md") => Some("a page that was not built"),
        _ => None,
    }
}

/// The pages below a folder, but for the one that holds all of them to be printed, whose links are those of their chapters.
fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|ending| ending == "html")
            && !["print.html", "404.html"]
                .iter()
                .any(|name| path.ends_with(name))
        {
            let text = fs::read_to_string(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The values of an attribute in the tags of a page.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {attribute}=\"");
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.find(&start)?;
        rest = &rest[at + start.len()..];
        let end = rest.find('"')?;
        let value = &rest[..end];
        rest = &rest[end..];
        Some(value)
    })
}

/// The one value of `--name`.
pub(crate) fn folder(arguments: &[String], name: &str, usage: &str) -> Result<PathBuf> {
    match arguments {
        [flag, value] if *flag == format!("--{name}") => Ok(PathBuf::from(value)),
        _ => bail!("{usage}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_name_their_chapters_from_the_root() {
        let contents = "# Contents\n\n- [Start](guide/a.md)\n  - [Readme](../README.md)\n";
        let expected = "# Contents\n\n- [Start](docs/guide/a.md)\n  - [Readme](README.md)\n";
        assert_eq!(from_root(contents), expected);
    }

    #[test]
    fn a_built_site_is_searched_for_links_that_lead_nowhere() {
        let at = std::env::temp_dir().join(format!("slackwater-site-{}", std::process::id()));
        let check = |page: &str, problems: usize| {
            fs::create_dir_all(at.join("guide")).unwrap();
            fs::write(at.join("index.html"), "<h1 id=\"top\">x</h1>").unwrap();
            fs::write(at.join("guide/page.html"), page).unwrap();
            let told = check_site(&at);
            fs::remove_dir_all(&at).unwrap();
            let found = told
                .err()
                .map_or(0, |error| error.to_string().lines().count() - 1);
            assert_eq!(found, problems, "{page}");
        };
        check(
            "<a href=\"../index.html#top\"> <img src=\"../index.html\">",
            0,
        );
        check("<a href=\"https://example.org/x\">", 0);
        check("<a id=\"here\" href=\"#here\">", 0);
        check("<a href=\"../index.html#bottom\">", 1);
        check("<a href=\"other.html\"> <script src=\"gone.js\">", 2);
        fs::create_dir_all(&at).unwrap();
        assert!(check_site(&at).is_err(), "an empty site");
        fs::remove_dir_all(&at).unwrap();
    }
}
