//! What a target does about peers that stop, and about rights that end while a request is under way.

use std::time::Duration;

use slackwater_transfer::{GrantSpec, Op, Refusal, Rights, TcpConfig};
use slackwater_wire::data::{Ack, Frame, Request};

use crate::raw::{Raw, ask, data};
use crate::support::*;

/// Long enough to be seen in the middle of it by a thread of a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn refused(id: u64, refusal: Refusal) -> Option<Frame> {
    Some(Frame::Ack(Ack {
        id,
        refusal: Some(refusal),
        bytes: 0,
    }))
}

/// The target had no clocks: a peer that stopped in the middle of a write held its memory, or a chunk of a stage, for
/// ever.
#[test]
fn a_write_that_stops_is_closed_and_lets_go_of_its_memory() {
    let (bob, tcp) = engine_and_mover(
        "bob",
        TcpConfig {
            progress_timeout: SHORT,
            ..config()
        },
    );
    let there = region(&bob, 8);
    let mut stopped = Raw::connect(&bob, 7);
    stopped.send(&[
        ask(Op::Write, 1, grant(&bob, &there), 8),
        data(1, 0, 8, true),
    ]);
    stopped.send_bytes(&[7; 4]);
    until("its memory is held", || there.in_flight() == 1);
    assert_eq!(stopped.hear(), None);
    assert_eq!(
        (there.in_flight(), counted(&tcp, "connections_stalled")),
        (0, 1)
    );
}

/// A connection that asked for nothing stayed for as long as its peer liked.
#[test]
fn a_connection_without_requests_is_closed_after_its_idle_time() {
    let (bob, tcp) = engine_and_mover(
        "bob",
        TcpConfig {
            served_idle_timeout: SHORT,
            ..config()
        },
    );
    let mut idle = Raw::connect(&bob, 7);
    until("it is counted", || counted(&tcp, "connections_served") == 1);
    assert_eq!(idle.hear(), None);
    until("it is not counted", || {
        counted(&tcp, "connections_served") == 0
    });
    assert_eq!(counted(&tcp, "connections_idle"), 1);
}

/// The time that an initiator gave its request was sent and never read: a write whose initiator had given up went on for
/// as long as bytes came.
#[test]
fn a_request_ends_when_its_initiator_has_stopped_waiting() {
    let bob = engine(
        "bob",
        TcpConfig {
            drain_timeout: Duration::from_millis(1),
            ..config()
        },
    );
    let there = region(&bob, 8);
    let mut late = Raw::connect(&bob, 7);
    let Frame::Request(request) = ask(Op::Write, 1, grant(&bob, &there), 8) else {
        unreachable!("it is a request")
    };
    let time_left_nanos = SHORT.as_nanos() as u64;
    late.send(&[Frame::Request(Request {
        time_left_nanos,
        ..request
    })]);
    assert_eq!(late.hear(), refused(1, Refusal::Deadline));
    assert_eq!(there.in_flight(), 0);
    // The connection goes on, and what still comes of the request is discarded.
    late.send(&[data(1, 0, 8, true)]);
    late.send_bytes(&[7; 8]);
    late.send(&[Frame::Ping { token: 5 }]);
    assert_eq!(late.hear(), Some(Frame::Pong { token: 5 }));
    assert_eq!(bytes_of(&there, 0, 8), [0; 8]);
}

/// A capability was looked at before the first byte of a write and never again: a write counted although its right had
/// ended while it was under way.
#[test]
fn a_write_whose_right_ends_under_it_does_not_count() {
    let bob = engine("bob", config());
    let there = region(&bob, 8);
    let expiring = GrantSpec {
        ttl: Some(SHORT),
        ..GrantSpec::whole(&there, Rights::BOTH)
    };
    let mut peer = Raw::connect(&bob, 7);
    let expiring = bob.grant(there.id(), &expiring).unwrap();
    peer.send(&[ask(Op::Write, 1, expiring, 8), data(1, 0, 8, true)]);
    until("it is admitted", || there.in_flight() == 1);
    let admits = |peer: &mut Raw| {
        peer.send(&[ask(Op::Read, 2, expiring, 1)]);
        match peer.hear() {
            Some(Frame::Data(_)) => {
                peer.skip(1);
                peer.hear();
                true
            }
            answer => {
                assert_eq!(answer, refused(2, Refusal::Expired));
                false
            }
        }
    };
    let mut other = Raw::connect(&bob, 8);
    until("the capability expires", || !admits(&mut other));
    peer.send_bytes(&[7; 8]);
    assert_eq!(peer.hear(), refused(1, Refusal::Expired));

    peer.send(&[
        ask(Op::Write, 3, grant(&bob, &there), 8),
        data(3, 0, 8, true),
    ]);
    until("it is admitted", || there.in_flight() == 1);
    bob.home().rotate(Duration::ZERO).unwrap();
    peer.send_bytes(&[8; 8]);
    assert_eq!(peer.hear(), refused(3, Refusal::Forged));
}
