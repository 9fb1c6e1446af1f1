//! Look-ups alone: what a client asks before it reads, and nothing of the reading.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slackwater_mq::{
    Address, Builder, ConnectOptions, ConnectionId, Options, RequestOptions, Running,
};
use slackwater_wire::{
    Answered, Asked, Chain, ClientId, Epoch, Get, Hello, Hold, Key, Lookup, OperationId, Reply,
    Request, Tenant, Welcome, body, limits,
};
use slackwater_zmtp::Limits;

use super::{ClusterError, failed};

pub(super) struct Caller {
    running: Running,
    to: ConnectionId,
    client: ClientId,
    epoch: Epoch,
    operations: u64,
}

/// Callers of this process, so that each is a client of its own.
static CALLERS: AtomicU64 = AtomicU64::new(0);

impl Caller {
    pub(super) fn connect(address: &Address) -> Result<Self, ClusterError> {
        let bytes = 2 * limits::REQUEST_BYTES_MAX;
        let running = Builder::new(Options {
            limits: Limits {
                frame_bytes: bytes as u64,
                message_bytes: bytes as u64,
                ..Limits::default()
            },
            queue_bytes: 2 * bytes,
            ephemeral_ids: true,
            ..Options::default()
        })
        .start()
        .map_err(failed)?;
        let timeout = Some(Duration::from_secs(10));
        let to = running.connect_wait(
            address,
            &ConnectOptions {
                timeout,
                ..ConnectOptions::default()
            },
        );
        let number = CALLERS.fetch_add(1, Ordering::Relaxed);
        let mut caller = Self {
            to: to.map_err(failed)?,
            running,
            client: ClientId(1 << 63 | u64::from(std::process::id()) << 20 | number),
            epoch: Epoch(0),
            operations: 0,
        };
        let hello = Hello {
            epoch: caller.epoch,
            client: caller.client,
            host: None,
        };
        let welcome: Welcome = caller.exchange("pool.hello", &hello)?;
        caller.epoch = welcome.epoch;
        Ok(caller)
    }

    /// Looks keys up, each of which is there.
    pub(super) fn look_up(&mut self, keys: Vec<Key>) -> Result<(), ClusterError> {
        let count = keys.len();
        self.operations += 1;
        let asked = Asked {
            epoch: self.epoch,
            client: self.client,
            operation: OperationId(self.operations),
            request: Request::Get(Get {
                tenant: Tenant::DEFAULT,
                keys,
                chain: Chain::default(),
                hold: Hold::Lease,
                prefix_only: false,
            }),
            reads: body::LOOK_UPS,
            trace: None,
        };
        let answered: Answered = self.exchange("pool.request", &asked)?;
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
