//! A new connection, up to the exchange of greetings.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use slackwater_base::Instant;
use slackwater_net::TcpLiveness;
use slackwater_wait::now;
use slackwater_wire::data::{Features, GREETING_BYTES, Greeting};
use socket2::SockRef;

use super::client::ClientConnection;
use crate::cause::{Cause, Deadline};
use crate::segment::Segment;
use crate::tcp::context::TcpContext;
use crate::tcp::seal::SealError;

/// Connects to the first of the peer's addresses that answers.
pub(super) fn connect(
    context: &TcpContext,
    segment: &Segment,
    deadline: Instant,
) -> Result<ClientConnection, Cause> {
    let mut last = Cause::Unreachable("no address".to_owned());
    for address in segment
        .addresses
        .iter()
        .filter(|address| context.config.may_reach(segment, address))
    {
        let until = deadline.min(now() + context.config.connect_timeout);
        if until <= now() {
            return Err(Cause::TimedOut(Deadline::Connect));
        }
        match greet(context, segment, *address, until) {
            Ok(connection) => return Ok(connection),
            Err(gone @ (Cause::Gone { .. } | Cause::Seal(_))) => return Err(gone),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

fn greet(
    context: &TcpContext,
    segment: &Segment,
    address: SocketAddr,
    until: Instant,
) -> Result<ClientConnection, Cause> {
    let unreachable = |error: io::Error| Cause::Unreachable(format!("{address}: {error}"));
    let mut stream =
        TcpStream::connect_timeout(&address, now().until(until)).map_err(unreachable)?;
    set_options(&stream, context.config.buffer_bytes(address.ip())).map_err(unreachable)?;
    let hello = context.greeting(segment.incarnation, Features::default());
    // The greeting is far shorter than the empty send buffer, so the call does not block.
    stream.write_all(&hello.to_bytes()).map_err(unreachable)?;
    let answer = read_greeting(&mut stream, until).map_err(unreachable)?;
    let answer =
        Greeting::from_bytes(&answer).map_err(|error| Cause::Protocol(error.to_string()))?;
    if answer.features.has(Features::SEALED) {
        return Err(Cause::Seal(SealError::Unsealed));
    }
    if answer.incarnation != segment.incarnation {
        return Err(Cause::Gone {
            expected: segment.incarnation,
            found: answer.incarnation,
        });
    }
    Ok(ClientConnection::new(stream))
}

/// Receives the whole greeting by `until`, however few bytes arrive at a time.
fn read_greeting(stream: &mut TcpStream, until: Instant) -> io::Result<[u8; GREETING_BYTES]> {
    let mut answer = [0; GREETING_BYTES];
    let mut got = 0;
    while got < answer.len() {
        let left = now().until(until);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut answer[got..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            // The time left is computed again.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

fn set_options(stream: &TcpStream, buffer_bytes: usize) -> io::Result<()> {
    TcpLiveness::default().apply(stream)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(buffer_bytes)?;
    socket.set_recv_buffer_size(buffer_bytes)
}
