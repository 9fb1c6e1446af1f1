//! A master and nodes that outlive it, over links that break: what is acknowledged holds, and nothing that is removed comes
//! back, however often the master starts again.
//!
//! Smaller than the cluster of the other tests, and without disks: what is played is the numbered link, the announcement of
//! memory, the journal, repeated operations, and capabilities that are used late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Planted, Rng, plant};
use slackwater_meta::{Input, Journaled, Master, MasterConfig, Note, Offload, OffloadMode, Output};
use slackwater_tier::arena::{Access, AccessId, MemorySegment};
use slackwater_tier::{Agent, AgentConfig, AgentInput, AgentOutput};
use slackwater_wire::*;

const GRANULE: u64 = 4096;
const GRANULES: u64 = 64;
const KEYS: u64 = 12;
const CLIENT: ClientId = ClientId(9);
const STEPS: u64 = 500;
/// Seeds of one run of the tests: some twenty seconds in the profile of the simulator.
const SEEDS: std::ops::Range<u64> = 800_000..805_000;
/// Seeds in which a planted bug is searched.
const HUNTED: std::ops::Range<u64> = 800_000..801_000;

/// What goes down a link to a node.
enum Down {
    Welcome(Attached),
    Orders(u64, u64, Vec<Order>),
}

/// What comes up from one.
enum Up {
    /// Life, whether a master has welcomed it, the last order taken, the highest generation.
    Hello(u64, bool, u64, u64),
    Reports(u64, u64, Vec<Report>),
}

/// The messages under way on the link of a node.
#[derive(Default)]
struct Link {
    /// The master has greeted the node, and the node has heard it.
    greeted: bool,
    heard: bool,
    down: VecDeque<Down>,
    up: VecDeque<Up>,
}

/// A node as its master knows it.
struct Member {
    life: u64,
    orders: NumberedSender<Order>,
    reports: NumberedReceiver,
}

struct Node {
    agent: Agent,
    process: u64,
    life: u64,
    welcomed: bool,
    reports: NumberedSender<Report>,
    orders: NumberedReceiver,
    /// Generations below are dead, except published ones.
    floor: u64,
    published: BTreeSet<(u64, u64)>,
    /// By the first byte of extents: generations below may be read only.
    sealed: BTreeMap<u64, u64>,
    /// Writes whose bytes have not landed.
    writes: Vec<(AccessId, ExtentRef, u64)>,
    stamps: Vec<u64>,
    link: Option<Link>,
}

/// What the client waits for.
enum Asked {
    Put {
        key: u64,
        request: Request,
    },
    End {
        key: u64,
        version: u64,
        request: Request,
    },
    Remove {
        key: u64,
        covers: u64,
        request: Request,
    },
    Get {
        key: u64,
        dead: u64,
    },
}

/// A put that was granted room, and the extents that are still to be written.
struct Open {
    key: u64,
    version: u64,
    left: Vec<ExtentRef>,
    all: Vec<ExtentRef>,
}

struct Pool {
    rng: Rng,
    now: Instant,
    master: Master,
    epoch: u64,
    journal: Journaled,
    members: BTreeMap<u32, Member>,
    nodes: Vec<Node>,
    next_operation: u64,
    asked: BTreeMap<OperationId, Asked>,
    open: Vec<Open>,
    /// By key: the newest version that was acknowledged, and the newest that must not be seen any more.
    newest: BTreeMap<u64, u64>,
    dead: BTreeMap<u64, u64>,
    hits: u64,
    restarts: u64,
}

fn memory(node: u32) -> SegmentId {
    SegmentId(node << 1)
}

fn name(key: u64) -> Key {
    Key::new(&key.to_be_bytes()).expect("as it was made")
}

fn stamp(key: u64, version: u64) -> u64 {
    version << 8 | key
}

fn process(node: u32, process: u64) -> Agent {
    let mut agent = Agent::new(AgentConfig {
        outlives: true,
        ..AgentConfig::new(NodeId(node))
    });
    agent.add_segment(MemorySegment {
        segment: memory(node),
        incarnation: Incarnation(process),
        bytes: GRANULES * GRANULE,
        granule: GRANULE,
    });
    agent
}

impl Node {
    fn start(node: u32, number: u64, life: u64) -> Self {
        Self {
            agent: process(node, number),
            process: number,
            life,
            welcomed: false,
            reports: NumberedSender::new(),
            orders: NumberedReceiver::default(),
            floor: 0,
            published: BTreeSet::new(),
            sealed: BTreeMap::new(),
            writes: Vec::new(),
            stamps: vec![0; GRANULES as usize],
            link: None,
        }
    }

    /// What the gate of a node decides.
    fn admits(&self, extent: &ExtentRef, access: Access) -> bool {
        let place = (extent.offset, extent.generation);
        let alive = extent.generation >= self.floor || self.published.contains(&place);
        let sealed = self.sealed.get(&extent.offset).copied().unwrap_or(0);
        alive && (access == Access::Read || extent.generation >= sealed.max(self.floor))
    }

    fn begin(&mut self, extent: &ExtentRef, access: Access) -> Option<AccessId> {
        let admitted = self.admits(extent, access);
        admitted.then(|| self.agent.begin_access(*extent, access).ok())?
    }

    fn take(&mut self, out: Vec<AgentOutput>) {
        for output in out {
            if let AgentOutput::Report(report) = output {
                self.reports.push(report);
            }
        }
    }

    /// Says what there is to be said, while there is a link on which it was welcomed.
    fn speak(&mut self, now: Instant) {
        // Writes that are under way to what nobody published keep memory from being given out.
        let quiet = self.writes.is_empty();
        let mut out = Vec::new();
        while self.reports.has_room() && self.agent.announce(now, quiet, &mut out) {}
        self.take(out);
        if let Some(link) = self.link.as_mut().filter(|link| link.heard) {
            while let Some((first, reports)) = self.reports.take() {
                let taken = self.orders.taken();
                link.up.push_back(Up::Reports(taken, first, reports));
            }
        }
    }

    fn end_access(&mut self, access: AccessId) -> bool {
        let mut out = Vec::new();
        let live = self.agent.end_access(access, &mut out);
        self.take(out);
        live
    }
}

impl Pool {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(3);
        let mut pool = Self {
            master: Master::new(MasterConfig::DEFAULT, 0),
            now: Instant::from_nanos(1_000_000_000),
            epoch: 0,
            journal: Journaled::default(),
            members: BTreeMap::new(),
            nodes: (0..nodes)
                .map(|node| Node::start(node as u32, 1, node + 1))
                .collect(),
            next_operation: 0,
            asked: BTreeMap::new(),
            open: Vec::new(),
            newest: BTreeMap::new(),
            dead: BTreeMap::new(),
            hits: 0,
            restarts: 0,
            rng,
        };
        pool.restart();
        pool.rest();
        pool
    }

    /// The master dies, and another one begins with its journal.
    fn restart(&mut self) {
        self.epoch += 1;
        self.restarts += 1;
        let config = MasterConfig {
            granule: GRANULE,
            offload: Offload {
                mode: OffloadMode::Off,
                ..Offload::DEFAULT
            },
            ..MasterConfig::DEFAULT
        };
        self.master = Master::new(config, self.epoch);
        self.master.start_above(Version(self.epoch << 20));
        self.master.restore(self.now, self.journal.clone());
        self.members.clear();
        self.nodes.iter_mut().for_each(|node| node.link = None);
        // The client repeats what was not answered, under the same numbers.
        let again: Vec<_> = self
            .asked
            .iter()
            .filter_map(|(operation, asked)| Some((*operation, asked.request()?)))
            .collect();
        self.asked.retain(|_, asked| asked.request().is_some());
        for (operation, request) in again {
            self.request(operation, request);
        }
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.master.handle(self.now, input, &mut out);
        self.outputs(out);
    }

    fn outputs(&mut self, out: Vec<Output>) {
        // Durable before anything that follows from it is said.
        let notes: Vec<Note> = self.master.take_notes();
        notes.iter().for_each(|note| self.journal.apply(note));
        for output in out {
            match output {
                Output::Order { node, order } => {
                    if let Some(member) = self.members.get_mut(&node.0) {
                        member.orders.push(order);
                    }
                }
                Output::Reply {
                    client,
                    operation,
                    reply,
                } if client == CLIENT => self.replied(operation, reply),
                Output::Reply { reply, .. } => assert_eq!(reply, Reply::Done),
                // Jobs are not played.
                Output::Copy { .. } => {}
            }
        }
        for node in 0..self.nodes.len() as u32 {
            self.order(node);
        }
    }

    fn order(&mut self, node: u32) {
        let life = self.nodes[node as usize].life;
        let (Some(member), Some(link)) = (
            self.members.get_mut(&node),
            &mut self.nodes[node as usize].link,
        ) else {
            return;
        };
        if member.life != life || !link.greeted {
            return;
        }
        loop {
            let next = member.orders.take();
            let Some((first, orders)) =
                next.or_else(|| member.reports.owes().then(Default::default))
            else {
                return;
            };
            let taken = member.reports.tell();
            link.down.push_back(Down::Orders(taken, first, orders));
        }
    }

    fn request(&mut self, operation: OperationId, request: Request) {
        self.input(Input::Request {
            client: CLIENT,
            host: None,
            permissions: Permissions::FULL,
            operation,
            request,
        });
    }

    fn ask(&mut self, asked: Asked, request: Request) {
        self.next_operation += 1;
        let operation = OperationId(self.next_operation);
        self.asked.insert(operation, asked);
        self.request(operation, request);
    }

    fn replied(&mut self, operation: OperationId, reply: Reply) {
        let Some(asked) = self.asked.remove(&operation) else {
            return;
        };
        match (asked, reply) {
            (Asked::Put { key, .. }, Reply::PutStart(started)) => {
                if let [PutStarted::Granted { version, extents }] = &started[..] {
                    self.open.push(Open {
                        key,
                        version: version.0,
                        left: extents.clone(),
                        all: extents.clone(),
                    });
                }
            }
            (Asked::End { key, version, .. }, Reply::Each(results)) if results[0].is_ok() => {
                let newest = self.newest.entry(key).or_default();
                *newest = version.max(*newest);
                let dead = self.dead.entry(key).or_default();
                *dead = (version - 1).max(*dead);
            }
            (Asked::Remove { key, covers, .. }, Reply::Each(results))
                if matches!(results[0], Ok(()) | Err(ErrorCode::ObjectNotFound)) =>
            {
                let dead = self.dead.entry(key).or_default();
                *dead = covers.max(*dead);
            }
            (Asked::Get { key, dead }, Reply::Get(lookups)) => {
                let [Lookup::Found(object)] = &lookups[..] else {
                    return;
                };
                assert!(
                    object.version.0 > dead,
                    "key {key}: version {} came back, {dead} was over",
                    object.version
                );
                self.hits += 1;
                let found = object.clone();
                found
                    .replicas
                    .iter()
                    .for_each(|at| self.read(key, &found, at));
            }
            _ => {}
        }
    }

    fn read(&mut self, key: u64, object: &Object, at: &ReplicaAt) {
        let ReplicaAt::Memory(extent) = at else {
            return;
        };
        let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
        let Some(access) = node.begin(extent, Access::Read) else {
            return;
        };
        let first = (extent.offset / GRANULE) as usize;
        let count = (extent.bytes / GRANULE) as usize;
        let right = node.stamps[first..first + count]
            .iter()
            .all(|it| *it == stamp(key, object.version.0));
        let live = node.end_access(access);
        assert!(!live || right, "wrong bytes of key {key} at {extent:?}");
    }

    /// One thing that happens.
    fn step(&mut self) {
        let key = self.rng.below(KEYS);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(100) {
            0..14 => self.put(key),
            14..34 => self.write(),
            34..40 => self.land(node),
            40..52 => self.get(key),
            52..58 => self.remove(key),
            58..86 => (0..8).for_each(|_| self.deliver(node)),
            86..90 => self.connect(node),
            90 | 91 => self.cut(node),
            93..94 => self.restart(),
            94 if self.rng.below(4) == 0 => self.kill(node),
            95 => {
                let seconds = [1, 1, 1, 15, 15, 700][self.rng.below(6) as usize];
                self.pass(Duration::from_secs(seconds));
            }
            _ => {
                let pause = self.rng.below(50);
                self.pass(Duration::from_millis(pause));
            }
        }
    }

    fn put(&mut self, key: u64) {
        let bytes = (1 + self.rng.below(3)) * GRANULE;
        let request = Request::PutStart(PutStart {
            tenant: Tenant::DEFAULT,
            entries: vec![PutEntry {
                key: name(key),
                bytes,
            }],
            chain: Chain::default(),
            config: PutConfig {
                mode: PutMode::Upsert,
                replicas: 1 + self.rng.below(2) as u32,
                wait: Some(Duration::ZERO),
                ..PutConfig::default()
            },
        });
        let again = request.clone();
        self.ask(
            Asked::Put {
                key,
                request: again,
            },
            request,
        );
    }

    /// A step of a put that was granted room, maybe long ago.
    fn write(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let open = &mut self.open[at];
        let (key, version) = (open.key, open.version);
        if let Some(extent) = open.left.pop() {
            let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
            match node.begin(&extent, Access::Write) {
                Some(access) => node.writes.push((access, extent, stamp(key, version))),
                None => drop(self.open.remove(at)),
            }
            return;
        }
        let open = self.open.swap_remove(at);
        // The nodes look at the bytes before the master decides.
        for extent in &open.all {
            let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
            let first = (extent.offset / GRANULE) as usize;
            let held = node.begin(extent, Access::Read);
            let right = node.stamps[first] == stamp(key, version);
            let live = held.is_some_and(|access| node.end_access(access));
            if !live || !right || node.link.is_none() {
                return;
            }
            let sealed = node.sealed.entry(extent.offset).or_default();
            *sealed = (extent.generation + 1).max(*sealed);
        }
        let puts = vec![PutDone {
            key: name(key),
            version: Version(version),
            checksum: Checksum(stamp(key, version)),
        }];
        let tenant = Tenant::DEFAULT;
        let request = Request::PutEnd(PutEnd { tenant, puts });
        let again = request.clone();
        let asked = Asked::End {
            key,
            version,
            request: again,
        };
        self.ask(asked, request);
    }

    /// The bytes of a write land, whatever has happened since it began.
    fn land(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if let Some((access, extent, stamp)) = node.writes.pop() {
            let first = (extent.offset / GRANULE) as usize;
            let count = (extent.bytes / GRANULE) as usize;
            node.stamps[first..first + count].fill(stamp);
            node.end_access(access);
        }
    }

    fn get(&mut self, key: u64) {
        let request = Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: vec![name(key)],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        });
        let dead = self.dead.get(&key).copied().unwrap_or(0);
        self.ask(Asked::Get { key, dead }, request);
    }

    fn remove(&mut self, key: u64) {
        let request = Request::Remove(Remove {
            tenant: Tenant::DEFAULT,
            keys: vec![name(key)],
            force: true,
        });
        let covers = self.newest.get(&key).copied().unwrap_or(0);
        let again = request.clone();
        let asked = Asked::Remove {
            key,
            covers,
            request: again,
        };
        self.ask(asked, request);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.master.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut out = Vec::new();
            self.master.on_deadline(self.now, &mut out);
            self.outputs(out);
            self.members.retain(|node, _| {
                let linked = self.nodes[*node as usize].link.is_some();
                linked || self.master.has_node(NodeId(*node))
            });
        }
        self.now = end;
    }

    fn connect(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.link.is_some() {
            return;
        }
        let hello = Up::Hello(
            node.life,
            node.welcomed,
            node.orders.taken(),
            node.agent.highest_generation(),
        );
        node.link = Some(Link {
            up: VecDeque::from([hello]),
            ..Link::default()
        });
    }

    fn cut(&mut self, at: usize) {
        if self.nodes[at].link.take().is_some() {
            self.input(Input::NodeAway(NodeId(at as u32)));
        }
    }

    /// The process of a node dies with its memory, and another one begins.
    fn kill(&mut self, at: usize) {
        self.cut(at);
        let number = self.nodes[at].process + 1;
        let life = self.rng.next_u64();
        self.nodes[at] = Node::start(at as u32, number, life);
        // Writes to it are over.
        let segment = memory(at as u32);
        self.open
            .retain(|open| open.all.iter().all(|it| it.segment != segment));
    }

    /// One message arrives, up or down.
    fn deliver(&mut self, at: usize) {
        self.connect(at);
        self.nodes[at].speak(self.now);
        let up = self.rng.below(2) == 0;
        let Some(link) = &mut self.nodes[at].link else {
            return;
        };
        if up {
            let message = link.up.pop_front();
            message.into_iter().for_each(|it| self.arrived_up(at, it));
        } else {
            let message = link.down.pop_front();
            message.into_iter().for_each(|it| self.arrived_down(at, it));
        }
    }

    fn arrived_up(&mut self, at: usize, message: Up) {
        let number = at as u32;
        match message {
            Up::Hello(life, welcomed, taken, generation) => {
                let node = NodeId(number);
                if !self.master.has_node(node) {
                    self.members.remove(&number);
                }
                let known = self.members.get_mut(&number);
                let attached = match known {
                    Some(member) if member.life == life && welcomed => {
                        match member.orders.resume(taken) {
                            Ok(()) => Attached::Resumed {
                                taken: member.reports.tell(),
                            },
                            Err(_) => Attached::Unknown,
                        }
                    }
                    _ if welcomed => Attached::Unknown,
                    _ => Attached::New { floor: 0 },
                };
                let attached = match attached {
                    Attached::New { .. } => self.attach(number, life, generation),
                    attached => attached,
                };
                if let Attached::Resumed { .. } = attached {
                    self.input(Input::NodeBack(node));
                }
                if let Some(link) = &mut self.nodes[at].link {
                    link.greeted = true;
                    link.down.push_back(Down::Welcome(attached));
                }
                self.order(number);
            }
            Up::Reports(taken, first, reports) => {
                let Some(member) = self.members.get_mut(&number) else {
                    return;
                };
                member.orders.acknowledge(taken).expect("it was sent");
                let reports = member.reports.accept(first, reports).expect("in order");
                for report in reports {
                    let node = NodeId(number);
                    self.input(Input::Report { node, report });
                }
                self.order(number);
            }
        }
    }

    fn attach(&mut self, number: u32, life: u64, generation: u64) -> Attached {
        let node = NodeId(number);
        self.members.remove(&number);
        self.input(Input::NodeLost(node));
        self.input(Input::Request {
            client: ClientId(1),
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId::unrepeated(0),
            request: Request::Mount(Mount {
                segment: memory(number),
                name: format!("memory{number}"),
                node,
                incarnation: Incarnation(self.nodes[number as usize].process),
                kind: SegmentKind::Memory,
                bytes: GRANULES * GRANULE,
                host: String::new(),
                generations: Some(generation),
            }),
        });
        let floor = self
            .master
            .generations_from(memory(number))
            .expect("it is mounted");
        let member = Member {
            life,
            orders: NumberedSender::new(),
            reports: NumberedReceiver::default(),
        };
        self.members.insert(number, member);
        Attached::New { floor }
    }

    fn arrived_down(&mut self, at: usize, message: Down) {
        let now = self.now;
        let life = self.rng.next_u64();
        let node = &mut self.nodes[at];
        match message {
            Down::Welcome(Attached::New { floor }) => {
                node.link.as_mut().expect("it came there").heard = true;
                node.welcomed = true;
                node.floor = floor;
                let published = node.agent.published();
                node.published = published.map(|it| (it.offset, it.generation)).collect();
                let mut out = Vec::new();
                node.agent.begin_announcing(now, &mut out);
                node.take(out);
            }
            Down::Welcome(Attached::Resumed { taken }) => {
                node.reports.resume(taken).expect("it was taken");
                node.link.as_mut().expect("it came there").heard = true;
            }
            Down::Welcome(Attached::Unknown) => {
                (node.life, node.welcomed) = (life, false);
                node.agent.stop_announcing();
                node.reports = NumberedSender::new();
                node.orders = NumberedReceiver::default();
                node.link = None;
                self.connect(at);
            }
            Down::Welcome(Attached::Refused(code)) => panic!("refused: {code}"),
            Down::Orders(taken, first, orders) => {
                node.reports.acknowledge(taken).expect("it was sent");
                for order in node.orders.accept(first, orders).expect("in order") {
                    if let Order::Fence(extents) = &order {
                        for extent in extents {
                            node.published.remove(&(extent.offset, extent.generation));
                        }
                    }
                    let mut out = Vec::new();
                    node.agent.handle(now, AgentInput::Order(order), &mut out);
                    node.take(out);
                }
                node.orders.tell();
            }
        }
    }

    /// Everything that can happen without a new request happens.
    fn rest(&mut self) {
        for _ in 0..60 {
            for at in 0..self.nodes.len() {
                self.connect(at);
                while !self.nodes[at].writes.is_empty() {
                    self.land(at);
                }
                self.nodes[at].speak(self.now);
                while let Some(message) = self.nodes[at]
                    .link
                    .as_mut()
                    .and_then(|it| it.up.pop_front())
                {
                    self.arrived_up(at, message);
                }
                while let Some(message) = self.nodes[at]
                    .link
                    .as_mut()
                    .and_then(|it| it.down.pop_front())
                {
                    self.arrived_down(at, message);
                }
            }
        }
    }

    fn found(&mut self) -> BTreeMap<u64, Version> {
        let describe = |pool: &mut Self, key| {
            let request = Request::Describe {
                tenant: Tenant::DEFAULT,
                key: name(key),
            };
            let mut out = Vec::new();
            let input = Input::Request {
                client: ClientId(2),
                host: None,
                permissions: Permissions::FULL,
                operation: OperationId::unrepeated(0),
                request,
            };
            pool.master.handle(pool.now, input, &mut out);
            out.into_iter().find_map(|output| match output {
                Output::Reply {
                    reply: Reply::Describe(found),
                    ..
                } => Some((key, found.version)),
                _ => None,
            })
        };
        (0..KEYS).filter_map(|key| describe(self, key)).collect()
    }

    /// Runs a seed; how many reads hit.
    fn run(seed: u64) -> u64 {
        let mut pool = Self::new(seed);
        for _ in 0..STEPS {
            pool.step();
        }
        pool.open.clear();
        pool.rest();
        pool.pass(Duration::from_secs(1200));
        pool.rest();
        assert!(
            !pool.master.is_partial(),
            "every node has announced everything"
        );
        let books = pool.master.check_books().expect("the books balance");
        assert_eq!((books.drops, books.unanswered, books.open_puts), (0, 0, 0));
        assert!(
            books.segments.iter().all(|it| it.quarantined == 0),
            "{books:?}"
        );
        let before = pool.found();
        pool.asked.clear();
        pool.restart();
        pool.rest();
        assert_eq!(
            pool.found(),
            before,
            "a restart loses and brings back nothing"
        );
        for key in 0..KEYS {
            pool.get(key);
        }
        pool.master.check_books().expect("the books balance");
        assert!(pool.journal.debts.is_empty(), "{:?}", pool.journal);
        pool.hits
    }
}

impl Asked {
    /// What is repeated when the master has died.
    fn request(&self) -> Option<Request> {
        match self {
            Self::Put { request, .. }
            | Self::End { request, .. }
            | Self::Remove { request, .. } => Some(request.clone()),
            Self::Get { .. } => None,
        }
    }
}

/// The first seed that finds something, with what it says.
fn first_failure(seeds: std::ops::Range<u64>, bug: Option<Planted>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        plant(bug);
        let ran = std::panic::catch_unwind(|| Pool::run(seed));
        plant(None);
        let why = ran.err()?;
        let text = why.downcast_ref::<String>().cloned();
        Some((seed, text.unwrap_or_default()))
    })
}

#[test]
fn what_is_acknowledged_holds_over_restarts_of_the_master() {
    let middle = SEEDS.start + (SEEDS.end - SEEDS.start) / 2;
    let hits: u64 = std::thread::scope(|scope| {
        let run = |seeds: std::ops::Range<u64>| -> u64 { seeds.map(Pool::run).sum() };
        let other = scope.spawn(move || run(SEEDS.start..middle));
        run(middle..SEEDS.end) + other.join().expect("no seed fails")
    });
    assert!(
        hits > 2 * (SEEDS.end - SEEDS.start),
        "{hits} hits: it plays too little"
    );
}

#[test]
fn bugs_of_the_pool_are_caught() {
    std::panic::set_hook(Box::new(|_| ()));
    let caught: Vec<_> = Planted::POOL
        .iter()
        .map(|bug| (bug, first_failure(HUNTED, Some(*bug))))
        .collect();
    let _ = std::panic::take_hook();
    assert!(
        caught.iter().all(|(_, found)| found.is_some()),
        "{caught:#?}"
    );
    for (seed, _) in caught.iter().filter_map(|(_, found)| found.as_ref()) {
        Pool::run(*seed);
    }
}
