//! Every documented option changes something that can be seen from outside, or in the part that it is for.

use slackwater_base::Instant;
use slackwater_pool::copy::Isa;
use slackwater_tier::io::{DiskDone, DiskOp, DiskOutcome, LogFile, Target};
use slackwater_tier::{AgentInput, ReadEnd};
use slackwater_wire::{
    DiskEntry, Durability, Get, Incarnation, Pin, PutConfig, PutEntry, PutStart,
};

use super::core::{Asked, Core};
use super::open::Identity;
use super::*;
use crate::disk::{ReadOnlyDisk, log_files};
use crate::logging;

/// An option, two of its values, and what is seen with each.
struct Effect {
    key: &'static str,
    seen: [(&'static str, &'static str); 2],
    /// Options that the observation needs beside it.
    with: &'static [(&'static str, &'static str)],
    observe: fn(&Config) -> String,
}

const fn effect(
    key: &'static str,
    seen: [(&'static str, &'static str); 2],
    with: &'static [(&'static str, &'static str)],
    observe: fn(&Config) -> String,
) -> Effect {
    Effect {
        key,
        seen,
        with,
        observe,
    }
}

/// An SSD tier beside a little memory. The directory is the test's own.
const TIERED: &[(&str, &str)] = &[("memory", "8MiB"), ("ssd", "64MiB"), ("dir", "store")];
const REPLICATED: &[(&str, &str)] = &[("replication.mode", "enforce")];
const SMALL: &[(&str, &str)] = &[("memory", "1MiB")];

const EFFECTS: &[Effect] = &[
    effect(
        "memory",
        [("1MiB", "1048576"), ("2MiB", "2097152")],
        &[],
        |config| open(config).stats().memory.capacity_bytes.to_string(),
    ),
    effect(
        "ssd",
        [("0B", "none"), ("64MiB", "some")],
        TIERED,
        |config| {
            let ssd = open(config).stats().ssd;
            if ssd.is_some() { "some" } else { "none" }.to_owned()
        },
    ),
    effect(
        "dir",
        [("store", "store"), ("other", "other")],
        &[("ssd", "64MiB")],
        |config| {
            let directory = config.dir.clone().unwrap();
            drop(open(config));
            assert!(log_files(&directory).is_ok());
            directory
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        },
    ),
    effect(
        "policy",
        [("lru", "lru"), ("gittins", "gittins")],
        SMALL,
        |config| {
            let store = open(config);
            put(&store, "k", 100);
            let reasons = store.explain(b"k", &Tenant::DEFAULT).unwrap().unwrap();
            reasons[0].policy.clone()
        },
    ),
    effect(
        "offload",
        [("eager", "1"), ("on-evict", "0")],
        TIERED,
        |config| {
            let store = open(config);
            put(&store, "k", 100);
            store.flush(LONG).unwrap();
            store.stats().ssd.unwrap().records.to_string()
        },
    ),
    effect(
        "tenants",
        [("true", "unknown"), ("false", "stored")],
        SMALL,
        |config| {
            let options = PutOptions {
                tenant: Tenant::new("acme").unwrap(),
                ..PutOptions::default()
            };
            match open(config).put(b"k", b"v", &options) {
                Ok(_) => "stored".to_owned(),
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::TenantNotRegistered);
                    "unknown".to_owned()
                }
            }
        },
    ),
    effect(
        "lease_ttl",
        [("1s", "removed"), ("1h", "leased")],
        SMALL,
        |config| {
            let store = open(config);
            put(&store, "k", 100);
            assert_eq!(store.exists(&[b"k"], &Tenant::DEFAULT), Ok(vec![true]));
            store.skip_to(Duration::from_secs(60)).unwrap();
            match only(store.remove(&[b"k"], &RemoveOptions::default())) {
                Ok(()) => "removed".to_owned(),
                Err(_) => "leased".to_owned(),
            }
        },
    ),
    effect(
        "soft_pin_ttl",
        [("1s", "none"), ("1h", "soft")],
        SMALL,
        |config| {
            let store = open(config);
            let options = PutOptions {
                pin: Pin::Soft(None),
                ..PutOptions::default()
            };
            store.put(b"k", b"v", &options).unwrap();
            store.skip_to(Duration::from_secs(60)).unwrap();
            match store.describe(b"k", &Tenant::DEFAULT).unwrap().unwrap().pin {
                Pin::Soft(Some(left)) if !left.is_zero() => "soft".to_owned(),
                _ => "none".to_owned(),
            }
        },
    ),
    effect("put_wait", [("1s", "1s"), ("3s", "3s")], SMALL, |config| {
        waits_for_room(config, None)
    }),
    effect(
        "restart_wait",
        [("1s", "1s"), ("3s", "3s")],
        SMALL,
        waits_after_a_restart,
    ),
    effect(
        "replication.mode",
        [("off", "0"), ("enforce", "1")],
        &[],
        |config| replicas_made(config, &[(0, 8)]),
    ),
    effect(
        "replication.reads",
        [("4", "1"), ("5", "0")],
        REPLICATED,
        |config| replicas_made(config, &[(0, 4)]),
    ),
    effect(
        "replication.window",
        [("6s", "1"), ("5s", "0")],
        REPLICATED,
        |config| replicas_made(config, &[(0, 7), (5, 1)]),
    ),
    effect(
        "replication.replicas",
        [("2", "1"), ("3", "2")],
        REPLICATED,
        |config| replicas_made(config, &[(0, 8), (60, 8), (120, 8)]),
    ),
    effect(
        "replication.high",
        [("19%", "0"), ("20%", "1")],
        REPLICATED,
        |config| replicas_made(config, &[(0, 8)]),
    ),
    effect("deadline", [("1s", "1s"), ("3s", "3s")], SMALL, |config| {
        waits_for_room(config, Some(LONG))
    }),
    effect(
        "evict.high",
        [("50%", "50 %"), ("100%", "100 %")],
        &[
            ("memory", "1MiB"),
            ("evict.low", "20%"),
            ("promotion.high", "20%"),
            ("policy", "lru"),
        ],
        |config| most_and_least_used(config).0,
    ),
    effect(
        "evict.low",
        [("20%", "20 %"), ("50%", "50 %")],
        &[
            ("memory", "1MiB"),
            ("evict.high", "80%"),
            ("promotion.high", "20%"),
            ("policy", "lru"),
        ],
        |config| most_and_least_used(config).1,
    ),
    effect(
        "evict.ssd_high",
        [
            ("40%", "below to below half"),
            ("90%", "below to above half"),
        ],
        SSD_LOW,
        ssd_after_filling,
    ),
    effect(
        "evict.ssd_low",
        [
            ("0%", "below to above half"),
            ("80%", "above to above half"),
        ],
        SSD_HIGH,
        ssd_after_filling,
    ),
    effect(
        "evict.block_tokens",
        [("1", "1"), ("600", "600")],
        &[],
        |config| {
            // What it scales is learned from much traffic: the master is asked what it was told.
            super::open::master_config(config)
                .eviction
                .block_tokens
                .to_string()
        },
    ),
    effect(
        "promotion.enabled",
        [("true", "4 read"), ("false", "0 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.admission",
        [("frequency", "0 read"), ("index", "4 read")],
        LRU_TIERED,
        |config| promoted(config, 1),
    ),
    effect(
        "promotion.threshold",
        [("2", "4 read"), ("3", "0 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.limit",
        [("2", "2 read"), ("100", "4 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.batch",
        [("1", "1 read"), ("16", "4 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.rate",
        [("0B", "4 read"), ("1B", "1 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.high",
        [("0%", "0 read"), ("90%", "4 read")],
        TIERED,
        |config| promoted(config, 2),
    ),
    effect(
        "promotion.deadline",
        [("1s", "4 expired"), ("1h", "0 expired")],
        TIERED,
        |config| {
            let mut core = recovered(config);
            read_all(&mut core, 2);
            core.on_deadline(Instant::ZERO + Duration::from_secs(60));
            format!(
                "{} expired",
                core.master().unwrap().metrics().promotion.expired
            )
        },
    ),
    effect(
        "file_bytes",
        [("1MiB", "1048576"), ("2MiB", "2097152")],
        TIERED,
        |config| {
            let store = open(config);
            put_durable(&store, "k", 100);
            let files = log_files(config.dir.as_ref().unwrap()).unwrap();
            files[0].1.to_string()
        },
    ),
    effect(
        "flush_delay",
        [("20s", "20s"), ("60s", "60s")],
        TIERED,
        |config| {
            let store = open(config);
            put(&store, "k", 100);
            let due = store.shared().with(|core, now| {
                let at = core.node.agent.next_deadline().unwrap();
                now.until(at).as_secs_f64()
            });
            format!("{:.0}s", due.unwrap())
        },
    ),
    effect(
        "pace.read_percent",
        [("150", "0.1 pieces"), ("400", "2 pieces")],
        TIERED,
        writes_beside_slow_reads,
    ),
    effect(
        "pace.write_share",
        [("10%", "0.1 pieces"), ("50%", "0.5 pieces")],
        TIERED,
        writes_beside_slow_reads,
    ),
    effect(
        "io",
        [("pread", "pread"), ("auto", "auto")],
        TIERED,
        |config| {
            let io = open(config).stats().io;
            let asked = io.reason.starts_with("asked for");
            if asked { io.chosen } else { "auto".to_owned() }
        },
    ),
    effect("io_depth", [("1", "1"), ("7", "7")], TIERED, |config| {
        open(config).ssd().disk.readers.depth().to_string()
    }),
    effect(
        "read_buffers",
        [("1MiB", "1048576"), ("3MiB", "3145728")],
        TIERED,
        |config| open(config).ssd().disk.readers.buffer_bytes().to_string(),
    ),
    effect(
        "views.limit",
        [("1", "TASK_PENDING_LIMIT_EXCEEDED"), ("2", "shown")],
        SMALL,
        |config| second_view(&open(config), Duration::ZERO),
    ),
    effect(
        "views.time",
        [("1s", "TASK_PENDING_LIMIT_EXCEEDED"), ("1h", "shown")],
        SMALL,
        |config| second_view(&open(config), Duration::from_secs(60)),
    ),
    effect(
        "views.buffers",
        [("1MiB", "NO_AVAILABLE_HANDLE"), ("3MiB", "shown")],
        TIERED,
        |config| {
            let store = open(config);
            for key in ["a", "b"] {
                put_durable(&store, key, 1_000_000);
            }
            store.close().unwrap();
            second_view(&open(config), Duration::ZERO)
        },
    ),
    effect(
        "huge_pages",
        [("off", "ordinary pages"), ("transparent", "other")],
        SMALL,
        |config| {
            let pages = open(config).stats().pages;
            if pages.reason == "asked for" && pages.chosen == "ordinary pages" {
                pages.chosen
            } else {
                "other".to_owned()
            }
        },
    ),
    effect("copy_threads", [("0", "0"), ("3", "3")], SMALL, |config| {
        let store = open(config);
        let pool = store.shared().copier.pool(1 << 30, 1);
        pool.map_or(0, slackwater_pool::Pool::threads).to_string()
    }),
    effect(
        "isa",
        [("portable", "portable"), ("auto", "widest")],
        SMALL,
        |config| {
            let _store = open(config);
            let (chosen, widest) = (Isa::current(), Isa::widest());
            widest.install().unwrap();
            if chosen == widest {
                "widest"
            } else {
                chosen.name()
            }
            .to_owned()
        },
    ),
    effect(
        "wait",
        [("park", "Park"), ("spin", "Spin")],
        SMALL,
        |config| format!("{:?}", open(config).shared().waits.strategy),
    ),
    effect(
        "log",
        [("warn", "silent"), ("info", "said")],
        &[],
        |config| {
            if one_line(config).is_empty() {
                "silent"
            } else {
                "said"
            }
            .to_owned()
        },
    ),
    effect(
        "log_format",
        [("text", "text"), ("json", "json")],
        &[],
        |config| {
            if one_line(config).starts_with('{') {
                "json"
            } else {
                "text"
            }
            .to_owned()
        },
    ),
];

const LONG: Duration = Duration::from_secs(60);
const LRU_TIERED: &[(&str, &str)] = &[
    ("memory", "8MiB"),
    ("ssd", "64MiB"),
    ("dir", "store"),
    ("policy", "lru"),
];
const SSD_LOW: &[(&str, &str)] = &[
    ("memory", "8MiB"),
    ("ssd", "16MiB"),
    ("file_bytes", "1MiB"),
    ("dir", "store"),
    ("policy", "lru"),
    ("evict.ssd_low", "10%"),
];
const SSD_HIGH: &[(&str, &str)] = &[
    ("memory", "8MiB"),
    ("ssd", "16MiB"),
    ("file_bytes", "1MiB"),
    ("dir", "store"),
    ("policy", "lru"),
    ("evict.ssd_high", "90%"),
];

impl Store {
    fn ssd(&self) -> &super::shared::Ssd {
        self.shared().disk.as_ref().unwrap()
    }
}

fn open(config: &Config) -> Store {
    Store::open(config.clone()).unwrap()
}

fn put(store: &Store, key: &str, bytes: usize) {
    let value = vec![7; bytes];
    store
        .put(key.as_bytes(), &value, &PutOptions::default())
        .unwrap();
}

fn put_durable(store: &Store, key: &str, bytes: usize) {
    let options = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    store
        .put(key.as_bytes(), &vec![7; bytes], &options)
        .unwrap();
}

/// How a view of `b` ends while one of `a` has been open for so long.
fn second_view(store: &Store, after: Duration) -> String {
    if store.stats().objects == 0 {
        put(store, "a", 100);
        put(store, "b", 100);
    }
    let _first = store.view(b"a", &ViewOptions::default()).unwrap().unwrap();
    store.skip_to(after).unwrap();
    match store.view(b"b", &ViewOptions::default()) {
        Ok(view) => view.map_or("missing", |_| "shown").to_owned(),
        Err(error) => error.code().name().to_owned(),
    }
}

/// How many further replicas the master of a pool with three nodes makes of a value that fills a fifth of a node's memory and is
/// read so often at these seconds.
fn replicas_made(config: &Config, reads: &[(u64, u32)]) -> String {
    use slackwater_meta::{Input, Output};
    use slackwater_wire::{ClientId, NodeId, OperationId, Reply, SegmentId};

    let mut master = slackwater_meta::Master::new(super::open::pool_config(config), 1);
    let mut operation = 0;
    let mut ask = |master: &mut slackwater_meta::Master, now, request: Request| {
        operation += 1;
        let mut out = Vec::new();
        let request = Input::Request {
            client: ClientId(1),
            host: None,
            permissions: slackwater_wire::Permissions::FULL,
            operation: OperationId(operation),
            request,
        };
        master.handle(now, request, &mut out);
        out
    };
    let memory = 1 << 20;
    for node in 1..=3 {
        let mount = slackwater_wire::Mount {
            segment: SegmentId(node),
            name: format!("memory-{node}"),
            node: NodeId(node),
            incarnation: Incarnation(1),
            kind: slackwater_wire::SegmentKind::Memory,
            bytes: memory,
            host: String::new(),
            generations: None,
            watermarks: None,
        };
        ask(&mut master, Instant::ZERO, Request::Mount(mount));
    }
    let key = Key::new(b"k").unwrap();
    let start = Request::PutStart(PutStart {
        tenant: Tenant::DEFAULT,
        entries: vec![PutEntry {
            key: key.clone(),
            bytes: memory / 5 / 4096 * 4096,
        }],
        chain: slackwater_wire::Chain::default(),
        config: PutConfig::default(),
    });
    let granted = ask(&mut master, Instant::ZERO, start);
    let version = granted.iter().find_map(|output| match output {
        Output::Reply {
            reply: Reply::PutStart(started),
            ..
        } => match started[..] {
            [slackwater_wire::PutStarted::Granted { version, .. }] => Some(version),
            _ => None,
        },
        _ => None,
    });
    let end = Request::PutEnd(slackwater_wire::PutEnd {
        tenant: Tenant::DEFAULT,
        puts: vec![slackwater_wire::PutDone {
            key: key.clone(),
            version: version.expect("there is room"),
            checksum: slackwater_base::Checksum(1),
        }],
        hosts: None,
    });
    ask(&mut master, Instant::ZERO, end);
    let mut made = 0;
    for (second, count) in reads {
        let now = Instant::ZERO + Duration::from_secs(*second);
        for _ in 0..*count {
            let get = Request::Get(Get {
                tenant: Tenant::DEFAULT,
                keys: vec![key.clone()],
                chain: slackwater_wire::Chain::default(),
                hold: slackwater_wire::Hold::Lease,
                prefix_only: false,
            });
            for output in ask(&mut master, now, get) {
                if let Output::Copy { task, .. } = output {
                    made += 1;
                    let copied = Input::Copied {
                        ticket: task.ticket,
                        result: Ok(()),
                    };
                    master.handle(now, copied, &mut Vec::new());
                }
            }
        }
    }
    made.to_string()
}

/// How long the master of a pool has a read wait whose only node it has not heard of yet.
fn waits_after_a_restart(config: &Config) -> String {
    let mut master = slackwater_meta::Master::new(super::open::pool_config(config), 1);
    let journal = slackwater_meta::Journaled {
        nodes: [(slackwater_wire::NodeId(300), false)].into(),
        ..slackwater_meta::Journaled::default()
    };
    master.restore(Instant::ZERO, journal);
    let get = slackwater_meta::Input::Request {
        client: slackwater_wire::ClientId(1),
        host: None,
        permissions: slackwater_wire::Permissions::FULL,
        operation: slackwater_wire::OperationId(1),
        request: Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: vec![Key::new(b"k").unwrap()],
            chain: slackwater_wire::Chain::default(),
            hold: slackwater_wire::Hold::Lease,
            prefix_only: false,
        }),
    };
    let mut out = Vec::new();
    master.handle(Instant::ZERO, get, &mut out);
    assert_eq!(out, []);
    let until = master.next_deadline().unwrap();
    slackwater_base::format_duration(Instant::ZERO.until(until))
}

/// How long a put may wait for room when there is none.
fn waits_for_room(config: &Config, wait: Option<Duration>) -> String {
    let mut core = cores(config);
    let put = |key: &[u8]| {
        Request::PutStart(PutStart {
            tenant: Tenant::DEFAULT,
            entries: vec![PutEntry {
                key: Key::new(key).unwrap(),
                bytes: config.memory.0,
            }],
            chain: slackwater_wire::Chain::default(),
            config: PutConfig {
                wait,
                ..PutConfig::default()
            },
        })
    };
    assert!(matches!(
        core.ask(Instant::ZERO, put(b"all")),
        Asked::Now(_)
    ));
    assert!(matches!(
        core.ask(Instant::ZERO, put(b"more")),
        Asked::Later(_)
    ));
    slackwater_base::format_duration(Instant::ZERO.until(core.next_deadline()))
}

/// The fullest and the emptiest that memory was while it overflowed, in tenths.
fn most_and_least_used(config: &Config) -> (String, String) {
    let store = open(config);
    let mut used = Vec::new();
    for round in 0..400 {
        put(&store, &format!("k{round}"), 4096);
        used.push(store.stats().memory.used_bytes);
    }
    let tenths = |bytes: u64| {
        let share = bytes as f64 / config.memory.0 as f64;
        format!("{:.0} %", (share * 10.0).round() * 10.0)
    };
    let most = used.iter().copied().max().unwrap();
    let full = used.iter().position(|bytes| *bytes == most).unwrap();
    let least = used[full..].iter().copied().min().unwrap();
    (tenths(most), tenths(least))
}

/// How full the SSD became before it evicted, and how empty after.
fn ssd_after_filling(config: &Config) -> String {
    let store = open(config);
    let mut used = Vec::new();
    for round in 0..20 {
        put_durable(&store, &format!("k{round}"), 1_000_000);
        store.flush(LONG).unwrap();
        let ssd = store.stats().ssd.unwrap();
        used.push(ssd.used_bytes as f64 / ssd.capacity_bytes as f64);
    }
    let most = used.iter().copied().fold(0.0, f64::max);
    let full = used.iter().position(|share| *share == most).unwrap();
    let least = used[full..].iter().copied().fold(1.0, f64::min);
    let half = |share: f64| if share < 0.5 { "below" } else { "above" };
    format!("{} to {} half", half(least), half(most))
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// How many records are read at once to be promoted after so many reads of four values that are on SSD alone.
fn promoted(config: &Config, reads: usize) -> String {
    let mut core = recovered(config);
    read_all(&mut core, reads);
    // Nobody brings the bytes: the promotions read the device themselves.
    core.on_deadline(Instant::ZERO + Duration::from_millis(100));
    let into_memory = |(_, op): &&(_, DiskOp)| {
        matches!(
            op,
            DiskOp::Read {
                into: Target::Extent(_),
                ..
            }
        )
    };
    format!("{} read", core.node.ops.iter().filter(into_memory).count())
}

fn read_all(core: &mut Core, reads: usize) {
    for _ in 0..reads {
        let get = Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: KEYS.map(|key| Key::new(key.as_bytes()).unwrap()).into(),
            chain: slackwater_wire::Chain::default(),
            hold: slackwater_wire::Hold::default(),
            prefix_only: false,
        });
        assert!(matches!(
            core.ask(Instant::ZERO, get),
            Asked::Now(Reply::Get(_))
        ));
    }
}

/// How many pieces of writes may be under way after reads that took three times as long beside them as alone.
fn writes_beside_slow_reads(config: &Config) -> String {
    let mut core = recovered(config);
    let now = Instant::ZERO + Duration::from_secs(1);
    let alone = Duration::from_millis(1);
    read_taking(&mut core, now, KEYS[0], alone, |_| ());
    let remove = Request::Remove(Remove {
        tenant: Tenant::DEFAULT,
        keys: vec![Key::new(KEYS[1].as_bytes()).unwrap()],
        force: true,
    });
    core.ask(now, remove);
    // The file for its tombstone is made, and the write of that does not end.
    loop {
        let ops = core.take_ops();
        if ops.iter().any(|(_, op)| matches!(op, DiskOp::Write { .. })) {
            break;
        }
        assert!(!ops.is_empty(), "a removal is written");
        let done = |(op, _)| DiskDone {
            op,
            result: Ok(DiskOutcome::Done),
        };
        core.disk_done(now, &mut ops.into_iter().map(done).collect());
    }
    for _ in 0..100 {
        read_taking(&mut core, now, KEYS[0], 3 * alone, |_| ());
    }
    let window = core.node.agent.stats().write_window_milli;
    format!("{} pieces", window as f64 / 1e3)
}

/// Reads a record as a caller does, whose device takes so long; `meanwhile` happens before it ends.
pub(super) fn read_taking(
    core: &mut Core,
    now: Instant,
    key: &str,
    took: Duration,
    meanwhile: impl FnOnce(&mut Core),
) {
    let (tenant, key) = (Tenant::DEFAULT, Key::new(key.as_bytes()).unwrap());
    let (of, named) = (tenant.clone(), key.clone());
    let Asked::Now(Reply::Describe(described)) = core.ask(
        now,
        Request::Describe {
            tenant: of,
            key: named,
        },
    ) else {
        panic!("{key} is there");
    };
    let version = described.version;
    let entry = DiskEntry {
        tenant,
        key,
        version,
    };
    let read = core.begin_read(now, &entry).expect("it is on SSD");
    meanwhile(core);
    core.end_read(now, read, (ReadEnd::Done, took));
}

/// The cores of a store with its segments mounted and whose clock does not move.
fn cores(config: &Config) -> Core {
    let incarnation = Incarnation(1);
    let mut core = Core::new(
        Some(slackwater_meta::Master::new(
            super::open::master_config(config),
            1,
        )),
        super::open::agent(config, &Identity::OWN, incarnation),
        super::open::views(config),
    );
    for mount in super::open::mounts(config, &Identity::OWN, incarnation) {
        core.ask(Instant::ZERO, Request::Mount(mount));
    }
    core
}

/// The cores of a store that was opened over four values on SSD and whose clock does not move.
fn recovered(config: &Config) -> Core {
    let store = open(config);
    KEYS.iter().for_each(|key| put_durable(&store, key, 1000));
    store.close().unwrap();
    let directory = config.dir.as_ref().unwrap();
    let mut core = cores(config);
    let files = log_files(directory).unwrap();
    let files = files
        .into_iter()
        .map(|(file, bytes)| LogFile { file, bytes })
        .collect();
    let disk = ReadOnlyDisk::new(directory);
    core.open(Instant::ZERO, AgentInput::Open { files, fresh: 0 });
    while core.node.is_opening() {
        let ops = core.take_ops();
        let done = |(op, request): &(_, DiskOp)| DiskDone {
            op: *op,
            result: disk.perform(request),
        };
        core.disk_done(Instant::ZERO, &mut ops.iter().map(done).collect());
    }
    core.node.ops.clear();
    core
}

/// What is written of one line at the level of information.
fn one_line(config: &Config) -> String {
    logging::logged(config, || tracing::info!("a line"))
}

fn configured(root: &std::path::Path, settings: &[(&str, &str)]) -> Config {
    let flags: Vec<(String, String)> = settings
        .iter()
        .map(|(key, value)| {
            let value = if *key == "dir" {
                root.join(value).display().to_string()
            } else {
                (*value).to_owned()
            };
            ((*key).to_owned(), value)
        })
        .collect();
    Config::load(None, std::iter::empty(), &flags).unwrap()
}

/// `placement` was documented and did nothing, and nothing noticed.
#[test]
fn every_option_changes_what_it_says() {
    for option in Config::OPTIONS {
        let effects = EFFECTS.iter().filter(|effect| effect.key == option.key);
        assert_eq!(effects.count(), 1, "{}: one entry in EFFECTS", option.key);
    }
    let mut wrong = Vec::new();
    for effect in EFFECTS {
        assert!(Config::option(effect.key).is_some(), "{}", effect.key);
        let [(_, first), (_, second)] = effect.seen;
        assert_ne!(first, second, "{}", effect.key);
        for (value, expected) in effect.seen {
            let root = tempfile::tempdir().unwrap();
            let needed = effect.with.iter().filter(|(key, _)| *key != effect.key);
            let mut settings: Vec<(&str, &str)> = needed.copied().collect();
            settings.push((effect.key, value));
            let seen = (effect.observe)(&configured(root.path(), &settings));
            if seen != expected {
                wrong.push(format!(
                    "{} = {value}: {expected} expected, {seen} seen",
                    effect.key
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
