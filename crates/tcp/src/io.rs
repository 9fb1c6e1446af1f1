//! Receiving into and sending from ranges of memory of which no Rust slice may exist.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use slackwater_wait::now;
use socket2::SockRef;

/// The ranges of one call.
pub(crate) type Vectors = Vec<libc::iovec>;

/// Most ranges of one call; the kernel takes 1024.
pub(crate) const VECTORS_MAX: usize = 256;

/// The range of a slice, to be written from.
pub(crate) fn from_slice(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// The range of a buffer, to be read into.
pub(crate) fn into_slice(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Adds the first `bytes_max` bytes of the ranges, or those that there are, to `to`.
///
/// # Safety
/// Every range is valid for reads during the call.
pub(crate) unsafe fn append(from: &[libc::iovec], bytes_max: usize, to: &mut Vec<u8>) {
    let mut room = bytes_max;
    for range in from {
        let take = range.iov_len.min(room);
        to.reserve(take);
        // SAFETY: the source is valid by the caller's word; room for it was reserved, and the vector is apart from it. The
        // memory may be written by others meanwhile: only the copy is looked at.
        unsafe {
            let end = to.as_mut_ptr().add(to.len());
            std::ptr::copy_nonoverlapping(range.iov_base.cast_const().cast::<u8>(), end, take);
            to.set_len(to.len() + take);
        }
        room -= take;
        if room == 0 {
            break;
        }
    }
}

/// Receives into the ranges, in order.
///
/// # Safety
/// Every range is valid for writes for the whole call.
pub(crate) unsafe fn receive(
    socket: BorrowedFd<'_>,
    into: &mut Vectors,
    flags: i32,
) -> io::Result<usize> {
    let mut message = message(into);
    // SAFETY: the header points to `into`, whose ranges are the caller's; the descriptor is borrowed for the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends from the ranges, in order. A closed peer is an error, not a signal.
///
/// # Safety
/// Every range is valid for reads for the whole call.
pub(crate) unsafe fn send(
    socket: BorrowedFd<'_>,
    from: &mut Vectors,
    flags: i32,
) -> io::Result<usize> {
    let message = message(from);
    // SAFETY: as for `receive`; the kernel only reads from the ranges.
    let count = unsafe {
        libc::sendmsg(
            socket.as_raw_fd(),
            &raw const message,
            flags | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Has the kernel report the socket readable only once `bytes` bytes have arrived (`SO_RCVLOWAT`); the end of the
/// connection is always reported.
pub(crate) fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    let (value, length) = (
        (&raw const bytes).cast(),
        size_of::<libc::c_int>() as libc::socklen_t,
    );
    // SAFETY: the value is a local integer, and its length is told.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            value,
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether there is a byte, an end or an error to be received, whatever the low water mark.
pub(crate) fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let seen = SockRef::from(&socket).recv_with_flags(
        &mut [MaybeUninit::uninit()],
        libc::MSG_PEEK | libc::MSG_DONTWAIT,
    );
    !seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits up to `limit` until the socket is readable, by its low water mark or by its end; says whether it is.
pub(crate) fn wait_readable(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let until = now() + limit;
    loop {
        let millis = now().until(until).as_millis().min(i32::MAX as u128 - 1) as i32 + 1;
        let mut asked = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the call writes one local entry, and its count is told.
        let ready = unsafe { libc::poll(&raw mut asked, 1, millis) };
        match usize::try_from(ready).map_err(|_| io::Error::last_os_error()) {
            Ok(ready) => return Ok(ready > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn message(ranges: &mut Vectors) -> libc::msghdr {
    // SAFETY: a header of zeros is a valid one: no name, no ranges, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_mut_ptr();
    message.msg_iovlen = ranges.len() as _;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_appended_in_order_as_far_as_there_is_room() {
        let check = |bytes_max: usize, expected: &[u8]| {
            let (ranges, mut to) = ([&b"one "[..], b"", b"two"].map(from_slice), b"> ".to_vec());
            // SAFETY: the ranges are of constants.
            unsafe { append(&ranges, bytes_max, &mut to) };
            assert_eq!(to, expected, "{bytes_max}");
        };
        check(0, b"> ");
        check(3, b"> one");
        check(4, b"> one ");
        check(5, b"> one t");
        check(7, b"> one two");
        check(99, b"> one two");
    }
}
