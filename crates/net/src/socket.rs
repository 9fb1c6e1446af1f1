//! The kernel's sockets: TCP and Unix streams behind one type, with the options that all of them get.

use std::ffi::OsStr;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use slackwater_wait::PeerCredentials;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::{Connect, Endpoint, Source};

/// How dead TCP peers are noticed below the protocol.
///
/// Probes of connections that fell silent together leave together, thousands in one tick of the kernel's timers, and a
/// queue on the way (1,000 packets on Linux loopback) drops most of them, again and again, until both ends believe the
/// other dead. So each connection sends its first probe at one of several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLiveness {
    /// Silence before the first probe, at the earliest.
    pub keepalive_idle: Duration,
    /// Between probes.
    pub keepalive_interval: Duration,
    /// Probes without an answer.
    pub keepalive_count: u32,
    /// How long sent bytes, or probes, may stay unacknowledged.
    pub user_timeout: Duration,
}

impl TcpLiveness {
    /// Sets the options of a TCP socket: these, and no delay of small segments.
    ///
    /// # Errors
    /// The kernel does not know one of them, or it is no TCP socket.
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        let keepalive = TcpKeepalive::new()
            .with_time(self.keepalive_idle)
            .with_interval(self.keepalive_interval)
            .with_retries(self.keepalive_count);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(self.user_timeout))
    }

    /// Silence before the first probe of connection number `number`.
    fn idle_of(&self, number: u32) -> Duration {
        self.keepalive_idle + Duration::from_secs(u64::from(number % KEEPALIVE_TIMES))
    }
}

/// Seconds over which first probes are spread. Some of them still leave in the same tick, as the kernel's timers count
/// in steps of two seconds here, and of those that are dropped several more must have had their turn before the user
/// timeout.
const KEEPALIVE_TIMES: u32 = 30;

impl Default for TcpLiveness {
    fn default() -> Self {
        Self {
            keepalive_idle: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(5),
            keepalive_count: 3,
            user_timeout: Duration::from_secs(90),
        }
    }
}

/// Owner and mode of a Unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnixAccess {
    /// Permission bits of the socket file; the process's umask decides when none.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// And whether the loop is told when it can be written.
    Unix(UnixStream, bool),
}

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

const BACKLOG: i32 = 4096;

impl Stream {
    /// Gives connection number `number` its own time for the first probe.
    pub(crate) fn stagger(&self, number: u32, liveness: &TcpLiveness) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                rustix::net::sockopt::set_tcp_keepidle(stream, liveness.idle_of(number))?
            }
            Stream::Unix(..) => {}
        }
        Ok(())
    }

    /// Begins a connection.
    pub(crate) fn connect(connect: &Connect, liveness: &TcpLiveness) -> io::Result<Self> {
        let address = match &connect.endpoint {
            Endpoint::Unix(path) => return Ok(Stream::Unix(connect_unix(path)?, false)),
            Endpoint::Tcp(address) => *address,
        };
        let open = || {
            let socket = Socket::new(
                Domain::for_address(address),
                Type::STREAM.nonblocking(),
                Some(Protocol::TCP),
            )?;
            liveness.apply(&socket)?;
            Ok(socket)
        };
        let begin = |socket: &Socket| match socket.connect(&address.into()) {
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                Ok(())
            }
            begun => begun,
        };
        let socket = match (connect.ports, connect.from) {
            (Some(ports), from) => {
                ports.connect(address, from.map(|from| from.ip()), open, begin)?
            }
            (None, from) => {
                let socket = open()?;
                if let Some(from) = from {
                    socket.bind(&from.into())?;
                }
                begin(&socket)?;
                socket
            }
        };
        Ok(Stream::Tcp(TcpStream::from_std(socket.into())))
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
            }
            Stream::Unix(stream, _) => registry.register(stream, token, Interest::READABLE),
        }
    }

    /// Has the loop be told when there is room to write, or not any more. Of a TCP socket the kernel tells it only after one
    /// was full, but of a Unix socket each time that the peer has read: every message would wake its sender once more.
    pub(crate) fn await_room(
        &mut self,
        registry: &Registry,
        token: Token,
        awaits: bool,
    ) -> io::Result<()> {
        match self {
            Stream::Unix(stream, is_told) if *is_told != awaits => {
                *is_told = awaits;
                let interest = match awaits {
                    true => Interest::READABLE | Interest::WRITABLE,
                    false => Interest::READABLE,
                };
                registry.reregister(stream, token, interest)
            }
            Stream::Tcp(_) | Stream::Unix(..) => Ok(()),
        }
    }

    /// Whether it is connected from the beginning, and no event says so.
    pub(crate) fn connects_at_once(&self) -> bool {
        matches!(self, Stream::Unix(..))
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => registry.deregister(stream),
            Stream::Unix(stream, _) => registry.deregister(stream),
        }
    }

    /// The TCP connection that it is; none for a Unix socket.
    pub(crate) fn into_tcp(self) -> Option<std::net::TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(OwnedFd::from(stream).into()),
            Stream::Unix(..) => None,
        }
    }

    /// Whether a connection that was begun stands; an error when it failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Stream::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
            Stream::Unix(stream, _) => (stream.take_error()?, stream.peer_addr().map(drop)),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(true),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(error)) => Err(error),
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream, _) => stream.as_fd(),
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream, _) => stream.read(buffer),
        }
    }

    /// A closed peer is an error, and no signal: a C program that has not thought of one would end.
    pub(crate) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let nothing = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(
            self.descriptor(),
            pieces,
            nothing,
            SendFlags::NOSIGNAL,
        )?)
    }
}

impl Listener {
    /// Opens a listener. With `shared`, further listeners may share a TCP port; the kernel spreads connections over
    /// them. A port that another process already listens on is still an error.
    pub(crate) fn open(
        endpoint: &Endpoint,
        shared: bool,
        access: &UnixAccess,
        liveness: &TcpLiveness,
    ) -> io::Result<(Self, Endpoint)> {
        match endpoint {
            Endpoint::Tcp(address) => {
                let listener = open_tcp(*address, shared, liveness)?;
                let bound = listener.local_addr()?;
                Ok((Listener::Tcp(listener), Endpoint::Tcp(bound)))
            }
            Endpoint::Unix(path) => {
                Ok((Listener::Unix(open_unix(path, access)?), endpoint.clone()))
            }
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix(listener) => registry.register(listener, token, Interest::READABLE),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<(Stream, Source)> {
        match self {
            // All other options are inherited from the listener.
            Listener::Tcp(listener) => listener
                .accept()
                .map(|(stream, from)| (Stream::Tcp(stream), Source::Ip(from))),
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = PeerCredentials::of(&stream)?;
                let source = Source::Process {
                    uid: peer.uid,
                    gid: peer.gid,
                    pid: peer.pid.map_or(0, NonZeroI32::get),
                };
                Ok((Stream::Unix(stream, false), source))
            }
        }
    }
}

fn open_tcp(address: SocketAddr, shared: bool, liveness: &TcpLiveness) -> io::Result<TcpListener> {
    let open = |reuse_port: bool| -> io::Result<Socket> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(reuse_port)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        liveness.apply(&socket)?;
        socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    };
    let socket = open(shared)?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Fails when a process already listens on `address`, even one that would share the port.
pub(crate) fn check_free(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))
}

/// Whether it is an abstract name and no file.
pub(crate) fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"@")
}

fn unix_address(path: &Path) -> io::Result<SockAddr> {
    if !is_abstract(path) {
        return SockAddr::unix(path);
    }
    let mut name = path.as_os_str().as_bytes().to_vec();
    name[0] = 0;
    SockAddr::unix(OsStr::from_bytes(&name))
}

/// An abstract name is no file that has an owner: it belongs to the process that takes it first, which must be of this user
/// or of root.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&unix_address(path)?)?;
    if is_abstract(path) {
        let owner = PeerCredentials::of(&socket)?.uid;
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            let why = format!("another user, {owner}, listens there");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(UnixStream::from_std(socket.into()))
}

/// Binds and sets owner and mode before listening, so that no process connects with wider permissions than wanted. A
/// socket file without a listener is replaced.
fn open_unix(path: &Path, access: &UnixAccess) -> io::Result<UnixListener> {
    let bind = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        socket.bind(&unix_address(path)?)?;
        Ok(socket)
    };
    if is_abstract(path) {
        if *access != UnixAccess::default() {
            let why = "an abstract name has no owner and no mode: name a file, or leave them out";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let socket = bind()?;
        socket.listen(BACKLOG)?;
        return Ok(UnixListener::from_std(socket.into()));
    }
    let socket = match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            bind()?
        }
        other => other?,
    };
    if let Some(mode) = access.mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    if access.uid.is_some() || access.gid.is_some() {
        std::os::unix::fs::chown(path, access.uid, access.gid)?;
    }
    socket.listen(BACKLOG)?;
    Ok(UnixListener::from_std(socket.into()))
}

fn is_stale(path: &Path) -> bool {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    // Without waiting: a listener whose queue is full would keep the caller, which is a loop, until it accepts.
    let knock = || -> io::Result<()> {
        Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?)
    };
    is_socket && knock().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// To see whether a socket file is stale a loop connected to it and waited. A process that listened there and accepted
    /// nothing stopped the loop with all its connections.
    #[test]
    fn a_listener_that_accepts_nothing_stops_no_loop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let new = || Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
        let address = SockAddr::unix(&path).unwrap();
        let listener = new();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let waiting = new();
        waiting.connect(&address).unwrap();
        let error = open_unix(&path, &UnixAccess::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop((listener, waiting));
        open_unix(&path, &UnixAccess::default()).expect("the file is stale now");
    }

    /// Twenty thousand links that had been opened within a second and said nothing were all dead after thirty: their
    /// probes left in one burst, most of which the loopback's queue dropped, four times in a row. Spread over six seconds
    /// with three more probes to go, one link in forty still died.
    #[test]
    fn connections_send_their_first_probes_at_different_times() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = Connect {
            endpoint: Endpoint::Tcp(listener.local_addr().unwrap()),
            timeout: Duration::from_secs(1),
            from: None,
            ports: None,
        };
        let liveness = TcpLiveness::default();
        let times: BTreeSet<Duration> = (0..2 * KEEPALIVE_TIMES)
            .map(|number| {
                let stream = Stream::connect(&connect, &liveness).unwrap();
                stream.stagger(number, &liveness).unwrap();
                let Stream::Tcp(stream) = &stream else {
                    panic!("a TCP address")
                };
                rustix::net::sockopt::tcp_keepidle(stream).unwrap()
            })
            .collect();
        assert_eq!(times.len(), KEEPALIVE_TIMES as usize);
        assert!(
            times
                .iter()
                .all(|time| *time + 6 * liveness.keepalive_interval <= liveness.user_timeout)
        );
    }
}
