use std::collections::BTreeMap;

use proptest::prelude::*;
use slackwater_base::Checksum;
use slackwater_wire::{ExtentRef, Incarnation, Object, ReplicaAt, SegmentId};

use super::*;

const LEASE: Duration = Duration::from_secs(5);

fn key(name: &str) -> Key {
    Key::try_from(name).unwrap()
}

fn located(version: u64, valid_until: Instant) -> Located<u64> {
    let extent = ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(2),
        offset: 0,
        bytes: 4096,
        generation: version,
    };
    let object = Object {
        version: Version(version),
        bytes: 100,
        checksum: Checksum(7),
        replicas: vec![ReplicaAt::Memory(extent)].into(),
        lease: LEASE,
        guard: None,
    };
    Located {
        known: Known {
            object,
            valid_until,
        },
        rights: version,
    }
}

fn keep(locations: &mut Locations<u64>, now: Instant, name: &str, version: u64) {
    let (key, found) = (key(name), located(version, now + LEASE));
    let stamp = locations.stamp(&key);
    locations.keep(now, &Tenant::DEFAULT, &key, stamp, found);
}

/// The versions that are found, or none if not all of the keys are known.
fn find(locations: &mut Locations<u64>, now: Instant, names: &[&str]) -> Option<Vec<u64>> {
    let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
    let found = locations.find(now, &Tenant::DEFAULT, &keys, &Chain::default())?;
    Some(found.into_iter().map(|located| located.rights).collect())
}

#[test]
fn a_location_is_known_until_its_lease_ends_and_only_all_or_none_of_a_call() {
    let mut locations = Locations::new(8);
    let now = Instant::ZERO;
    keep(&mut locations, now, "a", 1);
    keep(&mut locations, now, "b", 2);
    assert_eq!(find(&mut locations, now, &["b", "a"]), Some(vec![2, 1]));
    assert_eq!(find(&mut locations, now, &["a", "c"]), None);
    let last = now + LEASE - Duration::from_nanos(1);
    assert_eq!(find(&mut locations, last, &["a"]), Some(vec![1]));
    assert_eq!(find(&mut locations, now + LEASE, &["a"]), None);
    let other = Tenant::new("other").unwrap();
    let found = locations.find(now, &other, &[key("a")], &Chain::default());
    assert_eq!(found, None, "another tenant's object of that name");
}

#[test]
fn a_length_is_said_of_what_would_be_found_and_noted_by_nobody() {
    let mut locations = Locations::new(8);
    let now = Instant::ZERO;
    keep(&mut locations, now, "a", 1);
    let length =
        |now: Instant, tenant: &Tenant, name: &str| locations.length(now, tenant, &key(name));
    let tenant = Tenant::DEFAULT;
    assert_eq!(length(now, &tenant, "a"), Some(100));
    assert_eq!(length(now, &tenant, "b"), None);
    assert_eq!(length(now + LEASE, &tenant, "a"), None);
    assert_eq!(length(now, &Tenant::new("other").unwrap(), "a"), None);
    assert_eq!(locations.next_deadline(), None, "no read to be told of");
}

/// A look-up was answered, then the object was removed, and then the answer was kept: the client read what it had removed.
#[test]
fn what_was_looked_up_before_a_removal_is_not_kept_after_it() {
    let mut locations = Locations::new(8);
    let (now, a) = (Instant::ZERO, key("a"));
    let before = locations.stamp(&a);
    locations.forget(&a);
    locations.keep(now, &Tenant::DEFAULT, &a, before, located(1, now + LEASE));
    assert_eq!(find(&mut locations, now, &["a"]), None);
    keep(&mut locations, now, "a", 2);
    assert_eq!(find(&mut locations, now, &["a"]), Some(vec![2]));
    locations.forget(&a);
    assert_eq!(find(&mut locations, now, &["a"]), None);
    let before = locations.stamp(&a);
    keep(&mut locations, now, "a", 3);
    locations.forget_all();
    locations.keep(now, &Tenant::DEFAULT, &a, before, located(3, now + LEASE));
    assert_eq!(find(&mut locations, now, &["a"]), None);
}

#[test]
fn an_answer_that_was_overtaken_replaces_nothing() {
    let mut locations = Locations::new(8);
    let now = Instant::ZERO;
    keep(&mut locations, now, "a", 5);
    keep(&mut locations, now, "a", 4);
    assert_eq!(find(&mut locations, now, &["a"]), Some(vec![5]));
    keep(&mut locations, now + LEASE / 2, "a", 5);
    assert_eq!(
        find(&mut locations, now + LEASE, &["a"]),
        Some(vec![5]),
        "it was renewed"
    );
    assert_eq!(locations.len(), 1);
}

#[test]
fn reads_without_a_look_up_are_told_once_a_second() {
    let mut locations = Locations::new(8);
    let now = Instant::ZERO;
    for (name, version) in [("a", 1), ("b", 2), ("c", 3)] {
        keep(&mut locations, now, name, version);
    }
    assert_eq!(
        locations.next_deadline(),
        None,
        "look-ups are known to the master"
    );
    let begun = now + Duration::from_millis(300);
    for names in [&["a", "b"][..], &["b"], &["b", "c"], &["a", "b", "c"]] {
        assert!(find(&mut locations, begun, names).is_some());
    }
    let due = begun + TELL_AFTER;
    assert_eq!(locations.next_deadline(), Some(due));
    assert!(
        locations
            .on_deadline(due - Duration::from_nanos(1))
            .is_empty()
    );
    let mut told = locations.on_deadline(due);
    let (reads, stamps) = told.pop().unwrap();
    let calls: Vec<Vec<Key>> = reads.calls.iter().map(|call| call.keys.clone()).collect();
    // Each key is named by the first call that read it, with its place in the chain.
    assert_eq!(calls, [vec![key("a"), key("b")], vec![key("b"), key("c")]]);
    assert!(told.is_empty() && stamps.len() == 4);
    assert_eq!(locations.next_deadline(), None);
    assert!(find(&mut locations, due, &["a"]).is_some());
    assert_eq!(
        locations.next_deadline(),
        Some(due + TELL_AFTER),
        "a second later again"
    );
}

/// A read of an object was told by its key alone, and so of whatever was put in its place meanwhile.
#[test]
fn reads_are_told_of_the_versions_that_were_read() {
    let mut locations = Locations::new(8);
    let now = Instant::ZERO;
    for (name, version) in [("a", 1), ("b", 2)] {
        keep(&mut locations, now, name, version);
    }
    find(&mut locations, now, &["a", "b"]).unwrap();
    locations.forget(&key("b"));
    keep(&mut locations, now, "b", 3);
    find(&mut locations, now, &["b"]).unwrap();
    let told = locations.on_deadline(now + TELL_AFTER);
    let call = |call: &ReadCall| (call.keys.clone(), call.versions.clone());
    let told: Vec<_> = told[0].0.calls.iter().map(call).collect();
    let (a, b) = (key("a"), key("b"));
    assert_eq!(
        told,
        [
            (vec![a, b.clone()], vec![Version(1), Version(2)]),
            (vec![b.clone()], vec![Version(3)])
        ]
    );
    // The answer to it: that version is not there any more, and a later one is.
    locations.forget_version(&b, Version(2));
    assert_eq!(find(&mut locations, now, &["b"]), Some(vec![3]));
    locations.forget_version(&b, Version(3));
    assert_eq!(find(&mut locations, now, &["b"]), None);
}

#[test]
fn messages_are_of_one_tenant_and_bounded_and_so_is_what_waits() {
    let now = Instant::ZERO;
    let mut locations = Locations::new(4 * UNTOLD_KEYS_MAX);
    let other = Tenant::new("other").unwrap();
    for number in 0..2 * UNTOLD_KEYS_MAX {
        let (key, tenant) = (
            key(&format!("k{number}")),
            if number == 0 {
                &other
            } else {
                &Tenant::DEFAULT
            },
        );
        let stamp = locations.stamp(&key);
        locations.keep(now, tenant, &key, stamp, located(1, now + LEASE));
        assert!(
            locations
                .find(now, tenant, &[key], &Chain::default())
                .is_some()
        );
    }
    let told = locations.on_deadline(now + TELL_AFTER);
    assert_eq!(told[0].0.tenant, other);
    let sizes: Vec<usize> = told.iter().map(|(reads, _)| reads.keys().count()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), UNTOLD_KEYS_MAX);
    assert!(
        sizes[0] == 1 && sizes.iter().all(|keys| *keys <= TELL_KEYS),
        "{sizes:?}"
    );
    assert!(
        told.iter()
            .all(|(reads, stamps)| reads.keys().count() == stamps.len())
    );
}

/// While too many reads waited to be told, further ones were marked as told: the master never heard of them, and let go of
/// what was read all the time.
#[test]
fn a_read_that_had_no_room_is_told_with_the_next_ones() {
    let mut now = Instant::ZERO;
    let mut locations = Locations::new(4 * UNTOLD_KEYS_MAX);
    for number in 0..UNTOLD_KEYS_MAX {
        let name = format!("k{number}");
        keep(&mut locations, now, &name, 1);
        assert!(find(&mut locations, now, &[&name]).is_some());
    }
    keep(&mut locations, now, "late", 2);
    assert!(find(&mut locations, now, &["late"]).is_some());
    now += TELL_AFTER;
    let told = locations.on_deadline(now);
    let named = |told: &[(Reads, Vec<Stamp>)]| {
        told.iter()
            .any(|(reads, _)| reads.keys().any(|named| *named == key("late")))
    };
    assert!(!named(&told));
    assert!(find(&mut locations, now, &["late"]).is_some());
    assert!(named(&locations.on_deadline(now + TELL_AFTER)));
}

#[test]
fn a_client_that_keeps_none_knows_none() {
    let mut locations = Locations::new(0);
    keep(&mut locations, Instant::ZERO, "a", 1);
    assert!(locations.is_empty() && find(&mut locations, Instant::ZERO, &["a"]).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Stamp(u8),
    Keep(u8),
    Forget(u8),
    Find(u8),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12u8).prop_map(Step::Stamp),
        (0..12u8).prop_map(Step::Keep),
        (0..12u8).prop_map(Step::Forget),
        (0..12u8).prop_map(Step::Find),
        (0..3000u16).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is found was kept within its lease, after its stamp nobody forgot the key, and no later version was kept.
    #[test]
    fn only_what_may_be_read_is_found(limit in 1..8usize, steps in prop::collection::vec(step(), 1..200)) {
        let mut locations = Locations::new(limit);
        let mut now = Instant::ZERO;
        let mut stamps: BTreeMap<u8, Stamp> = BTreeMap::new();
        // Of each key: the version that may be found, and until when.
        let mut model: BTreeMap<u8, (u64, Instant)> = BTreeMap::new();
        for (version, step) in (1..).zip(steps) {
            match step {
                Step::Stamp(at) => _ = stamps.insert(at, locations.stamp(&key(&at.to_string()))),
                Step::Keep(at) => {
                    if let Some(stamp) = stamps.get(&at) {
                        let (key, found) = (key(&at.to_string()), located(version, now + LEASE));
                        let fresh = locations.stamp(&key) == *stamp;
                        locations.keep(now, &Tenant::DEFAULT, &key, *stamp, found);
                        if fresh {
                            model.insert(at, (version, now + LEASE));
                        }
                    }
                }
                Step::Forget(at) => {
                    locations.forget(&key(&at.to_string()));
                    stamps.remove(&at);
                    model.remove(&at);
                }
                Step::Find(at) => {
                    let found = find(&mut locations, now, &[&at.to_string()]);
                    if let Some(found) = found {
                        let (version, until) = model[&at];
                        prop_assert!(found == [version] && now < until);
                    }
                }
                Step::Pass(millis) => now += Duration::from_millis(millis.into()),
            }
            prop_assert!(locations.len() <= limit && locations.order.len() <= limit);
        }
    }
}
