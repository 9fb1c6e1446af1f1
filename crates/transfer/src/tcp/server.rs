//! The target's end of a connection.

use slackwater_net::ConnId;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Ack, Features, Frame, Greeting, Notify, Refusal};
use slackwater_zmtp::PublicKey;

use super::config::NOTICE_BYTES_MAX;
use super::conn::{CloseReason, Payload};
use super::context::ConnectionCount;
use super::cursor::Cursor;
use super::record::{Opener, Sealer};
use super::responder::{Responder, refused};
use super::seal::{Keys, SealError, answer, holder_of, refusal};
use super::send_queue::SendQueue;
use super::turn::Turn;
use crate::mover::Notice;

/// One connection of a peer: who the peer is, and its requests.
#[derive(Debug, Default)]
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
    pub(crate) responder: Responder,
    notice: Option<IncomingNotice>,
}

#[derive(Debug)]
struct IncomingNotice {
    id: u64,
    name_bytes: usize,
    text: Vec<u8>,
}

impl ServerConnection {
    /// Answers the greeting; returns what opens the peer's records, if the connection is sealed.
    pub(crate) fn greeting(
        &mut self,
        greeting: &Greeting,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<Option<Opener>, SealError> {
        let own = turn.context.home.incarnation();
        self.mistaken = greeting.expects != Incarnation(0) && greeting.expects != own;
        self.holder = Some(greeting.incarnation);
        let own = turn
            .context
            .greeting(greeting.incarnation, Features::default());
        let Some(seal) = &turn.context.config.seal else {
            queue.push_bytes(own.to_bytes().to_vec());
            return Ok(None);
        };
        // Taken before the look-up: a key that is revoked meanwhile is looked up again.
        let listed = seal.clients.version();
        match answer(seal, greeting, own) {
            Ok((client, answered, Keys { send, receive })) => {
                (self.holder, self.client) = (Some(holder_of(&client)), Some((client, listed)));
                queue.seal(Sealer::after(send, answered.to_bytes().to_vec()));
                Ok(Some(Opener::new(receive)))
            }
            Err(error) => {
                queue.push_bytes(refusal(own).to_bytes().to_vec());
                Err(error)
            }
        }
    }

    /// The peer is authenticated, as far as the configuration asks for it: from now on the connection counts among
    /// those of its peer.
    pub(crate) fn proven(
        &mut self,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        self.counted = turn.context.count_connection(self.holder());
        if self.counted.is_none() {
            queue.push(&Frame::Goaway);
            return Err(CloseReason::Limit(
                "more connections than one peer may have",
            ));
        }
        Ok(())
    }

    /// The peer, if nothing of it is under way.
    pub(crate) fn idle_peer(&self) -> Option<Incarnation> {
        self.holder
            .filter(|_| self.responder.is_empty() && self.notice.is_none())
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        conn: ConnId,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<Option<Payload>, CloseReason> {
        if self.mistaken {
            return Err(CloseReason::protocol("a request to another incarnation"));
        }
        self.check_key(turn)?;
        // A peer that sends requests and reads no answers must not fill memory here.
        if queue.len() > 2 * turn.context.config.requests_max as usize + SendQueue::FRAMES_MAX {
            return Err(CloseReason::Limit(
                "more questions than answers that were read",
            ));
        }
        match frame {
            Frame::Request(request) => {
                let range = (request.offset, request.bytes);
                let admitted =
                    turn.context
                        .home
                        .admit(&request.capability, request.op, range, self.holder());
                self.responder
                    .begin(&request, admitted, conn, queue, turn)?;
            }
            Frame::Data(data) if data.bytes as usize > turn.context.frame_bytes_max() => {
                return Err(CloseReason::protocol("a frame over the limit"));
            }
            Frame::Data(data) => return self.responder.data(&data).map(Some),
            Frame::Cancel { id } => self.responder.cancel(id, queue),
            Frame::Ping { token } => queue.push(&Frame::Pong { token }),
            Frame::Notify(notify) => return self.notify(&notify).map(Some),
            Frame::Goaway | Frame::Pong { .. } => {}
            Frame::Ack(_) => {
                return Err(CloseReason::protocol(
                    "an acknowledgement from an initiator",
                ));
            }
        }
        Ok(None)
    }

    /// The cursor that payload goes to; none when it is discarded, or part of a notice.
    pub(crate) fn cursor(
        &mut self,
        payload: &Payload,
        queue: &mut SendQueue,
    ) -> Option<&mut Cursor> {
        self.responder.cursor(payload.id?, queue)
    }

    /// Takes payload that has no cursor.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if let Some(notice) = &mut self.notice {
            notice.text.extend_from_slice(bytes);
        }
    }

    pub(crate) fn payload_done(
        &mut self,
        payload: &Payload,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        match (self.notice.take(), payload.id) {
            (Some(notice), _) => self.deliver(notice, queue, turn),
            (None, Some(id)) if payload.last => self.responder.payload_done(id, queue, turn),
            (None, _) => Ok(()),
        }
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

    fn holder(&self) -> Incarnation {
        self.holder.unwrap_or(Incarnation(0))
    }

    fn notify(&mut self, notify: &Notify) -> Result<Payload, CloseReason> {
        let bytes = u64::from(notify.name_bytes) + u64::from(notify.bytes);
        if bytes > NOTICE_BYTES_MAX {
            return Err(CloseReason::protocol("a notice over the limit"));
        }
        self.notice = Some(IncomingNotice {
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
        mut notice: IncomingNotice,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        let bytes = notice.text.split_off(notice.name_bytes);
        let Ok(name) = String::from_utf8(notice.text) else {
            return Err(CloseReason::protocol("a notice whose name is no text"));
        };
        let frame = match turn
            .context
            .home
            .deliver(self.holder(), Notice { name, bytes })
        {
            true => {
                let credit = turn.context.config.requests_max;
                Frame::Ack(Ack {
                    id: notice.id,
                    refusal: None,
                    bytes: 0,
                    checksum: 0,
                    credit,
                })
            }
            false => refused(notice.id, Refusal::Limit),
        };
        queue.push(&frame);
        Ok(())
    }
}
