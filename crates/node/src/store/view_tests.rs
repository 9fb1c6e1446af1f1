//! Views: what they show, what they keep in place, and that no other bytes ever appear in them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use slackwater_base::ByteSize;
use slackwater_wire::{Durability, Pin, PutMode};

use super::*;

const MIB: usize = 1 << 20;

/// Bytes that all follow from one number.
fn value(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| number ^ (at / 7) as u8).collect()
}

fn in_memory(memory: ByteSize) -> Config {
    Config {
        memory,
        put_wait: Duration::from_millis(20),
        ..Config::default()
    }
}

fn tiered(directory: &Path) -> Config {
    Config {
        ssd: ByteSize::mib(64),
        dir: Some(directory.to_owned()),
        promotion_enabled: false,
        ..in_memory(ByteSize::mib(8))
    }
}

fn put(store: &Store, key: &str, value: &[u8]) {
    store
        .put(key.as_bytes(), value, &PutOptions::default())
        .unwrap();
}

fn view(store: &Store, key: &str) -> View {
    let view = store.view(key.as_bytes(), &ViewOptions::default());
    view.unwrap().expect("the value is there")
}

fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes(), &GetOptions::default()).unwrap()
}

fn replace(store: &Store, key: &str, value: &[u8]) {
    let options = PutOptions {
        mode: PutMode::Upsert,
        ..PutOptions::default()
    };
    store.put(key.as_bytes(), value, &options).unwrap();
}

/// A store with these values on SSD alone.
fn on_ssd_alone(config: &Config, values: &[(&str, &[u8])]) -> Store {
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    let store = Store::open(config.clone()).unwrap();
    for (key, value) in values {
        store.put(key.as_bytes(), value, &durable).unwrap();
    }
    store.close().unwrap();
    Store::open(config.clone()).unwrap()
}

#[test]
fn a_view_shows_the_value_where_it_lies_and_a_miss_is_none() {
    let store = Store::open(in_memory(ByteSize::mib(8))).unwrap();
    for bytes in [1, 4095, 4096, 100_001] {
        let key = bytes.to_string();
        put(&store, &key, &value(3, bytes));
        let (first, second) = (view(&store, &key), view(&store, &key));
        assert!(*first == value(3, bytes)[..] && first.tier() == Tier::Memory);
        assert_eq!(first.as_ptr(), second.as_ptr(), "no copy");
    }
    assert!(
        store
            .view(b"other", &ViewOptions::default())
            .unwrap()
            .is_none()
    );
    assert!(store.view(b"", &ViewOptions::default()).is_err());
    let stats = store.stats();
    assert_eq!((stats.reads.memory_hits, stats.reads.misses), (8, 1));
    assert_eq!(
        (stats.views.opened, stats.views.open, stats.views.open_bytes),
        (8, 0, 0)
    );
    assert_eq!(stats.latency.memory.count, 8);
}

#[test]
fn a_batch_shows_both_tiers_and_stops_at_the_first_gap_of_a_prefix() {
    let root = tempfile::tempdir().unwrap();
    let (a, c) = (value(1, 300_000), value(3, 5000));
    let store = on_ssd_alone(&tiered(root.path()), &[("a", &a)]);
    put(&store, "c", &c);
    let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"", b"a"];
    let check = |options: &ViewOptions, expected: [Option<(&[u8], Tier)>; 5]| {
        let reads = store.stats().ssd_reads;
        let views = store.view_batch(&keys, options);
        for (at, (view, expected)) in views.iter().zip(expected).enumerate() {
            match (view, at) {
                (Err(StoreError::Key(_)), 3) => {}
                (Ok(view), _) => {
                    let shown = view.as_ref().map(|view| (&**view, view.tier()));
                    assert!(shown == expected, "{at}: {view:?}");
                }
                other => panic!("{at}: {other:?}"),
            }
        }
        let from_ssd = expected
            .iter()
            .flatten()
            .filter(|(_, tier)| *tier == Tier::Disk);
        assert_eq!(store.stats().ssd_reads - reads, from_ssd.count() as u64);
    };
    let (a, c) = (Some((&a[..], Tier::Disk)), Some((&c[..], Tier::Memory)));
    let mut options = ViewOptions::default();
    for verify in [Verify::OnArrival, Verify::Always] {
        options.verify = verify;
        options.read.prefix_only = false;
        check(&options, [a, None, c, None, a]);
        options.read.prefix_only = true;
        check(&options, [a, None, None, None, None]);
    }
    // Asked once for each look-up: a second would count as another read of the policies and of promotion.
    let gets = store
        .shared()
        .with(|core, _| core.master().unwrap().metrics().gets)
        .unwrap();
    view(&store, "a");
    let again = store
        .shared()
        .with(|core, _| core.master().unwrap().metrics().gets)
        .unwrap();
    assert_eq!(again - gets, 1);
    assert_eq!(store.stats().views.open, 0);
}

/// Memory that fails changes bytes long after they were verified on arrival.
#[test]
fn bytes_that_changed_in_memory_are_found_where_a_view_asks_for_it() {
    let root = tempfile::tempdir().unwrap();
    let original = value(7, 10_000);
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    let store = Store::open(tiered(root.path())).unwrap();
    store.put(b"k", &original, &durable).unwrap();
    put(&store, "lone", &original);
    for key in ["k", "lone"] {
        let shown = view(&store, key);
        let region = &store.shared().segment.region;
        let offset = shown.as_ptr().addr() - region.start().as_ptr().addr();
        drop(shown);
        // SAFETY: the value lies in the mapping at this offset, and no slice of it exists now.
        unsafe { *region.start().as_ptr().add(offset + 5000) ^= 1 };
    }
    assert!(
        *view(&store, "k") != original[..],
        "verified on arrival only"
    );
    let always = ViewOptions {
        verify: Verify::Always,
        ..ViewOptions::default()
    };
    let from_ssd = store.view(b"k", &always).unwrap();
    assert!(from_ssd.is_none_or(|view| *view == original[..] && view.tier() == Tier::Disk));
    assert!(store.stats().corrupt >= 1, "the copy in memory is dropped");
    let shown = store.view(b"lone", &always).unwrap();
    assert!(shown.is_none_or(|view| *view == original[..]));
    assert_eq!(store.stats().views.open, 0);
}

#[test]
fn a_viewed_value_is_removed_and_replaced_while_its_view_keeps_the_bytes() {
    let store = Store::open(in_memory(ByteSize::mib(4))).unwrap();
    let old = value(1, MIB);
    put(&store, "k", &old);
    let shown = view(&store, "k");
    let refused = || {
        let leased = only(store.remove(&[b"k"], &RemoveOptions::default())).unwrap_err();
        assert_eq!(leased.code(), ErrorCode::ObjectHasLease);
    };
    refused();
    drop(shown);
    // The long way holds the value as the short one does.
    let always = ViewOptions {
        verify: Verify::Always,
        ..ViewOptions::default()
    };
    let shown = store.view(b"k", &always).unwrap().unwrap();
    refused();
    replace(&store, "k", &value(2, MIB));
    assert!(get(&store, "k") == Some(value(2, MIB)) && *shown == old[..]);
    let newer = view(&store, "k");
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    only(store.remove(&[b"k"], &force)).unwrap();
    assert!(get(&store, "k").is_none() && store.stats().objects == 0);
    // Every byte that is not held is written again and again.
    for round in 0..20 {
        replace(&store, "other", &value(round, MIB));
        assert!(*shown == old[..] && *newer == value(2, MIB)[..], "{round}");
    }
    drop((shown, newer));
    for number in 0..3 {
        put(&store, &number.to_string(), &value(number, MIB));
    }
}

#[test]
fn what_is_viewed_is_not_evicted_and_a_put_without_room_is_refused_until_a_view_ends() {
    let store = Store::open(in_memory(ByteSize::mib(4))).unwrap();
    let keys = ["a", "b", "c", "d"];
    for (number, key) in keys.iter().enumerate() {
        put(&store, key, &value(number as u8, MIB));
    }
    let mut views: Vec<View> = keys
        .iter()
        .filter_map(|key| store.view(key.as_bytes(), &ViewOptions::default()).unwrap())
        .collect();
    assert!(views.len() >= 2);
    let room = store.stats().memory;
    let wanted = (room.capacity_bytes - room.used_bytes) as usize + MIB;
    let refused = store
        .put(b"new", &value(9, wanted), &PutOptions::default())
        .unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    for view in &views {
        assert!(
            keys.iter()
                .enumerate()
                .any(|(number, _)| **view == value(number as u8, MIB)[..])
        );
    }
    let evictions = store.stats().evictions.count;
    views.clear();
    put(&store, "new", &value(9, wanted));
    assert!(store.stats().evictions.count > evictions);
    assert!(get(&store, "new") == Some(value(9, wanted)));
}

#[test]
fn a_view_outlives_its_store_on_both_tiers() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (value(1, 200_000), value(2, 200_000));
    let store = on_ssd_alone(&tiered(root.path()), &[("a", &a)]);
    put(&store, "b", &b);
    let (from_ssd, from_memory) = (view(&store, "a"), view(&store, "b"));
    store.clone().close().unwrap();
    assert_eq!(
        store.view(b"a", &ViewOptions::default()).unwrap_err(),
        StoreError::Closed
    );
    drop(store);
    // Another store can have the directory, as nothing of it is kept.
    let next = Store::open(tiered(root.path())).unwrap();
    assert!(*from_ssd == a[..] && *from_memory == b[..]);
    let moved = std::thread::spawn(move || from_memory[199_999]);
    assert_eq!(moved.join().unwrap(), b[199_999]);
    drop(from_ssd);
    next.close().unwrap();
}

#[test]
fn views_are_bounded_in_number_and_refused_while_one_is_late() {
    let config = Config {
        views_limit: 2,
        views_time: Duration::from_secs(30),
        ..in_memory(ByteSize::mib(8))
    };
    let store = Store::open(config).unwrap();
    put(&store, "a", &value(1, 5000));
    put(&store, "b", &value(2, 5000));
    let first = view(&store, "a");
    let check = |options: &ViewOptions, expected: &str| {
        for refused in store.view_batch(&[b"a", b"b"], options) {
            let error = refused.unwrap_err();
            assert_eq!(error.code(), ErrorCode::TaskPendingLimitExceeded);
            assert!(error.to_string().contains(expected), "{error}");
        }
    };
    let second = view(&store, "b");
    let mut options = ViewOptions::default();
    for verify in [Verify::OnArrival, Verify::Always] {
        options.verify = verify;
        check(&options, "2 views are open, of 2 at most");
    }
    drop(second);
    store.skip_to(Duration::from_secs(60)).unwrap();
    for verify in [Verify::OnArrival, Verify::Always] {
        options.verify = verify;
        check(&options, "no further view: one of a has been open for ");
    }
    let stats = store.stats().views;
    assert_eq!(
        (stats.open, stats.open_bytes, stats.late, stats.became_late),
        (1, 5000, 1, 1)
    );
    assert_eq!((stats.opened, stats.refused), (2, 8));
    let text = store.metrics_text(MetricsFormat::Prometheus);
    assert!(text.contains("slackwater_views_late 1\n"), "{text}");
    // Late or not, it keeps its bytes.
    let options = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    only(store.remove(&[b"a"], &options)).unwrap();
    for round in 0..8 {
        replace(&store, "c", &value(round, 3 * MIB));
    }
    assert!(*first == value(1, 5000)[..]);
    drop(first);
    assert_eq!(store.stats().views.late, 0);
    assert!(*view(&store, "b") == value(2, 5000)[..]);
}

/// A batch with more keys than views left gets as many as there may be by the long way, and none by the short one.
#[test]
fn a_refused_batch_leaves_nothing_held() {
    let config = Config {
        views_limit: 2,
        ..in_memory(ByteSize::mib(8))
    };
    let store = Store::open(config).unwrap();
    for key in ["a", "b", "c"] {
        put(&store, key, &value(1, 5000));
    }
    let views = store.view_batch(&[b"a", b"b", b"c"], &ViewOptions::default());
    let given = views
        .iter()
        .filter(|view| matches!(view, Ok(Some(_))))
        .count();
    assert_eq!(given as u64, store.stats().views.open);
    drop(views);
    let books = store.shared().with(|core, _| {
        core.master().unwrap().check_books().unwrap();
        (
            core.master().unwrap().books().guards,
            core.views.stats().open,
        )
    });
    assert_eq!(books.unwrap(), (0, 0));
    for key in [&b"a"[..], b"b", b"c"] {
        only(store.remove(&[key], &RemoveOptions::default())).unwrap();
    }
}

#[test]
fn views_of_values_on_ssd_are_bounded_by_their_buffers() {
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        views_buffers: ByteSize::mib(1),
        ..tiered(root.path())
    };
    let (a, b) = (value(1, 700_000), value(2, 700_000));
    let store = on_ssd_alone(&config, &[("a", &a), ("b", &b)]);
    let first = view(&store, "a");
    let refused = store.view(b"b", &ViewOptions::default()).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NoAvailableHandle);
    assert!(refused.to_string().contains("`views.buffers`"), "{refused}");
    assert!(
        get(&store, "b").as_deref() == Some(&b[..]),
        "a read needs none"
    );
    assert!(*first == a[..]);
    drop(first);
    assert!(*view(&store, "b") == b[..]);
    assert_eq!(store.stats().views.open, 0);
}

#[test]
fn explain_names_the_views_of_a_value() {
    let store = Store::open(in_memory(ByteSize::mib(1))).unwrap();
    put(&store, "a", &value(1, 100));
    put(&store, "b", &value(1, 100));
    let (_one, _two) = (view(&store, "a"), view(&store, "a"));
    store.skip_to(Duration::from_secs(90)).unwrap();
    let explained = |key: &[u8]| {
        store
            .explain(key, &Tenant::DEFAULT)
            .unwrap()
            .unwrap()
            .remove(0)
    };
    let reason = explained(b"a");
    let views = reason.views.unwrap();
    assert_eq!((views.open, views.late), (2, true));
    assert!(views.oldest_s >= 89.0, "{views:?}");
    assert!(
        reason.words.contains("2 views are open, the oldest for"),
        "{}",
        reason.words
    );
    assert!(explained(b"b").views.is_none());
}

/// A group is evicted as a whole, so a view of one member keeps them all, and its end lets them go.
#[test]
fn a_view_keeps_the_group_of_its_value() {
    let store = Store::open(in_memory(ByteSize::mib(4))).unwrap();
    let options = PutOptions {
        group: Some(1),
        pin: Pin::None,
        ..PutOptions::default()
    };
    for key in ["a", "b"] {
        store.put(key.as_bytes(), &value(1, MIB), &options).unwrap();
    }
    let shown = view(&store, "a");
    assert!(
        store
            .put(b"new", &value(2, 3 * MIB), &PutOptions::default())
            .is_err()
    );
    assert!(get(&store, "b").is_some());
    drop(shown);
    put(&store, "new", &value(2, 3 * MIB));
    assert!(get(&store, "b").is_none());
}

/// Threads replace, remove and evict what others view: each view shows one value from its first look to its last.
#[test]
fn no_view_ever_changes_while_its_memory_is_fought_over() {
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        memory: ByteSize::mib(2),
        promotion_enabled: true,
        ..tiered(root.path())
    };
    let store = Store::open(config).unwrap();
    let (stop, force) = (
        AtomicBool::new(false),
        RemoveOptions {
            force: true,
            ..RemoveOptions::default()
        },
    );
    let shown = std::thread::scope(|scope| {
        let (store, stop, force) = (&store, &stop, &force);
        for thread in 0..2u8 {
            scope.spawn(move || {
                let upsert = PutOptions {
                    mode: PutMode::Upsert,
                    ..PutOptions::default()
                };
                let mut round = 0u8;
                while !stop.load(Ordering::Relaxed) {
                    round = round.wrapping_add(1);
                    let key = [round % 13];
                    // Refused for want of room while everything is viewed: the next one may not be.
                    let _ = store.put(
                        &key,
                        &value(round ^ thread, 100_000 + usize::from(round)),
                        &upsert,
                    );
                    if round.is_multiple_of(5) {
                        let _ = store.remove(&[&[(round ^ thread) % 13]], force);
                    }
                }
            });
        }
        let viewers: Vec<_> = (0..2u8)
            .map(|thread| {
                scope.spawn(move || {
                    let (mut held, mut shown) = (Vec::new(), 0);
                    for round in 0..1500u32 {
                        let key = [((round as u8) ^ thread) % 13];
                        let verify = if round % 3 == 0 {
                            Verify::Always
                        } else {
                            Verify::OnArrival
                        };
                        let options = ViewOptions {
                            verify,
                            ..ViewOptions::default()
                        };
                        if let Ok(Some(view)) = store.view(&key, &options) {
                            let number = view[0];
                            assert!(*view == value(number, view.len())[..], "whole when opened");
                            held.push((number, view));
                            shown += 1;
                        }
                        if held.len() > 6 {
                            let (number, view) = held.remove(round as usize % 7);
                            assert!(*view == value(number, view.len())[..], "whole when closed");
                        }
                    }
                    shown
                })
            })
            .collect();
        let shown: u32 = viewers
            .into_iter()
            .map(|viewer| viewer.join().unwrap())
            .sum();
        stop.store(true, Ordering::Relaxed);
        shown
    });
    assert!(shown > 100, "{shown}");
    let books = store.shared().with(|core, _| {
        core.master().unwrap().check_books().unwrap();
        (core.master().unwrap().books().guards, core.views.stats())
    });
    let (guards, views) = books.unwrap();
    assert_eq!(
        (guards, views.open, views.open_bytes, views.late),
        (0, 0, 0, 0)
    );
    store.close().unwrap();
}
