//! The passive end of a connection: requests of a peer against the regions of this process.

use std::collections::BTreeMap;

use slackwater_wire::Incarnation;
use slackwater_wire::data::{Ack, Data, Features, Frame, Greeting, Notify, Op, Refusal, Request};

use super::conn::{Broken, Payload, Turn};
use super::cursor::Cursor;
use super::outlet::{Outlet, Source, Withdrawn};
use crate::job::Buffers;
use crate::mover::Notice;
use crate::region::RegionId;

/// Requests that one peer has on one connection.
#[derive(Debug, Default)]
pub(crate) struct Serve {
    /// Who asks; none before its greeting.
    peer: Option<Incarnation>,
    /// It wants to speak to another process.
    mistaken: bool,
    writes: BTreeMap<u64, Write>,
    notice: Option<Incoming>,
}

/// A write whose payload is on its way.
#[derive(Debug)]
enum Write {
    /// Under an access, as far as the cursor says.
    Open { cursor: Cursor, bytes: u64 },
    /// Already answered; what still comes is thrown away.
    Refused,
}

#[derive(Debug)]
struct Incoming {
    id: u64,
    name_bytes: usize,
    text: Vec<u8>,
}

/// Longest name and message of a notice.
const NOTICE_BYTES_MAX: u64 = 64 << 10;

impl Serve {
    pub(crate) fn greeting(&mut self, greeting: &Greeting, outlet: &mut Outlet, turn: &Turn<'_>) {
        let own = turn.shared.home.incarnation();
        self.mistaken = greeting.expects != Incarnation(0) && greeting.expects != own;
        self.peer = Some(greeting.incarnation);
        outlet.push_bytes(turn.shared.greeting(greeting.incarnation, Features::default()).to_bytes().to_vec());
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<Option<Payload>, Broken> {
        if self.mistaken {
            return Err(Broken::protocol("a request to another incarnation"));
        }
        // Acknowledgements that nobody reads count as well: a peer that only asks fills no memory here.
        if self.writes.len() + outlet.len() > 2 * turn.shared.config.requests_max as usize {
            return Err(Broken::protocol("more requests than were allowed"));
        }
        match frame {
            Frame::Request(request) => self.request(&request, outlet, turn),
            Frame::Data(data) => return self.data(&data, turn).map(Some),
            Frame::Cancel { id } => self.cancel(id, outlet),
            Frame::Ping { token } => outlet.push(&Frame::Pong { token }),
            Frame::Notify(notify) => return self.notify(&notify).map(Some),
            Frame::Goaway | Frame::Pong { .. } => {}
            Frame::Ack(_) => return Err(Broken::protocol("an acknowledgement from an initiator")),
        }
        Ok(None)
    }

    /// Where the payload of a request goes; none when it is thrown away, or kept elsewhere.
    pub(crate) fn cursor(&mut self, id: u64, outlet: &mut Outlet) -> Option<&mut Cursor> {
        let write = self.writes.get_mut(&id)?;
        if matches!(write, Write::Open { cursor, .. } if !is_live(cursor)) {
            *write = Write::Refused;
            outlet.push(&refused(id, Refusal::Generation));
        }
        match write {
            Write::Open { cursor, .. } => Some(cursor),
            Write::Refused => None,
        }
    }

    /// Payload that has no cursor.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if let Some(incoming) = &mut self.notice {
            incoming.text.extend_from_slice(bytes);
        }
    }

    pub(crate) fn payload_done(
        &mut self,
        payload: &Payload,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<(), Broken> {
        if let Some(incoming) = self.notice.take() {
            return self.deliver(incoming, outlet, turn);
        }
        if !payload.last {
            return Ok(());
        }
        match self.writes.remove(&payload.id) {
            Some(Write::Open { cursor, .. }) if cursor.left() > 0 => {
                Err(Broken::protocol("a write shorter than announced"))
            }
            Some(Write::Open { cursor, bytes }) => {
                // The second check: what was applied while its region closed does not count.
                let refusal = (!is_live(&cursor)).then_some(Refusal::Generation);
                drop(cursor);
                let bytes = if refusal.is_none() { bytes } else { 0 };
                let credit = turn.shared.config.requests_max;
                outlet.push(&Frame::Ack(Ack { id: payload.id, refusal, bytes, checksum: 0, credit }));
                Ok(())
            }
            Some(Write::Refused) | None => Ok(()),
        }
    }

    /// Lets go of every access to a region that closes.
    pub(crate) fn let_go(&mut self, region: RegionId, outlet: &mut Outlet) {
        for (id, write) in &mut self.writes {
            if matches!(write, Write::Open { cursor, .. } if is_of(cursor, region)) {
                *write = Write::Refused;
                outlet.push(&refused(*id, Refusal::Generation));
            }
        }
        let mut reads: Vec<u64> =
            outlet.sources().filter(|(_, cursor)| is_of(cursor, region)).map(|(id, _)| id).collect();
        reads.dedup();
        for id in reads {
            if outlet.withdraw(id, Some(Refusal::Generation)) == Withdrawn::Unbegun {
                outlet.push(&refused(id, Refusal::Generation));
            }
        }
    }

    fn request(&mut self, request: &Request, outlet: &mut Outlet, turn: &Turn<'_>) {
        let holder = self.peer.unwrap_or(Incarnation(0));
        let range = (request.offset, request.bytes);
        let admitted = turn.shared.home.admit(&request.capability, request.op, range, holder).and_then(|access| {
            match access.region().memory().location().is_host() {
                true => Ok(access),
                false => Err(Refusal::Memory),
            }
        });
        let access = match admitted {
            Ok(access) => access,
            Err(refusal) => {
                if request.op == Op::Write && request.bytes > 0 {
                    self.writes.insert(request.id, Write::Refused);
                }
                return outlet.push(&refused(request.id, refusal));
            }
        };
        let credit = turn.shared.config.requests_max;
        if request.bytes == 0 {
            return outlet.push(&Frame::Ack(Ack { id: request.id, refusal: None, bytes: 0, checksum: 0, credit }));
        }
        let cursor = Cursor::new(Buffers::held([access]));
        match request.op {
            Op::Write => {
                self.writes.insert(request.id, Write::Open { cursor, bytes: request.bytes });
            }
            Op::Read => outlet.push_source(Source {
                id: request.id,
                cursor,
                request: None,
                ack_credit: Some(credit),
                urgent: request.urgent,
            }),
        }
    }

    fn data(&mut self, data: &Data, turn: &Turn<'_>) -> Result<Payload, Broken> {
        if data.bytes as usize > turn.shared.frame_bytes_max() {
            return Err(Broken::protocol("a frame over the limit"));
        }
        match self.writes.get(&data.id) {
            Some(Write::Open { cursor, bytes }) => {
                let at = bytes - cursor.left();
                if data.offset != at || u64::from(data.bytes) > cursor.left() {
                    return Err(Broken::protocol("data that does not follow what came before"));
                }
            }
            Some(Write::Refused) => {}
            None => return Err(Broken::protocol("data of no request")),
        }
        Ok(Payload { id: data.id, left: data.bytes as usize, last: data.last })
    }

    fn cancel(&mut self, id: u64, outlet: &mut Outlet) {
        match self.writes.remove(&id) {
            Some(Write::Open { .. }) => outlet.push(&refused(id, Refusal::Cancelled)),
            Some(Write::Refused) => {}
            None => {
                if outlet.withdraw(id, Some(Refusal::Cancelled)) == Withdrawn::Unbegun {
                    outlet.push(&refused(id, Refusal::Cancelled));
                }
            }
        }
    }

    fn notify(&mut self, notify: &Notify) -> Result<Payload, Broken> {
        let bytes = u64::from(notify.name_bytes) + u64::from(notify.bytes);
        if bytes > NOTICE_BYTES_MAX {
            return Err(Broken::protocol("a notice over the limit"));
        }
        self.notice = Some(Incoming { id: notify.id, name_bytes: notify.name_bytes as usize, text: Vec::new() });
        Ok(Payload { id: notify.id, left: bytes as usize, last: true })
    }

    fn deliver(&mut self, mut incoming: Incoming, outlet: &mut Outlet, turn: &Turn<'_>) -> Result<(), Broken> {
        let bytes = incoming.text.split_off(incoming.name_bytes);
        let Ok(name) = String::from_utf8(incoming.text) else {
            return Err(Broken::protocol("a notice whose name is no text"));
        };
        let from = self.peer.unwrap_or(Incarnation(0));
        let refusal = match turn.shared.home.deliver(from, Notice { name, bytes }) {
            true => None,
            false => Some(Refusal::Limit),
        };
        let credit = turn.shared.config.requests_max;
        outlet.push(&Frame::Ack(Ack { id: incoming.id, refusal, bytes: 0, checksum: 0, credit }));
        Ok(())
    }
}

fn refused(id: u64, refusal: Refusal) -> Frame {
    Frame::Ack(Ack { id, refusal: Some(refusal), bytes: 0, checksum: 0, credit: 0 })
}

fn is_live(cursor: &Cursor) -> bool {
    cursor.buffers().spans().iter().filter_map(|span| span.access()).all(|access| access.is_live())
}

fn is_of(cursor: &Cursor, region: RegionId) -> bool {
    cursor.buffers().spans().iter().filter_map(|span| span.access()).any(|access| access.region().id() == region)
}
