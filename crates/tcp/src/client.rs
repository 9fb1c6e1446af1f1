//! The initiator's end of a connection: the protocol, and who must answer it.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::{
    Cause,
    protocol::{
        CloseReason, Initiator, InitiatorLimits, Span, Want,
        initiating::{Input, Output},
    },
    seal::{InitiatorHandshake, Keys, Opener, SealError, Sealer},
};
use slackwater_engine::boot_id;
use slackwater_net::End as NetEnd;
use slackwater_wire::data::{Features, Frame, Greeting, GreetingError, Segment};

use super::context::TcpContext;
use super::cursor::{Place, SpanMemory};
use super::end::{End, Greeted, add};
use super::io::Vectors;

/// One connection to a peer, with tasks `T` on it.
#[derive(Debug)]
pub(crate) struct ClientConnection<T> {
    peer: Arc<Segment>,
    /// The handshake, until the answer to a greeting that asked for a sealed connection has come.
    handshake: Option<Box<InitiatorHandshake>>,
    pub(crate) initiator: Initiator<T>,
    /// What the initiator has said and the shell has not done.
    pub(crate) out: Vec<Output<T>>,
}

/// A client connection, at a time.
pub(crate) struct ClientEnd<'a, T> {
    pub(crate) client: &'a mut ClientConnection<T>,
    pub(crate) now: Instant,
}

impl<T> ClientConnection<T> {
    pub(crate) fn new(peer: Arc<Segment>, limits: InitiatorLimits, now: Instant) -> Self {
        Self {
            peer,
            handshake: None,
            initiator: Initiator::new(limits, now),
            out: Vec::new(),
        }
    }

    /// The connection is made: begins with the greeting.
    pub(crate) fn hello(&mut self, context: &TcpContext) -> Result<(), CloseReason> {
        let mut hello = context.greeting(self.peer.incarnation, Features::default());
        if let Some(handshake) = context.handshake(&self.peer, hello).map_err(unsealed)? {
            hello = *handshake.hello();
            self.handshake = Some(Box::new(handshake));
        }
        self.initiator.greet(&hello);
        Ok(())
    }

    /// Why the connection is closed that the kernel has ended so.
    pub(crate) fn ended(&self, end: &NetEnd) -> CloseReason {
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        match end {
            NetEnd::ConnectFailed(error) if is_refused(error) && is_of_this_host(&self.peer) => {
                CloseReason::Gone(Cause::Unreachable(end.to_string()))
            }
            _ => CloseReason::Lost(Cause::Lost(end.to_string())),
        }
    }

    /// Tells the initiator what has happened.
    pub(crate) fn handle(&mut self, now: Instant, input: Input<'_, T>) -> Result<(), CloseReason> {
        self.initiator.handle(now, input, &mut self.out)
    }

    /// Checks the deadlines of the initiator.
    pub(crate) fn on_deadline(&mut self, now: Instant) -> Result<(), CloseReason> {
        self.initiator.on_deadline(now, &mut self.out)
    }

    /// Ends the connection, with everything on it; returns the cause that its requests fail with.
    pub(crate) fn close(&mut self, now: Instant, reason: &CloseReason) -> Cause {
        let cause = match reason {
            CloseReason::Lost(cause) | CloseReason::Gone(cause) => cause.clone(),
            CloseReason::Forged => Cause::Seal(SealError::Record),
            CloseReason::Idle | CloseReason::Limit(_) | CloseReason::KeyRevoked => Cause::Closed,
        };
        let retry = !matches!(reason, CloseReason::Forged);
        let closed = Input::Closed {
            cause: &cause,
            retry,
        };
        // Nothing is left that could be at odds with the protocol.
        let _ = self.handle(now, closed);
        cause
    }
}

/// Whether a peer is a process of this host, and to be reached at addresses of this host alone. It listens there as long as it
/// lives, so that a connection that the kernel refuses says that it has ended. Elsewhere something on the way may have refused it.
fn is_of_this_host(peer: &Segment) -> bool {
    let same_boot = match (&peer.host, boot_id()) {
        (Some(contact), Ok(own)) => contact.boot_id == own,
        _ => false,
    };
    // What can be bound is an address of this host, and of this namespace.
    let mut addresses = peer.addresses.iter();
    same_boot && addresses.all(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
}

/// No connection to this peer can be made, on any address.
fn unsealed(error: SealError) -> CloseReason {
    CloseReason::Gone(Cause::Seal(error))
}

impl<T: SpanMemory> End for ClientEnd<'_, T> {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        let client = &mut *self.client;
        let keys = match client.handshake.take() {
            Some(handshake) => Some(handshake.finish(greeting).map_err(unsealed)?),
            None if greeting.features.has(Features::SEALED) => {
                return Err(unsealed(SealError::Unsealed));
            }
            None => None,
        };
        client.handle(self.now, Input::Greeting(greeting))?;
        Ok(Greeted {
            sealed: keys
                .map(|Keys { send, receive }| (Sealer::first(send), Opener::proven(receive))),
            proven: true,
            refused: false,
        })
    }

    /// The process speaks it on all its addresses.
    fn other_version(&mut self, error: &GreetingError) -> CloseReason {
        CloseReason::Gone(Cause::Protocol(error.to_string()))
    }

    fn proven(&mut self) -> Result<(), CloseReason> {
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        self.client.handle(self.now, Input::Frame(frame))
    }

    fn want(&mut self) -> Want {
        self.client.initiator.want()
    }

    fn expected(&self) -> Option<Span> {
        self.client.initiator.expected()
    }

    fn place(&mut self, span: Span) -> Option<Place<'_>> {
        self.client.initiator.task(span.id)?.place(span.offset)
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.client.handle(self.now, Input::Arrived(bytes))
    }

    fn text(&mut self, _: &[u8]) -> Result<(), CloseReason> {
        Ok(())
    }

    fn gather(&mut self, out: &mut Vectors) -> usize {
        self.client.initiator.gather(|piece| add(piece, out))
    }

    fn wrote(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.client.handle(self.now, Input::Wrote(bytes))
    }
}
