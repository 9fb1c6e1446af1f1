//! Receiving: payload into its place, headers into scratch memory, records into the opener's.

use std::io;
use std::os::fd::BorrowedFd;

use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{CloseReason, Span, Want};
use slackwater_wire::data::DATA_BYTES;

use super::{BEHIND_LARGE_BYTES, Received, Scratch, Wire, lost};
use crate::end::End;
use crate::io::{Vectors, into_slice, receive};

impl Wire {
    pub(super) fn receive_plain(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        flags: i32,
    ) -> Result<Option<Received>, CloseReason> {
        scratch.vectors.clear();
        let (mut direct, mut payload) = (0, 0);
        if self.greeted
            && let Want::Memory(span) = end.want()
        {
            payload = span.bytes;
            let place = end.place(span);
            direct = place.map_or(0, |mut place| {
                place.vectors(span.bytes, &mut scratch.vectors)
            });
        }
        let mut asked = direct;
        if direct == payload {
            let behind = match self.large {
                true => BEHIND_LARGE_BYTES,
                false => scratch.bytes.len(),
            };
            scratch
                .vectors
                .push(into_slice(&mut scratch.bytes[..behind]));
            asked += behind;
        }
        // SAFETY: the ranges are those of the payload's place, which its buffers keep valid for writes, and one of the
        // scratch buffer, which nobody else uses during the call.
        let Some(count) = (unsafe { receive_now(socket, &mut scratch.vectors, flags) })? else {
            return Ok(None);
        };
        let placed = count.min(direct);
        if placed > 0 {
            end.arrived(placed)?;
        }
        self.parse(end, &scratch.bytes[..count - placed])?;
        Ok(Some(Received {
            bytes: count,
            more: count == asked,
        }))
    }

    /// Receives a data header and the whole payload behind it with one call, each into its own place. If other bytes
    /// arrive, those at the payload's place are taken back out: its contents are undefined until a read has ended.
    pub(super) fn receive_expected(
        &mut self,
        end: &mut impl End,
        span: Span,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        flags: i32,
    ) -> Result<Option<Received>, CloseReason> {
        scratch.vectors.clear();
        let (head, behind) = scratch.bytes.split_at_mut(DATA_BYTES);
        scratch.vectors.push(into_slice(head));
        let place = end.place(span);
        let direct = place.map_or(0, |mut place| {
            place.vectors(span.bytes, &mut scratch.vectors)
        });
        let mut asked = DATA_BYTES + direct;
        // What follows the payload comes after its last byte, not after the last range that had room in this call.
        if direct == span.bytes {
            scratch.vectors.push(into_slice(behind));
            asked += behind.len();
        }
        // SAFETY: as in `receive_plain`.
        let Some(count) = (unsafe { receive_now(socket, &mut scratch.vectors, flags) })? else {
            return Ok(None);
        };
        let of_head = count.min(DATA_BYTES);
        self.parse(end, &scratch.bytes[..of_head])?;
        let placed = (count - of_head).min(direct);
        let wanted = match end.want() {
            Want::Memory(found) if (found.id, found.offset) == (span.id, span.offset) => {
                found.bytes
            }
            _ => 0,
        };
        let payload = placed.min(wanted);
        let mut other = vec![0; placed - payload];
        if !other.is_empty() {
            let rest = Span {
                offset: span.offset + payload as u64,
                ..span
            };
            if let Some(mut place) = end.place(rest) {
                place.copy_out(&mut other);
            }
        }
        if payload > 0 {
            end.arrived(payload)?;
        }
        self.parse(end, &other)?;
        self.parse(end, &scratch.bytes[of_head..count - placed])?;
        Ok(Some(Received {
            bytes: count,
            more: count == asked,
        }))
    }

    pub(super) fn receive_records(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        flags: i32,
    ) -> Result<Option<Received>, CloseReason> {
        let Some(opener) = &mut self.opener else {
            return Ok(None);
        };
        scratch.vectors.clear();
        scratch.vectors.push(into_slice(opener.space()));
        // SAFETY: the range is the opener's own, which nobody else uses during the call.
        let Some(bytes) = (unsafe { receive_now(socket, &mut scratch.vectors, flags) })? else {
            return Ok(None);
        };
        opener.received(bytes);
        self.open(end)?;
        Ok(Some(Received { bytes, more: true }))
    }
}

/// One receive call; none when the kernel has no bytes.
///
/// # Safety
/// As for [`receive`].
unsafe fn receive_now(
    socket: BorrowedFd<'_>,
    into: &mut Vectors,
    flags: i32,
) -> Result<Option<usize>, CloseReason> {
    loop {
        // SAFETY: the caller's promise.
        return match unsafe { receive(socket, into, flags) } {
            Ok(0) => Err(CloseReason::Lost(Cause::Lost(
                "closed by the peer".to_owned(),
            ))),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(lost(&error)),
        };
    }
}
