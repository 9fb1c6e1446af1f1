use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use slackwater_base::{BLOCK_BYTES, Checksum, Planted, planted, round_to_block};
use slackwater_memory::Mapping;
use slackwater_pool::copy::{checksum, copy_checksum};
use slackwater_tier::io::{DiskError, DiskOutcome, Part, Target};
use slackwater_wire::{ExtentRef, Incarnation, SegmentId};

use super::buffer::AlignedBuffer;
use super::handles::OpenFile;
use super::scratch::{Buffers, Scratch};
use crate::region::{Access, Grant};

/// Most pieces in one system call (`UIO_MAXIOV` of Linux).
const PIECES_MAX: usize = 1024;

/// The memory segment whose extents operations may name.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its identity.
    pub id: SegmentId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its memory.
    pub region: Arc<Mapping>,
}

impl Segment {
    /// Permission to access an extent of this segment.
    ///
    /// # Safety
    /// As for [`Grant::new`], over the bytes of the extent.
    pub(crate) unsafe fn grant(&self, extent: &ExtentRef, access: Access) -> Option<Grant> {
        if (extent.segment, extent.incarnation) != (self.id, self.incarnation) {
            return None;
        }
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { Grant::new(&self.region, extent.offset, extent.bytes, access) }
    }
}

/// A read or write under way: where it goes on after a part of it was done, and the memory it needs until its end.
#[derive(Debug)]
pub(super) struct Transfer {
    file: Arc<OpenFile>,
    way: Way,
    offset: u64,
    pieces: Vec<libc::iovec>,
    next: usize,
    scratch: Scratch,
    grants: Vec<Grant>,
    /// Bytes that are written from where they are.
    _given: Vec<Bytes>,
    /// Where a read for callers ends up, in the order of the device.
    callers: Vec<Room>,
    /// Bytes of a read that are its value.
    length: usize,
}

/// A caller's buffer, for one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) start: *mut u8,
    /// Length of the value.
    pub(super) length: usize,
    /// Its length on the device, whole blocks.
    pub(super) bytes: usize,
}

// SAFETY: the pieces point into `scratch`, into the grants, into bytes that are kept in `_given`, or into buffers that outlive the
// transfer by the promise of `Transfer::read_to`; none of them belongs to a thread.
unsafe impl Send for Transfer {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Write,
    /// A read, and where its bytes end up: `Direct` ones are there when the last piece has arrived.
    Read(Arrival),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// In `scratch`, which is given out, as far as it was asked for.
    Completion(usize),
    /// In `scratch`, for the checksum alone.
    Nowhere,
    /// In the extent.
    Extent,
    /// In `scratch`, because the extent is not aligned; copied at the end.
    ThroughScratch,
    /// In callers' buffers: what can be read straight to them is there when the last piece has arrived, the rest are in
    /// `scratch`.
    Callers,
}

/// How far a transfer is after a system call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More is to be done.
    Again,
    /// All of it is done.
    Done,
    /// It will not be done.
    Failed(DiskError),
}

impl Transfer {
    /// A write of `parts`, one after another, from `offset`.
    ///
    /// # Errors
    /// When an extent is not of this segment, or shorter than its part.
    ///
    /// # Safety
    /// Nobody writes the extents of `parts` until the transfer is dropped.
    pub(super) unsafe fn write(
        file: Arc<OpenFile>,
        offset: u64,
        parts: Vec<Part>,
        segment: &Segment,
    ) -> Result<Self, DiskError> {
        let mut grants = Vec::new();
        for part in &parts {
            if let Part::Extent { extent, length } = part {
                // SAFETY: by the caller's promise nobody writes the extent meanwhile.
                let grant = unsafe { segment.grant(extent, Access::Read) }.ok_or(FOREIGN)?;
                if *length > extent.bytes {
                    return Err(FOREIGN);
                }
                grants.push(grant);
            }
        }
        let mut scratch = Scratch::from(AlignedBuffer::zeroed(scratch_bytes(&parts)));
        let base = scratch.address();
        let (mut used, mut pieces, mut extents) = (0usize, Pieces::default(), grants.iter());
        let mut given = Vec::new();
        for part in parts {
            match part {
                Part::Bytes(bytes) if aligned(bytes.as_ptr()) => {
                    pieces.push(bytes.as_ptr().cast_mut(), bytes.len());
                    given.push(bytes);
                }
                Part::Bytes(bytes) => {
                    scratch[used..used + bytes.len()].copy_from_slice(&bytes);
                    // SAFETY: `scratch_bytes` counted these bytes, so the address stays inside.
                    pieces.push(unsafe { base.add(used) }, bytes.len());
                    used += bytes.len();
                }
                Part::Extent { length, .. } => {
                    let grant = extents
                        .next()
                        .expect("a grant was made for every extent above");
                    let length = length as usize;
                    let whole = if aligned(grant.address()) {
                        length - length % BLOCK
                    } else {
                        0
                    };
                    pieces.push(grant.address(), whole);
                    let rest = length - whole;
                    if rest > 0 {
                        let padded = rest.next_multiple_of(BLOCK);
                        grant.copy_out_from(whole, &mut scratch[used..used + rest]);
                        // SAFETY: as above; the padding after `rest` is zero since the buffer was made.
                        pieces.push(unsafe { base.add(used) }, padded);
                        used += padded;
                    }
                }
            }
        }
        let pieces = pieces.0;
        file.begin_write();
        Ok(Self {
            file,
            way: Way::Write,
            offset,
            pieces,
            next: 0,
            scratch,
            grants,
            _given: given,
            callers: Vec::new(),
            length: 0,
        })
    }

    /// A read of `bytes` bytes from `offset`, whose first `length` are the value. What does not go straight into an extent goes into
    /// memory of `buffers`, or of its own when there is none left.
    ///
    /// # Errors
    /// When the extent is not of this segment, or shorter than the value.
    ///
    /// # Safety
    /// Nobody else touches the extent of `into` until the transfer is dropped.
    pub(super) unsafe fn read(
        file: Arc<OpenFile>,
        place: Place,
        into: &Target,
        segment: &Segment,
        buffers: &Arc<Buffers>,
    ) -> Result<Self, DiskError> {
        let Place {
            offset,
            bytes,
            length,
        } = place;
        let (bytes, length) = (bytes as usize, length as usize);
        let (arrival, grants, in_extent) = match into {
            Target::Completion => (Arrival::Completion(bytes), Vec::new(), 0),
            Target::Nowhere => (Arrival::Nowhere, Vec::new(), 0),
            Target::Extent(extent) => {
                // SAFETY: by the caller's promise nobody else touches the extent meanwhile.
                let grant = unsafe { segment.grant(extent, Access::Write) }.ok_or(FOREIGN)?;
                let fits = bytes.min(grant.bytes());
                if length > grant.bytes() {
                    return Err(FOREIGN);
                }
                if aligned(grant.address()) && fits.is_multiple_of(BLOCK) {
                    (Arrival::Extent, vec![grant], fits)
                } else {
                    (Arrival::ThroughScratch, vec![grant], 0)
                }
            }
        };
        // What does not fit the extent is padding: nothing needs it.
        let in_scratch = if arrival == Arrival::Extent { 0 } else { bytes };
        let mut scratch = buffers
            .try_take(in_scratch)
            .unwrap_or_else(|| AlignedBuffer::zeroed(in_scratch).into());
        let mut pieces = Pieces::default();
        if let Some(grant) = grants.first() {
            pieces.push(grant.address(), in_extent);
        }
        pieces.push(scratch.address(), in_scratch);
        let pieces = pieces.0;
        Ok(Self {
            file,
            way: Way::Read(arrival),
            offset,
            pieces,
            next: 0,
            scratch,
            grants,
            _given: Vec::new(),
            callers: Vec::new(),
            length,
        })
    }

    /// A read of records that lie one after another from `offset`, whose values end up in the callers' buffers; what
    /// cannot go there straight goes through `scratch`.
    ///
    /// # Safety
    /// - The `start` of each room is valid for writes of `length` bytes until the transfer is dropped.
    /// - Nobody else touches those bytes until then.
    pub(super) unsafe fn read_to(
        file: Arc<OpenFile>,
        offset: u64,
        callers: Vec<Room>,
        mut scratch: Scratch,
    ) -> Self {
        let (base, room) = (scratch.address(), scratch.len());
        let (mut pieces, mut used) = (Pieces::default(), 0);
        for Room {
            start,
            length,
            bytes,
        } in callers.iter().copied()
        {
            let there = straight_bytes(start, length);
            assert!(length <= bytes, "{length} of {bytes}");
            assert!(used + bytes - there <= room, "{room} is too little");
            pieces.push(start, there);
            // SAFETY: the assertion above: the address stays inside.
            pieces.push(unsafe { base.add(used) }, bytes - there);
            used += bytes - there;
        }
        Self {
            file,
            way: Way::Read(Arrival::Callers),
            offset,
            pieces: pieces.0,
            next: 0,
            scratch,
            grants: Vec::new(),
            _given: Vec::new(),
            callers,
            length: 0,
        }
    }

    /// The pieces still to be done, as the system calls take them: file, way, pieces, their number, offset.
    pub(super) fn window(&self) -> Window {
        let left = &self.pieces[self.next..];
        Window {
            file: self.file.as_fd().as_raw_fd(),
            write: self.way == Way::Write,
            pieces: left.as_ptr(),
            count: left.len().min(PIECES_MAX) as u32,
            offset: self.offset,
        }
    }

    /// Does some of it by a blocking system call.
    pub(super) fn once(&mut self) -> Progress {
        let Window {
            file,
            write,
            pieces,
            count,
            offset,
        } = self.window();
        // SAFETY: `pieces` are `count` entries, each a range that stays valid as long as `self`, and for a read one that
        // nobody else touches: the promises of the constructors. The file is open as long as `self.file` lives.
        let result = unsafe {
            if write {
                libc::pwritev(file, pieces, count as i32, offset as i64)
            } else {
                libc::preadv(file, pieces, count as i32, offset as i64)
            }
        };
        let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        self.after(if result < 0 {
            Err(errno())
        } else {
            Ok(result as usize)
        })
    }

    /// Takes in what a system call said: a count of bytes, or an error number.
    pub(super) fn after(&mut self, result: Result<usize, i32>) -> Progress {
        match result {
            Err(libc::EINTR | libc::EAGAIN) => Progress::Again,
            Err(errno) => {
                if self.way == Way::Write && planted(Planted::FailedWriteSettles) {
                    self.file.end_write();
                }
                Progress::Failed(disk_error(errno))
            }
            Ok(0) if self.way == Way::Write => {
                Progress::Failed(DiskError::Device { errno: libc::EIO })
            }
            Ok(0) => Progress::Failed(DiskError::Missing),
            Ok(done) => self.advance(done),
        }
    }

    fn advance(&mut self, mut done: usize) -> Progress {
        self.offset += done as u64;
        while let Some(piece) = self.pieces.get_mut(self.next) {
            if done < piece.iov_len {
                // Still inside the piece, which may be of neighbours that were not allocated together.
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(done).cast();
                piece.iov_len -= done;
                if planted(Planted::ShortWriteCountsAsWhole) && self.way == Way::Write {
                    return Progress::Done;
                }
                return Progress::Again;
            }
            done -= piece.iov_len;
            self.next += 1;
        }
        if self.way == Way::Write {
            self.file.end_write();
        }
        Progress::Done
    }

    /// What the transfer gave, once it is done.
    pub(super) fn outcome(&mut self) -> DiskOutcome {
        let Way::Read(arrival) = self.way else {
            return DiskOutcome::Done;
        };
        assert_eq!(
            self.next,
            self.pieces.len(),
            "the device may still write to what is given out"
        );
        let value = &self.scratch[..self.length.min(self.scratch.len())];
        let (bytes, checksum) = match arrival {
            Arrival::Completion(bytes) => {
                let checksum = checksum(value);
                let nothing = AlignedBuffer::zeroed(0).into();
                let scratch = std::mem::replace(&mut self.scratch, nothing);
                (Bytes::from_owner(scratch).slice(..bytes), checksum)
            }
            Arrival::Nowhere => (Bytes::new(), checksum(value)),
            Arrival::Extent => (Bytes::new(), self.grants[0].checksum(self.length)),
            Arrival::ThroughScratch => (Bytes::new(), self.grants[0].copy_in(value)),
            // Each record has its own: [`Transfer::settle`].
            Arrival::Callers => return DiskOutcome::Done,
        };
        DiskOutcome::Read { bytes, checksum }
    }

    /// Brings what callers read, once it is done, to their buffers; the checksum of each value there.
    pub(super) fn settle(&self) -> Vec<Checksum> {
        let mut used = 0;
        let one = |room: &Room| {
            let there = straight_bytes(room.start, room.length);
            let rest = &self.scratch[used..used + room.bytes - there];
            used += rest.len();
            Self::settle_one(room, there, rest)
        };
        self.callers.iter().map(one).collect()
    }

    /// Brings what is in scratch of one value to the caller's buffer; the checksum of the whole value there.
    fn settle_one(room: &Room, there: usize, scratch: &[u8]) -> Checksum {
        let Room { start, length, .. } = *room;
        // SAFETY: `start` is valid for `length` bytes that nobody else touches (`read_to`), those after the `there` that
        // have arrived fit into `scratch`, which was as long as the record and is an allocation of its own.
        let tail = unsafe { copy_checksum(start.add(there), scratch.as_ptr(), length - there) };
        if there == 0 {
            return tail;
        }
        // SAFETY: all `length` bytes are initialised now: the device wrote the first, the copy above the others.
        checksum(unsafe { std::slice::from_raw_parts(start, length) })
    }
}

/// How many bytes of a value can be read straight to `start`: whole blocks, and only where it is aligned.
pub(super) fn straight_bytes(start: *const u8, length: usize) -> usize {
    if aligned(start) {
        length - length % BLOCK
    } else {
        0
    }
}

/// What a read reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) length: u64,
}

/// See [`Transfer::window`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) file: i32,
    pub(super) write: bool,
    pub(super) pieces: *const libc::iovec,
    pub(super) count: u32,
    pub(super) offset: u64,
}

/// Pieces in order; one that continues the one before is joined to it.
#[derive(Default)]
struct Pieces(Vec<libc::iovec>);

impl Pieces {
    fn push(&mut self, start: *mut u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start => {
                last.iov_len += bytes
            }
            _ => self.0.push(libc::iovec {
                iov_base: start.cast(),
                iov_len: bytes,
            }),
        }
    }
}

/// The meaning of an error number to the tiers.
pub(super) fn disk_error(errno: i32) -> DiskError {
    match errno {
        libc::ENOSPC | libc::EDQUOT => DiskError::Full,
        libc::EROFS => DiskError::ReadOnly,
        libc::ENOENT => DiskError::Missing,
        libc::EMFILE
        | libc::ENFILE
        | libc::ENOMEM
        | libc::ENOBUFS
        | libc::EAGAIN
        | libc::EINTR
        | libc::EBUSY => DiskError::Resources { errno },
        errno => DiskError::Device { errno },
    }
}

pub(super) fn errno_error(errno: Errno) -> DiskError {
    disk_error(errno.raw_os_error())
}

const BLOCK: usize = BLOCK_BYTES as usize;

/// An extent that no operation on this node can mean: the agent's books are broken, and nothing is touched.
const FOREIGN: DiskError = DiskError::Device {
    errno: libc::EFAULT,
};

fn aligned(address: *const u8) -> bool {
    address.addr().is_multiple_of(BLOCK)
}

/// Room for all bytes of a write that do not go straight from where they are: at most what rounding adds to each part.
fn scratch_bytes(parts: &[Part]) -> usize {
    let one = |part: &Part| match part {
        Part::Bytes(bytes) if aligned(bytes.as_ptr()) => 0,
        Part::Bytes(bytes) => bytes.len(),
        Part::Extent { extent, length } if extent.offset.is_multiple_of(BLOCK_BYTES) => {
            if length.is_multiple_of(BLOCK_BYTES) {
                0
            } else {
                BLOCK
            }
        }
        Part::Extent { length, .. } => round_to_block(*length) as usize,
    };
    parts.iter().map(one).sum()
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
