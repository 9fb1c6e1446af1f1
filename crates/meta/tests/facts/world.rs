//! A master in a minimal environment: a clock, one request at a time, and nodes that carry out orders.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_meta::{
    Eviction, Input, Master, MasterConfig, Offload, OffloadMode, OnHit, Output, Promotion,
};
use slackwater_wire::*;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BLOCK: u64 = 64 << 10;
pub(crate) const ME: ClientId = ClientId(1);
pub(crate) const OTHER: ClientId = ClientId(2);
pub(crate) const NODE: NodeId = NodeId(1);
pub(crate) const MEMORY: SegmentId = SegmentId(1);
pub(crate) const DISK: SegmentId = SegmentId(2);

pub(crate) struct World {
    pub(crate) master: Master,
    pub(crate) now: Instant,
    /// Orders that no node has done yet.
    pub(crate) orders: VecDeque<(NodeId, Order)>,
    /// Copies that no node has made yet.
    pub(crate) copies: VecDeque<(NodeId, CopyTask)>,
    /// Marks of which nodes have not said yet that they have taken them.
    pub(crate) marks: Vec<(NodeId, u64)>,
    pub(crate) asked: Vec<(Vec<NodeId>, Vec<ObjectName>)>,
    /// The host of the clients, if they say it.
    pub(crate) host: Option<&'static str>,
    replies: Vec<(ClientId, OperationId, Reply)>,
    next_operation: u64,
    /// Whether nodes carry out fences and drops after each step.
    pub(crate) obedient: bool,
    /// Whether the books are checked after each step.
    pub(crate) checks: bool,
}

impl World {
    pub(crate) fn new(config: MasterConfig) -> Self {
        Self {
            master: Master::new(config, 7),
            now: Instant::from_nanos(1_000_000_000),
            orders: VecDeque::new(),
            copies: VecDeque::new(),
            marks: Vec::new(),
            asked: Vec::new(),
            host: None,
            replies: Vec::new(),
            next_operation: 0,
            obedient: true,
            checks: true,
        }
    }

    /// One node with this much memory and no SSD.
    pub(crate) fn memory(config: MasterConfig, bytes: u64) -> Self {
        let mut world = Self::new(config);
        world.mount(NODE, MEMORY, SegmentKind::Memory, bytes);
        world
    }

    /// One node with memory and SSD, all of which is announced.
    pub(crate) fn tiers(config: MasterConfig, memory: u64, disk: u64) -> Self {
        let mut world = Self::memory(config, memory);
        world.mount(NODE, DISK, SegmentKind::Disk, disk);
        world.report(
            NODE,
            Report::Announced {
                segment: DISK,
                highest: Version(0),
            },
        );
        world
    }

    pub(crate) fn mount(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        kind: SegmentKind,
        bytes: u64,
    ) {
        self.mount_as(&format!("segment-{segment}"), node, segment, kind, bytes);
    }

    pub(crate) fn mount_as(
        &mut self,
        name: &str,
        node: NodeId,
        segment: SegmentId,
        kind: SegmentKind,
        bytes: u64,
    ) {
        let mount = Mount {
            segment,
            name: name.to_owned(),
            node,
            incarnation: Incarnation(1),
            kind,
            bytes,
            host: format!("host-{node}"),
            generations: None,
            watermarks: None,
        };
        assert_eq!(self.ask(Request::Mount(mount)), Reply::Done);
    }

    pub(crate) fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.master.handle(self.now, input, &mut out);
        self.take(out);
    }

    pub(crate) fn report(&mut self, node: NodeId, report: Report) {
        self.input(Input::Report { node, report });
    }

    fn take(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Reply {
                    client,
                    operation,
                    reply,
                } => self.replies.push((client, operation, reply)),
                Output::Order { node, order } => self.orders.push_back((node, order)),
                Output::AwaitTaken { node, mark } => self.marks.push((node, mark)),
                Output::Copy { node, task } => self.copies.push_back((node, task)),
                Output::AnnounceFirst { nodes, names } => self.asked.push((nodes, names)),
            }
        }
        if self.obedient {
            self.obey();
        }
        if self.checks {
            self.master
                .check_books()
                .expect("books balance after every step");
            self.master
                .check_waits(self.now)
                .expect("no put waits for room that nobody makes");
        }
    }

    /// Carries out every fence and drop that was ordered, and says what was taken; other orders stay.
    pub(crate) fn obey(&mut self) {
        for (node, mark) in std::mem::take(&mut self.marks) {
            self.input(Input::Taken { node, mark });
        }
        for _ in 0..self.orders.len() {
            let Some((node, order)) = self.orders.pop_front() else {
                break;
            };
            match order {
                Order::Fence(extents) => self.report(node, Report::Fenced(extents)),
                Order::Drop(entries) => self.report(node, Report::Dropped(entries)),
                other => self.orders.push_back((node, other)),
            }
        }
    }

    /// Sends a request over a link with these permissions; the master answers at once.
    pub(crate) fn ask_with(&mut self, permissions: Permissions, request: Request) -> Reply {
        self.next_operation += 1;
        let operation = OperationId(self.next_operation);
        self.input(Input::Request {
            client: ME,
            host: None,
            permissions,
            operation,
            request,
        });
        self.reply(operation).expect("the master answers at once")
    }

    pub(crate) fn send(&mut self, client: ClientId, request: Request) -> OperationId {
        self.next_operation += 1;
        let operation = OperationId(self.next_operation);
        self.input(Input::Request {
            client,
            host: self.host.map(Into::into),
            permissions: Permissions::FULL,
            operation,
            request,
        });
        operation
    }

    /// Sends a request under the given number; returns the answer if it comes at once.
    pub(crate) fn repeat(
        &mut self,
        client: ClientId,
        operation: OperationId,
        request: &Request,
    ) -> Option<Reply> {
        let request = request.clone();
        self.input(Input::Request {
            client,
            host: None,
            permissions: Permissions::FULL,
            operation,
            request,
        });
        self.reply(operation)
    }

    pub(crate) fn reply(&mut self, operation: OperationId) -> Option<Reply> {
        let at = self
            .replies
            .iter()
            .position(|(_, other, _)| *other == operation)?;
        Some(self.replies.remove(at).2)
    }

    pub(crate) fn ask_as(&mut self, client: ClientId, request: Request) -> Reply {
        let operation = self.send(client, request);
        self.reply(operation).expect("the master answers at once")
    }

    pub(crate) fn ask(&mut self, request: Request) -> Reply {
        self.ask_as(ME, request)
    }

    /// Advances the time, and calls every deadline in between.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while let Some(at) = self.master.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            steps += 1;
            assert!(
                steps < 100_000,
                "deadlines without end: no work may be periodic"
            );
            let mut out = Vec::new();
            self.master.on_deadline(self.now, &mut out);
            self.take(out);
        }
        self.now = end;
    }

    pub(crate) fn start(&mut self, name: &str, bytes: u64, config: PutConfig) -> PutStarted {
        match self.ask(start(name, bytes, config)) {
            Reply::PutStart(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn end(&mut self, client: ClientId, name: &str, version: Version) -> Reply {
        self.ask_as(client, end(name, version))
    }

    pub(crate) fn put(&mut self, name: &str, bytes: u64) -> Version {
        self.put_with(name, bytes, PutConfig::default())
    }

    pub(crate) fn put_with(&mut self, name: &str, bytes: u64, config: PutConfig) -> Version {
        let PutStarted::Granted { version, .. } = self.start(name, bytes, config) else {
            panic!("no room for {name}");
        };
        assert_eq!(self.end(ME, name, version), Reply::Each(vec![Ok(())]));
        version
    }

    pub(crate) fn get(&mut self, name: &str) -> Lookup {
        self.get_with(name, Hold::Lease)
    }

    pub(crate) fn get_with(&mut self, name: &str, hold: Hold) -> Lookup {
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: vec![key(name)],
            chain: Chain::default(),
            hold,
            prefix_only: false,
        };
        match self.ask(Request::Get(get)) {
            Reply::Get(mut lookups) => lookups.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn found(&mut self, name: &str) -> Object {
        match self.get(name) {
            Lookup::Found(object) => object,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// Whether the object is there, without a read or lease.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        matches!(
            self.ask(Request::Describe {
                tenant: Tenant::DEFAULT,
                key: key(name)
            }),
            Reply::Describe(_)
        )
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<(), ErrorCode> {
        self.remove_with(name, false)
    }

    pub(crate) fn remove_with(&mut self, name: &str, force: bool) -> Result<(), ErrorCode> {
        match self.ask(remove(name, force)) {
            Reply::Each(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Removes by force for another client; `None` while the answer waits.
    pub(crate) fn remove_as(&mut self, client: ClientId, name: &str) -> Option<Reply> {
        self.obedient = false;
        let call = self.send(client, remove(name, true));
        let reply = self.reply(call);
        self.obedient = true;
        self.obey();
        reply
    }

    pub(crate) fn used(&self, segment: SegmentId) -> u64 {
        self.master
            .segments()
            .into_iter()
            .find(|state| state.segment == segment)
            .expect("mounted")
            .used_bytes
    }

    /// Takes the orders for which `pick` returns a value.
    pub(crate) fn taken<T>(&mut self, pick: impl Fn(&Order) -> Option<T>) -> Vec<T> {
        let picked: Vec<Option<T>> = self.orders.iter().map(|(_, order)| pick(order)).collect();
        let mut keep = picked.iter().map(Option::is_none);
        self.orders
            .retain(|_| keep.next().expect("one answer an order"));
        picked.into_iter().flatten().collect()
    }
}

/// The default configuration without offload and promotion, and with the same watermarks for SSD as for memory.
pub(crate) fn plain() -> MasterConfig {
    MasterConfig {
        eviction: Eviction {
            disk_high_watermark: Eviction::DEFAULT.high_watermark,
            disk_low_watermark: Eviction::DEFAULT.low_watermark,
            ..Eviction::DEFAULT
        },
        offload: Offload {
            mode: OffloadMode::Off,
            ..Offload::DEFAULT
        },
        promotion: Promotion {
            on_hit: OnHit::Stay,
            ..Promotion::DEFAULT
        },
        ..MasterConfig::DEFAULT
    }
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).expect("a key")
}

pub(crate) fn start(name: &str, bytes: u64, config: PutConfig) -> Request {
    let entries = vec![PutEntry {
        key: key(name),
        bytes,
    }];
    Request::PutStart(PutStart {
        tenant: Tenant::DEFAULT,
        entries,
        chain: Chain::default(),
        config,
    })
}

pub(crate) fn end(name: &str, version: Version) -> Request {
    let puts = vec![PutDone {
        key: key(name),
        version,
        checksum: Checksum(version.0.wrapping_mul(31)),
    }];
    Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts,
        hosts: None,
    })
}

pub(crate) fn remove(name: &str, force: bool) -> Request {
    Request::Remove(Remove {
        tenant: Tenant::DEFAULT,
        keys: vec![key(name)],
        force,
    })
}

pub(crate) fn upsert() -> PutConfig {
    PutConfig {
        mode: PutMode::Upsert,
        ..PutConfig::default()
    }
}

pub(crate) fn wait(time: Duration) -> PutConfig {
    PutConfig {
        wait: Some(time),
        ..PutConfig::default()
    }
}

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) fn reported(name: &str, version: u64, bytes: u64) -> ReportedEntry {
    let entry = DiskEntry {
        tenant: Tenant::DEFAULT,
        key: key(name),
        version: Version(version),
    };
    ReportedEntry {
        entry,
        bytes,
        checksum: Checksum(version * 31),
    }
}

pub(crate) fn offloads(world: &mut World) -> Vec<OffloadTask> {
    world
        .taken(|order| {
            if let Order::Offload(tasks) = order {
                Some(tasks.clone())
            } else {
                None
            }
        })
        .concat()
}

/// Carries out every offload that was ordered.
pub(crate) fn offload_all(world: &mut World) {
    let done: Vec<_> = offloads(world)
        .into_iter()
        .map(|task| (task.ticket, Ok(())))
        .collect();
    if !done.is_empty() {
        world.report(NODE, Report::Offloaded(done));
    }
}

/// Whether the first put of a call was given room.
pub(crate) fn is_granted(reply: &Option<Reply>) -> bool {
    matches!(reply, Some(Reply::PutStart(results)) if matches!(results[0], PutStarted::Granted { .. }))
}
