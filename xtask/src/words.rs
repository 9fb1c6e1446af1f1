//! The words of the house: names and comments use the field's terms, one word a thing.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::verdict;
use crate::workspace::files;

/// Words that must not stand in a name, a comment, a message or a document, and what to write instead. Every form is
/// listed: a word is compared whole, after names are split at their humps and underscores.
const REPLACED: &[(&[&str], &str)] = &[
    (&["stranger", "strangers"], "unauthenticated peer"),
    (
        &["vouch", "vouches", "vouched", "vouching"],
        "verified, unverified",
    ),
    (&["ailing"], "failing"),
    (&["berth", "berths"], "AffinityGuard, CPU placement"),
    (&["courier", "couriers"], "ControlThread"),
    (&["errand", "errands"], "ControlRequest"),
    (
        &[
            "burial", "burials", "bury", "buries", "buried", "grave", "graves",
        ],
        "tombstone",
    ),
    (&["wreck", "wrecks", "wrecked"], "LaneFailure"),
    (&["outlet", "outlets"], "SendQueue"),
    (
        &["whoever", "whomever"],
        "name the thread, peer, caller or owner",
    ),
    (
        &["him", "himself", "his", "he", "she", "her", "herself"],
        "name the thread, peer, caller or owner",
    ),
    (&["youth"], "age"),
];

/// Words that are terms of a protocol where they stand: the beginning of the word, and the folder.
const TERMS: &[(&str, &str)] = &[
    // The proof in the INITIATE command of CurveZMQ (RFC 26/CURVEZMQ).
    ("vouch", "crates/zmtp"),
];

/// Phrases that must not stand in a line of prose.
const PHRASES: &[(&str, &str)] = &[
    ("own_up", "report_missing"),
    ("own up", "report_missing"),
    ("lies down", "parks"),
    ("lie down", "park"),
    ("gets up", "wakes"),
    ("get up", "wake"),
    ("in vain", "say what failed"),
    ("no good view", "say what was refused and why"),
    ("what came of it", "outcome"),
    ("what became of", "outcome"),
];

/// First words of a documentation comment that, in up to [`QUESTION_WORDS`] words, repeats the question that the name
/// already asks.
const QUESTIONS: &[&str] = &[
    "Which", "Whose", "Who", "Whom", "Why", "When", "Where", "What",
];
const QUESTION_WORDS: usize = 3;

/// Endings of files that hold names and prose.
const WRITTEN: &[&str] = &["rs", "py", "pyi", "md", "toml", "js", "css", "html"];

/// This file, which lists the words, and what is not ours.
const EXEMPT: &[&str] = &[
    "xtask/src/words.rs",
    "fuzz/corpus",
    "LICENSE",
    "crates/admin/page/uplot",
];

pub(crate) fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut checked = 0;
    for path in files()? {
        let written = path
            .extension()
            .is_some_and(|ending| WRITTEN.contains(&&*ending.to_string_lossy()));
        if !written || path.is_symlink() || EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        checked += 1;
        inspect(&path, &fs::read_to_string(&path)?, &mut problems);
    }
    verdict("words", checked, problems)
}

fn inspect(path: &Path, text: &str, problems: &mut Vec<String>) {
    let place = path.display();
    for name in path.iter().flat_map(|part| words(&part.to_string_lossy())) {
        if let Some(instead) = replacement(&name) {
            problems.push(format!("{place}: `{name}` in the path: write {instead}"));
        }
    }
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        for word in words(line) {
            if is_term(path, &word) {
                continue;
            }
            if let Some(instead) = replacement(&word) {
                problems.push(format!("{place}:{number}: `{word}`: write {instead}"));
            }
        }
        let lower = line.to_lowercase();
        for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| lower.contains(phrase)) {
            problems.push(format!("{place}:{number}: `{phrase}`: write {instead}"));
        }
        if is_bare_question(line) {
            problems.push(format!(
                "{place}:{number}: a documentation comment states a unit, a range or a meaning"
            ));
        }
    }
}

fn is_term(path: &Path, word: &str) -> bool {
    TERMS
        .iter()
        .any(|(term, folder)| word.starts_with(term) && path.starts_with(folder))
}

fn replacement(word: &str) -> Option<&'static str> {
    let found = REPLACED.iter().find(|(words, _)| words.contains(&word));
    found.map(|(_, instead)| *instead)
}

/// The words of a line in lower case; a name is split at underscores and humps.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in line.chars() {
        let hump = letter.is_uppercase() && before.is_lowercase();
        if !letter.is_alphabetic() || hump {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words
                .last_mut()
                .expect("never empty")
                .extend(letter.to_lowercase());
        }
        before = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a line is a whole documentation comment such as "Which." or "Whose objects.".
fn is_bare_question(line: &str) -> bool {
    let Some(text) = line.trim_start().strip_prefix("/// ") else {
        return false;
    };
    let Some(sentence) = text.strip_suffix('.') else {
        return false;
    };
    let words: Vec<&str> = sentence.split(' ').collect();
    QUESTIONS.contains(&words[0]) && words.len() <= QUESTION_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_replaced_words_in_names_and_prose() {
        let check = |line: &str, found: usize| {
            let mut problems = vec![];
            inspect(Path::new("x.rs"), line, &mut problems);
            assert_eq!(problems.len(), found, "{line:?}: {problems:?}");
        };
        check("// an unauthenticated peer is refused", 0);
        check("// a stranger is refused", 1);
        check("fn refuse_strangers() {}", 1);
        check("struct BurialGround;", 1);
        check("// the engraved gravel", 0);
        check("// the thread lies down", 1);
        check("fn own_up() {}", 1);
        check("/// Whose objects.", 1);
        check("    /// Which.", 1);
        check("/// Which of the two files is read first.", 0);
        check("/// Where two words meet.", 0);
        check("/// Bytes of the file.", 0);
    }

    #[test]
    fn finds_replaced_words_in_paths() {
        let mut problems = vec![];
        inspect(Path::new("src/courier.rs"), "", &mut problems);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}
