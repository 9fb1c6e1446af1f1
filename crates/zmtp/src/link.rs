mod opening;

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;

use crate::cause::printable;
use crate::command::{self, COMMAND, Command, MORE};
use crate::curve::{self, Session};
use crate::reader::{Frame, Reader};
use crate::{
    Cause, Entropy, LinkConfig, Mechanism, Message, Peer, SendError, SocketType, greeting, send,
};
use opening::{Opening, Step};

/// An input of a link, from its owner.
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

/// An event that a link reports to its owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer on a listening link is authenticated: answer with [`Input::Admit`].
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

/// The output of a link: bytes for the peer and events for the owner, appended to both.
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
///
/// A message that comes whole touches the few words of this struct and nothing behind them but the session: of
/// thousands of links each is cold when its turn comes, and every further cache line costs more than the work.
pub struct Link {
    config: Arc<LinkConfig>,
    /// Until it is up. In place behind the pointer and never moved out of it: its secrets are wiped where they were.
    opening: Option<Box<Opening>>,
    /// What is half read; most of the time nothing.
    reader: Option<Box<Reader>>,
    session: Option<Box<Session>>,
    /// When the last byte came.
    received_at: Instant,
    /// When the phase began; of a link that is up, when PING was last sent.
    since: Instant,
    /// After how much silence the peer wants to be given up, in tenths of a second; 0 for never.
    peer_ttl_tenths: u16,
    closed: bool,
}

impl Link {
    /// A link that has not said anything yet. `entropy` is used up by the handshake.
    #[must_use]
    pub fn new(config: Arc<LinkConfig>, entropy: Entropy, now: Instant) -> Self {
        let opening = Some(Box::new(Opening::new(entropy)));
        let (reader, session) = (None, None);
        Self {
            config,
            opening,
            reader,
            session,
            received_at: now,
            since: now,
            peer_ttl_tenths: 0,
            closed: false,
        }
    }

    /// Sends the greeting, all of it: a peer that waits for our signature must not wait for us in turn.
    pub fn start(&mut self, out: &mut Out<'_>) {
        let fresh = self
            .opening
            .as_mut()
            .filter(|opening| matches!(opening.step, Step::New));
        let Some(opening) = fresh else { return };
        opening.step = Step::Greeting;
        let mechanism = &self.config.mechanism;
        greeting::write(
            mechanism.name(),
            matches!(mechanism, Mechanism::CurveServer(_)),
            out.wire,
        );
    }

    /// Takes one input in.
    pub fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out<'_>) {
        if self.closed {
            return;
        }
        let outcome = match input {
            Input::Bytes(bytes) => {
                self.received_at = now;
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
        match &self.opening {
            Some(opening) if opening.is_admitting() => {
                command::write_frame(&command::body("ERROR", &[b"\x03400"]), out.wire);
                self.close(Cause::AdmissionTimeout, out);
            }
            Some(_) => self.close(Cause::HandshakeTimeout, out),
            None if now >= self.silence_ends() => self.close(Cause::HeartbeatLost, out),
            None => {
                self.since = now;
                self.send_command(&command::body("PING", &[&[0, 0]]), out.wire);
            }
        }
    }

    /// When [`on_deadline`](Link::on_deadline) is due next. While a link is up it moves towards later with every byte,
    /// so a timer set for an earlier value needs no cancelling; it moves towards earlier only with a command of the
    /// peer, which is answered with bytes.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let limits = &self.config.limits;
        match &self.opening {
            _ if self.closed => Instant::NEVER,
            Some(opening) if opening.is_admitting() => self.since + limits.admission_time,
            Some(_) => self.since + limits.handshake_time,
            None => self.ping_due().min(self.silence_ends()),
        }
    }

    /// Puts a message on the wire.
    ///
    /// # Errors
    /// [`SendError`] when the message has no part or the link is not up; nothing was written then.
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
        out.wire
            .reserve(send::wire_bytes(parts.clone(), self.session.is_some()));
        send::write(parts, self.session.as_deref_mut(), out.wire);
        Ok(())
    }

    /// Subscribes to topics beginning with `prefix` at the publisher at the other end, or unsubscribes.
    ///
    /// `minor` is the peer's, from [`Peer::minor`].
    ///
    /// # Errors
    /// [`SendError::NotUp`] before the handshake is through.
    pub fn subscribe(
        &mut self,
        prefix: &[u8],
        wanted: bool,
        minor: u8,
        out: &mut Out<'_>,
    ) -> Result<(), SendError> {
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
        self.opening.is_none() && !self.closed
    }

    /// Whether the link is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Most messages come whole: they are read without anything of the link's own, which is only made for the rest.
    fn on_bytes(&mut self, now: Instant, bytes: &[u8], out: &mut Out<'_>) -> Result<(), Cause> {
        if let Some(mut reader) = self.reader.take() {
            self.read(now, bytes, &mut reader, out)?;
            self.reader = (!reader.is_idle()).then_some(reader);
            return Ok(());
        }
        let mut passing = Reader::default();
        self.read(now, bytes, &mut passing, out)?;
        if !passing.is_idle() {
            self.reader = Some(Box::new(passing));
        }
        Ok(())
    }

    fn read(
        &mut self,
        now: Instant,
        mut bytes: &[u8],
        reader: &mut Reader,
        out: &mut Out<'_>,
    ) -> Result<(), Cause> {
        while !bytes.is_empty() {
            if self.opening.is_some() {
                if !self.open(now, &mut bytes, reader, out)? {
                    break;
                }
                continue;
            }
            let limits = &self.config.limits;
            // Data sent to a publisher is a subscription, too.
            let data = if self.config.socket == SocketType::Pub {
                limits.command_bytes
            } else {
                limits.frame_bytes
            };
            let limit = |flags: u8| match self.session {
                Some(_) => data.max(limits.command_bytes) + curve::MESSAGE_OVERHEAD as u64,
                None if flags & COMMAND == 0 => data,
                None => limits.command_bytes,
            };
            let Some(frame) = reader.next(&mut bytes, limit)? else {
                break;
            };
            self.on_frame(frame, reader, out)?;
        }
        Ok(())
    }

    fn on_frame(
        &mut self,
        frame: Frame,
        reader: &mut Reader,
        out: &mut Out<'_>,
    ) -> Result<(), Cause> {
        let (mut command, mut more, mut start) =
            (frame.flags & COMMAND != 0, frame.flags & MORE != 0, 0);
        if let Some(session) = &mut self.session {
            // Inside a box the bits are 1 for MORE and 2 for COMMAND.
            let inner = session.open(reader.payload(frame))?;
            if inner & !3 != 0 || inner == 3 {
                return Err(Cause::Malformed {
                    what: "flags of MESSAGE",
                });
            }
            (command, more, start) = (inner & 2 != 0, inner & 1 != 0, curve::MESSAGE_OVERHEAD);
        }
        if command || self.config.socket == SocketType::Pub {
            let body = &reader.payload(frame)[start..];
            let limit = self.config.limits.command_bytes;
            if body.len() as u64 > limit {
                return Err(Cause::FrameTooLarge {
                    size: body.len() as u64,
                    limit,
                });
            }
            match command {
                true => self.on_command(body, out)?,
                false => on_subscription_frame(body, out)?,
            }
            reader.discard(frame);
            return Ok(());
        }
        let limits = &self.config.limits;
        if reader.stored_bytes() > limits.message_bytes.min(MESSAGE_BYTES) {
            return Err(Cause::MessageTooLarge {
                limit: limits.message_bytes.min(MESSAGE_BYTES),
            });
        }
        reader.keep(frame.start + start);
        if reader.parts() > limits.parts {
            return Err(Cause::TooManyParts {
                limit: limits.parts,
            });
        }
        if !more {
            out.events.push(Event::Message(reader.finish()));
        }
        Ok(())
    }

    fn on_command(&mut self, body: &[u8], out: &mut Out<'_>) -> Result<(), Cause> {
        let is_pub = self.config.socket == SocketType::Pub;
        match Command::read(body)? {
            Command::Ping {
                ttl_tenths,
                context,
            } => {
                if ttl_tenths > 0 {
                    self.peer_ttl_tenths = ttl_tenths;
                }
                let pong = command::body("PONG", &[context]);
                self.send_command(&pong, out.wire);
            }
            Command::Pong => {}
            Command::Subscribe(topic) if is_pub => {
                out.events.push(Event::Subscribe(topic.to_vec()))
            }
            Command::Cancel(topic) if is_pub => out.events.push(Event::Cancel(topic.to_vec())),
            Command::Subscribe(_) => {
                return Err(Cause::UnexpectedCommand {
                    name: "SUBSCRIBE".into(),
                });
            }
            Command::Cancel(_) => {
                return Err(Cause::UnexpectedCommand {
                    name: "CANCEL".into(),
                });
            }
            Command::Error(reason) => {
                return Err(Cause::RefusedByPeer {
                    reason: printable(reason),
                });
            }
        }
        Ok(())
    }

    fn send_command(&mut self, body: &[u8], wire: &mut Vec<u8>) {
        match &mut self.session {
            Some(session) => session.seal(2, body, wire),
            None => command::write_frame(body, wire),
        }
    }

    fn ping_due(&self) -> Instant {
        match self.config.heartbeat {
            Some(heartbeat) => self.received_at.max(self.since) + heartbeat.interval,
            None => Instant::NEVER,
        }
    }

    fn silence_ends(&self) -> Instant {
        let ours = self.config.heartbeat.map(|heartbeat| heartbeat.timeout);
        let theirs = (self.peer_ttl_tenths > 0)
            .then(|| Duration::from_millis(u64::from(self.peer_ttl_tenths) * 100));
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => self.received_at + ours.min(theirs),
            (Some(one), None) | (None, Some(one)) => self.received_at + one,
            (None, None) => Instant::NEVER,
        }
    }

    /// Ends the link: its keys are wiped with the session, a partly read message is freed.
    fn close(&mut self, cause: Cause, out: &mut Out<'_>) {
        self.closed = true;
        self.opening = None;
        self.session = None;
        self.reader = None;
        out.events.push(Event::Closed(cause));
    }
}

/// The places of a message's parts are counted in 32 bits, whatever the configuration says.
const MESSAGE_BYTES: u64 = u32::MAX as u64;

/// A subscriber of minor version 0 sends its wishes as data: 1 or 0, then the topic.
fn on_subscription_frame(body: &[u8], out: &mut Out<'_>) -> Result<(), Cause> {
    match body.split_first() {
        Some((1, topic)) => out.events.push(Event::Subscribe(topic.to_vec())),
        Some((0, topic)) => out.events.push(Event::Cancel(topic.to_vec())),
        _ => {
            return Err(Cause::Malformed {
                what: "subscription",
            });
        }
    }
    Ok(())
}
