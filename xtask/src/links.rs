//! Links of documents: each leads to a file of the repository and to a heading of it; and every page of `docs` is in the
//! book, whose contents are `docs/SUMMARY.md`. Nothing is asked of the network: links to other hosts are left to readers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use crate::verdict;
use crate::workspace::files;

/// The contents of the book.
pub(crate) const CONTENTS: &str = "docs/SUMMARY.md";

/// A link of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The line that it ends in, counted from 1.
    pub(crate) line: usize,
    pub(crate) target: String,
}

impl Link {
    /// The file that it leads to, from a file at `from`, and the heading there; none where it leads to another host.
    pub(crate) fn local(&self, from: &Path) -> Option<(PathBuf, Option<&str>)> {
        if self.target.contains("://") || self.target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = match self.target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (&*self.target, None),
        };
        let folder = from.parent().unwrap_or(Path::new(""));
        let file = match path {
            "" => from.to_owned(),
            path => normal(&folder.join(path)),
        };
        Some((file, anchor))
    }
}

pub(crate) fn check() -> Result<Vec<String>> {
    let files: BTreeSet<PathBuf> = files()?.into_iter().collect();
    let mut pages = BTreeMap::new();
    for path in files.iter().filter(|path| is_page(path)) {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        pages.insert(path.clone(), text);
    }
    let problems = [broken(&files, &pages), outside(&pages)].concat();
    verdict("links", pages.len(), problems)
}

/// The chapters of the book, in their order.
pub(crate) fn chapters(contents: &str) -> Vec<PathBuf> {
    let links = links(contents);
    let local = links
        .iter()
        .filter_map(|link| link.local(Path::new(CONTENTS)));
    local.map(|(file, _)| file).collect()
}

/// Links that lead nowhere.
fn broken(files: &BTreeSet<PathBuf>, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let headings: BTreeMap<&PathBuf, BTreeSet<String>> = pages
        .iter()
        .map(|(path, text)| (path, anchors(text)))
        .collect();
    let mut problems = Vec::new();
    for (path, text) in pages {
        for link in links(text) {
            let place = format!("{}:{}: `{}`", path.display(), link.line, link.target);
            let Some((file, anchor)) = link.local(path) else {
                continue;
            };
            if !files.contains(&file) {
                let inside = files.iter().any(|other| other.starts_with(&file));
                problems.push(match inside {
                    true => format!("{place}: a folder; name a file in it"),
                    false => format!("{place}: there is no such file"),
                });
            } else if let Some(anchor) = anchor
                && let Some(headings) = headings.get(&file)
                && !headings.contains(anchor)
            {
                problems.push(format!("{place}: {} has no such heading", file.display()));
            }
        }
    }
    problems
}

/// Pages of `docs` that are not in the book or twice, and links from the book to pages outside it.
fn outside(pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let contents = Path::new(CONTENTS);
    let Some(text) = pages.get(contents) else {
        return vec![format!("{CONTENTS}: there is no such file")];
    };
    let chapters = chapters(text);
    let mut problems = Vec::new();
    for page in pages.keys().filter(|page| page.starts_with("docs")) {
        let times = chapters.iter().filter(|chapter| *chapter == page).count();
        if page != contents && times != 1 {
            let page = page.display();
            problems.push(format!("{page}: is in {CONTENTS} {times} times, not once"));
        }
    }
    for chapter in &chapters {
        for link in pages.get(chapter).map(|text| links(text)).iter().flatten() {
            let Some((file, _)) = link.local(chapter) else {
                continue;
            };
            if pages.contains_key(&file) && !chapters.contains(&file) {
                let (line, target) = (link.line, &link.target);
                let chapter = chapter.display();
                problems.push(format!(
                    "{chapter}:{line}: `{target}`: a page that is not in the book"
                ));
            }
        }
    }
    problems
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

/// The path without `.` and `..`; what leads out of the repository keeps its `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if parts.file_name().is_some() => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts
}

/// The links of a page of Markdown, images and definitions among them; none in code.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line_number = number + 1;
        if let Some(target) = defined(&line) {
            let target = target.to_owned();
            found.push(Link {
                line: line_number,
                target,
            });
            continue;
        }
        let mut rest = &*line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split_whitespace().next().unwrap_or_default();
            found.push(Link {
                line: line_number,
                target: target.trim_matches(['<', '>']).to_owned(),
            });
            rest = &rest[end..];
        }
    }
    found
}

/// The target of `[label]: target`.
fn defined(line: &str) -> Option<&str> {
    let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
    let plain = !label.contains(']');
    plain.then(|| target.split_whitespace().next())?
}

/// The anchors of a page's headings, as renderers of Markdown make them; a second heading of the same words has `-1` after it.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut times = BTreeMap::new();
    for (_, line) in blocks(text) {
        let words = line.trim_start_matches('#');
        let depth = line.len() - words.len();
        if depth == 0 || depth > 6 || !words.starts_with(' ') {
            continue;
        }
        let anchor = anchor(words.trim());
        let before = times.entry(anchor.clone()).or_insert(0);
        anchors.insert(match *before {
            0 => anchor,
            times => format!("{anchor}-{times}"),
        });
        *before += 1;
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// The lines outside fenced code, with their numbers from 0.
fn blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let start = line.trim_start();
        match fence {
            Some(end) if start.starts_with(end) => fence = None,
            Some(_) => {}
            None => {
                fence = ["```", "~~~"]
                    .into_iter()
                    .find(|mark| start.starts_with(mark));
                return fence.is_none();
            }
        }
        false
    })
}

/// The same without code between back-ticks, which is replaced by nothing.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut in_code = false;
    blocks(text).map(move |(number, line)| {
        if line.trim().is_empty() {
            // Code ends with its paragraph.
            in_code = false;
        }
        let mut kept = String::new();
        for (place, part) in line.split('`').enumerate() {
            in_code ^= place > 0;
            if !in_code {
                kept.push_str(part);
            }
        }
        (number, kept)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_where_readers_see_them() {
        let check = |text: &str, expected: &[(usize, &str)]| {
            let found = links(text);
            let found: Vec<(usize, &str)> = found
                .iter()
                .map(|link| (link.line, &*link.target))
                .collect();
            assert_eq!(found, expected, "{text:?}");
        };
        check("[a](b.md) and [c](d.md#e)", &[(1, "b.md"), (1, "d.md#e")]);
        check("x\n![a picture](p.svg \"title\")", &[(2, "p.svg")]);
        check("[`code`](b.md)", &[(1, "b.md")]);
        check("[label]: b.md", &[(1, "b.md")]);
        check("`[a](b.md)` and ``", &[]);
        check("`code that\nends [a](b.md)` here", &[]);
        check("a ` alone\n\n[a](b.md)", &[(3, "b.md")]);
        check("```text\n[a](b.md)\n```\n[c](d.md)", &[(4, "d.md")]);
        check("~~~\n```\n[a](b.md)\n~~~\n[c](d.md)", &[(5, "d.md")]);
    }

    #[test]
    fn targets_are_files_from_the_root() {
        let check = |from: &str, target: &str, expected: Option<(&str, Option<&str>)>| {
            let link = Link {
                line: 1,
                target: target.to_owned(),
            };
            let found = link.local(Path::new(from));
            let found = found
                .as_ref()
                .map(|(file, anchor)| (file.to_str().unwrap(), *anchor));
            assert_eq!(found, expected, "{from} {target}");
        };
        check("docs/a/b.md", "c.md", Some(("docs/a/c.md", None)));
        check("docs/a/b.md", "../c.md#d", Some(("docs/c.md", Some("d"))));
        check("docs/a/b.md", "#d", Some(("docs/a/b.md", Some("d"))));
        check("README.md", "./docs/c.md", Some(("docs/c.md", None)));
        check("README.md", "../c.md", Some(("../c.md", None)));
        check("README.md", "https://example.org/c.md", None);
    }

    #[test]
    fn headings_have_the_anchors_of_renderers() {
        let text = "# What a `Put` does: now\n```\n# no\n```\n## Rules\n## Rules\n#hash";
        let expected = ["what-a-put-does-now", "rules", "rules-1"];
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn what_leads_nowhere_or_out_of_the_book_is_told() {
        let check = |page: &str, problem: Option<&str>| {
            let pages = BTreeMap::from([
                (
                    CONTENTS.into(),
                    "- [one](one.md)\n- [two](two.md)".to_owned(),
                ),
                ("docs/one.md".into(), page.to_owned()),
                ("docs/two.md".into(), "# Two\n".to_owned()),
                ("crates/wait/README.md".into(), "# Wait\n".to_owned()),
            ]);
            let mut files: BTreeSet<PathBuf> = pages.keys().cloned().collect();
            files.insert("docs/p.svg".into());
            let found = [broken(&files, &pages), outside(&pages)].concat();
            match problem {
                None => assert!(found.is_empty(), "{page}: {found:?}"),
                Some(words) => {
                    assert_eq!(found.len(), 1, "{page}: {found:?}");
                    assert!(found[0].contains(words), "{page}: {found:?}");
                }
            }
        };
        check("[a](two.md#two) ![p](p.svg) [b](#c)\n# C", None);
        check("[a](three.md)", Some("no such file"));
        check("[a](two.md#three)", Some("no such heading"));
        check("[a](#c)", Some("no such heading"));
        check("[a](../docs)", Some("a folder"));
        check("[a](../crates/wait/README.md)", Some("not in the book"));
    }

    #[test]
    fn a_page_is_in_the_book_once() {
        let check = |contents: &str, problems: usize| {
            let pages = BTreeMap::from([
                (CONTENTS.into(), contents.to_owned()),
                ("docs/one.md".into(), String::new()),
            ]);
            assert_eq!(outside(&pages).len(), problems, "{contents}");
        };
        check("- [one](one.md)", 0);
        check("", 1);
        check("- [one](one.md)\n- [again](one.md)", 1);
        assert_eq!(outside(&BTreeMap::new()).len(), 1);
    }
}
