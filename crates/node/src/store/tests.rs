//! The embedded store on a real directory, through its public face.

use std::path::Path;

use slackwater_base::{ByteSize, Rng};

use super::*;
use crate::config::{OffloadMode, Ratio};

/// A value that says whose it is: every byte follows from the key and the length.
fn value(key: &str, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::new(slackwater_base::hash64(key.as_bytes()) ^ bytes as u64).fill(&mut value);
    value
}

fn memory_only(memory: ByteSize) -> Config {
    Config { memory, put_wait: Duration::from_millis(50), ..Config::default() }
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
    assert_eq!(got, Ok(Some(Got { bytes: first.len(), tier: Tier::Memory })));
    assert!(buffer[..first.len()] == first);
    let short = store.get_into(b"a", &mut buffer[..10], &get).unwrap_err();
    assert_eq!(short.to_string(), "the value of a has 100001 bytes, the buffer 10");
    assert_eq!(store.get(b"b", &get), Ok(None));
    assert_eq!(store.exists(&[b"a", b"b"], &Tenant::DEFAULT), Ok(vec![true, false]));
    let stats = store.stats();
    assert_eq!((stats.objects, stats.puts.stored, stats.puts.existed), (1, 1, 1));
    assert_eq!((stats.reads.memory_hits, stats.reads.misses, stats.ssd_reads), (2, 1, 0));
    assert_eq!(stats.latency.memory.count, 2);
    store.close().unwrap();
}

#[test]
fn a_batch_answers_each_key_and_a_prefix_stops_at_the_first_gap() {
    let store = Store::open(memory_only(ByteSize::mib(8))).unwrap();
    let values: Vec<Vec<u8>> = ["x0", "x1", "x3"].iter().map(|key| value(key, 5_000)).collect();
    let entries: Vec<(&[u8], &[u8])> =
        [&b"x0"[..], b"x1", b"x3"].into_iter().zip(&values).map(|(key, value)| (key, value.as_slice())).collect();
    let stored = store.put_batch(&entries, &PutOptions::default());
    assert_eq!(stored, [Ok(Stored::New), Ok(Stored::New), Ok(Stored::New)]);
    let keys: [&[u8]; 4] = [b"x0", b"x1", b"x2", b"x3"];
    let all = store.get_batch(&keys, &GetOptions::default());
    assert_eq!(all, [Ok(Some(values[0].clone())), Ok(Some(values[1].clone())), Ok(None), Ok(Some(values[2].clone()))]);
    let prefix = store.get_batch(&keys, &GetOptions { prefix_only: true, ..GetOptions::default() });
    assert_eq!(prefix[2..], [Ok(None), Ok(None)]);
    assert!(prefix[..2].iter().all(|value| matches!(value, Ok(Some(_)))));

    let long_key = vec![b'k'; 2000];
    let mixed = store.put_batch(&[(b"", b"v"), (&long_key, b"v"), (b"e", b""), (b"ok", b"v")], &PutOptions::default());
    let codes: Vec<Option<ErrorCode>> =
        mixed.iter().map(|result| result.as_ref().err().map(StoreError::code)).collect();
    let expected = [Some(ErrorCode::InvalidParams), Some(ErrorCode::InvalidKey), Some(ErrorCode::InvalidParams), None];
    assert_eq!(codes, expected);
    let mut one = [0; 8];
    let counted = store.get_batch_into(&[b"ok", b"x0"], &mut [&mut one], &GetOptions::default());
    assert_eq!(counted[1], Err(StoreError::BufferCount { keys: 2, buffers: 1 }));
}

#[test]
fn a_batch_larger_than_memory_goes_through_and_leaves_the_newest() {
    let store = Store::open(memory_only(ByteSize::mib(4))).unwrap();
    let keys: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, 64 << 10)).collect();
    let entries: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(key, value)| (key.as_bytes(), value.as_slice())).collect();
    let stored = store.put_batch(&entries, &PutOptions::default());
    assert!(stored.iter().all(|result| *result == Ok(Stored::New)), "{stored:?}");
    assert_eq!(store.get(keys[199].as_bytes(), &GetOptions::default()), Ok(Some(values[199].clone())));
    let stats = store.stats();
    assert!(stats.evictions.count > 100, "{stats:?}");
    assert!(stats.memory.used_bytes <= stats.memory.capacity_bytes);
}

#[test]
fn values_that_cannot_fit_are_refused_with_their_sizes() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    let error = store.put(b"big", &vec![1; 3 << 20], &PutOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the value of big has 3MiB, the largest that fits has 2MiB");
    let hard = PutOptions { pin: slackwater_wire::Pin::Hard, ..PutOptions::default() };
    assert_eq!(store.put(b"pinned", &vec![1; 3 << 19], &hard), Ok(Stored::New));
    let error = store.put(b"next", &vec![1; 1 << 20], &PutOptions::default()).unwrap_err();
    assert!(matches!(&error, StoreError::NoSpace { waited, .. } if *waited >= Duration::from_millis(50)), "{error}");
    assert_eq!(error.code(), ErrorCode::NoAvailableHandle);
    let durable = PutOptions { durability: slackwater_wire::Durability::Disk, ..PutOptions::default() };
    assert_eq!(store.put(b"d", b"v", &durable).unwrap_err().code(), ErrorCode::UnavailableInCurrentMode);
}

#[test]
fn a_closed_store_says_so_on_every_clone() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    let other = store.clone();
    store.put(b"a", b"v", &PutOptions::default()).unwrap();
    store.close().unwrap();
    assert_eq!(other.get(b"a", &GetOptions::default()), Err(StoreError::Closed));
    assert_eq!(other.put(b"b", b"v", &PutOptions::default()), Err(StoreError::Closed));
    assert_eq!(other.exists(&[b"a"], &Tenant::DEFAULT), Err(StoreError::Closed));
    assert_eq!(other.flush(Duration::from_secs(1)), Err(StoreError::Closed));
    assert_eq!(other.remove(&[b"a"], &RemoveOptions::default()), [Err(StoreError::Closed)]);
    assert_eq!(other.close(), Ok(()));
}

#[test]
fn a_configuration_that_contradicts_itself_opens_nothing() {
    let error = Store::open(Config { ssd: ByteSize::gib(1), ..Config::default() }).unwrap_err();
    assert!(error.to_string().contains("1GiB of SSD need a directory"), "{error}");
    let error = Store::open(Config { evict_low: Ratio(0.99), ..Config::default() }).unwrap_err();
    assert!(matches!(error, OpenError::Config(problems) if problems.len() == 1));
}

#[test]
fn metrics_follow_one_naming_rule() {
    let store = Store::open(memory_only(ByteSize::mib(2))).unwrap();
    store.put(b"a", b"value", &PutOptions::default()).unwrap();
    store.get(b"a", &GetOptions::default()).unwrap();
    let text = store.metrics_text();
    let mut kinds = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name.starts_with("slackwater_"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert_eq!(kinds.insert(name.to_owned(), kind.to_owned()), None, "{line}");
        } else if !line.starts_with('#') {
            let (_, number) = line.rsplit_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.contains("slackwater_hits_total{tier=\"memory\"} 1\n"), "{text}");
    assert!(text.contains("slackwater_call_seconds_bucket{op=\"get\",tier=\"memory\",le=\"+Inf\"} 1\n"), "{text}");
    assert!(text.contains("slackwater_put_bytes_total 5\n"));
}

#[test]
fn two_stores_cannot_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let first = Store::open(tiered(root.path())).unwrap();
    let error = Store::open(tiered(root.path())).unwrap_err();
    assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
    first.close().unwrap();
    Store::open(tiered(root.path())).unwrap().close().unwrap();
}
