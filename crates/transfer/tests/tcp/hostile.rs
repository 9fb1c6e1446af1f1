//! Initiators that exceed their limits, or use one id for two requests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use slackwater_transfer::{BatchError, Cause, Op, Segment, TcpConfig};
use slackwater_wire::data::{
    Ack, Frame, GREETING_BYTES, Greeting, Notify, Refusal, TERMS_BYTES, VERSION,
};

use crate::raw::{Raw, ask, data, greeting};
use crate::staged::{CHUNK, slow_engine};
use crate::support::*;

const MIB: u64 = 1 << 20;

fn refused(id: u64, refusal: Refusal) -> Option<Frame> {
    Some(Frame::Ack(Ack {
        id,
        refusal: Some(refusal),
        bytes: 0,
    }))
}

/// The limits of the greeting were announced and not enforced.
#[test]
fn a_peer_with_more_bytes_under_way_than_announced_is_told_and_disconnected() {
    let narrow = TcpConfig {
        in_flight_bytes_max: 64 * MIB,
        ..config()
    };
    let (bob, tcp) = engine_and_mover("bob", narrow);
    let there = region(&bob, 64 << 20);
    let capability = grant(&bob, &there);
    let mut greedy = Raw::connect(&bob, 7);
    assert_eq!(greedy.greeting.in_flight_bytes_max, 64 * MIB);
    greedy.send(&[
        ask(Op::Write, 1, capability, 64 * MIB),
        Frame::Ping { token: 1 },
    ]);
    assert_eq!(
        greedy.hear(),
        Some(Frame::Pong { token: 1 }),
        "as much as was announced is fine"
    );
    greedy.send(&[ask(Op::Write, 2, capability, 1)]);
    assert_eq!(greedy.hear(), refused(2, Refusal::Limit));
    assert_eq!(greedy.hear(), None);
    assert_eq!(counted(&tcp, "limits_exceeded"), 1);
    until("its memory is let go of", || there.in_flight() == 0);
}

#[test]
fn bytes_count_until_they_are_answered() {
    let narrow = TcpConfig {
        in_flight_bytes_max: 64 * MIB,
        ..config()
    };
    let (bob, tcp) = engine_and_mover("bob", narrow);
    let there = region(&bob, 64 << 20);
    let capability = grant(&bob, &there);
    let mut peer = Raw::connect(&bob, 7);
    for id in 0..8 {
        peer.send(&[
            ask(Op::Write, id, capability, 64 * MIB),
            Frame::Cancel { id },
        ]);
        assert_eq!(peer.hear(), refused(id, Refusal::Cancelled));
        peer.send(&[
            ask(Op::Write, 100 + id, capability, 4),
            data(100 + id, 0, 4, true),
        ]);
        peer.send_bytes(&[7; 4]);
        assert!(matches!(
            peer.hear(),
            Some(Frame::Ack(Ack {
                refusal: None,
                bytes: 4,
                ..
            }))
        ));
    }
    assert_eq!(
        (counted(&tcp, "limits_exceeded"), there.in_flight()),
        (0, 0)
    );
}

#[test]
fn a_peer_with_more_requests_under_way_than_announced_is_told_and_disconnected() {
    let (bob, tcp) = engine_and_mover(
        "bob",
        TcpConfig {
            requests_max: 3,
            ..config()
        },
    );
    let there = region(&bob, 4096);
    let capability = grant(&bob, &there);
    let mut greedy = Raw::connect(&bob, 7);
    greedy.send(&[1, 2, 3, 4].map(|id| ask(Op::Write, id, capability, 8)));
    assert_eq!(greedy.hear(), refused(4, Refusal::Limit));
    assert_eq!(greedy.hear(), None);
    assert_eq!(counted(&tcp, "limits_exceeded"), 1);
}

#[test]
fn large_requests_keep_to_what_the_peer_announced() {
    let narrow = TcpConfig {
        in_flight_bytes_max: 64 * MIB,
        requests_max: 2,
        ..config()
    };
    let one_lane = TcpConfig {
        lanes_per_peer: 1,
        ..config()
    };
    let (alice, (bob, tcp)) = (engine("alice", one_lane), engine_and_mover("bob", narrow));
    let (here, there) = (region(&alice, 160 << 20), region(&bob, 160 << 20));
    fill(&here, 3);
    let to = target(alice.open(bob.segment().clone()), grant(&bob, &there), 0);
    let write = request(Op::Write, vec![range(&here, 0, here.bytes())], to);
    alice.transfer(vec![write], &within(20 * SECOND)).unwrap();
    assert!(bytes_of(&there, 0, 160 << 20) == bytes_of(&here, 0, 160 << 20));
    assert_eq!(counted(&tcp, "limits_exceeded"), 0);
}

#[test]
fn a_peer_has_so_many_connections_and_others_have_theirs() {
    let (bob, tcp) = engine_and_mover(
        "bob",
        TcpConfig {
            connections_per_peer_max: 2,
            ..config()
        },
    );
    let mut both = [Raw::connect(&bob, 7), Raw::connect(&bob, 7)];
    let answers = |raw: &mut Raw| {
        raw.send(&[Frame::Ping { token: 5 }]);
        raw.hear()
    };
    let pong = Some(Frame::Pong { token: 5 });
    assert_eq!(both.each_mut().map(answers), [pong, pong]);
    let mut third = Raw::connect(&bob, 7);
    assert_eq!((third.hear(), third.hear()), (Some(Frame::Goaway), None));
    assert_eq!(counted(&tcp, "limits_exceeded"), 1);
    assert_eq!(answers(&mut Raw::connect(&bob, 8)), pong);
    drop(both);
    until("there is room again", || {
        answers(&mut Raw::connect(&bob, 7)) == pong
    });
    // An engine that wants more lanes works with those it gets.
    let alice = engine("alice", config());
    let (here, there) = (region(&alice, 8 << 20), region(&bob, 8 << 20));
    fill(&there, 4);
    let to = target(alice.open(bob.segment().clone()), grant(&bob, &there), 0);
    for _ in 0..3 {
        let read = request(Op::Read, vec![range(&here, 0, 8 << 20)], to);
        alice.transfer(vec![read], &within(20 * SECOND)).unwrap();
    }
    assert!(bytes_of(&here, 0, 8 << 20) == bytes_of(&there, 0, 8 << 20));
}

#[test]
fn a_peer_that_accepts_no_frame_is_disconnected() {
    let bob = engine("bob", config());
    let mut stream = TcpStream::connect(bob.segment().addresses[0]).unwrap();
    stream.set_read_timeout(Some(20 * SECOND)).unwrap();
    stream
        .write_all(
            &Greeting {
                frame_bytes_max: 0,
                ..greeting(7)
            }
            .to_bytes(),
        )
        .unwrap();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
}

/// An engine whose slices were longer than its peer accepts sent them all the same.
#[test]
fn frames_are_no_longer_than_the_peer_takes() {
    let bob = engine("bob", config());
    let there = region(&bob, 1 << 20);
    let mut modest = Raw::greet(
        &bob,
        &Greeting {
            frame_bytes_max: 64 << 10,
            ..greeting(7)
        },
    );
    modest.send(&[ask(Op::Read, 1, grant(&bob, &there), MIB)]);
    let mut left = 1 << 20;
    while left > 0 {
        let Some(Frame::Data(data)) = modest.hear() else {
            panic!("no data with {left} bytes left")
        };
        assert!(data.bytes <= 64 << 10);
        modest.skip(data.bytes as usize);
        left -= data.bytes;
    }
    assert!(matches!(
        modest.hear(),
        Some(Frame::Ack(Ack {
            refusal: None,
            bytes: MIB,
            ..
        }))
    ));
}

/// A request under the id of one that was still under way replaced it in the table; events of the one then counted for
/// the other.
#[test]
fn a_number_that_is_taken_ends_the_connection() {
    let bob = engine("bob", config());
    let there = region(&bob, 4096);
    let capability = grant(&bob, &there);
    let mut twice = Raw::connect(&bob, 7);
    twice.send(&[
        ask(Op::Write, 1, capability, 8),
        ask(Op::Read, 1, capability, 8),
    ]);
    assert_eq!(twice.hear(), None);
    until("its memory is let go of", || there.in_flight() == 0);
}

/// Payload one byte longer than its request could be announced unnoticed. The header alone ends the connection, before
/// any payload is placed.
#[test]
fn payload_longer_than_its_request_ends_the_connection_at_its_header() {
    let host = engine("bob", config());
    let (device, on_device, _copies) = slow_engine(2 * CHUNK);
    for (engine, there) in [(&host, &region(&host, 2 * CHUNK)), (&device, &on_device)] {
        let capability = grant(engine, there);
        let bytes = CHUNK as u64;
        for frames in [
            vec![data(1, 0, CHUNK as u32 + 1, true)],
            vec![data(1, 0, CHUNK as u32 + 1, false)],
            vec![data(1, 1, CHUNK as u32, true)],
        ] {
            let mut peer = Raw::connect(engine, 7);
            peer.send(&[ask(Op::Write, 1, capability, bytes)]);
            peer.send(&frames);
            assert_eq!(peer.hear(), None, "{frames:?}");
        }
        // After some of the payload has come, what is left counts.
        let mut peer = Raw::connect(engine, 7);
        peer.send(&[
            ask(Op::Write, 1, capability, bytes),
            data(1, 0, CHUNK as u32 / 2, false),
        ]);
        peer.send_bytes(&[7; CHUNK / 2]);
        peer.send(&[data(1, bytes / 2, CHUNK as u32 / 2 + 1, true)]);
        assert_eq!(peer.hear(), None);
        until("its memory is let go of", || there.in_flight() == 0);
    }
}

/// A notice under the number of a write was taken for payload of that write.
#[test]
fn a_notice_under_the_number_of_a_write_is_a_notice() {
    let bob = engine("bob", config());
    let there = region(&bob, 8);
    let mut odd = Raw::connect(&bob, 7);
    odd.send(&[
        ask(Op::Write, 1, grant(&bob, &there), 8),
        Frame::Notify(Notify {
            id: 1,
            name_bytes: 4,
            bytes: 8,
        }),
    ]);
    odd.send_bytes(b"nameeight by");
    assert!(matches!(
        odd.hear(),
        Some(Frame::Ack(Ack {
            id: 1,
            refusal: None,
            ..
        }))
    ));
    let taken = bob.take_notices(slackwater_wait::now() + 20 * SECOND);
    assert_eq!(
        (taken[0].1.name.as_str(), taken[0].1.bytes.as_slice()),
        ("name", b"eight by".as_slice())
    );
    assert_eq!(bytes_of(&there, 0, 8), [0; 8]);
}

/// A large write whose end wrapped around was cut into pieces, the last of which lay at the start of the region.
#[test]
fn a_write_that_wraps_around_is_refused_whole() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4 << 20), region(&bob, 4 << 20));
    fill(&here, 2);
    let to = target(
        alice.open(bob.segment().clone()),
        grant(&bob, &there),
        u64::MAX - MIB + 1,
    );
    let write = request(Op::Write, vec![range(&here, 0, 4 << 20)], to);
    let ended = alice.transfer(vec![write], &within(20 * SECOND));
    assert_eq!(
        ended,
        Err(BatchError::Failed(Cause::Refused(Refusal::Range)))
    );
    assert!(bytes_of(&there, 0, 4 << 20).iter().all(|byte| *byte == 0));
}

/// The first version whose greeting has another length than that of the version before. An older initiator waited for an
/// answer to what looked like the start of a greeting until its clock ran out.
#[test]
fn an_initiator_of_another_version_is_told_which_one_is_spoken() {
    let (bob, tcp) = engine_and_mover("bob", config());
    let mut older = greeting(7).to_bytes()[..TERMS_BYTES].to_vec();
    older[8..12].copy_from_slice(&[2, 0, 2, 0]);
    older.extend_from_slice(&[0; 64]);
    let mut stream = TcpStream::connect(bob.segment().addresses[0]).unwrap();
    stream.set_read_timeout(Some(20 * SECOND)).unwrap();
    stream.write_all(&older).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let told = Greeting::from_bytes(&answer.try_into().unwrap()).unwrap();
    assert_eq!((told.version_min, told.version_max), (VERSION, VERSION));
    until("it is gone", || counted(&tcp, "connections_served") == 0);
}

/// As the test before, with the target of the older version.
#[test]
fn a_target_of_another_version_is_named_with_it() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = alice.open(Segment {
        addresses: vec![listener.local_addr().unwrap()],
        ..bob.segment().clone()
    });
    std::thread::spawn(move || {
        // They stay open, until the process ends: the initiator must not wait for more.
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let (mut stream, mut hello) = (stream.unwrap(), [0; GREETING_BYTES]);
            stream.read_exact(&mut hello).unwrap();
            let mut answer = hello[..TERMS_BYTES].to_vec();
            answer[8..12].copy_from_slice(&[2, 0, 2, 0]);
            answer.extend_from_slice(&[0; 64]);
            stream.write_all(&answer).unwrap();
            open.push(stream);
        }
    });
    let error = alice.probe(peer, 2 * SECOND).unwrap_err().to_string();
    assert!(
        error.contains("the peer speaks versions 2 to 2 of the data plane"),
        "{error}"
    );
}
