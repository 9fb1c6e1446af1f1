//! The mapping of a node's arena, and the right to access a piece of it.
//!
//! The holder of a [`Grant`] copies in and out through that. Bytes that a device or a peer may write are never a `&[u8]`;
//! those of a grant to read are one for as long as the grant lives.

use std::io;
use std::sync::Arc;

use slackwater_base::Checksum;
use slackwater_memory::{FilePiece, HUGE_PAGE_BYTES, Mapping, Pages};
use slackwater_pool::Pool;
use slackwater_pool::copy::{Copied, Piece, copy_all_checksum};

use crate::config::HugePages;
use crate::selection::Selection;

/// Whether a grant may be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Others may read the same bytes meanwhile.
    Read,
    /// Nobody else touches the bytes meanwhile.
    Write,
}

/// The right to access one piece of a mapping, for as long as it lives.
#[derive(Debug)]
pub struct Grant {
    /// Keeps the mapping.
    mapping: Arc<Mapping>,
    start: *mut u8,
    bytes: usize,
    access: Access,
}

// SAFETY: a grant is a checked range of a `Mapping`, which is `Send`, and a promise that holds on every thread.
unsafe impl Send for Grant {}
// SAFETY: shared access only reads the piece: `copy_in` needs the grant alone.
unsafe impl Sync for Grant {}

/// Maps `bytes` bytes, rounded up to whole huge pages, on the kind of pages asked for as far as they are to be had; says
/// which kind that is, and why.
///
/// # Errors
/// When the operating system gives no address space.
pub fn map(bytes: usize, kind: HugePages) -> io::Result<(Mapping, Selection)> {
    let asked = match kind {
        HugePages::Off => Pages::Ordinary,
        HugePages::Transparent => Pages::TransparentHuge,
        HugePages::Reserved => Pages::ReservedHuge,
    };
    let (mapping, obtained) = Mapping::private(bytes.next_multiple_of(HUGE_PAGE_BYTES), asked)?;
    let chosen = match obtained.pages {
        Pages::Ordinary => "ordinary pages",
        Pages::TransparentHuge => "transparent huge pages",
        Pages::ReservedHuge => "reserved huge pages",
    };
    let reason = obtained.instead_because.as_deref().unwrap_or("asked for");
    Ok((mapping, Selection::new(chosen, reason)))
}

/// Maps `bytes` bytes, rounded up to whole huge pages, in a sealed file that other processes of this host can map too.
///
/// # Errors
/// When the operating system gives no memory or descriptor.
pub fn map_shared(bytes: usize) -> io::Result<(Mapping, Selection)> {
    let mapping = Mapping::shared(bytes.next_multiple_of(HUGE_PAGE_BYTES))?;
    let reason = "shared with other processes";
    Ok((mapping, Selection::new("ordinary pages", reason)))
}

/// Maps a piece of a file that others have too.
///
/// # Errors
/// When the operating system gives no address space.
pub fn map_piece(piece: &FilePiece) -> io::Result<(Mapping, Selection)> {
    let mapping = Mapping::piece(piece)?;
    let reason = format!("those of {}", piece.path().display());
    Ok((mapping, Selection::new("pages of a file", reason)))
}

impl Grant {
    /// The right to access `bytes` bytes from `offset`; `None` when they are not all inside.
    ///
    /// # Safety
    /// As long as the grant lives:
    /// - under [`Access::Write`], nobody else reads or writes these bytes;
    /// - under [`Access::Read`], nobody writes them.
    pub unsafe fn new(
        mapping: &Arc<Mapping>,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        if end > mapping.bytes() as u64 {
            return None;
        }
        Some(Self {
            mapping: Arc::clone(mapping),
            start: mapping.start().as_ptr().wrapping_add(offset as usize),
            bytes: bytes as usize,
            access,
        })
    }

    /// Length of the piece in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `bytes` to the front of the piece; the checksum is that of the bytes as they were stored.
    ///
    /// # Panics
    /// When the grant is for reading, or shorter than `bytes`.
    #[must_use]
    pub fn copy_in(&mut self, bytes: &[u8]) -> Checksum {
        assert!(
            self.access == Access::Write && bytes.len() <= self.bytes,
            "{:?} of {}",
            self.access,
            self.bytes
        );
        // SAFETY: source and target are valid for `bytes.len()`, checked above for the target; a slice of the caller
        // and a piece that nobody else touches do not overlap.
        unsafe {
            slackwater_pool::copy::copy_checksum_among(
                self.start,
                bytes.as_ptr(),
                bytes.len(),
                self.mapping.bytes(),
            )
        }
    }

    /// Copies the front of the piece to `buffer`; the checksum is that of the bytes as they arrived.
    ///
    /// # Panics
    /// When the piece is shorter than `buffer`.
    #[must_use]
    pub fn copy_out(&self, buffer: &mut [u8]) -> Checksum {
        assert!(
            buffer.len() <= self.bytes,
            "{} of {}",
            buffer.len(),
            self.bytes
        );
        // SAFETY: both are valid for `buffer.len()`, checked above for the piece; nobody else holds `buffer`, and it
        // is apart from the piece, of which shared slices exist at most.
        unsafe {
            slackwater_pool::copy::copy_checksum(buffer.as_mut_ptr(), self.start, buffer.len())
        }
    }

    /// Copies `buffer.len()` bytes to `buffer`, from byte `offset` of the piece on.
    ///
    /// # Panics
    /// When the piece ends before.
    pub fn copy_out_from(&self, offset: usize, buffer: &mut [u8]) {
        let end = offset.checked_add(buffer.len());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{offset} + {} of {}",
            buffer.len(),
            self.bytes
        );
        // SAFETY: both are valid for `buffer.len()`, checked above for the piece; they are apart, as in `copy_out`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(offset), buffer.as_mut_ptr(), buffer.len())
        };
    }

    /// The first `bytes` bytes of the piece.
    ///
    /// # Panics
    /// When the grant is for writing, or the piece is shorter.
    #[must_use]
    pub fn as_slice(&self, bytes: usize) -> &[u8] {
        assert!(
            self.access == Access::Read && bytes <= self.bytes,
            "{bytes} of {}, to {:?}",
            self.bytes,
            self.access
        );
        // SAFETY: the piece is valid for `bytes`, and by the promise of `Grant::new` nobody writes it while the grant
        // lives.
        unsafe { std::slice::from_raw_parts(self.start, bytes) }
    }

    /// The checksum of the first `bytes` bytes of the piece.
    ///
    /// # Panics
    /// When the piece is shorter.
    #[must_use]
    pub fn checksum(&self, bytes: usize) -> Checksum {
        assert!(bytes <= self.bytes, "{bytes} of {}", self.bytes);
        // SAFETY: the piece is valid for `bytes`, and by the promise of `Grant::new` nobody writes it meanwhile.
        slackwater_pool::copy::checksum(unsafe { std::slice::from_raw_parts(self.start, bytes) })
    }

    /// First address, for a device that reads or writes by address while the grant lives.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start
    }
}

/// [`Grant::copy_in`] of many values by the threads of `pool`; the outcome of each, in order.
///
/// # Panics
/// As for [`Grant::copy_in`].
#[must_use]
pub fn copy_in_all(pool: &Pool, values: &mut [(&mut Grant, &[u8])]) -> Vec<Copied> {
    let piece = |(grant, bytes): &mut (&mut Grant, &[u8])| {
        assert!(
            grant.access == Access::Write && bytes.len() <= grant.bytes,
            "{:?} of {}",
            grant.access,
            grant.bytes
        );
        Piece {
            dst: grant.start,
            src: bytes.as_ptr(),
            len: bytes.len(),
        }
    };
    let pieces: Vec<Piece> = values.iter_mut().map(piece).collect();
    // SAFETY: sources and targets are valid for their lengths, checked above for the targets, and borrowed through the
    // call; a piece that nobody else touches overlaps neither a slice of the caller nor another such piece.
    unsafe { copy_all_checksum(pool, &pieces) }
}

/// [`Grant::copy_out`] of many pieces by the threads of `pool`; the outcome of each, in order.
///
/// # Panics
/// As for [`Grant::copy_out`].
#[must_use]
pub fn copy_out_all(pool: &Pool, pieces: &mut [(&Grant, &mut [u8])]) -> Vec<Copied> {
    let piece = |(grant, buffer): &mut (&Grant, &mut [u8])| {
        assert!(
            buffer.len() <= grant.bytes,
            "{} of {}",
            buffer.len(),
            grant.bytes
        );
        Piece {
            dst: buffer.as_mut_ptr(),
            src: grant.start,
            len: buffer.len(),
        }
    };
    let pieces: Vec<Piece> = pieces.iter_mut().map(piece).collect();
    // SAFETY: sources and targets are valid for their lengths, checked above for the sources, and borrowed through the
    // call; the buffers are borrowed exclusively, hence apart from each other, and from the pieces, of which shared slices exist at most.
    unsafe { copy_all_checksum(pool, &pieces) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_copied_in_come_out_with_their_checksum_on_every_kind_of_page() {
        for pages in [HugePages::Off, HugePages::Transparent, HugePages::Reserved] {
            let (region, chosen) = map(3 << 20, pages).unwrap();
            assert!(!chosen.chosen.is_empty() && !chosen.reason.is_empty());
            assert_eq!(region.bytes(), 4 << 20);
            let region = Arc::new(region);
            let value: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
            // SAFETY: the only grant there is.
            let mut grant = unsafe { Grant::new(&region, 4096, 1 << 20, Access::Write) }.unwrap();
            assert_eq!(grant.copy_in(&value), Checksum::of(&value));
            let mut back = vec![0; value.len()];
            assert_eq!(grant.copy_out(&mut back), Checksum::of(&value));
            assert_eq!(grant.checksum(value.len()), Checksum::of(&value));
            assert_eq!(back, value);
        }
    }

    #[test]
    fn many_values_go_in_and_out_by_several_threads_with_their_checksums() {
        let region = Arc::new(map(4 << 20, HugePages::Off).unwrap().0);
        let pool = Pool::start(&slackwater_pool::Config::threads(2)).unwrap();
        let values: Vec<Vec<u8>> = [1, 100_000, 1 << 20]
            .map(|bytes| (0..bytes).map(|i| (i % 251) as u8).collect())
            .into();
        let grant = |at: usize| {
            // SAFETY: the pieces lie a mebibyte apart and are granted once each.
            unsafe { Grant::new(&region, (at as u64) << 20, 1 << 20, Access::Write) }.unwrap()
        };
        let mut grants: Vec<Grant> = (0..values.len()).map(grant).collect();
        let sums: Vec<Checksum> = values.iter().map(|value| Checksum::of(value)).collect();
        let check = |copied: Vec<Copied>| {
            assert_eq!(copied.iter().map(|c| c.checksum).collect::<Vec<_>>(), sums)
        };
        check(copy_in_all(
            &pool,
            &mut grants
                .iter_mut()
                .zip(values.iter().map(Vec::as_slice))
                .collect::<Vec<_>>(),
        ));
        let mut back: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
        check(copy_out_all(
            &pool,
            &mut grants
                .iter()
                .zip(back.iter_mut().map(Vec::as_mut_slice))
                .collect::<Vec<_>>(),
        ));
        assert!(back == values);
    }

    #[test]
    fn a_piece_outside_is_not_granted() {
        let region = Arc::new(map(2 << 20, HugePages::Off).unwrap().0);
        let outside = [(0, (2 << 20) + 1), (2 << 20, 1), (u64::MAX, 2)];
        for (offset, bytes) in outside {
            // SAFETY: nothing is accessed.
            let grant = unsafe { Grant::new(&region, offset, bytes, Access::Read) };
            assert!(grant.is_none(), "{offset} {bytes}");
        }
    }

    #[test]
    #[should_panic(expected = "Read of")]
    fn a_grant_to_read_is_not_written_through() {
        let region = Arc::new(map(2 << 20, HugePages::Off).unwrap().0);
        // SAFETY: the only grant there is.
        let mut grant = unsafe { Grant::new(&region, 0, 4096, Access::Read) }.unwrap();
        let _ = grant.copy_in(b"x");
    }
}
