//! The target's side of requests: those of one peer on one connection, from the request header to the acknowledgement.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use slackwater_net::ConnId;
use slackwater_wire::data::{Ack, Data, Frame, Op, Refusal, Request};

use super::conn::{CloseReason, Payload};
use super::cursor::Cursor;
use super::send_queue::{PayloadSource, SendQueue, Withdrawn};
use super::staged::{DeviceRange, Next, StagedRead, StagedWrite};
use super::turn::Turn;
use crate::job::Buffers;
use crate::memory::{StageError, Staged};
use crate::region::{Access, RegionId};

/// The requests that a peer has on one connection.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    requests: BTreeMap<u64, IncomingRequest>,
    /// The requests whose memory is held, and their bytes.
    held: usize,
    held_bytes: u64,
    /// Payload waits until a device has room.
    stalled: bool,
}

#[derive(Debug)]
struct IncomingRequest {
    bytes: u64,
    state: RequestState,
}

#[derive(Debug)]
enum RequestState {
    /// A write whose payload is arriving; the cursor says how far it has come.
    Write(Cursor),
    /// A write whose payload goes to a device.
    StagedWrite(StagedWrite),
    /// A read; the send queue holds its memory.
    Read,
    /// A read of device memory.
    StagedRead(StagedRead),
    /// The request has ended for its memory, which is released.
    Ending(Ending),
}

/// What is still outstanding for a request that has ended. Its id is taken until then.
#[derive(Debug)]
struct Ending {
    /// Device copies under way, plus one for a frame that was partly sent.
    waits: u32,
    /// The refusal that the peer gets when those are over.
    owed: Option<Refusal>,
    /// Payload may still arrive, and is discarded.
    payload: bool,
}

impl Responder {
    /// Whether no request is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Begins a request, or refuses it as `admitted` says.
    pub(crate) fn begin(
        &mut self,
        request: &Request,
        admitted: Result<Access, Refusal>,
        conn: ConnId,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        let config = &turn.context.config;
        let over_bytes = self.held_bytes.saturating_add(request.bytes) > config.in_flight_bytes_max;
        let requests_max = config.requests_max as usize;
        let over =
            over_bytes || self.held >= requests_max || self.requests.len() >= 2 * requests_max;
        let Entry::Vacant(place) = self.requests.entry(request.id) else {
            // Copies of the first request may be under way, and their ends would count for the second.
            return Err(CloseReason::protocol(
                "a request under a number that is taken",
            ));
        };
        if over {
            queue.push(&refused(request.id, Refusal::Limit));
            return Err(CloseReason::Limit("more at once than was allowed"));
        }
        let device = admitted.and_then(|access| match DeviceRange::of(access) {
            Ok(device) => Ok(Err(device)),
            Err(access) if access.region().memory().location().is_host() => Ok(Ok(access)),
            // Device memory without a stage.
            Err(_) => Err(Refusal::Memory),
        });
        let id = request.id;
        let state = match (device, request.op) {
            (Err(refusal), op) => {
                if op == Op::Write && request.bytes > 0 {
                    place.insert(IncomingRequest {
                        bytes: 0,
                        state: RequestState::Ending(Ending::refused()),
                    });
                }
                queue.push(&refused(id, refusal));
                return Ok(());
            }
            (Ok(_), _) if request.bytes == 0 => {
                queue.push(&done(id, 0, turn));
                return Ok(());
            }
            (Ok(Ok(access)), Op::Write) => {
                RequestState::Write(Cursor::new(Buffers::held([access])))
            }
            (Ok(Err(device)), Op::Write) => RequestState::StagedWrite(StagedWrite::new(device)),
            (Ok(Err(device)), Op::Read) => {
                let mut read = StagedRead::new(device, request.urgent);
                read.fetch(id, conn, turn);
                RequestState::StagedRead(read)
            }
            (Ok(Ok(access)), Op::Read) => {
                let cursor = Cursor::new(Buffers::held([access]));
                queue.push_source(PayloadSource {
                    id,
                    cursor,
                    base: 0,
                    more: false,
                    request: None,
                    ack_credit: Some(config.requests_max),
                    urgent: request.urgent,
                });
                RequestState::Read
            }
        };
        self.held += 1;
        self.held_bytes += request.bytes;
        place.insert(IncomingRequest {
            bytes: request.bytes,
            state,
        });
        Ok(())
    }

    /// A data header has arrived; checks that its payload follows what came before.
    pub(crate) fn data(&mut self, data: &Data) -> Result<Payload, CloseReason> {
        let request = self
            .requests
            .get(&data.id)
            .ok_or(CloseReason::protocol("data of no request"))?;
        let at = match &request.state {
            RequestState::Write(cursor) => Some(request.bytes - cursor.left()),
            RequestState::StagedWrite(staged) => Some(staged.received()),
            RequestState::Ending(Ending { payload: true, .. }) => None,
            RequestState::Ending(_) | RequestState::Read | RequestState::StagedRead(_) => {
                return Err(CloseReason::protocol("data of a request that takes none"));
            }
        };
        if at.is_some_and(|at| data.offset != at || u64::from(data.bytes) > request.bytes - at) {
            return Err(CloseReason::protocol(
                "data that does not follow what came before",
            ));
        }
        Ok(Payload {
            id: Some(data.id),
            left: data.bytes as usize,
            last: data.last,
        })
    }

    /// The cursor that payload of a request goes to; none when the payload is discarded.
    pub(crate) fn cursor(&mut self, id: u64, queue: &mut SendQueue) -> Option<&mut Cursor> {
        self.check_region(id, queue);
        match &mut self.requests.get_mut(&id)?.state {
            RequestState::Write(cursor) => Some(cursor),
            RequestState::StagedWrite(staged) => staged.cursor(),
            RequestState::Read | RequestState::StagedRead(_) | RequestState::Ending(_) => None,
        }
    }

    /// How many bytes of payload the request can take now; none while a device has no room. The connection is resumed
    /// when it has.
    pub(crate) fn room(
        &mut self,
        id: u64,
        conn: ConnId,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Option<usize> {
        self.check_region(id, queue);
        match self.requests.get_mut(&id).map(|request| &mut request.state) {
            Some(RequestState::StagedWrite(_)) if self.stalled => None,
            Some(RequestState::StagedWrite(staged)) => {
                let room = staged.room(conn, turn);
                self.stalled = room.is_none();
                room
            }
            _ => Some(usize::MAX),
        }
    }

    /// A device has room again.
    pub(crate) fn resumed(&mut self) {
        self.stalled = false;
    }

    /// Payload of a write has arrived.
    pub(crate) fn arrived(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) {
        if let Some(RequestState::StagedWrite(staged)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            staged.hand_over(id, conn, turn);
        }
    }

    /// The payload of a write is complete.
    pub(crate) fn payload_done(
        &mut self,
        id: u64,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Ok(());
        };
        let (bytes, short) = (
            request.bytes,
            CloseReason::protocol("a write shorter than announced"),
        );
        match &mut request.state {
            RequestState::Write(cursor) if cursor.left() > 0 => return Err(short),
            RequestState::StagedWrite(staged) if staged.received() < bytes => return Err(short),
            RequestState::Write(_) => self.acknowledge(id, queue, turn),
            RequestState::StagedWrite(staged) => {
                if staged.finish() {
                    self.acknowledge(id, queue, turn);
                }
            }
            RequestState::Ending(over) => {
                over.payload = false;
                self.forget_if_done(id, queue);
            }
            RequestState::Read | RequestState::StagedRead(_) => {}
        }
        Ok(())
    }

    /// A copy of a chunk into the device has ended.
    pub(crate) fn stored(
        &mut self,
        id: u64,
        result: Result<(), StageError>,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match (&mut request.state, result) {
            (RequestState::StagedWrite(staged), Ok(())) => {
                if staged.stored() {
                    self.acknowledge(id, queue, turn);
                }
            }
            (RequestState::StagedWrite(staged), Err(error)) => {
                tracing::debug!(%error, "a write to a device failed");
                staged.stored();
                self.give_up(id, Refusal::Memory, queue);
            }
            (RequestState::Ending(_), _) => self.waited(id, queue),
            (RequestState::Write(_) | RequestState::Read | RequestState::StagedRead(_), _) => {}
        }
    }

    /// A copy of a chunk out of the device has ended.
    pub(crate) fn fetched(
        &mut self,
        id: u64,
        result: Result<Staged, StageError>,
        conn: ConnId,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match (&mut request.state, result) {
            (RequestState::StagedRead(read), Ok(staged)) => {
                let next = read.fetched(id, staged, conn, turn);
                self.go_on(id, next, queue, turn);
            }
            (RequestState::StagedRead(read), Err(error)) => {
                tracing::debug!(%error, "a read of a device failed");
                read.failed();
                self.give_up(id, Refusal::Memory, queue);
            }
            // Dropping the result returns the chunk.
            (RequestState::Ending(_), _) => self.waited(id, queue),
            (RequestState::Write(_) | RequestState::Read | RequestState::StagedWrite(_), _) => {}
        }
    }

    /// The payload of a source was handed to the kernel.
    pub(crate) fn sent(&mut self, id: u64, conn: ConnId, queue: &mut SendQueue, turn: &Turn<'_>) {
        let Entry::Occupied(mut request) = self.requests.entry(id) else {
            return;
        };
        match &mut request.get_mut().state {
            RequestState::Read => {
                (self.held, self.held_bytes) =
                    (self.held - 1, self.held_bytes - request.get().bytes);
                request.remove();
            }
            RequestState::StagedRead(read) => {
                let next = read.sent(id, conn, turn);
                self.go_on(id, next, queue, turn);
            }
            RequestState::Ending(_) => self.waited(id, queue),
            RequestState::Write(_) | RequestState::StagedWrite(_) => {}
        }
    }

    /// The peer cancels a request: no more payload of it comes.
    pub(crate) fn cancel(&mut self, id: u64, queue: &mut SendQueue) {
        self.give_up(id, Refusal::Cancelled, queue);
        if let Some(RequestState::Ending(over)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            over.payload = false;
            self.forget_if_done(id, queue);
        }
    }

    /// Releases every access to a region that closes, and refuses its requests.
    pub(crate) fn release_region(&mut self, region: RegionId, queue: &mut SendQueue) {
        let is_at = |request: &IncomingRequest| match &request.state {
            RequestState::Write(cursor) => is_of(cursor, region),
            RequestState::StagedWrite(staged) => staged.range().is_of(region),
            RequestState::StagedRead(staged) => staged.range().is_of(region),
            RequestState::Read | RequestState::Ending(_) => false,
        };
        let mut at: BTreeSet<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| is_at(request))
            .map(|(id, _)| *id)
            .collect();
        at.extend(
            queue
                .sources()
                .filter(|(_, cursor)| is_of(cursor, region))
                .map(|(id, _)| id),
        );
        at.into_iter()
            .for_each(|id| self.give_up(id, Refusal::Generation, queue));
    }

    /// Checks before further payload is placed, and again before the acknowledgement, that the region of a write is not
    /// closing; refuses the write if it is.
    fn check_region(&mut self, id: u64, queue: &mut SendQueue) {
        let live = match self.requests.get(&id).map(|request| &request.state) {
            Some(RequestState::Write(cursor)) => is_live(cursor),
            Some(RequestState::StagedWrite(staged)) => staged.range().is_live(),
            _ => true,
        };
        if !live {
            self.give_up(id, Refusal::Generation, queue);
        }
    }

    /// Releases a request's memory and refuses the request. A write to a device is refused only when its last copy has
    /// ended: the peer may write other bytes there as soon as it has the refusal.
    fn give_up(&mut self, id: u64, refusal: Refusal, queue: &mut SendQueue) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let over = match &request.state {
            RequestState::Ending(_) => return,
            RequestState::Write(_) => Ending {
                waits: 0,
                owed: Some(refusal),
                payload: true,
            },
            RequestState::StagedWrite(staged) => Ending {
                waits: staged.storing(),
                owed: Some(refusal),
                payload: !staged.is_complete(),
            },
            RequestState::Read => match queue.withdraw(id, Some(refusal)) {
                // All of it was handed to the kernel: it counts as done.
                Withdrawn::Nothing => return,
                Withdrawn::Unbegun => Ending {
                    waits: 0,
                    owed: Some(refusal),
                    payload: false,
                },
                Withdrawn::Begun => Ending {
                    waits: 1,
                    owed: None,
                    payload: false,
                },
            },
            RequestState::StagedRead(read) => {
                let fetching = u32::from(read.is_fetching());
                match queue.withdraw(id, Some(refusal)) {
                    Withdrawn::Begun => Ending {
                        waits: fetching + 1,
                        owed: None,
                        payload: false,
                    },
                    Withdrawn::Nothing | Withdrawn::Unbegun => {
                        queue.push(&refused(id, refusal));
                        Ending {
                            waits: fetching,
                            owed: None,
                            payload: false,
                        }
                    }
                }
            }
        };
        (self.held, self.held_bytes) = (self.held - 1, self.held_bytes - request.bytes);
        request.state = RequestState::Ending(over);
        self.forget_if_done(id, queue);
    }

    /// All bytes of a write are applied: acknowledges it.
    fn acknowledge(&mut self, id: u64, queue: &mut SendQueue, turn: &Turn<'_>) {
        // The second check: a write that was applied while its region closed does not count.
        self.check_region(id, queue);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match &mut request.state {
            RequestState::Ending(over) => {
                over.payload = false;
                self.forget_if_done(id, queue);
            }
            _ => {
                queue.push(&done(id, request.bytes, turn));
                (self.held, self.held_bytes) = (self.held - 1, self.held_bytes - request.bytes);
                self.requests.remove(&id);
            }
        }
    }

    fn go_on(&mut self, id: u64, next: Next, queue: &mut SendQueue, turn: &Turn<'_>) {
        let Next::Send { cursor, base, more } = next else {
            return;
        };
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let RequestState::StagedRead(read) = &request.state else {
            return;
        };
        let (urgent, ack_credit) = (read.urgent, Some(turn.context.config.requests_max));
        if !more {
            request.state = RequestState::Read;
        }
        queue.push_source(PayloadSource {
            id,
            cursor,
            base,
            more,
            request: None,
            ack_credit,
            urgent,
        });
    }

    /// One of the things has ended that a request still waits for.
    fn waited(&mut self, id: u64, queue: &mut SendQueue) {
        if let Some(RequestState::Ending(over)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            over.waits -= 1;
            self.forget_if_done(id, queue);
        }
    }

    fn forget_if_done(&mut self, id: u64, queue: &mut SendQueue) {
        let Some(RequestState::Ending(over)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        else {
            return;
        };
        if over.waits > 0 {
            return;
        }
        if let Some(refusal) = over.owed.take() {
            queue.push(&refused(id, refusal));
        }
        if !over.payload {
            self.requests.remove(&id);
        }
    }
}

impl Ending {
    /// A write that was refused at its header.
    fn refused() -> Self {
        Self {
            waits: 0,
            owed: None,
            payload: true,
        }
    }
}

fn done(id: u64, bytes: u64, turn: &Turn<'_>) -> Frame {
    Frame::Ack(Ack {
        id,
        refusal: None,
        bytes,
        checksum: 0,
        credit: turn.context.config.requests_max,
    })
}

pub(super) fn refused(id: u64, refusal: Refusal) -> Frame {
    Frame::Ack(Ack {
        id,
        refusal: Some(refusal),
        bytes: 0,
        checksum: 0,
        credit: 0,
    })
}

fn is_live(cursor: &Cursor) -> bool {
    cursor
        .buffers()
        .spans()
        .iter()
        .filter_map(|span| span.access())
        .all(|access| access.is_live())
}

fn is_of(cursor: &Cursor, region: RegionId) -> bool {
    cursor
        .buffers()
        .spans()
        .iter()
        .filter_map(|span| span.access())
        .any(|access| access.region().id() == region)
}
