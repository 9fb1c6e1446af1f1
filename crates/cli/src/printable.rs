//! Text that others have written, on the terminal of whom it may be meant for.

/// The text without characters that a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let shown = |character: char| match character.is_control() {
        true => '\u{fffd}',
        false => character,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_replaced() {
        let check = |text: &str, expected: &str| assert_eq!(printable(text), expected);
        check(
            "job 7 is done: 5 % caf\u{e9}",
            "job 7 is done: 5 % caf\u{e9}",
        );
        check(
            "\u{1b}]0;x\u{7}\n\u{9b}2J",
            "\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}2J",
        );
    }
}
