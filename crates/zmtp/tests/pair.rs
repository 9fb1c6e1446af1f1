//! Two links connected to each other: handshakes, messages, heartbeats and refusals, at any split of the stream.

mod common;

use std::time::Duration;

use common::*;
use proptest::prelude::*;
use slackwater_base::Instant;
use slackwater_zmtp::*;

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn curve_proves_both_keys() {
    let (client, server) = joined(true);
    assert_eq!(server.peer().unwrap().key, Some(pair(1).public()));
    assert_eq!(client.peer().unwrap().key, Some(pair(2).public()));
    let (client, server) = joined(false);
    assert_eq!(
        (client.peer().unwrap().key, server.peer().unwrap().key),
        (None, None)
    );
}

#[test]
fn handshake_commands_have_the_sizes_of_the_rfc() {
    let (mut client, mut server) = (
        End::new(curve_client(SocketType::Dealer, 1, 2), 3),
        End::new(curve_server(SocketType::Router, 2), 4),
    );
    let mut sizes = Vec::new();
    for _ in 0..2 {
        let bytes = std::mem::take(&mut server.wire);
        sizes.push(bytes.len());
        client.handle(Input::Bytes(&bytes));
        let bytes = std::mem::take(&mut client.wire);
        sizes.push(bytes.len());
        server.handle(Input::Bytes(&bytes));
    }
    server.handle(Input::Admit(Verdict::Accept));
    let metadata = 1 + 11 + 4 + 6 + 1 + 8 + 4;
    // Greeting; greeting and HELLO; WELCOME; INITIATE; READY; short frames have a header of 2 bytes, long ones of 9.
    assert_eq!(sizes, [64, 64 + 2 + 200, 2 + 168, 9 + 257 + metadata]);
    assert_eq!(server.wire.len(), 2 + 30 + metadata);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_gives_the_same_messages(
        curve: bool,
        cuts in prop::collection::vec(1usize..400, 1..20),
        messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..9), 1..5),
    ) {
        let (mut client, mut server) = joined(curve);
        for message in &messages {
            let parts: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
            client.send(&parts).unwrap();
            server.send(&parts).unwrap();
        }
        run(&mut client, &mut server, &cuts);
        let want: Vec<Message> = messages.iter().map(Message::of).collect();
        prop_assert_eq!(server.messages(), want.clone());
        prop_assert_eq!(client.messages(), want);
    }

    #[test]
    fn handshakes_finish_at_any_split(curve: bool, cuts in prop::collection::vec(1usize..90, 1..20)) {
        let (client, server) = match curve {
            false => (null(SocketType::Dealer, Side::Connect), null(SocketType::Router, Side::Listen)),
            true => (curve_client(SocketType::Dealer, 1, 2), curve_server(SocketType::Router, 2)),
        };
        let (mut client, mut server) = (End::new(client, 3), End::new(server, 4));
        run(&mut client, &mut server, &cuts);
        prop_assert!(client.link.is_up() && server.link.is_up());
    }

    /// One altered byte causes neither a panic nor a message that was not sent.
    #[test]
    fn an_altered_byte_never_makes_a_message(at: prop::sample::Index, bit in 0u8..8) {
        let (mut client, mut server) = joined(true);
        client.send(&[b"first", b"second"]).unwrap();
        client.send(&[b"third"]).unwrap();
        let mut bytes = std::mem::take(&mut client.wire);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        server.handle(Input::Bytes(&bytes));
        let sent = [Message::of(["first", "second"]), Message::of(["third"])];
        for (got, sent) in server.messages().iter().zip(&sent) {
            prop_assert_eq!(got, sent);
        }
    }
}

#[test]
fn a_refused_peer_receives_the_status() {
    for curve in [false, true] {
        let (client, server) = match curve {
            false => (
                null(SocketType::Dealer, Side::Connect),
                null(SocketType::Router, Side::Listen),
            ),
            true => (
                curve_client(SocketType::Dealer, 1, 2),
                curve_server(SocketType::Router, 2),
            ),
        };
        let (mut client, mut server) = (End::new(client, 3), End::new(server, 4));
        while !server
            .events
            .iter()
            .any(|event| matches!(event, Event::Admission(_)))
        {
            server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
            client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
        }
        server.handle(Input::Admit(Verdict::Refuse(400)));
        assert_eq!(
            server.cause(),
            Some(&Cause::Refused {
                status: "400".into()
            })
        );
        client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
        assert_eq!(
            client.cause(),
            Some(&Cause::RefusedByPeer {
                reason: "400".into()
            })
        );
    }
}

#[test]
fn a_wrong_server_key_ends_at_hello() {
    let mut client = End::new(curve_client(SocketType::Dealer, 1, 9), 3);
    let mut server = End::new(curve_server(SocketType::Router, 2), 4);
    run(&mut client, &mut server, &[usize::MAX]);
    assert_eq!(server.cause(), Some(&Cause::BoxClosed { what: "HELLO" }));
}

#[test]
fn mechanisms_and_socket_types_must_fit() {
    let mut client = End::new(null(SocketType::Dealer, Side::Connect), 3);
    let mut server = End::new(curve_server(SocketType::Router, 2), 4);
    run(&mut client, &mut server, &[7]);
    assert_eq!(
        server.cause(),
        Some(&Cause::Mechanism {
            ours: "CURVE",
            theirs: "NULL".into()
        })
    );
    let mut client = End::new(null(SocketType::Sub, Side::Connect), 3);
    let mut server = End::new(null(SocketType::Router, Side::Listen), 4);
    run(&mut client, &mut server, &[7]);
    assert_eq!(
        server.cause(),
        Some(&Cause::SocketPair {
            ours: "ROUTER",
            theirs: "SUB".into()
        })
    );
}

#[test]
fn a_replayed_frame_is_refused() {
    let (mut client, mut server) = joined(true);
    client.send(&[b"once"]).unwrap();
    let bytes = std::mem::take(&mut client.wire);
    server.handle(Input::Bytes(&bytes));
    server.handle(Input::Bytes(&bytes));
    assert_eq!(server.messages().len(), 1);
    assert_eq!(server.cause(), Some(&Cause::Replayed { last: 3, got: 3 }));
}

#[test]
fn a_cookie_is_valid_for_its_own_connection_only() {
    let hello_of = |entropy| {
        let mut client = End::new(curve_client(SocketType::Dealer, 1, 2), entropy);
        let mut server = End::new(curve_server(SocketType::Router, 2), entropy + 1);
        client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
        server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
        client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
        (std::mem::take(&mut client.wire), server)
    };
    let (initiate, _) = hello_of(10);
    let (_, mut other) = hello_of(20);
    other.handle(Input::Bytes(&initiate));
    assert_eq!(other.cause(), Some(&Cause::BoxClosed { what: "cookie" }));
}

#[test]
fn limits_close_the_link_with_their_cause() {
    let check = |limits: Limits, parts: &[&[u8]], want: &str| {
        let mut config = null(SocketType::Router, Side::Listen);
        config.limits = limits;
        let (mut client, mut server) = (
            End::new(null(SocketType::Dealer, Side::Connect), 3),
            End::new(config, 4),
        );
        run(&mut client, &mut server, &[usize::MAX]);
        client.send(parts).unwrap();
        run(&mut client, &mut server, &[50]);
        assert_eq!(server.cause().unwrap().name(), want);
        assert!(server.messages().is_empty());
    };
    let limits = Limits::default();
    check(
        Limits {
            frame_bytes: 99,
            ..limits
        },
        &[&[0; 100]],
        "frame_too_large",
    );
    check(
        Limits {
            message_bytes: 150,
            ..limits
        },
        &[&[0; 100], &[0; 100]],
        "message_too_large",
    );
    check(
        Limits { parts: 3, ..limits },
        &[b"", b"", b"", b""],
        "too_many_parts",
    );
}

#[test]
fn before_the_link_is_up_little_is_kept() {
    let mut server = End::new(curve_server(SocketType::Router, 2), 4);
    let client = End::new(curve_client(SocketType::Dealer, 1, 2), 3);
    server.handle(Input::Bytes(&client.wire[..64]));
    server.handle(Input::Bytes(&[6, 0, 0, 0, 0, 0, 0, 0x10, 1]));
    assert_eq!(
        server.cause(),
        Some(&Cause::FrameTooLarge {
            size: 4097,
            limit: 4096
        })
    );
}

#[test]
fn a_stalled_handshake_is_given_up() {
    let mut server = End::new(null(SocketType::Router, Side::Listen), 4);
    server.handle(Input::Bytes(&[0xff, 0, 0, 0]));
    assert_eq!(server.link.next_deadline(), at(5000));
    server.deadline(at(4999));
    assert_eq!(server.cause(), None);
    server.deadline(at(5000));
    assert_eq!(server.cause(), Some(&Cause::HandshakeTimeout));
    assert_eq!(server.link.next_deadline(), Instant::NEVER);
}

#[test]
fn a_peer_that_is_not_admitted_in_time_is_refused() {
    let mut client = End::new(null(SocketType::Dealer, Side::Connect), 3);
    let mut server = End::new(null(SocketType::Router, Side::Listen), 4);
    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
    server.handle_at(at(1000), Input::Bytes(&std::mem::take(&mut client.wire)));
    server.deadline(at(6000));
    assert_eq!(server.cause(), Some(&Cause::AdmissionTimeout));
    client.handle(Input::Bytes(&server.wire));
    assert_eq!(
        client.cause(),
        Some(&Cause::RefusedByPeer {
            reason: "400".into()
        })
    );
}

#[test]
fn a_silent_peer_is_pinged_and_then_given_up() {
    for curve in [false, true] {
        let (mut client, mut server) = joined(curve);
        assert_eq!(client.link.next_deadline(), at(15_000));
        client.deadline(at(15_000));
        server.handle_at(at(15_001), Input::Bytes(&std::mem::take(&mut client.wire)));
        assert!(!server.wire.is_empty(), "PING is answered");
        client.handle_at(at(15_002), Input::Bytes(&std::mem::take(&mut server.wire)));
        assert_eq!(client.link.next_deadline(), at(30_002));
        client.deadline(at(30_002));
        client.deadline(at(45_002));
        assert_eq!(client.cause(), Some(&Cause::HeartbeatLost));
    }
}

#[test]
fn the_ttl_of_a_ping_binds_the_receiver() {
    let (_, mut server) = joined(false);
    server.handle_at(at(100), Input::Bytes(b"\x04\x0a\x04PING\x00\x0aabc"));
    assert_eq!(server.wire, b"\x04\x08\x04PONGabc");
    assert_eq!(server.link.next_deadline(), at(1100));
    server.deadline(at(1100));
    assert_eq!(server.cause(), Some(&Cause::HeartbeatLost));
}

#[test]
fn commands_out_of_place_close_the_link() {
    let check = |bytes: &[u8], want: Cause| {
        let (_, mut server) = joined(false);
        server.handle(Input::Bytes(bytes));
        assert_eq!(server.cause(), Some(&want));
    };
    check(
        b"\x04\x06\x05READY",
        Cause::UnexpectedCommand {
            name: "READY".into(),
        },
    );
    check(
        b"\x04\x0b\x09SUBSCRIBEx",
        Cause::UnexpectedCommand {
            name: "SUBSCRIBE".into(),
        },
    );
    check(
        b"\x04\x04\x03FOO",
        Cause::UnexpectedCommand { name: "FOO".into() },
    );
    check(
        b"\x04\x01\x00",
        Cause::Malformed {
            what: "command without a name",
        },
    );
    check(
        b"\x05\x00",
        Cause::Malformed {
            what: "frame flags",
        },
    );
    check(
        b"\x04\x0a\x05ERROR\x03500",
        Cause::RefusedByPeer {
            reason: "500".into(),
        },
    );
}

#[test]
fn subscriptions_travel_as_commands_or_as_data() {
    for (curve, minor) in [(false, 1), (false, 0), (true, 1), (true, 0)] {
        let (sub, publisher) = match curve {
            false => (
                null(SocketType::Sub, Side::Connect),
                null(SocketType::Pub, Side::Listen),
            ),
            true => (
                curve_client(SocketType::Sub, 1, 2),
                curve_server(SocketType::Pub, 2),
            ),
        };
        let (mut sub, mut publisher) = (End::new(sub, 3), End::new(publisher, 4));
        run(&mut sub, &mut publisher, &[usize::MAX]);
        sub.subscribe(b"kv.", true, minor);
        sub.subscribe(b"kv.", false, minor);
        run(&mut sub, &mut publisher, &[3]);
        let want = [
            Event::Subscribe(b"kv.".to_vec()),
            Event::Cancel(b"kv.".to_vec()),
        ];
        assert!(publisher.events.ends_with(&want), "{:?}", publisher.events);
        publisher.send(&[b"kv.x", b"1"]).unwrap();
        run(&mut sub, &mut publisher, &[3]);
        assert_eq!(sub.messages(), [Message::of(["kv.x", "1"])]);
    }
}

#[test]
fn nothing_is_sent_before_the_link_is_up_or_without_parts() {
    let mut client = End::new(null(SocketType::Dealer, Side::Connect), 3);
    assert_eq!(client.send(&[b"x"]), Err(SendError::NotUp));
    let (mut client, _) = joined(false);
    assert_eq!(client.send(&[]), Err(SendError::Empty));
    assert!(client.wire.is_empty());
}

#[test]
fn the_end_of_the_stream_is_an_event_once() {
    let (mut client, _) = joined(true);
    client.handle(Input::Eof);
    client.handle(Input::Eof);
    client.handle(Input::Bytes(b"late"));
    let ends = client
        .events
        .iter()
        .filter(|event| matches!(event, Event::Closed(Cause::PeerGone)))
        .count();
    assert_eq!(ends, 1);
    assert!(client.link.is_closed());
}

#[test]
fn what_arrives_while_admission_is_open_waits_and_is_bounded() {
    let mut server = End::new(null(SocketType::Router, Side::Listen), 4);
    let mut client = End::new(null(SocketType::Dealer, Side::Connect), 3);
    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
    server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
    server.handle(Input::Bytes(b"\x00\x05early"));
    assert!(server.messages().is_empty());
    server.handle(Input::Admit(Verdict::Accept));
    assert_eq!(server.messages(), [Message::of(["early"])]);
}

/// A subscriber of minor version 0 could subscribe to topics as long as a frame: a thousand of a megabyte each.
#[test]
fn topics_subscribed_to_as_data_are_bounded_like_commands() {
    let long = vec![1u8; 4097];
    let header = [&[2u8][..], &(long.len() as u64).to_be_bytes()].concat();
    let (sub, publisher) = (
        null(SocketType::Sub, Side::Connect),
        null(SocketType::Pub, Side::Listen),
    );
    let (mut subscriber, mut publisher) = (End::new(sub, 3), End::new(publisher, 4));
    run(&mut subscriber, &mut publisher, &[usize::MAX]);
    assert!(publisher.link.is_up());
    publisher.handle(Input::Bytes(&header));
    assert_eq!(
        publisher.cause(),
        Some(&Cause::FrameTooLarge {
            size: 4097,
            limit: 4096
        })
    );
}
