use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, acceptfrom_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::Pid;
use slackwater_base::Instant;
use slackwater_wait::now;

/// The most descriptors in one packet.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// A Unix socket that keeps packets apart and carries descriptors with them. Never blocks by itself.
#[derive(Debug)]
pub(crate) struct Packets(OwnedFd);

/// A listener for such sockets under an abstract name, which vanishes with its last descriptor.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

/// The process at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    /// `None` where this process cannot see it: it lives in another process namespace.
    pub(crate) pid: Option<Pid>,
    pub(crate) user: u32,
}

/// The result of one receive call.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet of this many bytes, and what came with it.
    Packet(usize, Vec<OwnedFd>),
    /// No packet has arrived.
    Nothing,
    /// The peer has closed, by itself or because its process ended.
    Closed,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl Listener {
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        let fd = new_socket()?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, 128)?;
        Ok(Self(fd))
    }

    /// Accepts the next waiting connection; `None` when there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<Packets>> {
        loop {
            match acceptfrom_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, _)) => return Ok(Some(Packets(fd))),
                Err(Errno::AGAIN) => return Ok(None),
                // A connection that failed; others may wait behind it.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Packets {
    /// A Unix connection is made at once or not at all: a full backlog is an error here, not a wait.
    pub(crate) fn connect(name: &str) -> io::Result<Self> {
        let fd = new_socket()?;
        connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(Self(fd))
    }

    /// The process at the other end, as the kernel saw it when the connection was made.
    pub(crate) fn peer(&self) -> io::Result<PeerCredentials> {
        let peer = slackwater_wait::PeerCredentials::of(&self.0)?;
        Ok(PeerCredentials {
            pid: peer.pid.and_then(|pid| Pid::from_raw(pid.get())),
            user: peer.uid,
        })
    }

    /// Sends one packet. A full socket is an error: a peer that asks reads the answer before it asks again.
    pub(crate) fn send(&self, bytes: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let parts: Vec<IoSlice<'_>> = bytes.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            match sendmsg(
                &self.0,
                &parts,
                &mut control,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives one packet. One that does not fit into `buffer`, or carries too many descriptors, is an error.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let message = loop {
            match recvmsg(
                &self.0,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            ) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = part {
                descriptors.extend(passed);
            }
        }
        if message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a packet longer than any of the protocol",
            ));
        }
        // No packet of the protocol is empty, so this is the end, or a peer that breaks it: [`Packets::is_closed`] tells.
        if message.bytes == 0 {
            Ok(Received::Closed)
        } else {
            Ok(Received::Packet(message.bytes, descriptors))
        }
    }

    /// Whether the peer has closed, by itself or because its process ended. An empty packet is no such end, though it
    /// reads like one.
    pub(crate) fn is_closed(&self) -> bool {
        let mut look = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let looked = poll(
            &mut look,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        );
        looked.is_ok()
            && look[0]
                .revents()
                .intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// Tells the peer that nothing more will be sent. Its own end is still noticed.
    pub(crate) fn hang_up(&self) {
        // It fails only when there is no peer any more.
        let _ = shutdown(&self.0, Shutdown::Write);
    }

    /// [`Packets::receive`] that waits up to `deadline`.
    pub(crate) fn receive_until(
        &self,
        buffer: &mut [u8],
        deadline: Instant,
    ) -> io::Result<Received> {
        loop {
            let received = self.receive(buffer)?;
            if !matches!(received, Received::Nothing) {
                return Ok(received);
            }
            let left = now().until(deadline);
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            let timeout = (deadline != Instant::NEVER).then(|| Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pair(name: &str) -> (Packets, Packets) {
        let name = format!("slackwater-packets-{name}-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let near = Packets::connect(&name).unwrap();
        (
            near,
            listener
                .accept()
                .unwrap()
                .expect("the connection waits in the backlog"),
        )
    }

    #[test]
    fn packets_stay_apart_and_carry_descriptors() {
        let (near, far) = pair("apart");
        let mut buffer = [0; 64];
        assert!(matches!(far.receive(&mut buffer), Ok(Received::Nothing)));
        near.send(&[b"one", b" packet"], &[near.as_fd()]).unwrap();
        near.send(&[b"two"], &[]).unwrap();
        let Received::Packet(len, descriptors) = far.receive(&mut buffer).unwrap() else {
            panic!("a packet waits")
        };
        assert_eq!((&buffer[..len], descriptors.len()), (&b"one packet"[..], 1));
        drop(descriptors);
        let Received::Packet(len, descriptors) = far.receive(&mut buffer).unwrap() else {
            panic!("a packet waits")
        };
        assert_eq!((&buffer[..len], descriptors.len()), (&b"two"[..], 0));
        assert_eq!(far.peer().unwrap().pid, Some(rustix::process::getpid()));
        drop(near);
        assert!(matches!(far.receive(&mut buffer), Ok(Received::Closed)));
    }

    /// An empty packet reads like the end of the process, after which the owner took its memory back: under copies that
    /// went on.
    #[test]
    fn an_empty_packet_and_a_farewell_are_no_end_of_the_peer() {
        let (near, far) = pair("empty");
        near.send(&[b""], &[]).unwrap();
        assert!(matches!(far.receive(&mut [0; 4]), Ok(Received::Closed)));
        assert!(!far.is_closed());
        far.hang_up();
        assert!(
            !far.is_closed() && near.is_closed(),
            "it is told, and can still be watched"
        );
        drop(near);
        assert!(far.is_closed());
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_an_oversized_packet_is_refused() {
        let (near, far) = pair("deadline");
        let mut buffer = [0; 4];
        let waited = far.receive_until(&mut buffer, now() + Duration::from_millis(1));
        assert!(matches!(waited, Ok(Received::Nothing)));
        near.send(&[b"too long"], &[]).unwrap();
        assert!(far.receive(&mut buffer).is_err());
    }
}
