//! One connection, as the target sees it: the shell of a responder.

use std::rc::Rc;

use slackwater_data_plane::protocol::{
    CloseReason, Responder, Span, Want,
    responding::{Input, Output},
};
use slackwater_wire::data::{Frame, Greeting, Refusal};

use super::{Chunk, Copy, DEVICE_FROM, Held, Target, greeting};
use crate::cursor::{Place, SpanMemory};
use crate::end::{End, Greeted};
use crate::io::Vectors;
use crate::sim::Bug;

/// One connection, as the target sees it.
pub(in crate::sim) struct Server<'a> {
    pub(in crate::sim) conn: u64,
    pub(in crate::sim) responder: &'a mut Responder<Held>,
    pub(in crate::sim) target: &'a mut Target,
}

impl Server<'_> {
    pub(in crate::sim) fn handle(&mut self, input: Input<'_, Held>) -> Result<(), CloseReason> {
        let mut out = Vec::new();
        self.responder.handle(self.target.now, input, &mut out)?;
        out.into_iter().try_for_each(|output| self.perform(output))
    }

    fn perform(&mut self, output: Output) -> Result<(), CloseReason> {
        if let Output::Notice(id, _) = output {
            return self.handle(Input::Delivered(id, true));
        }
        let Some(held) = self.responder.memory(output.id()) else {
            return Ok(());
        };
        match output {
            Output::Commit(id) => {
                let truth = self.target.confirm(held);
                self.target.ledger.jobs[held.job].counts = truth.is_ok();
                let counts = match self.target.bug {
                    Some(Bug::CommitUnchecked) => Ok(()),
                    _ => truth,
                };
                return self.handle(Input::Committed(id, counts));
            }
            Output::Store(id, range) => {
                let chunk = held.chunk.take();
                let copy = self.target.copy(held, (self.conn, id), range, chunk);
                self.target.copies.push(copy);
            }
            Output::Fetch(id, range) => {
                let copy = self.target.copy(held, (self.conn, id), range, None);
                self.target.copies.push(copy);
            }
            Output::Send(_, range) => {
                let fetched = held.fetched.take();
                held.chunk = fetched.map(|memory| Chunk::new(range.offset, memory, None));
            }
            Output::Sent(_) => held.chunk = None,
            Output::Notice(..) => {}
        }
        Ok(())
    }

    /// A copy has ended.
    pub(in crate::sim) fn copied(
        &mut self,
        mut copy: Copy,
        failed: bool,
    ) -> Result<(), CloseReason> {
        self.target.end_copy(&mut copy, failed);
        let (id, held) = (copy.request, self.responder.memory(copy.request));
        if held.is_none() && self.target.bug == Some(Bug::CopyNotReported) {
            return Ok(());
        }
        match (copy.into_device, held) {
            (true, _) => self.handle(Input::Stored(id, !failed)),
            (false, held) => {
                if let Some(held) = held.filter(|_| !failed) {
                    held.fetched = Some(copy.chunk);
                }
                self.handle(Input::Fetched(id, !failed))
            }
        }
    }
}

impl End for Server<'_> {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        self.handle(Input::Greeting(greeting))?;
        let own = self::greeting(self.target.incarnation, greeting.incarnation);
        self.responder.greet(&own);
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
            return self.handle(Input::Frame(frame));
        };
        let range = (request.offset, request.bytes);
        let admitted = self.target.admit(&request.capability, request.op, range);
        self.handle(Input::Request(&request, admitted))
    }

    fn want(&mut self) -> Want {
        loop {
            let want = self.responder.want();
            let input = match want {
                Want::Room(span) if self.target.has_room() => {
                    let Some(held) = self.responder.memory(span.id) else {
                        return want;
                    };
                    let loan = Some(Rc::clone(&self.target.chunks));
                    let memory = vec![0; span.bytes].into();
                    held.chunk = Some(Chunk::new(span.offset, memory, loan));
                    Input::Lent(span.id)
                }
                Want::Room(_) => Input::NoRoom,
                Want::Memory(span) => match self.responder.memory(span.id) {
                    Some(held) if !held.access.is_live() => {
                        Input::Revoked(span.id, Refusal::Generation)
                    }
                    _ => return want,
                },
                _ => return want,
            };
            let _ = self.handle(input);
        }
    }

    fn place(&mut self, span: Span) -> Option<Place<'_>> {
        self.responder.memory(span.id)?.place(span.offset)
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        if let Want::Memory(span) = self.responder.want()
            && let Some(held) = self.responder.memory(span.id)
            && held.extent() < DEVICE_FROM
        {
            let (job, at) = (held.job, held.at(span.offset));
            if self.target.bug == Some(Bug::ByteNotPlaced) {
                self.target.arena[at + bytes - 1] = 0;
            }
            self.target.placed(job, at, bytes);
        }
        self.handle(Input::Arrived(bytes))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.handle(Input::Text(bytes))
    }

    fn gather(&mut self, _: &mut Vectors) -> usize {
        0
    }

    fn wrote(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(Input::Wrote(bytes))
    }
}
