//! A client's requests alone: what it asks before it reads or writes, and nothing of the reading and writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use slackwater_mq::{
    Address, Answer, Builder, ConnectOptions, ConnectionId, Options, RequestOptions, Running,
};
use slackwater_wire::{
    Answered, Asked, Chain, ClientId, Epoch, Get, Hello, Hold, Key, Lookup, OperationId, PutConfig,
    PutEntry, PutStart, PutStarted, Reply, Request, Tenant, Welcome, body, limits,
};
use slackwater_zmtp::Limits;

use super::{ClusterError, failed};

pub(super) struct Caller {
    running: Arc<Running>,
    to: ConnectionId,
    client: ClientId,
    epoch: Epoch,
    operations: u64,
}

/// Callers of this process, so that each is a client of its own.
static CALLERS: AtomicU64 = AtomicU64::new(0);

impl Caller {
    /// A client with a message layer of its own.
    pub(super) fn connect(address: &Address) -> Result<Self, ClusterError> {
        let mut caller = Self::link(&Arc::new(Self::layer()?), address)?;
        caller.greet()?;
        Ok(caller)
    }

    /// A message layer, which several may share.
    pub(super) fn layer() -> Result<Running, ClusterError> {
        let bytes = 2 * limits::REQUEST_BYTES_MAX;
        let layer = Builder::new(Options {
            limits: Limits {
                frame_bytes: bytes as u64,
                message_bytes: bytes as u64,
                ..Limits::default()
            },
            queue_bytes: 2 * bytes,
            ephemeral_ids: true,
            ..Options::default()
        })
        .start();
        layer.map_err(failed)
    }

    /// A link of which the master knows no client yet.
    pub(super) fn link(running: &Arc<Running>, address: &Address) -> Result<Self, ClusterError> {
        let timeout = Some(Duration::from_secs(10));
        let to = running.connect_wait(
            address,
            &ConnectOptions {
                timeout,
                // As clients on the master's host do.
                beside: true,
                ..ConnectOptions::default()
            },
        );
        let number = CALLERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            to: to.map_err(failed)?,
            running: Arc::clone(running),
            client: ClientId(1 << 63 | u64::from(std::process::id()) << 20 | number),
            epoch: Epoch(0),
            operations: 0,
        })
    }

    /// Says who it is.
    pub(super) fn greet(&mut self) -> Result<(), ClusterError> {
        let hello = Hello {
            epoch: self.epoch,
            client: self.client,
            host: None,
        };
        let welcome: Welcome = self.exchange("pool.hello", &hello)?;
        self.epoch = welcome.epoch;
        Ok(())
    }

    /// Looks keys up, each of which is there.
    pub(super) fn look_up(&mut self, keys: Vec<Key>) -> Result<(), ClusterError> {
        let count = keys.len();
        are_found(&self.ask(look_up(keys))?, count)
    }

    /// Looks keys up, each of which is there, each by a request of its own, and all at once.
    pub(super) fn look_up_each(&mut self, keys: Vec<Key>) -> Result<(), ClusterError> {
        let (told, answers) = channel();
        let options = RequestOptions {
            inline: true,
            ..RequestOptions::default()
        };
        let asked = keys.len();
        for key in keys {
            let body = body::encode(&self.asked(look_up(vec![key]))).map_err(failed)?;
            let told = told.clone();
            let heard = move |answer| {
                // The receiver is gone after the first that fails.
                let _ = told.send(answer);
            };
            (self.running).request(self.to, "pool.request", [body], &options, heard);
        }
        for answer in answers.iter().take(asked) {
            let answer: Answer = answer.map_err(failed)?;
            let answered = body::decode(answer.part(0).unwrap_or_default());
            are_found(&answered.map_err(failed)?, 1)?;
        }
        Ok(())
    }

    /// Begins a put and gives it up, so that the master keeps what it answered.
    pub(super) fn put_nothing(&mut self) -> Result<(), ClusterError> {
        let key = Key::new(format!("of-{}", self.client).as_bytes()).map_err(failed)?;
        let bytes = 64;
        let started = self.ask(Request::PutStart(PutStart {
            tenant: Tenant::DEFAULT,
            entries: vec![PutEntry {
                key: key.clone(),
                bytes,
            }],
            chain: Chain::default(),
            config: PutConfig::default(),
        }))?;
        let version = match &started.reply {
            Reply::PutStart(started) => match started[..] {
                [PutStarted::Granted { version, .. }] => version,
                _ => return Err(failed(format!("a put did not begin: {started:?}"))),
            },
            other => return Err(failed(format!("a put did not begin: {other:?}"))),
        };
        self.ask(Request::PutRevoke {
            tenant: Tenant::DEFAULT,
            puts: vec![(key, version)],
        })?;
        Ok(())
    }

    fn ask(&mut self, request: Request) -> Result<Answered, ClusterError> {
        let asked = self.asked(request);
        self.exchange("pool.request", &asked)
    }

    fn asked(&mut self, request: Request) -> Asked {
        self.operations += 1;
        Asked {
            epoch: self.epoch,
            client: self.client,
            operation: OperationId(self.operations),
            request,
            reads: body::LOOK_UPS,
            trace: None,
        }
    }

    fn exchange<A: body::Message>(
        &self,
        command: &str,
        asked: &impl body::Message,
    ) -> Result<A, ClusterError> {
        let options = RequestOptions {
            inline: true,
            ..RequestOptions::default()
        };
        let body = body::encode(asked).map_err(failed)?;
        let answer = self
            .running
            .request_wait(self.to, command, [body], &options)
            .map_err(failed)?;
        body::decode(answer.part(0).unwrap_or_default()).map_err(failed)
    }
}

fn look_up(keys: Vec<Key>) -> Request {
    Request::Get(Get {
        tenant: Tenant::DEFAULT,
        keys,
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only: false,
    })
}

/// Whether so many keys were found, with the right to read each.
fn are_found(answered: &Answered, count: usize) -> Result<(), ClusterError> {
    let found = match &answered.reply {
        Reply::Get(lookups) => lookups
            .iter()
            .filter(|lookup| matches!(lookup, Lookup::Found(_)))
            .count(),
        _ => 0,
    };
    match found == count && answered.capabilities.len() >= count {
        true => Ok(()),
        false => Err(failed(format!("{found} of {count} keys were found"))),
    }
}
