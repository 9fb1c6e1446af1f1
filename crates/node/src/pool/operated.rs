//! What operators see of a master and its nodes.

use std::sync::Arc;

use serde::Serialize;
use slackwater_base::Instant;
use slackwater_meta::{Master, OffloadMetrics, PromotionMetrics, ReplicationMetrics};
use slackwater_wait::{Park, Site, Waiting, now};
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Epoch, Key, MetricsFormat, NodeId, Presence, Reply, Request, SegmentKind, SegmentState, Tenant,
};

use super::master::{MasterServer, MasterShell};
use crate::host::Asked;
use crate::kv_events::{KvEvents, KvEventsPlaces};
use crate::operated::Operated;
use crate::prometheus::Text;
use crate::store::{
    EvictionRules, Flow, Phases, PutStats, ReadStats, Reason, TierStats, WaitStats,
};
use crate::waits;
use crate::{Stats, StoreError};

/// The master of a pool as its operators see it.
pub struct PoolMaster(Arc<MasterShell>);

/// Everything that a master counts. Counters begin at zero with its life.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolStats {
    /// Objects there are, on any tier.
    pub objects: u64,
    /// Memory of all nodes.
    pub memory: TierStats,
    /// The SSDs of all nodes; `None` without one.
    pub ssd: Option<TierStats>,
    /// Look-ups of single keys, by what they found.
    pub reads: ReadStats,
    /// Puts by how they ended.
    pub puts: PutStats,
    /// The funnel of promotion.
    pub promotions: PromotionMetrics,
    /// Further replicas of what is read much.
    pub replication: ReplicationMetrics,
    /// Values that a node brought from another one, and that are readable there.
    pub copies: Flow,
    /// Memory replicas that were evicted.
    pub evictions: Flow,
    /// SSD replicas that were evicted.
    pub ssd_evictions: Flow,
    /// Those of them that an SSD would have had to write again, because it emptied the file that they were in.
    pub ssd_evictions_at_reclaim: u64,
    /// The rules that evictions follow, for each segment whose policy has several.
    pub eviction_rules: Vec<EvictionRules>,
    /// The funnel of offload.
    pub offloads: OffloadMetrics,
    /// How long parts of reads took: the master sees look-ups alone.
    pub phases: Phases,
    /// How the threads of the master's process waited, by what for.
    pub waits: Vec<WaitStats>,
    /// The processes that take part.
    pub nodes: NodesStats,
}

/// The nodes of a pool, and its clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodesStats {
    /// Clients that have a link.
    pub clients: u64,
    /// The nodes that lend something.
    pub nodes: Vec<NodeStats>,
    /// Whether a node has yet to announce a part of what it holds: what is not found may be there.
    pub partial: bool,
    /// Times that what a node holds was hidden, because it had no link for so long.
    pub hidden: u64,
    /// Times that a node was given up, because it had no link for longer still.
    pub given_up: u64,
    /// Extents of memory that nodes announced: none, while no node begins anew and this master has known them all along.
    pub extents_announced: u64,
    /// Records on SSD that nodes announced.
    pub records_announced: u64,
}

/// One node of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStats {
    /// Its number.
    pub node: u32,
    /// `here`, `away` when its link was lost a moment ago, or `hidden` when it has had none for long.
    pub presence: &'static str,
    /// Where its bytes come in and leave.
    pub data_address: String,
    /// The public key that its link proved, as `slackwater keys` writes it; `None` where links are not encrypted.
    pub public_key: Option<String>,
    /// What people compare that key by, as `slackwater keys show` prints it.
    pub fingerprint: Option<String>,
    /// Its memory.
    pub memory: TierStats,
    /// Its SSD; `None` without one.
    pub ssd: Option<TierStats>,
}

pub(crate) static ANSWER: Site = Site::new("master, answer");

impl MasterServer {
    /// The master as its operators see it.
    #[must_use]
    pub fn operated(&self) -> PoolMaster {
        PoolMaster(Arc::clone(self.shell()))
    }

    /// Where KV events are told, if anywhere.
    #[must_use]
    pub fn kv_events(&self) -> Option<KvEventsPlaces> {
        self.events.as_ref().map(KvEvents::places)
    }
}

impl PoolMaster {
    fn with<T>(
        &self,
        step: impl FnOnce(&mut crate::host::MasterHost, Instant) -> T,
    ) -> Result<T, StoreError> {
        self.0.with(step).map_err(|_| StoreError::Broken {
            why: "a decision of the master panicked; the log says where".to_owned(),
        })
    }

    /// What is counted now; nothing once the master is broken.
    fn counts(&self) -> (Stats, NodesStats) {
        let looked = self.look(|master, _| {
            let metrics = master.metrics();
            let counted = NodesStats {
                partial: master.is_partial(),
                hidden: metrics.nodes_hidden,
                given_up: metrics.nodes_given_up,
                extents_announced: metrics.extents_announced,
                records_announced: metrics.records_announced,
                ..NodesStats::default()
            };
            (Stats::of_master(master), master.segments(), counted)
        });
        let (stats, segments, counted) = looked.unwrap_or_default();
        let nodes = NodesStats {
            clients: self.0.outgoing.clients().len() as u64,
            nodes: self.nodes(&segments),
            ..counted
        };
        (stats, nodes)
    }

    fn nodes(&self, segments: &[SegmentState]) -> Vec<NodeStats> {
        let mut nodes: Vec<NodeStats> = Vec::new();
        for segment in segments {
            let known = nodes.iter().position(|it| it.node == segment.node.0);
            let at = known.unwrap_or_else(|| {
                let key = self.0.members.key_of(segment.node);
                nodes.push(NodeStats {
                    node: segment.node.0,
                    presence: segment.presence.name(),
                    data_address: self.data_address(segment.node),
                    public_key: key.map(|key| key.to_string()),
                    fingerprint: key.map(|key| key.fingerprint()),
                    memory: TierStats::default(),
                    ssd: None,
                });
                nodes.len() - 1
            });
            let tier = match segment.kind {
                SegmentKind::Memory => &mut nodes[at].memory,
                SegmentKind::Disk => nodes[at].ssd.get_or_insert_default(),
            };
            tier.capacity_bytes += segment.bytes;
            tier.used_bytes += segment.used_bytes;
        }
        nodes
    }
}

impl Operated for PoolMaster {
    type Stats = PoolStats;

    fn ask(&self, what: &'static str, request: Request) -> Result<Reply, StoreError> {
        let asked = self.with(|host, now| {
            host.begin(now, request);
            host.end()
        });
        let after = self.0.deadline;
        let until = now() + after;
        let late = || Err(StoreError::Deadline { what, after });
        let answer = match asked? {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(later) => {
                let waiting = Waiting::at(&ANSWER).by(&Park);
                later.wait_until(until, waiting).unwrap_or_else(late)
            }
        };
        match self.0.settle_journal(until) {
            true => answer,
            false => late(),
        }
    }

    fn with_master<T>(
        &self,
        step: impl FnOnce(&mut Master, Instant) -> T,
    ) -> Result<T, StoreError> {
        self.with(|host, now| step(&mut host.core, now))
    }

    fn check_serving(&self) -> Result<(), String> {
        let segments = self.segments().map_err(|error| error.to_string())?;
        let mut memory = segments
            .iter()
            .filter(|segment| segment.kind == SegmentKind::Memory)
            .peekable();
        if memory.peek().is_none() {
            return Err("no node lends memory: start one with `slackwater node`".to_owned());
        }
        if memory.all(|segment| segment.presence != Presence::Here) {
            return Err("no node that lends memory has a link".to_owned());
        }
        Ok(())
    }

    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<Vec<Reason>>, StoreError> {
        let opinions = self.look(|master, now| master.explain(now, tenant, key))?;
        Ok(opinions.map(|opinions| opinions.into_iter().map(Reason::from).collect()))
    }

    fn stats(&self) -> PoolStats {
        let (stats, nodes) = self.counts();
        PoolStats {
            objects: stats.objects,
            memory: stats.memory,
            ssd: stats.ssd.map(|ssd| TierStats {
                capacity_bytes: ssd.capacity_bytes,
                used_bytes: ssd.used_bytes,
            }),
            reads: stats.reads,
            puts: stats.puts,
            promotions: stats.promotions,
            replication: stats.replication,
            copies: stats.copies,
            evictions: stats.evictions,
            ssd_evictions: stats.ssd_evictions,
            ssd_evictions_at_reclaim: stats.ssd_evictions_at_reclaim,
            eviction_rules: stats.eviction_rules,
            offloads: stats.offloads,
            phases: self.0.phases.times(),
            waits: waits::of_process().collect(),
            nodes,
        }
    }

    fn metrics_text(&self, format: MetricsFormat) -> String {
        let (stats, nodes) = self.counts();
        let mut text = Text::new(format);
        text.master(&stats);
        text.nodes(&nodes);
        text.phases(&self.0.phases);
        text.waits(&waits::of_process().collect::<Vec<_>>());
        text.traces(slackwater_trace::counts());
        text.kv_events(&self.kv_events());
        text.finish()
    }

    fn kv_events(&self) -> KvEventCounts {
        let events = self.0.events.as_ref();
        events.map_or_else(KvEventCounts::default, |events| events.counts())
    }

    fn epoch(&self) -> Epoch {
        self.0.outgoing.epoch
    }

    fn data_address(&self, node: NodeId) -> String {
        let contact = self.0.members.contact_of(node);
        let address = contact.and_then(|contact| contact.addresses.first().copied());
        address.map(|it| it.to_string()).unwrap_or_default()
    }
}
