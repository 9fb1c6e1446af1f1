use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use slackwater_net::Net;
use slackwater_zmtp::{Message, PublicKey};

use super::outbound::Tag;
use super::peer::{Kind, Peer, Probe, Role};
use super::peers::At;
use super::{LoopCommand, Shard};
use crate::context::Context;
use crate::deliver::Sending;
use crate::frames::{self, HELLO, Inbound, TAG_BYTES, TAG_BYTES_MAX};
use crate::registry::{Carried, Entry, Handler};
use crate::{Access, Answer, Call, ConnectionId, Refusal, RequestError, Route, Run};

impl Shard {
    /// A whole message has come.
    pub(super) fn on_message(&mut self, net: &mut Net, at: At, message: Message) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.active = net.now();
        self.context.metrics.messages_in.add(1);
        match peer.role {
            Role::Replay(stream) => return self.replay(net, at, stream, &message),
            Role::Publisher(stream) => return self.on_published(stream, &message),
            Role::Commands | Role::Subscriber(_) | Role::Twin(_) => {}
        }
        let inbound = frames::read(&message);
        if !matches!(inbound, Inbound::Command(_)) {
            self.gathered.carry_out(&self.context);
        }
        match inbound {
            Inbound::Command(_) => self.on_command(net, at, message),
            Inbound::Reply(tag) => match Tag::try_from(tag) {
                Ok(tag) => self.on_reply(net, at, tag, Ok(message)),
                Err(_) => self
                    .context
                    .metrics
                    .rare(&self.context.metrics.late_replies),
            },
            Inbound::RequestRefused(refusal, tag) => match Tag::try_from(tag) {
                Ok(tag) => self.on_reply(net, at, tag, Err((refusal, message))),
                Err(_) => self
                    .context
                    .metrics
                    .rare(&self.context.metrics.late_replies),
            },
            Inbound::CommandRefused(refusal) => self
                .context
                .metrics
                .count("refused_by_peer", refusal.text()),
            Inbound::Hi => self.on_hi(net, at),
            Inbound::Hello => self.on_hello(net, at),
            Inbound::Bye => self.on_bye(net, at),
            Inbound::Garbled => self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words),
        }
    }

    /// A reply counts only on the link its request went to, or on another link of the same node.
    fn on_reply(
        &mut self,
        net: &mut Net,
        at: At,
        tag: Tag,
        outcome: Result<Message, (Refusal, Message)>,
    ) {
        if let Some(waiter) = self.take_pending(net, at, &tag) {
            let outcome = outcome
                .map(Answer)
                .map_err(|(refusal, _)| RequestError::Refused(refusal));
            return waiter.tell(&self.context.jobs, outcome);
        }
        let key = self.peers.get(at).and_then(|peer| peer.origin.key);
        let message = outcome.unwrap_or_else(|(_, message)| message);
        match key.filter(|key| self.context.is_node(Some(key))) {
            Some(key) => self.on_reply_of_node(net, key, message, true),
            None => self
                .context
                .metrics
                .rare(&self.context.metrics.late_replies),
        }
    }

    /// A reply that no request on its own link waits for: one on another link of the node may.
    pub(super) fn on_reply_of_node(
        &mut self,
        net: &mut Net,
        key: PublicKey,
        message: Message,
        ask_others: bool,
    ) {
        let (tag, refusal) = match frames::read(&message) {
            Inbound::Reply(tag) => (Tag::try_from(tag), None),
            Inbound::RequestRefused(refusal, tag) => (Tag::try_from(tag), Some(refusal)),
            _ => return,
        };
        let Ok(tag) = tag else { return };
        let links = self.context.links_of(&key, Route::Any);
        let here = links.iter().filter(|link| link.shard == self.number);
        let found = here.map(|link| self.peers.find(link.serial)).find(|at| {
            self.peers
                .get(*at)
                .is_some_and(|peer| peer.rest.pending.contains_key(&tag))
        });
        if let Some(waiter) = found.and_then(|at| self.take_pending(net, at, &tag)) {
            let outcome = refusal.map_or(Ok(Answer(message)), |refusal| {
                Err(RequestError::Refused(refusal))
            });
            return waiter.tell(&self.context.jobs, outcome);
        }
        let mut others: Vec<u16> = links
            .iter()
            .map(|link| link.shard)
            .filter(|s| *s != self.number)
            .collect();
        others.sort_unstable();
        others.dedup();
        if others.is_empty() || !ask_others {
            self.context
                .metrics
                .rare(&self.context.metrics.late_replies);
        } else {
            others.iter().for_each(|shard| {
                self.context
                    .order(*shard, LoopCommand::StrayReply(key, message.clone()))
            });
        }
    }

    fn on_hi(&mut self, net: &mut Net, at: At) {
        let is_outgoing = self
            .peers
            .get(at)
            .is_some_and(|peer| matches!(peer.rest.kind, Kind::Outgoing(_)));
        if is_outgoing {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        }
        self.deliver(net, at, Sending::plain(Message::of([HELLO])));
    }

    fn on_hello(&mut self, net: &mut Net, at: At) {
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        };
        if outgoing.probe != Probe::Sent {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        }
        outgoing.probe = Probe::None;
        self.established(net, at);
    }

    fn on_bye(&mut self, net: &mut Net, at: At) {
        if self.peers.get(at).is_some_and(|peer| peer.is_incoming()) {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        }
        self.forget(net, at, "the peer said goodbye");
    }

    fn on_command(&mut self, net: &mut Net, at: At, message: Message) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        let (context, origin, level) = (&self.context, &peer.origin, peer.level);
        let name = message.part(0).unwrap_or_default();
        let entry = match check(context, peer, name, &message) {
            Ok(entry) => entry,
            Err(refusal) => return self.refuse(net, at, &message, refusal),
        };
        let handler = match &entry.carried {
            Carried::Together(handler) => {
                let caller = (origin, level);
                return self.gathered.take(context, handler, caller, message);
            }
            Carried::Alone(handler) => handler,
        };
        self.gathered.carry_out(context);
        if context.registry.category(entry.category).run == Run::Inline {
            return run(
                &Call {
                    context,
                    origin,
                    level,
                    message: &message,
                    is_request: entry.is_request,
                },
                handler,
            );
        }
        let bytes = message.payload_bytes();
        let category = entry.category;
        // The job takes the message with it; the head stays here in case the queue is full.
        let head = Message::of(message.parts().take(2));
        let job = {
            let (context, origin) = (Arc::clone(context), Arc::clone(origin));
            let (is_request, handler) = (entry.is_request, Arc::clone(handler));
            move || {
                run(
                    &Call {
                        context: &context,
                        origin: &origin,
                        level,
                        message: &message,
                        is_request,
                    },
                    &handler,
                )
            }
        };
        if context
            .jobs
            .command(category, bytes, Box::new(job))
            .is_err()
        {
            context.metrics.rare(&context.metrics.busy);
            self.refuse(net, at, &head, Refusal::Busy);
        }
    }

    /// Answers a command that is not carried out. An unknown one may have been a request: a second part of the size
    /// of a tag says so.
    fn refuse(&mut self, net: &mut Net, at: At, message: &Message, refusal: Refusal) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        self.context.metrics.count("refusal", refusal.text());
        let name = message.part(0).unwrap_or_default();
        let is_request = self
            .context
            .registry
            .find(name)
            .map(|entry| entry.is_request);
        let second = message.part(1);
        let tag = match is_request {
            Some(true) => second.filter(|part| part.len() <= TAG_BYTES_MAX),
            Some(false) => None,
            None => second.filter(|part| part.len() == TAG_BYTES),
        };
        if let Some(answer) = frames::refuse(refusal, peer.origin.extensions, name, tag) {
            self.deliver(net, at, Sending::plain(answer));
        }
    }
}

/// The command this message calls, or the first reason why it is not carried out, in the order peers rely on.
fn check<'a>(
    context: &'a Context,
    peer: &Peer,
    name: &[u8],
    message: &Message,
) -> Result<&'a Entry, Refusal> {
    let entry = context.registry.find(name).ok_or(Refusal::UnknownCommand)?;
    let Access {
        level,
        remote_node,
        local_node,
    } = context.registry.category(entry.category).access;
    if peer.level < level {
        return Err(Refusal::Forbidden);
    }
    if local_node && !context.options.is_node {
        return Err(Refusal::NotAServiceNode);
    }
    if remote_node && !context.is_node(peer.origin.key.as_ref()) {
        return Err(Refusal::ForbiddenNode);
    }
    let tag = message.part(1);
    if entry.is_request && tag.is_none_or(|tag| tag.len() > TAG_BYTES_MAX) {
        return Err(Refusal::NoReplyTag);
    }
    Ok(entry)
}

fn run(call: &Call<'_>, handler: &Handler) {
    if catch_unwind(AssertUnwindSafe(|| handler(call))).is_err() {
        failed(call);
    }
}

/// The handler of a command panicked.
pub(super) fn failed(call: &Call<'_>) {
    call.context
        .metrics
        .rare(&call.context.metrics.handlers_failed);
    let name = String::from_utf8_lossy(call.message.part(0).unwrap_or_default()).into_owned();
    tracing::warn!(
        command = name,
        remote = call.remote(),
        "the handler of a command panicked"
    );
    crate::call::send_refusal(call.context, call.origin, Refusal::Failed, call.tag());
}

/// How a link is known to others: by its node when the key is one's, else by itself.
pub(super) fn connection_of(
    context: &Context,
    link: crate::LinkId,
    key: Option<PublicKey>,
) -> ConnectionId {
    match key.filter(|key| context.is_node(Some(key))) {
        Some(key) => ConnectionId::Node(key),
        None => ConnectionId::Link(link),
    }
}
