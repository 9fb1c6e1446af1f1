//! One request whose caller waits for it, carried on the caller's thread where a mover can.

use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_data_plane::Cause;
use slackwater_wait::{Waiting, now};
use slackwater_wire::data::Op;

use super::{BATCHES, Engine};
use crate::job::Buffers;
use crate::mover::{Carried, SingleRequest, WhenFull};
use crate::request::{Request, Target};

/// How long a copy by the calling thread may take, however long it is and slow the machine.
const AT_HAND_TIME: Duration = Duration::from_secs(1);

impl Engine {
    /// Reads into memory that need not be registered, while the caller waits.
    ///
    /// # Errors
    /// The cause of the failure; the contents of the memory are undefined then.
    pub fn read_now(
        &self,
        target: &Target,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(), Cause> {
        // SAFETY: the slice is borrowed alone until this returns, and `now` returns only when nothing touches it.
        let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
        self.now(Op::Read, buffers, target, timeout, false)
            .map(drop)
    }

    /// [`Engine::read_now`], with the checksum of what was read: taken in passing, where this process copies the bytes.
    ///
    /// # Errors
    /// As [`Engine::read_now`].
    pub fn read_checked(
        &self,
        target: &Target,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<Checksum, Cause> {
        // SAFETY: as in `read_now`.
        let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
        let taken = self.now(Op::Read, buffers, target, timeout, true)?;
        Ok(taken.unwrap_or_else(|| slackwater_pool::copy::checksum(into)))
    }

    /// [`Engine::read_checked`] where this thread copies the bytes itself and waits for nobody. `None` where that is not so,
    /// or the copy failed: nothing is known of the memory then, and the other call says why.
    #[must_use]
    pub fn read_at_hand(&self, target: &Target, into: &mut [u8]) -> Option<Checksum> {
        let (mover, segment) = self.0.first_mover(target.peer).ok()?;
        if !mover.abilities().one_sided || into.is_empty() {
            return None;
        }
        let single = SingleRequest {
            op: Op::Read,
            // SAFETY: as in `read_now`: `carry_now` returns only when nothing touches the slice.
            buffers: unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) },
            remote: target.remote(),
            deadline: now() + AT_HAND_TIME,
            checksum: true,
            may_wait: false,
        };
        match mover.carry_now(&segment, single) {
            Carried::Done(outcome) => outcome
                .ok()
                .map(|taken| taken.unwrap_or_else(|| slackwater_pool::copy::checksum(into))),
            Carried::Back(_) => None,
        }
    }

    /// Writes from memory that need not be registered, while the caller waits.
    ///
    /// # Errors
    /// The cause of the failure; the contents of the target are undefined then.
    pub fn write_now(&self, target: &Target, from: &[u8], timeout: Duration) -> Result<(), Cause> {
        // SAFETY: a write only reads from its buffers; the slice is borrowed until this returns, and `now` returns only
        // when nothing touches it.
        let buffers = unsafe { Buffers::borrowed(from.as_ptr().cast_mut(), from.len()) };
        self.now(Op::Write, buffers, target, timeout, false)
            .map(drop)
    }

    /// [`Engine::write_now`], with the checksum of what was written: taken in passing, where this process copies the bytes.
    ///
    /// # Errors
    /// As [`Engine::write_now`].
    pub fn write_checked(
        &self,
        target: &Target,
        from: &[u8],
        timeout: Duration,
    ) -> Result<Checksum, Cause> {
        // SAFETY: as in `write_now`.
        let buffers = unsafe { Buffers::borrowed(from.as_ptr().cast_mut(), from.len()) };
        let taken = self.now(Op::Write, buffers, target, timeout, true)?;
        Ok(taken.unwrap_or_else(|| slackwater_pool::copy::checksum(from)))
    }

    /// Carries one request on the calling thread; none when a batch is faster, or reports better what is invalid.
    pub(super) fn alone(&self, request: &Request, deadline: Instant) -> Option<Result<(), Cause>> {
        let regions = self.home().regions();
        let (mover, segment) = self.0.first_mover(request.target.peer).ok()?;
        let accesses = request
            .local
            .iter()
            .map(|range| regions.access(range.region, range.offset, range.bytes));
        let buffers = accesses
            .collect::<Result<Vec<_>, _>>()
            .map(Buffers::held)
            .ok()?;
        if buffers.bytes() == 0 {
            return None;
        }
        let deadline = request
            .timeout
            .map_or(deadline, |timeout| deadline.min(now() + timeout));
        let single = SingleRequest {
            op: request.op,
            buffers,
            remote: request.target.remote(),
            deadline,
            checksum: false,
            may_wait: true,
        };
        match mover.carry_now(&segment, single) {
            Carried::Done(outcome) => Some(outcome.map(drop)),
            Carried::Back(_) => None,
        }
    }

    fn now(
        &self,
        op: Op,
        buffers: Buffers,
        target: &Target,
        timeout: Duration,
        checksum: bool,
    ) -> Result<Option<Checksum>, Cause> {
        if buffers.bytes() == 0 {
            return Ok(None);
        }
        let deadline = now() + timeout;
        let (mover, segment) = self.0.first_mover(target.peer)?;
        let single = match mover.carry_now(
            &segment,
            SingleRequest {
                op,
                buffers,
                remote: target.remote(),
                deadline,
                checksum,
                may_wait: true,
            },
        ) {
            Carried::Done(outcome) => return outcome,
            Carried::Back(single) => single,
        };
        let (batch, mut parts) = self.new_batch(1, None);
        if let Some(part) = parts.pop() {
            let job = single.into_job(part);
            self.0.dispatch(&segment, vec![job], WhenFull::Wait);
        }
        // The memory is the caller's: the request has ended when this returns, whatever its outcome.
        let _ = batch.wait(&Waiting::at(&BATCHES).until(deadline + timeout));
        match batch.outcome(0) {
            Some(outcome) => outcome.cause.map_or(Ok(None), Err),
            None => Err(Cause::Dropped),
        }
    }
}
