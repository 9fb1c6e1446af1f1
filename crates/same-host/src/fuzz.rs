//! What the fuzz target of a host link's packets does with its bytes. The test below replays its corpus, and mutations of it.

use slackwater_wire::data::{GREETING_BYTES, Greeting};
use zerocopy::{FromBytes, IntoBytes};

use super::message::{AttachAnswer, Goodbye, Hello, Question, Welcome};

/// Packets of a host link: one that can be read is written as it was.
pub fn packets(bytes: &[u8]) {
    if let Some(question) = Question::read(bytes) {
        let Question {
            head,
            detach,
            attach,
            notice_name,
            notice_bytes,
        } = &question;
        let (head, detach, attach) = (head.as_bytes(), detach.as_bytes(), attach.as_bytes());
        let written = [head, detach, attach, notice_name, notice_bytes].concat();
        assert_eq!(written, bytes);
    }
    if let Some(answer) = AttachAnswer::read(bytes) {
        let written = [answer.head.as_bytes(), answer.entries.as_bytes()].concat();
        assert_eq!(written, bytes);
    }
    if Goodbye::reason_in(bytes).is_some() {
        assert!(Welcome::read_from_bytes(bytes).is_err(), "one is no other");
    }
    if let Ok((hello, rest)) = Hello::read_from_prefix(bytes) {
        assert_eq!([hello.as_bytes(), rest].concat(), bytes);
        // A greeting of the data plane follows where keys are asked for.
        let offered = <&[u8; GREETING_BYTES]>::try_from(rest).ok();
        if let Some(Ok(known)) = offered.map(Greeting::from_bytes) {
            assert_eq!(known.to_bytes(), rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpora;

    #[test]
    fn corpora_and_their_mutations_break_nothing() {
        corpora::replay(&[("transfer_packets", packets)]);
    }
}
