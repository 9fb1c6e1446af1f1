//! What was sent or copied, and how requests end.

use std::collections::btree_map::Entry;

use slackwater_base::Instant;
use slackwater_wire::data::Refusal;

use super::{Ending, IncomingRequest, Output, RequestState, Responder};
use crate::protocol::send_queue::{PayloadSource, Withdrawn};

impl<M> Responder<M> {
    /// A copy of a chunk into the device has ended.
    pub(super) fn stored(&mut self, id: u64, stored: bool, out: &mut Vec<Output>) {
        match self.state(id) {
            Some(RequestState::StagedWrite(staged)) => {
                if staged.stored() && stored {
                    out.push(Output::Commit(id));
                }
                if !stored {
                    self.give_up(id, Refusal::Memory);
                }
            }
            Some(RequestState::Ending(_)) => self.waited(id),
            _ => {}
        }
    }

    /// A copy of a chunk out of the device has ended.
    pub(super) fn fetched(&mut self, id: u64, fetched: bool, out: &mut Vec<Output>) {
        match (self.state(id), fetched) {
            (Some(RequestState::StagedRead(read)), true) => {
                read.fetched();
                self.send_chunk(id, out);
            }
            (Some(RequestState::StagedRead(read)), false) => {
                read.failed();
                self.give_up(id, Refusal::Memory);
            }
            (Some(RequestState::Ending(_)), _) => self.waited(id),
            _ => {}
        }
    }

    fn send_chunk(&mut self, id: u64, out: &mut Vec<Output>) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let RequestState::StagedRead(read) = &mut request.state else {
            return;
        };
        let Some((chunk, more)) = read.next() else {
            return;
        };
        out.push(Output::Send(id, chunk));
        out.extend(read.fetch().map(|chunk| Output::Fetch(id, chunk)));
        if !more {
            request.state = RequestState::Read;
        }
        self.queue.push_source(PayloadSource {
            id,
            from: chunk.offset,
            to: chunk.offset + chunk.bytes as u64,
            more,
            request: None,
            acknowledged: true,
            urgent: request.urgent,
        });
    }

    pub(super) fn wrote(&mut self, now: Instant, bytes: usize, out: &mut Vec<Output>) {
        self.wrote_at = now;
        let mut sent = std::mem::take(&mut self.sent);
        self.queue.wrote(bytes, &mut sent);
        for id in sent.drain(..) {
            match self.state(id) {
                Some(RequestState::Read) => {
                    self.release(id);
                    self.requests.remove(&id);
                }
                Some(RequestState::StagedRead(read)) => {
                    read.sent();
                    out.push(Output::Sent(id));
                    self.send_chunk(id, out);
                }
                Some(RequestState::Ending(_)) => self.waited(id),
                _ => {}
            }
        }
        self.sent = sent;
    }

    /// The peer cancels a request: no more payload of it comes.
    pub(super) fn cancel(&mut self, id: u64) {
        self.give_up(id, Refusal::Cancelled);
        if let Some(RequestState::Ending(over)) = self.state(id) {
            over.payload = false;
            self.forget_if_done(id);
        }
    }

    /// Releases a request's memory and refuses the request. A write to a device is refused only when its last copy has
    /// ended: the peer may write other bytes there as soon as it has the refusal.
    pub(super) fn give_up(&mut self, id: u64, refusal: Refusal) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let ending = |waits, owed, payload| Ending {
            waits,
            owed,
            payload,
        };
        let over = match &request.state {
            RequestState::Ending(_) => return,
            RequestState::Write { complete, .. } => ending(0, Some(refusal), !complete),
            RequestState::StagedWrite(staged) => {
                ending(staged.storing(), Some(refusal), !staged.is_complete())
            }
            RequestState::Read => match self.queue.withdraw(id, Some(refusal)) {
                // All of it was sent: it counts as done.
                Withdrawn::Nothing => {
                    self.release(id);
                    return;
                }
                Withdrawn::Unbegun => ending(0, Some(refusal), false),
                Withdrawn::Begun => ending(1, None, false),
            },
            RequestState::StagedRead(read) => {
                let fetching = u32::from(read.is_fetching());
                match self.queue.withdraw(id, Some(refusal)) {
                    Withdrawn::Begun => ending(fetching + 1, None, false),
                    Withdrawn::Nothing | Withdrawn::Unbegun => {
                        self.answer(id, Some(refusal), 0);
                        ending(fetching, None, false)
                    }
                }
            }
        };
        if let Some(request) = self.release(id) {
            request.state = RequestState::Ending(over);
        }
        self.forget_if_done(id);
    }

    /// Releases the memory of a request, which no longer counts.
    pub(super) fn release(&mut self, id: u64) -> Option<&mut IncomingRequest<M>> {
        let request = self.requests.get_mut(&id)?;
        request.memory.take()?;
        (self.held, self.held_bytes) = (self.held - 1, self.held_bytes - request.bytes);
        Some(request)
    }

    /// One of the things has ended that a request still waits for.
    fn waited(&mut self, id: u64) {
        if let Some(RequestState::Ending(over)) = self.state(id) {
            over.waits -= 1;
            self.forget_if_done(id);
        }
    }

    pub(super) fn forget_if_done(&mut self, id: u64) {
        let Entry::Occupied(mut request) = self.requests.entry(id) else {
            return;
        };
        let RequestState::Ending(over) = &mut request.get_mut().state else {
            return;
        };
        if over.waits > 0 {
            return;
        }
        let (owed, payload) = (over.owed.take(), over.payload);
        if !payload {
            request.remove();
        }
        if let Some(refusal) = owed {
            self.answer(id, Some(refusal), 0);
        }
    }
}
