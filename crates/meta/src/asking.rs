//! What the nodes that are announcing are asked for: keys that look-ups miss just after a restart. Nodes announce them first.
//! Where a node does not hear of it, or too much is asked, the turn of each comes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{Instant, Set};
use slackwater_wire::{ClientId, NodeId, ObjectName, Presence};

use crate::catalog::SegmentIndex;
use crate::master::{Due, Master};

/// The keys that nodes are still to be asked for.
#[derive(Default)]
pub(crate) struct Asking {
    /// Of each client, in the order in which it missed them.
    queued: BTreeMap<ClientId, VecDeque<ObjectName>>,
    /// How many there are of all clients.
    count: usize,
    /// The client whose turn was last.
    last: ClientId,
    /// Hashes of keys that the nodes which are announcing were asked for, or are about to be.
    asked: Set<u64>,
    /// Nodes are not asked again before.
    from: Instant,
}

/// Keys for which nodes are asked at once.
pub(crate) const ASKED_AT_ONCE: usize = 1024;
/// Nothing is added to a message of so many bytes of names.
const BYTES_AT_ONCE: usize = 64 << 10;
/// The time between two messages: one costs as much as there are nodes.
const ASKED_APART: Duration = Duration::from_millis(5);
/// Keys that wait to be asked for.
const QUEUED_MAX: usize = 16 * ASKED_AT_ONCE;
/// Those of one client.
const QUEUED_OF_CLIENT_MAX: usize = QUEUED_MAX / 4;
/// Keys that are remembered as asked for. Of more, some are asked for again.
const REMEMBERED_MAX: usize = 4 * QUEUED_MAX;

impl Asking {
    /// How many more keys of a client may wait.
    pub(crate) fn room(&self, client: ClientId) -> usize {
        let own = self.queued.get(&client).map_or(0, VecDeque::len);
        let all = QUEUED_MAX - self.count;
        all.min(QUEUED_OF_CLIENT_MAX - own)
    }

    /// Whether nodes are to be asked for a key of this hash: from now on they are.
    pub(crate) fn is_new(&mut self, hash: u64) -> bool {
        if self.asked.len() >= REMEMBERED_MAX {
            self.asked.clear();
        }
        self.asked.insert(hash)
    }

    /// Adds keys that a client misses, within [`Self::room`].
    pub(crate) fn add(&mut self, client: ClientId, names: Vec<ObjectName>) {
        if !names.is_empty() {
            self.count += names.len();
            self.queued.entry(client).or_default().extend(names);
        }
    }

    /// A client is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        let queued = self.queued.remove(&client);
        self.count -= queued.map_or(0, |queued| queued.len());
    }

    /// Takes as much as is asked for at once, from all clients in turns.
    fn take(&mut self) -> Vec<ObjectName> {
        let mut names = Vec::new();
        let mut bytes = 0;
        while names.len() < ASKED_AT_ONCE && bytes < BYTES_AT_ONCE {
            let behind = ClientId(self.last.0.saturating_add(1))..;
            let next = self.queued.range(behind).next();
            let Some(client) = next.or_else(|| self.queued.iter().next()).map(|it| *it.0) else {
                break;
            };
            self.last = client;
            let queue = self.queued.get_mut(&client);
            let name = queue.and_then(VecDeque::pop_front);
            if self.queued.get(&client).is_some_and(VecDeque::is_empty) {
                self.queued.remove(&client);
            }
            let Some(name) = name else { continue };
            self.count -= 1;
            bytes += name.0.name().len() + name.1.as_bytes().len();
            names.push(name);
        }
        names
    }
}

impl Master {
    /// Asks the nodes that are announcing for what was missed.
    pub(crate) fn ask_for_missed(&mut self, now: Instant) {
        let asking = &mut self.held.asking;
        if asking.count == 0 {
            return;
        }
        if now >= asking.from {
            let names = asking.take();
            let segments = self.segments.iter().map(|(_, segment)| segment);
            let announcing = segments.filter(|it| it.announcing && it.presence == Presence::Here);
            let nodes: BTreeSet<NodeId> = announcing.map(|it| it.node).collect();
            // One that is not there is asked for what is missed by then when it is.
            if !nodes.is_empty() {
                self.held.asking.from = now + ASKED_APART;
                self.outbox
                    .announce_first(nodes.into_iter().collect(), names);
            }
        }
        if self.held.asking.count > 0 {
            self.due.set(Due::Asking, self.held.asking.from);
        }
    }

    /// The node of a segment has said some of what it holds, for the first time or the first time since it was away: what it
    /// was asked before, it has not heard. It is asked for everything that is missed now.
    pub(crate) fn ask_announcing(&mut self, index: SegmentIndex) {
        let segment = self.segments.at(index);
        if segment.asked {
            return;
        }
        let node = segment.node;
        self.set_asked(node, true);
        self.held.asking.asked.clear();
        let mut missed = self.held.missed().into_iter().peekable();
        while missed.peek().is_some() {
            let names = missed.by_ref().take(ASKED_AT_ONCE).collect();
            self.outbox.announce_first(vec![node], names);
        }
    }

    /// Whether a node that is announcing has heard what is missed.
    pub(crate) fn set_asked(&mut self, node: NodeId, asked: bool) {
        for index in self.segments.of_node(node) {
            self.segments.at_mut(index).asked = asked;
        }
    }
}
