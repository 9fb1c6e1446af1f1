//! A store with an SSD: what goes there, comes back, and is there after a restart.

use std::ffi::OsStr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;

use slackwater_base::BLOCK_BYTES;

use super::*;
use crate::logging::logged;
use crate::store::effects::read_taking;

/// Waits for a fact about the store, without a period that a slow machine could miss: looks, flushes, looks again.
fn until(store: &Store, what: &str, fact: impl Fn(&Stats) -> bool) -> Stats {
    let begun = std::time::Instant::now();
    loop {
        let stats = store.stats();
        if fact(&stats) {
            return stats;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{what}: {stats:#?}"
        );
        store.flush(Duration::from_secs(20)).unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn what_memory_has_no_room_for_is_read_from_ssd_on_both_devices() {
    for io in [
        crate::config::IoBackend::Uring,
        crate::config::IoBackend::Pread,
    ] {
        let root = tempfile::tempdir().unwrap();
        let config = Config {
            io,
            promotion_enabled: false,
            ..tiered(root.path())
        };
        let store = Store::open(config).unwrap();
        let (keys, bytes) = (names(300), 70_001);
        put_all(&store, &keys, bytes);
        until(&store, "every value is on SSD", |stats| {
            stats.offloads.completed == 300
        });
        let o = store.stats().offloads;
        assert_eq!(
            o.started,
            o.completed + o.failed + o.expired + o.cancelled + o.in_flight,
            "{o:?}"
        );
        assert!(
            store
                .metrics_text(MetricsFormat::Prometheus)
                .contains("slackwater_offloads_total{status=\"completed\"} 300\n")
        );
        let tiers: Vec<Option<Tier>> = keys.iter().map(|key| read(&store, key, bytes)).collect();
        assert!(tiers.iter().all(Option::is_some));
        let from_ssd = tiers
            .iter()
            .filter(|tier| **tier == Some(Tier::Disk))
            .count() as u64;
        assert!(from_ssd > 150, "{from_ssd}");
        assert_eq!(store.stats().ssd_reads, from_ssd);
        assert_eq!(store.stats().reads.ssd_hits, from_ssd);

        let named: Vec<&[u8]> = keys[..40].iter().map(String::as_bytes).collect();
        let batch = store.get_batch(&named, &GetOptions::default());
        for (key, got) in keys.iter().zip(batch) {
            assert!(got.unwrap().unwrap() == value(key, bytes), "{key}");
        }
        assert_eq!(store.stats().corrupt, 0);
        store.close().unwrap();
    }
}

#[test]
fn a_reopened_store_is_warm() {
    let root = tempfile::tempdir().unwrap();
    let (keys, bytes) = (names(100), 30_000);
    let store = Store::open(tiered(root.path())).unwrap();
    put_all(&store, &keys, bytes);
    store.close().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert_eq!(store.stats().ssd.unwrap().recovered, 100);
    for key in &keys {
        assert_eq!(read(&store, key, bytes), Some(Tier::Disk), "{key}");
    }
    let removed = store.remove(
        &[keys[3].as_bytes()],
        &RemoveOptions {
            force: true,
            ..RemoveOptions::default()
        },
    );
    assert_eq!(removed, [Ok(())]);
    assert_eq!(read(&store, &keys[3], bytes), None);
    let upsert = PutOptions {
        mode: slackwater_wire::PutMode::Upsert,
        ..PutOptions::default()
    };
    assert_eq!(
        store.put(keys[4].as_bytes(), b"new", &upsert),
        Ok(Stored::New)
    );
    store.close().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert_eq!(
        read(&store, &keys[3], bytes),
        None,
        "what was removed stays removed"
    );
    assert_eq!(
        store.get(keys[4].as_bytes(), &GetOptions::default()),
        Ok(Some(b"new".to_vec()))
    );
    assert_eq!(store.stats().ssd.unwrap().recovered, 99);
}

/// With its SSD lowered below what the log holds, a store dropped nothing, took nothing and in the end refused puts.
#[test]
fn a_store_whose_ssd_was_lowered_brings_its_log_down_and_takes_every_put() {
    let root = tempfile::tempdir().unwrap();
    let (keys, bytes) = (names(1200), 64 << 10);
    let store = Store::open(Config {
        ssd: ByteSize::mib(96),
        ..tiered(root.path())
    })
    .unwrap();
    put_all(&store, &keys[..900], bytes);
    store.close().unwrap();
    let lowered = || Config {
        ssd: ByteSize::mib(24),
        ..tiered(root.path())
    };
    let store = Store::open(lowered()).unwrap();
    put_all(&store, &keys[900..], bytes);
    let length = || {
        let files = std::fs::read_dir(root.path()).unwrap().flatten();
        files
            .filter_map(|entry| entry.metadata().ok())
            .map(|metadata| metadata.len())
            .sum::<u64>()
    };
    until(&store, "the log comes down", |stats| {
        stats.ssd.unwrap().accepting && length() < 25 << 20
    });
    let kept = keys
        .iter()
        .filter(|key| read(&store, key, bytes).is_some())
        .count();
    assert!(kept > 100, "{kept} of 1200 in 8 MiB and 24 MiB");
    store.close().unwrap();
    let store = Store::open(lowered()).unwrap();
    assert!(store.stats().ssd.unwrap().recovered > 0);
}

#[test]
fn a_value_that_is_read_often_comes_back_into_memory() {
    let root = tempfile::tempdir().unwrap();
    let (keys, bytes) = (names(40), 50_000);
    let store = Store::open(tiered(root.path())).unwrap();
    put_all(&store, &keys, bytes);
    store.close().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert_eq!(read(&store, &keys[0], bytes), Some(Tier::Disk));
    assert_eq!(read(&store, &keys[0], bytes), Some(Tier::Disk));
    let stats = until(&store, "the promotion", |stats| {
        stats.promotions.completed == 1
    });
    assert_eq!(stats.promotions.completed_bytes, bytes as u64);
    let before = store.stats().ssd_reads;
    let phases = stats.phases;
    assert_eq!((phases.ssd.count, phases.queue.count), (2, 2));
    assert!(phases.ssd.p50_us > phases.queue.p50_us, "{phases:?}");
    assert_eq!(read(&store, &keys[0], bytes), Some(Tier::Memory));
    assert_eq!(store.stats().phases.ssd.count, 2);
    assert_eq!(store.stats().ssd_reads, before);
    let stats = store.stats();
    let p = stats.promotions;
    assert_eq!(
        p.admitted,
        p.completed + p.failed + p.expired + p.cancelled + p.in_flight
    );
}

#[test]
fn every_mode_of_offload_keeps_what_it_promises() {
    for (offload, policy) in [
        (OffloadMode::Eager, PolicyKind::Lru),
        (OffloadMode::OnEvict, PolicyKind::WTinyLfu),
        (OffloadMode::OnEvictForced, PolicyKind::S3Fifo),
    ] {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(Config {
            offload,
            policy,
            ..tiered(root.path())
        })
        .unwrap();
        let (keys, bytes) = (names(400), 64 << 10);
        put_all(&store, &keys, bytes);
        let kept = keys
            .iter()
            .filter(|key| read(&store, key, bytes).is_some())
            .count();
        let least = if offload == OffloadMode::OnEvictForced {
            100
        } else {
            400
        };
        assert!(
            kept >= least,
            "{offload:?}: {kept} of 400, {:#?}",
            store.stats()
        );
        store.close().unwrap();
    }
}

#[test]
fn a_durable_put_is_on_ssd_when_it_returns() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(Config {
        offload: OffloadMode::Off,
        ..tiered(root.path())
    })
    .unwrap();
    let durable = PutOptions {
        durability: slackwater_wire::Durability::Disk,
        ..PutOptions::default()
    };
    assert_eq!(store.put(b"kept", b"value", &durable), Ok(Stored::New));
    assert_eq!(
        store.put(b"lost", b"value", &PutOptions::default()),
        Ok(Stored::New)
    );
    assert_eq!(store.stats().offloads.completed, 1);
    store.close().unwrap();
    let store = Store::open(tiered(root.path())).unwrap();
    assert_eq!(
        store.exists(&[b"kept", b"lost"], &Tenant::DEFAULT),
        Ok(vec![true, false])
    );
}

/// Where the master counted nothing of long names, the log was full before it, refused offloads, asked for fewer bytes than it
/// needed, and copied records to make room.
#[test]
fn an_ssd_takes_records_of_long_names() {
    for bytes in [1, BLOCK_BYTES as usize] {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(Config {
            memory: ByteSize::mib(4),
            ssd: ByteSize::mib(16),
            offload: OffloadMode::Eager,
            ..tiered(directory.path())
        })
        .unwrap();
        let long = |name: String| name + &"-".repeat(1000);
        // More than both tiers hold.
        let keys: Vec<String> = names(4000).into_iter().map(long).collect();
        put_all(&store, &keys, bytes);
        let stats = until(&store, "offloads end", |stats| {
            stats.offloads.in_flight == 0
        });
        let (offloads, ssd) = (stats.offloads, stats.ssd.unwrap());
        assert_eq!(
            (offloads.failed, offloads.skipped_no_disk),
            (0, 0),
            "{ssd:?}"
        );
        assert!(ssd.accepting && ssd.records > 1400, "{ssd:?}");
        assert_eq!(ssd.read_bytes, 0, "no record is copied: {ssd:?}");
    }
}

/// Each record was counted with a block of header of its own, while the headers of a batch share theirs: values of 4 KiB filled
/// less than half of the SSD.
#[test]
fn small_values_fill_the_ssd() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(Config {
        ssd: ByteSize::mib(16),
        offload: OffloadMode::OnEvict,
        evict_ssd_low: Ratio(0.88),
        evict_ssd_high: Ratio(0.9),
        ..tiered(directory.path())
    })
    .unwrap();
    // More than both tiers hold.
    put_all(&store, &names(6000), BLOCK_BYTES as usize);
    let ssd = store.stats().ssd.unwrap();
    let (values, capacity) = (ssd.records * BLOCK_BYTES, ssd.capacity_bytes);
    assert!(values * 4 > capacity * 3, "{values} of {capacity}");
}

/// A store whose SSD took nothing while offloads waited could not be closed without an error. Then it could, and what was
/// lost so was seen nowhere.
#[test]
fn what_a_failing_ssd_does_not_take_at_the_close_is_counted_and_an_error_if_it_was_promised() {
    let check = |cached: usize, durable: usize, closed: Result<(), StoreError>| {
        let root = tempfile::tempdir().unwrap();
        // Nothing that is put falls due before the store closes.
        let config = || Config {
            file_bytes: ByteSize::mib(1),
            offload: OffloadMode::Eager,
            flush_delay: Duration::from_secs(60),
            io: crate::config::IoBackend::Pread,
            ..tiered(root.path())
        };
        let store = Store::open(config()).unwrap();
        put_all(&store, &["kept".to_owned()], 1000);
        store.flush(Duration::from_secs(20)).unwrap();
        let in_place = have_no_room(root.path());
        // More than one file takes: some are in a batch that fails, the others are given back.
        put_all(&store, &names(cached), 60_000);
        let other = store.clone();
        let promised = std::thread::spawn(move || {
            let options = PutOptions {
                durability: slackwater_wire::Durability::Disk,
                ..PutOptions::default()
            };
            let put =
                |nth: usize| other.put(format!("promised-{nth}").as_bytes(), b"value", &options);
            (0..durable).map(put).collect::<Vec<_>>()
        });
        let waiting = (cached + durable) as u64;
        while store.stats().offloads.in_flight < waiting {
            std::thread::yield_now();
        }
        let (clone, mut ended) = (store.clone(), None);
        let lines = logged(&Config::default(), || ended = Some(store.close()));
        assert_eq!(ended, Some(closed));
        assert_eq!(
            promised.join().unwrap(),
            vec![Err(StoreError::Closed); durable]
        );
        let stats = clone.stats();
        assert_eq!(stats.ssd.unwrap().unwritten_at_close, waiting);
        assert_eq!(stats.puts.stored, cached as u64 + 1, "what it counted last");
        let said = lines.matches("closed while the SSD took no more").count();
        assert_eq!(said, usize::from(cached > 0), "{lines}");
        assert!(
            cached == 0 || lines.contains(&format!("dropped={cached}")),
            "{lines}"
        );
        drop(clone);
        in_place
            .iter()
            .for_each(|path| std::fs::remove_dir(path).unwrap());
        let store = Store::open(config()).unwrap();
        assert_eq!(store.stats().ssd.unwrap().recovered, 1);
        assert_eq!(read(&store, "kept", 1000), Some(Tier::Disk));
    };
    let broken = StoreError::NotDurable { records: 1 };
    assert_eq!(broken.code(), ErrorCode::PersistentFail);
    assert_eq!(
        broken.to_string(),
        "closed, but the SSD did not take 1 value that was promised to be durable"
    );
    check(20, 0, Ok(()));
    check(0, 1, Err(broken.clone()));
    check(8, 1, Err(broken));
}

/// Has every write to the log's open files answered as those to a full device are, and no further file made. Gives what stands
/// in the place of further files.
fn have_no_room(directory: &Path) -> Vec<PathBuf> {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut last = None;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let path = std::fs::read_link(entry.path()).unwrap_or_default();
        let is_log = path.extension().is_some_and(|it| it == "slack");
        if !is_log || !path.starts_with(directory) {
            continue;
        }
        let number = entry.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: the store holds this descriptor until it is closed, which is later; it is given up again below.
        let mut file = unsafe { OwnedFd::from_raw_fd(number) };
        rustix::io::dup2(&full, &mut file).unwrap();
        let _ = file.into_raw_fd();
        last = last.max(path.file_stem().map(OsStr::to_owned));
    }
    let last = last.expect("the log has a file open");
    let (prefix, number) = last.to_str().unwrap().rsplit_once('-').unwrap();
    let number: u64 = number.parse().unwrap();
    let further = (number + 1..number + 9)
        .map(|number| directory.join(format!("{prefix}-{number:016}.slack")));
    further
        .inspect(|path| std::fs::create_dir(path).unwrap())
        .collect()
}

#[test]
fn what_writes_cost_readers_is_counted_and_told() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(Config {
        offload: OffloadMode::Eager,
        flush_delay: Duration::from_secs(60),
        promotion_enabled: false,
        ..tiered(root.path())
    })
    .unwrap();
    put_all(&store, &["read".to_owned()], 1000);
    store.flush(Duration::from_secs(20)).unwrap();
    put_all(&store, &["written".to_owned()], 1000);
    let reads = |core: &mut core::Core, now| {
        let alone = Duration::from_millis(1);
        read_taking(core, now, "read", alone, |_| ());
        read_taking(core, now, "read", 9 * alone, |core| drop(core.flush(now)));
    };
    store.shared().with(reads).unwrap();
    let ssd = store.stats().ssd.unwrap();
    let pace = (ssd.write_window, ssd.read_slowdown, ssd.reads_delayed_us);
    assert_eq!(pace, (0.714, 2.0, 8000));
    let text = store.metrics_text(MetricsFormat::Prometheus);
    for line in [
        "slackwater_ssd_write_window 0.714\n",
        "slackwater_ssd_read_slowdown_ratio 2\n",
        "slackwater_ssd_read_delay_seconds_total 0.008\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}

#[test]
fn rotten_bytes_on_ssd_are_a_miss_and_never_returned() {
    let root = tempfile::tempdir().unwrap();
    let (keys, bytes) = (names(20), 20_000);
    let config = || Config {
        promotion_enabled: false,
        ..tiered(root.path())
    };
    let store = Store::open(config()).unwrap();
    put_all(&store, &keys, bytes);
    store.close().unwrap();
    let store = Store::open(config()).unwrap();
    // Flip one bit in the middle of every value: they are unlike anything else in the files.
    for entry in std::fs::read_dir(root.path()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "slack")
        {
            continue;
        }
        let mut content = std::fs::read(&path).unwrap();
        for key in &keys[..10] {
            let needle = &value(key, bytes)[..64];
            if let Some(at) = content.windows(64).position(|window| window == needle) {
                content[at + bytes / 2] ^= 4;
            }
        }
        std::fs::write(&path, content).unwrap();
    }
    let found: Vec<bool> = keys
        .iter()
        .map(|key| read(&store, key, bytes).is_some())
        .collect();
    assert_eq!(found, (0..20).map(|index| index >= 10).collect::<Vec<_>>());
    assert_eq!(store.stats().corrupt, 10, "each is counted once");
    assert_eq!(read(&store, &keys[0], bytes), None);
    assert_eq!(
        store.put(
            keys[0].as_bytes(),
            &value(&keys[0], bytes),
            &PutOptions::default()
        ),
        Ok(Stored::New)
    );
    assert!(read(&store, &keys[0], bytes).is_some());
}
