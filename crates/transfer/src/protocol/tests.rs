//! What no honest peer shows: an end that answers too early, and one that reuses an id.

use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Ack, CapabilityKey, Frame, Grant, Op, Refusal, Request, Rights};

use super::initiating::{Input, Output};
use super::responding::Input as Answer;
use super::{
    Admitted, Call, CloseReason, Initiator, InitiatorLimits, Piece, Responder, ResponderLimits,
};
use crate::cause::Cause;

const NOW: Instant = Instant::from_nanos(1);
const LONG: Duration = Duration::from_secs(30);

fn read() -> Request {
    let grant = Grant {
        incarnation: Incarnation(1),
        region: 0,
        generation: 1,
        offset: 0,
        bytes: 8,
        rights: Rights::BOTH,
        tenant: 0,
        holder: Incarnation(0),
        expires_nanos: u64::MAX,
        nonce: 0,
    };
    Request {
        id: 5,
        op: Op::Read,
        urgent: false,
        offset: 0,
        bytes: 8,
        time_left_nanos: u64::MAX,
        capability: CapabilityKey::new(&[0; 32]).mint(&grant),
        trace: None,
    }
}

#[test]
fn a_read_that_is_acknowledged_before_its_bytes_fails() {
    let limits = InitiatorLimits {
        peer: Incarnation(1),
        slice_bytes: 1 << 20,
        requests_max: 8,
        progress_timeout: LONG,
        ack_timeout: LONG,
        drain_timeout: LONG,
        idle_timeout: LONG,
        gc_interval: LONG,
    };
    let (mut initiator, mut out) = (Initiator::new(limits, NOW), Vec::new());
    let Request {
        op,
        urgent,
        offset,
        bytes,
        capability,
        ..
    } = read();
    let call = Call::Transfer {
        op,
        urgent,
        offset,
        bytes,
        capability,
        trace: None,
    };
    let start = Input::Start {
        call,
        deadline: Instant::NEVER,
        task: "read",
    };
    assert!(initiator.handle(NOW, start, &mut out).is_ok());
    let id = initiator.tasks().next().map_or(0, |(id, _)| id);
    let ack = Frame::Ack(Ack {
        id,
        refusal: None,
        bytes,
    });
    let acknowledged = initiator.handle(NOW, Input::Frame(ack), &mut out);
    assert!(matches!(
        acknowledged,
        Err(CloseReason::Lost(Cause::Protocol(_)))
    ));
    assert!(matches!(
        out.as_slice(),
        [Output::Ended {
            task: "read",
            outcome: Err(Cause::Protocol(_))
        }]
    ));
}

#[test]
fn the_id_of_a_revoked_read_is_taken_until_its_frame_is_sent() {
    let limits = ResponderLimits {
        slice_bytes: 1 << 20,
        requests_max: 8,
        in_flight_bytes_max: 64 << 20,
        progress_timeout: LONG,
        idle_timeout: LONG,
        grace: LONG,
    };
    let (mut responder, mut out, request) = (Responder::new(limits, NOW), Vec::new(), read());
    let admitted = || {
        Ok(Admitted {
            memory: "memory",
            chunk_bytes: None,
        })
    };
    let all = |responder: &mut Responder<&str>| {
        responder.gather(|piece| match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Memory(_, span) => span.bytes,
            Piece::Zeros(count) => count,
        })
    };
    let mut tell = |responder: &mut Responder<_>, input| responder.handle(NOW, input, &mut out);
    assert!(tell(&mut responder, Answer::Request(&request, admitted())).is_ok());
    let whole = all(&mut responder);
    let half = whole - 30;
    assert!(tell(&mut responder, Answer::Wrote(half)).is_ok());
    assert!(tell(&mut responder, Answer::Revoked(5, Refusal::Generation)).is_ok());
    assert_eq!(responder.memory(5), None, "its memory is released at once");
    assert!(!responder.is_quiet());
    assert!(tell(&mut responder, Answer::Request(&request, admitted())).is_err());
    let rest = all(&mut responder);
    assert_eq!(rest, whole - half, "the frame keeps its length");
    assert!(tell(&mut responder, Answer::Wrote(rest)).is_ok());
    assert!(responder.is_quiet());
}
