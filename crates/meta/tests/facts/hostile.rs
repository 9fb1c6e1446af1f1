//! Requests with numbers that no honest client sends.

use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, MasterConfig};
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
