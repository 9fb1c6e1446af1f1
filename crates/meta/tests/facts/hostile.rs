//! Requests with numbers that no honest client sends.

use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, Input, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

fn put(entries: &[(&str, u64)], chain: Chain) -> Request {
    let entry = |(name, bytes): &(&str, u64)| PutEntry {
        key: key(name),
        bytes: *bytes,
    };
    Request::PutStart(PutStart {
        tenant: Tenant::DEFAULT,
        entries: entries.iter().map(entry).collect(),
        chain,
        config: PutConfig {
            wait: None,
            ..PutConfig::default()
        },
    })
}

/// The bytes that waiting puts want were added up without a limit. Only the first entry of a waiting call has been
/// checked, so two later ones of absurd length overflowed the sum: the master panicked.
#[test]
fn a_waiting_put_of_absurd_lengths_is_harmless() {
    let check = |wait: Option<std::time::Duration>| {
        let mut world = World::memory(plain(), 16 * BLOCK);
        let pinned = PutConfig {
            pin: Pin::Hard,
            ..PutConfig::default()
        };
        for number in 0..16 {
            world.put_with(&format!("full{number}"), BLOCK, pinned.clone());
        }
        let Request::PutStart(mut start) = put(
            &[("a", BLOCK), ("b", u64::MAX), ("c", u64::MAX)],
            Chain::default(),
        ) else {
            unreachable!("it starts a put");
        };
        start.config.wait = wait;
        world.send(ME, Request::PutStart(start));
        world.found("full0");
    };
    check(None);
    check(Some(std::time::Duration::ZERO));
    check(Some(std::time::Duration::MAX));
}

/// Positions in a chain were counted on from what the client says, past the end of the number: the master panicked, or
/// took the end of a chain for its root.
#[test]
fn a_chain_at_an_absurd_position_is_harmless() {
    let check = |policy: PolicyKind, position: u32| {
        let eviction = Eviction {
            policy,
            ..Eviction::DEFAULT
        };
        let config = MasterConfig {
            eviction,
            ..plain()
        };
        let mut world = World::memory(config, 16 * BLOCK);
        let names = ["a", "b", "c", "d"];
        let chain = |parent: Option<&str>| Chain {
            parent: parent.map(key),
            position,
            ..Chain::default()
        };
        for parent in [None, Some("z")] {
            for _ in 0..3 {
                let entries = names.map(|name| (name, BLOCK));
                if let Reply::PutStart(started) = world.ask(put(&entries, chain(parent))) {
                    for (name, started) in names.iter().zip(started) {
                        if let PutStarted::Granted { version, .. } = started {
                            world.end(ME, name, version);
                        }
                    }
                }
                let read = Get {
                    tenant: Tenant::DEFAULT,
                    keys: names.iter().map(|name| key(name)).collect(),
                    chain: chain(parent),
                    hold: Hold::Lease,
                    prefix_only: false,
                };
                world.ask(Request::Get(read.clone()));
                world.ask(remove("c", true));
                world.ask(Request::Get(read));
            }
            world.ask(remove("a", true));
        }
    };
    for policy in PolicyKind::ALL {
        for position in [u32::MAX, u32::MAX - 2, u32::MAX - 4] {
            check(policy, position);
        }
    }
}

/// The bytes of all segments were added up without a limit.
#[test]
fn quotas_pins_and_segments_of_absurd_sizes_are_harmless() {
    let config = MasterConfig {
        tenancy: slackwater_meta::Tenancy::On,
        ..plain()
    };
    let mut world = World::tiers(config, 16 * BLOCK, 1 << 50);
    let mount = Mount {
        segment: SegmentId(9),
        name: String::new(),
        node: NodeId(9),
        incarnation: Incarnation(u64::MAX),
        kind: SegmentKind::Disk,
        bytes: u64::MAX,
        host: String::new(),
        generations: None,
        watermarks: None,
    };
    let refused = Reply::Failed(ErrorCode::InvalidParams);
    assert_eq!(world.ask(Request::Mount(mount)), refused);
    for name in ["acme", "evil"] {
        let tenant = Tenant::new(name).expect("a tenant");
        world.ask(Request::SetQuota {
            tenant: tenant.clone(),
            memory_bytes: u64::MAX,
            disk_bytes: u64::MAX,
        });
        let entries = [("a", BLOCK), ("b", u64::MAX)];
        if let Request::PutStart(mut start) = put(&entries, Chain::default()) {
            start.tenant = tenant.clone();
            start.config.pin = Pin::Soft(Some(std::time::Duration::MAX));
            start.config.replicas = u32::MAX;
            world.ask(Request::PutStart(start.clone()));
            start.config.replicas = 1;
            world.ask(Request::PutStart(start));
        }
    }
    world.ask(Request::Quotas);
    world.pass(std::time::Duration::from_secs(1));
}

/// A node's report of its capacity and the records that it announced were added up without a limit: the sums overflowed.
#[test]
fn an_ssd_of_absurd_capacity_and_records_of_absurd_lengths_are_harmless() {
    let mut world = World::tiers(plain(), 16 * BLOCK, MIB);
    let other = SegmentId(9);
    world.mount(NodeId(9), other, SegmentKind::Disk, MIB);
    for node in [NODE, NodeId(9)] {
        let state = DiskState {
            node,
            accepting: true,
            failing: false,
            capacity: u64::MAX,
            pressure: u64::MAX,
        };
        world.report(node, Report::Disk(state));
    }
    let mut version = 0;
    for (bytes, count) in [(u64::MAX, 2), (1 << 63, 3), ((1 << 50) - 4096, 1 << 15)] {
        let entries = (0..count).map(|number| {
            version += 1;
            let entry = DiskEntry {
                tenant: Tenant::DEFAULT,
                key: key(&format!("{bytes} {number}")),
                version: Version(version),
            };
            ReportedEntry {
                entry,
                bytes,
                checksum: slackwater_base::Checksum(1),
            }
        });
        let entries = entries.collect();
        let segment = other;
        world.report(NodeId(9), Report::Announce { segment, entries });
    }
    world.input(Input::NodeLost(NodeId(9)));
    world.put("a", BLOCK);
    world.found("a");
}

/// One report named a key twice, and then the key of the record that it had just replaced.
#[test]
fn a_report_that_names_a_key_twice_is_harmless() {
    let check = |policy: PolicyKind| {
        let eviction = Eviction {
            policy,
            ..Eviction::DEFAULT
        };
        let config = MasterConfig {
            eviction,
            ..plain()
        };
        let mut world = World::tiers(config, 16 * BLOCK, MIB);
        let named = [
            ("a", 1),
            ("b", 2),
            ("a", 3),
            ("a", 3),
            ("b", 2),
            ("a", 1),
            ("a", 4),
        ];
        let entries = named.map(|(name, version)| reported(name, version, BLOCK));
        for _ in 0..2 {
            world.report(
                NODE,
                Report::Announce {
                    segment: DISK,
                    entries: entries.to_vec(),
                },
            );
        }
        assert_eq!(world.found("a").version, Version(4), "{policy:?}");
        world.found("b");
        for number in 0..2 * MIB / BLOCK {
            let more = reported(&format!("more{number}"), 5 + number, BLOCK);
            let segment = DISK;
            let entries = vec![more];
            world.report(NODE, Report::Announce { segment, entries });
        }
    };
    for policy in PolicyKind::ALL {
        check(policy);
    }
}

/// A node that reported the last version there is left none for puts: the count began again from zero, where records of
/// old values are newer than those of new ones.
#[test]
fn the_last_version_there_is_leaves_newer_ones() {
    let mut world = World::tiers(plain(), 16 * BLOCK, MIB);
    let before = world.put("a", BLOCK);
    let entry = DiskEntry {
        tenant: Tenant::DEFAULT,
        key: key("b"),
        version: Version(u64::MAX),
    };
    let reported = ReportedEntry {
        entry,
        bytes: BLOCK,
        checksum: slackwater_base::Checksum(1),
    };
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported],
        },
    );
    let highest = Version(u64::MAX);
    world.report(
        NODE,
        Report::Announced {
            segment: DISK,
            highest,
        },
    );
    assert_eq!(world.get("b"), Lookup::Missing, "no log writes that");
    let versions = ["b", "c", "d"].map(|name| world.put(name, BLOCK));
    assert!(before < versions[0] && versions.is_sorted());
}
