use std::sync::Arc;

use slackwater_base::{Instant, Map, Rng, Turn};
use slackwater_wire::{
    ClientId, CopyTask, ErrorCode, ExtentRef, JobId, NodeId, ObjectName, OperationId, Order,
    Permissions, Reply, Report, Request, SegmentId, SegmentKind, SegmentState, TicketId, Version,
    Watermarks,
};

use crate::answers::{Answers, Arrival};
use crate::catalog::{Catalog, ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::config::{ConfigWarning, MasterConfig};
use crate::decisions::Decisions;
use crate::drops::Drops;
use crate::due::Deadlines;
use crate::evict::Leader;
use crate::feed::Feed;
use crate::get::Reading;
use crate::hottest::Hottest;
use crate::jobs::{JOBS_LISTED, Jobs};
use crate::journal::Notes;
use crate::lease::{GroupKey, Groups, Guards};
use crate::metrics::Metrics;
use crate::numbers::Numbers;
use crate::offload::Offloads;
use crate::outbox::{Acks, Outbox};
use crate::owed::{Owed, OwedLimits};
use crate::permissions;
use crate::placement::{self, PlacementPolicy, Wishes};
use crate::promote::Promotions;
use crate::put::{Puts, Queue};
use crate::replicate::Replicating;
use crate::restarted::Held;
use crate::scan::Scans;
use crate::segment::Segments;
use crate::settle::Unsettled;
use crate::tenant::{Ledger, Tenants};
use crate::untaken::Untaken;

/// An event that the shell reports to a master.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A request of a client.
    Request {
        /// The client that made the request.
        client: ClientId,
        /// The host of the client, if it is known.
        host: Option<Arc<str>>,
        /// What the key of the client's link permits.
        permissions: Permissions,
        /// The client's number for the call, the same in every retry of it.
        operation: OperationId,
        /// The call and its arguments.
        request: Request,
    },
    /// A report of a node.
    Report {
        /// The node that reports.
        node: NodeId,
        /// The change that the node observed.
        report: Report,
    },
    /// The link to a client is gone: its guards and open puts are ended.
    ClientLost(ClientId),
    /// A node is gone with its memory; its SSD may come back.
    NodeLost(NodeId),
    /// The link to a node is gone. The node may live on, with its memory: its replicas are hidden after a while, and it is
    /// given up, as lost, after a long one.
    NodeAway(NodeId),
    /// A node has a link again, in the life that it had before.
    NodeBack(NodeId),
    /// A node has taken every order up to this mark: see [`Output::AwaitTaken`].
    Taken {
        /// The node.
        node: NodeId,
        /// The mark.
        mark: u64,
    },
    /// A copy has ended: the bytes are in their extent, verified, or the reason why not.
    Copied {
        /// The copy.
        ticket: TicketId,
        /// How it went.
        result: Result<(), ErrorCode>,
    },
}

/// What a master wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Answer a request. A put that waits for space, and a removal or put that waits until a crash cannot undo it, are
    /// answered later.
    Reply {
        /// The client that made the request.
        client: ClientId,
        /// The client's number for the call.
        operation: OperationId,
        /// The answer.
        reply: Reply,
    },
    /// Tell a node what to do.
    Order {
        /// The node that is to do it.
        node: NodeId,
        /// What it is to do.
        order: Order,
    },
    /// Say when a node has taken every order before this one: a later mark of the node says it of the earlier ones too. Ends with
    /// [`Input::Taken`], or with the loss of the node.
    AwaitTaken {
        /// The node.
        node: NodeId,
        /// What names this place among its orders.
        mark: u64,
    },
    /// Have a node bring a value of another one into its memory. Ends with [`Input::Copied`].
    Copy {
        /// The node that is to do it.
        node: NodeId,
        /// What it is to bring.
        task: CopyTask,
    },
    /// Have nodes that are announcing what they hold say at once what they have of these keys. Nobody waits for an answer:
    /// where a node does not hear of it, each key comes in its turn.
    AnnounceFirst {
        /// The nodes.
        nodes: Vec<NodeId>,
        /// The keys, with their tenants.
        names: Vec<ObjectName>,
    },
}

/// The decisions of a store: objects, their replicas, and what is evicted, offloaded and promoted.
///
/// It has one owner, no locks and no clock. The owner passes inputs with the time, performs the outputs, and calls
/// [`Master::on_deadline`] at [`Master::next_deadline`]. The same inputs at the same times give the same outputs.
pub struct Master {
    pub(crate) config: MasterConfig,
    warnings: Vec<ConfigWarning>,
    pub(crate) catalog: Catalog,
    pub(crate) segments: Segments,
    pub(crate) tenants: Tenants,
    pub(crate) placement: Box<dyn PlacementPolicy>,
    pub(crate) wishes: Wishes,
    pub(crate) due: Deadlines<Due>,
    pub(crate) puts: Puts,
    pub(crate) queue: Queue,
    pub(crate) groups: Groups,
    pub(crate) guards: Guards,
    pub(crate) soft_until: Map<ObjectId, Instant>,
    pub(crate) orphans: Map<ReplicaId, Orphan>,
    pub(crate) acks: Acks,
    pub(crate) untaken: Untaken,
    pub(crate) drops: Drops,
    pub(crate) owed: Owed,
    pub(crate) notes: Notes,
    pub(crate) scans: Scans,
    pub(crate) offloads: Offloads,
    pub(crate) promotions: Promotions,
    pub(crate) replicating: Replicating,
    pub(crate) jobs: Jobs,
    pub(crate) answers: Answers,
    pub(crate) held: Held,
    pub(crate) reading: Option<Box<Reading>>,
    pub(crate) outbox: Outbox,
    pub(crate) metrics: Metrics,
    pub(crate) numbers: Numbers,
    pub(crate) unsettled: Unsettled,
    pub(crate) decisions: Decisions,
    pub(crate) hottest: Hottest,
    pub(crate) feed: Feed,
}

/// What happens at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Due {
    /// A replica that could not be evicted may be evictable now.
    Include(ReplicaId),
    /// A put was not ended in time.
    Put(ObjectId),
    /// A put has waited for space for its whole time.
    Wait(u64),
    /// A tenant that lacked quota may have something to evict.
    Quota,
    /// The next step of a round of the puts that wait for quota or for a node.
    Apart,
    /// The next step of a segment's eviction.
    Relieve(SegmentIndex),
    /// The next step of the eviction of a large group.
    Group(GroupKey, Ledger),
    /// The next step of making the replicas of a large group evictable again, which nothing holds any more.
    Wake(GroupKey),
    /// The next step of a scan.
    Scan(u64),
    /// The next step of ending the puts of a client whose link is gone.
    Lost(ClientId),
    /// An offload was not reported in time.
    Offload(TicketId),
    /// A promotion was not staged, or not finished, in time.
    Promotion(TicketId),
    /// A candidate for promotion is tried again, or dropped.
    Candidate(ObjectId),
    /// The byte budget allows further promotions.
    Promotions,
    /// A node has been without a link for as long as is waited for it.
    Absence(NodeId),
    /// A copy of a job was not ended in time.
    Copy(TicketId),
    /// Jobs may go on.
    Jobs,
    /// The time of a job is over.
    Job(JobId),
    /// Look-ups have waited for nodes for long enough.
    Held,
    /// Nodes may be asked for what look-ups wait for.
    Asking,
}

impl Due {
    /// Whether this is work in steps, each of which may schedule the next.
    fn is_step(self) -> bool {
        matches!(
            self,
            Self::Relieve(_)
                | Self::Group(..)
                | Self::Wake(_)
                | Self::Scan(_)
                | Self::Lost(_)
                | Self::Jobs
                | Self::Apart
                | Self::Held
        )
    }
}

/// A replica without an object, kept as long as it is referenced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub(crate) tenant: TenantIndex,
    /// What it takes where it is on SSD.
    pub(crate) record: u64,
}

/// The client and operation to be answered.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) operation: OperationId,
    pub(crate) host: Option<Arc<str>>,
}

impl Master {
    /// A master with no segments, no objects and only the default tenant. `seed` determines all random choices.
    #[must_use]
    pub fn new(config: MasterConfig, seed: u64) -> Self {
        let (config, warnings) = config.checked();
        Self {
            warnings,
            catalog: Catalog::new(),
            segments: Segments::default(),
            tenants: Tenants::new(config.tenancy, config.limits.tenants),
            placement: placement::build(config.placement, Rng::new(seed)),
            wishes: Wishes::default(),
            due: Deadlines::new(),
            puts: Puts::default(),
            queue: Queue::default(),
            groups: Groups::default(),
            guards: Guards::new(config.limits.guards),
            soft_until: Map::default(),
            orphans: Map::default(),
            acks: Acks::default(),
            untaken: Untaken::default(),
            drops: Drops::default(),
            owed: Owed::new(
                OwedLimits {
                    keys: config.limits.owed,
                    tenants: config.limits.tenants,
                    segments: config.limits.segments,
                },
                config.limits.nodes,
            ),
            notes: Notes::default(),
            scans: Scans::default(),
            offloads: Offloads::default(),
            promotions: Promotions::new(&config.promotion),
            replicating: Replicating::new(&config.replication),
            jobs: Jobs::default(),
            held: Held::default(),
            outbox: Outbox::default(),
            metrics: Metrics::default(),
            numbers: Numbers::default(),
            unsettled: Unsettled::default(),
            decisions: Decisions::default(),
            hottest: Hottest::default(),
            feed: Feed::default(),
            reading: None,
            answers: Answers::new(&config.limits),
            config,
        }
    }

    /// Handles an event and appends what is to be done to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Request {
                client,
                host,
                permissions,
                operation,
                request,
            } => {
                let caller = Caller {
                    client,
                    operation,
                    host,
                };
                match permissions::check(&permissions, &request) {
                    Ok(()) => self.once(now, &caller, request),
                    // The key of a link may lose a right between two repetitions, so no answer is kept.
                    Err(code) => self.outbox.reply(client, operation, Reply::Failed(code)),
                }
            }
            Input::Report { node, report } => self.report(now, node, report),
            Input::ClientLost(client) => self.client_lost(now, client),
            Input::NodeLost(node) => self.node_lost(now, node),
            Input::NodeAway(node) => self.node_away(now, node),
            Input::NodeBack(node) => self.node_back(node),
            Input::Taken { node, mark } => self.taken(node, mark),
            Input::Copied { ticket, result } => self.copied(now, ticket, result),
        }
        self.settle(now);
        self.flush(out);
    }

    /// Does what is due. One call does a bounded amount; when more is due, [`Self::next_deadline`] is not in the
    /// future.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Output>) {
        let mut again = Vec::new();
        for _ in 0..DUE_STEP {
            let Some(due) = self.due.pop(now) else { break };
            if due.is_step() {
                // Work in steps schedules its next step for `now`: that step is left to the next call, so that requests
                // are served in between.
                if again.contains(&due) {
                    self.due.set(due, now);
                    break;
                }
                again.push(due);
            }
            match due {
                Due::Include(replica) => self.include_due(replica),
                Due::Put(object) => self.put_expired(now, object),
                Due::Wait(number) => self.wait_expired(number),
                Due::Relieve(segment) => self.unsettled.press(segment),
                Due::Group(group, ledger) => self.go_on_evicting(now, group, ledger),
                Due::Wake(group) => self.wake(now, group),
                Due::Scan(number) => self.scan_step(now, number),
                Due::Lost(client) => self.lost_step(now, client),
                Due::Offload(ticket) => self.offload_expired(now, ticket),
                Due::Promotion(ticket) => self.promotion_expired(now, ticket),
                Due::Candidate(object) => self.candidate_due(now, object),
                Due::Promotions => self.deliver_all(now),
                Due::Absence(node) => self.absence_due(now, node),
                Due::Copy(ticket) => self.copied(now, ticket, Err(ErrorCode::RpcTimeout)),
                Due::Jobs => self.unsettled.jobs(),
                Due::Quota => self.unsettled.room(),
                Due::Apart => self.serve_apart(now),
                Due::Job(job) => self.job_late(now, job),
                // They are answered, and nodes are asked, at the end of the step.
                Due::Held | Due::Asking => {}
            }
        }
        self.segments.run_policies(now);
        self.settle(now);
        self.flush(out);
    }

    /// When [`Self::on_deadline`] is to be called next, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let policies = self.segments.policies_due();
        policies.into_iter().chain(self.due.next()).min()
    }

    /// Makes versions begin above this one, for a shell that knows what an earlier master may have given. Announcements
    /// of nodes raise the next version too, but too late for puts that were granted before them.
    pub fn start_above(&mut self, version: Version) {
        self.numbers.start_above(version);
    }

    /// Warnings about the configuration, for the operator.
    #[must_use]
    pub fn warnings(&self) -> &[ConfigWarning] {
        &self.warnings
    }

    /// The configuration as it is used.
    #[must_use]
    pub fn config(&self) -> &MasterConfig {
        &self.config
    }

    /// Counters and gauges.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The segments and how full they are.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentState> {
        self.segments
            .iter()
            .map(|(_, segment)| segment.state())
            .collect()
    }

    /// When each of the segments is evicted from, in the order of [`Master::segments`].
    #[must_use]
    pub fn watermarks(&self) -> Vec<Watermarks> {
        let segments = self.segments.iter();
        segments
            .map(|(_, segment)| self.watermarks_of(segment))
            .collect()
    }

    /// The rules that the segments' policies follow, of those policies that have several.
    #[must_use]
    pub fn eviction_leaders(&self) -> Vec<(SegmentId, SegmentKind, Leader)> {
        let segments = self.segments.iter();
        let leaders = segments.filter_map(|(_, segment)| {
            Some((segment.id, segment.kind(), segment.policy.leader()?))
        });
        leaders.collect()
    }

    /// Executes a request unless it is a repetition, which gets the first answer.
    fn once(&mut self, now: Instant, caller: &Caller, request: Request) {
        let Caller {
            client, operation, ..
        } = *caller;
        match self.answers.arrive(now, client, operation, &request) {
            Arrival::New => self.request(now, caller, request),
            Arrival::Pending => {}
            Arrival::Answered(reply) => {
                self.metrics.operations_repeated += 1;
                self.outbox.reply(client, operation, reply);
            }
        }
    }

    pub(crate) fn request(&mut self, now: Instant, caller: &Caller, request: Request) {
        let Some(request) = self.unless_held(now, caller, request) else {
            return;
        };
        let reply = match request {
            Request::Get(get) => self.get(now, caller, &get),
            Request::Reads(reads) => self.reads(now, caller, &reads),
            Request::GetEnd(end) => self.get_end(now, caller, &end),
            Request::Exists(exists) => self.exists(now, &exists),
            Request::PutStart(start) => return self.put_start(now, caller, start),
            Request::PutEnd(end) => return self.put_end(now, caller, &end),
            Request::PutRevoke { tenant, puts } => self.put_revoke(now, caller, &tenant, &puts),
            Request::Revoke { operation } => self.revoke_operation(now, caller.client, operation),
            Request::Remove(remove) => return self.remove(now, caller, &remove),
            Request::RemoveMatching(remove) => return self.remove_matching(now, caller, &remove),
            Request::RemoveAll(remove) => return self.remove_all(now, caller, &remove),
            Request::ReplicaClear(clear) => return self.replica_clear(now, caller, &clear),
            Request::Suspect {
                tenant,
                key,
                version,
                at,
            } => self.suspect(now, &tenant, &key, version, &at),
            Request::List(list) => return self.list(now, caller, list),
            Request::Describe { tenant, key } => self.describe(now, &tenant, &key),
            Request::SetQuota {
                tenant,
                memory_bytes,
                disk_bytes,
            } => self.set_quota(now, &tenant, [memory_bytes, disk_bytes]),
            Request::DeleteQuota { tenant } => self.delete_quota(&tenant),
            Request::Quotas => Reply::Quotas(self.tenants.states().collect()),
            Request::StartJob(spec) => self.start_job(now, spec),
            Request::QueryJob { job } => self.query_job(now, job),
            Request::AwaitJob { job } => return self.await_job(now, caller, job),
            Request::CancelJob { job } => self.cancel_job(now, job),
            Request::Jobs => Reply::Jobs(self.job_states(now, JOBS_LISTED)),
            Request::Mount(mount) => self.mount(now, &mount),
        };
        self.outbox.reply(caller.client, caller.operation, reply);
    }

    fn report(&mut self, now: Instant, node: NodeId, report: Report) {
        match report {
            Report::Offloaded(results) => self.offloaded(now, node, &results),
            Report::Stage { ticket, bytes } => self.stage(now, node, ticket, bytes),
            Report::Promoted { ticket, extent } => self.promoted(now, node, ticket, extent),
            Report::PromotionFailed { ticket, failure } => {
                self.promotion_failed(now, node, ticket, failure)
            }
            Report::Dropped(entries) => self.dropped(node, &entries),
            Report::Lost(entries) => self.lost(now, node, &entries),
            Report::Fenced(extents) => self.fenced(node, &extents),
            Report::Retired(extents) => self.forgotten(node, &extents),
            Report::Holds {
                segment,
                entries,
                ahead,
            } => {
                let turn = if ahead { Turn::Ahead } else { Turn::InOrder };
                self.holds(now, node, segment, &entries, turn);
            }
            Report::Disk(state) => self.disk_state(node, &state),
            Report::Announce { segment, entries } => self.announce(now, node, segment, &entries),
            Report::Announced { segment, highest } => self.announced(node, segment, highest),
            Report::Emptying(entries) => self.emptying(now, node, &entries),
        }
    }

    fn flush(&mut self, out: &mut Vec<Output>) {
        let from = out.len();
        self.outbox.flush(out);
        self.answers.keep(&out[from..]);
    }

    fn client_lost(&mut self, now: Instant, client: ClientId) {
        self.answers.lose(client);
        self.held.forget(client, None);
        self.puts_lost(now, client);
        for replica in self.guards.lose(client) {
            self.unhold(now, replica);
        }
        self.unsettled.room();
    }

    fn fenced(&mut self, node: NodeId, extents: &[ExtentRef]) {
        self.forgotten(node, extents);
        for extent in extents {
            let Some(index) = self.segments.find(extent.segment) else {
                continue;
            };
            let segment = self.segments.at_mut(index);
            if segment.node == node && segment.fenced(*extent) {
                self.metrics.extents_fenced += 1;
            }
        }
        self.unsettled.room();
    }
}

/// Deadlines handled in one step.
const DUE_STEP: usize = 256;
