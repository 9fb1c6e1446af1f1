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
