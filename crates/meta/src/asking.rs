//! What the nodes that are announcing are asked for: keys that look-ups miss just after a restart. Nodes announce them first.
//! Where a node does not hear of it, or too much is asked, the turn of each comes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
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
const ASKED_AT_ONCE: usize = 1024;
/// Keys for which a node is asked when it begins to announce.
pub(crate) const ASKED_FIRST: usize = 4 * ASKED_AT_ONCE;
/// Nothing is added to a message of so many bytes of names.
const BYTES_AT_ONCE: usize = 64 << 10;
/// The time between two messages: one costs as much as there are nodes.
const ASKED_APART: Duration = Duration::from_millis(5);
/// Keys that wait to be asked for.
const QUEUED_MAX: usize = 16 * ASKED_AT_ONCE;
/// Those of one client.
const QUEUED_OF_CLIENT_MAX: usize = QUEUED_MAX / 4;
/// Those that each client may have although others fill the queue, until it is several times as long.
const QUEUED_OF_ANY: usize = 64;
const QUEUED_AT_ALL: usize = 4 * QUEUED_MAX;
/// Keys that are remembered as asked for. Beyond, all are forgotten, and may be asked for again.
const REMEMBERED_MAX: usize = 4 * QUEUED_MAX;

impl Asking {
    /// How many more keys of a client may wait.
    pub(crate) fn room(&self, client: ClientId) -> usize {
        let own = self.queued.get(&client).map_or(0, VecDeque::len);
        let left = |of_client: usize, of_all: usize| {
            let of_client = of_client.saturating_sub(own);
            of_client.min(of_all.saturating_sub(self.count))
        };
        left(QUEUED_OF_CLIENT_MAX, QUEUED_MAX).max(left(QUEUED_OF_ANY, QUEUED_AT_ALL))
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

    /// Nobody waits any more.
    fn clear(&mut self) {
        *self = Self {
            from: self.from,
            ..Self::default()
        };
    }

    /// The next, of the client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<ObjectName> {
        let behind = (Excluded(self.last), Unbounded);
        let mut next = self.queued.range(behind).chain(&self.queued);
        self.last = *next.next()?.0;
        let Entry::Occupied(mut queue) = self.queued.entry(self.last) else {
            return None;
        };
        let name = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        }
        self.count -= usize::from(name.is_some());
        name
    }
}

/// As many as one message asks for.
fn message(mut next: impl FnMut() -> Option<ObjectName>) -> Vec<ObjectName> {
    let mut names = Vec::new();
    let mut bytes = 0;
    while names.len() < ASKED_AT_ONCE
        && bytes < BYTES_AT_ONCE
        && let Some(name) = next()
    {
        bytes += name.0.name().len() + name.1.as_bytes().len();
        names.push(name);
    }
    names
}

impl Master {
    /// Asks the nodes that are announcing for what was missed.
    pub(crate) fn ask_for_missed(&mut self, now: Instant) {
        if self.held.is_empty() && !self.held.asking.asked.is_empty() {
            self.held.asking.clear();
        }
        if self.held.asking.count == 0 {
            return;
        }
        if now >= self.held.asking.from {
            let segments = self.segments.iter().map(|(_, segment)| segment);
            let announcing = segments.filter(|it| it.announcing && it.presence == Presence::Here);
            let nodes: BTreeSet<NodeId> = announcing.map(|it| it.node).collect();
            let asking = &mut self.held.asking;
            if nodes.is_empty() {
                // One that comes is asked for what is missed by then.
                return asking.clear();
            }
            asking.from = now + ASKED_APART;
            let names = message(|| asking.pop());
            self.outbox
                .announce_first(nodes.into_iter().collect(), names);
        }
        if self.held.asking.count > 0 {
            self.due.set(Due::Asking, self.held.asking.from);
        }
    }

    /// The node of a segment has said some of what it holds, for the first time or the first time on a new link: what it was
    /// asked before, it may not have heard. It is asked for what is missed now.
    pub(crate) fn ask_announcing(&mut self, index: SegmentIndex) {
        let segment = self.segments.at(index);
        if segment.asked || !segment.announcing {
            return;
        }
        let node = segment.node;
        self.set_asked(node, true);
        self.held.asking.asked.clear();
        let mut missed = self.held.missed().into_iter();
        while missed.len() > 0 {
            let names = message(|| missed.next());
            self.outbox.announce_first(vec![node], names);
        }
    }

    /// Whether a node was asked for what was missed when it began to announce on its present link.
    pub(crate) fn set_asked(&mut self, node: NodeId, asked: bool) {
        for index in self.segments.of_node(node) {
            self.segments.at_mut(index).asked = asked;
        }
    }
}
