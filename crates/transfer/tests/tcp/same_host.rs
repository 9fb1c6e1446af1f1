//! Engines with keys on one host: who reads shared memory, and who is sent the bytes over TCP.

use std::sync::Arc;
use std::time::Duration;

use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::{
    AllowList, BatchError, Cause, Engine, EngineConfig, GrantSpec, Home, Level, Memory, Mover, Op,
    Refusal, Region, RegionSpec, Rights, SealConfig, SealError, Segment, Tcp, TcpConfig, holder_of,
};
use slackwater_wire::Incarnation;

use crate::sealed::{ALICE, BOB, MALLORY, pair, public, sealed};
use crate::support::*;

/// An engine that reaches processes of its host by the host mover, and others by TCP.
fn with_host_mover(name: &str, config: TcpConfig) -> Engine {
    let (home, seal) = (Home::open().unwrap(), config.seal.clone());
    let tcp: Arc<dyn Mover> = Arc::new(Tcp::start(&home, config).unwrap());
    let limits = HostLimits {
        retry_after: Duration::ZERO,
        ..HostLimits::default()
    };
    let fallback = Some(Arc::clone(&tcp));
    let host = Arc::new(HostMover::with_keys(&home, limits, seal, fallback).unwrap());
    let segment = Segment {
        name: name.to_owned(),
        incarnation: home.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host: Some(host.contact()),
    };
    Engine::assemble(home, segment, vec![host, tcp])
}

/// BOB, whose memory others share, with the list of those who may connect.
fn bob_for(clients: &AllowList) -> (Engine, Arc<Region>) {
    let seal = SealConfig {
        keys: pair(BOB),
        clients: clients.clone(),
    };
    let config = EngineConfig {
        tcp: TcpConfig {
            seal: Some(seal),
            ..config()
        },
        ..EngineConfig::new("bob")
    };
    let bob = config.start().unwrap();
    let memory = Memory::shared(4096).unwrap();
    let (rights, gate) = (Rights::BOTH, None);
    let spec = RegionSpec {
        memory,
        rights,
        gate,
    };
    let there = bob.register(spec).unwrap();
    fill(&there, 3);
    (bob, there)
}

/// Reads BOB's memory for `holder`; returns the outcomes, alone and in a batch, and by which mover both went.
fn read_of_bob(
    engine: &Engine,
    (bob, there): (&Engine, &Arc<Region>),
    holder: Incarnation,
) -> ([Result<(), BatchError>; 2], &'static str) {
    let here = region(engine, 4096);
    let spec = GrantSpec {
        holder,
        ..GrantSpec::whole(there, Rights::READ)
    };
    let capability = bob.grant(there.id(), &spec).unwrap();
    let peer = engine.open(bob.segment().clone());
    let by_host = || engine.stats(peer)[0].1.completed;
    let before = by_host();
    let read = request(
        Op::Read,
        vec![range(&here, 0, 4096)],
        target(peer, capability, 0),
    );
    let ended = both_ways(engine, &read, 20 * SECOND);
    let arrived = bytes_of(&here, 0, 4096) == bytes_of(there, 0, 4096);
    assert_eq!(arrived, ended[1].is_ok());
    let way = match by_host() == before + 2 {
        true => "host",
        false => "tcp",
    };
    (ended, way)
}

/// The host mover knew nothing of keys. A process of the same host that was on no list read the memory of a sealed
/// engine; and a capability for the holder of a key was refused to that holder, since the host mover took it for the
/// incarnation that it claims. Then a sealed engine had no host mover, and its own clients read at a fraction of its rate.
#[test]
fn processes_of_the_host_need_the_keys_that_others_need() {
    let clients = AllowList::of([(public(ALICE), Level::Admin)]);
    let (bob, there) = bob_for(&clients);
    let refused = |error| [0; 2].map(|_| Err(BatchError::Failed(Cause::Seal(error))));
    for (config, error) in [
        (config(), SealError::Unsealed),
        (sealed(MALLORY, &[]), SealError::Refused),
    ] {
        let mallory = with_host_mover("mallory", config);
        let (ended, _) = read_of_bob(&mallory, (&bob, &there), Incarnation(0));
        assert_eq!(ended, refused(error));
    }
    let alice = with_host_mover("alice", sealed(ALICE, &[]));
    let read = || read_of_bob(&alice, (&bob, &there), holder_of(&public(ALICE)));
    let both = [Ok(()), Ok(())];
    assert_eq!(read(), (both.clone(), "host"));
    // The list decides, on the link that stands too: ALICE may map memory, then not, and then not connect.
    for (level, expected) in [
        (Level::Basic, (both.clone(), "tcp")),
        (Level::Admin, (both.clone(), "host")),
        (Level::None, (refused(SealError::Refused), "tcp")),
        (Level::Admin, (both.clone(), "host")),
    ] {
        clients.replace([(public(ALICE), level)]);
        assert_eq!(read(), expected, "{}", level.name());
    }
}

/// Two engines with keys in one process: what was granted to the holder of a key was refused to that holder, since the mover
/// within a process took it for its incarnation.
#[test]
fn engines_of_one_process_use_what_is_granted_to_their_keys() {
    let clients = AllowList::of([(public(ALICE), Level::Basic)]);
    let (bob, there) = bob_for(&clients);
    let alice = EngineConfig {
        tcp: sealed(ALICE, &[]),
        ..EngineConfig::new("alice")
    }
    .start()
    .unwrap();
    // Its first mover is the one within the process.
    let read = |key| read_of_bob(&alice, (&bob, &there), holder_of(&public(key)));
    assert_eq!(read(ALICE), ([Ok(()), Ok(())], "host"));
    let refused = [0; 2].map(|_| Err(BatchError::Failed(Cause::Refused(Refusal::Holder))));
    assert_eq!(read(MALLORY), (refused, "tcp"));
}

/// A new key for capabilities closes the windows of links with keys as of all; what is granted under it is read.
#[test]
fn a_new_key_for_capabilities_leaves_the_links_of_the_host() {
    let clients = AllowList::of([(public(ALICE), Level::Admin)]);
    let (bob, there) = bob_for(&clients);
    let alice = with_host_mover("alice", sealed(ALICE, &[]));
    for _ in 0..3 {
        let read = read_of_bob(&alice, (&bob, &there), holder_of(&public(ALICE)));
        assert_eq!(read, ([Ok(()), Ok(())], "host"));
        bob.home().rotate(Duration::ZERO).unwrap();
    }
}
