use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_meta::{Input, Master};
use slackwater_mq::{
    Access, AllowList, AllowListError, Call, Category, ConnectionId, Level, Run, Running,
};
use slackwater_wait::{Event, Park, Site, Waiting, now};
use slackwater_wire::{
    Attached, ErrorCode, Mount, NodeHello, NodeId, NodeName, NodeStanding, NodeWelcome, Order,
    Permissions, Reply, Reports, Request, SegmentKind, TicketId, body,
};
use slackwater_zmtp::PublicKey;

use super::identity;
use super::journal::{Committer, JournalFile};
use super::members::{Members, Taken};
use crate::disk::Directory;
use crate::host::{Asked, MasterHost};
use crate::kv_events::{EventQueue, KvEvents};
use crate::serve::handlers::{Handlers, NODES_FROM, reply};
use crate::serve::minter::Minter;
use crate::serve::outgoing::Outgoing;
use crate::serve::{Links, ServeError, ServeKeys, ServeOptions, builder, epoch, reloader};
use crate::store::meters::PhaseMeters;
use crate::store::{pool_config, random};
use crate::{Config, KvEventsOptions, OpenError, StoreError};

/// How a master is served.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Where requests of clients and nodes come in; a port of 0 means a free one.
    pub listen: SocketAddr,
    /// Where the number of its life is kept; none orders lives by the clock alone.
    pub directory: Option<PathBuf>,
    /// Who this side is and who may connect; none for a loopback, where every process of the machine may.
    pub keys: Option<ServeKeys>,
    /// Tells routers of requests what the nodes hold; nobody when none.
    pub kv_events: Option<KvEventsOptions>,
}

impl Default for MasterOptions {
    fn default() -> Self {
        Self {
            listen: ServeOptions::default().listen,
            directory: None,
            keys: None,
            kv_events: None,
        }
    }
}

/// A master whose nodes are in other processes. It stops when this is dropped.
pub struct MasterServer {
    messages: Running,
    shell: Arc<MasterShell>,
    steward: Option<JoinHandle<()>>,
    committer: Option<JoinHandle<()>>,
    allowed: Option<AllowList>,
    address: SocketAddr,
    public_key: Option<PublicKey>,
    #[expect(
        dead_code,
        reason = "no other master uses the directory until this is dropped"
    )]
    directory: Option<Directory>,
    pub(super) events: Option<KvEvents>,
}

/// What the master's threads share: its host under one lock, and what is beside it.
pub(super) struct MasterShell {
    pub(super) this: Weak<MasterShell>,
    state: Mutex<MasterState>,
    pub(super) members: Members,
    pub(super) outgoing: Arc<Outgoing>,
    pub(super) tenants: bool,
    pub(super) lease: Duration,
    /// How long a call of this process may take.
    pub(super) deadline: Duration,
    /// Wakes the steward when something falls due before its next deadline.
    pub(super) bell: Event,
    /// Copies that have ended, for the steward.
    copied: Mutex<Vec<(TicketId, Result<(), ErrorCode>)>>,
    /// None without a directory.
    journal: Option<Committer>,
    /// A panic left the master in an unknown state, or its journal cannot be written.
    broken: AtomicBool,
    /// What it sees of reads.
    pub(super) phases: PhaseMeters,
    /// What is told of KV events; none when nobody is.
    pub(super) events: Option<Arc<EventQueue>>,
}

struct MasterState {
    host: MasterHost,
    /// When the steward means to wake.
    wakes: Instant,
}

pub(crate) static STEWARD: Site = Site::new("master, deadline");

impl MasterServer {
    /// Starts a master with an empty catalog.
    ///
    /// # Errors
    /// When an address cannot be listened on or needs keys, or a key, a list of keys or the directory cannot be used.
    pub fn start(config: &Config, options: &MasterOptions) -> Result<Self, ServeError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(OpenError::Config(problems).into());
        }
        let links = Links::read(options.keys.as_ref())?;
        links.check(options.listen)?;
        let held = options.directory.as_deref().map(Directory::hold);
        let directory = held.transpose().map_err(OpenError::from)?;
        let [seed, _] = random()?;
        let mut master = Master::new(pool_config(config), seed);
        let begun = epoch::begin(options.directory.as_deref());
        let epoch = begun.map_err(|why| OpenError::System {
            what: "the number of a new epoch",
            why,
        })?;
        master.start_above(epoch::versions_above(epoch));
        let journal = match &options.directory {
            Some(directory) => {
                let (file, kept) = JournalFile::open(directory)?;
                master.restore(now(), kept);
                Some(Committer::new(file))
            }
            None => None,
        };
        let write_time = master.config().put.release_timeout;
        let events = KvEvents::start(options.kv_events.as_ref(), &links, config.tenants)?;
        let shell = Arc::new_cyclic(|this| MasterShell {
            this: Weak::clone(this),
            state: Mutex::new(MasterState {
                host: MasterHost::new(master).telling(events.as_ref().map(KvEvents::queue), epoch),
                wakes: Instant::NEVER,
            }),
            members: Members::new(epoch),
            outgoing: Arc::new(Outgoing::new(epoch, write_time)),
            tenants: config.tenants,
            lease: config.lease_ttl,
            deadline: config.deadline,
            bell: Event::new(),
            journal,
            copied: Mutex::default(),
            broken: AtomicBool::new(false),
            phases: PhaseMeters::default(),
            events: events.as_ref().map(KvEvents::queue),
        });
        if let Some(events) = &shell.events {
            let asked = Weak::clone(&shell.this);
            events.ask_by(move |more| {
                let tell = |host: &mut MasterHost, _| host.tell_more_events(more);
                asked
                    .upgrade()
                    .is_some_and(|shell| shell.with(tell).is_ok())
            });
        }
        let committer = shell.start_committer()?;
        let handlers = Arc::new(Handlers {
            backend: Arc::clone(&shell) as _,
            outgoing: Arc::clone(&shell.outgoing),
            allowed: links.allowed.clone(),
            gathered: Mutex::default(),
        });
        let mut builder = builder(&handlers, links.keys.clone())?;
        builder.category(
            "nodes",
            Category {
                access: Access {
                    level: Level::Node,
                    ..Access::default()
                },
                run: Run::Inline,
                ..Category::default()
            },
        )?;
        let (greeted, greeter) = (Arc::clone(&shell), Arc::clone(&handlers));
        builder.request_command("nodes.hello", move |call: &Call<'_>| {
            greeted.hello(&greeter, call);
        })?;
        let (left, reader) = (Arc::clone(&shell), Arc::clone(&handlers));
        builder.request_command("nodes.leave", move |call: &Call<'_>| {
            left.leave(&reader, call);
        })?;
        let reported = Arc::clone(&shell);
        builder.command("nodes.reports", move |call: &Call<'_>| {
            reported.reports(call)
        })?;
        let messages = builder.start()?;
        shell.members.send_by(messages.handle());
        let stewarded = Arc::clone(&shell);
        let steward = std::thread::Builder::new()
            .name("slack-steward".to_owned())
            .spawn(move || stewarded.steward())
            .map_err(|why| OpenError::System {
                what: "a thread",
                why,
            })?;
        let mut server = Self {
            messages,
            shell,
            steward: Some(steward),
            committer,
            public_key: links.public_key(),
            allowed: links.allowed.clone(),
            address: options.listen,
            directory,
            events,
        };
        server.address = links.listen(&server.messages, options.listen)?;
        Ok(server)
    }

    /// Where requests come in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that clients and nodes must name, when links are encrypted.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.public_key
    }

    pub(super) fn shell(&self) -> &Arc<MasterShell> {
        &self.shell
    }

    /// Nodes that have a link.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.shell.members.linked()
    }

    /// Reads the list of keys again when it is called, on any thread, and ends the links of those that may not connect any
    /// more. When the file cannot be read, the old list stays in force.
    pub fn reloader(&self) -> impl Fn() -> Result<(), AllowListError> + Send + Sync + use<> {
        reloader(self.allowed.clone(), self.messages.handle())
    }

    /// Takes no more requests, and answers those that have come, for at most `limit`.
    pub fn close(self, limit: Duration) {
        // What is not answered within the limit is told that its link is gone.
        let _ = self.messages.drain(limit);
    }
}

impl Drop for MasterServer {
    fn drop(&mut self) {
        self.messages.stop();
        self.shell.members.end();
        let closed = |host: &mut MasterHost, _| host.fail_waiters(&StoreError::Closed);
        let _ = self.shell.with(closed);
        self.shell.bell.close();
        if let Some(steward) = self.steward.take()
            && steward.join().is_err()
        {
            tracing::error!("the steward panicked outside its guard");
        }
        if let Some(journal) = &self.shell.journal {
            journal.close();
        }
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!("the thread of the journal panicked");
        }
    }
}

impl MasterShell {
    /// Runs `step` under the lock, then has what follows from it sent.
    pub(super) fn with<T>(
        &self,
        step: impl FnOnce(&mut MasterHost, Instant) -> T,
    ) -> Result<T, ErrorCode> {
        let mut state = self.state();
        if self.broken.load(Ordering::Acquire) {
            return Err(ErrorCode::InternalError);
        }
        let host = &mut state.host;
        let result = catch_unwind(AssertUnwindSafe(|| step(host, now()))).map_err(|_| {
            tracing::error!("the master is broken: it must be started again");
            self.broken.store(true, Ordering::Release);
            ErrorCode::InternalError
        })?;
        let mut replies = std::mem::take(&mut state.host.replies);
        if let Some(journal) = &self.journal {
            replies = journal.queue(state.host.core.take_notes(), replies);
        }
        let copies = std::mem::take(&mut state.host.copies);
        let awaited = std::mem::take(&mut state.host.awaited);
        let orders = std::mem::take(&mut state.host.orders);
        let marks = std::mem::take(&mut state.host.marks);
        // What is removed is mostly fenced when its client hears of it. Nobody waits for what a node is to remember,
        // unless it is marked.
        let orders_first = !marks.is_empty()
            || (orders.iter()).any(|(_, order)| !matches!(order, Order::Published(_)));
        let told = self.members.queue(orders, marks);
        let next = state.host.core.next_deadline().unwrap_or(Instant::NEVER);
        let ring = next < state.wakes;
        if ring {
            state.wakes = next;
        }
        let events = state.host.take_rung();
        drop(state);
        let tell = || told.iter().for_each(|node| self.members.send(*node));
        if orders_first {
            tell();
        }
        for (client, operation, reply) in replies {
            self.outgoing.answer(client, operation, reply);
        }
        if !orders_first {
            tell();
        }
        for (nodes, names) in awaited {
            self.members.ask_first(&nodes, names);
        }
        self.begin_copies(copies);
        if ring {
            self.bell.notify_all();
        }
        if let Some((events, _dropped)) = events {
            events.ring();
        }
        Ok(result)
    }

    /// Starts the thread that makes notes durable.
    fn start_committer(self: &Arc<Self>) -> Result<Option<JoinHandle<()>>, OpenError> {
        if self.journal.is_none() {
            return Ok(None);
        }
        let shell = Arc::clone(self);
        let thread = std::thread::Builder::new().name("slack-journal".to_owned());
        let run = move || {
            let outgoing = &shell.outgoing;
            let answer = |(client, operation, reply)| outgoing.answer(client, operation, reply);
            let ran = shell.journal.as_ref().map(|journal| journal.run(answer));
            if let Some(Err(error)) = ran {
                tracing::error!(%error, "the master takes no more requests");
                shell.broken.store(true, Ordering::Release);
            }
        };
        let started = thread.spawn(run);
        let what = "a thread";
        started
            .map(Some)
            .map_err(|why| OpenError::System { what, why })
    }

    /// Waits until what was noted is durable.
    pub(super) fn settle_journal(&self, until: Instant) -> bool {
        let journal = self.journal.as_ref();
        journal.is_none_or(|journal| journal.settle(until))
    }

    fn state(&self) -> MutexGuard<'_, MasterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn copied_now(&self) -> MutexGuard<'_, Vec<(TicketId, Result<(), ErrorCode>)>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what falls due, and sleeps until the next thing does.
    fn steward(&self) {
        while !self.bell.is_closed() {
            // Taken before the look at what is due: a ring from here on ends the wait.
            let seen = self.bell.seen();
            let stepped = self.with(|host, now| {
                for (ticket, result) in std::mem::take(&mut *self.copied_now()) {
                    host.take(now, Input::Copied { ticket, result });
                }
                host.on_deadline(now);
                for node in self.members.absent() {
                    if !host.core.has_node(node) {
                        tracing::warn!(%node, "a node did not come back: it is given up");
                        self.forget(node);
                    }
                }
            });
            if stepped.is_err() {
                return;
            }
            let wakes = {
                let mut state = self.state();
                state.wakes = state.host.core.next_deadline().unwrap_or(Instant::NEVER);
                state.wakes
            };
            let waiting = Waiting::at(&STEWARD).by(&Park).until(wakes);
            // Rung, due or closed: the next turn looks at all three.
            let _ = self.bell.wait(seen, &waiting);
        }
    }

    /// `nodes.hello`.
    fn hello(&self, handlers: &Handlers, call: &Call<'_>) {
        let Some(hello) = handlers.read::<NodeHello>(call) else {
            return;
        };
        let node = hello.node;
        let permitted = handlers
            .permitted(call, hello.epoch)
            .and_then(|permissions| may_lend(&permissions, &hello));
        let attached = permitted.and_then(|()| {
            self.with(|host, now| self.attach(host, now, (call.from(), call.key()), hello))
        });
        let attached = attached.unwrap_or_else(Attached::Refused);
        tracing::info!(%node, remote = call.remote(), ?attached, "a node");
        let welcome = NodeWelcome {
            epoch: self.outgoing.epoch,
            attached,
            reads: body::EMPTYING,
        };
        reply(call, &body::encode(&welcome).expect("a welcome is short"));
        self.members.send(node);
    }

    fn attach(
        &self,
        host: &mut MasterHost,
        now: Instant,
        (link, key): (ConnectionId, Option<PublicKey>),
        hello: NodeHello,
    ) -> Attached {
        let node = hello.node;
        if !host.core.has_node(node) {
            // It was given up, or never known.
            self.forget(node);
        }
        match self.members.greet(link, &hello) {
            Ok(NodeStanding::Resumed(taken)) => {
                host.take(now, Input::NodeBack(node));
                self.note_taken(host, now, node);
                return Attached::Resumed { taken };
            }
            Ok(NodeStanding::Unknown) => return Attached::Unknown,
            Ok(NodeStanding::Replaced) | Err(Taken) => {
                return Attached::Refused(ErrorCode::IllegalClient);
            }
            Ok(NodeStanding::New) => {}
        }
        self.forget(node);
        host.take(now, Input::NodeLost(node));
        // Processes of its host reach its memory without the network: what they read is brought there.
        let contact = hello.memory.contact.host.as_ref();
        let boot_id = contact.map(|host| host.boot_id.clone()).unwrap_or_default();
        for mount in &hello.segments {
            let mount = Mount {
                host: boot_id.clone(),
                ..mount.clone()
            };
            host.begin(now, Request::Mount(mount));
            let refused = match host.end() {
                Asked::Now(Reply::Done) => continue,
                Asked::Now(Reply::Failed(code)) => code,
                _ => ErrorCode::InternalError,
            };
            host.take(now, Input::NodeLost(node));
            return Attached::Refused(refused);
        }
        let minter = Arc::new(Minter::of(&hello.memory));
        let memory = identity(node).memory;
        let floor = host.core.generations_from(memory).unwrap_or(u64::MAX);
        self.outgoing.minters.add(memory, Arc::clone(&minter));
        self.members.add(link, key, &hello, minter);
        Attached::New { floor }
    }

    pub(super) fn forget(&self, node: NodeId) {
        self.outgoing.minters.remove(identity(node).memory);
        self.members.forget(node);
    }

    /// Tells the master which of its marks a node has taken.
    fn note_taken(&self, host: &mut MasterHost, now: Instant, node: NodeId) {
        if let Some(mark) = self.members.taken(node) {
            host.take(now, Input::Taken { node, mark });
        }
    }

    /// `nodes.reports`, which is not answered.
    fn reports(&self, call: &Call<'_>) {
        // Without a goodbye, after which the node would not come back.
        let make_anew = || call.mq().renew(call.from());
        let message: Reports = match body::decode(call.part(0).unwrap_or_default()) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%error, remote = call.remote(), "reports that are none");
                return make_anew();
            }
        };
        if message.epoch > self.outgoing.epoch {
            return;
        }
        let taken = self.with(|host, now| {
            let Some((node, reports)) = self.members.take(call.from(), message)? else {
                return Ok(None);
            };
            self.note_taken(host, now, node);
            for report in reports {
                host.report(now, node, report);
            }
            Ok(Some(node))
        });
        match taken {
            Ok(Ok(Some(node))) => self.members.send(node),
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) => {
                let error: slackwater_wire::OutOfStep = error;
                tracing::warn!(%error, remote = call.remote(), "the link of a node is made anew");
                make_anew();
            }
        }
    }
}

/// Whether a hello is of a node that its link may speak for, and of segments that are its own.
fn may_lend(permissions: &Permissions, hello: &NodeHello) -> Result<(), ErrorCode> {
    let own = identity(hello.node);
    let is_own = |mount: &slackwater_wire::Mount| {
        let segment = match mount.kind {
            SegmentKind::Memory => own.memory,
            SegmentKind::Disk => own.disk,
        };
        let named = NodeName::check_segment(&mount.name, hello.node, mount.kind).is_ok();
        named && mount.node == hello.node && mount.segment == segment
    };
    let numbered = (NODES_FROM..1 << 31).contains(&hello.node.0);
    if !permissions.node.covers(hello.node) {
        Err(ErrorCode::RoleNotPermitted)
    } else if numbered && !hello.segments.is_empty() && hello.segments.iter().all(is_own) {
        Ok(())
    } else {
        Err(ErrorCode::InvalidParams)
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::data::{MacKind, Segment as Contact};
    use slackwater_wire::{
        Epoch, Incarnation, MemoryAccess, Mount, NodeLife, Secret, SegmentId, Tenant,
    };

    use super::*;

    fn hello(node: u32, mounts: &[(u32, u32, SegmentKind)]) -> NodeHello {
        let mount = |(node, segment, kind): &(u32, u32, SegmentKind)| Mount {
            segment: SegmentId(*segment),
            name: "a".into(),
            node: NodeId(*node),
            incarnation: Incarnation(1),
            kind: *kind,
            bytes: 1 << 20,
            host: String::new(),
            generations: None,
            watermarks: None,
        };
        NodeHello {
            epoch: Epoch(0),
            node: NodeId(node),
            life: NodeLife([1, 2]),
            welcomed: false,
            taken: 0,
            segments: mounts.iter().map(mount).collect(),
            memory: MemoryAccess {
                contact: Contact {
                    name: "a".into(),
                    incarnation: Incarnation(1),
                    addresses: Vec::new(),
                    public_key: None,
                    host: None,
                },
                region: 0,
                secret: Secret([0; 32]),
                clock_nanos: 0,
                macs: MacKind::LATEST.number(),
            },
        }
    }

    #[test]
    fn a_node_lends_its_own_segments_by_its_own_link_alone() {
        use SegmentKind::{Disk, Memory};
        let check = |permissions: &Permissions, hello: &NodeHello, expected| {
            assert_eq!(may_lend(permissions, hello), expected, "{hello:?}");
        };
        let (own, both) = (
            Permissions::node(NodeId(300)),
            [(300, 600, Memory), (300, 601, Disk)],
        );
        check(&own, &hello(300, &both), Ok(()));
        check(&Permissions::FULL, &hello(300, &both), Ok(()));
        let role = Err(ErrorCode::RoleNotPermitted);
        for other in [
            Permissions::node(NodeId(301)),
            Permissions::admin(),
            Permissions::client([Tenant::DEFAULT]),
        ] {
            check(&other, &hello(300, &both), role);
        }
        let wrong = Err(ErrorCode::InvalidParams);
        check(&own, &hello(300, &[]), wrong);
        check(&own, &hello(300, &[(300, 602, Memory)]), wrong);
        check(&own, &hello(300, &[(300, 600, Disk)]), wrong);
        check(&own, &hello(300, &[(301, 600, Memory)]), wrong);
        check(&Permissions::FULL, &hello(1, &[(1, 2, Memory)]), wrong);
        // A name that jobs would take for the number of another node, and one that would be two lines of a list.
        let long = "a".repeat(261);
        for name in [
            "301",
            "",
            "a\nb",
            "a/ssd,b",
            "memory-301",
            "ssd-300",
            "a/ssd",
            &long,
        ] {
            let mut named = hello(300, &both);
            named.segments[0].name = name.to_owned();
            check(&own, &named, wrong);
        }
        let mut named = hello(300, &both);
        named.segments[0].name = "memory-300".to_owned();
        named.segments[1].name = "ssd-300".to_owned();
        check(&own, &named, Ok(()));
        named.segments[0].name = "10.0.0.1:12345".to_owned();
        named.segments[1].name = "10.0.0.1:12345/ssd".to_owned();
        check(&own, &named, Ok(()));
        let beyond = 1 << 31;
        check(
            &Permissions::FULL,
            &hello(beyond, &[(beyond, 0, Memory)]),
            wrong,
        );
    }
}
