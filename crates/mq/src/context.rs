use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use slackwater_base::Map;
use slackwater_net::Loop;
use slackwater_zmtp::{KeyPair, LinkConfig, Message, PublicKey, Routes};

use crate::deliver::{SendError, Sending};
use crate::jobs::Jobs;
use crate::link_config::OutgoingKind;
use crate::registry::Registry;
use crate::resolve::{Lookups, Resolve};
use crate::shard::{LoopCommand, Shard};
use crate::{Address, Metrics, Options, RequestError, Route};

/// How to find a node.
pub(crate) type Lookup = Arc<dyn Fn(&PublicKey) -> Option<Address> + Send + Sync>;
/// Called with every event of a link.
pub(crate) type OnEvent = Arc<dyn Fn(LinkEvent) + Send + Sync>;

/// One link: which loop it belongs to and its number, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub(crate) shard: u16,
    pub(crate) serial: u64,
}

/// The destination of a message. Usable on any thread and at any time: sending to one that is gone is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionId {
    /// A node of the fleet, whichever links there are to it; one is opened when there is none.
    Node(PublicKey),
    /// One link.
    Link(LinkId),
}

/// What happens to links.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// A link is up.
    Up {
        /// The destination that leads to the link.
        connection: ConnectionId,
        /// The address of the peer, as text.
        remote: String,
        /// The key that the peer has proven; none on a plain link.
        key: Option<PublicKey>,
    },
    /// A link that was up is down.
    Down {
        /// The destination that leads to the link.
        connection: ConnectionId,
        /// The cause, for people.
        reason: String,
        /// Whether it is being opened again.
        reconnecting: bool,
    },
    /// This side refused a peer, or it failed before it was up.
    Refused {
        /// The address of the peer, as text.
        remote: String,
        /// The cause, for people.
        reason: String,
    },
}

/// The origin of a message, for its handler and the replies.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) link: LinkId,
    pub(crate) connection: ConnectionId,
    pub(crate) remote: String,
    pub(crate) key: Option<PublicKey>,
    /// Whether the peer knows the extension texts.
    pub(crate) extensions: bool,
}

/// The links of each node, and whether the node opened them.
type NodeLinks = Map<PublicKey, Vec<(LinkId, Opened)>>;

/// Who opened a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Here,
    There,
}

/// The state that all loops and handles of one message layer share.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) keys: KeyPair,
    pub(crate) registry: Registry,
    pub(crate) jobs: Jobs,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) nodes: ArcSwap<BTreeSet<PublicKey>>,
    pub(crate) lookup: Option<Lookup>,
    pub(crate) resolver: Resolve,
    pub(crate) lookups: Lookups,
    pub(crate) on_event: Option<OnEvent>,
    /// Emptied by the stop, which breaks the reference cycle of context and loops.
    pub(crate) loops: ArcSwap<Vec<Loop<Shard>>>,
    /// The configuration of the link that was opened last.
    pub(crate) latest_config: Mutex<Option<(OutgoingKind, Arc<LinkConfig>)>>,
    links_of_nodes: Mutex<NodeLinks>,
    routes: Mutex<Routes<LinkId>>,
    serials: AtomicU64,
    turn: AtomicU64,
}

impl Context {
    pub(crate) fn new(
        builder: crate::Builder,
        keys: KeyPair,
        jobs: Jobs,
        metrics: Arc<Metrics>,
    ) -> Self {
        let plain_handover = builder.options.plain_handover;
        Self {
            options: builder.options,
            keys,
            registry: builder.registry,
            jobs,
            metrics,
            nodes: ArcSwap::default(),
            lookup: builder.lookup,
            resolver: builder.resolver,
            lookups: Lookups::default(),
            on_event: builder.on_event,
            loops: ArcSwap::default(),
            latest_config: Mutex::default(),
            links_of_nodes: Mutex::default(),
            routes: Mutex::new(Routes::new(plain_handover)),
            serials: AtomicU64::new(1),
            turn: AtomicU64::new(0),
        }
    }

    /// Gives a command to one loop. After the stop it is dropped, and a caller that waits for it is told so.
    pub(crate) fn order(&self, shard: u16, order: LoopCommand) {
        if let Some(owner) = self.loops.load().get(usize::from(shard)) {
            owner.command(order);
        }
    }

    /// Gives a command to every loop.
    pub(crate) fn order_all(&self, order: impl Fn() -> LoopCommand) {
        self.loops
            .load()
            .iter()
            .for_each(|owner| owner.command(order()));
    }

    /// Sends a message on a link.
    pub(crate) fn send(&self, link: LinkId, sending: Sending) {
        self.order(
            link.shard,
            LoopCommand::Send(link.serial, Box::new(sending)),
        );
    }

    /// Reports to the waiter and the failure callback of a message why it was not delivered.
    pub(crate) fn fail(&self, sending: Sending, error: SendError) {
        if let Some((waiter, _)) = sending.waiter {
            let error = match error {
                SendError::Gone => RequestError::Gone,
                SendError::Full => RequestError::Full,
            };
            waiter.tell(&self.jobs, Err(error));
        }
        if let Some(on_failure) = sending.on_failure {
            // When even callbacks queue up beyond their limit, the counters tell.
            let _ = self.jobs.reply(Box::new(move || on_failure(error)));
        }
    }

    /// Sends a message without a waiter on a link.
    pub(crate) fn send_plainly(&self, link: LinkId, message: Message) {
        self.order(link.shard, LoopCommand::SendPlainly(link.serial, message));
    }

    pub(crate) fn new_link(&self, shard: u16) -> LinkId {
        LinkId {
            shard,
            serial: self.serials.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The loop whose turn it is to get an outgoing link.
    pub(crate) fn next_shard(&self) -> u16 {
        let loops = self.loops.load().len().max(1) as u64;
        (self.turn.fetch_add(1, Ordering::Relaxed) % loops) as u16
    }

    pub(crate) fn is_node(&self, key: Option<&PublicKey>) -> bool {
        key.is_some_and(|key| self.nodes.load().contains(key))
    }

    /// Gives an event to the listener of [`Builder::on_link`](crate::Builder::on_link), on a worker.
    pub(crate) fn tell(&self, event: LinkEvent) {
        let Some(hear) = &self.on_event else { return };
        let hear = Arc::clone(hear);
        // A listener this far behind loses events; the counters still count them.
        let _ = self.jobs.reply(Box::new(move || hear(event)));
    }

    /// The links of a node that a message may take.
    pub(crate) fn links_of(&self, key: &PublicKey, route: Route) -> Vec<LinkId> {
        let fits = |opened: Opened| match route {
            Route::Any | Route::OnlyConnected => true,
            Route::OnlyInbound => opened == Opened::There,
            Route::OnlyOutbound => opened == Opened::Here,
        };
        let all = self.node_links();
        let links = all.get(key).into_iter().flatten();
        links
            .filter(|(_, opened)| fits(*opened))
            .map(|(link, _)| *link)
            .collect()
    }

    pub(crate) fn add_link_of(&self, key: PublicKey, link: LinkId, opened: Opened) {
        let mut all = self.node_links();
        let links = all.entry(key).or_default();
        if !links.iter().any(|(known, _)| *known == link) {
            links.push((link, opened));
        }
    }

    pub(crate) fn remove_link_of(&self, key: &PublicKey, link: LinkId) {
        let mut all = self.node_links();
        if let Some(links) = all.get_mut(key) {
            links.retain(|(known, _)| *known != link);
            if links.is_empty() {
                all.remove(key);
            }
        }
    }

    pub(crate) fn routes(&self) -> MutexGuard<'_, Routes<LinkId>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_links(&self) -> MutexGuard<'_, NodeLinks> {
        self.links_of_nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
