//! What a master must know again after a restart: few and small facts, which its shell keeps durably.
//!
//! A master that was [restored](Master::restore) notes each change of them. What acknowledges a change may be answered when
//! the notes that were taken by then are durable.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::Instant;
use slackwater_wire::{Incarnation, JobId, JobState, NodeId, SegmentId, Tenant, Version};

use crate::master::{Due, Master};

/// A fact to be kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// This node belongs to the pool.
    Node {
        /// The node.
        node: NodeId,
        /// Whether it has an SSD, so that what it holds can come back at any time.
        ssd: bool,
    },
    /// This node does not belong to the pool any more. Nothing is owed to it.
    Forget(NodeId),
    /// A tenant has this quota of memory and SSD in bytes, or none any more.
    Quota {
        /// The tenant.
        tenant: Tenant,
        /// The quota.
        quota: Option<[u64; 2]>,
    },
    /// A removal that a node has not heard of.
    Owed {
        /// The node.
        node: NodeId,
        /// What was removed, and up to which version.
        debt: Debt,
    },
    /// Nothing is owed to this node any more.
    Paid(NodeId),
    /// A job was begun, or is over.
    Job(Box<KeptJob>),
    /// A job that was over long ago is not remembered any more.
    ForgetJob(JobId),
}

/// A job as it was when it was noted.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptJob {
    /// What it is to do, and how far it was.
    pub state: JobState,
    /// The segments that it empties, in the lives of their nodes.
    pub drained: Vec<(SegmentId, Incarnation)>,
    /// Whether it was cancelled, so that they take new values.
    pub released: bool,
}

/// Versions that are dead wherever a node still has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The keys.
    pub of: Dead,
    /// The newest dead version.
    pub up_to: Version,
}

/// Keys whose versions are dead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dead {
    /// All keys. Takes the place of everything that is owed to the node.
    All,
    /// All keys of a tenant. Takes the place of everything that is owed of the tenant.
    Tenant(Tenant),
    /// The keys of a tenant in which a regular expression is found.
    Pattern(Tenant, String),
    /// The key of a tenant that has this hash.
    Key(Tenant, u64),
}

/// What the notes of a master add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journaled {
    /// Whether a node was ever forgotten: one that is not known may come back then with what was removed.
    pub forgot: bool,
    /// The nodes of the pool, and whether they have an SSD.
    pub nodes: BTreeMap<NodeId, bool>,
    /// The tenants' quotas of memory and SSD in bytes.
    pub quotas: BTreeMap<Tenant, [u64; 2]>,
    /// What is owed to nodes: the newest dead versions.
    pub debts: BTreeMap<(NodeId, Dead), Version>,
    /// The jobs that are under way, and the last ones that are over.
    pub jobs: BTreeMap<JobId, KeptJob>,
}

impl Journaled {
    /// What is kept after another note.
    pub fn apply(&mut self, note: &Note) {
        match note {
            Note::Node { node, ssd } => _ = self.nodes.insert(*node, *ssd),
            Note::Forget(node) => {
                self.forgot = true;
                self.nodes.remove(node);
                self.debts.retain(|(of, _), _| of != node);
            }
            Note::Quota { tenant, quota } => match quota {
                Some(quota) => _ = self.quotas.insert(tenant.clone(), *quota),
                None => _ = self.quotas.remove(tenant),
            },
            Note::Owed { node, debt } => {
                self.debts
                    .retain(|(of, dead), _| of != node || !debt.of.replaces(dead));
                self.debts.insert((*node, debt.of.clone()), debt.up_to);
            }
            Note::Paid(node) => self.debts.retain(|(of, _), _| of != node),
            Note::Job(kept) => _ = self.jobs.insert(kept.state.job, (**kept).clone()),
            Note::ForgetJob(job) => _ = self.jobs.remove(job),
        }
    }
}

impl Dead {
    /// The tenant of the keys; none for those of all.
    #[must_use]
    pub fn tenant(&self) -> Option<&Tenant> {
        match self {
            Self::All => None,
            Self::Tenant(tenant) | Self::Pattern(tenant, _) | Self::Key(tenant, _) => Some(tenant),
        }
    }

    fn replaces(&self, other: &Self) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(tenant) => other.tenant() == Some(tenant),
            Self::Pattern(..) | Self::Key(..) => false,
        }
    }
}

/// The facts as the master knows them, and the notes that its shell has not taken yet.
#[derive(Default)]
pub(crate) struct Notes {
    /// Whether anything is kept.
    on: bool,
    notes: Vec<Note>,
    nodes: BTreeMap<NodeId, bool>,
    /// Nodes of an earlier master that are waited for.
    awaited: BTreeSet<NodeId>,
}

impl Notes {
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    pub(crate) fn note(&mut self, note: impl FnOnce() -> Note) {
        if self.on {
            self.notes.push(note());
        }
    }

    /// A node has mounted a segment.
    pub(crate) fn met(&mut self, node: NodeId, ssd: bool) {
        if !self.on {
            return;
        }
        let ssd = ssd || self.nodes.get(&node).is_some_and(|known| *known);
        if self.nodes.insert(node, ssd) != Some(ssd) {
            self.notes.push(Note::Node { node, ssd });
        }
    }

    /// A node has announced everything.
    pub(crate) fn complete(&mut self, node: NodeId) {
        self.awaited.remove(&node);
    }

    pub(crate) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether a node is known that may be gone for good, and whose place is worth nothing then.
    pub(crate) fn is_fleeting(&self, node: NodeId) -> bool {
        self.nodes.get(&node) == Some(&false)
    }
}

impl Master {
    /// Takes in what an earlier master had noted, before anything else, and notes changes from now on.
    pub fn restore(&mut self, now: Instant, journaled: Journaled) {
        self.notes.on = true;
        self.begin_holding(now);
        let Journaled {
            forgot,
            nodes,
            quotas,
            debts,
            jobs,
        } = journaled;
        self.restore_jobs(now, jobs);
        self.owed.keep_notes(forgot);
        for (tenant, quota) in quotas {
            let index = self
                .tenants
                .is_on()
                .then(|| self.tenants.find_or_add(&tenant));
            if let Some(index) = index.flatten() {
                let capacity = self.segments.capacity();
                self.tenants.set_quota(index, Some(quota), capacity);
            }
        }
        for (node, ssd) in nodes {
            self.notes.nodes.insert(node, ssd);
            self.notes.awaited.insert(node);
            self.owed.restore(node, ssd);
            let until = now + self.config.absence.given_up_after;
            self.due.set(Due::Absence(node), until);
        }
        for ((node, of), up_to) in debts {
            self.owed.restore_debt(node, &Debt { of, up_to });
        }
    }

    /// Takes what was noted since the last call, in order.
    pub fn take_notes(&mut self) -> Vec<Note> {
        for (node, debt) in self.owed.take_debts() {
            self.notes.note(|| match debt {
                Some(debt) => Note::Owed { node, debt },
                None => Note::Paid(node),
            });
        }
        std::mem::take(&mut self.notes.notes)
    }

    /// A node that lends nothing has been waited for long enough. One without an SSD is forgotten: what it holds, should it
    /// come back, counts as removed.
    pub(crate) fn stop_waiting_for(&mut self, node: NodeId) {
        self.notes.awaited.remove(&node);
        self.unsettled.jobs();
        self.unsettled.room();
        if self.notes.is_fleeting(node) {
            self.notes.nodes.remove(&node);
            self.owed.forget(node);
            // What is owed is noted first, as it happened.
            self.notes.notes = self.take_notes();
            self.notes.note(|| Note::Forget(node));
        }
    }
}
