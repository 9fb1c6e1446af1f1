use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::now;

use crate::status::Failure;

/// Bytes that a call reads: they must not change while it runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_bytes {
    /// The first byte; may be null when there are none.
    pub data: *const c_void,
    /// How many.
    pub bytes: usize,
}

/// Memory that a call writes: nothing else may touch it while the call runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_buffer {
    /// The first byte; may be null when there are none.
    pub data: *mut c_void,
    /// How many.
    pub bytes: usize,
}

/// A time in nanoseconds without an end, for waits.
pub const SW_FOREVER: u64 = u64::MAX;

/// A text that must be there.
///
/// # Safety
/// Null, or a text that ends with a zero byte and lives for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let text = unsafe { optional_text(text, what) }?;
    text.ok_or_else(|| Failure::invalid(format_args!("{what} is null")))
}

/// A text that may be left out.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional_text<'a>(
    text: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it ends with a zero byte, as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some)
        .map_err(|_| Failure::invalid(format_args!("{what} is not UTF-8")))
}

/// The name of a file that may be left out.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional_path(
    path: *const c_char,
    what: &str,
) -> Result<Option<PathBuf>, Failure> {
    // SAFETY: as the caller promises.
    let path = unsafe { optional_text(path, what) }?;
    Ok(path.map(PathBuf::from))
}

/// `count` things in a row.
///
/// # Safety
/// Null, or valid for reads of that many for `'a`.
pub(crate) unsafe fn list<'a, T>(
    first: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(first, count, what)?;
    // SAFETY: not null, aligned, of a length that memory can have, and valid as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Places for `count` answers.
///
/// # Safety
/// Null, or valid for writes of that many for `'a`, and used by nobody else.
pub(crate) unsafe fn places<'a, T: Copy>(
    first: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(first, count, what)?;
    // SAFETY: as above; the caller promises that nobody else uses them.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// What a pointer that must not be null points to.
///
/// # Safety
/// Null, or valid for reads for `'a`.
pub(crate) unsafe fn at<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    check(pointer, 1, what)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    Ok(unsafe { &*pointer })
}

/// What a pointer that may be left out points to.
///
/// # Safety
/// As for [`at`].
pub(crate) unsafe fn optional<'a, T>(
    pointer: *const T,
    what: &str,
) -> Result<Option<&'a T>, Failure> {
    match pointer.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => unsafe { at(pointer, what) }.map(Some),
    }
}

/// Hands a new thing out, for its owner to give back.
///
/// # Safety
/// Null, or valid for a write.
pub(crate) unsafe fn give<T>(place: *mut *mut T, thing: T, what: &str) -> Result<(), Failure> {
    check(place, 1, what)?;
    // SAFETY: not null, aligned, and valid as the caller promises.
    unsafe { place.write(Box::into_raw(Box::new(thing))) };
    Ok(())
}

/// Takes back what [`give`] handed out; none for null.
///
/// # Safety
/// Null, or handed out by [`give`], taken back once, and used by nobody any more.
pub(crate) unsafe fn take<T>(thing: *mut T) -> Option<Box<T>> {
    // SAFETY: not null, so it is a box of ours, as the caller promises.
    (!thing.is_null()).then(|| unsafe { Box::from_raw(thing) })
}

fn check<T>(first: *const T, count: usize, what: &str) -> Result<(), Failure> {
    if first.is_null() {
        return Err(Failure::invalid(format_args!("{what} is null")));
    }
    if !first.is_aligned() {
        return Err(Failure::invalid(format_args!("{what} is not aligned")));
    }
    let bytes = count.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failure::invalid(format_args!(
            "{what}: {count} are too many"
        )));
    }
    Ok(())
}

impl sw_bytes {
    /// # Safety
    /// Valid for reads for `'a`, unless null.
    pub(crate) unsafe fn slice<'a>(self, what: &str) -> Result<&'a [u8], Failure> {
        // SAFETY: as the caller promises.
        unsafe { list(self.data.cast(), self.bytes, what) }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            bytes: bytes.len(),
        }
    }
}

/// Slices of several byte strings.
///
/// # Safety
/// Valid for reads for `'a`, with what they point to, unless null.
pub(crate) unsafe fn slices<'a>(
    first: *const sw_bytes,
    count: usize,
    what: &str,
) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: as the caller promises.
    let all = unsafe { list(first, count, what) }?;
    // SAFETY: as the caller promises.
    all.iter().map(|one| unsafe { one.slice(what) }).collect()
}

impl sw_buffer {
    /// # Safety
    /// Valid for writes for `'a` and used by nobody else, unless null.
    pub(crate) unsafe fn slice<'a>(self, what: &str) -> Result<&'a mut [u8], Failure> {
        // SAFETY: as the caller promises.
        unsafe { places(self.data.cast(), self.bytes, what) }
    }
}

/// Slices of several buffers, which must not overlap.
///
/// # Safety
/// Valid for writes for `'a` and used by nobody else, unless null.
pub(crate) unsafe fn buffers<'a>(
    first: *const sw_buffer,
    count: usize,
    what: &str,
) -> Result<Vec<&'a mut [u8]>, Failure> {
    // SAFETY: as the caller promises.
    let all = unsafe { list(first, count, what) }?;
    let mut ranges: Vec<(usize, usize)> = all
        .iter()
        .filter(|one| one.bytes > 0)
        .map(|one| (one.data.addr(), one.bytes))
        .collect();
    ranges.sort_unstable();
    let overlaps = |pair: &[(usize, usize)]| pair[0].0.saturating_add(pair[0].1) > pair[1].0;
    if ranges.windows(2).any(overlaps) {
        return Err(Failure::invalid(format_args!("{what} overlap")));
    }
    // SAFETY: as the caller promises; no two of them have a byte in common.
    all.iter().map(|one| unsafe { one.slice(what) }).collect()
}

/// A time that may be left out as 0.
pub(crate) fn optional_time(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
}

/// When a wait of so many nanoseconds ends.
pub(crate) fn deadline(nanoseconds: u64) -> Instant {
    match nanoseconds {
        SW_FOREVER => Instant::NEVER,
        nanoseconds => now() + Duration::from_nanos(nanoseconds),
    }
}

/// What a caller wants to be called with.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the library only hands it back to the caller's own function, which is told that it is called on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{SW_INVALID, SW_OK, guard};

    #[test]
    fn what_cannot_be_memory_is_refused() {
        let check = |data: *const u32, count: usize, expected: i32| {
            // SAFETY: what is refused is not read, and the other is an array.
            let status = guard(|| unsafe { list(data, count, "numbers") }.map(drop));
            assert_eq!(status, expected, "{data:?} {count}");
        };
        let numbers = [1_u32, 2];
        check(numbers.as_ptr(), 2, SW_OK);
        check(std::ptr::null(), 0, SW_OK);
        check(std::ptr::null(), 1, SW_INVALID);
        check(numbers.as_ptr(), usize::MAX / 2, SW_INVALID);
        check(numbers.as_ptr().wrapping_byte_add(1), 1, SW_INVALID);
    }

    #[test]
    fn buffers_that_overlap_are_refused() {
        let mut memory = [0_u8; 16];
        let start = memory.as_mut_ptr();
        let check = |ranges: &[(usize, usize)], expected: i32| {
            let all: Vec<sw_buffer> = ranges
                .iter()
                .map(|(from, bytes)| sw_buffer {
                    data: start.wrapping_add(*from).cast(),
                    bytes: *bytes,
                })
                .collect();
            // SAFETY: all of them lie in the array, and nobody else uses it.
            let status = guard(|| unsafe { buffers(all.as_ptr(), all.len(), "buffers") }.map(drop));
            assert_eq!(status, expected, "{ranges:?}");
        };
        check(&[(8, 8), (0, 8)], SW_OK);
        check(&[(0, 8), (4, 0)], SW_OK);
        check(&[(0, 9), (8, 8)], SW_INVALID);
        check(&[(4, 4), (0, 16)], SW_INVALID);
    }
}
