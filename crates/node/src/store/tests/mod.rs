//! The embedded store on a real directory, through its public face.

mod exposition;
mod tiers;

use std::path::Path;

use slackwater_base::{ByteSize, Rng};

use slackwater_wire::List;

use super::*;
use crate::config::{OffloadMode, PolicyKind, Ratio};

/// A value that says whose it is: every byte follows from the key and the length.
fn value(key: &str, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::new(slackwater_base::hash64(key.as_bytes()) ^ bytes as u64).fill(&mut value);
    value
}

fn memory_only(memory: ByteSize) -> Config {
    Config {
        memory,
        put_wait: Duration::from_millis(50),
        ..Config::default()
    }
}

fn tiered(directory: &Path) -> Config {
    Config {
        memory: ByteSize::mib(8),
        ssd: ByteSize::mib(64),
        dir: Some(directory.to_owned()),
        flush_delay: Duration::from_millis(5),
        ..Config::default()
    }
}

fn put_all(store: &Store, keys: &[String], bytes: usize) {
    for key in keys {
        let stored = store.put(key.as_bytes(), &value(key, bytes), &PutOptions::default());
        assert_eq!(stored, Ok(Stored::New), "{key}: {:#?}", store.stats());
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("block-{number:04}"))
        .collect()
}

/// Reads the key and checks every byte; says where it came from.
fn read(store: &Store, key: &str, bytes: usize) -> Option<Tier> {
    let mut buffer = vec![0; bytes];
    let got = store
        .get_into(key.as_bytes(), &mut buffer, &GetOptions::default())
        .unwrap()?;
    assert_eq!(got.bytes, bytes);
    assert!(buffer == value(key, bytes), "{key}");
    Some(got.tier)
}

#[test]
fn a_value_comes_back_in_every_way_it_can_be_asked_for() {
    let store = Store::open(memory_only(ByteSize::mib(8))).unwrap();
    let (put, get) = (PutOptions::default(), GetOptions::default());
    let first = value("a", 100_001);
    assert_eq!(store.put(b"a", &first, &put), Ok(Stored::New));
    assert_eq!(store.put(b"a", b"other", &put), Ok(Stored::Existed));
    assert_eq!(store.get(b"a", &get).unwrap().as_ref(), Some(&first));
    let mut buffer = vec![0; 200_000];
    let got = store.get_into(b"a", &mut buffer, &get);
    assert_eq!(
        got,
        Ok(Some(Got {
            bytes: first.len(),
            tier: Tier::Memory
        }))
    );
    assert!(buffer[..first.len()] == first);
    let short = store.get_into(b"a", &mut buffer[..10], &get).unwrap_err();
    assert_eq!(
        short.to_string(),
        "the value of a has 100001 bytes, the buffer 10"
    );
    assert_eq!(store.get(b"b", &get), Ok(None));
    assert_eq!(
        store.exists(&[b"a", b"b"], &Tenant::DEFAULT),
        Ok(vec![true, false])
    );
    let stats = store.stats();
    assert_eq!(
        (stats.objects, stats.puts.stored, stats.puts.existed),
        (1, 1, 1)
    );
    assert_eq!(
        (stats.reads.memory_hits, stats.reads.misses, stats.ssd_reads),
        (2, 1, 0)
    );
    assert_eq!(stats.latency.memory.count, 2);
    // Each call looks up, whatever came of it.
    let phases = stats.phases;
    assert_eq!((phases.look_up.count, phases.queue.count), (4, 0));
    assert!(phases.look_up.p50_us > 0.0 && phases.wire.count == 0);
    store.close().unwrap();
}

#[test]
fn a_batch_answers_each_key_and_a_prefix_stops_at_the_first_gap() {
    let store = Store::open(memory_only(ByteSize::mib(8))).unwrap();
    let values: Vec<Vec<u8>> = ["x0", "x1", "x3"]
        .iter()
        .map(|key| value(key, 5_000))
        .collect();
    let entries: Vec<(&[u8], &[u8])> = [&b"x0"[..], b"x1", b"x3"]
        .into_iter()
        .zip(&values)
        .map(|(key, value)| (key, value.as_slice()))
        .collect();
    let stored = store.put_batch(&entries, &PutOptions::default());
    assert_eq!(stored, [Ok(Stored::New), Ok(Stored::New), Ok(Stored::New)]);
    let keys: [&[u8]; 4] = [b"x0", b"x1", b"x2", b"x3"];
    let all = store.get_batch(&keys, &GetOptions::default());
    assert_eq!(
        all,
        [
            Ok(Some(values[0].clone())),
            Ok(Some(values[1].clone())),
            Ok(None),
            Ok(Some(values[2].clone()))
        ]
    );
    let prefix = store.get_batch(
        &keys,
        &GetOptions {
            prefix_only: true,
            ..GetOptions::default()
        },
    );
    assert_eq!(prefix[2..], [Ok(None), Ok(None)]);
    assert!(prefix[..2].iter().all(|value| matches!(value, Ok(Some(_)))));

    let long_key = vec![b'k'; 2000];
    let mixed = store.put_batch(
        &[(b"", b"v"), (&long_key, b"v"), (b"e", b""), (b"ok", b"v")],
        &PutOptions::default(),
    );
    let codes: Vec<Option<ErrorCode>> = mixed
        .iter()
        .map(|result| result.as_ref().err().map(StoreError::code))
        .collect();
    let expected = [
        Some(ErrorCode::InvalidParams),
        Some(ErrorCode::InvalidKey),
        Some(ErrorCode::InvalidParams),
        None,
    ];
    assert_eq!(codes, expected);
    let mut one = [0; 8];
    let counted = store.get_batch_into(&[b"ok", b"x0"], &mut [&mut one], &GetOptions::default());
    assert_eq!(
        counted[1],
        Err(StoreError::BufferCount {
            keys: 2,
            buffers: 1
        })
    );
}

/// A batch of more keys than one request takes is asked in pieces: a gap in one ends the reading of all later ones.
#[test]
fn a_prefix_stops_at_the_first_gap_of_any_piece() {
    let store = Store::open(memory_only(ByteSize::mib(8))).unwrap();
    let names: Vec<String> = (0..=limits::BATCH_KEYS_MAX)
        .map(|at| format!("k{at}"))
        .collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let last = keys.len() - 1;
    for present in [0, last] {
        store
            .put(keys[present], b"v", &PutOptions::default())
            .unwrap();
    }
    let read = |prefix_only: bool| {
        let options = GetOptions {
            prefix_only,
            ..GetOptions::default()
        };
        let values = store.get_batch(&keys, &options);
        values
            .iter()
            .map(|value| matches!(value, Ok(Some(_))))
            .collect::<Vec<_>>()
    };
    let (all, prefix) = (read(false), read(true));
    assert!(all[0] && !all[1] && all[last]);
    assert!(prefix[0] && !prefix[last] && prefix.len() == keys.len());
}

#[test]
fn a_batch_larger_than_memory_goes_through_and_leaves_the_newest() {
    // Policies that learn keep the first blocks of a chain rather than the last.
    let store = Store::open(Config {
        policy: PolicyKind::Lru,
        ..memory_only(ByteSize::mib(4))
    })
    .unwrap();
    let keys: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, 64 << 10)).collect();
    let entries: Vec<(&[u8], &[u8])> = keys
        .iter()
        .zip(&values)
        .map(|(key, value)| (key.as_bytes(), value.as_slice()))
        .collect();
    let stored = store.put_batch(&entries, &PutOptions::default());
    assert!(
        stored.iter().all(|result| *result == Ok(Stored::New)),
        "{stored:?}"
    );
    assert_eq!(
        store.get(keys[199].as_bytes(), &GetOptions::default()),
        Ok(Some(values[199].clone()))
    );
    let stats = store.stats();
    assert!(stats.evictions.count > 100, "{stats:?}");
    assert!(stats.memory.used_bytes <= stats.memory.capacity_bytes);
}

#[test]
fn values_that_cannot_fit_are_refused_with_their_sizes() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    let error = store
        .put(b"big", &vec![1; 3 << 20], &PutOptions::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the value of big has 3MiB, the largest that fits has 2MiB"
    );
    let hard = PutOptions {
        pin: slackwater_wire::Pin::Hard,
        ..PutOptions::default()
    };
    assert_eq!(
        store.put(b"pinned", &vec![1; 3 << 19], &hard),
        Ok(Stored::New)
    );
    let error = store
        .put(b"next", &vec![1; 1 << 20], &PutOptions::default())
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::NoSpace { waited, .. } if *waited >= Duration::from_millis(50)),
        "{error}"
    );
    assert_eq!(error.code(), ErrorCode::NoAvailableHandle);
    let stats = store.stats();
    let space = stats
        .waits
        .iter()
        .find(|wait| wait.site == "put, space")
        .unwrap();
    assert!(
        space.waits == 1 && space.parked >= 1 && space.parked_us > 0,
        "{space:?}"
    );
    assert!(
        store
            .metrics_text(MetricsFormat::Prometheus)
            .contains("slackwater_waits_total{site=\"put, space\"} 1\n")
    );
    let durable = PutOptions {
        durability: slackwater_wire::Durability::Disk,
        ..PutOptions::default()
    };
    assert_eq!(
        store.put(b"d", b"v", &durable).unwrap_err().code(),
        ErrorCode::UnavailableInCurrentMode
    );
}

#[test]
fn a_closed_store_says_so_on_every_clone() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    let other = store.clone();
    store.put(b"a", b"v", &PutOptions::default()).unwrap();
    store.close().unwrap();
    assert_eq!(
        other.get(b"a", &GetOptions::default()),
        Err(StoreError::Closed)
    );
    assert_eq!(
        other.put(b"b", b"v", &PutOptions::default()),
        Err(StoreError::Closed)
    );
    assert_eq!(
        other.exists(&[b"a"], &Tenant::DEFAULT),
        Err(StoreError::Closed)
    );
    assert_eq!(other.flush(Duration::from_secs(1)), Err(StoreError::Closed));
    assert_eq!(
        other.remove(&[b"a"], &RemoveOptions::default()),
        [Err(StoreError::Closed)]
    );
    assert_eq!(other.close(), Ok(()));
}

#[test]
fn a_configuration_that_contradicts_itself_opens_nothing() {
    let error = Store::open(Config {
        ssd: ByteSize::gib(1),
        ..Config::default()
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("1GiB of SSD need a directory"),
        "{error}"
    );
    let error = Store::open(Config {
        evict_low: Ratio(0.99),
        ..Config::default()
    })
    .unwrap_err();
    assert!(matches!(error, OpenError::Config(problems) if problems.len() == 1));
}

#[test]
fn metrics_follow_one_naming_rule() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    store.put(b"a", b"value", &PutOptions::default()).unwrap();
    store.get(b"a", &GetOptions::default()).unwrap();
    let text = store.metrics_text(MetricsFormat::Prometheus);
    let mut kinds = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name.starts_with("slackwater_"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert_eq!(
                kinds.insert(name.to_owned(), kind.to_owned()),
                None,
                "{line}"
            );
        } else if !line.starts_with('#') {
            let (_, number) = line.rsplit_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(
        text.contains("slackwater_hits_total{tier=\"memory\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("slackwater_call_seconds_bucket{op=\"get\",tier=\"memory\",le=\"+Inf\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("slackwater_put_bytes_total 5\n"));
    for (rule, followed) in [("gittins", 1), ("lru", 0), ("lru-reused", 0)] {
        let labels = format!("{{segment=\"1\",tier=\"memory\",rule=\"{rule}\"}}");
        let line = format!("slackwater_eviction_rule_followed{labels} {followed}\n");
        assert!(text.contains(&line), "{line}: {text}");
        let rate = format!("slackwater_eviction_rule_hit_ratio{labels} 0.");
        assert!(text.contains(&rate), "{rate}: {text}");
    }
    let buckets = text
        .lines()
        .filter(|line| line.starts_with("slackwater_call_seconds_bucket{op=\"put\""));
    let counts: Vec<u64> = buckets
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts.last() == Some(&1), "{text}");
}

#[test]
fn two_stores_cannot_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let first = Store::open(tiered(root.path())).unwrap();
    let error = Store::open(tiered(root.path())).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("(pid {})", std::process::id())),
        "{error}"
    );
    first.close().unwrap();
    Store::open(tiered(root.path())).unwrap().close().unwrap();
}

#[test]
fn removals_by_pattern_and_of_all_are_counted_and_final() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    let keys = names(50);
    put_all(&store, &keys, 9_000);
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    assert_eq!(store.remove_matching("-00[0-1]", &force), Ok(20));
    assert!(store.remove_matching("(", &force).is_err());
    let listed = store
        .list(List {
            limit: 100,
            tenant: Tenant::DEFAULT,
            pattern: None,
            after: None,
        })
        .unwrap();
    assert_eq!(listed.keys.len(), 30);
    assert_eq!(listed.keys[0].as_bytes(), b"block-0020");
    assert_eq!(store.remove_all(&force), Ok(30));
    assert_eq!(
        store.remove(&[b"nothing"], &force)[0]
            .as_ref()
            .unwrap_err()
            .code(),
        ErrorCode::ObjectNotFound
    );
    store.close().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert_eq!(store.stats().objects, 0);
}

#[test]
fn many_threads_read_and_write_and_every_byte_is_right() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..300 {
                    let key = format!("k{}", rng.below(400));
                    let bytes = 1 + slackwater_base::hash64(key.as_bytes()) as usize % 90_000;
                    match rng.below(10) {
                        0..5 => _ = read(store, &key, bytes),
                        5..9 => {
                            let put = store.put(
                                key.as_bytes(),
                                &value(&key, bytes),
                                &PutOptions::default(),
                            );
                            assert!(put.is_ok(), "{put:?}");
                        }
                        _ => {
                            let force = RemoveOptions {
                                force: true,
                                ..RemoveOptions::default()
                            };
                            let removed = store.remove(&[key.as_bytes()], &force).remove(0);
                            let code = removed.err().map(|error| error.code());
                            let racing = [ErrorCode::ObjectNotFound, ErrorCode::ReplicaIsNotReady];
                            assert!(code.is_none_or(|code| racing.contains(&code)), "{code:?}");
                        }
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.corrupt, 0);
    store.close().unwrap();
}

#[test]
fn batches_and_values_that_several_threads_copy_are_right_and_timed_each() {
    let threads = crate::config::Threads::Count(2);
    let store = Store::open(Config {
        copy_threads: threads,
        ..memory_only(ByteSize::mib(64))
    })
    .unwrap();
    let keys = names(8);
    for bytes in [
        copier::PUT_BYTES_MIN / 8 + 1,
        copier::PUT_BYTES_MIN / 8 + 4097,
    ] {
        let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, bytes)).collect();
        let entries: Vec<(&[u8], &[u8])> = keys
            .iter()
            .zip(&values)
            .map(|(k, v)| (k.as_bytes(), &v[..]))
            .collect();
        let upsert = PutOptions {
            mode: slackwater_wire::PutMode::Upsert,
            ..PutOptions::default()
        };
        assert!(store.put_batch(&entries, &upsert).iter().all(Result::is_ok));
        let asked: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let found = store.get_batch(&asked, &GetOptions::default());
        assert!(
            found
                .into_iter()
                .zip(&values)
                .all(|(found, value)| found.unwrap().as_ref() == Some(value))
        );
    }
    let large = value("large", copier::PUT_BYTES_MIN + 5);
    store.put(b"large", &large, &PutOptions::default()).unwrap();
    assert!(store.get(b"large", &GetOptions::default()).unwrap() == Some(large));
    let stats = store.stats();
    assert_eq!(
        (
            stats.latency.memory.count,
            stats.latency.put.count,
            stats.corrupt
        ),
        (17, 17, 0)
    );
    assert!(stats.latency.memory.p50_us > 0.0, "{:?}", stats.latency);
}

/// A put was past the check for an open store when another thread closed it: it queued for space that no thread was left
/// to give, and waited for ever. A call that comes after the last answer is refused.
#[test]
fn who_comes_after_the_last_answer_is_refused() {
    let store = Store::open(memory_only(ByteSize::mib(1))).unwrap();
    let late = store.clone();
    store.close().unwrap();
    let asked = late.shared().with(|_, _| ());
    assert!(matches!(asked, Err(StoreError::Closed)), "{asked:?}");
}

/// A replay at full speed left the SSD no time, and hit rates depended on how fast the machine was.
#[test]
fn what_is_under_way_arrives_before_time_is_skipped() {
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        flush_delay: Duration::from_secs(60),
        ..tiered(root.path())
    };
    let store = Store::open(config).unwrap();
    for round in 1..=5 {
        let key = format!("block {round}");
        store
            .put(key.as_bytes(), &value(&key, 1000), &PutOptions::default())
            .unwrap();
        store.skip_to(Duration::from_secs(1000 * round)).unwrap();
        assert_eq!(store.stats().ssd.map(|ssd| ssd.records), Some(round));
    }
    store.close().unwrap();
}

/// A replay at full speed stood still for up to a second after every few requests: the steward slept until a moment of
/// the clock as it was before the skip, and nothing that fell due after it but sooner woke it.
#[test]
fn what_falls_due_after_time_was_skipped_is_not_late() {
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        flush_delay: Duration::from_secs(30),
        ..tiered(root.path())
    };
    let store = Store::open(config).unwrap();
    let put = |key: &str| store.put(key.as_bytes(), &value(key, 1000), &PutOptions::default());
    put("before").unwrap();
    store.skip_to(Duration::from_secs(1000)).unwrap();
    let skipped = store.shared().clock.now();
    put("after").unwrap();
    let (wakes, next) = store
        .shared()
        .with(|core, _| (core.steward_wakes, core.next_deadline()))
        .unwrap();
    assert!(
        skipped <= wakes && wakes <= next,
        "{skipped:?} {wakes:?} {next:?}"
    );
    store.close().unwrap();
}

#[test]
fn what_eviction_learned_outlives_the_process_and_damage_only_costs_it() {
    let root = tempfile::tempdir().unwrap();
    let tables = root.path().join("eviction.tables");
    let learned = |store: &Store| {
        store
            .shared()
            .with(|core, _| core.master().unwrap().learned())
            .unwrap()
    };
    let store = Store::open(tiered(root.path())).unwrap();
    let fresh = learned(&store);
    for round in 0..100 {
        store.skip_to(Duration::from_secs(10 * round)).unwrap();
        let key = format!("block {}", round % 7);
        let _ = store.get(key.as_bytes(), &GetOptions::default()).unwrap();
        store
            .put(key.as_bytes(), &value(&key, 1000), &PutOptions::default())
            .unwrap();
    }
    let taught = learned(&store);
    assert!(taught != fresh, "something was learned");
    store.close().unwrap();

    let store = Store::open(tiered(root.path())).unwrap();
    assert!(learned(&store) == taught, "what was learned is there again");
    store.close().unwrap();

    let mut bytes = std::fs::read(&tables).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&tables, bytes).unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert!(learned(&store) != taught, "damaged tables are not taken");
    assert_eq!(
        store.get(b"block 3", &GetOptions::default()).unwrap(),
        Some(value("block 3", 1000))
    );
}

/// A reader waited until all records of a batch, and all tombstones of a sync, were taken in.
#[test]
fn what_the_device_did_is_taken_in_until_a_caller_waits() {
    let store = Store::open(memory_only(ByteSize::mib(1))).unwrap();
    let shared = store.shared();
    let steps = |caller_comes_at: usize| {
        std::thread::scope(|scope| {
            let mut steps = 0;
            let step = || {
                steps += 1;
                if steps == caller_comes_at {
                    scope.spawn(|| store.stats());
                    while !shared.is_waited_for() {
                        std::thread::yield_now();
                    }
                }
                steps != 20
            };
            let held = shared.with(|_, _| shared.while_nobody_waits(step));
            held.map(|()| steps)
        })
    };
    // The steward may come as well, and have no core for a while.
    let until = slackwater_wait::now() + Duration::from_secs(20);
    let in_time = || {
        std::thread::yield_now();
        slackwater_wait::now() < until
    };
    let comes_to_be = |caller: usize, expected| {
        std::iter::repeat_with(|| steps(caller) == Ok(expected))
            .take_while(|_| in_time())
            .any(|came| came)
    };
    assert!(comes_to_be(usize::MAX, 20), "there are no more");
    assert!(comes_to_be(10, 10));
    assert!(comes_to_be(usize::MAX, 20), "nobody waits any more");
    let all = || {
        let mut steps = 0;
        let step = || {
            steps += 1;
            steps < 10_000
        };
        let held = shared.with(|_, _| shared.while_nobody_waits(step));
        held.map(|()| steps)
    };
    let bounded = || all() == Ok(super::shared::STEPS_A_HOLD);
    assert!(
        std::iter::repeat_with(bounded)
            .take_while(|_| in_time())
            .any(|was| was)
    );
    store.close().unwrap();
}
