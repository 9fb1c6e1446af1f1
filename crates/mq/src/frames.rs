//! The meaning of frames between two message layers: those of OxenMQ, and three more that are only sent to peers that
//! announced the property [`PROPERTY`].

use slackwater_zmtp::Message;

/// The READY property by which peers know that the extension texts are understood.
pub(crate) const PROPERTY: &str = "X-Slackwater";
pub(crate) const HI: &[u8] = b"HI";
pub(crate) const HELLO: &[u8] = b"HELLO";
pub(crate) const BYE: &[u8] = b"BYE";
pub(crate) const REPLY: &[u8] = b"REPLY";
/// Bytes of a tag as we and upstream make it; receivers take any up to [`TAG_BYTES_MAX`].
pub(crate) const TAG_BYTES: usize = 15;
/// Longest tag that is taken: it is kept until its request is answered, however long that takes.
pub(crate) const TAG_BYTES_MAX: usize = 64;

/// A tag that is kept until its request is answered: one of the usual length without memory of its own.
pub(crate) enum KeptTag {
    Usual([u8; TAG_BYTES]),
    Other(Box<[u8]>),
}

impl KeptTag {
    pub(crate) fn of(tag: &[u8]) -> Self {
        let usual = tag.try_into();
        usual.map_or_else(|_| KeptTag::Other(tag.into()), KeptTag::Usual)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            KeptTag::Usual(tag) => tag,
            KeptTag::Other(tag) => tag,
        }
    }
}

/// Why a command was not carried out, as the peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// No such category or command.
    UnknownCommand,
    /// The caller's level is too low.
    Forbidden,
    /// The category needs a node, and this side is none.
    NotAServiceNode,
    /// The category needs a caller that is an active node.
    ForbiddenNode,
    /// A request without a tag, or with one of more than 64 bytes.
    NoReplyTag,
    /// The category's queue is full. Extension.
    Busy,
    /// The handler failed. Extension.
    Failed,
    /// Another peer is responsible. Extension.
    Moved,
}

impl Refusal {
    /// What a requester without [`PROPERTY`] is told in place of an extension, so that its own code ends the request as failed:
    /// of the words that it knows, the only one for a state of this side that may pass.
    const STAND_IN: Refusal = Refusal::NotAServiceNode;

    const ALL: [Refusal; 8] = [
        Refusal::UnknownCommand,
        Refusal::Forbidden,
        Refusal::NotAServiceNode,
        Refusal::ForbiddenNode,
        Refusal::NoReplyTag,
        Refusal::Busy,
        Refusal::Failed,
        Refusal::Moved,
    ];

    /// The word on the wire.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Refusal::UnknownCommand => "UNKNOWNCOMMAND",
            Refusal::Forbidden => "FORBIDDEN",
            Refusal::NotAServiceNode => "NOT_A_SERVICE_NODE",
            Refusal::ForbiddenNode => "FORBIDDEN_SN",
            Refusal::NoReplyTag => "NO_REPLY_TAG",
            Refusal::Busy => "BUSY",
            Refusal::Failed => "FAILED",
            Refusal::Moved => "MOVED",
        }
    }

    /// Whether only peers with [`PROPERTY`] know the word; others would take it for a command.
    const fn is_extension(self) -> bool {
        matches!(self, Refusal::Busy | Refusal::Failed | Refusal::Moved)
    }

    fn read(word: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|refusal| refusal.text().as_bytes() == word)
    }
}

/// What a message is, by its first frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inbound<'a> {
    Hi,
    Hello,
    Bye,
    /// The answer to the request of this tag; the parts follow from the third frame on.
    Reply(&'a [u8]),
    /// The request of this tag was refused.
    RequestRefused(Refusal, &'a [u8]),
    /// A command was refused; nothing waits for it.
    CommandRefused(Refusal),
    /// Anything else is a command, known or not.
    Command(&'a [u8]),
    /// A built-in word with the wrong frames, or no frame.
    Garbled,
}

pub(crate) fn read(message: &Message) -> Inbound<'_> {
    let Some(first) = message.part(0) else {
        return Inbound::Garbled;
    };
    match first {
        HI => Inbound::Hi,
        HELLO => Inbound::Hello,
        BYE => Inbound::Bye,
        REPLY => message.part(1).map_or(Inbound::Garbled, Inbound::Reply),
        _ => match Refusal::read(first) {
            None => Inbound::Command(first),
            Some(refusal) => match (message.part(1), message.part(2)) {
                (Some(REPLY), Some(tag)) => Inbound::RequestRefused(refusal, tag),
                _ => Inbound::CommandRefused(refusal),
            },
        },
    }
}

/// The answer to a command that was not carried out: with a tag in the form that ends the request of that tag. None for a
/// plain command whose peer does not know the word (`extensions` says whether it announced [`PROPERTY`]).
pub(crate) fn refuse(
    refusal: Refusal,
    extensions: bool,
    command: &[u8],
    tag: Option<&[u8]>,
) -> Option<Message> {
    let is_known = extensions || !refusal.is_extension();
    match tag {
        Some(tag) => {
            let word = if is_known { refusal } else { Refusal::STAND_IN };
            Some(Message::of([word.text().as_bytes(), REPLY, tag]))
        }
        None => is_known.then(|| Message::of([refusal.text().as_bytes(), command])),
    }
}

/// Puts the words of a command or reply before the parts of its body.
pub(crate) fn with_head<P: AsRef<[u8]>>(
    head: &[&[u8]],
    parts: impl IntoIterator<Item = P>,
) -> Message {
    let mut parts = parts.into_iter();
    // Mostly there is one.
    let first = parts.next();
    let head_bytes: usize = head.iter().map(|part| part.len()).sum();
    let first_bytes = first.as_ref().map_or(0, |part| part.as_ref().len());
    let mut message = Message::with_capacity(head_bytes + first_bytes);
    head.iter().for_each(|part| message.push(part));
    for part in first.into_iter().chain(parts) {
        message.push(part.as_ref());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_mean_what_upstream_means() {
        let check = |parts: &[&str], want: Inbound<'_>| {
            assert_eq!(read(&Message::of(parts)), want, "{parts:?}")
        };
        check(&["HI"], Inbound::Hi);
        check(&["HELLO"], Inbound::Hello);
        check(&["BYE"], Inbound::Bye);
        check(&["REPLY", "tag", "a"], Inbound::Reply(b"tag"));
        check(&["REPLY"], Inbound::Garbled);
        check(&[], Inbound::Garbled);
        check(&["cat.cmd", "x"], Inbound::Command(b"cat.cmd"));
        check(
            &["FORBIDDEN", "REPLY", "tag"],
            Inbound::RequestRefused(Refusal::Forbidden, b"tag"),
        );
        check(
            &["FORBIDDEN", "cat.cmd"],
            Inbound::CommandRefused(Refusal::Forbidden),
        );
        check(
            &["UNKNOWNCOMMAND"],
            Inbound::CommandRefused(Refusal::UnknownCommand),
        );
        check(
            &["NO_REPLY_TAG", "cat.cmd"],
            Inbound::CommandRefused(Refusal::NoReplyTag),
        );
        check(
            &["BUSY", "REPLY", "t"],
            Inbound::RequestRefused(Refusal::Busy, b"t"),
        );
    }

    #[test]
    fn every_refusal_reads_back_in_both_forms() {
        for refusal in Refusal::ALL {
            let check = |tag, want| {
                let message = refuse(refusal, true, b"c.x", tag).unwrap();
                assert_eq!(read(&message), want);
            };
            check(
                Some(b"t".as_slice()),
                Inbound::RequestRefused(refusal, b"t"),
            );
            check(None, Inbound::CommandRefused(refusal));
        }
    }

    /// A requester that is not ours heard nothing of a full queue and waited for its timeout.
    #[test]
    fn a_peer_with_upstream_s_words_only_hears_no_other() {
        const UPSTREAM: [&str; 5] = [
            "UNKNOWNCOMMAND",
            "FORBIDDEN",
            "NOT_A_SERVICE_NODE",
            "FORBIDDEN_SN",
            "NO_REPLY_TAG",
        ];
        for refusal in Refusal::ALL {
            let is_theirs = UPSTREAM.contains(&refusal.text());
            let word = if is_theirs {
                refusal.text()
            } else {
                "NOT_A_SERVICE_NODE"
            };
            assert_eq!(
                refuse(refusal, false, b"c.x", Some(b"t")),
                Some(Message::of([word, "REPLY", "t"]))
            );
            let plain = refuse(refusal, false, b"c.x", None);
            assert_eq!(
                plain,
                is_theirs.then(|| Message::of([word, "c.x"])),
                "nothing waits"
            );
        }
    }
}
