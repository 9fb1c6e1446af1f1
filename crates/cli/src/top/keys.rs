//! What keys ask for, from the bytes that a terminal sends for them.

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// The tab of this number, from zero.
    Tab(usize),
    Next,
    Previous,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Pause,
}

/// Reads keys; a sequence may come in parts, as it does over a slow link.
#[derive(Default)]
pub(super) struct Keys {
    /// The beginning of a sequence.
    begun: Vec<u8>,
}

/// Longer sequences are no keys.
const SEQUENCE_MAX: usize = 16;
const ESCAPE: u8 = 0x1b;
/// Ctrl-C, where it is read as a key.
const CTRL_C: u8 = 3;

impl Keys {
    /// What is asked for by the bytes that came last, and by what was begun before.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|byte| self.take(*byte)).collect()
    }

    fn take(&mut self, byte: u8) -> Option<Key> {
        match (&self.begun[..], byte) {
            (_, CTRL_C) => {
                self.begun.clear();
                Some(Key::Quit)
            }
            // The one before was the key of that name.
            (_, ESCAPE) => {
                self.begun = vec![ESCAPE];
                None
            }
            ([], byte) => single(byte),
            ([ESCAPE], b'[' | b'O') => {
                self.begun.push(byte);
                None
            }
            ([ESCAPE], _) => {
                self.begun.clear();
                single(byte)
            }
            ([ESCAPE, _, ..], 0x40..=0x7e) => {
                let sequence = std::mem::take(&mut self.begun);
                sequence_of(&sequence[2..], byte)
            }
            _ if self.begun.len() >= SEQUENCE_MAX => {
                self.begun.clear();
                None
            }
            _ => {
                self.begun.push(byte);
                None
            }
        }
    }
}

fn single(byte: u8) -> Option<Key> {
    Some(match byte {
        b'q' | b'Q' => Key::Quit,
        b'1'..=b'9' => Key::Tab(usize::from(byte - b'1')),
        b'\t' | b'l' => Key::Next,
        b'h' => Key::Previous,
        b'k' => Key::Up,
        b'j' => Key::Down,
        b' ' => Key::PageDown,
        b'g' => Key::First,
        b'G' => Key::Last,
        b'p' => Key::Pause,
        _ => return None,
    })
}

/// The key of `ESC [` or `ESC O`, these parameters and this end.
fn sequence_of(parameters: &[u8], end: u8) -> Option<Key> {
    Some(match (parameters, end) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'C') => Key::Next,
        (_, b'D') | (_, b'Z') => Key::Previous,
        (_, b'H') | (b"1" | b"7", b'~') => Key::First,
        (_, b'F') | (b"4" | b"8", b'~') => Key::Last,
        (b"5", b'~') => Key::PageUp,
        (b"6", b'~') => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        let check = |bytes: &[u8], keys: &[Key]| {
            assert_eq!(Keys::default().read(bytes), keys, "{bytes:?}");
            // The same, a byte at a time.
            let mut reader = Keys::default();
            let parts: Vec<Key> = bytes.chunks(1).flat_map(|part| reader.read(part)).collect();
            assert_eq!(parts, keys, "{bytes:?}");
        };
        check(b"q", &[Key::Quit]);
        check(b"\x03", &[Key::Quit]);
        check(b"3\t8", &[Key::Tab(2), Key::Next, Key::Tab(7)]);
        check(b"\x1b[A\x1b[B", &[Key::Up, Key::Down]);
        check(
            b"\x1bOC\x1b[D\x1b[Z",
            &[Key::Next, Key::Previous, Key::Previous],
        );
        check(b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]);
        check(b"\x1b[H\x1b[4~\x1bOF", &[Key::First, Key::Last, Key::Last]);
        check(b"x\x1b[15~\x1b[1;5Aj", &[Key::Up, Key::Down]);
        // The key of escape, and whatever a hostile paste holds, ends nothing but itself.
        check(b"\x1b\x1b\x1bq", &[Key::Quit]);
        check(b"\x1b[1;2\x03", &[Key::Quit]);
        let mut long = b"\x1b[".to_vec();
        long.extend([b'1'; 1000]);
        let mut reader = Keys::default();
        let pressed = reader.read(&long);
        assert!(pressed.iter().all(|key| *key == Key::Tab(0)), "{pressed:?}");
        assert!(reader.begun.len() <= SEQUENCE_MAX);
    }
}
