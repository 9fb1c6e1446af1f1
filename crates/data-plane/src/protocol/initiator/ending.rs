//! How requests end.

use std::collections::BTreeSet;

use slackwater_base::Instant;
use slackwater_wire::data::{Ack, Frame};

use super::{Flight, Initiator, Kind, Output, find, get};
use crate::Cause;
use crate::protocol::CloseReason;
use crate::protocol::send_queue::{SendQueue, Withdrawn};

impl<T> Initiator<T> {
    pub(super) fn ack(
        &mut self,
        now: Instant,
        ack: &Ack,
        out: &mut Vec<Output<T>>,
    ) -> Result<(), CloseReason> {
        let flight = self
            .remove(ack.id, now)
            .ok_or(CloseReason::protocol("an acknowledgement of no request"))?;
        if flight.task.is_none() {
            return Ok(());
        }
        if let Some(refusal) = ack.refusal {
            if flight.kind == Kind::Write && flight.sent_at.is_none() && flight.draining.is_none() {
                // The rest need not be sent; the target discards what is on its way.
                self.queue.withdraw(ack.id, None);
                self.queue.push(&Frame::Cancel { id: ack.id });
            }
            finish(flight, Err(Cause::Refused(refusal)), out);
            return Ok(());
        }
        let whole = match flight.kind {
            Kind::Read => flight.received == flight.bytes,
            Kind::Write => flight.sent_at.is_some(),
            Kind::Notify | Kind::Ping => true,
        };
        if !whole && flight.draining.is_none() || ack.bytes != flight.bytes {
            let reason = "an acknowledgement of more or less than was asked for";
            finish(flight, Err(Cause::Protocol(reason.to_owned())), out);
            return Err(CloseReason::protocol(reason));
        }
        let bytes = flight.bytes;
        finish(flight, Ok(bytes), out);
        Ok(())
    }

    /// Gives up one request. The memory of a read is released at once, and payload that still comes is discarded; a
    /// write waits a little for the target's answer, so that nothing of it is applied after its end was reported.
    pub(super) fn abandon(
        &mut self,
        now: Instant,
        id: u64,
        cause: Cause,
        out: &mut Vec<Output<T>>,
    ) {
        let untouched = self.queue.is_untouched(id);
        let Some(flight) = find(&mut self.flights, id)
            .filter(|flight| flight.draining.is_none() && flight.task.is_some())
        else {
            return;
        };
        let withdrawn = self.queue.withdraw(id, None);
        if untouched && withdrawn == Withdrawn::Unbegun {
            if let Some(flight) = self.remove(id, now) {
                finish(flight, Err(cause), out);
            }
            return;
        }
        self.queue.push(&Frame::Cancel { id });
        if flight.kind == Kind::Write {
            let until = now + self.limits.drain_timeout;
            flight.draining = Some((cause, until));
            return self.need(until);
        }
        if let Some(task) = flight.task.take() {
            let outcome = Err(cause);
            out.push(Output::Ended { task, outcome });
        }
    }

    /// The connection has ended, with everything on it.
    pub(super) fn closed(&mut self, cause: &Cause, retry: bool, out: &mut Vec<Output<T>>) {
        let untouched: BTreeSet<u64> = self.queue.untouched().collect();
        self.queue = SendQueue::new(self.limits.slice_bytes);
        self.payload = None;
        for (key, mut flight) in std::mem::take(&mut self.flights) {
            let again = match flight.kind {
                Kind::Read | Kind::Ping => true,
                Kind::Write => untouched.contains(&flight.id(key)),
                Kind::Notify => false,
            };
            match flight.task.take() {
                Some(task) if again && retry && flight.draining.is_none() => {
                    out.push(Output::Again(task));
                }
                Some(task) => {
                    let cause = flight
                        .draining
                        .map_or(cause.clone(), |(given_up, _)| given_up);
                    let outcome = Err(cause);
                    out.push(Output::Ended { task, outcome });
                }
                None => {}
            }
        }
    }

    pub(super) fn remove(&mut self, id: u64, now: Instant) -> Option<Flight<T>> {
        get(&self.flights, id)?;
        let flight = self.flights.remove(id as u32 as usize);
        if self.flights.is_empty() {
            self.idle_since = now;
        }
        Some(flight)
    }
}

pub(super) fn finish<T>(flight: Flight<T>, outcome: Result<u64, Cause>, out: &mut Vec<Output<T>>) {
    let outcome = match flight.draining {
        Some((cause, _)) => Err(cause),
        None => outcome,
    };
    out.extend(flight.task.map(|task| Output::Ended { task, outcome }));
}
