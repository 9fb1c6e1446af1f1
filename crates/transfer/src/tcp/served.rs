//! Requests of one peer on one connection, from their header to the last thing that happens for them.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use slackwater_net::ConnId;
use slackwater_wire::data::{Ack, Data, Frame, Op, Refusal, Request};

use super::conn::{Broken, Payload};
use super::cursor::Cursor;
use super::outlet::{Outlet, Source, Withdrawn};
use super::staged::{DeviceRange, Next, StagedRead, StagedWrite};
use super::turn::Turn;
use crate::job::Buffers;
use crate::memory::{StageError, Staged};
use crate::region::{Access, RegionId};

/// The requests that a peer has on one connection.
#[derive(Debug, Default)]
pub(crate) struct Served {
    requests: BTreeMap<u64, Asked>,
    /// Those whose memory is held, and how many bytes they are.
    held: usize,
    held_bytes: u64,
    /// Payload waits for a device to have room.
    stalled: bool,
}

#[derive(Debug)]
struct Asked {
    bytes: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A write whose payload is on its way, as far as the cursor says.
    Write(Cursor),
    /// A write on its way to a device.
    StagedWrite(StagedWrite),
    /// A read; its memory is with the outlet.
    Read,
    /// A read of device memory.
    StagedRead(StagedRead),
    /// Its memory is let go of.
    Over(Over),
}

/// What is still to come for a request that is over. Its number is taken until then.
#[derive(Debug)]
struct Over {
    /// Copies from or to a device that are under way, and the rest of a frame that was begun.
    waits: u32,
    /// What the peer is told when they are done.
    owed: Option<Refusal>,
    /// Payload may still come, and is thrown away.
    payload: bool,
}

impl Served {
    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes a request in that was admitted, or not.
    pub(crate) fn begin(
        &mut self,
        request: &Request,
        admitted: Result<Access, Refusal>,
        conn: ConnId,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<(), Broken> {
        let config = &turn.shared.config;
        let over_bytes = self.held_bytes.saturating_add(request.bytes) > config.in_flight_bytes_max;
        let requests_max = config.requests_max as usize;
        let over =
            over_bytes || self.held >= requests_max || self.requests.len() >= 2 * requests_max;
        let Entry::Vacant(place) = self.requests.entry(request.id) else {
            // Copies of the first one may be under way; their ends would count for the second.
            return Err(Broken::protocol("a request under a number that is taken"));
        };
        if over {
            outlet.push(&refused(request.id, Refusal::Limit));
            return Err(Broken::Limit("more at once than was allowed"));
        }
        let device = admitted.and_then(|access| match DeviceRange::of(access) {
            Ok(device) => Ok(Err(device)),
            Err(access) if access.region().memory().location().is_host() => Ok(Ok(access)),
            // A device that nobody stages.
            Err(_) => Err(Refusal::Memory),
        });
        let id = request.id;
        let state = match (device, request.op) {
            (Err(refusal), op) => {
                if op == Op::Write && request.bytes > 0 {
                    place.insert(Asked {
                        bytes: 0,
                        state: State::Over(Over::refused()),
                    });
                }
                outlet.push(&refused(id, refusal));
                return Ok(());
            }
            (Ok(_), _) if request.bytes == 0 => {
                outlet.push(&done(id, 0, turn));
                return Ok(());
            }
            (Ok(Ok(access)), Op::Write) => State::Write(Cursor::new(Buffers::held([access]))),
            (Ok(Err(device)), Op::Write) => State::StagedWrite(StagedWrite::new(device)),
            (Ok(Err(device)), Op::Read) => {
                let mut read = StagedRead::new(device, request.urgent);
                read.fetch(id, conn, turn);
                State::StagedRead(read)
            }
            (Ok(Ok(access)), Op::Read) => {
                let cursor = Cursor::new(Buffers::held([access]));
                outlet.push_source(Source {
                    id,
                    cursor,
                    base: 0,
                    more: false,
                    request: None,
                    ack_credit: Some(config.requests_max),
                    urgent: request.urgent,
                });
                State::Read
            }
        };
        self.held += 1;
        self.held_bytes += request.bytes;
        place.insert(Asked {
            bytes: request.bytes,
            state,
        });
        Ok(())
    }

    /// Payload is announced.
    pub(crate) fn data(&mut self, data: &Data) -> Result<Payload, Broken> {
        let request = self
            .requests
            .get(&data.id)
            .ok_or(Broken::protocol("data of no request"))?;
        let at = match &request.state {
            State::Write(cursor) => Some(request.bytes - cursor.left()),
            State::StagedWrite(staged) => Some(staged.received()),
            State::Over(Over { payload: true, .. }) => None,
            State::Over(_) | State::Read | State::StagedRead(_) => {
                return Err(Broken::protocol("data of a request that takes none"));
            }
        };
        if at.is_some_and(|at| data.offset != at || u64::from(data.bytes) > request.bytes - at) {
            return Err(Broken::protocol(
                "data that does not follow what came before",
            ));
        }
        Ok(Payload {
            id: Some(data.id),
            left: data.bytes as usize,
            last: data.last,
        })
    }

    /// Where the payload of a request goes; none when it is thrown away.
    pub(crate) fn cursor(&mut self, id: u64, outlet: &mut Outlet) -> Option<&mut Cursor> {
        self.look_again(id, outlet);
        match &mut self.requests.get_mut(&id)?.state {
            State::Write(cursor) => Some(cursor),
            State::StagedWrite(staged) => staged.cursor(),
            State::Read | State::StagedRead(_) | State::Over(_) => None,
        }
    }

    /// How much payload of a request there is a place for at the moment; none while a device has no room. The connection
    /// is resumed then.
    pub(crate) fn room(
        &mut self,
        id: u64,
        conn: ConnId,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Option<usize> {
        self.look_again(id, outlet);
        match self.requests.get_mut(&id).map(|request| &mut request.state) {
            Some(State::StagedWrite(_)) if self.stalled => None,
            Some(State::StagedWrite(staged)) => {
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

    /// Payload of a write has come.
    pub(crate) fn arrived(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) {
        if let Some(State::StagedWrite(staged)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            staged.hand_over(id, conn, turn);
        }
    }

    /// The payload of a write is complete.
    pub(crate) fn payload_done(
        &mut self,
        id: u64,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<(), Broken> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Ok(());
        };
        let (bytes, short) = (
            request.bytes,
            Broken::protocol("a write shorter than announced"),
        );
        match &mut request.state {
            State::Write(cursor) if cursor.left() > 0 => return Err(short),
            State::StagedWrite(staged) if staged.received() < bytes => return Err(short),
            State::Write(_) => self.acknowledge(id, outlet, turn),
            State::StagedWrite(staged) => {
                if staged.finish() {
                    self.acknowledge(id, outlet, turn);
                }
            }
            State::Over(over) => {
                over.payload = false;
                self.forget_if_done(id, outlet);
            }
            State::Read | State::StagedRead(_) => {}
        }
        Ok(())
    }

    /// A chunk of a write is in the device, or will never be.
    pub(crate) fn stored(
        &mut self,
        id: u64,
        result: Result<(), StageError>,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match (&mut request.state, result) {
            (State::StagedWrite(staged), Ok(())) => {
                if staged.stored() {
                    self.acknowledge(id, outlet, turn);
                }
            }
            (State::StagedWrite(staged), Err(error)) => {
                tracing::debug!(%error, "a write to a device failed");
                staged.stored();
                self.give_up(id, Refusal::Memory, outlet);
            }
            (State::Over(_), _) => self.waited(id, outlet),
            (State::Write(_) | State::Read | State::StagedRead(_), _) => {}
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
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match (&mut request.state, result) {
            (State::StagedRead(read), Ok(staged)) => {
                let next = read.fetched(id, staged, conn, turn);
                self.go_on(id, next, outlet, turn);
            }
            (State::StagedRead(read), Err(error)) => {
                tracing::debug!(%error, "a read of a device failed");
                read.failed();
                self.give_up(id, Refusal::Memory, outlet);
            }
            // Its chunk goes back.
            (State::Over(_), _) => self.waited(id, outlet),
            (State::Write(_) | State::Read | State::StagedWrite(_), _) => {}
        }
    }

    /// A source has left this process.
    pub(crate) fn sent(&mut self, id: u64, conn: ConnId, outlet: &mut Outlet, turn: &Turn<'_>) {
        let Entry::Occupied(mut request) = self.requests.entry(id) else {
            return;
        };
        match &mut request.get_mut().state {
            State::Read => {
                (self.held, self.held_bytes) =
                    (self.held - 1, self.held_bytes - request.get().bytes);
                request.remove();
            }
            State::StagedRead(read) => {
                let next = read.sent(id, conn, turn);
                self.go_on(id, next, outlet, turn);
            }
            State::Over(_) => self.waited(id, outlet),
            State::Write(_) | State::StagedWrite(_) => {}
        }
    }

    /// The peer gives a request up: no more payload of it comes.
    pub(crate) fn cancel(&mut self, id: u64, outlet: &mut Outlet) {
        self.give_up(id, Refusal::Cancelled, outlet);
        if let Some(State::Over(over)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            over.payload = false;
            self.forget_if_done(id, outlet);
        }
    }

    /// Lets go of every access to a region that closes.
    pub(crate) fn let_go(&mut self, region: RegionId, outlet: &mut Outlet) {
        let is_at = |request: &Asked| match &request.state {
            State::Write(cursor) => is_of(cursor, region),
            State::StagedWrite(staged) => staged.range().is_of(region),
            State::StagedRead(staged) => staged.range().is_of(region),
            State::Read | State::Over(_) => false,
        };
        let mut at: BTreeSet<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| is_at(request))
            .map(|(id, _)| *id)
            .collect();
        at.extend(
            outlet
                .sources()
                .filter(|(_, cursor)| is_of(cursor, region))
                .map(|(id, _)| id),
        );
        at.into_iter()
            .for_each(|id| self.give_up(id, Refusal::Generation, outlet));
    }

    /// The check before any more payload: lets go of memory whose region closes.
    fn look_again(&mut self, id: u64, outlet: &mut Outlet) {
        let live = match self.requests.get(&id).map(|request| &request.state) {
            Some(State::Write(cursor)) => is_live(cursor),
            Some(State::StagedWrite(staged)) => staged.range().is_live(),
            _ => true,
        };
        if !live {
            self.give_up(id, Refusal::Generation, outlet);
        }
    }

    /// Lets go of a request's memory and refuses it. A write to a device is refused when the last copy of it has ended: the
    /// peer may write something else there as soon as it knows.
    fn give_up(&mut self, id: u64, refusal: Refusal, outlet: &mut Outlet) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let over = match &request.state {
            State::Over(_) => return,
            State::Write(_) => Over {
                waits: 0,
                owed: Some(refusal),
                payload: true,
            },
            State::StagedWrite(staged) => Over {
                waits: staged.storing(),
                owed: Some(refusal),
                payload: !staged.is_complete(),
            },
            State::Read => match outlet.withdraw(id, Some(refusal)) {
                // All of it is on its way: it is as good as done.
                Withdrawn::Nothing => return,
                Withdrawn::Unbegun => Over {
                    waits: 0,
                    owed: Some(refusal),
                    payload: false,
                },
                Withdrawn::Begun => Over {
                    waits: 1,
                    owed: None,
                    payload: false,
                },
            },
            State::StagedRead(read) => {
                let fetching = u32::from(read.is_fetching());
                match outlet.withdraw(id, Some(refusal)) {
                    Withdrawn::Begun => Over {
                        waits: fetching + 1,
                        owed: None,
                        payload: false,
                    },
                    Withdrawn::Nothing | Withdrawn::Unbegun => {
                        outlet.push(&refused(id, refusal));
                        Over {
                            waits: fetching,
                            owed: None,
                            payload: false,
                        }
                    }
                }
            }
        };
        (self.held, self.held_bytes) = (self.held - 1, self.held_bytes - request.bytes);
        request.state = State::Over(over);
        self.forget_if_done(id, outlet);
    }

    /// All of a write is where it belongs.
    fn acknowledge(&mut self, id: u64, outlet: &mut Outlet, turn: &Turn<'_>) {
        // The second check: what was applied while its region closed does not count.
        self.look_again(id, outlet);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match &mut request.state {
            State::Over(over) => {
                over.payload = false;
                self.forget_if_done(id, outlet);
            }
            _ => {
                outlet.push(&done(id, request.bytes, turn));
                (self.held, self.held_bytes) = (self.held - 1, self.held_bytes - request.bytes);
                self.requests.remove(&id);
            }
        }
    }

    fn go_on(&mut self, id: u64, next: Next, outlet: &mut Outlet, turn: &Turn<'_>) {
        let Next::Send { cursor, base, more } = next else {
            return;
        };
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let State::StagedRead(read) = &request.state else {
            return;
        };
        let (urgent, ack_credit) = (read.urgent, Some(turn.shared.config.requests_max));
        if !more {
            request.state = State::Read;
        }
        outlet.push_source(Source {
            id,
            cursor,
            base,
            more,
            request: None,
            ack_credit,
            urgent,
        });
    }

    /// Something that a request that is over waited for has come.
    fn waited(&mut self, id: u64, outlet: &mut Outlet) {
        if let Some(State::Over(over)) =
            self.requests.get_mut(&id).map(|request| &mut request.state)
        {
            over.waits -= 1;
            self.forget_if_done(id, outlet);
        }
    }

    fn forget_if_done(&mut self, id: u64, outlet: &mut Outlet) {
        let Some(State::Over(over)) = self.requests.get_mut(&id).map(|request| &mut request.state)
        else {
            return;
        };
        if over.waits > 0 {
            return;
        }
        if let Some(refusal) = over.owed.take() {
            outlet.push(&refused(id, refusal));
        }
        if !over.payload {
            self.requests.remove(&id);
        }
    }
}

impl Over {
    /// Of a write that was refused at once.
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
        credit: turn.shared.config.requests_max,
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
