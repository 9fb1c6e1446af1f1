//! What the master's mind costs: time of a lookup with its lease, of a put, of an eviction, and memory an object.

use std::time::{Duration, Instant as Clock};

use serde::Serialize;
use slackwater_base::{Checksum, Instant, Rng};
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{
    Eviction, Input, Master, MasterConfig, Offload, OffloadMode, OnHit, Output, Promotion,
};
use slackwater_wire::{
    Chain, ClientId, Get, Hold, Incarnation, Key, Mount, NodeId, OperationId, Order, Permissions,
    PutConfig, PutDone, PutEnd, PutEntry, PutStart, PutStarted, Reply, Report as NodeReport,
    Request, SegmentId, SegmentKind, Tenant,
};

use crate::removal::Removal;

/// The sizes and rounds of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// With how many objects in the catalog, one row each.
    pub objects: Vec<usize>,
    /// The policy of eviction; every operation is reported to it.
    pub policy: PolicyKind,
    /// Operations timed for each figure.
    pub samples: usize,
    /// With how many records that wait everything is removed, one row each.
    pub queued: Vec<usize>,
    /// What the random choice of keys follows from.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            objects: vec![1_000_000, 10_000_000],
            policy: Eviction::DEFAULT.policy,
            samples: 1_000_000,
            queued: vec![5_000, 50_000],
            seed: 1,
        }
    }
}

/// One row an object count.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The rows.
    pub rows: Vec<Row>,
    /// Removals of everything while it waits to be written.
    pub remove_all: Removal,
    /// What the figures are held against.
    pub limits: Limits,
}

/// Figures at one object count.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Objects in the catalog.
    pub objects: usize,
    /// The policy of eviction.
    pub policy: &'static str,
    /// A lookup of one random key with its lease, request to reply, in nanoseconds.
    pub lookup_ns: f64,
    /// The same within requests of 64 keys, a key.
    pub lookup_batch_ns: f64,
    /// A put of one object, start and end, in nanoseconds.
    pub allocate_ns: f64,
    /// An eviction, from the choice of the victim to the fenced extent's return, in nanoseconds.
    pub evict_ns: f64,
    /// Memory of the metadata an object, beside the bytes of its key, by the master's own account.
    pub bytes_per_object: f64,
    /// The same by what the process grew, keys taken off; zero where the system does not tell.
    pub resident_bytes_per_object: f64,
}

/// The requirements that the figures answer to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Longest lookup at the largest count.
    pub lookup_ns: f64,
    /// Most memory an object.
    pub bytes_per_object: f64,
}

/// Measures.
#[must_use]
pub fn run(options: &Options) -> Report {
    let rows = options
        .objects
        .iter()
        .map(|objects| measure(*objects, options))
        .collect();
    Report {
        rows,
        remove_all: crate::removal::run(&options.queued),
        limits: Limits {
            lookup_ns: 1000.0,
            bytes_per_object: 200.0,
        },
    }
}

const CLIENT: ClientId = ClientId(1);
const NODE: NodeId = NodeId(1);
const VALUE_BYTES: u64 = 4096;
const FILL_BATCH: usize = 256;
const READ_BATCH: usize = 64;
/// Requests built ahead of the clock.
const PREPARED: usize = 64;
/// Most evictions timed.
const EVICTIONS_TIMED: u64 = 1_000_000;

fn measure(objects: usize, options: &Options) -> Row {
    let before = resident_bytes();
    let mut bench = Bench::new(objects as u64 * VALUE_BYTES, options.policy);
    for first in (0..objects).step_by(FILL_BATCH) {
        let last = objects.min(first + FILL_BATCH);
        bench.put((first..last).map(key).collect());
    }
    let key_bytes = key(0).as_bytes().len();
    let grown = resident_bytes().saturating_sub(before) as f64 / objects as f64;
    let bytes_per_object = bench.master.overhead_bytes() as f64 / objects as f64;
    let mut rng = Rng::new(options.seed);
    let lookup_ns = bench.lookups(&mut rng, objects, options.samples, 1);
    let lookup_batch_ns = bench.lookups(&mut rng, objects, options.samples, READ_BATCH);
    let allocate_ns = bench.puts(objects, (objects / 100).min(options.samples));
    let evict_ns = bench.evictions(objects * 2);
    Row {
        objects,
        policy: options.policy.name(),
        lookup_ns,
        lookup_batch_ns,
        allocate_ns,
        evict_ns,
        bytes_per_object,
        resident_bytes_per_object: if grown > 0.0 {
            grown - key_bytes as f64
        } else {
            0.0
        },
    }
}

struct Bench {
    master: Master,
    now: Instant,
    operation: u64,
    out: Vec<Output>,
}

impl Bench {
    /// A master whose one segment is 90 % full when it holds `bytes`.
    fn new(bytes: u64, policy: PolicyKind) -> Self {
        let eviction = Eviction {
            policy,
            ..Eviction::default()
        };
        // There is no SSD: neither records nor the sketch of promotion belong to what is measured.
        let offload = Offload {
            mode: OffloadMode::Off,
            ..Offload::DEFAULT
        };
        let promotion = Promotion {
            on_hit: OnHit::Stay,
            ..Promotion::DEFAULT
        };
        let master = Master::new(
            MasterConfig {
                eviction,
                offload,
                promotion,
                ..MasterConfig::DEFAULT
            },
            1,
        );
        let mut bench = Self {
            master,
            now: Instant::from_nanos(1_000_000_000),
            operation: 0,
            out: Vec::new(),
        };
        let mount = Mount {
            segment: SegmentId(1),
            name: "memory".to_owned(),
            node: NODE,
            incarnation: Incarnation(1),
            kind: SegmentKind::Memory,
            bytes: (bytes / 90 * 100).next_multiple_of(VALUE_BYTES),
            host: "here".to_owned(),
            generations: None,
            watermarks: None,
        };
        bench.ask(Request::Mount(mount));
        bench
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.out.clear();
        let input = self.input(request);
        self.master.handle(self.now, input, &mut self.out);
        let reply = self.out.drain(..).find_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            Output::Order { .. }
            | Output::AwaitTaken { .. }
            | Output::Copy { .. }
            | Output::AnnounceFirst { .. } => None,
        });
        reply.expect("a master with room answers at once")
    }

    fn input(&mut self, request: Request) -> Input {
        self.operation += 1;
        self.now += Duration::from_nanos(100);
        Input::Request {
            client: CLIENT,
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId::unrepeated(self.operation),
            request,
        }
    }

    fn put(&mut self, keys: Vec<Key>) {
        let start = self.ask(start(&keys));
        let end = end(keys, &start);
        self.ask(end);
    }

    fn lookups(&mut self, rng: &mut Rng, objects: usize, samples: usize, batch: usize) -> f64 {
        let mut spent = Duration::ZERO;
        let mut done = 0;
        while done < samples {
            let inputs: Vec<Input> = (0..PREPARED / batch)
                .map(|_| {
                    let keys = (0..batch)
                        .map(|_| key(rng.below(objects as u64) as usize))
                        .collect();
                    let (tenant, chain, hold) = (Tenant::DEFAULT, Chain::default(), Hold::Lease);
                    self.input(Request::Get(Get {
                        tenant,
                        keys,
                        chain,
                        hold,
                        prefix_only: false,
                    }))
                })
                .collect();
            done += inputs.len() * batch;
            let begin = Clock::now();
            for input in inputs {
                self.out.clear();
                self.master.handle(self.now, input, &mut self.out);
            }
            spent += begin.elapsed();
        }
        spent.as_nanos() as f64 / done as f64
    }

    fn puts(&mut self, first: usize, samples: usize) -> f64 {
        let mut spent = Duration::ZERO;
        for at in first..first + samples {
            let keys = vec![key(at)];
            let input = self.input(start(&keys));
            self.out.clear();
            let begin = Clock::now();
            self.master.handle(self.now, input, &mut self.out);
            spent += begin.elapsed();
            let Some(Output::Reply { reply, .. }) = self.out.first() else {
                unreachable!("there is room")
            };
            let request = end(keys, reply);
            let input = self.input(request);
            self.out.clear();
            let begin = Clock::now();
            self.master.handle(self.now, input, &mut self.out);
            spent += begin.elapsed();
        }
        spent.as_nanos() as f64 / samples as f64
    }

    /// Puts until the high watermark is passed and takes the time of everything that follows from it.
    fn evictions(&mut self, first: usize) -> f64 {
        // Leases of the lookups before are over.
        self.now += Duration::from_secs(60);
        let mut at = first;
        let mut spent = Duration::ZERO;
        loop {
            let before = self.master.metrics().evictions;
            let begin = Clock::now();
            self.put(vec![key(at)]);
            at += 1;
            if self.master.metrics().evictions == before {
                continue;
            }
            while self.master.metrics().evictions - before < EVICTIONS_TIMED {
                let orders: Vec<NodeReport> = self.out.drain(..).filter_map(fenced).collect();
                for report in orders {
                    self.master.handle(
                        self.now,
                        Input::Report { node: NODE, report },
                        &mut self.out,
                    );
                }
                if self.master.next_deadline().is_none_or(|due| due > self.now) {
                    break;
                }
                self.master.on_deadline(self.now, &mut self.out);
            }
            spent += begin.elapsed();
            return spent.as_nanos() as f64 / (self.master.metrics().evictions - before) as f64;
        }
    }
}

fn fenced(output: Output) -> Option<NodeReport> {
    match output {
        Output::Order {
            order: Order::Fence(extents),
            ..
        } => Some(NodeReport::Fenced(extents)),
        _ => None,
    }
}

/// As long as the keys of real callers: a prefix and a hash.
pub(crate) fn key(number: usize) -> Key {
    let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::new(format!("model/layer/{hash:016x}").as_bytes()).expect("not empty, not long")
}

pub(crate) fn start(keys: &[Key]) -> Request {
    let entries = keys
        .iter()
        .map(|key| PutEntry {
            key: key.clone(),
            bytes: VALUE_BYTES,
        })
        .collect();
    let (tenant, chain, config) = (Tenant::DEFAULT, Chain::default(), PutConfig::default());
    Request::PutStart(PutStart {
        tenant,
        entries,
        chain,
        config,
    })
}

pub(crate) fn end(keys: Vec<Key>, started: &Reply) -> Request {
    let Reply::PutStart(results) = started else {
        unreachable!("that was a put")
    };
    let done = keys
        .into_iter()
        .zip(results)
        .filter_map(|(key, result)| match result {
            PutStarted::Granted { version, .. } => Some(PutDone {
                key,
                version: *version,
                checksum: Checksum(1),
            }),
            PutStarted::Exists | PutStarted::Failed(_) => None,
        });
    Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts: done.collect(),
        hosts: None,
    })
}

/// What the process has in memory, from the second field of Linux's `/proc/self/statm`.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_fills_every_field() {
        let report = run(&Options {
            objects: vec![5_000],
            samples: 1_000,
            queued: vec![100, 200],
            ..Options::default()
        });
        let row = &report.rows[0];
        for figure in [
            row.lookup_ns,
            row.lookup_batch_ns,
            row.allocate_ns,
            row.evict_ns,
            row.bytes_per_object,
        ] {
            assert!(figure.is_finite() && figure > 0.0, "{row:?}");
        }
    }
}
