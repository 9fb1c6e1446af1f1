//! What no honest peer shows: an end that answers too early, and one that reuses an id.

use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::data::{
    Ack, CapabilityKey, Features, Frame, Grant, Greeting, HANDSHAKE_BYTES, Op, Refusal, Request,
    Rights, VERSION,
};
use slackwater_wire::{Incarnation, TraceContext};

use super::initiating::{Input, Output};
use super::responding::Input as Answer;
use super::{
    Admitted, Call, CloseReason, Initiator, InitiatorLimits, Piece, Responder, ResponderLimits,
};
use crate::Cause;

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

const LIMITS: InitiatorLimits = InitiatorLimits {
    peer: Incarnation(1),
    slice_bytes: 1 << 20,
    requests_max: 8,
    progress_timeout: LONG,
    ack_timeout: LONG,
    drain_timeout: LONG,
    idle_timeout: LONG,
    gc_interval: LONG,
};

fn start(request: Request) -> Input<'static, &'static str> {
    let Request {
        op,
        urgent,
        offset,
        bytes,
        capability,
        trace,
        ..
    } = request;
    let call = Call::Transfer {
        op,
        urgent,
        offset,
        bytes,
        capability,
        trace,
    };
    Input::Start {
        call,
        deadline: Instant::NEVER,
        task: "read",
    }
}

fn greeting() -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: Incarnation(1),
        expects: Incarnation(0),
        frame_bytes_max: 64 << 10,
        requests_max: 8,
        in_flight_bytes_max: 64 << 20,
        handshake: [0; HANDSHAKE_BYTES],
    }
}

/// A target of an earlier release knows no such flag, and would end the connection at it.
#[test]
fn a_target_is_told_of_a_trace_only_where_it_has_said_that_it_takes_them() {
    let trace = TraceContext::new(0xa1, 0xb1);
    let told = |features: Features| {
        let (mut initiator, mut out) = (Initiator::new(LIMITS, NOW), Vec::new());
        let greeting = Greeting {
            features,
            ..greeting()
        };
        let greeted = initiator.handle(NOW, Input::Greeting(&greeting), &mut out);
        assert!(greeted.is_ok());
        let started = initiator.handle(NOW, start(Request { trace, ..read() }), &mut out);
        assert!(started.is_ok());
        let mut sent = Vec::new();
        initiator.gather(|piece| match piece {
            Piece::Bytes(bytes) => {
                sent.extend_from_slice(bytes);
                bytes.len()
            }
            Piece::Memory(..) | Piece::Zeros(_) => 0,
        });
        match Frame::read(&sent) {
            Ok(Some((Frame::Request(request), length))) if length == sent.len() => request.trace,
            other => panic!("one request: {other:?}"),
        }
    };
    assert_eq!(told(Features::TRACED), trace);
    assert_eq!(told(Features::default()), None);
    assert_eq!(told(Features::SEALED.with(Features::AES)), None);
}

/// A thousand idle connections were all looked at once, five seconds after they were opened, though none had anything to end: .3 to
/// .9 % of a core in ten seconds.
#[test]
fn an_opened_connection_is_left_alone_until_it_is_to_close() {
    let limits = InitiatorLimits {
        gc_interval: Duration::from_secs(5),
        ..LIMITS
    };
    let (mut initiator, mut out) = (Initiator::<()>::new(limits, NOW), Vec::new());
    let greeted = initiator.handle(NOW, Input::Greeting(&greeting()), &mut out);
    assert!(greeted.is_ok());
    let end = NOW + limits.idle_timeout;
    assert_eq!(initiator.next_deadline(), end);
    let closed = initiator.on_deadline(end, &mut out);
    assert!(matches!(closed, Err(CloseReason::Idle)));
}

#[test]
fn a_read_that_is_acknowledged_before_its_bytes_fails() {
    let (mut initiator, mut out) = (Initiator::new(LIMITS, NOW), Vec::new());
    let start = start(read());
    assert!(initiator.handle(NOW, start, &mut out).is_ok());
    let id = initiator.tasks().next().map_or(0, |(id, _)| id);
    let ack = Frame::Ack(Ack {
        id,
        refusal: None,
        bytes: read().bytes,
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
