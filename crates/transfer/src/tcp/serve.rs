//! The passive end of a connection: requests of a peer against the regions of this process.

use std::collections::BTreeMap;

use slackwater_net::ConnId;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Ack, Data, Features, Frame, Greeting, Notify, Op, Refusal, Request};

use super::conn::{Broken, Payload, Turn};
use super::cursor::Cursor;
use super::outlet::{Outlet, Source, Withdrawn};
use super::record::{Opener, Sealer};
use super::seal::{Keys, SealError, answer, holder_of, refusal};
use super::staged::{DeviceRange, Next, StagedRead, StagedWrite};
use crate::job::Buffers;
use crate::memory::{StageError, Staged};
use crate::mover::Notice;
use crate::region::RegionId;

/// Requests that one peer has on one connection.
#[derive(Debug, Default)]
pub(crate) struct Serve {
    /// Who asks; none before its greeting.
    peer: Option<Incarnation>,
    /// Whose capabilities it may use: what it claims to be, or on a sealed connection what its key says.
    holder: Option<Incarnation>,
    /// It wants to speak to another process.
    mistaken: bool,
    writes: BTreeMap<u64, Write>,
    /// Reads of device memory.
    reads: BTreeMap<u64, StagedRead>,
    notice: Option<Incoming>,
    /// Payload waits for a device to have room.
    stalled: bool,
}

/// A write whose payload is on its way.
#[derive(Debug)]
enum Write {
    /// Under an access, as far as the cursor says.
    Open { cursor: Cursor, bytes: u64 },
    /// On its way to a device.
    Staged(StagedWrite),
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
    /// Answers, and says what opens the records of the peer, if its connection is sealed.
    pub(crate) fn greeting(
        &mut self,
        greeting: &Greeting,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<Option<Opener>, SealError> {
        let own = turn.shared.home.incarnation();
        self.mistaken = greeting.expects != Incarnation(0) && greeting.expects != own;
        self.peer = Some(greeting.incarnation);
        self.holder = self.peer;
        let own = turn.shared.greeting(greeting.incarnation, Features::default());
        let Some(seal) = &turn.shared.config.seal else {
            outlet.push_bytes(own.to_bytes().to_vec());
            return Ok(None);
        };
        match answer(seal, greeting, own) {
            Ok((client, answered, Keys { send, receive })) => {
                self.holder = Some(holder_of(&client));
                outlet.seal(Sealer::after(send, answered.to_bytes().to_vec()));
                Ok(Some(Opener::new(receive)))
            }
            Err(error) => {
                outlet.push_bytes(refusal(own).to_bytes().to_vec());
                Err(error)
            }
        }
    }

    /// Who asks, if nothing is under way.
    pub(crate) fn idle_peer(&self) -> Option<Incarnation> {
        let idle = self.writes.is_empty() && self.reads.is_empty() && self.notice.is_none();
        self.peer.filter(|_| idle)
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        conn: ConnId,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<Option<Payload>, Broken> {
        if self.mistaken {
            return Err(Broken::protocol("a request to another incarnation"));
        }
        // Acknowledgements that nobody reads count as well: a peer that only asks fills no memory here.
        if self.writes.len() + self.reads.len() + outlet.len() > 2 * turn.shared.config.requests_max as usize {
            return Err(Broken::protocol("more requests than were allowed"));
        }
        match frame {
            Frame::Request(request) => self.request(&request, conn, outlet, turn),
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
        if !write.is_live() {
            *write = Write::Refused;
            outlet.push(&refused(id, Refusal::Generation));
        }
        match write {
            Write::Open { cursor, .. } => Some(cursor),
            Write::Staged(staged) => staged.cursor(),
            Write::Refused => None,
        }
    }

    /// How much payload of a request there is a place at the moment; none while a device has no room. The connection is
    /// resumed then.
    pub(crate) fn room(&mut self, id: u64, conn: ConnId, outlet: &mut Outlet, turn: &Turn<'_>) -> Option<usize> {
        if let Some(write) = self.writes.get_mut(&id)
            && !write.is_live()
        {
            *write = Write::Refused;
            outlet.push(&refused(id, Refusal::Generation));
        }
        match self.writes.get_mut(&id) {
            Some(Write::Staged(_)) if self.stalled => None,
            Some(Write::Staged(staged)) => {
                let room = staged.room(conn, turn);
                self.stalled = room.is_none();
                room
            }
            _ => Some(usize::MAX),
        }
    }

    /// A device has room.
    pub(crate) fn resumed(&mut self) {
        self.stalled = false;
    }

    /// Payload has come.
    pub(crate) fn arrived(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) {
        if let Some(Write::Staged(staged)) = self.writes.get_mut(&id) {
            staged.hand_over(id, conn, turn);
        }
    }

    /// A chunk of a write is in the device, or will never be.
    pub(crate) fn stored(&mut self, id: u64, result: Result<(), StageError>, outlet: &mut Outlet, turn: &Turn<'_>) {
        let Some(Write::Staged(staged)) = self.writes.get_mut(&id) else { return };
        let done = staged.stored();
        match result {
            Ok(()) if done => self.acknowledge(id, outlet, turn),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "a write to a device failed");
                let over = staged.is_complete();
                outlet.push(&refused(id, Refusal::Memory));
                match over {
                    true => drop(self.writes.remove(&id)),
                    // What still comes is thrown away.
                    false => drop(self.writes.insert(id, Write::Refused)),
                }
            }
        }
    }

    /// A chunk of a read is out of the device, or will never be.
    pub(crate) fn fetched(
        &mut self,
        id: u64,
        result: Result<Staged, StageError>,
        conn: ConnId,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) {
        // One that was cancelled, or whose region has closed, meanwhile: its chunk goes back.
        let Some(read) = self.reads.get_mut(&id) else { return };
        match result {
            Ok(staged) => {
                let next = read.fetched(id, staged, conn, turn);
                self.go_on(id, next, outlet, turn);
            }
            Err(error) => {
                tracing::debug!(%error, "a read of a device failed");
                self.reads.remove(&id);
                if outlet.withdraw(id, Some(Refusal::Memory)) != Withdrawn::Begun {
                    outlet.push(&refused(id, Refusal::Memory));
                }
            }
        }
    }

    /// A source has left this process.
    pub(crate) fn sent(&mut self, id: u64, conn: ConnId, outlet: &mut Outlet, turn: &Turn<'_>) {
        if let Some(read) = self.reads.get_mut(&id) {
            let next = read.sent(id, conn, turn);
            self.go_on(id, next, outlet, turn);
        }
    }

    fn go_on(&mut self, id: u64, next: Next, outlet: &mut Outlet, turn: &Turn<'_>) {
        let Next::Send { cursor, base, more } = next else { return };
        let urgent = self.reads.get(&id).is_some_and(|read| read.urgent);
        if !more {
            self.reads.remove(&id);
        }
        let ack_credit = Some(turn.shared.config.requests_max);
        outlet.push_source(Source { id, cursor, base, more, request: None, ack_credit, urgent });
    }

    /// All of a staged write is in its device.
    fn acknowledge(&mut self, id: u64, outlet: &mut Outlet, turn: &Turn<'_>) {
        if let Some(Write::Staged(staged)) = self.writes.remove(&id) {
            // The second check, as for any write.
            let (refusal, bytes) = match staged.range().is_live() {
                true => (None, staged.range().bytes()),
                false => (Some(Refusal::Generation), 0),
            };
            let credit = turn.shared.config.requests_max;
            outlet.push(&Frame::Ack(Ack { id, refusal, bytes, checksum: 0, credit }));
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
            Some(Write::Staged(mut staged)) => {
                if staged.received() < staged.range().bytes() {
                    return Err(Broken::protocol("a write shorter than announced"));
                }
                let done = staged.finish();
                self.writes.insert(payload.id, Write::Staged(staged));
                if done {
                    self.acknowledge(payload.id, outlet, turn);
                }
                Ok(())
            }
            Some(Write::Refused) | None => Ok(()),
        }
    }

    /// Lets go of every access to a region that closes.
    pub(crate) fn let_go(&mut self, region: RegionId, outlet: &mut Outlet) {
        let mut over = Vec::new();
        for (id, write) in &mut self.writes {
            let (is_of, complete) = match write {
                Write::Open { cursor, .. } => (is_of(cursor, region), false),
                Write::Staged(staged) => (staged.range().is_of(region), staged.is_complete()),
                Write::Refused => (false, false),
            };
            if is_of {
                *write = Write::Refused;
                outlet.push(&refused(*id, Refusal::Generation));
                // Nothing of it comes any more.
                over.extend(complete.then_some(*id));
            }
        }
        over.iter().for_each(|id| drop(self.writes.remove(id)));
        let unsent: Vec<u64> =
            self.reads.iter().filter(|(_, read)| read.range().is_of(region)).map(|(id, _)| *id).collect();
        for id in unsent {
            self.reads.remove(&id);
            if outlet.withdraw(id, Some(Refusal::Generation)) != Withdrawn::Begun {
                outlet.push(&refused(id, Refusal::Generation));
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

    fn request(&mut self, request: &Request, conn: ConnId, outlet: &mut Outlet, turn: &Turn<'_>) {
        let holder = self.holder.unwrap_or(Incarnation(0));
        let range = (request.offset, request.bytes);
        let admitted = turn.shared.home.admit(&request.capability, request.op, range, holder);
        let memory = admitted.and_then(|access| match DeviceRange::of(access) {
            Ok(device) => Ok(Err(device)),
            Err(access) if access.region().memory().location().is_host() => Ok(Ok(access)),
            // A device that nobody stages.
            Err(_) => Err(Refusal::Memory),
        });
        let memory = match memory {
            Ok(memory) => memory,
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
        let access = match (memory, request.op) {
            (Ok(access), _) => access,
            (Err(device), Op::Write) => {
                self.writes.insert(request.id, Write::Staged(StagedWrite::new(device)));
                return;
            }
            (Err(device), Op::Read) => {
                let mut read = StagedRead::new(device, request.urgent);
                read.fetch(request.id, conn, turn);
                self.reads.insert(request.id, read);
                return;
            }
        };
        let cursor = Cursor::new(Buffers::held([access]));
        match request.op {
            Op::Write => {
                self.writes.insert(request.id, Write::Open { cursor, bytes: request.bytes });
            }
            Op::Read => outlet.push_source(Source {
                id: request.id,
                cursor,
                base: 0,
                more: false,
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
            Some(Write::Staged(staged)) => {
                let at = staged.received();
                if data.offset != at || u64::from(data.bytes) > staged.range().bytes() - at {
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
            Some(Write::Open { .. } | Write::Staged(_)) => outlet.push(&refused(id, Refusal::Cancelled)),
            Some(Write::Refused) => {}
            None => {
                let staged = self.reads.remove(&id).is_some();
                let withdrawn = outlet.withdraw(id, Some(Refusal::Cancelled));
                if withdrawn == Withdrawn::Unbegun || staged && withdrawn == Withdrawn::Nothing {
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

impl Write {
    fn is_live(&self) -> bool {
        match self {
            Self::Open { cursor, .. } => is_live(cursor),
            Self::Staged(staged) => staged.range().is_live(),
            Self::Refused => true,
        }
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
