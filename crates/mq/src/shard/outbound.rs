use std::collections::BTreeSet;
use std::sync::Arc;

use slackwater_base::Map;
use slackwater_net::{Net, TimerId};
use slackwater_zmtp::{Message, Out, PublicKey};

use super::peer::{Peer, Queued, Role};
use super::peers::At;
use super::{LoopCommand, Shard, Token};
use crate::deliver::{SendError, Sending};
use crate::frames::TAG_BYTES;
use crate::request::Waiter;
use crate::{LinkId, Mq, RequestError};

/// The bytes that a request and its reply share.
pub(crate) type Tag = [u8; TAG_BYTES];

/// A request that waits for its reply.
pub(super) struct Pending {
    pub(super) waiter: Waiter,
    pub(super) timer: TimerId,
    pub(super) number: u64,
}

/// Bytes in a connection's outbox above which messages wait in the link's queue instead, where they are counted.
pub(super) const ROOM_BYTES: usize = 256 << 10;

impl Shard {
    /// Puts a message on a link, or into its queue, or says why not.
    pub(super) fn deliver(&mut self, net: &mut Net, at: At, mut sending: Sending) {
        let Some(peer) = self.peers.get_mut(at) else {
            return self.reroute(at, sending);
        };
        let size = sending.message.payload_bytes();
        let options = &self.context.options;
        if peer.is_full_for(size, (options.queue_messages, options.queue_bytes)) {
            self.context.metrics.rare(&self.context.metrics.queue_full);
            return self.context.fail(sending, SendError::Full);
        }
        let mut request = None;
        if let Some((waiter, deadline)) = sending.waiter.take() {
            // Before the question whether its caller is gone: that may have looked at the clock itself.
            if deadline <= net.now() {
                self.context.metrics.rare(&self.context.metrics.timeouts);
                return waiter.tell(&self.context.jobs, Err(RequestError::Timeout));
            }
            if waiter.is_gone() {
                return;
            }
            let tag: Tag = self.randomness.take();
            // The sender left room for the tag in the second part.
            if let Some(place) = sending.message.part_mut(1) {
                place.copy_from_slice(&tag);
            }
            let number = self.next_request;
            self.next_request += 1;
            request = Some(number);
            let timer = net.set_timer(deadline, Token::Request(number).pack());
            self.requests.insert(number, (at, tag));
            peer.rest.pending.insert(
                tag,
                Pending {
                    waiter,
                    timer,
                    number,
                },
            );
            self.context.metrics.requests.add(1);
        }
        peer.active = net.now();
        if let Role::Twin(twin) = peer.role {
            self.context
                .order(self.number, LoopCommand::Local(twin, sending.message));
            return;
        }
        if peer.queue.is_none() && put(net, peer, &sending.message, 0) {
            self.context.metrics.messages_out.add(1);
            return;
        }
        peer.enqueue(Queued {
            message: Arc::new(sending.message),
            skip: 0,
            request,
        });
        if let Some(conn) = peer.conn.filter(|_| peer.up) {
            net.call_when_drained(conn);
        }
    }

    /// Puts a message of a stream on a subscriber's link or into its queue, from which the oldest go when it holds
    /// more than `cap` bytes.
    pub(super) fn offer(&mut self, net: &mut Net, at: At, queued: Queued, cap: usize) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        if peer.queue.is_none() && put(net, peer, &queued.message, queued.skip) {
            self.context.metrics.messages_out.add(1);
            return;
        }
        peer.enqueue(queued);
        while peer.queue.as_ref().is_some_and(|queue| queue.bytes() > cap)
            && peer.dequeue().is_some()
        {
            self.context.metrics.stream_dropped.add(1);
        }
        if let Some(conn) = peer.conn.filter(|_| peer.up) {
            net.call_when_drained(conn);
        }
    }

    /// Moves what waits onto the link, as far as there is room, except requests whose callers have given them up.
    pub(super) fn flush_queue(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        while let Some(first) = peer
            .queue
            .as_ref()
            .and_then(|queue| queue.messages().next())
        {
            // The peer must not carry out what the caller has given up.
            if let Some(number) = first.request
                && let Some((_, tag)) = self.requests.get(&number)
                && let Some(pending) = peer.rest.pending.get(tag)
                && pending.waiter.is_gone()
            {
                net.cancel_timer(pending.timer);
                peer.rest.pending.remove(tag);
                self.requests.remove(&number);
                peer.dequeue();
                continue;
            }
            let (message, skip) = (Arc::clone(&first.message), first.skip);
            if !put(net, peer, &message, skip) {
                if let Some(conn) = peer.conn.filter(|_| peer.up) {
                    net.call_when_drained(conn);
                }
                return;
            }
            self.context.metrics.messages_out.add(1);
            peer.dequeue();
        }
        self.arm(net, at);
    }

    /// Ends the request of a timer. If its message still waits for the link, it is removed: the peer must not carry out
    /// what the caller has given up.
    pub(super) fn on_request_timeout(&mut self, net: &mut Net, number: u64) {
        let Some((at, tag)) = self.requests.remove(&number) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let Some(pending) = peer.rest.pending.remove(&tag) else {
            return;
        };
        peer.withdraw(number);
        self.context.metrics.rare(&self.context.metrics.timeouts);
        self.arm(net, at);
        pending
            .waiter
            .tell(&self.context.jobs, Err(RequestError::Timeout));
    }

    /// Takes a pending request off its peer, with its timer.
    pub(super) fn take_pending(&mut self, net: &mut Net, at: At, tag: &Tag) -> Option<Waiter> {
        let pending = self.peers.get_mut(at)?.rest.pending.remove(tag)?;
        self.requests.remove(&pending.number);
        net.cancel_timer(pending.timer);
        // The last answer begins the time after which the link is idle.
        self.arm(net, at);
        Some(pending.waiter)
    }

    /// A link is lost and will be opened again: requests that were sent end with `Gone`, those that are still queued are
    /// sent when it is back.
    pub(super) fn fail_sent(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let queued = peer.queue.iter().flat_map(|queue| queue.messages());
        let numbers: BTreeSet<u64> = queued.filter_map(|queued| queued.request).collect();
        let (waiting, sent): (Map<Tag, Pending>, Map<Tag, Pending>) =
            std::mem::take(&mut peer.rest.pending)
                .into_iter()
                .partition(|(_, pending)| numbers.contains(&pending.number));
        peer.rest.pending = sent;
        self.fail_pending(net, at);
        if let Some(peer) = self.peers.get_mut(at) {
            peer.rest.pending = waiting;
        }
    }

    /// Ends every request that waits on this peer with `Gone`.
    pub(super) fn fail_pending(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        for (_, pending) in std::mem::take(&mut peer.rest.pending) {
            self.requests.remove(&pending.number);
            net.cancel_timer(pending.timer);
            pending
                .waiter
                .tell(&self.context.jobs, Err(RequestError::Gone));
        }
    }

    /// A message whose link is gone: it takes another link of the same node. Each dead link is removed when it is
    /// tried, so there are at most as many tries as links, and one that is opened.
    fn reroute(&mut self, dead: At, sending: Sending) {
        let Some(to) = &sending.node else {
            return self.context.fail(sending, SendError::Gone);
        };
        let dead = LinkId {
            shard: self.number,
            serial: dead.serial(),
        };
        self.context.remove_link_of(&to.key, dead);
        if let Some(next) = self.context.links_of(&to.key, to.route).last() {
            return self.context.send(*next, sending);
        }
        if self.stopping || !to.may_open() {
            return self.context.fail(sending, SendError::Gone);
        }
        let mq = Mq(Arc::clone(&self.context));
        // On a worker: the look-up of a node's address is the caller's code, which holds up no loop. Where the workers have too
        // much to do, the waiter is told that the link is gone.
        let _ = self.context.jobs.reply(Box::new(move || {
            mq.send_to_node(sending);
        }));
    }

    pub(super) fn on_stray_reply(&mut self, net: &mut Net, key: PublicKey, message: Message) {
        self.on_reply_of_node(net, key, message, false);
    }
}

/// Writes a message onto a link that is up and has room; whether it did.
pub(super) fn put(net: &mut Net, peer: &mut Peer, message: &Message, skip: usize) -> bool {
    let (Some(conn), Some(link), true) = (peer.conn, &mut peer.link, peer.up) else {
        return false;
    };
    if net.queued_bytes(conn) >= ROOM_BYTES {
        return false;
    }
    let Some(wire) = net.wire(conn) else {
        return false;
    };
    // A link that is up says nothing when a message is put on it.
    let mut events = Vec::new();
    link.send(
        message.parts().skip(skip),
        &mut Out {
            wire,
            events: &mut events,
        },
    )
    .is_ok()
}
