//! What requests cost without a master: bytes there and back over blocking Unix sockets, as clients of a master's host have,
//! a thread for each.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use super::{ClusterError, failed};
use crate::process::tell;

/// About what a look-up of one key and its answer have.
const ASKED_BYTES: usize = 128;
const ANSWERED_BYTES: usize = 256;

/// Answers until the process ends.
pub(super) fn serve() -> Result<(), ClusterError> {
    let name = format!("slackwater-echo-{}", std::process::id());
    let listener = UnixListener::bind_addr(&named(&name)?).map_err(failed)?;
    tell(&format!("listening {name}"))?;
    // The process that measures ends this one.
    for stream in listener.incoming() {
        let stream = stream.map_err(failed)?;
        std::thread::spawn(move || answer(stream));
    }
    Ok(())
}

/// An abstract name, which ends with its process.
fn named(name: &str) -> Result<SocketAddr, ClusterError> {
    SocketAddr::from_abstract_name(name).map_err(failed)
}

/// Ends with its peer.
fn answer(mut stream: UnixStream) -> std::io::Result<()> {
    let (mut asked, answered) = ([0; ASKED_BYTES], [1; ANSWERED_BYTES]);
    loop {
        stream.read_exact(&mut asked)?;
        stream.write_all(&answered)?;
    }
}

pub(super) struct Asker(UnixStream);

impl Asker {
    pub(super) fn connect(name: &str) -> Result<Self, ClusterError> {
        let stream = UnixStream::connect_addr(&named(name)?);
        stream.map(Self).map_err(failed)
    }

    pub(super) fn ask(&mut self) -> Result<(), ClusterError> {
        self.0.write_all(&[2; ASKED_BYTES]).map_err(failed)?;
        let mut answered = [0; ANSWERED_BYTES];
        self.0.read_exact(&mut answered).map_err(failed)
    }
}
