use zeroize::Zeroizing;

use super::{Session, counter_nonce, counter_of, key_at, random_nonce};
use crate::crypto::{self, Shared, TAG_BYTES};
use crate::{Cause, Entropy, KeyPair, PublicKey};

/// A client that has sent HELLO.
pub(crate) struct AwaitWelcome {
    ephemeral: Zeroizing<[u8; 32]>,
    shared: Shared,
    vouch_nonce: [u8; 16],
}

/// A client that has sent INITIATE.
pub(crate) struct AwaitReady {
    shared: Shared,
}

const WELCOME_BYTES: usize = 168;
const HELLO_COUNTER: u64 = 1;
const INITIATE_COUNTER: u64 = 2;

impl AwaitWelcome {
    /// Starts the handshake: the state and the body of HELLO.
    pub(crate) fn start(server: &PublicKey, entropy: &Entropy) -> Result<(Self, Vec<u8>), Cause> {
        let ephemeral = Zeroizing::new(entropy.ephemeral());
        let shared = Shared::agree(server.as_bytes(), &ephemeral)
            .ok_or(Cause::BoxClosed { what: "HELLO" })?;
        let mut hello = Vec::with_capacity(200);
        hello.extend_from_slice(b"\x05HELLO\x01\x00");
        hello.extend_from_slice(&[0; 72]);
        hello.extend_from_slice(&crypto::public_of(&ephemeral));
        hello.extend_from_slice(&HELLO_COUNTER.to_be_bytes());
        shared.seal(
            &counter_nonce(b"CurveZMQHELLO---", HELLO_COUNTER),
            &[&[0; 64]],
            &mut hello,
        );
        Ok((
            Self {
                ephemeral,
                shared,
                vouch_nonce: entropy.nonce(0),
            },
            hello,
        ))
    }

    /// Takes WELCOME of `server` and answers with INITIATE of `keys` around `metadata`.
    pub(crate) fn welcome(
        &self,
        keys: &KeyPair,
        server: &PublicKey,
        body: &mut [u8],
        metadata: &[u8],
    ) -> Result<(AwaitReady, Vec<u8>), Cause> {
        if body.len() != WELCOME_BYTES || !body.starts_with(b"\x07WELCOME") {
            return Err(Cause::Malformed { what: "WELCOME" });
        }
        let (head, sealed) = body.split_at_mut(24);
        let nonce = random_nonce(b"WELCOME-", &std::array::from_fn(|i| head[8 + i]));
        if !self.shared.open(&nonce, sealed) {
            return Err(Cause::BoxClosed { what: "WELCOME" });
        }
        let server_ephemeral = key_at(sealed, TAG_BYTES);
        let cookie = &sealed[TAG_BYTES + 32..];
        let closed = Cause::BoxClosed { what: "WELCOME" };
        let vouching =
            Shared::agree(&server_ephemeral, keys.secret().expose()).ok_or(closed.clone())?;
        let session = Shared::agree(&server_ephemeral, &self.ephemeral).ok_or(closed)?;

        let mut vouch = Vec::with_capacity(80);
        let vouched: [&[u8]; 2] = [&crypto::public_of(&self.ephemeral), server.as_bytes()];
        vouching.seal(
            &random_nonce(b"VOUCH---", &self.vouch_nonce),
            &vouched,
            &mut vouch,
        );

        let mut initiate = Vec::with_capacity(257 + metadata.len());
        initiate.extend_from_slice(b"\x08INITIATE");
        initiate.extend_from_slice(cookie);
        initiate.extend_from_slice(&INITIATE_COUNTER.to_be_bytes());
        let client = keys.public();
        let plain: [&[u8]; 4] = [client.as_bytes(), &self.vouch_nonce, &vouch, metadata];
        session.seal(
            &counter_nonce(b"CurveZMQINITIATE", INITIATE_COUNTER),
            &plain,
            &mut initiate,
        );
        Ok((AwaitReady { shared: session }, initiate))
    }
}

impl AwaitReady {
    /// Takes READY: the session, and the range of the server's metadata in `body`.
    pub(crate) fn ready(&self, body: &mut [u8]) -> Result<(Box<Session>, usize), Cause> {
        if body.len() < 30 || !body.starts_with(b"\x05READY") {
            return Err(Cause::Malformed { what: "READY" });
        }
        let (head, sealed) = body.split_at_mut(14);
        let counter = super::rising(counter_of(&head[6..]), 0)?;
        if !self
            .shared
            .open(&counter_nonce(b"CurveZMQREADY---", counter), sealed)
        {
            return Err(Cause::BoxClosed { what: "READY" });
        }
        Ok((
            Session::of_client(&self.shared, INITIATE_COUNTER, counter),
            14 + TAG_BYTES,
        ))
    }
}
