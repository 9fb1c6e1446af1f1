//! What requests cost without a master: bytes there and back over blocking sockets, a thread for each.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::{ClusterError, failed};
use crate::process::tell;

/// About what a look-up of one key and its answer have.
const ASKED_BYTES: usize = 128;
const ANSWERED_BYTES: usize = 256;

/// Answers until the process ends.
pub(super) fn serve() -> Result<(), ClusterError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    tell(&format!(
        "listening {}",
        listener.local_addr().map_err(failed)?
    ))?;
    // The process that measures ends this one.
    for stream in listener.incoming() {
        let stream = stream.map_err(failed)?;
        std::thread::spawn(move || answer(stream));
    }
    Ok(())
}

/// Ends with its peer.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut asked, answered) = ([0; ASKED_BYTES], [1; ANSWERED_BYTES]);
    loop {
        stream.read_exact(&mut asked)?;
        stream.write_all(&answered)?;
    }
}

pub(super) struct Asker(TcpStream);

impl Asker {
    pub(super) fn connect(address: &str) -> Result<Self, ClusterError> {
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self(stream))
    }

    pub(super) fn ask(&mut self) -> Result<(), ClusterError> {
        self.0.write_all(&[2; ASKED_BYTES]).map_err(failed)?;
        let mut answered = [0; ANSWERED_BYTES];
        self.0.read_exact(&mut answered).map_err(failed)
    }
}
