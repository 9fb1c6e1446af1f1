//! What an engine is configured with whose connections are sealed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use slackwater_data_plane::seal::{
    AnsweredQuestions, Asked, Channel, Entropy, Keys, Question, SealError, TargetHandshake,
};
use slackwater_keys::AllowList;
use slackwater_wire::Incarnation;
use slackwater_wire::data::Greeting;
use slackwater_zmtp::{KeyPair, PublicKey};
use zeroize::Zeroizing;

/// The keys of an engine whose connections are sealed; every one of them is, in both directions.
#[derive(Clone, Debug)]
pub struct SealConfig {
    /// The key pair of this engine, as `slackwater keys` makes it.
    pub keys: KeyPair,
    /// The keys that may connect to it.
    pub clients: AllowList,
}

impl SealConfig {
    /// The target's side of a handshake: the key of an initiator that the list admits, the answer to send, and the
    /// connection's keys. The entropy may be used but once.
    ///
    /// # Errors
    /// The initiator does not seal its connections, or is refused.
    pub fn answer(
        &self,
        entropy: &Entropy,
        hello: &Greeting,
        answer: Greeting,
        channel: &Channel,
    ) -> Result<(PublicKey, Greeting, Keys), SealError> {
        let handshake = TargetHandshake::begin(&self.keys, entropy, hello, channel)?;
        let client = handshake.client();
        if !self.clients.admits(&client) {
            return Err(SealError::Refused);
        }
        let (answer, keys) = handshake.finish(answer)?;
        Ok((client, answer, keys))
    }

    /// A question to the owner of `target`, and the bytes to send. The key may have been told by anybody: it has to be on
    /// our own list, and only its owner can read the question and answer it.
    ///
    /// # Errors
    /// The key is not on our list, or no owner can have it, the text has more than 4 KiB, or there is no randomness.
    pub fn ask(&self, target: PublicKey, text: &[u8]) -> Result<(Question, Vec<u8>), SealError> {
        if !self.clients.admits(&target) {
            return Err(SealError::Unlisted);
        }
        Question::ask(&self.keys, &entropy()?, target, text)
    }

    /// Whether the list has a key, as segments and descriptions name it, at this moment.
    #[must_use]
    pub fn lists(&self, key: &[u8; 32]) -> bool {
        self.clients.admits(&PublicKey::from_bytes(*key))
    }

    /// Answers a question of the owner of a key on our list with what `text` says about it, sealed for its asker alone, unless it
    /// is one of those that were `answered`.
    ///
    /// # Errors
    /// The bytes are no question to our key, or of a key that is not on the list, or were answered before; or there is no
    /// randomness.
    pub fn answer_question(
        &self,
        asked: &[u8],
        answered: &Mutex<AnsweredQuestions>,
        text: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>, SealError> {
        let asked = Asked::read(&self.keys, &entropy()?, asked)?;
        if !self.clients.admits(&asked.asker()) {
            return Err(SealError::Refused);
        }
        let mut latest = answered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = latest.is_first(&asked);
        drop(latest);
        if !is_first {
            return Err(SealError::Refused);
        }
        let text = text(asked.text());
        asked.answer(&text)
    }
}

/// Processes whose keys are known, at most.
const PROCESSES_MAX: usize = 65_536;

/// Under which key each process has described itself. Movers keep connections by the life of a process: a peer that gave the
/// life of another one as its own would get what is sent to that, over a connection that proves its own key.
#[derive(Debug, Default)]
pub struct KeysOfPeers {
    keys: BTreeMap<Incarnation, PublicKey>,
    /// The oldest first.
    order: VecDeque<Incarnation>,
}

impl KeysOfPeers {
    /// Takes in that the owner of `key`, as segments and descriptions name it, is the process `life`; whether it may be. The
    /// first to say so is believed, while it is among the latest 65,536.
    #[must_use]
    pub fn is_of(&mut self, life: Incarnation, key: &[u8; 32]) -> bool {
        let key = PublicKey::from_bytes(*key);
        if let Some(known) = self.keys.get(&life) {
            return *known == key;
        }
        if self.order.len() == PROCESSES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.keys.insert(life, key);
        self.order.push_back(life);
        true
    }
}

/// Randomness of the operating system, for the key of one connection.
///
/// # Errors
/// The operating system gives none.
pub fn entropy() -> Result<Entropy, SealError> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| SealError::Randomness)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use slackwater_data_plane::seal::InitiatorHandshake;
    use slackwater_keys::Level;
    use slackwater_wire::data::{Features, HANDSHAKE_BYTES};
    use slackwater_zmtp::SecretKey;

    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            version_min: 1,
            version_max: 1,
            features: Features::default(),
            incarnation: Incarnation(1),
            expects: Incarnation(0),
            frame_bytes_max: 1 << 20,
            requests_max: 8,
            in_flight_bytes_max: 1 << 28,
            handshake: [0; HANDSHAKE_BYTES],
        }
    }

    #[test]
    fn only_a_listed_key_is_let_in_and_both_ends_get_its_keys() {
        let [own, listed, other] =
            [1, 2, 3].map(|byte| KeyPair::of(SecretKey::from_bytes([byte; 32])));
        let seal = SealConfig {
            keys: own.clone(),
            clients: AllowList::from([listed.public()]),
        };
        let check = |client: &KeyPair, admitted: bool| {
            let (entropy, channel) = (entropy().unwrap(), &Channel::TCP);
            let begun =
                InitiatorHandshake::begin(client, &entropy, own.public(), greeting(), channel);
            let asks = begun.unwrap();
            match seal.answer(&[9; 32].into(), asks.hello(), greeting(), channel) {
                Ok((key, answer, keys)) => {
                    assert!(admitted && key == client.public());
                    let initiator = asks.finish(&answer).unwrap();
                    assert_eq!(initiator.send.secret, keys.receive.secret);
                }
                Err(error) => assert!(!admitted && error == SealError::Refused, "{error}"),
            }
        };
        check(&listed, true);
        check(&other, false);
        let unsealed = seal.answer(&[9; 32].into(), &greeting(), greeting(), &Channel::TCP);
        assert_eq!(unsealed.err(), Some(SealError::Unsealed));
    }

    #[test]
    fn only_listed_keys_ask_and_are_asked() {
        let pair = |byte: u8| KeyPair::of(SecretKey::from_bytes([byte; 32]));
        let seal = |own: u8, listed: &[u8]| SealConfig {
            keys: pair(own),
            clients: listed.iter().map(|byte| pair(*byte).public()).collect(),
        };
        let target = pair(2).public();
        // The key of the peer that answers is not on our list, whatever has told it.
        for listed in [&[][..], &[3]] {
            let asked = seal(1, listed).ask(target, b"who");
            assert_eq!(asked.err(), Some(SealError::Unlisted));
        }
        let (question, sent) = seal(1, &[2]).ask(target, b"who").unwrap();
        let answers = |listed: &[u8], latest: &Mutex<AnsweredQuestions>| {
            seal(2, listed).answer_question(&sent, latest, <[u8]>::to_vec)
        };
        let latest = Mutex::default();
        let refused = Err(SealError::Refused);
        assert_eq!(answers(&[3], &latest), refused, "nobody who is listed asks");
        let answered = answers(&[1], &latest).unwrap();
        assert_eq!(question.open(&answered), Ok(b"who".to_vec()));
        assert_eq!(answers(&[1], &latest), refused, "it is a repetition");
    }

    /// An engine that described itself with the life of another one got the bytes that were meant for that.
    #[test]
    fn the_life_of_a_process_is_one_keys() {
        let mut peers = KeysOfPeers::default();
        let life = |number: usize| Incarnation(number as u64 + 1);
        assert!(peers.is_of(life(0), &[1; 32]) && peers.is_of(life(0), &[1; 32]));
        assert!(!peers.is_of(life(0), &[2; 32]));
        assert!(peers.is_of(life(1), &[2; 32]), "its own");
        for number in 2..PROCESSES_MAX {
            assert!(peers.is_of(life(number), &[3; 32]));
        }
        assert!(!peers.is_of(life(0), &[2; 32]), "as many are known");
        assert!(peers.is_of(life(PROCESSES_MAX), &[3; 32]));
        assert!(!peers.is_of(life(1), &[3; 32]), "only the oldest made room");
        assert_eq!(
            (peers.keys.len(), peers.order.len()),
            (PROCESSES_MAX, PROCESSES_MAX)
        );
    }

    #[test]
    fn a_list_is_asked_as_it_is_now() {
        let [own, other] = [1, 2].map(|byte| KeyPair::of(SecretKey::from_bytes([byte; 32])));
        let seal = SealConfig {
            keys: own,
            clients: AllowList::default(),
        };
        let key = *other.public().as_bytes();
        assert!(!seal.lists(&key));
        seal.clients.replace([(other.public(), Level::Basic)]);
        assert!(seal.lists(&key) && !seal.lists(&[0; 32]));
        seal.clients.replace([(other.public(), Level::None)]);
        assert!(!seal.lists(&key));
    }

    #[test]
    fn each_question_and_its_answer_have_keys_of_their_own() {
        let pair = |byte: u8| KeyPair::of(SecretKey::from_bytes([byte; 32]));
        let seal = |own: u8, listed: u8| SealConfig {
            keys: pair(own),
            clients: AllowList::from([pair(listed).public()]),
        };
        let asked = || seal(1, 2).ask(pair(2).public(), b"who").unwrap().1;
        let sent = asked();
        assert_ne!(sent, asked());
        let answered = || seal(2, 1).answer_question(&sent, &Mutex::default(), <[u8]>::to_vec);
        assert_ne!(answered().unwrap(), answered().unwrap());
    }
}
