use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_client::{Locations, Operations};
use slackwater_mq::{
    Address, AllowList, Builder, ConnectError as LinkError, ConnectOptions as ToConnect, Options,
    load_key,
};
use slackwater_transfer::{EngineConfig, SealConfig, TcpConfig};
use slackwater_wait::now;
use slackwater_wire::{ClientId, limits};
use slackwater_zmtp::Limits;

use crate::ConnectError;
use crate::client::Connected;
use crate::link::{Link, Unanswered};
use crate::tells::Telling;
use crate::waits::{Caller, here};

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Where its requests come in; with its public key (`curve://HOST:PORT/KEY`) everything between it and this client is
    /// encrypted.
    pub address: Address,
    /// The file of our secret key, for a server that proves one; refused with an address that names no key.
    pub key_file: Option<PathBuf>,
    /// Nothing but TCP, not even memory that is shared with a server of this host, or the Unix socket beside its address.
    pub force_tcp: bool,
    /// How long connecting may take: a server that is just being started is waited for.
    pub connect_timeout: Duration,
    /// How long a call may take that does not say.
    pub deadline: Duration,
    /// Most objects whose places are remembered until their leases end, so that they are read without asking the server;
    /// 0 to ask each time. Each takes some hundred bytes.
    pub locations: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            address: Address::tcp((Ipv4Addr::LOCALHOST, 50_051).into()),
            key_file: None,
            force_tcp: false,
            connect_timeout: Duration::from_secs(2),
            deadline: Duration::from_secs(10),
            locations: 16_384,
        }
    }
}

/// Pauses before a lost link is opened again.
const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(20), Duration::from_millis(500));
/// Messages of up to this many bytes are taken.
const MESSAGE_BYTES: u64 = 2 * limits::REQUEST_BYTES_MAX as u64;

/// Makes the link and the engine of a client.
pub(crate) fn connect(options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let address = &options.address;
    match (&address.key, &options.key_file) {
        (Some(_), None) => {
            let address = address.clone();
            return Err(ConnectError::NeedsKey { address });
        }
        // A caller that names a key means to be encrypted.
        (None, Some(_)) => {
            let address = address.clone();
            return Err(ConnectError::NeedsServerKey { address });
        }
        _ => {}
    }
    let keys = options.key_file.as_deref().map(load_key).transpose()?;
    let [name, seed] = random()?;
    let running = Builder::new(Options {
        keys: keys.clone(),
        limits: Limits {
            frame_bytes: MESSAGE_BYTES,
            message_bytes: MESSAGE_BYTES,
            ..Limits::default()
        },
        queue_bytes: 2 * MESSAGE_BYTES as usize,
        reconnect: RECONNECT,
        linger: Duration::from_millis(500),
        // Other processes may have the same key; a link that is named by it would take over from theirs.
        ephemeral_ids: true,
        ..Options::default()
    })
    .start()?;
    let until = now() + options.connect_timeout;
    let to = running
        .connect_wait(
            address,
            &ToConnect {
                timeout: Some(options.connect_timeout),
                beside: !options.force_tcp,
                ..ToConnect::default()
            },
        )
        .map_err(|error| no_server(address, error))?;
    let mut config = EngineConfig::new("client");
    config.force_tcp = options.force_tcp;
    config.tcp = TcpConfig {
        bind: Vec::new(),
        io_threads: 1,
        seal: keys.map(|keys| SealConfig {
            keys,
            clients: AllowList::default(),
        }),
        ..TcpConfig::default()
    };
    let engine = config.start()?;
    // Names below are the server's own; zero is none.
    let client = ClientId(name | 1 << 63);
    let link = Arc::new(Link::new(running.handle(), to, client, engine.clone()));
    here(link.greet(until, Caller::THREAD))
        .map_err(|unanswered| not_welcome(address, unanswered, &link))?;
    let operations = Operations::Counted {
        last: Arc::new(AtomicU64::new(0)),
        may_repeat: true,
    };
    let locations = Locations::new(options.locations);
    let telling = Telling::start(
        Arc::clone(&link),
        Rng::new(seed),
        operations.clone(),
        locations,
    )?;
    Ok(Connected {
        telling,
        link,
        engine,
        operations,
        seed,
        options: options.clone(),
        running,
    })
}

fn no_server(address: &Address, error: LinkError) -> ConnectError {
    let reason = match error {
        LinkError::Failed { failure, .. } => failure.to_string(),
        other @ LinkError::InsideLoop => other.to_string(),
    };
    not_there(address.clone(), reason)
}

fn not_there(address: Address, reason: String) -> ConnectError {
    match address.key {
        Some(_) => ConnectError::NoLink { address, reason },
        None => ConnectError::NoServer { address, reason },
    }
}

fn not_welcome(address: &Address, unanswered: Unanswered, link: &Link) -> ConnectError {
    let address = address.clone();
    match unanswered {
        Unanswered::Refused(code) => ConnectError::Refused { address, code },
        Unanswered::Foreign(reason) => ConnectError::Foreign { address, reason },
        Unanswered::Late | Unanswered::Lost | Unanswered::Cancelled => {
            not_there(address, link.last_failure(Instant::ZERO))
        }
    }
}

fn random() -> Result<[u64; 2], ConnectError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    let (one, two) = bytes.split_at(8);
    Ok([one, two].map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default())))
}
