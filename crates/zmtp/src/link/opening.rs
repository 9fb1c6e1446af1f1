//! From the first byte to the admission of the peer.

use std::sync::Arc;

use slackwater_base::Instant;

use super::{Event, Link, Out, Verdict};
use crate::cause::printable;
use crate::command::{self, COMMAND};
use crate::curve::{self, AwaitInitiate, AwaitReady, AwaitWelcome, Initiated};
use crate::greeting::Greeting;
use crate::reader::{Frame, Reader};
use crate::{Cause, Entropy, LinkConfig, Mechanism, Peer, Side, metadata};

/// Everything that a link needs until it is up.
pub(super) struct Opening {
    pub(super) step: Step,
    greeting: Greeting,
    minor: u8,
    entropy: Entropy,
}

pub(super) enum Step {
    New,
    Greeting,
    Ready,
    ServerHello,
    ServerInitiate(AwaitInitiate),
    ClientWelcome(AwaitWelcome),
    ClientReady(AwaitReady),
    Admitting(Admitting),
}

pub(super) struct Admitting {
    peer: Peer,
    initiated: Option<Initiated>,
    /// What the peer already sends although it is not in yet.
    held: Vec<u8>,
}

impl Opening {
    pub(super) fn new(entropy: Entropy) -> Self {
        Self {
            step: Step::New,
            greeting: Greeting::default(),
            minor: 0,
            entropy,
        }
    }

    pub(super) fn is_admitting(&self) -> bool {
        matches!(self.step, Step::Admitting(_))
    }
}

impl Link {
    /// Takes bytes off the front; false when there are too few.
    pub(super) fn open(
        &mut self,
        now: Instant,
        bytes: &mut &[u8],
        reader: &mut Reader,
        out: &mut Out<'_>,
    ) -> Result<bool, Cause> {
        let Some(opening) = &mut self.opening else {
            return Ok(false);
        };
        let limit = self.config.limits.command_bytes;
        match &mut opening.step {
            Step::New => Ok(false),
            Step::Greeting => {
                let Some(minor) = opening.greeting.read(bytes, self.config.mechanism.name())?
                else {
                    return Ok(false);
                };
                opening.minor = minor;
                begin_handshake(opening, &self.config, out)?;
                Ok(true)
            }
            Step::Admitting(admitting) => {
                let size = (admitting.held.len() + bytes.len()) as u64;
                if size > limit {
                    return Err(Cause::FrameTooLarge { size, limit });
                }
                admitting.held.extend_from_slice(bytes);
                Ok(false)
            }
            _ => {
                let Some(frame) = reader.next(bytes, |_| limit)? else {
                    return Ok(false);
                };
                self.on_handshake(now, frame, reader, out)?;
                reader.discard(frame);
                Ok(true)
            }
        }
    }

    fn on_handshake(
        &mut self,
        now: Instant,
        frame: Frame,
        reader: &mut Reader,
        out: &mut Out<'_>,
    ) -> Result<(), Cause> {
        if frame.flags & COMMAND == 0 {
            return Err(Cause::Malformed {
                what: "data before the end of the handshake",
            });
        }
        let Some(opening) = &mut self.opening else {
            return Ok(());
        };
        let (config, minor) = (Arc::clone(&self.config), opening.minor);
        let body = reader.payload(frame);
        let (name, data) = command::split_name(body)?;
        if name == b"ERROR" && config.mechanism.side() == Side::Connect {
            return Err(Cause::RefusedByPeer {
                reason: printable(command::error_reason(data)?),
            });
        }
        if name != opening.step.awaits() {
            return Err(Cause::UnexpectedCommand {
                name: printable(name),
            });
        }
        match (&opening.step, &config.mechanism) {
            (Step::ServerHello, Mechanism::CurveServer(keys)) => {
                let (next, welcome) = curve::hello(keys, &opening.entropy, body)?;
                command::write_frame(&welcome, out.wire);
                opening.step = Step::ServerInitiate(next);
            }
            (Step::ServerInitiate(step), _) => {
                let initiated = step.initiate(body)?;
                let mut peer = Peer::read(&body[initiated.metadata_at..], &config, minor)?;
                peer.key = Some(initiated.client);
                self.ask_admission(now, peer, Some(initiated), out);
            }
            (Step::ClientWelcome(step), Mechanism::CurveClient { keys, server }) => {
                let mut metadata = Vec::new();
                metadata::write(&config, &mut metadata);
                let (next, initiate) = step.welcome(keys, server, body, &metadata)?;
                command::write_frame(&initiate, out.wire);
                opening.step = Step::ClientReady(next);
            }
            (Step::ClientReady(step), Mechanism::CurveClient { server, .. }) => {
                let (session, metadata_at) = step.ready(body)?;
                let mut peer = Peer::read(&body[metadata_at..], &config, minor)?;
                peer.key = Some(*server);
                self.session = Some(session);
                self.up(now, peer, out);
            }
            _ => {
                let peer = Peer::read(data, &config, minor)?;
                match config.mechanism.side() {
                    Side::Connect => self.up(now, peer, out),
                    Side::Listen => self.ask_admission(now, peer, None, out),
                }
            }
        }
        Ok(())
    }

    fn ask_admission(
        &mut self,
        now: Instant,
        peer: Peer,
        initiated: Option<Initiated>,
        out: &mut Out<'_>,
    ) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        self.since = now;
        out.events.push(Event::Admission(peer.clone()));
        opening.step = Step::Admitting(Admitting {
            peer,
            initiated,
            held: Vec::new(),
        });
    }

    pub(super) fn on_verdict(
        &mut self,
        now: Instant,
        verdict: &Verdict,
        out: &mut Out<'_>,
    ) -> Result<(), Cause> {
        let Some(Step::Admitting(admitting)) =
            self.opening.as_mut().map(|opening| &mut opening.step)
        else {
            return Ok(());
        };
        if let Verdict::Refuse(status) = verdict {
            let status = format!("{status:03}");
            let reason = [&[status.len() as u8], status.as_bytes()].concat();
            command::write_frame(&command::body("ERROR", &[&reason]), out.wire);
            return Err(Cause::Refused { status });
        }
        match &admitting.initiated {
            None => command::write_frame(&plain_ready(&self.config), out.wire),
            Some(initiated) => {
                let mut metadata = Vec::new();
                metadata::write(&self.config, &mut metadata);
                let (session, ready) = initiated.ready(&metadata);
                command::write_frame(&ready, out.wire);
                self.session = Some(session);
            }
        }
        let (peer, held) = (
            std::mem::take(&mut admitting.peer),
            std::mem::take(&mut admitting.held),
        );
        self.up(now, peer, out);
        self.on_bytes(now, &held, out)
    }

    fn up(&mut self, now: Instant, peer: Peer, out: &mut Out<'_>) {
        self.received_at = now;
        self.since = now;
        self.opening = None;
        out.events.push(Event::Up(peer));
    }
}

impl Step {
    /// The command that comes next.
    fn awaits(&self) -> &'static [u8] {
        match self {
            Step::ServerHello => b"HELLO",
            Step::ServerInitiate(_) => b"INITIATE",
            Step::ClientWelcome(_) => b"WELCOME",
            Step::Ready | Step::ClientReady(_) => b"READY",
            Step::New | Step::Greeting | Step::Admitting(_) => b"",
        }
    }
}

fn begin_handshake(
    opening: &mut Opening,
    config: &LinkConfig,
    out: &mut Out<'_>,
) -> Result<(), Cause> {
    match &config.mechanism {
        Mechanism::Null(side) => {
            if *side == Side::Connect {
                command::write_frame(&plain_ready(config), out.wire);
            }
            opening.step = Step::Ready;
        }
        Mechanism::CurveServer(_) => opening.step = Step::ServerHello,
        Mechanism::CurveClient { server, .. } => {
            let (step, hello) = AwaitWelcome::start(server, &opening.entropy)?;
            command::write_frame(&hello, out.wire);
            opening.step = Step::ClientWelcome(step);
        }
    }
    Ok(())
}

fn plain_ready(config: &LinkConfig) -> Vec<u8> {
    let mut metadata = Vec::new();
    metadata::write(config, &mut metadata);
    command::body("READY", &[&metadata])
}
