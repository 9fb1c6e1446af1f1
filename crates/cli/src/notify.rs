//! Telling the process manager how a service does, by the protocol of `sd_notify(3)`: datagrams to the socket that
//! `NOTIFY_SOCKET` names. Without that variable nothing is told.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The variable that names the socket: a path, or a name in the abstract namespace after an `@`.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The process manager, if one wants to be told. Nothing that it does can stop or fail the service.
pub(crate) struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// That of this process.
    pub(crate) fn from_environment() -> Self {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        Self(name.and_then(|name| {
            let socket = address(&name).and_then(|to| Ok((unbound()?, to)));
            socket
                .inspect_err(|error| {
                    let name = name.display();
                    tracing::warn!(%error, %name, "the process manager is told nothing: {VARIABLE}");
                })
                .ok()
        }))
    }

    /// The service does its work from now on.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// What the service does, in words.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The service reads its files again; [`Notify::ready`] says that it has done so.
    pub(crate) fn reloading(&self) {
        let time = clock_gettime(ClockId::Monotonic);
        let micros = time.tv_sec * 1_000_000 + time.tv_nsec / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The service ends.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        let Some((socket, to)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), to) {
            tracing::debug!(%error, "the process manager was not told");
        }
    }
}

/// A socket that never waits: a process manager that does not read is not waited for.
fn unbound() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is neither a path from the root nor a name after an @",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_or_an_abstract_name() {
        let of = |name: &str| address(OsStr::new(name));
        assert_eq!(of("@a/b").unwrap().as_abstract_name(), Some(&b"a/b"[..]));
        let path = of("/run/notify").unwrap();
        assert_eq!(path.as_pathname().unwrap().to_str(), Some("/run/notify"));
        for wrong in ["notify", "vsock:2:1234"] {
            assert!(of(wrong).unwrap_err().to_string().contains("neither"));
        }
        assert!(of(&format!("/{}", "x".repeat(200))).is_err(), "too long");
    }
}
