//! Which process is at an end of a socket, as the kernel says it to both ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{fstat, fstatfs};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::packets::Packets;

/// The name of a process, the same whichever process asks the kernel. A handshake is bound to the names of both ends, so a
/// process between them, which would get the descriptors that go along, is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessName([u8; 9]);

/// The file system of process descriptors (Linux 6.9): their inodes name processes across namespaces, and never again
/// until the host is started anew.
const PIDFS: i64 = 0x5049_4446;
const BY_INODE: u8 = 1;
const BY_NUMBER: u8 = 2;

impl ProcessName {
    /// The name of this process.
    pub(super) fn own() -> io::Result<Self> {
        let handle = pidfd_open(getpid(), PidfdFlags::empty())?;
        match inode(&handle)? {
            Some(inode) => Ok(Self::of(BY_INODE, inode)),
            None => Ok(Self::of(BY_NUMBER, number(getpid()))),
        }
    }

    /// The name of the process that made the other end of a socket. Without such inodes it is a number that both must see
    /// alike, so processes of different namespaces have no name for each other.
    pub(super) fn of_peer(packets: &Packets) -> io::Result<Self> {
        let handle = peer_handle(packets).ok();
        match handle.as_ref().map(inode).transpose()?.flatten() {
            Some(inode) => Ok(Self::of(BY_INODE, inode)),
            None => {
                let pid = packets.peer()?.pid.ok_or(io::ErrorKind::NotFound)?;
                Ok(Self::of(BY_NUMBER, number(pid)))
            }
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn of(kind: u8, name: u64) -> Self {
        let mut bytes = [kind; 9];
        bytes[1..].copy_from_slice(&name.to_le_bytes());
        Self(bytes)
    }
}

fn number(pid: rustix::process::Pid) -> u64 {
    u64::from(pid.as_raw_nonzero().get().unsigned_abs())
}

/// The inode of a process descriptor, where that is a name.
fn inode(handle: &OwnedFd) -> io::Result<Option<u64>> {
    let named = fstatfs(handle)?.f_type == PIDFS;
    Ok(named.then_some(fstat(handle)?.st_ino))
}

/// A descriptor of the process at the other end (Linux 6.5).
fn peer_handle(packets: &Packets) -> io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `found`, which any bytes are a value of.
    let got = unsafe {
        libc::getsockopt(
            packets.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if got != 0 || found < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

#[cfg(test)]
mod tests {
    use super::super::packets::Listener;
    use super::*;

    #[test]
    fn both_ends_give_a_process_the_same_name() {
        let name = format!("slackwater-identity-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let near = Packets::connect(&name).unwrap();
        let far = listener.accept().unwrap().expect("it has connected");
        let own = ProcessName::own().unwrap();
        assert_eq!(ProcessName::of_peer(&near).unwrap(), own);
        assert_eq!(ProcessName::of_peer(&far).unwrap(), own);
        assert_ne!(ProcessName::of(BY_INODE, 7), ProcessName::of(BY_NUMBER, 7));
    }
}
