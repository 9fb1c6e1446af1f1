use std::io;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, as the kernel saw it when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number; none where it is in a namespace out of sight.
    pub pid: Option<NonZeroI32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl PeerCredentials {
    /// Those of the peer of `socket`.
    ///
    /// # Errors
    /// It is no connected Unix socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        // Not by rustix: its process number cannot be 0, which the kernel gives for a process of another namespace.
        let mut found = libc::ucred {
            pid: 0,
            uid: libc::uid_t::MAX,
            gid: libc::gid_t::MAX,
        };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of `found`, which any bytes are a value of.
        let got = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid: NonZeroI32::new(found.pid),
            uid: found.uid,
            gid: found.gid,
        })
    }
}
