//! The passive end of a connection: what a peer asks of this process.

use slackwater_net::ConnId;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Ack, Features, Frame, Greeting, Notify, Refusal};
use slackwater_zmtp::PublicKey;

use super::config::NOTICE_BYTES_MAX;
use super::conn::{Broken, Payload};
use super::cursor::Cursor;
use super::outlet::Outlet;
use super::record::{Opener, Sealer};
use super::seal::{Keys, SealError, answer, holder_of, refusal};
use super::served::{Served, refused};
use super::shared::Standing;
use super::turn::Turn;
use crate::mover::Notice;

/// One peer on one connection.
#[derive(Debug, Default)]
pub(crate) struct Serve {
    /// Who asks, and whose capabilities it may use: what it claims to be, or on a sealed connection what its key says. None
    /// before its greeting.
    holder: Option<Incarnation>,
    /// The key of a sealed connection, and the state of the list that had it.
    client: Option<(PublicKey, u64)>,
    /// Its place among the connections of its peer.
    standing: Option<Standing>,
    /// It wants to speak to another process.
    mistaken: bool,
    pub(crate) served: Served,
    notice: Option<Incoming>,
}

#[derive(Debug)]
struct Incoming {
    id: u64,
    name_bytes: usize,
    text: Vec<u8>,
}

impl Serve {
    /// Answers, and says what opens the records of the peer, if its connection is sealed.
    pub(crate) fn greeting(
        &mut self,
        greeting: &Greeting,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<Option<Opener>, SealError> {
        let own = turn.shared.home.incarnation();
        self.mistaken = greeting.expects != Incarnation(0) && greeting.expects != own;
        self.holder = Some(greeting.incarnation);
        let own = turn
            .shared
            .greeting(greeting.incarnation, Features::default());
        let Some(seal) = &turn.shared.config.seal else {
            outlet.push_bytes(own.to_bytes().to_vec());
            return Ok(None);
        };
        // Taken first: a key that is struck off meanwhile is looked up again.
        let listed = seal.clients.version();
        match answer(seal, greeting, own) {
            Ok((client, answered, Keys { send, receive })) => {
                (self.holder, self.client) = (Some(holder_of(&client)), Some((client, listed)));
                outlet.seal(Sealer::after(send, answered.to_bytes().to_vec()));
                Ok(Some(Opener::new(receive)))
            }
            Err(error) => {
                outlet.push_bytes(refusal(own).to_bytes().to_vec());
                Err(error)
            }
        }
    }

    /// The peer is who it says it is, as far as that is asked for: from now on it counts as one of that peer's connections.
    pub(crate) fn proven(&mut self, outlet: &mut Outlet, turn: &Turn<'_>) -> Result<(), Broken> {
        self.standing = turn.shared.stand(self.holder());
        if self.standing.is_none() {
            outlet.push(&Frame::Goaway);
            return Err(Broken::Limit("more connections than one peer may have"));
        }
        Ok(())
    }

    /// Who asks, if nothing is under way.
    pub(crate) fn idle_peer(&self) -> Option<Incarnation> {
        self.holder
            .filter(|_| self.served.is_empty() && self.notice.is_none())
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        conn: ConnId,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<Option<Payload>, Broken> {
        if self.mistaken {
            return Err(Broken::protocol("a request to another incarnation"));
        }
        self.look_again(turn)?;
        // A peer that only asks, and reads no answer, fills no memory here.
        if outlet.len() > 2 * turn.shared.config.requests_max as usize + Outlet::FRAMES_MAX {
            return Err(Broken::Limit("more questions than answers that were read"));
        }
        match frame {
            Frame::Request(request) => {
                let range = (request.offset, request.bytes);
                let admitted =
                    turn.shared
                        .home
                        .admit(&request.capability, request.op, range, self.holder());
                self.served.begin(&request, admitted, conn, outlet, turn)?;
            }
            Frame::Data(data) if data.bytes as usize > turn.shared.frame_bytes_max() => {
                return Err(Broken::protocol("a frame over the limit"));
            }
            Frame::Data(data) => return self.served.data(&data).map(Some),
            Frame::Cancel { id } => self.served.cancel(id, outlet),
            Frame::Ping { token } => outlet.push(&Frame::Pong { token }),
            Frame::Notify(notify) => return self.notify(&notify).map(Some),
            Frame::Goaway | Frame::Pong { .. } => {}
            Frame::Ack(_) => return Err(Broken::protocol("an acknowledgement from an initiator")),
        }
        Ok(None)
    }

    /// Where payload goes; none when it is thrown away, or kept elsewhere.
    pub(crate) fn cursor(&mut self, payload: &Payload, outlet: &mut Outlet) -> Option<&mut Cursor> {
        self.served.cursor(payload.id?, outlet)
    }

    /// Payload that has no cursor.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if let Some(incoming) = &mut self.notice {
            incoming.text.extend_from_slice(bytes);
        }
    }

    pub(crate) fn payload_done(
        &mut self,
        payload: &Payload,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<(), Broken> {
        match (self.notice.take(), payload.id) {
            (Some(incoming), _) => self.deliver(incoming, outlet, turn),
            (None, Some(id)) if payload.last => self.served.payload_done(id, outlet, turn),
            (None, _) => Ok(()),
        }
    }

    /// Whoever's key was struck off the list meanwhile is not served any more.
    fn look_again(&mut self, turn: &Turn<'_>) -> Result<(), Broken> {
        let (Some((client, seen)), Some(seal)) = (&mut self.client, &turn.shared.config.seal)
        else {
            return Ok(());
        };
        let version = seal.clients.version();
        if *seen != version {
            *seen = version;
            if !seal.clients.admits(client) {
                return Err(Broken::Struck);
            }
        }
        Ok(())
    }

    fn holder(&self) -> Incarnation {
        self.holder.unwrap_or(Incarnation(0))
    }

    fn notify(&mut self, notify: &Notify) -> Result<Payload, Broken> {
        let bytes = u64::from(notify.name_bytes) + u64::from(notify.bytes);
        if bytes > NOTICE_BYTES_MAX {
            return Err(Broken::protocol("a notice over the limit"));
        }
        self.notice = Some(Incoming {
            id: notify.id,
            name_bytes: notify.name_bytes as usize,
            text: Vec::new(),
        });
        Ok(Payload {
            id: None,
            left: bytes as usize,
            last: true,
        })
    }

    fn deliver(
        &mut self,
        mut incoming: Incoming,
        outlet: &mut Outlet,
        turn: &Turn<'_>,
    ) -> Result<(), Broken> {
        let bytes = incoming.text.split_off(incoming.name_bytes);
        let Ok(name) = String::from_utf8(incoming.text) else {
            return Err(Broken::protocol("a notice whose name is no text"));
        };
        let frame = match turn
            .shared
            .home
            .deliver(self.holder(), Notice { name, bytes })
        {
            true => {
                let credit = turn.shared.config.requests_max;
                Frame::Ack(Ack {
                    id: incoming.id,
                    refusal: None,
                    bytes: 0,
                    checksum: 0,
                    credit,
                })
            }
            false => refused(incoming.id, Refusal::Limit),
        };
        outlet.push(&frame);
        Ok(())
    }
}
