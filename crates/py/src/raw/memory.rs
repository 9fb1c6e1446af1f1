//! Memory that a caller names by address.
//!
//! An address is a promise of the caller: those bytes are there, and nobody else uses them, until the call has returned.
//! Nothing here keeps an address for longer than that.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use slackwater_base::Checksum;

/// A whole number that is not negative: an address, a length or an offset. Anything else is a `TypeError`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract::<usize>().map(Number).map_err(|_| {
            let found = object.repr().map(|text| text.to_string());
            let found = found.unwrap_or_else(|_| "something else".to_owned());
            PyTypeError::new_err(format!(
                "expected an address, a length or an offset, a whole number that is not negative, found {found}"
            ))
        })
    }
}

/// checksum(address, size)
///
/// The checksum of memory. `ValueError` for what can be no memory.
#[pyfunction]
pub(crate) fn checksum(py: Python<'_>, address: Number, size: Number) -> PyResult<u64> {
    let range = Range::new(address, size);
    let range =
        range.ok_or_else(|| PyValueError::new_err("no memory has this address and length"))?;
    // SAFETY: the caller's promise: the memory is there until the call returns.
    Ok(py.detach(|| Checksum::of(unsafe { range.as_slice() }).0))
}

/// Bytes that a caller has named by address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    start: usize,
    bytes: usize,
}

impl Range {
    /// `None` for what can be no memory: null, or beyond the end of addresses.
    pub(crate) fn new(start: Number, bytes: Number) -> Option<Self> {
        let (start, bytes) = (start.0, bytes.0);
        let is_memory = bytes == 0
            || start != 0 && isize::try_from(bytes).is_ok() && start.checked_add(bytes).is_some();
        is_memory.then_some(Self { start, bytes })
    }

    /// The address of the first byte.
    pub(crate) fn start(self) -> usize {
        self.start
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// The address after the last byte.
    pub(crate) fn end(self) -> usize {
        self.start + self.bytes
    }

    /// Whether `next` begins where this ends.
    pub(crate) fn meets(self, next: Self) -> bool {
        self.end() == next.start
    }

    /// This and `bytes` more after it.
    pub(crate) fn with(self, bytes: usize) -> Self {
        Self {
            start: self.start,
            bytes: self.bytes + bytes,
        }
    }

    /// The pieces that it has between the ends of other ranges, which are in order and do not overlap.
    pub(crate) fn cut(self, others: &[Self]) -> Vec<Self> {
        let before = others.partition_point(|other| other.end() <= self.start);
        let within = others[before..].iter();
        let within = within.take_while(|other| other.start < self.end());
        let edges = within.flat_map(|other| [other.start, other.end()]);
        let mut pieces = Vec::new();
        let mut start = self.start;
        for end in edges.chain([self.end()]) {
            if start < end && end <= self.end() {
                pieces.push(Self {
                    start,
                    bytes: end - start,
                });
                start = end;
            }
        }
        pieces
    }

    /// The bytes, to be read.
    ///
    /// # Safety
    /// The bytes are there and are not written while the slice lives.
    pub(crate) unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance(self.start);
        // SAFETY: not null and within the address space, as `new` saw to; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// The bytes are there, and nothing else reads or writes them while the slice lives.
    pub(crate) unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: not null and within the address space, as `new` saw to; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }
}

/// Whether two of the ranges share a byte.
pub(crate) fn overlap(ranges: &[Range]) -> bool {
    let in_order = |pair: &[Range]| pair[0].end() <= pair[1].start;
    // Pages of one allocation mostly come in order.
    if ranges.windows(2).all(in_order) {
        return false;
    }
    let mut sorted: Vec<Range> = ranges
        .iter()
        .copied()
        .filter(|range| range.bytes > 0)
        .collect();
    sorted.sort_unstable_by_key(|range| range.start);
    !sorted.windows(2).all(in_order)
}

/// The registered ranges of a client, and the calls that use callers' memory.
#[derive(Default)]
pub(crate) struct Registered {
    state: Mutex<RegisteredState>,
    ended: Condvar,
}

#[derive(Default)]
struct RegisteredState {
    /// Length by first address.
    ranges: BTreeMap<usize, usize>,
    next: u64,
    /// Calls under way, by number: a later one has a larger number.
    calls: BTreeMap<u64, ()>,
}

/// A call that uses callers' memory, until it is dropped.
pub(crate) struct InUse<'a> {
    of: &'a Registered,
    number: u64,
}

impl Registered {
    /// False when it is no memory, or overlaps what is registered.
    pub(crate) fn add(&self, range: Option<Range>) -> bool {
        let Some(range) = range.filter(|range| range.bytes > 0) else {
            return false;
        };
        let mut state = self.state();
        let before = state.ranges.range(..range.end()).next_back();
        if before.is_some_and(|(start, bytes)| start + bytes > range.start) {
            return false;
        }
        state.ranges.insert(range.start, range.bytes);
        true
    }

    /// Forgets the range that begins there, and waits for the calls that began before; false when there is none.
    pub(crate) fn remove(&self, start: Number) -> bool {
        let mut state = self.state();
        if state.ranges.remove(&start.0).is_none() {
            return false;
        }
        let until = state.next;
        while state
            .calls
            .first_key_value()
            .is_some_and(|(number, ())| *number < until)
        {
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// The end of the registered range that an address is in.
    pub(crate) fn end_of(&self, start: Number) -> Option<usize> {
        let state = self.state();
        let (first, bytes) = state.ranges.range(..=start.0).next_back()?;
        let end = first + bytes;
        (start.0 < end).then_some(end)
    }

    pub(crate) fn enter(&self) -> InUse<'_> {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.calls.insert(number, ());
        InUse { of: self, number }
    }

    fn state(&self) -> MutexGuard<'_, RegisteredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.of.state().calls.remove(&self.number);
        self.of.ended.notify_all();
    }
}

/// So many zeros; `None` when there is not that much memory. The system gives the pages when they are written, so that a
/// length that is only claimed costs none.
pub(crate) fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(bytes).ok()?;
    if bytes == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout is of more than no bytes.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    if start.is_null() {
        return None;
    }
    // SAFETY: the global allocator gave it for this layout, which is that of a vector of this capacity, and its bytes are
    // initialised.
    Some(unsafe { Vec::from_raw_parts(start, bytes, bytes) })
}

/// Memory of our own in which scattered values are put together, kept for the next call.
#[derive(Default)]
pub(crate) struct Staging {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Staging {
    /// Values are put together in pieces of about this many bytes.
    pub(crate) const PIECE: usize = 16 << 20;
    /// Pieces that are kept.
    const KEPT: usize = 4;

    /// Memory of at least so many bytes, of any contents; `None` when there is not that much.
    pub(crate) fn take(&self, bytes: usize) -> Option<Vec<u8>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().position(|memory| memory.len() >= bytes);
        let taken = fits.map(|index| free.swap_remove(index));
        drop(free);
        taken.or_else(|| zeroed(bytes))
    }

    /// Keeps the memory for a later call, unless it is longer than most or there is enough.
    pub(crate) fn give_back(&self, memory: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.len() <= Self::PIECE && free.len() < Self::KEPT {
            free.push(memory);
        }
    }
}
