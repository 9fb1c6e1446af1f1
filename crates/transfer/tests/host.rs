//! The host mover when only some memory, or none, can be reached over the host.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "conformance/world.rs"]
#[expect(dead_code, reason = "the conformance suite uses the rest")]
mod world;

use std::sync::Arc;
use std::time::Duration;

use slackwater_transfer::host::{HostLimits, HostMover, ServiceLimits};
use slackwater_transfer::{
    BatchError, Cause, Engine, GrantSpec, Home, HostContact, Mover, Op, Refusal, Rights, Segment,
    Target, Tcp, TcpConfig,
};

use crate::world::{End, anonymous, at, host_engine, noise, request, segment, shared, submit};

/// An engine with both movers, the host first.
fn both_ways(name: &str) -> (Engine, Arc<HostMover>, HostContact) {
    let life = Home::open().unwrap();
    let tcp: Arc<dyn Mover> = Arc::new(Tcp::start(&life, TcpConfig::default()).unwrap());
    let host =
        Arc::new(HostMover::start(&life, HostLimits::default(), Some(Arc::clone(&tcp))).unwrap());
    let contact = host.contact();
    let segment = segment(name, &life, Some(contact.clone()));
    (
        Engine::assemble(
            life,
            segment,
            vec![Arc::clone(&host) as Arc<dyn Mover>, tcp],
        ),
        host,
        contact,
    )
}

#[test]
fn without_a_way_over_the_host_bytes_go_over_tcp_and_the_reason_is_told() {
    let (near, host, contact) = both_ways("near");
    let life = Home::open().unwrap();
    let tcp = Arc::new(Tcp::start(&life, TcpConfig::default()).unwrap());
    // The host is the same, but no process listens there: another namespace looks like this.
    let nobody = HostContact {
        socket: "slackwater-nobody".to_owned(),
        ..contact
    };
    let far_segment = Segment {
        addresses: tcp.addresses().to_vec(),
        ..segment("far", &life, Some(nobody))
    };
    let far = End {
        engine: Engine::assemble(life, far_segment, vec![tcp]),
        make: anonymous,
    };
    let field = far.filled(&noise(1, 100_000));
    let peer = near.open(far.engine.segment().clone());
    let near = End {
        engine: near,
        make: anonymous,
    };
    let here = near.field(100_000);
    assert_eq!(
        near.engine.mover(peer),
        Some("host"),
        "nothing is known yet"
    );
    let capability = far
        .engine
        .grant(
            field.region.id(),
            &GrantSpec::whole(&field.region, Rights::READ),
        )
        .unwrap();
    let target = Target {
        peer,
        offset: 0,
        capability,
        key: None,
    };
    for _ in 0..3 {
        near.engine
            .transfer(
                vec![request(Op::Read, vec![here.range(0, 100_000)], target)],
                &submit(),
            )
            .unwrap();
    }
    assert!(here.load() == field.load());
    assert_eq!(near.engine.mover(peer), Some("tcp"));
    let reason = host.why_not(far.engine.segment()).unwrap();
    assert!(reason.starts_with("host socket: "), "{reason}");
    let stats = near.engine.stats(peer);
    assert_eq!(
        stats
            .iter()
            .map(|(name, stats)| (*name, stats.completed))
            .collect::<Vec<_>>(),
        [("host", 0), ("tcp", 3)]
    );
}

#[test]
fn more_capabilities_than_windows_are_served_in_turn() {
    let limits = HostLimits {
        service: ServiceLimits {
            windows_per_peer: 4,
            ..ServiceLimits::default()
        },
        inline_bytes_max: 1000,
        ..HostLimits::default()
    };
    let (near, _) = host_engine("near", HostLimits::default());
    let (far, mover) = host_engine("far", limits);
    let (near, far) = (
        End {
            engine: near,
            make: anonymous,
        },
        End {
            engine: far,
            make: shared,
        },
    );
    let field = far.field(300 * 4096);
    let data = noise(2, 300 * 4096);
    let here = near.filled(&data);
    let peer = near.engine.open(far.engine.segment().clone());
    let one = |index: usize| {
        let range = GrantSpec {
            offset: index as u64 * 4096,
            bytes: 4096,
            ..GrantSpec::whole(&field.region, Rights::BOTH)
        };
        let capability = far.engine.grant(field.region.id(), &range).unwrap();
        let target = at(
            Target {
                peer,
                offset: 0,
                capability,
                key: None,
            },
            index * 4096,
        );
        request(Op::Write, vec![here.range(index * 4096, 4096)], target)
    };
    near.engine
        .transfer((0..300).map(one).collect(), &submit())
        .unwrap();
    assert!(field.load() == data);
    let (peers, windows) = mover.open_windows();
    assert!(
        peers == 1 && windows <= 4,
        "{peers} peers, {windows} windows"
    );
}

/// A batch of more requests than the queue takes waited for room that only its own first requests could make, and these
/// waited for the end of the submission: it timed out as a whole.
#[test]
fn a_batch_larger_than_the_queue_goes_through() {
    let limits = HostLimits {
        queue_entries: 4,
        inline_bytes_max: 0,
        ..HostLimits::default()
    };
    let (near, far) = (
        host_engine("near", limits).0,
        host_engine("far", HostLimits::default()).0,
    );
    let (near, far) = (
        End {
            engine: near,
            make: anonymous,
        },
        End {
            engine: far,
            make: shared,
        },
    );
    let data = noise(3, 100 * 4096);
    let (here, field) = (near.filled(&data), far.field(100 * 4096));
    let peer = near.engine.open(far.engine.segment().clone());
    let targets: Vec<Target> = (0..10)
        .map(|_| {
            let spec = GrantSpec::whole(&field.region, Rights::BOTH);
            let capability = far.engine.grant(field.region.id(), &spec).unwrap();
            Target {
                peer,
                offset: 0,
                capability,
                key: None,
            }
        })
        .collect();
    let one = |index: usize| {
        request(
            Op::Write,
            vec![here.range(index * 4096, 4096)],
            at(targets[index % 10], index * 4096),
        )
    };
    for _ in 0..2 {
        near.engine
            .transfer((0..100).map(one).collect(), &submit())
            .unwrap();
        assert!(field.load() == data);
    }
}

/// An initiator kept shared memory mapped that its owner had unregistered and dropped, as long as it had room for
/// windows: no process could reach those bytes, and the host could not use them.
#[test]
fn memory_that_its_owner_takes_back_is_released() {
    const BYTES: usize = 4096 * 1237;
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_size = |line: &&str| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            line.contains("memfd:slackwater") && address(end) - address(start) == BYTES
        };
        maps.lines().filter(of_size).count()
    };
    let (near, far) = (
        host_engine("near", HostLimits::default()).0,
        host_engine("far", HostLimits::default()).0,
    );
    let (near, far) = (
        End {
            engine: near,
            make: anonymous,
        },
        End {
            engine: far,
            make: shared,
        },
    );
    let here = near.field(8);
    let peer = near.engine.open(far.engine.segment().clone());
    for _ in 0..20 {
        let field = far.field(BYTES);
        let capability = far
            .engine
            .grant(
                field.region.id(),
                &GrantSpec::whole(&field.region, Rights::READ),
            )
            .unwrap();
        let target = Target {
            peer,
            offset: 0,
            capability,
            key: None,
        };
        near.engine
            .transfer(
                vec![request(Op::Read, vec![here.range(0, 8)], target)],
                &submit(),
            )
            .unwrap();
        // The mappings of the owner, of the initiator, and those that the initiator still keeps.
        assert!(mappings() <= 3, "{} mappings", mappings());
        far.engine
            .unregister(field.region.id(), world::PATIENCE)
            .unwrap();
    }
}

/// A new key left windows open that had been opened under the old one: their peers could go on using them.
#[test]
fn a_new_key_is_the_end_of_what_was_granted_under_the_old_one() {
    let (near, far) = (
        host_engine("near", HostLimits::default()).0,
        host_engine("far", HostLimits::default()).0,
    );
    let (near, far) = (
        End {
            engine: near,
            make: anonymous,
        },
        End {
            engine: far,
            make: shared,
        },
    );
    let (here, field) = (near.filled(&noise(4, 4096)), far.field(4096));
    let peer = near.engine.open(far.engine.segment().clone());
    let grant = || {
        far.engine
            .grant(
                field.region.id(),
                &GrantSpec::whole(&field.region, Rights::BOTH),
            )
            .unwrap()
    };
    let old = Target {
        peer,
        offset: 0,
        capability: grant(),
        key: None,
    };
    let write = |target| vec![request(Op::Write, vec![here.range(0, 4096)], target)];
    near.engine.transfer(write(old), &submit()).unwrap();
    far.engine.home().rotate(Duration::ZERO).unwrap();
    let forged = Cause::Refused(Refusal::Forged);
    for _ in 0..2 {
        assert_eq!(
            near.engine.write_now(&old, &[9; 8], world::PATIENCE),
            Err(forged.clone())
        );
        assert_eq!(
            near.engine.transfer(write(old), &submit()),
            Err(BatchError::Failed(forged.clone()))
        );
    }
    assert!(field.load() == here.load());
    near.engine
        .transfer(
            write(Target {
                capability: grant(),
                ..old
            }),
            &submit(),
        )
        .unwrap();
}

#[test]
fn a_foreign_boot_is_another_host() {
    let (near, mover) = host_engine("near", HostLimits::default());
    let life = Home::open().unwrap();
    let foreign = HostContact {
        boot_id: "00000000-0000-0000-0000-000000000000".to_owned(),
        ..mover.contact()
    };
    let foreign = segment("far", &life, Some(foreign));
    assert_eq!(mover.why_not(&foreign).as_deref(), Some("another host"));
    assert_eq!(near.mover(near.open(foreign)), None);
}
