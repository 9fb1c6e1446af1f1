//! A master and nodes that outlive it, over links that break: what is acknowledged holds, and nothing that is removed comes
//! back, however often the master starts again.
//!
//! Smaller than the cluster of the other tests, and without disks: what is played is the numbered link, the announcement of
//! memory, the journal, repeated operations, capabilities that are used late, and jobs.

mod carries;
mod client;
mod jobs;
mod links;
mod node;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Planted, Rng, plant};
use slackwater_meta::{Input, Journaled, Master, MasterConfig, Note, Offload, OffloadMode, Output};
use slackwater_tier::arena::{Access, AccessId, MemorySegment};
use slackwater_tier::{Agent, AgentConfig, AgentInput, AgentOutput};
use slackwater_wire::*;

use carries::Carries;
use client::{Asked, Open};
use jobs::{Jobs, Judged, READER, WATCHER, number};
use node::{Down, Link, Node, Up};
use verdicts::Succeeded;

const GRANULE: u64 = 4096;
const GRANULES: u64 = 64;
const KEYS: u64 = 12;
const CLIENT: ClientId = ClientId(9);
const STEPS: u64 = 500;
/// Seeds of one run of the tests: some minutes.
const SEEDS: std::ops::Range<u64> = 810_000..815_000;
/// Seeds in which a planted bug is searched.
const HUNTED: std::ops::Range<u64> = 810_000..811_000;

/// A node as its master knows it.
struct Member {
    life: u64,
    /// Its process when it mounted.
    process: u64,
    orders: NumberedSender<Order>,
    reports: NumberedReceiver,
}

struct Pool {
    rng: Rng,
    /// Keys that are used.
    keys: u64,
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
    /// By key: the newest version that a removal or a newer version may have ended.
    ending: BTreeMap<u64, u64>,
    carries: Carries,
    jobs: Jobs,
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

impl Pool {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(4);
        let keys = [3, KEYS][rng.below(2) as usize];
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
            ending: BTreeMap::new(),
            carries: Carries::default(),
            jobs: Jobs::default(),
            hits: 0,
            restarts: 0,
            keys,
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
        self.doom_ended();
        self.members.clear();
        self.nodes.iter_mut().for_each(|node| node.link = None);
        self.carries.unask_all();
        self.await_jobs();
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
        let report = match &input {
            Input::Report { report, .. } => Some(report),
            _ => None,
        };
        self.jobs.adopts = matches!(report, Some(Report::Holds { .. }));
        let mut out = Vec::new();
        self.master.handle(self.now, input, &mut out);
        self.outputs(out);
    }

    fn outputs(&mut self, out: Vec<Output>) {
        // Durable before anything that follows from it is said.
        let notes: Vec<Note> = self.master.take_notes();
        notes.iter().for_each(|note| self.journal.apply(note));
        let mut judged = Judged::default();
        for output in out {
            judged.see(&output, &mut self.jobs);
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
                Output::Reply { client, reply, .. } => {
                    assert!([WATCHER, READER].contains(&client) || reply == Reply::Done);
                }
                Output::AwaitTaken { .. } => {
                    unreachable!("no put of this load needs several hosts")
                }
                Output::Copy { node, task } => self.ask_copy(node, task),
                Output::AnnounceFirst { nodes, names } => {
                    for node in nodes {
                        self.ask_first(node.0, names.clone());
                    }
                }
            }
        }
        self.judge(judged);
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
        if let Request::Remove(remove) = &request {
            // Versions that are granted from now on are above.
            let keys = remove.keys.iter().map(number);
            self.ending.extend(keys.map(|key| (key, self.jobs.highest)));
        }
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

    /// One thing that happens.
    fn step(&mut self) {
        let key = self.rng.below(self.keys);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(134) {
            0..14 => self.put(key),
            14..34 => (0..3).for_each(|_| self.write()),
            34..40 => self.land(node),
            40..52 => self.get(key),
            52..58 => self.remove(key),
            58..86 => (0..8).for_each(|_| self.deliver(node)),
            86..90 => self.connect(node),
            90 | 91 => self.cut(node),
            92 if self.rng.below(8) == 0 => self.lose_drained(node),
            93..94 => self.restart(),
            94 if self.rng.below(4) == 0 => self.kill(node),
            96..100 => self.begin_job(),
            100..103 => self.cancel_job(),
            103..118 => self.carry_any(),
            118..130 => self.land(node),
            95 => match self.rng.below(6) {
                0..3 => self.pass(Duration::from_secs(1)),
                3..5 => self.pass(Duration::from_secs(15)),
                _ => self.wait_without(node),
            },
            _ => {
                let pause = self.rng.below(50);
                self.pass(Duration::from_millis(pause));
            }
        }
    }

    /// The bytes of a write land, whatever has happened since it began.
    fn land(&mut self, node: usize) {
        let writes = self.nodes[node].writes.len();
        if writes > 0 {
            self.nodes[node].land(writes - 1);
        }
    }

    /// The same, of the write to an extent.
    fn land_at(&mut self, extent: &ExtentRef) {
        let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
        let at = node.writes.iter().position(|(_, to, _)| to == extent);
        at.into_iter().for_each(|at| node.land(at));
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.master.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let at_risk = self.at_risk();
            let mut out = Vec::new();
            self.master.on_deadline(self.now, &mut out);
            self.doom_given_up(at_risk);
            self.outputs(out);
            self.members.retain(|node, _| {
                let linked = self.nodes[*node as usize].link.is_some();
                linked || self.master.has_node(NodeId(*node))
            });
        }
        self.now = end;
    }

    /// A node is without a link until it is given up; the others go on.
    fn wait_without(&mut self, node: usize) {
        if self.rng.below(4) > 0 {
            self.cut(node);
        }
        for _ in 0..70 {
            self.pass(Duration::from_secs(10));
            (0..self.nodes.len()).for_each(|at| self.exchange(at));
            self.carry_all();
        }
    }

    /// Everything that can happen without a new request happens.
    fn rest(&mut self) {
        (0..60).for_each(|_| self.rest_once());
    }

    fn rest_once(&mut self) {
        for at in 0..self.nodes.len() {
            self.connect(at);
            while !self.nodes[at].writes.is_empty() {
                self.land(at);
            }
            self.exchange(at);
        }
        self.carry_all();
    }

    /// What is on the link of a node arrives.
    fn exchange(&mut self, at: usize) {
        self.nodes[at].speak(self.now);
        let link = |pool: &mut Self| pool.nodes[at].link.as_mut().map(|it| it.up.pop_front());
        while let Some(Some(message)) = link(self) {
            self.arrived_up(at, message);
        }
        let link = |pool: &mut Self| pool.nodes[at].link.as_mut().map(|it| it.down.pop_front());
        while let Some(Some(message)) = link(self) {
            self.arrived_down(at, message);
        }
    }

    fn found(&mut self) -> BTreeMap<u64, u64> {
        let version = |pool: &mut Self, key| pool.describe(key).map(|(version, _)| (key, version));
        (0..KEYS).filter_map(|key| version(self, key)).collect()
    }

    /// Runs a seed; how many reads hit, and which jobs did what they say.
    fn run(seed: u64) -> (u64, Succeeded) {
        let mut pool = Self::new(seed);
        for step in 0..STEPS {
            pool.step();
            if step % 20 == 0 {
                pool.judge_all();
            }
        }
        pool.open.clear();
        pool.rest();
        pool.end_jobs();
        for _ in 0..20 {
            pool.pass(Duration::from_secs(60));
            pool.rest_once();
        }
        pool.rest();
        pool.judge_all();
        pool.judge_end();
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
        pool.drain_in_peace();
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
        pool.judge_all();
        pool.judge_end();
        (pool.hits, pool.jobs.succeeded)
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
    let add =
        |one: (u64, Succeeded), other: (u64, Succeeded)| (one.0 + other.0, one.1.and(other.1));
    let (hits, jobs) = std::thread::scope(|scope| {
        let run = move |seeds: std::ops::Range<u64>| {
            let none = (0, Succeeded::default());
            seeds.map(Pool::run).fold(none, add)
        };
        let other = scope.spawn(move || run(SEEDS.start..middle));
        add(run(middle..SEEDS.end), other.join().expect("no seed fails"))
    });
    let seeds = SEEDS.end - SEEDS.start;
    let enough = [
        hits > 2 * seeds,
        jobs.copies > seeds / 10,
        jobs.moves > seeds / 20,
        jobs.drains > seeds,
        jobs.again > seeds / 500,
    ];
    assert_eq!(
        enough, [true; 5],
        "{hits} hits, {jobs:?}: it plays too little"
    );
}

#[test]
fn bugs_of_the_pool_are_caught() {
    std::panic::set_hook(Box::new(|_| ()));
    let bugs = Planted::POOL.iter().chain(Planted::JOBS);
    let caught: Vec<_> = bugs
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
