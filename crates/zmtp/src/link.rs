use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;

use crate::cause::printable;
use crate::command::{self, COMMAND, Command, MORE};
use crate::curve::{self, AwaitHello, AwaitInitiate, AwaitReady, AwaitWelcome, Initiated, Session};
use crate::greeting::Greeting;
use crate::reader::{Frame, Reader};
use crate::{
    Cause, Entropy, LinkConfig, Mechanism, Message, Peer, SendError, Side, SocketType, greeting, metadata, send,
};

/// What the owner of a link tells it.
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes from the peer, cut anywhere.
    Bytes(&'a [u8]),
    /// The answer to [`Event::Admission`].
    Admit(Verdict),
    /// The peer ended the stream.
    Eof,
    /// Close now; what was put on the wire may still be written out.
    Close,
}

/// Whether a peer may come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Accept,
    /// It may not; the three-digit status is what libzmq peers understand (400 for a refusal).
    Refuse(u16),
}

/// What a link tells its owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer on a listening link has proven who it is: answer with [`Input::Admit`].
    Admission(Peer),
    /// The handshake is through; messages may be sent.
    Up(Peer),
    /// A whole message.
    Message(Message),
    /// The peer of a PUB socket wants the topics that begin with this.
    Subscribe(Vec<u8>),
    /// It no longer does.
    Cancel(Vec<u8>),
    /// The link is over; nothing follows.
    Closed(Cause),
}

/// Where a link puts what it has to say: bytes for the peer and events for the owner, appended to both.
#[derive(Debug)]
pub struct Out<'a> {
    /// Bytes to write to the peer, in order.
    pub wire: &'a mut Vec<u8>,
    /// Events for the owner, in order.
    pub events: &'a mut Vec<Event>,
}

/// One ZMTP connection.
///
/// [`start`](Link::start) it, feed it with [`handle`](Link::handle), call [`on_deadline`](Link::on_deadline) when
/// [`next_deadline`](Link::next_deadline) has come, and put messages in with [`send`](Link::send). How the byte
/// stream is cut makes no difference. Before the link is up it keeps at most [`Limits::command_bytes`] of the peer's
/// bytes and a fixed handshake state; when it is up and no message is half read it keeps none.
///
/// [`Limits::command_bytes`]: crate::Limits::command_bytes
pub struct Link {
    config: Arc<LinkConfig>,
    state: State,
    reader: Reader,
    session: Option<Session>,
    clock: Clock,
}

enum State {
    New(Entropy),
    Greeting(Box<(Greeting, Entropy)>),
    Handshake { minor: u8, step: Box<Step> },
    Admitting(Box<Admitting>),
    Up,
    Closed,
}

enum Step {
    Ready,
    ServerHello(AwaitHello),
    ServerInitiate(AwaitInitiate),
    ClientWelcome(AwaitWelcome),
    ClientReady(AwaitReady),
}

struct Admitting {
    peer: Peer,
    initiated: Option<Initiated>,
    held: Vec<u8>,
}

/// The times that matter to a link.
struct Clock {
    phase_began: Instant,
    heard: Instant,
    pinged: Instant,
    peer_ttl: Option<Duration>,
}

impl Link {
    /// A link that has not said anything yet. `entropy` is used up by the handshake.
    #[must_use]
    pub fn new(config: Arc<LinkConfig>, entropy: Entropy, now: Instant) -> Self {
        let clock = Clock { phase_began: now, heard: now, pinged: now, peer_ttl: None };
        Self { config, state: State::New(entropy), reader: Reader::default(), session: None, clock }
    }

    /// Sends the greeting, all of it: a peer that waits for our signature must not wait for us in turn.
    pub fn start(&mut self, out: &mut Out<'_>) {
        if !matches!(self.state, State::New(_)) {
            return;
        }
        let State::New(entropy) = std::mem::replace(&mut self.state, State::Closed) else { return };
        let mechanism = &self.config.mechanism;
        greeting::write(mechanism.name(), matches!(mechanism, Mechanism::CurveServer(_)), out.wire);
        self.state = State::Greeting(Box::new((Greeting::default(), entropy)));
    }

    /// Takes one input in.
    pub fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out<'_>) {
        if matches!(self.state, State::Closed) {
            return;
        }
        let outcome = match input {
            Input::Bytes(bytes) => {
                self.clock.heard = now;
                self.on_bytes(now, bytes, out)
            }
            Input::Admit(verdict) => self.on_verdict(now, &verdict, out),
            Input::Eof => Err(Cause::PeerGone),
            Input::Close => Err(Cause::Local),
        };
        if let Err(cause) = outcome {
            self.close(cause, out);
        }
    }

    /// Does what is due at `now`: gives up a handshake or a silent peer, or asks the peer for a sign of life.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Out<'_>) {
        if now < self.next_deadline() {
            return;
        }
        match &self.state {
            State::New(_) | State::Greeting(_) | State::Handshake { .. } => self.close(Cause::HandshakeTimeout, out),
            State::Admitting(_) => {
                command::write_frame(&command::body("ERROR", &[b"\x03400"]), out.wire);
                self.close(Cause::AdmissionTimeout, out);
            }
            State::Up if now >= self.silence_ends() => self.close(Cause::HeartbeatLost, out),
            State::Up => {
                self.clock.pinged = now;
                self.send_command(&command::body("PING", &[&[0, 0]]), out.wire);
            }
            State::Closed => {}
        }
    }

    /// When [`on_deadline`](Link::on_deadline) is due next. It only ever moves towards later while a link is up, so
    /// a timer set for an earlier value needs no cancelling.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let limits = &self.config.limits;
        match &self.state {
            State::New(_) | State::Greeting(_) | State::Handshake { .. } => {
                self.clock.phase_began + limits.handshake_time
            }
            State::Admitting(_) => self.clock.phase_began + limits.admission_time,
            State::Up => self.ping_due().min(self.silence_ends()),
            State::Closed => Instant::NEVER,
        }
    }

    /// Puts a message on the wire.
    ///
    /// # Errors
    /// [`SendError`] when there is no part or the link is not up; nothing was written then.
    pub fn send<'a>(
        &mut self,
        parts: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        out: &mut Out<'_>,
    ) -> Result<(), SendError> {
        if !self.is_up() {
            return Err(SendError::NotUp);
        }
        if parts.len() == 0 {
            return Err(SendError::Empty);
        }
        out.wire.reserve(send::wire_bytes(parts.clone(), self.session.is_some()));
        send::write(parts, self.session.as_mut(), out.wire);
        Ok(())
    }

    /// Tells the publisher at the other end that topics beginning with `prefix` are wanted, or no longer.
    ///
    /// `minor` is the peer's, from [`Peer::minor`].
    ///
    /// # Errors
    /// [`SendError::NotUp`] before the handshake is through.
    pub fn subscribe(&mut self, prefix: &[u8], wanted: bool, minor: u8, out: &mut Out<'_>) -> Result<(), SendError> {
        if minor == 0 {
            let frame = [&[u8::from(wanted)], prefix].concat();
            return self.send(std::iter::once(frame.as_slice()), out);
        }
        if !self.is_up() {
            return Err(SendError::NotUp);
        }
        let name = if wanted { "SUBSCRIBE" } else { "CANCEL" };
        self.send_command(&command::body(name, &[prefix]), out.wire);
        Ok(())
    }

    /// Whether messages may be sent.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Whether the link is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    fn on_bytes(&mut self, now: Instant, mut bytes: &[u8], out: &mut Out<'_>) -> Result<(), Cause> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::New(_) | State::Closed => return Ok(()),
                State::Greeting(opening) => {
                    let Some(minor) = opening.0.read(&mut bytes, self.config.mechanism.name())? else { return Ok(()) };
                    self.begin_handshake(minor, out)?;
                }
                State::Handshake { .. } => {
                    let limit = self.config.limits.command_bytes;
                    let Some(frame) = self.reader.next(&mut bytes, |_| limit)? else { return Ok(()) };
                    self.on_handshake(now, frame, out)?;
                }
                State::Admitting(admitting) => {
                    let size = (admitting.held.len() + bytes.len()) as u64;
                    let limit = self.config.limits.command_bytes;
                    if size > limit {
                        return Err(Cause::FrameTooLarge { size, limit });
                    }
                    admitting.held.extend_from_slice(bytes);
                    return Ok(());
                }
                State::Up => {
                    let limits = self.config.limits;
                    let sealed = self.session.is_some();
                    let limit = move |flags: u8| match (sealed, flags & COMMAND) {
                        (true, _) => limits.frame_bytes + curve::MESSAGE_OVERHEAD as u64,
                        (false, 0) => limits.frame_bytes,
                        (false, _) => limits.command_bytes,
                    };
                    let Some(frame) = self.reader.next(&mut bytes, limit)? else { return Ok(()) };
                    self.on_frame(frame, out)?;
                }
            }
        }
        Ok(())
    }

    fn begin_handshake(&mut self, minor: u8, out: &mut Out<'_>) -> Result<(), Cause> {
        let State::Greeting(opening) = std::mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let entropy = opening.1;
        let step = match &self.config.mechanism {
            Mechanism::Null(side) => {
                if *side == Side::Connect {
                    command::write_frame(&self.plain_ready(), out.wire);
                }
                Step::Ready
            }
            Mechanism::CurveServer(keys) => Step::ServerHello(AwaitHello::new(keys.clone(), entropy)),
            Mechanism::CurveClient { keys, server } => {
                let (step, hello) = AwaitWelcome::start(keys.clone(), *server, &entropy)?;
                command::write_frame(&hello, out.wire);
                Step::ClientWelcome(step)
            }
        };
        self.state = State::Handshake { minor, step: Box::new(step) };
        Ok(())
    }

    fn on_handshake(&mut self, now: Instant, frame: Frame, out: &mut Out<'_>) -> Result<(), Cause> {
        if frame.flags & COMMAND == 0 {
            return Err(Cause::Malformed { what: "data before the end of the handshake" });
        }
        let State::Handshake { minor, step } = std::mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let config = Arc::clone(&self.config);
        let body = self.reader.payload(frame);
        let (name, data) = command::split_name(body)?;
        if name == b"ERROR" && config.mechanism.side() == Side::Connect {
            return Err(Cause::RefusedByPeer { reason: printable(command::error_reason(data)?) });
        }
        let expected = match &*step {
            Step::Ready | Step::ClientReady(_) => &b"READY"[..],
            Step::ServerHello(_) => b"HELLO",
            Step::ServerInitiate(_) => b"INITIATE",
            Step::ClientWelcome(_) => b"WELCOME",
        };
        if name != expected {
            return Err(Cause::UnexpectedCommand { name: printable(name) });
        }
        let mut metadata = Vec::new();
        match *step {
            Step::Ready => {
                let peer = Peer::read(data, &config, minor)?;
                match config.mechanism.side() {
                    Side::Connect => self.up(now, peer, out),
                    Side::Listen => self.ask_admission(now, peer, None, out),
                }
            }
            Step::ServerHello(step) => {
                let (next, welcome) = step.hello(body)?;
                command::write_frame(&welcome, out.wire);
                self.state = State::Handshake { minor, step: Box::new(Step::ServerInitiate(next)) };
            }
            Step::ServerInitiate(step) => {
                let initiated = step.initiate(body)?;
                let mut peer = Peer::read(&body[initiated.metadata_at..], &config, minor)?;
                peer.key = Some(initiated.client);
                self.ask_admission(now, peer, Some(initiated), out);
            }
            Step::ClientWelcome(step) => {
                metadata::write(&config, &mut metadata);
                let (next, initiate) = step.welcome(body, &metadata)?;
                command::write_frame(&initiate, out.wire);
                self.state = State::Handshake { minor, step: Box::new(Step::ClientReady(next)) };
            }
            Step::ClientReady(step) => {
                let (session, metadata_at) = step.ready(body)?;
                let mut peer = Peer::read(&body[metadata_at..], &config, minor)?;
                if let Mechanism::CurveClient { server, .. } = &config.mechanism {
                    peer.key = Some(*server);
                }
                self.session = Some(session);
                self.up(now, peer, out);
            }
        }
        self.reader.discard(frame);
        Ok(())
    }

    fn ask_admission(&mut self, now: Instant, peer: Peer, initiated: Option<Initiated>, out: &mut Out<'_>) {
        self.clock.phase_began = now;
        out.events.push(Event::Admission(peer.clone()));
        self.state = State::Admitting(Box::new(Admitting { peer, initiated, held: Vec::new() }));
    }

    fn on_verdict(&mut self, now: Instant, verdict: &Verdict, out: &mut Out<'_>) -> Result<(), Cause> {
        if !matches!(self.state, State::Admitting(_)) {
            return Ok(());
        }
        let State::Admitting(admitting) = std::mem::replace(&mut self.state, State::Closed) else { return Ok(()) };
        let Admitting { peer, initiated, held } = *admitting;
        if let Verdict::Refuse(status) = verdict {
            let status = format!("{status:03}");
            let reason = [&[status.len() as u8], status.as_bytes()].concat();
            command::write_frame(&command::body("ERROR", &[&reason]), out.wire);
            return Err(Cause::Refused { status });
        }
        match initiated {
            None => command::write_frame(&self.plain_ready(), out.wire),
            Some(initiated) => {
                let mut metadata = Vec::new();
                metadata::write(&self.config, &mut metadata);
                let (session, ready) = initiated.ready(&metadata);
                command::write_frame(&ready, out.wire);
                self.session = Some(session);
            }
        }
        self.up(now, peer, out);
        self.on_bytes(now, &held, out)
    }

    fn up(&mut self, now: Instant, peer: Peer, out: &mut Out<'_>) {
        self.clock.heard = now;
        self.clock.pinged = now;
        self.state = State::Up;
        out.events.push(Event::Up(peer));
    }

    fn on_frame(&mut self, frame: Frame, out: &mut Out<'_>) -> Result<(), Cause> {
        let (mut command, mut more, mut start) = (frame.flags & COMMAND != 0, frame.flags & MORE != 0, 0);
        if let Some(session) = &mut self.session {
            // Inside a box the bits are 1 for MORE and 2 for COMMAND.
            let inner = session.open(self.reader.payload(frame))?;
            if inner & !3 != 0 || inner == 3 {
                return Err(Cause::Malformed { what: "flags of MESSAGE" });
            }
            (command, more, start) = (inner & 2 != 0, inner & 1 != 0, curve::MESSAGE_OVERHEAD);
        }
        if command {
            return self.on_command(frame, start, out);
        }
        if self.config.socket == SocketType::Pub {
            return self.on_subscription_frame(frame, start, out);
        }
        let limits = &self.config.limits;
        self.reader.keep(frame.start + start);
        if self.reader.stored_bytes() > limits.message_bytes {
            return Err(Cause::MessageTooLarge { limit: limits.message_bytes });
        }
        if self.reader.parts() > limits.parts {
            return Err(Cause::TooManyParts { limit: limits.parts });
        }
        if !more {
            out.events.push(Event::Message(self.reader.finish()));
        }
        Ok(())
    }

    fn on_command(&mut self, frame: Frame, start: usize, out: &mut Out<'_>) -> Result<(), Cause> {
        let body = &self.reader.payload(frame)[start..];
        let limit = self.config.limits.command_bytes;
        if body.len() as u64 > limit {
            return Err(Cause::FrameTooLarge { size: body.len() as u64, limit });
        }
        let is_pub = self.config.socket == SocketType::Pub;
        match Command::read(body)? {
            Command::Ping { ttl_tenths, context } => {
                if ttl_tenths > 0 {
                    self.clock.peer_ttl = Some(Duration::from_millis(u64::from(ttl_tenths) * 100));
                }
                let pong = command::body("PONG", &[context]);
                self.send_command(&pong, out.wire);
            }
            Command::Pong => {}
            Command::Subscribe(topic) if is_pub => out.events.push(Event::Subscribe(topic.to_vec())),
            Command::Cancel(topic) if is_pub => out.events.push(Event::Cancel(topic.to_vec())),
            Command::Subscribe(_) => return Err(Cause::UnexpectedCommand { name: "SUBSCRIBE".into() }),
            Command::Cancel(_) => return Err(Cause::UnexpectedCommand { name: "CANCEL".into() }),
            Command::Error(reason) => return Err(Cause::RefusedByPeer { reason: printable(reason) }),
        }
        self.reader.discard(frame);
        Ok(())
    }

    /// A subscriber of minor version 0 sends its wishes as data: 1 or 0, then the topic.
    fn on_subscription_frame(&mut self, frame: Frame, start: usize, out: &mut Out<'_>) -> Result<(), Cause> {
        match self.reader.payload(frame)[start..].split_first() {
            Some((1, topic)) => out.events.push(Event::Subscribe(topic.to_vec())),
            Some((0, topic)) => out.events.push(Event::Cancel(topic.to_vec())),
            _ => return Err(Cause::Malformed { what: "subscription" }),
        }
        self.reader.discard(frame);
        Ok(())
    }

    fn send_command(&mut self, body: &[u8], wire: &mut Vec<u8>) {
        match &mut self.session {
            Some(session) => session.seal(2, body, wire),
            None => command::write_frame(body, wire),
        }
    }

    fn plain_ready(&self) -> Vec<u8> {
        let mut metadata = Vec::new();
        metadata::write(&self.config, &mut metadata);
        command::body("READY", &[&metadata])
    }

    fn ping_due(&self) -> Instant {
        match self.config.heartbeat {
            Some(heartbeat) => self.clock.heard.max(self.clock.pinged) + heartbeat.interval,
            None => Instant::NEVER,
        }
    }

    fn silence_ends(&self) -> Instant {
        let ours = self.config.heartbeat.map(|heartbeat| heartbeat.timeout);
        match (ours, self.clock.peer_ttl) {
            (Some(ours), Some(theirs)) => self.clock.heard + ours.min(theirs),
            (Some(one), None) | (None, Some(one)) => self.clock.heard + one,
            (None, None) => Instant::NEVER,
        }
    }

    /// Ends the link: its keys are wiped with the session, what it had half read is freed.
    fn close(&mut self, cause: Cause, out: &mut Out<'_>) {
        self.state = State::Closed;
        self.session = None;
        self.reader = Reader::default();
        out.events.push(Event::Closed(cause));
    }
}
