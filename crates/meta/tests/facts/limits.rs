//! Limits, each met exactly: what fills it is accepted, and what is one more is refused.

use slackwater_meta::{Limits, MasterConfig, PutPolicy};
use slackwater_wire::*;

use crate::world::*;

fn limited(limits: Limits) -> World {
    let put = PutPolicy {
        wait: std::time::Duration::ZERO,
        ..PutPolicy::DEFAULT
    };
    let config = MasterConfig {
        limits,
        put,
        ..plain()
    };
    World::memory(config, 64 * BLOCK)
}

#[test]
fn a_request_of_more_keys_than_a_batch_may_have_is_refused_whole() {
    let keys = |count: usize| -> Vec<Key> {
        (0..count)
            .map(|number| key(&format!("key{number}")))
            .collect()
    };
    let tenant = || Tenant::DEFAULT;
    let requests: [fn(Tenant, Vec<Key>) -> Request; 7] = [
        |tenant, keys| {
            Request::Get(Get {
                tenant,
                keys,
                chain: Chain::default(),
                hold: Hold::Lease,
                prefix_only: false,
            })
        },
        |tenant, keys| {
            let keys = keys.into();
            Request::Exists(Exists { tenant, keys })
        },
        |tenant, keys| {
            let entry = |key| PutEntry { key, bytes: BLOCK };
            Request::PutStart(PutStart {
                tenant,
                entries: keys.into_iter().map(entry).collect(),
                chain: Chain::default(),
                config: PutConfig::default(),
            })
        },
        |tenant, keys| {
            let done = |key| PutDone {
                key,
                version: Version(1),
                checksum: slackwater_base::Checksum(1),
            };
            let puts = keys.into_iter().map(done).collect();
            Request::PutEnd(PutEnd {
                tenant,
                puts,
                hosts: None,
            })
        },
        |tenant, keys| {
            let puts = keys.into_iter().map(|key| (key, Version(1))).collect();
            Request::PutRevoke { tenant, puts }
        },
        |tenant, keys| {
            Request::Remove(Remove {
                tenant,
                keys,
                force: true,
            })
        },
        |tenant, keys| {
            Request::ReplicaClear(ReplicaClear {
                tenant,
                keys,
                segment: None,
            })
        },
    ];
    for request in requests {
        let mut world = limited(Limits {
            batch_keys: 3,
            ..Limits::DEFAULT
        });
        for count in [3, 4] {
            let request = request(tenant(), keys(count));
            let refused = world.ask(request.clone()) == Reply::Failed(ErrorCode::InvalidParams);
            assert_eq!(refused, count > 3, "{request:?}");
        }
    }
}

/// The third put meets the limit, whatever it is, and is accepted once one of the first two has gone.
#[test]
fn a_put_is_refused_at_each_limit_and_accepted_below_it() {
    let check = |limits: Limits, ended: bool, config: PutConfig, code: ErrorCode| {
        let mut world = limited(limits);
        let put = |world: &mut World, name: &str| {
            let started = world.start(name, BLOCK, config.clone());
            if let (true, PutStarted::Granted { version, .. }) = (ended, &started) {
                world.end(ME, name, *version);
            }
            started
        };
        let first = put(&mut world, "a");
        let PutStarted::Granted { version, .. } = first else {
            panic!("{first:?}");
        };
        let second = put(&mut world, "b");
        assert!(matches!(second, PutStarted::Granted { .. }), "{second:?}");
        assert_eq!(put(&mut world, "c"), PutStarted::Failed(code));
        if ended {
            assert_eq!(world.remove_with("a", true), Ok(()));
        } else {
            world.end(ME, "a", version);
        }
        let third = put(&mut world, "c");
        assert!(matches!(third, PutStarted::Granted { .. }), "{third:?}");
    };
    let group = PutConfig {
        group: Some(1),
        ..PutConfig::default()
    };
    let two = Limits::DEFAULT;
    check(
        Limits { objects: 2, ..two },
        true,
        PutConfig::default(),
        ErrorCode::NoAvailableHandle,
    );
    check(
        Limits {
            open_puts: 2,
            ..two
        },
        false,
        PutConfig::default(),
        ErrorCode::TaskPendingLimitExceeded,
    );
    check(
        Limits {
            group_members: 2,
            ..two
        },
        true,
        group,
        ErrorCode::InvalidParams,
    );
}

#[test]
fn segments_and_replicas_are_limited() {
    let limits = Limits {
        segments: 2,
        replicas: 2,
        ..Limits::DEFAULT
    };
    let mut world = limited(limits);
    world.mount(NODE, SegmentId(3), SegmentKind::Memory, 64 * BLOCK);
    let mount = Request::Mount(Mount {
        segment: SegmentId(4),
        name: "segment-4".to_owned(),
        node: NODE,
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: 64 * BLOCK,
        host: "host".to_owned(),
        generations: None,
        watermarks: None,
    });
    let full = Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
    assert_eq!(world.ask(mount), full);
    for (replicas, accepted) in [(0, false), (1, true), (2, true), (3, false)] {
        let config = PutConfig {
            replicas,
            ..PutConfig::default()
        };
        let reply = world.ask(start(&format!("of{replicas}"), BLOCK, config));
        let refused = reply == Reply::Failed(ErrorCode::InvalidParams);
        assert_eq!(refused, !accepted, "{replicas}: {reply:?}");
    }
}

#[test]
fn guards_are_limited() {
    let limits = Limits {
        guards: 2,
        ..Limits::DEFAULT
    };
    let mut world = limited(limits);
    world.put("a", BLOCK);
    let mut guards = Vec::new();
    for _ in 0..2 {
        match world.get_with("a", Hold::Guard) {
            Lookup::Found(Object {
                guard: Some(guard), ..
            }) => guards.push(guard),
            other => panic!("{other:?}"),
        }
    }
    let full = world.get_with("a", Hold::Guard);
    assert!(!matches!(full, Lookup::Found(_)), "{full:?}");
    let end = GetEnd {
        guards: vec![guards[0]],
    };
    assert_eq!(world.ask(Request::GetEnd(end)), Reply::Done);
    let again = world.get_with("a", Hold::Guard);
    assert!(matches!(again, Lookup::Found(_)), "{again:?}");
}

/// One order of a step listed more than a message may: its node took it for damage, and left the link.
#[test]
fn a_node_is_ordered_no_more_at_once_than_a_message_carries() {
    const KEYS: usize = slackwater_wire::limits::BATCH_KEYS_MAX;
    const BYTES: u64 = 4096;
    let mut world = World::memory(plain(), 2 * KEYS as u64 * BYTES);
    world.mount(NODE, DISK, SegmentKind::Memory, 2 * KEYS as u64 * BYTES);
    (world.obedient, world.checks) = (false, false);
    let name = |number: usize| key(&format!("key{number}"));
    let entries = (0..KEYS).map(|number| PutEntry {
        key: name(number),
        bytes: BYTES,
    });
    let started = world.ask(Request::PutStart(PutStart {
        tenant: Tenant::DEFAULT,
        entries: entries.collect(),
        chain: Chain::default(),
        config: PutConfig {
            replicas: 2,
            ..PutConfig::default()
        },
    }));
    let Reply::PutStart(started) = started else {
        panic!("{started:?}");
    };
    let mut extents = std::collections::BTreeSet::new();
    let puts = started.iter().enumerate().map(|(number, it)| match it {
        PutStarted::Granted { version, .. } => (name(number), *version),
        other => panic!("{other:?}"),
    });
    let revoke = Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: puts.collect(),
    };
    assert_eq!(world.ask(revoke), Reply::Each(vec![Ok(()); KEYS]));
    let fences = world.taken(|order| match order {
        Order::Fence(extents) => Some(extents.clone()),
        _ => None,
    });
    for fenced in &fences {
        assert!(fenced.len() <= KEYS, "{} extents", fenced.len());
        extents.extend(fenced.iter().map(|it| (it.segment, it.offset)));
    }
    assert_eq!((fences.len(), extents.len()), (2, 2 * KEYS));
}
