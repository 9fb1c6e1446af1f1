//! One question to the owner of a key and its answer, over whatever carries bytes both ways: Noise IK as on sealed
//! connections, with the question as the payload of its first message. The answer is the second message, and then records
//! under the key of the target: the length of the text, and the text.
//!
//! The first message can be repeated by an unauthenticated peer that has seen it, so a question must change nothing. The answer
//! to a repetition opens for nobody but the asker, whose own key of that one question it needs; and while the question is among the
//! latest that were answered ([`AnsweredQuestions`]), there is none.

use std::collections::VecDeque;

use slackwater_zmtp::{KeyPair, PublicKey};
use snow::HandshakeState;
use zeroize::Zeroizing;

use super::{
    Cipher, Entropy, PACKET_OVERHEAD, PacketOpener, PacketSealer, RECORD_BYTES_MAX, RecordKey,
    SealError, noise,
};

/// Bytes of the first message of Noise IK without its payload: a key, and the initiator's sealed one.
const ASKED_OVERHEAD: usize = 32 + 48 + 16;
/// Bytes of the second message: a key, and the tag of an empty payload.
const ANSWER_HEAD: usize = 32 + 16;
/// Bytes of the text of a question.
const QUESTION_BYTES_MAX: usize = 4 << 10;
const LABEL: &[u8] = b"slackwater question, sealed, 1";
const LENGTH_BYTES: usize = 8;
/// Bytes of the asker's key of one question, with which the question begins.
const ONCE_BYTES: usize = 32;
/// Questions that are known to have been answered: 32 KiB of them.
const ANSWERED_MAX: usize = 1024;

/// A question that waits for its answer.
#[derive(Debug)]
pub struct Question {
    noise: HandshakeState,
    target: PublicKey,
}

/// A question that was read, and has yet to be answered: by whether its asker is on a list.
#[derive(Debug)]
pub struct Asked {
    noise: HandshakeState,
    asker: PublicKey,
    once: [u8; ONCE_BYTES],
    text: Vec<u8>,
}

/// The latest questions that were answered, by the askers' keys of each. An answer is much longer than its question: a peer that
/// has seen one could have had it made again and again.
#[derive(Debug, Default)]
pub struct AnsweredQuestions(VecDeque<[u8; ONCE_BYTES]>);

impl AnsweredQuestions {
    /// Whether a question is none of them; it is one from now on. To be asked for the questions of listed keys alone: others could
    /// fill it.
    pub fn is_first(&mut self, asked: &Asked) -> bool {
        if self.0.contains(&asked.once) {
            return false;
        }
        if self.0.len() == ANSWERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(asked.once);
        true
    }
}

impl Asked {
    /// Reads a question to the owner of `keys`.
    ///
    /// # Errors
    /// The bytes are no question to this key.
    pub fn read(keys: &KeyPair, entropy: &Entropy, asked: &[u8]) -> Result<Self, SealError> {
        let refused = |_| SealError::Refused;
        if !(ASKED_OVERHEAD..=ASKED_OVERHEAD + QUESTION_BYTES_MAX).contains(&asked.len()) {
            return Err(SealError::Refused);
        }
        let mut noise = noise::target(keys, entropy, LABEL).map_err(refused)?;
        let mut text = vec![0; asked.len() - ASKED_OVERHEAD];
        noise.read_message(asked, &mut text).map_err(refused)?;
        let asker = noise
            .get_remote_static()
            .and_then(|key| key.try_into().ok())
            .ok_or(SealError::Refused)?;
        let asker = PublicKey::from_bytes(asker);
        let once = asked.first_chunk().copied().ok_or(SealError::Refused)?;
        Ok(Self {
            noise,
            asker,
            once,
            text,
        })
    }

    /// The key whose owner has asked this, now or earlier.
    #[must_use]
    pub fn asker(&self) -> PublicKey {
        self.asker
    }

    /// The text of the question: 4 KiB at most.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The answer to send, which opens for the asker alone.
    ///
    /// # Errors
    /// The asker's key of this question is none.
    pub fn answer(mut self, text: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut sent = vec![0; ANSWER_HEAD];
        let written = self.noise.write_message(&[], &mut sent);
        written.map_err(|_| SealError::Refused)?;
        let mut sealer = PacketSealer::new(answer_key(&mut self.noise));
        let length = (text.len() as u64).to_le_bytes();
        sent.reserve(text.len() + (text.len() / RECORD_BYTES_MAX + 2) * PACKET_OVERHEAD);
        for record in std::iter::once(length.as_slice()).chain(text.chunks(RECORD_BYTES_MAX)) {
            sent.extend_from_slice(sealer.seal(&[record]));
            sealer.sent();
        }
        Ok(sent)
    }
}

impl Question {
    /// A question of the owner of `own` to that of `target`, and the bytes to send. The entropy may be used but once.
    ///
    /// # Errors
    /// The target's key is none, or the text has more than 4 KiB.
    pub fn ask(
        own: &KeyPair,
        entropy: &Entropy,
        target: PublicKey,
        text: &[u8],
    ) -> Result<(Self, Vec<u8>), SealError> {
        let proof = |_| SealError::Proof;
        if text.len() > QUESTION_BYTES_MAX {
            return Err(SealError::Record);
        }
        let mut noise = noise::initiator(own, entropy, &target, LABEL).map_err(proof)?;
        let mut sent = vec![0; ASKED_OVERHEAD + text.len()];
        noise.write_message(text, &mut sent).map_err(proof)?;
        Ok((Self { noise, target }, sent))
    }

    /// The key that its answer proves.
    #[must_use]
    pub fn target(&self) -> PublicKey {
        self.target
    }

    /// The text of the answer, which is all there and from the owner of the key that was asked.
    ///
    /// # Errors
    /// It is from somebody else, or was changed or cut.
    pub fn open(mut self, answer: &[u8]) -> Result<Vec<u8>, SealError> {
        let head = answer.get(..ANSWER_HEAD).ok_or(SealError::Proof)?;
        let read = self.noise.read_message(head, &mut []);
        read.map_err(|_| SealError::Proof)?;
        // Not before: peers that prove nothing send as much.
        let mut sealed = answer[ANSWER_HEAD..].to_vec();
        let mut opener = PacketOpener::new(answer_key(&mut self.noise));
        let (first, rest) = sealed
            .split_at_mut_checked(LENGTH_BYTES + PACKET_OVERHEAD)
            .ok_or(SealError::Record)?;
        let length = opener.open(first)?;
        let length = first[length].first_chunk().copied();
        let length = u64::from_le_bytes(length.ok_or(SealError::Record)?);
        let mut text = Vec::with_capacity(rest.len());
        for record in rest.chunks_mut(RECORD_BYTES_MAX + PACKET_OVERHEAD) {
            let opened = opener.open(record)?;
            text.extend_from_slice(&record[opened]);
        }
        match text.len() as u64 == length {
            true => Ok(text),
            false => Err(SealError::Record),
        }
    }
}

/// The key of the answer's records. ChaCha20-Poly1305, as the ends agree on nothing before.
fn answer_key(noise: &mut HandshakeState) -> RecordKey {
    let (_, target) = noise.dangerously_get_raw_split();
    RecordKey {
        secret: Zeroizing::new(target),
        cipher: Cipher::ChaCha,
    }
}

#[cfg(test)]
mod tests {
    use slackwater_zmtp::{KeyPair, SecretKey};

    use super::*;

    fn pair(byte: u8) -> KeyPair {
        KeyPair::of(SecretKey::from_bytes([byte; 32]))
    }

    fn ask(own: u8, target: u8, entropy: u8, text: &[u8]) -> (Question, Vec<u8>) {
        let target = pair(target).public();
        Question::ask(&pair(own), &Entropy::new([entropy; 32]), target, text).unwrap()
    }

    fn read(own: u8, sent: &[u8]) -> Result<Asked, SealError> {
        Asked::read(&pair(own), &Entropy::new([8; 32]), sent)
    }

    #[test]
    fn a_question_is_read_and_answered_by_its_target_alone() {
        for bytes in [0, 1, 1000, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 300_000] {
            let text: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let (question, sent) = ask(1, 2, 7, b"who");
            assert!(!sent.windows(3).any(|window| window == b"who"));
            let asked = read(2, &sent).unwrap();
            assert_eq!(asked.text(), b"who");
            assert_eq!(asked.asker(), pair(1).public());
            assert_eq!(question.target(), pair(2).public());
            assert_eq!(question.open(&asked.answer(&text).unwrap()), Ok(text));
        }
    }

    #[test]
    fn what_is_no_question_to_a_key_is_refused() {
        let (_, sent) = ask(1, 2, 7, b"");
        let refused = |own: u8, sent: &[u8]| read(own, sent).err() == Some(SealError::Refused);
        assert!(refused(3, &sent), "the question is to another");
        for sent in [&[], &[0; ASKED_OVERHEAD][..], &sent[..sent.len() - 1]] {
            assert!(refused(2, sent), "{} bytes", sent.len());
        }
        for bit in 0..sent.len() * 8 {
            let mut changed = sent.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(2, &changed), "bit {bit}");
        }
        let long = vec![0; QUESTION_BYTES_MAX + 1];
        let target = pair(2).public();
        let asked = Question::ask(&pair(1), &Entropy::new([7; 32]), target, &long);
        assert_eq!(asked.err(), Some(SealError::Record));
    }

    #[test]
    fn the_first_message_of_another_exchange_and_one_that_is_long_are_no_questions() {
        let first = |label: &[u8], bytes: usize| {
            let (own, target) = (pair(1), pair(2).public());
            let mut noise = noise::initiator(&own, &[7; 32].into(), &target, label).unwrap();
            let mut sent = vec![0; ASKED_OVERHEAD + bytes];
            noise.write_message(&vec![5; bytes], &mut sent).unwrap();
            read(2, &sent).map(|asked| asked.text().len())
        };
        assert_eq!(first(LABEL, QUESTION_BYTES_MAX), Ok(QUESTION_BYTES_MAX));
        for (label, bytes) in [(LABEL, QUESTION_BYTES_MAX + 1), (b"", 0), (b"another", 0)] {
            assert_eq!(first(label, bytes), Err(SealError::Refused));
        }
    }

    /// Both ends take the same key for the answer, whichever it is: engines of two releases have to take that of the target.
    #[test]
    fn an_answer_is_sealed_under_the_key_of_the_target() {
        let (_, sent) = ask(1, 2, 7, b"");
        let asked = read(2, &sent).unwrap();
        let (own, target) = (pair(1), pair(2).public());
        let mut noise = noise::initiator(&own, &[7; 32].into(), &target, LABEL).unwrap();
        noise.write_message(b"", &mut [0; ASKED_OVERHEAD]).unwrap();
        let mut answer = asked.answer(b"text").unwrap();
        let (head, records) = answer.split_at_mut(ANSWER_HEAD);
        noise.read_message(head, &mut []).unwrap();
        let (_, secret) = noise.dangerously_get_raw_split();
        let mut opener = PacketOpener::new(RecordKey {
            secret: Zeroizing::new(secret),
            cipher: Cipher::ChaCha,
        });
        let (length, text) = records.split_at_mut(LENGTH_BYTES + PACKET_OVERHEAD);
        let at = opener.open(length).unwrap();
        assert_eq!(length[at], 4u64.to_le_bytes());
        let at = opener.open(text).unwrap();
        assert_eq!(&text[at], b"text");
    }

    /// A question of a hundred bytes that somebody had seen was answered at length as often as it was repeated.
    #[test]
    fn a_question_is_answered_once_while_it_is_among_the_latest() {
        let mut answered = AnsweredQuestions::default();
        let questions: Vec<Vec<u8>> = (0..=ANSWERED_MAX as u16)
            .map(|number| {
                let mut entropy = [7; 32];
                // Of the first byte not all bits count.
                entropy[1..3].copy_from_slice(&number.to_le_bytes());
                let entropy = Entropy::new(entropy);
                let target = pair(2).public();
                Question::ask(&pair(1), &entropy, target, b"who").unwrap().1
            })
            .collect();
        let mut is_first = |at: usize| answered.is_first(&read(2, &questions[at]).unwrap());
        for at in 0..ANSWERED_MAX {
            assert!(is_first(at), "{at}");
        }
        assert!(!is_first(0) && !is_first(ANSWERED_MAX - 1));
        // It makes room, of which the oldest one goes.
        assert!(is_first(ANSWERED_MAX) && !is_first(1) && is_first(0));
    }

    #[test]
    fn an_answer_that_was_changed_cut_or_made_for_another_question_does_not_open() {
        let text = vec![5; RECORD_BYTES_MAX + 10];
        let answer = |sent: &[u8]| read(2, sent).unwrap().answer(&text).unwrap();
        let reply = answer(&ask(1, 2, 7, b"").1);
        let opens = |reply: &[u8]| ask(1, 2, 7, b"").0.open(reply).is_ok();
        assert!(opens(&reply));
        assert!(!opens(&answer(&ask(1, 2, 6, b"").1)));
        let ends = [
            0,
            ANSWER_HEAD - 1,
            ANSWER_HEAD,
            ANSWER_HEAD + LENGTH_BYTES + PACKET_OVERHEAD,
            reply.len() - 10 - PACKET_OVERHEAD,
            reply.len() - 1,
        ];
        for end in ends {
            assert!(!opens(&reply[..end]), "{end} bytes");
        }
        assert!(!opens(&[reply.as_slice(), &[0]].concat()));
        for at in (0..200).chain(reply.len() - 40..reply.len()) {
            let mut changed = reply.clone();
            changed[at] ^= 1;
            let error = match at < ANSWER_HEAD {
                true => SealError::Proof,
                false => SealError::Record,
            };
            let opened = ask(1, 2, 7, b"").0.open(&changed);
            assert_eq!(opened, Err(error), "byte {at}");
        }
    }
}
