//! Connections whose protocol does its own reading and writing, straight between the kernel and buffers that it names.
//!
//! The loop still does readiness, turns, timers, listeners and limits on unauthenticated peers. It reports edges only
//! ([`Protocol::ready`](crate::Protocol::ready)); the protocol reads and writes until the kernel has no more, or until
//! it has had its share of the turn and asks with [`Net::serve_again`] to be called after the others.

use std::net::TcpStream;
use std::os::fd::BorrowedFd;

use crate::{ConnId, Net};

/// What the kernel has said about a raw connection since the protocol was last called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There are bytes, or an end: read until the kernel has no more.
    pub readable: bool,
    /// There is room: write on.
    pub writable: bool,
}

impl Net {
    /// Hands the reading and writing of a connection that stands to its protocol; no [`Event::Bytes`] comes for it any
    /// more, and [`Net::wire`] must not be used. The first call of [`Protocol::ready`] follows in this turn or the next.
    ///
    /// [`Event::Bytes`]: crate::Event::Bytes
    /// [`Protocol::ready`]: crate::Protocol::ready
    pub fn take_over(&mut self, conn: ConnId) {
        if let Some(entry) = self.entry(conn) {
            entry.raw = Some(Readiness {
                readable: true,
                writable: true,
            });
        }
        self.await_room(conn, true);
        self.make_ready(conn);
    }

    /// The descriptor of a connection, for reading and writing without blocking. None when it is gone.
    #[must_use]
    pub fn descriptor(&mut self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        self.entry(conn).map(|entry| entry.stream.descriptor())
    }

    /// Gives a connection away, to be adopted by another loop: this one forgets it, and the kernel reports nothing of it
    /// here any more. None when it is gone, or not a TCP connection, or the kernel refuses; it is closed then.
    pub fn release(&mut self, conn: ConnId) -> Option<TcpStream> {
        let mut stream = self.take_stream(conn)?;
        // A duplicate of the descriptor would stay in the interest list, and wake this loop at every edge.
        stream.deregister(self.registry()).ok()?;
        stream.into_tcp()
    }

    /// Calls [`Protocol::ready`](crate::Protocol::ready) of a raw connection again, after all others that are due.
    pub fn serve_again(&mut self, conn: ConnId, readiness: Readiness) {
        if let Some(entry) = self.entry(conn)
            && let Some(raw) = &mut entry.raw
        {
            raw.readable |= readiness.readable;
            raw.writable |= readiness.writable;
        }
        self.make_ready(conn);
    }
}
