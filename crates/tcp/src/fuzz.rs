//! What the fuzz targets of the two ends of a connection do with their bytes. The tests below replay the corpora, and mutations of them.
//!
//! Whatever a peer sends: nothing panics, the same comes of it whichever way the bytes are cut, and each task ends once.

use std::time::Duration;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{
    Admitted, Call, CloseReason, Initiator, InitiatorLimits, Notice, Piece, Responder,
    ResponderLimits, Span, Want, initiating, responding,
};
use slackwater_data_plane::seal::fuzz::same_at_any_cut;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{
    Capability, Features, Frame, Greeting, HANDSHAKE_BYTES, Op, Refusal, VERSION,
};

use crate::cursor::Place;
use crate::end::{End, Greeted};
use crate::io::Vectors;
use crate::wire::Wire;

const NOW: Instant = Instant::from_nanos(1);
const LONG: Duration = Duration::from_secs(30);
const OWN: Incarnation = Incarnation(1);
const PEER: Incarnation = Incarnation(2);
const REQUESTS_MAX: usize = 8;

/// What an initiator sends to a target: behind a greeting that is ahead of the bytes where the first of them is even, else
/// with the greeting.
pub fn responder(bytes: &[u8]) {
    same_at_any_cut(bytes, |pieces| {
        let mut end = Answering::new();
        let closed = take(&mut end, pieces);
        while closed.is_none() && !end.responder.has_sent_all() {
            let mut sent = Vec::new();
            let count = end.responder.gather(|piece| show(piece, &mut sent));
            end.said.push(format!("sends {sent:?}"));
            let wrote = end.handle(responding::Input::Wrote(count));
            assert!(wrote.is_ok(), "what is sent breaks no protocol");
        }
        assert!(end.responder.memories().count() <= REQUESTS_MAX);
        end.said.extend(closed);
        end.said
    });
}

/// What a target sends to an initiator with five requests, a greeting as in [`responder`].
pub fn initiator(bytes: &[u8]) {
    same_at_any_cut(bytes, |pieces| {
        let mut end = Asking::new();
        let closed = take(&mut end, pieces);
        let begun = end.initiator.is_ready();
        let cause = &Cause::Closed;
        let over = initiating::Input::Closed { cause, retry: true };
        assert!(
            end.handle(over).is_ok(),
            "nothing is left to be at odds with"
        );
        assert_eq!(end.ends, [u32::from(begun); ASKED], "each task ends once");
        end.said.extend(closed);
        end.said
    });
}

/// Gives the pieces to one end of a connection; says why it closed, if it did.
fn take(end: &mut impl End, pieces: &[&[u8]]) -> Option<String> {
    let (kind, pieces) = pieces.split_first()?;
    let mut wire = Wire::default();
    let greeting = greeting().to_bytes();
    let ahead: &[&[u8]] = match kind.first().is_some_and(|kind| kind % 2 == 0) {
        true => &[&greeting],
        false => &[],
    };
    let mut all = ahead.iter().chain(pieces);
    let closed = all.find_map(|piece| wire.take(end, piece).err());
    closed.map(|reason| format!("{reason:?}"))
}

/// The greeting of either peer.
fn greeting() -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::TRACED,
        incarnation: PEER,
        expects: OWN,
        frame_bytes_max: 64 << 10,
        requests_max: REQUESTS_MAX as u32,
        in_flight_bytes_max: 64 << 20,
        handshake: [0; HANDSHAKE_BYTES],
    }
}

/// Keeps what is sent but payload; takes all of it.
fn show<M>(piece: Piece<'_, M>, sent: &mut Vec<u8>) -> usize {
    match piece {
        Piece::Bytes(bytes) => {
            sent.extend_from_slice(bytes);
            bytes.len()
        }
        Piece::Memory(_, span) => span.bytes,
        Piece::Zeros(count) => count,
    }
}

/// A target whose devices and regions answer at once, and whose memory is never looked at.
struct Answering {
    responder: Responder<()>,
    said: Vec<String>,
}

impl Answering {
    fn new() -> Self {
        let limits = ResponderLimits {
            slice_bytes: 64 << 10,
            requests_max: REQUESTS_MAX,
            in_flight_bytes_max: 1 << 20,
            progress_timeout: LONG,
            idle_timeout: LONG,
            grace: LONG,
        };
        Self {
            responder: Responder::new(limits, NOW),
            said: Vec::new(),
        }
    }

    fn handle(&mut self, input: responding::Input<'_, ()>) -> Result<(), CloseReason> {
        let mut out = Vec::new();
        self.responder.handle(NOW, input, &mut out)?;
        for output in out {
            self.said.push(format!("{output:?}"));
            self.perform(&output)?;
        }
        Ok(())
    }

    /// Requests of some numbers fail.
    fn perform(&mut self, output: &responding::Output) -> Result<(), CloseReason> {
        use responding::{Input, Output};
        let fine = !output.id().is_multiple_of(5);
        if let Output::Notice(id, _) = output {
            return self.handle(Input::Delivered(*id, fine));
        }
        if self.responder.memory(output.id()).is_none() {
            return Ok(());
        }
        match output {
            Output::Commit(id) => {
                let counts = fine.then_some(()).ok_or(Refusal::Generation);
                self.handle(Input::Committed(*id, counts))
            }
            Output::Store(id, _) => self.handle(Input::Stored(*id, fine)),
            Output::Fetch(id, _) => self.handle(Input::Fetched(*id, fine)),
            Output::Send(..) | Output::Sent(_) | Output::Notice(..) => Ok(()),
        }
    }
}

impl End for Answering {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        self.handle(responding::Input::Greeting(greeting))?;
        Ok(Greeted {
            proven: true,
            ..Greeted::default()
        })
    }

    fn proven(&mut self) -> Result<(), CloseReason> {
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        let Frame::Request(request) = frame else {
            return self.handle(responding::Input::Frame(frame));
        };
        // A region of odd number is a device's; of one generation in four nothing is left.
        let claims = request.capability.claims();
        let admitted = match claims.generation % 4 {
            3 => Err(Refusal::Generation),
            _ => Ok(Admitted {
                memory: (),
                chunk_bytes: (claims.region % 2 == 1).then_some(4096),
            }),
        };
        self.handle(responding::Input::Request(&request, admitted))
    }

    fn want(&mut self) -> Want {
        loop {
            let want = self.responder.want();
            let Want::Room(span) = want else {
                return want;
            };
            // It cannot be at odds with the protocol.
            let _ = self.handle(responding::Input::Lent(span.id));
        }
    }

    fn place(&mut self, _: Span) -> Option<Place<'_>> {
        None
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(responding::Input::Arrived(bytes))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.handle(responding::Input::Text(bytes))
    }

    fn gather(&mut self, _: &mut Vectors) -> usize {
        0
    }

    fn wrote(&mut self, _: usize) -> Result<(), CloseReason> {
        Ok(())
    }
}

/// The requests of an initiator.
const ASKED: usize = 5;

/// An initiator that asks when it may, and has sent all that it asks before an answer comes.
struct Asking {
    initiator: Initiator<usize>,
    ends: [u32; ASKED],
    said: Vec<String>,
}

impl Asking {
    fn new() -> Self {
        let limits = InitiatorLimits {
            peer: PEER,
            slice_bytes: 64 << 10,
            requests_max: REQUESTS_MAX as u32,
            progress_timeout: LONG,
            ack_timeout: LONG,
            drain_timeout: LONG,
            idle_timeout: LONG,
            gc_interval: LONG,
        };
        Self {
            initiator: Initiator::new(limits, NOW),
            ends: [0; ASKED],
            said: Vec::new(),
        }
    }

    fn calls() -> [Call; ASKED] {
        let transfer = |op, bytes| Call::Transfer {
            op,
            urgent: false,
            offset: 0,
            bytes,
            capability: Capability::from_bytes(&[0; Capability::BYTES]),
            trace: None,
        };
        let notice = Notice {
            name: "name".to_owned(),
            bytes: b"words".to_vec(),
        };
        [
            transfer(Op::Read, 8),
            transfer(Op::Read, 200),
            transfer(Op::Write, 8),
            Call::Notify(notice),
            Call::Ping,
        ]
    }

    fn handle(&mut self, input: initiating::Input<'_, usize>) -> Result<(), CloseReason> {
        use initiating::{Input, Output};
        let mut out = Vec::new();
        let handled = self.initiator.handle(NOW, input, &mut out);
        for output in out {
            self.said.push(format!("{output:?}"));
            match output {
                Output::Ended { task, .. } | Output::Again(task) => self.ends[task] += 1,
                Output::Ready(_) => {
                    for (task, call) in Self::calls().into_iter().enumerate() {
                        let deadline = Instant::NEVER;
                        self.handle(Input::Start {
                            call,
                            deadline,
                            task,
                        })?;
                    }
                    let count = self.initiator.gather(|piece| show(piece, &mut Vec::new()));
                    self.handle(Input::Wrote(count))?;
                }
            }
        }
        handled
    }
}

impl End for Asking {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        self.handle(initiating::Input::Greeting(greeting))?;
        Ok(Greeted {
            proven: true,
            ..Greeted::default()
        })
    }

    fn proven(&mut self) -> Result<(), CloseReason> {
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        self.handle(initiating::Input::Frame(frame))
    }

    fn want(&mut self) -> Want {
        self.initiator.want()
    }

    fn place(&mut self, _: Span) -> Option<Place<'_>> {
        None
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(initiating::Input::Arrived(bytes))
    }

    fn text(&mut self, _: &[u8]) -> Result<(), CloseReason> {
        Ok(())
    }

    fn gather(&mut self, _: &mut Vectors) -> usize {
        0
    }

    fn wrote(&mut self, _: usize) -> Result<(), CloseReason> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpora;

    #[test]
    fn corpora_and_their_mutations_break_nothing() {
        corpora::replay(&[
            ("transfer_responder", responder),
            ("transfer_initiator", initiator),
        ]);
    }

    /// Targets whose genuine bytes reach nothing would find nothing.
    #[test]
    fn genuine_bytes_reach_what_the_targets_are_for() {
        let mut answering = Answering::new();
        let read = std::fs::read(corpora::file("transfer_responder", "mixed")).unwrap();
        assert_eq!(take(&mut answering, &[&read[..1], &read[1..]]), None);
        for output in ["Commit", "Notice", "Store", "Fetch"] {
            let has = |said: &String| said.starts_with(output);
            assert!(
                answering.said.iter().any(has),
                "no {output}: {:?}",
                answering.said
            );
        }
        let mut asking = Asking::new();
        let answers = std::fs::read(corpora::file("transfer_initiator", "all")).unwrap();
        assert_eq!(take(&mut asking, &[&answers[..1], &answers[1..]]), None);
        assert_eq!(asking.ends, [1; ASKED], "{:?}", asking.said);
    }
}
