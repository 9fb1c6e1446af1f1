//! The target's end of a connection: the protocol, who the peer is, and the memory that it may reach.

use slackwater_base::Instant;
use slackwater_data_plane::{
    Cause,
    protocol::{
        CloseReason, Responder, Span, Want,
        responding::{Input, Output},
    },
    seal::{Channel, Keys, Opener, Sealer, holder_of, refusal},
};
use slackwater_engine::{Revocation, StageError, Staged, entropy};
use slackwater_net::ConnId;
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Frame, Greeting, GreetingError, Op, Refusal};
use slackwater_zmtp::PublicKey;

use super::context::{ConnectionCount, TcpContext};
use super::cursor::{Place, SpanMemory};
use super::end::{End, Greeted, add};
use super::io::Vectors;
use super::staged::AdmittedMemory;
use super::turn::Turn;

/// One connection of a peer.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    /// The holder whose capabilities the peer may use: the incarnation that it claims, or on a sealed connection the
    /// one that follows from its key. None before its greeting.
    holder: Option<Incarnation>,
    /// The peer's key on a sealed connection, and the version of the allow-list that contained it.
    client: Option<(PublicKey, u64)>,
    /// Counts this connection among those of its peer.
    counted: Option<ConnectionCount>,
    /// The greeting names another incarnation.
    mistaken: bool,
    pub(crate) responder: Responder<AdmittedMemory>,
    out: Vec<Output>,
}

/// A connection of a peer, in one turn of its loop.
pub(crate) struct ServerEnd<'a> {
    pub(crate) server: &'a mut ServerConnection,
    pub(crate) conn: ConnId,
    pub(crate) turn: &'a Turn<'a>,
}

impl ServerConnection {
    pub(crate) fn new(context: &TcpContext, now: Instant) -> Self {
        Self {
            holder: None,
            client: None,
            counted: None,
            mistaken: false,
            responder: Responder::new(context.config.responder_limits(), now),
            out: Vec::new(),
        }
    }

    /// The peer, if nothing of it is under way.
    pub(crate) fn idle_peer(&self) -> Option<Incarnation> {
        self.holder.filter(|_| self.responder.is_quiet())
    }

    fn holder(&self) -> Incarnation {
        self.holder.unwrap_or(Incarnation(0))
    }

    /// Ends the connection if the peer's key was removed from the allow-list meanwhile.
    fn check_key(&mut self, turn: &Turn<'_>) -> Result<(), CloseReason> {
        let (Some((client, seen)), Some(seal)) = (&mut self.client, &turn.context.config.seal)
        else {
            return Ok(());
        };
        let version = seal.clients.version();
        if *seen != version {
            *seen = version;
            if !seal.clients.admits(client) {
                return Err(CloseReason::KeyRevoked);
            }
        }
        Ok(())
    }
}

impl ServerEnd<'_> {
    /// The list of keys has changed.
    pub(crate) fn relisted(&mut self) -> Result<(), CloseReason> {
        self.server.check_key(self.turn)
    }

    /// A device has room again.
    pub(crate) fn resumed(&mut self) -> Result<(), CloseReason> {
        self.handle(Input::Resumed)
    }

    /// A copy into the device has ended.
    pub(crate) fn stored(
        &mut self,
        id: u64,
        result: Result<(), StageError>,
    ) -> Result<(), CloseReason> {
        if let Err(error) = &result {
            tracing::debug!(%error, "a write to a device failed");
        }
        self.handle(Input::Stored(id, result.is_ok()))
    }

    /// A copy out of the device has ended. A chunk that nobody waits for goes back at once.
    pub(crate) fn fetched(
        &mut self,
        id: u64,
        result: Result<Staged, StageError>,
    ) -> Result<(), CloseReason> {
        let fetched = result.is_ok();
        match (result, self.server.responder.memory(id)) {
            (Ok(staged), Some(memory)) => memory.fetched(staged),
            (Ok(_), None) => {}
            (Err(error), _) => tracing::debug!(%error, "a read of a device failed"),
        }
        self.handle(Input::Fetched(id, fetched))
    }

    /// A region closes, or an extent was fenced: its requests are refused, and their accesses released.
    pub(crate) fn release(&mut self, revoked: &Revocation) -> Result<(), CloseReason> {
        let memories = self.server.responder.memories();
        let ids: Vec<u64> = memories
            .filter(|(_, memory)| revoked.covers(&memory.access))
            .map(|(id, _)| id)
            .collect();
        ids.into_iter()
            .try_for_each(|id| self.handle(Input::Revoked(id, Refusal::Generation)))
    }

    fn handle(&mut self, input: Input<'_, AdmittedMemory>) -> Result<(), CloseReason> {
        let ServerConnection { responder, out, .. } = &mut *self.server;
        responder.handle(self.turn.now, input, out)?;
        if out.is_empty() {
            return Ok(());
        }
        let mut outputs = std::mem::take(out);
        for output in outputs.drain(..) {
            self.perform(output)?;
        }
        if self.server.out.capacity() == 0 {
            self.server.out = outputs;
        }
        Ok(())
    }

    fn perform(&mut self, output: Output) -> Result<(), CloseReason> {
        let (home, conn, turn) = (&self.turn.context.home, self.conn, self.turn);
        if let Output::Notice(id, notice) = output {
            let taken = home.deliver(self.server.holder(), notice);
            return self.handle(Input::Delivered(id, taken));
        }
        let Some(memory) = self.server.responder.memory(output.id()) else {
            return Ok(());
        };
        match output {
            Output::Commit(id) => {
                let counts = home.confirm(&memory.access);
                return self.handle(Input::Committed(id, counts));
            }
            Output::Store(id, chunk) => memory.store(id, chunk, conn, turn),
            Output::Fetch(id, chunk) => memory.fetch(id, chunk, conn, turn),
            Output::Send(_, chunk) => memory.send(chunk),
            Output::Sent(_) => memory.sent(),
            Output::Notice(..) => {}
        }
        Ok(())
    }
}

impl End for ServerEnd<'_> {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        let context = self.turn.context;
        self.handle(Input::Greeting(greeting))?;
        let own = context.home.incarnation();
        let server = &mut *self.server;
        server.mistaken = greeting.expects != Incarnation(0) && greeting.expects != own;
        server.holder = Some(greeting.incarnation);
        let own = context.greeting(greeting.incarnation, Features::TRACED);
        let Some(seal) = &context.config.seal else {
            server.responder.greet(&own);
            return Ok(Greeted {
                proven: true,
                ..Greeted::default()
            });
        };
        let entropy = entropy().map_err(|error| CloseReason::Lost(Cause::Seal(error)))?;
        // Taken before the look-up: a key that is revoked meanwhile is looked up again.
        let listed = seal.clients.version();
        match seal.answer(&entropy, greeting, own, &Channel::TCP) {
            Ok((client, answered, Keys { send, receive })) => {
                (server.holder, server.client) = (Some(holder_of(&client)), Some((client, listed)));
                let sealer = Sealer::after(send, answered.to_bytes().to_vec());
                Ok(Greeted {
                    sealed: Some((sealer, Opener::new(receive))),
                    ..Greeted::default()
                })
            }
            Err(error) => {
                // The peer reads the reason and closes; if it sends anything else the connection is closed here.
                tracing::debug!(%error, incarnation = %greeting.incarnation, "an initiator is not let in");
                context.refused.count_peer();
                server.responder.greet(&refusal(own));
                Ok(Greeted {
                    refused: true,
                    ..Greeted::default()
                })
            }
        }
    }

    /// It is told ours, so that it can say why it is not let in: the versions are at the same place in all greetings.
    fn other_version(&mut self, error: &GreetingError) -> CloseReason {
        let own = self
            .turn
            .context
            .greeting(Incarnation(0), Features::default());
        self.server.responder.greet(&own);
        CloseReason::protocol(&error.to_string())
    }

    /// From now on the connection counts among those of its peer.
    fn proven(&mut self) -> Result<(), CloseReason> {
        self.server.counted = self.turn.context.count_connection(self.server.holder());
        if self.server.counted.is_some() {
            return Ok(());
        }
        self.server.responder.turn_away();
        Err(CloseReason::Limit(
            "more connections than one peer may have",
        ))
    }

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        if self.server.mistaken {
            return Err(CloseReason::protocol("a request to another incarnation"));
        }
        self.server.check_key(self.turn)?;
        let Frame::Request(request) = frame else {
            return self.handle(Input::Frame(frame));
        };
        let (home, range) = (&self.turn.context.home, (request.offset, request.bytes));
        let mut trace = TraceSpan::of(request.trace, span_name(request.op), SpanKind::Server);
        trace.note("slackwater.bytes", request.bytes);
        let admitted = home
            .admit(
                &request.capability,
                request.op.right(),
                range,
                self.server.holder(),
            )
            .inspect_err(|refusal| trace.fail(refusal));
        let admitted = admitted.and_then(|access| AdmittedMemory::of(access, trace));
        self.handle(Input::Request(&request, admitted))
    }

    /// Lends memory where the next payload needs it, and releases memory that may not be touched any more.
    fn want(&mut self) -> Want {
        loop {
            let responder = &mut self.server.responder;
            let want = responder.want();
            let input = match want {
                Want::Room(chunk) => {
                    let lent = responder
                        .memory(chunk.id)
                        .is_some_and(|memory| memory.lend(chunk, self.conn, self.turn));
                    match lent {
                        true => Input::Lent(chunk.id),
                        false => Input::NoRoom,
                    }
                }
                Want::Memory(span) => match responder.memory(span.id) {
                    Some(memory) if !memory.access.is_live() => {
                        Input::Revoked(span.id, Refusal::Generation)
                    }
                    _ => return want,
                },
                _ => return want,
            };
            // None of these inputs can be at odds with the protocol.
            let _ = self.handle(input);
        }
    }

    fn place(&mut self, span: Span) -> Option<Place<'_>> {
        self.server.responder.memory(span.id)?.place(span.offset)
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(Input::Arrived(bytes))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.handle(Input::Text(bytes))
    }

    fn gather(&mut self, out: &mut Vectors) -> usize {
        self.server.responder.gather(|piece| add(piece, out))
    }

    fn wrote(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(Input::Wrote(bytes))
    }
}

/// What the target does for a request, in traces.
fn span_name(op: Op) -> &'static str {
    match op {
        Op::Read => "slackwater.node.read",
        Op::Write => "slackwater.node.write",
    }
}
