use std::sync::{Arc, PoisonError};

use slackwater_zmtp::{LinkConfig, Mechanism, PublicKey, Side, SocketType};

use crate::context::Context;
use crate::frames::PROPERTY;

/// What tells the configuration of one outgoing link from that of another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutgoingKind {
    pub(crate) socket: SocketType,
    /// The key of the peer; plain without.
    pub(crate) server: Option<PublicKey>,
    /// Whether no routing id is announced.
    pub(crate) ephemeral: bool,
}

impl Context {
    /// The configuration of an outgoing link, the same value as for the link before if that is of the same kind: of
    /// thousands of links each reads it with every message, and one copy stays in the cache.
    pub(crate) fn outgoing_config(&self, kind: OutgoingKind) -> Arc<LinkConfig> {
        let mut latest = self
            .latest_config
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, config)) = latest.as_ref().filter(|(of, _)| *of == kind) {
            return Arc::clone(config);
        }
        let own = || [&b"L"[..], self.keys.public().as_bytes()].concat();
        let (mechanism, identity) = match kind.server {
            // Anybody could claim an id on a plain link, so none is announced.
            None => (Mechanism::Null(Side::Connect), Vec::new()),
            Some(server) => {
                let mechanism = Mechanism::CurveClient {
                    keys: self.keys.clone(),
                    server,
                };
                (mechanism, if kind.ephemeral { Vec::new() } else { own() })
            }
        };
        let config = self.config(kind.socket, mechanism, identity);
        *latest = Some((kind, Arc::clone(&config)));
        config
    }

    /// The configuration of what a listener takes in.
    pub(crate) fn incoming_config(&self, socket: SocketType, encrypted: bool) -> Arc<LinkConfig> {
        let mechanism = match encrypted {
            true => Mechanism::CurveServer(self.keys.clone()),
            false => Mechanism::Null(Side::Listen),
        };
        self.config(socket, mechanism, Vec::new())
    }

    fn config(
        &self,
        socket: SocketType,
        mechanism: Mechanism,
        identity: Vec<u8>,
    ) -> Arc<LinkConfig> {
        Arc::new(LinkConfig {
            socket,
            mechanism,
            identity,
            properties: vec![(PROPERTY.to_owned(), b"1".to_vec())],
            limits: self.options.limits,
            heartbeat: self.options.heartbeat,
        })
    }
}
