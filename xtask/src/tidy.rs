//! Small order: what a reviewer should not have to say.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::verdict;
use crate::workspace::files;

/// Text that must not stand anywhere, and why. Written in two halves so that this file does not find itself.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("TO", "DO", "finish it, or say it in an issue"),
    ("FIX", "ME", "finish it, or say it in an issue"),
    ("todo", "!(", "finish it"),
    ("unimple", "mented!(", "finish it"),
    ("NotImple", "mentedError", "finish it"),
    ("/ro", "ot/", "a path of one machine"),
    ("/ho", "me/", "a path of one machine"),
    ("crates", ".io", "a registry's host"),
    ("pypi", ".org", "a registry's host"),
    ("import pic", "kle", "a format that carries code"),
    ("pic", "kle.load", "a format that carries code"),
    ("<<<<<", "<< ", "an unfinished merge"),
];

/// Endings of files that are text we write.
const WRITTEN: &[&str] = &[
    "rs", "py", "pyi", "toml", "md", "sh", "js", "css", "html", "c", "cpp", "yml", "yaml",
];

/// Folders whose files are inputs, generated, or of others.
const EXEMPT: &[&str] = &["fuzz/corpus", "Cargo.lock", "crates/admin/page/uplot"];

/// A file longer than this has more than one reason to change.
const LINES_MAX: usize = 1000;

pub(crate) fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut checked = 0;
    for path in files()? {
        if EXEMPT.iter().any(|exempt| path.starts_with(exempt))
            || !written(&path)
            || path.is_symlink()
        {
            continue;
        }
        checked += 1;
        match fs::read_to_string(&path) {
            Ok(text) => inspect(&path, &text, &mut problems),
            Err(error) => problems.push(format!("{}: {error}", path.display())),
        }
    }
    verdict("tidy", checked, problems)
}

fn written(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name == "Makefile"
        || path
            .extension()
            .is_some_and(|ending| WRITTEN.contains(&&*ending.to_string_lossy()))
}

fn inspect(path: &Path, text: &str, problems: &mut Vec<String>) {
    let place = path.display();
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(format!("{place}: does not end with a line feed"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX
        && path
            .extension()
            .is_some_and(|ending| ending == "rs" || ending == "py")
    {
        problems.push(format!(
            "{place}: {lines} lines; which of its concerns deserves a file?"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        if line.ends_with([' ', '\t']) {
            problems.push(format!(
                "{place}:{number}: white space at the end of the line"
            ));
        }
        for (head, tail, why) in FORBIDDEN {
            if line.contains(&format!("{head}{tail}")) {
                problems.push(format!("{place}:{number}: `{head}{tail}`: {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_should_and_nothing_else() {
        let check = |text: &str, found: usize| {
            let mut problems = vec![];
            inspect(Path::new("x.rs"), text, &mut problems);
            assert_eq!(problems.len(), found, "{text:?}: {problems:?}");
        };
        check("fine\n", 0);
        check("", 0);
        check("no end", 1);
        check("space \n", 1);
        check(&format!("// {}{}: later\n", "TO", "DO"), 1);
        check(&"x\n".repeat(LINES_MAX + 1), 1);
    }
}
