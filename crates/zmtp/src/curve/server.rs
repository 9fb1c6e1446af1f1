use zeroize::Zeroizing;

use super::{Session, counter_nonce, counter_of, key_at, random_nonce, rising};
use crate::crypto::{self, Shared, TAG_BYTES};
use crate::{Cause, Entropy, KeyPair, PublicKey};

/// A server that has sent WELCOME. It keeps s' and C' itself; the cookie is only compared, so it is good for this
/// connection, once, and no longer than the handshake lasts.
pub(crate) struct AwaitInitiate {
    server: PublicKey,
    ephemeral: Zeroizing<[u8; 32]>,
    client_ephemeral: [u8; 32],
    cookie: [u8; COOKIE_BYTES],
    seen: u64,
}

/// A server that has authenticated the client's key.
pub(crate) struct Initiated {
    shared: Shared,
    seen: u64,
    /// The client's long-term key, proven by its vouch.
    pub(crate) client: PublicKey,
    /// The range of the client's metadata in the body of INITIATE.
    pub(crate) metadata_at: usize,
}

const READY_COUNTER: u64 = 1;
const HELLO_BYTES: usize = 200;
const COOKIE_BYTES: usize = 96;
const INITIATE_BYTES: usize = 257;

/// Takes HELLO for `keys` and answers with WELCOME.
pub(crate) fn hello(
    keys: &KeyPair,
    entropy: &Entropy,
    body: &mut [u8],
) -> Result<(AwaitInitiate, Vec<u8>), Cause> {
    if body.len() != HELLO_BYTES || !body.starts_with(b"\x05HELLO\x01\x00") {
        return Err(Cause::Malformed { what: "HELLO" });
    }
    let (head, sealed) = body.split_at_mut(120);
    let client_ephemeral = key_at(head, 80);
    let counter = rising(counter_of(&head[112..]), 0)?;
    let closed = Cause::BoxClosed { what: "HELLO" };
    let shared = Shared::agree(&client_ephemeral, keys.secret().expose()).ok_or(closed.clone())?;
    if !shared.open(&counter_nonce(b"CurveZMQHELLO---", counter), sealed)
        || sealed[TAG_BYTES..] != [0; 64]
    {
        return Err(closed);
    }

    let ephemeral = Zeroizing::new(entropy.ephemeral());
    let mut cookie = Vec::with_capacity(COOKIE_BYTES);
    cookie.extend_from_slice(&entropy.nonce(1));
    let mut inside = Zeroizing::new([0u8; 64]);
    inside[..32].copy_from_slice(&client_ephemeral);
    inside[32..].copy_from_slice(ephemeral.as_slice());
    let key = Zeroizing::new(entropy.cookie_key());
    crypto::seal_secret(
        &key,
        &random_nonce(b"COOKIE--", &entropy.nonce(1)),
        inside.as_slice(),
        &mut cookie,
    );

    let mut welcome = Vec::with_capacity(168);
    welcome.extend_from_slice(b"\x07WELCOME");
    welcome.extend_from_slice(&entropy.nonce(2));
    let plain: [&[u8]; 2] = [&crypto::public_of(&ephemeral), &cookie];
    shared.seal(
        &random_nonce(b"WELCOME-", &entropy.nonce(2)),
        &plain,
        &mut welcome,
    );
    let next = AwaitInitiate {
        server: keys.public(),
        ephemeral,
        client_ephemeral,
        cookie: std::array::from_fn(|i| cookie[i]),
        seen: counter,
    };
    Ok((next, welcome))
}

impl AwaitInitiate {
    /// Takes INITIATE: cookie of this connection, vouch for C' and our S.
    pub(crate) fn initiate(&self, body: &mut [u8]) -> Result<Initiated, Cause> {
        if body.len() < INITIATE_BYTES || !body.starts_with(b"\x08INITIATE") {
            return Err(Cause::Malformed { what: "INITIATE" });
        }
        let (head, sealed) = body.split_at_mut(113);
        if !crypto::equal(&head[9..105], &self.cookie) {
            return Err(Cause::BoxClosed { what: "cookie" });
        }
        let counter = rising(counter_of(&head[105..]), self.seen)?;
        let closed = Cause::BoxClosed { what: "INITIATE" };
        let shared =
            Shared::agree(&self.client_ephemeral, &self.ephemeral).ok_or(closed.clone())?;
        if !shared.open(&counter_nonce(b"CurveZMQINITIATE", counter), sealed) {
            return Err(closed);
        }
        let plain = &mut sealed[TAG_BYTES..];
        let client = key_at(plain, 0);
        let vouch_nonce = random_nonce(b"VOUCH---", &std::array::from_fn(|i| plain[32 + i]));
        self.check_vouch(&client, &vouch_nonce, &mut plain[48..128])?;
        Ok(Initiated {
            shared,
            seen: counter,
            client: PublicKey::from_bytes(client),
            metadata_at: 113 + TAG_BYTES + 128,
        })
    }

    fn check_vouch(
        &self,
        client: &[u8; 32],
        nonce: &crypto::Nonce,
        vouch: &mut [u8],
    ) -> Result<(), Cause> {
        let closed = Cause::BoxClosed { what: "vouch" };
        let vouching = Shared::agree(client, &self.ephemeral).ok_or(closed.clone())?;
        let opens = vouching.open(nonce, vouch);
        let said = &vouch[TAG_BYTES..];
        let right = crypto::equal(&said[..32], &self.client_ephemeral)
            && crypto::equal(&said[32..], self.server.as_bytes());
        if opens && right { Ok(()) } else { Err(closed) }
    }
}

impl Initiated {
    /// The session, and the body of READY around our `metadata`.
    pub(crate) fn ready(&self, metadata: &[u8]) -> (Box<Session>, Vec<u8>) {
        let mut ready = Vec::with_capacity(30 + metadata.len());
        ready.extend_from_slice(b"\x05READY");
        ready.extend_from_slice(&READY_COUNTER.to_be_bytes());
        self.shared.seal(
            &counter_nonce(b"CurveZMQREADY---", READY_COUNTER),
            &[metadata],
            &mut ready,
        );
        (
            Session::of_server(&self.shared, READY_COUNTER, self.seen),
            ready,
        )
    }
}
