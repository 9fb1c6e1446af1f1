use slackwater_mq::{Address, Builder, Level, ListenOptions, Mq, Options};
use slackwater_net::{Endpoint, PreAuthLimits, UnixAccess};
use slackwater_zmtp::{KeyPair, SecretKey};

use super::BenchError;
use crate::process::tell;

/// A message layer for one side: a fixed key each, links without ids, no limits on unauthenticated peers.
pub(super) fn builder(seed: u8, heartbeats: bool) -> Builder {
    Builder::new(options_of(seed, heartbeats))
}

/// The options of [`builder`].
pub(super) fn options_of(seed: u8, heartbeats: bool) -> Options {
    let pre_auth = PreAuthLimits {
        total: 1 << 20,
        per_source: 1 << 20,
        rate: 1 << 30,
        rate_per_source: 1 << 30,
    };
    let keys = KeyPair::of(SecretKey::from_bytes([seed; 32]));
    let heartbeat = Options::default().heartbeat.filter(|_| heartbeats);
    Options {
        keys: Some(keys),
        ephemeral_ids: true,
        pre_auth,
        heartbeat,
        ..Options::default()
    }
}

/// Listens on loopback and prints the address for the parent.
pub(super) fn listen(mq: &Mq, mechanism: &str) -> Result<(), BenchError> {
    let encrypted = mechanism == "CURVE";
    let listen = ListenOptions {
        admission: slackwater_mq::Admission::Everybody(Level::Basic),
        encrypted,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    };
    let any = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    let endpoint = mq.listen(&any, &listen).map_err(mq_error)?;
    Ok(tell(&format!(
        "listening {}",
        Address::of(&endpoint, encrypted.then(|| mq.public_key()))
    ))?)
}

pub(super) fn mq_error(error: impl std::fmt::Display) -> BenchError {
    BenchError::Mq(error.to_string())
}
