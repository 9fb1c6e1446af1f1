//! What an engine is configured with whose connections are sealed.

use slackwater_data_plane::seal::{Channel, Entropy, Keys, SealError, TargetHandshake};
use slackwater_keys::AllowList;
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
    use slackwater_wire::Incarnation;
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
}
