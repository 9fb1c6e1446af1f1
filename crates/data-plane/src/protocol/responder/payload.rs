//! Payload of writes, and notices, from their headers to their last bytes.

use slackwater_base::Instant;
use slackwater_wire::data::{Data, Notify, Refusal};

use super::{Ending, Incoming, Output, RequestState, Responder};
use crate::protocol::{CloseReason, NOTICE_BYTES_MAX, Notice, Payload, SLICE_BYTES_MAX};

impl<M> Responder<M> {
    /// A data header has arrived; checks that its payload follows what came before.
    pub(super) fn data(&mut self, data: &Data, out: &mut Vec<Output>) -> Result<(), CloseReason> {
        if data.bytes as usize > SLICE_BYTES_MAX {
            return Err(CloseReason::protocol("a frame over the limit"));
        }
        let request = self
            .requests
            .get(&data.id)
            .ok_or(CloseReason::protocol("data of no request"))?;
        let at = match &request.state {
            RequestState::Write {
                received,
                complete: false,
            } => Some(*received),
            RequestState::StagedWrite(staged) if !staged.is_complete() => Some(staged.received()),
            RequestState::Ending(Ending { payload: true, .. }) => None,
            _ => return Err(CloseReason::protocol("data of a request that takes none")),
        };
        if at.is_some_and(|at| data.offset != at || u64::from(data.bytes) > request.bytes - at) {
            return Err(CloseReason::protocol(
                "data that does not follow what came before",
            ));
        }
        self.incoming = Some(Incoming::Payload(Payload {
            id: data.id,
            left: data.bytes as usize,
            last: data.last,
        }));
        self.payload_arrived(0, out)
    }

    pub(super) fn notify(
        &mut self,
        now: Instant,
        notify: &Notify,
        out: &mut Vec<Output>,
    ) -> Result<(), CloseReason> {
        let bytes = u64::from(notify.name_bytes) + u64::from(notify.bytes);
        if bytes > NOTICE_BYTES_MAX {
            return Err(CloseReason::protocol("a notice over the limit"));
        }
        self.incoming = Some(Incoming::Notice {
            id: notify.id,
            begun_at: now,
            name_bytes: notify.name_bytes as usize,
            text: Vec::new(),
            left: bytes as usize,
        });
        self.text(&[], out)
    }

    pub(super) fn text(&mut self, bytes: &[u8], out: &mut Vec<Output>) -> Result<(), CloseReason> {
        let Some(Incoming::Notice {
            id,
            name_bytes,
            text,
            left,
            ..
        }) = &mut self.incoming
        else {
            return Ok(());
        };
        text.extend_from_slice(bytes);
        *left -= bytes.len();
        if *left > 0 {
            return Ok(());
        }
        let (id, mut name) = (*id, std::mem::take(text));
        let bytes = name.split_off(*name_bytes);
        self.incoming = None;
        let Ok(name) = String::from_utf8(name) else {
            return Err(CloseReason::protocol("a notice whose name is no text"));
        };
        out.push(Output::Notice(id, Notice { name, bytes }));
        Ok(())
    }

    pub(super) fn arrived(
        &mut self,
        now: Instant,
        bytes: usize,
        out: &mut Vec<Output>,
    ) -> Result<(), CloseReason> {
        if bytes > 0 {
            self.arrived_at = now;
        }
        self.payload_arrived(bytes, out)
    }

    fn payload_arrived(&mut self, bytes: usize, out: &mut Vec<Output>) -> Result<(), CloseReason> {
        let Some(Incoming::Payload(payload)) = &mut self.incoming else {
            return Ok(());
        };
        payload.left -= bytes;
        let (id, left, last) = (payload.id, payload.left, payload.last);
        match self.requests.get_mut(&id).map(|request| &mut request.state) {
            Some(RequestState::Write { received, .. }) => *received += bytes as u64,
            Some(RequestState::StagedWrite(staged)) if bytes > 0 => {
                out.extend(staged.arrived(bytes).map(|chunk| Output::Store(id, chunk)));
            }
            _ => {}
        }
        if left > 0 {
            return Ok(());
        }
        self.incoming = None;
        match last {
            true => self.payload_done(id, out),
            false => Ok(()),
        }
    }

    /// The payload of a write is complete.
    fn payload_done(&mut self, id: u64, out: &mut Vec<Output>) -> Result<(), CloseReason> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Ok(());
        };
        let (bytes, short) = (
            request.bytes,
            CloseReason::protocol("a write shorter than announced"),
        );
        match &mut request.state {
            RequestState::Write { received, .. } if *received < bytes => return Err(short),
            RequestState::StagedWrite(staged) if staged.received() < bytes => return Err(short),
            RequestState::Write { complete, .. } => {
                *complete = true;
                out.push(Output::Commit(id));
            }
            RequestState::StagedWrite(staged) => {
                if staged.finish() {
                    out.push(Output::Commit(id));
                }
            }
            RequestState::Ending(over) => {
                over.payload = false;
                self.forget_if_done(id);
            }
            RequestState::Read | RequestState::StagedRead(_) => {}
        }
        Ok(())
    }

    /// The second check: a write that was applied while its right ended does not count.
    pub(super) fn committed(&mut self, id: u64, result: Result<(), Refusal>) {
        if let Err(refusal) = result {
            self.give_up(id, refusal);
        } else if let Some(request) = self.release(id) {
            let bytes = request.bytes;
            self.answer(id, None, bytes);
            self.requests.remove(&id);
        }
    }
}
