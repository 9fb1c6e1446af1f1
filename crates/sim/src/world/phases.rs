//! The phases of a run: load with faults, healing within a bound, coming to rest, and the final checks.

use std::collections::BTreeSet;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_meta::{Books, Input, Output};
use slackwater_tier::Agent;
use slackwater_wire::{
    Chain, ClientId, DiskEntry, ExtentRef, Hold, Key, List, OperationId, Permissions, Pin,
    PutConfig, ReplicaAt, ReplicaState, Reply, Request, Tenant, Version,
};

use crate::check::{Checked, Invariant, Violation};
use crate::disk::DiskStats;
use crate::history::Name;
use crate::ledger::Promise;
use crate::load::Operation;
use crate::net::Process;
use crate::options::MESSAGE_DELAY_MAX;
use crate::value::HEADER_BYTES;

use super::World;
use super::client::{OperationCounts, Probe};
use super::event::Event;

/// Counters of a run, which show that it exercised the system.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// How the operations of all clients ended.
    pub tally: OperationCounts,
    /// Number of events.
    pub events: u64,
    /// Lines of the trace.
    pub lines: u64,
    /// Simulated time.
    pub lasted: Duration,
    /// Lives of all nodes together.
    pub node_lives: u64,
    /// Lives of the master.
    pub master_lives: u64,
    /// The master's counters at the end of its last life.
    pub master: Option<slackwater_meta::Metrics>,
    /// Counters of all disks together.
    pub disk: DiskStats,
    /// Values that jobs which succeeded have carried.
    pub carried: u64,
    /// Links on which nodes went on with the life that their master knew.
    pub links_resumed: u64,
    /// Extents of memory that nodes announced to masters, once to each.
    pub extents_announced: u64,
    /// Values that callers were promised on several hosts.
    pub promised: u64,
}

impl World {
    pub(super) fn phases(&mut self) -> Checked {
        for process in self.processes() {
            self.engine.push(Instant::ZERO, Event::Start { process });
        }
        for (index, planned) in self.plan.faults.iter().enumerate() {
            self.engine
                .push(Instant::ZERO + WARM_UP + planned.at, Event::Fault(index));
        }
        self.plan_jobs();
        // Every operation of a client may take as long as it is allowed to.
        let each = self.options.deadline + self.options.load.think;
        let load = LOAD_MAX.max(each * self.options.load.operations);
        self.must(load, "the load did not end", |world| {
            world.faults_done == world.plan.faults.len()
                && world.clients.iter().all(super::client::Client::idle)
        })?;
        self.wait_out_pauses()?;
        self.heal()?;
        self.end_jobs()?;
        let bound = self.options.liveness_bound();
        for client in 0..self.options.clients {
            self.begin_probe(client)?;
        }
        self.must(
            bound,
            "after the last fault a put and a get did not succeed",
            World::lives_again,
        )?;
        self.come_to_rest()?;
        self.check_at_rest()?;
        self.read_everything()
    }

    pub(super) fn must(
        &mut self,
        within: Duration,
        what: &str,
        done: fn(&World) -> bool,
    ) -> Checked {
        if self.step_until(self.engine.now() + within, done)? {
            return Ok(());
        }
        let unrest = self.not_at_rest();
        Err(Violation::new(
            Invariant::Liveness,
            format!("{what} within {within:?}: {unrest}"),
        ))
    }

    /// Waits until the cluster is at rest, and still is when every message on its way has arrived.
    fn come_to_rest(&mut self) -> Checked {
        for _ in 0..RESTS_MAX {
            self.must(
                self.options.rest_bound(),
                "the cluster did not come to rest",
                World::at_rest,
            )?;
            self.step_until(self.engine.now() + ON_THE_WAY, |_| false)?;
            if self.at_rest() {
                return Ok(());
            }
        }
        let what = format!("the cluster does not stay at rest: {}", self.not_at_rest());
        Err(Violation::new(Invariant::Liveness, what))
    }

    /// Waits for the end of all pauses. They are not ended early, so that the messages that they delay stay in order.
    fn wait_out_pauses(&mut self) -> Checked {
        let until = self
            .paused
            .values()
            .copied()
            .max()
            .unwrap_or(Instant::ZERO)
            .max(self.engine.now());
        self.step_until(until, |_| false)?;
        Ok(())
    }

    pub(crate) fn begin_probe(&mut self, index: u32) -> Checked {
        let client = &mut self.clients[index as usize];
        client.probes += 1;
        if !client.up || client.running.is_some() {
            return Ok(());
        }
        let entries = vec![(
            probe_key(index, client.probes),
            HEADER_BYTES + index as usize,
        )];
        // The pin keeps the policy from evicting the probe, which it might do as probes are read once and other values
        // may be pinned.
        let config = PutConfig {
            pin: Pin::Hard,
            ..PutConfig::default()
        };
        let (tenant, chain) = (Tenant::DEFAULT, Chain::default());
        self.begin(
            index,
            Operation::Put {
                tenant,
                entries,
                chain,
                config,
            },
            Some(Probe::Put),
        )
    }

    /// A step of a probe has ended: begins the next step, or the probe again.
    pub(crate) fn go_on_probing(&mut self, index: u32, probe: Probe, success: bool) -> Checked {
        let client = &mut self.clients[index as usize];
        match (probe, success) {
            (Probe::Put, true) => {
                let keys = vec![probe_key(index, client.probes)];
                let (tenant, chain, hold) = (Tenant::DEFAULT, Chain::default(), Hold::Lease);
                let get = Operation::Get {
                    tenant,
                    keys,
                    chain,
                    hold,
                    prefix_only: false,
                };
                self.begin(index, get, Some(Probe::Get))
            }
            (Probe::Get, true) => {
                client.alive = true;
                Ok(())
            }
            (Probe::Put | Probe::Get, false) => {
                self.schedule_probe(index);
                Ok(())
            }
            (Probe::ReadBack, _) => Ok(()),
        }
    }

    fn lives_again(&self) -> bool {
        self.clients.iter().all(|client| client.alive)
    }

    fn books(&self) -> Option<Books> {
        self.master
            .core
            .as_ref()
            .map(slackwater_meta::Master::books)
    }

    fn at_rest(&self) -> bool {
        let quiet = self.clients.iter().all(super::client::Client::at_rest)
            && self
                .nodes
                .iter()
                .all(|node| node.disk.in_flight() == 0 && node.serving.count() == 0 && node.opened)
            && self.master.attached() == self.nodes.len()
            && self.has_heard_all()
            && self.nodes.iter().all(super::node::Node::log_works);
        quiet
            && self.books().is_some_and(|books| {
                let moving = books.open_puts
                    + books.waiting_puts
                    + books.unanswered
                    + books.guards
                    + books.orphans
                    + books.drops
                    + books.offload.in_flight
                    + books.promotion.in_flight;
                moving == 0
                    && books
                        .segments
                        .iter()
                        .all(|segment| segment.quarantined == 0)
            })
    }

    /// Whether the master knows everything that the nodes hold.
    fn has_heard_all(&self) -> bool {
        let core = self.master.core.as_ref();
        let mut agents = self.nodes.iter().filter_map(|node| node.agent.as_ref());
        core.is_some_and(|core| !core.is_partial()) && agents.all(|agent| !agent.is_announcing())
    }

    /// What is not at rest, as text for a violation.
    fn not_at_rest(&self) -> String {
        let clients: Vec<_> = self
            .clients
            .iter()
            .map(|client| (client.idle(), client.alive))
            .collect();
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                (
                    node.opened,
                    node.disk.in_flight(),
                    node.serving.count(),
                    node.log_state,
                )
            })
            .collect();
        let now = self.local(Process::Master);
        let jobs = self
            .master
            .core
            .iter()
            .flat_map(|core| core.job_states(now, 64));
        let jobs: Vec<_> = jobs.filter(|job| !job.status.is_over()).collect();
        format!(
            "jobs {jobs:?}, clients (idle, alive) {clients:?}, nodes (open, disk, serving, log) {nodes:?}, attached {}, books {:?}",
            self.master.attached(),
            self.books()
        )
    }

    /// Checks at rest that the master's catalog matches what the nodes hold, and that every sum is right.
    fn check_at_rest(&mut self) -> Checked {
        let Some(core) = &self.master.core else {
            return Ok(());
        };
        core.check_books()
            .map_err(|wrong| Violation::new(Invariant::BooksBalance, wrong.to_string()))?;
        // Every node is there and has announced all that it holds.
        if !self.master.journal.debts.is_empty() {
            let what = format!("at rest {:?} is owed", self.master.journal.debts);
            return Err(Violation::new(Invariant::BooksBalance, what));
        }
        let mut believed: Vec<BTreeSet<DiskEntry>> = vec![BTreeSet::new(); self.nodes.len()];
        let mut extents: Vec<Vec<ExtentRef>> = vec![Vec::new(); self.nodes.len()];
        let mut in_memory = BTreeSet::new();
        for (tenant, key) in self.everything()? {
            let request = Request::Describe {
                tenant: tenant.clone(),
                key: key.clone(),
            };
            let Some(Reply::Describe(found)) = self.ask_master(request)? else {
                continue;
            };
            let mut places = BTreeSet::new();
            for (at, state, refs) in &found.replicas {
                let place = match at {
                    ReplicaAt::Memory(extent) => extent.segment,
                    ReplicaAt::Disk { segment, .. } => *segment,
                };
                if !places.insert(place) {
                    let what = format!("{key} of {tenant} is twice in segment {place}");
                    return Err(Violation::new(Invariant::BooksBalance, what));
                }
                if *state != ReplicaState::Complete || *refs != 0 {
                    let what =
                        format!("at rest {key} of {tenant} has {at:?} {state:?} held {refs} times");
                    return Err(Violation::new(Invariant::BooksBalance, what));
                }
                match at {
                    ReplicaAt::Memory(extent) => {
                        let owner = self.options.owner(extent.segment);
                        extents[owner as usize].push(*extent);
                        in_memory.insert(((tenant.clone(), key.clone()), found.version));
                    }
                    ReplicaAt::Disk { node, .. } => {
                        let entry = DiskEntry {
                            tenant: tenant.clone(),
                            key: key.clone(),
                            version: found.version,
                        };
                        believed[node.0 as usize].insert(entry);
                    }
                }
            }
        }
        for (node, believed) in self.nodes.iter().zip(&believed) {
            node.reconcile(believed)?;
        }
        self.check_promised(&in_memory)?;
        self.check_watermarks()?;
        if !self.options.embedded {
            for (node, extents) in self.nodes.iter().zip(&extents) {
                let agent = node.agent.iter();
                let knows: Vec<_> = agent.flat_map(Agent::published).copied().collect();
                node.announced.reconcile(extents, &knows)?;
            }
        }
        Ok(())
    }

    /// Checks that what several hosts were to hold is there, whichever of them but one have lost it.
    fn check_promised(&self, in_memory: &BTreeSet<(Name, Version)>) -> Checked {
        let missing = self.promised.owed().find(|name| !in_memory.contains(name));
        let Some((name, version)) = missing else {
            return Ok(());
        };
        let what = format!("{name:?} version {version} was promised on several hosts and is gone");
        Err(Violation::new(Invariant::Acknowledgement, what))
    }

    /// Checks that segments are evicted from when their nodes say so.
    fn check_watermarks(&self) -> Checked {
        let Some(core) = &self.master.core else {
            return Ok(());
        };
        for (segment, found) in core.segments().iter().zip(core.watermarks()) {
            let node = self.options.owner(segment.segment);
            let own = self.options.watermarks(node, segment.kind);
            if own.is_some_and(|own| own != found) {
                let what =
                    format!("{segment:?} is evicted from at {found:?}, its node says {own:?}");
                return Err(Violation::new(Invariant::Contract, what));
            }
        }
        Ok(())
    }

    /// Every name that the master lists, tenant by tenant and page by page.
    fn everything(&mut self) -> Checked<Vec<Name>> {
        let mut names = Vec::new();
        for tenant in self.options.tenants() {
            let mut after: Option<Key> = None;
            loop {
                let list = List {
                    tenant: tenant.clone(),
                    pattern: None,
                    after: after.clone(),
                    limit: 100,
                };
                let Some(Reply::List(listed)) = self.ask_master(Request::List(list))? else {
                    break;
                };
                names.extend(listed.keys.iter().map(|key| (tenant.clone(), key.clone())));
                after = listed.keys.last().cloned();
                if !listed.more || after.is_none() {
                    break;
                }
            }
        }
        Ok(names)
    }

    /// Sends the master a request without the network; only for requests that change nothing.
    fn ask_master(&mut self, request: Request) -> Checked<Option<Reply>> {
        let now = self.local(Process::Master);
        let mut out = Vec::new();
        let Some(core) = &mut self.master.core else {
            return Ok(None);
        };
        core.handle(
            now,
            Input::Request {
                client: ClientId(0),
                host: None,
                permissions: Permissions::FULL,
                operation: OperationId::unrepeated(0),
                request,
            },
            &mut out,
        );
        for _ in 0..WAIT_STEPS {
            let answer = out.iter().find_map(|output| match output {
                Output::Reply {
                    client: ClientId(0),
                    reply,
                    ..
                } => Some(reply.clone()),
                _ => None,
            });
            if answer.is_some() {
                return Ok(answer);
            }
            core.on_deadline(now, &mut out);
        }
        Err(Violation::new(
            Invariant::Liveness,
            "the master does not answer a request at rest",
        ))
    }

    /// One client reads every key of the run; each read is checked as any other.
    fn read_everything(&mut self) -> Checked {
        let mut names: Vec<Name> = self.history.names().cloned().collect();
        names.sort();
        for tenant in self.options.tenants() {
            let keys: Vec<Key> = names
                .iter()
                .filter(|(of, _)| *of == tenant)
                .map(|(_, key)| key.clone())
                .collect();
            for batch in keys.chunks(8) {
                let get = Operation::Get {
                    tenant: tenant.clone(),
                    keys: batch.to_vec(),
                    chain: Chain::default(),
                    hold: Hold::Lease,
                    prefix_only: false,
                };
                self.begin(0, get, Some(Probe::ReadBack))?;
                self.must(
                    self.options.deadline * 2,
                    "a read at rest did not end",
                    |world| world.clients[0].running.is_none(),
                )?;
            }
        }
        Ok(())
    }

    /// Checks bounds that hold at every moment.
    pub(crate) fn check_bounds(&self) -> Checked {
        let wrong = |what: String| Err(Violation::new(Invariant::BoundedResources, what));
        if let Some(core) = &self.master.core {
            let books = core
                .check_books()
                .map_err(|wrong| Violation::new(Invariant::BooksBalance, wrong.to_string()))?;
            core.check_waits(self.local(Process::Master))
                .map_err(|wrong| Violation::new(Invariant::Liveness, wrong.to_string()))?;
            let limits = &self.options.master;
            if books.offload.in_flight > limits.offload.queue_limit as u64 {
                return wrong(format!("{} offloads in flight", books.offload.in_flight));
            }
            if books.promotion.in_flight > limits.promotion.queue_limit as u64 {
                return wrong(format!(
                    "{} promotions in flight",
                    books.promotion.in_flight
                ));
            }
            if books.waiting_puts > limits.put.queue_limit as u64 {
                return wrong(format!("{} puts wait", books.waiting_puts));
            }
            if books.open_puts > limits.limits.open_puts as u64 {
                return wrong(format!("{} puts are open", books.open_puts));
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.disk.stats().in_flight_max > self.options.disk_in_flight_max {
                return wrong(format!(
                    "node{index} had {} disk operations under way",
                    node.disk.stats().in_flight_max
                ));
            }
        }
        Ok(())
    }

    pub(super) fn stats(&self) -> Stats {
        let mut tally = OperationCounts::default();
        for client in &self.clients {
            tally.add(&client.tally);
        }
        let mut disk = DiskStats::default();
        for node in &self.nodes {
            disk.add(&node.disk.stats());
        }
        Stats {
            tally,
            events: self.events,
            lines: self.trace.lines(),
            lasted: self.engine.now().since(Instant::ZERO),
            node_lives: self.nodes.iter().map(|node| node.life).sum(),
            master_lives: self.master.life,
            master: self.master.core.as_ref().map(|core| core.metrics().clone()),
            disk,
            carried: self.operator.carried,
            links_resumed: self.nodes.iter().map(|node| node.links_resumed).sum(),
            promised: self.promised.count(),
            extents_announced: self.nodes.iter().map(|node| node.extents_announced).sum(),
        }
    }
}

impl super::node::Node {
    /// Compares the master's view of this node's log with what the log has promised.
    fn reconcile(&self, believed: &BTreeSet<DiskEntry>) -> Checked {
        for entry in believed {
            match self.ledger.promise(entry) {
                // The sync of what was written may fall due a little later.
                Some(Promise::Written | Promise::Durable | Promise::Flawed) => {}
                promise => {
                    let what = format!(
                        "the master's catalog has {entry:?}, which is {promise:?} at the node"
                    );
                    return Err(Violation::new(Invariant::BooksBalance, what));
                }
            }
        }
        if let Some(entry) = self.ledger.owed().find(|entry| !believed.contains(*entry)) {
            let what =
                format!("the node keeps {entry:?}, which the master's catalog does not have");
            return Err(Violation::new(Invariant::BooksBalance, what));
        }
        Ok(())
    }
}

fn probe_key(client: u32, probe: u64) -> Key {
    Key::new(format!("probe{client}/{probe}").as_bytes()).expect("a few bytes make a key")
}

/// Time from the start until faults begin.
const WARM_UP: Duration = Duration::from_millis(5);
/// Longest load, unless its operations may take longer: as every operation has a deadline, a longer one hangs.
const LOAD_MAX: Duration = Duration::from_secs(1200);
/// How often the cluster may seem to be at rest and then go on.
const RESTS_MAX: u32 = 50;
/// Longest time that a message takes, also one that was sent before the network healed.
const ON_THE_WAY: Duration = MESSAGE_DELAY_MAX.saturating_add(Duration::from_millis(50));
/// Most steps of the master for a request at rest.
const WAIT_STEPS: u32 = 1000;
