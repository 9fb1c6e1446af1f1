//! Sealed connections: what they carry, which peers they refuse, and what an attacker on the way can do.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use slackwater_transfer::{
    AllowList, BatchError, Cause, Engine, GrantSpec, Level, Mover, Op, Region, Rights, SealConfig,
    SealError, Segment, Target, Tcp, TcpConfig, holder_of,
};
use slackwater_wire::data::{Features, GREETING_BYTES, Greeting, Refusal};
use slackwater_zmtp::{KeyPair, PublicKey, SecretKey};

use crate::raw::greeting;
use crate::support::*;

pub(crate) const ALICE: u8 = 1;
pub(crate) const BOB: u8 = 2;
pub(crate) const MALLORY: u8 = 3;

pub(crate) fn pair(byte: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([byte; 32]))
}

pub(crate) fn public(byte: u8) -> PublicKey {
    pair(byte).public()
}

pub(crate) fn sealed(own: u8, clients: &[u8]) -> TcpConfig {
    let clients = clients.iter().map(|byte| public(*byte)).collect();
    TcpConfig {
        seal: Some(SealConfig {
            keys: pair(own),
            clients,
        }),
        ..config()
    }
}

fn whole(
    engine: &Engine,
    peer: &Segment,
    far: (&Engine, &Arc<Region>),
    near: &Arc<Region>,
    op: Op,
) -> [Result<(), BatchError>; 2] {
    let to = Target {
        peer: engine.open(peer.clone()),
        offset: 0,
        capability: grant(far.0, far.1),
        key: None,
    };
    both_ways(
        engine,
        &request(op, vec![range(near, 0, near.bytes())], to),
        20 * SECOND,
    )
}

#[test]
fn reads_and_writes_of_any_size_arrive() {
    let (alice, bob) = (
        engine("alice", sealed(ALICE, &[])),
        engine("bob", sealed(BOB, &[ALICE])),
    );
    for bytes in [1, 4095, (64 << 10) + 1, (1 << 20) - 3, (64 << 20) + 7] {
        let (here, there) = (region(&alice, bytes), region(&bob, bytes));
        fill(&there, 5);
        assert_eq!(
            whole(&alice, bob.segment(), (&bob, &there), &here, Op::Read),
            [Ok(()), Ok(())]
        );
        assert!(
            bytes_of(&here, 0, bytes) == pattern(5, bytes),
            "{bytes} bytes read"
        );
        fill(&here, 6);
        assert_eq!(
            whole(&alice, bob.segment(), (&bob, &there), &here, Op::Write),
            [Ok(()), Ok(())]
        );
        assert!(
            bytes_of(&there, 0, bytes) == pattern(6, bytes),
            "{bytes} bytes written"
        );
    }
}

#[test]
fn a_peer_without_the_right_key_is_refused_by_name() {
    let check = |near: TcpConfig,
                 far: TcpConfig,
                 claimed: Option<u8>,
                 expected: SealError,
                 refused: u64| {
        let (alice, (bob, tcp)) = (engine("alice", near), engine_and_mover("bob", far));
        let (here, there) = (region(&alice, 4096), region(&bob, 4096));
        fill(&there, 5);
        let public_key = claimed.map(|byte| *public(byte).as_bytes());
        let peer = Segment {
            public_key,
            ..bob.segment().clone()
        };
        for ended in whole(&alice, &peer, (&bob, &there), &here, Op::Read) {
            assert_eq!(ended, Err(BatchError::Failed(Cause::Seal(expected))));
        }
        assert_eq!(bytes_of(&here, 0, 4096), vec![0; 4096]);
        assert_eq!(
            counted(&tcp, "peers_refused") > 0,
            refused > 0,
            "{expected}"
        );
    };
    // A client that bob does not know; a key that is not bob's; a plain client; a plain bob, with and without a key
    // published for it; a client that was told of a key and has none.
    check(
        sealed(MALLORY, &[]),
        sealed(BOB, &[ALICE]),
        Some(BOB),
        SealError::Refused,
        1,
    );
    check(
        sealed(ALICE, &[]),
        sealed(BOB, &[ALICE]),
        Some(MALLORY),
        SealError::Refused,
        1,
    );
    check(
        config(),
        sealed(BOB, &[ALICE]),
        None,
        SealError::Unsealed,
        1,
    );
    check(
        sealed(ALICE, &[]),
        config(),
        Some(BOB),
        SealError::Unsealed,
        0,
    );
    check(sealed(ALICE, &[]), config(), None, SealError::Unsealed, 0);
    check(
        config(),
        sealed(BOB, &[ALICE]),
        Some(BOB),
        SealError::Unsealed,
        0,
    );
}

#[test]
fn a_capability_is_of_use_to_the_key_it_was_granted_to() {
    let far = engine("bob", sealed(BOB, &[ALICE, MALLORY]));
    let there = region(&far, 4096);
    let spec = GrantSpec {
        holder: holder_of(&public(ALICE)),
        ..GrantSpec::whole(&there, Rights::BOTH)
    };
    let capability = far.grant(there.id(), &spec).unwrap();
    for (own, expected) in [
        (ALICE, Ok(())),
        (
            MALLORY,
            Err(BatchError::Failed(Cause::Refused(Refusal::Holder))),
        ),
    ] {
        let near = engine("near", sealed(own, &[]));
        let here = region(&near, 4096);
        let to = target(near.open(far.segment().clone()), capability, 0);
        let read = request(Op::Read, vec![range(&here, 0, 4096)], to);
        assert_eq!(
            both_ways(&near, &read, 20 * SECOND),
            [expected.clone(), expected]
        );
    }
}

#[test]
fn a_peer_whose_key_is_revoked_is_served_no_more() {
    let list: AllowList = [public(ALICE)].into();
    let seal = Some(SealConfig {
        keys: pair(BOB),
        clients: list.clone(),
    });
    let (far, tcp) = engine_and_mover("bob", TcpConfig { seal, ..config() });
    let there = region(&far, 4096);
    let near = [ALICE, MALLORY].map(|own| engine("near", sealed(own, &[])));
    let read = |near: &Engine| {
        let here = region(near, 4096);
        whole(near, far.segment(), (&far, &there), &here, Op::Read)[1].clone()
    };
    let refused = Err(BatchError::Failed(Cause::Seal(SealError::Refused)));
    assert_eq!(near.each_ref().map(read), [Ok(()), refused.clone()]);
    let before = counted(&tcp, "peers_refused");
    list.replace([(public(MALLORY), Level::Basic)]);
    assert_eq!(
        near.each_ref().map(read),
        [refused, Ok(())],
        "on the connections that stood, too"
    );
    assert!(counted(&tcp, "peers_refused") > before);
}

/// A connection ended with the next request of its peer: what was under way went on, and one that asked nothing stayed.
#[test]
fn a_connection_ends_when_its_key_is_revoked() {
    let list: AllowList = [public(ALICE), public(MALLORY)].into();
    let seal = Some(SealConfig {
        keys: pair(BOB),
        clients: list.clone(),
    });
    let (far, tcp) = engine_and_mover("bob", TcpConfig { seal, ..config() });
    let there = region(&far, 4096);
    let near = [ALICE, MALLORY].map(|own| engine("near", sealed(own, &[])));
    for near in &near {
        let here = region(near, 4096);
        let read = whole(near, far.segment(), (&far, &there), &here, Op::Read);
        assert_eq!(read, [Ok(()), Ok(())]);
    }
    let served = counted(&tcp, "connections_served");
    assert!(served >= 2);
    list.replace([
        (public(ALICE), Level::Basic),
        (public(MALLORY), Level::Basic),
    ]);
    list.replace([(public(ALICE), Level::Basic)]);
    until("those of one key are gone", || {
        (1..served).contains(&counted(&tcp, "connections_served"))
    });
    list.replace([]);
    until("all are gone", || counted(&tcp, "connections_served") == 0);
}

#[test]
fn an_environment_seals_an_engine_by_key_files() {
    let folder = std::env::temp_dir().join(format!("slackwater-sealed-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [near, far] = [(ALICE, BOB), (BOB, ALICE)].map(|(own, other)| {
        let (key, clients) = (
            folder.join(format!("{own}.key")),
            folder.join(format!("{own}.clients")),
        );
        fs::write(&key, format!("{own:02x}").repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&clients, format!("{} basic\n", public(other))).unwrap();
        let vars = [
            ("SLACKWATER_TCP_SEAL_CLIENTS", clients),
            ("SLACKWATER_TCP_SEAL_KEY", key),
        ];
        let vars = vars.map(|(name, path)| (name.to_owned(), path.to_str().unwrap().to_owned()));
        engine("keyed", TcpConfig::from_env(vars).unwrap())
    });
    let (here, there) = (region(&near, 4096), region(&far, 4096));
    assert_eq!(far.segment().public_key, Some(*public(BOB).as_bytes()));
    assert_eq!(
        whole(&near, far.segment(), (&far, &there), &here, Op::Read),
        [Ok(()), Ok(())]
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn keys_open_the_way_beyond_this_machine() {
    let bind: Vec<SocketAddr> = vec!["0.0.0.0:0".parse().unwrap()];
    let life = slackwater_transfer::Home::open().unwrap();
    let plain = Tcp::start(
        &life,
        TcpConfig {
            bind: bind.clone(),
            ..config()
        },
    );
    assert!(
        plain
            .unwrap_err()
            .to_string()
            .contains("give keys to seal them")
    );
    let tcp = Tcp::start(
        &life,
        TcpConfig {
            bind,
            ..sealed(ALICE, &[])
        },
    )
    .unwrap();
    let far = |public_key| Segment {
        name: "far".to_owned(),
        incarnation: life.incarnation(),
        addresses: vec!["192.0.2.1:1".parse().unwrap()],
        public_key,
        host: None,
    };
    assert!(!tcp.reaches(&far(None)));
    assert!(tcp.reaches(&far(Some(*public(BOB).as_bytes()))));
}

/// What an attacker does to the bytes of one direction of a connection.
#[derive(Clone, Copy)]
enum Meddle {
    /// Changes the lowest bit of this byte.
    Flip(usize),
    /// Sends the second record, which is the first request, twice.
    Replay,
}

/// Relays between initiators and `target`, and changes the bytes of one direction of the first connection only: the
/// answers if `answers` is set, else the requests.
fn middle(target: SocketAddr, answers: bool, meddle: Meddle) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut meddle = Some(meddle);
        // It ends with the process; what it relays ends with its two ends.
        for near in listener.incoming() {
            let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else {
                return;
            };
            let (to_near, to_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let [asking, answering] = if answers {
                [None, meddle.take()]
            } else {
                [meddle.take(), None]
            };
            std::thread::spawn(move || relay(near, to_far, asking));
            std::thread::spawn(move || relay(far, to_near, answering));
        }
    });
    address
}

fn relay(mut from: TcpStream, mut to: TcpStream, meddle: Option<Meddle>) {
    let (mut seen, mut heard, mut held, mut buffer) =
        (0, Vec::new(), Vec::new(), vec![0; 64 << 10]);
    let mut replayed = !matches!(meddle, Some(Meddle::Replay));
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(Meddle::Flip(at)) = meddle
            && (seen..seen + count).contains(&at)
        {
            buffer[at - seen] ^= 1;
        }
        seen += count;
        held.extend_from_slice(&buffer[..count]);
        if !replayed {
            heard.extend_from_slice(&buffer[..count]);
            if let Some(request) = second_record(&heard) {
                // All that is here goes on first; nothing comes behind the request before it is answered.
                held.extend_from_slice(&heard[request]);
                replayed = true;
            }
        }
        if to.write_all(&std::mem::take(&mut held)).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn second_record(bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    let end = |start: usize| {
        let length = bytes.get(start..start + 4)?;
        Some(start + 4 + u32::from_le_bytes(length.try_into().unwrap()) as usize + 16)
    };
    let start = end(GREETING_BYTES)?;
    let end = end(start).filter(|end| *end <= bytes.len())?;
    Some(start..end)
}

#[test]
fn a_changed_bit_fails_what_was_under_way_and_reaches_no_memory() {
    const BYTES: usize = 1 << 20;
    let check = |op: Op, at: usize| {
        let ((alice, near_tcp), (bob, far_tcp)) = (
            engine_and_mover("alice", sealed(ALICE, &[])),
            engine_and_mover("bob", sealed(BOB, &[ALICE])),
        );
        let (here, there) = (region(&alice, BYTES), region(&bob, BYTES));
        let (from, to, tcp) = match op {
            Op::Read => (&there, &here, near_tcp),
            Op::Write => (&here, &there, far_tcp),
        };
        fill(from, 7);
        let addresses = vec![middle(
            bob.segment().addresses[0],
            op == Op::Read,
            Meddle::Flip(at),
        )];
        let peer = alice.open(Segment {
            addresses,
            ..bob.segment().clone()
        });
        let asked = request(
            op,
            vec![range(&here, 0, BYTES as u64)],
            target(peer, grant(&bob, &there), 0),
        );
        let ended = alice.transfer(vec![asked], &within(20 * SECOND));
        match op {
            Op::Read => assert_eq!(
                ended,
                Err(BatchError::Failed(Cause::Seal(SealError::Record)))
            ),
            // The initiator sees the target close.
            Op::Write => assert!(
                matches!(ended, Err(BatchError::Failed(Cause::Lost(_)))),
                "{ended:?}"
            ),
        }
        assert_eq!(counted(&tcp, "records_refused"), 1);
        let (found, sent) = (bytes_of(to, 0, BYTES), pattern(7, BYTES));
        let right = found
            .iter()
            .zip(&sent)
            .take_while(|(found, sent)| found == sent)
            .count();
        assert!(
            right < BYTES && found[right..].iter().all(|byte| *byte == 0),
            "{op:?}: wrong bytes from {right} on"
        );
    };
    for at in [GREETING_BYTES + 30, GREETING_BYTES + 300_000] {
        check(Op::Read, at);
    }
    check(Op::Write, GREETING_BYTES + 300_000);
}

#[test]
fn a_repeated_record_ends_the_connection() {
    let (alice, (bob, tcp)) = (
        engine("alice", sealed(ALICE, &[])),
        engine_and_mover("bob", sealed(BOB, &[ALICE])),
    );
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    fill(&there, 8);
    let addresses = vec![middle(bob.segment().addresses[0], false, Meddle::Replay)];
    let peer = alice.open(Segment {
        addresses,
        ..bob.segment().clone()
    });
    let read = request(
        Op::Read,
        vec![range(&here, 0, 4096)],
        target(peer, grant(&bob, &there), 0),
    );
    // The answer may be back before the connection ends; if not, the read goes over the next one.
    assert_eq!(alice.transfer(vec![read], &within(20 * SECOND)), Ok(()));
    assert!(bytes_of(&here, 0, 4096) == pattern(8, 4096));
    until("the repeated record is counted", || {
        counted(&tcp, "records_refused") == 1
    });
}

/// Each connection that asked to be sealed cost the target an agreement of keys, as many in a second as an attacker
/// opened: thousands from one address.
#[test]
fn so_many_handshakes_of_one_address_are_answered_in_a_second() {
    const HANDSHAKES_PER_SECOND: u64 = 200;
    let (bob, tcp) = engine_and_mover("bob", sealed(BOB, &[ALICE]));
    let alice = engine("alice", sealed(ALICE, &[]));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    let works = || {
        let ends = whole(&alice, bob.segment(), (&bob, &there), &here, Op::Write);
        assert_eq!(ends, [Ok(()), Ok(())]);
    };
    works();
    let hello = Greeting {
        features: Features::SEALED,
        handshake: public(MALLORY).as_bytes().repeat(3).try_into().unwrap(),
        ..greeting(7)
    };
    let (start, address) = (Instant::now(), bob.segment().addresses[0]);
    let flood = || {
        let mut attempts = 0;
        while start.elapsed() < SECOND {
            // A connection that was closed at once has its greeting unread.
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(&hello.to_bytes());
                attempts += 1;
            }
        }
        attempts
    };
    let attempts: u64 = std::thread::scope(|threads| {
        let flooding = [(); 3].map(|()| threads.spawn(flood));
        while start.elapsed() < SECOND {
            works();
        }
        flooding.map(|thread| thread.join().unwrap()).iter().sum()
    });
    works();
    let (answered, seconds) = (
        counted(&tcp, "peers_refused"),
        start.elapsed().as_secs() + 1,
    );
    assert!(answered > 0, "{attempts} attempts");
    // As many at once as in a second, and those of each second.
    let allowed = HANDSHAKES_PER_SECOND * (1 + seconds);
    assert!(
        answered <= allowed,
        "{answered} of {attempts} in {seconds} s"
    );
}

/// There is room for a proof behind a greeting, and not for what a read may bring.
#[test]
fn a_peer_that_sends_on_before_it_has_proven_itself_is_disconnected() {
    let (bob, tcp) = engine_and_mover("bob", sealed(BOB, &[ALICE]));
    let alice = engine("alice", sealed(ALICE, &[]));
    let (listener, there) = (TcpListener::bind("127.0.0.1:0").unwrap(), region(&bob, 64));
    let through = Segment {
        addresses: vec![listener.local_addr().unwrap()],
        ..bob.segment().clone()
    };
    // The greeting of a key that is listed, with more behind it than its owner sends.
    let peer = alice.open(through);
    let greeting = std::thread::spawn(move || {
        let mut greeting = [0; GREETING_BYTES];
        listener
            .accept()
            .unwrap()
            .0
            .read_exact(&mut greeting)
            .unwrap();
        greeting
    });
    assert!(alice.probe(peer, SECOND).is_err());
    let stolen = greeting.join().unwrap();
    for behind in [5 << 10, 60 << 10] {
        let mut stream = TcpStream::connect(bob.segment().addresses[0]).unwrap();
        let sent = [stolen.as_slice(), &vec![1; behind]].concat();
        stream.write_all(&sent).unwrap();
        // The end may come as a reset, since not all was read.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    until("both are gone", || counted(&tcp, "connections_served") == 0);
    assert_eq!(counted(&tcp, "records_refused"), 0);
    let here = region(&alice, 64);
    let ends = whole(&alice, bob.segment(), (&bob, &there), &here, Op::Read);
    assert_eq!(ends, [Ok(()), Ok(())]);
}
