//! Admission of peers, and the review of admitted ones when permissions change.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use slackwater_net::Net;
use slackwater_zmtp::{Entry, Input, Peer as Facts, PublicKey, Verdict};

use super::dispatch::connection_of;
use super::peer::{Kind, Role};
use super::peers::At;
use super::{LoopCommand, Shard};
use crate::context::{Opened, Origin};
use crate::frames::PROPERTY;
use crate::{Admission, Applicant, ConnectionId, Level};

/// The status of libzmq's authenticators for "not now".
const TRY_LATER: u16 = 300;

impl Shard {
    /// A peer has proven its key: decide on its admission, here if that needs no callback, else on a worker.
    pub(super) fn on_admission(&mut self, net: &mut Net, at: At, facts: &Facts) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let Kind::Incoming {
            admission,
            source,
            route,
        } = &mut peer.rest.kind
        else {
            return;
        };
        if !facts.identity.is_empty() {
            *route = Some(facts.identity.clone());
        }
        let origin = &peer.origin;
        let link = origin.link;
        let remote = origin.remote.clone();
        let (admission, source) = (admission.clone(), source.origin());
        let extensions = facts.property(PROPERTY).is_some();
        peer.origin = Arc::new(Origin {
            link,
            connection: connection_of(&self.context, link, facts.key),
            remote: remote.clone(),
            key: facts.key,
            extensions,
        });
        match &admission {
            Admission::Everybody(level) => self.on_verdict(net, at, Some(*level)),
            Admission::Listed(_) => {
                let level = listed(&admission, facts.key);
                self.on_verdict(net, at, level);
            }
            Admission::Ask(decide) => {
                let is_node = self.context.is_node(facts.key.as_ref());
                let applicant = Applicant {
                    remote,
                    key: facts.key,
                    is_node,
                };
                let (context, decide) = (Arc::clone(&self.context), Arc::clone(decide));
                let asked = self.context.jobs.admission(
                    source,
                    Box::new(move || {
                        let decided = catch_unwind(AssertUnwindSafe(|| decide(&applicant)));
                        let level = decided.unwrap_or_else(|_| {
                            context.metrics.rare(&context.metrics.jobs_panicked);
                            None
                        });
                        context.order(link.shard, LoopCommand::Verdict(link.serial, level));
                    }),
                );
                if asked.is_err() {
                    self.context.metrics.count("link", "admission_full");
                    self.feed(net, at, Input::Admit(Verdict::Refuse(TRY_LATER)));
                }
            }
        }
    }

    pub(super) fn on_verdict(&mut self, net: &mut Net, at: At, level: Option<Level>) {
        let level = level.filter(|_| self.take_route(at));
        let Some(level) = level else {
            self.context.metrics.rare(&self.context.metrics.refused);
            return self.feed(net, at, Input::Admit(Verdict::Refuse(400)));
        };
        if let Some(peer) = self.peers.get_mut(at) {
            peer.level = level;
        }
        self.feed(net, at, Input::Admit(Verdict::Accept));
    }

    /// Enters the peer under the routing id it announced. An id that another peer has is refused; one that the same
    /// key has is taken over.
    fn take_route(&mut self, at: At) -> bool {
        let Some(peer) = self.peers.get(at) else {
            return false;
        };
        let (
            Role::Commands,
            Kind::Incoming {
                route: Some(id), ..
            },
        ) = (peer.role, &peer.rest.kind)
        else {
            return true;
        };
        let entered = self
            .context
            .routes()
            .enter(id, peer.origin.key, peer.origin.link);
        match entered {
            Entry::New(_) => true,
            Entry::Handover { from, .. } => {
                self.context
                    .order(from.shard, LoopCommand::HandedOver(from.serial));
                true
            }
            Entry::Taken => {
                self.context.metrics.count("link", "identity_taken");
                if let Some(Kind::Incoming { route, .. }) =
                    self.peers.get_mut(at).map(|peer| &mut peer.rest.kind)
                {
                    *route = None;
                }
                false
            }
        }
    }

    /// Checks every link again after permissions or nodes have changed.
    pub(super) fn review(&mut self, net: &mut Net) {
        for at in self.peers.all() {
            let Some(peer) = self.peers.get(at) else {
                continue;
            };
            let key = peer.origin.key;
            let was_node = matches!(peer.origin.connection, ConnectionId::Node(_));
            if was_node && !self.context.is_node(key.as_ref()) {
                self.context.metrics.count("link", "node_removed");
                self.forget(net, at, "no longer a node");
                continue;
            }
            let Kind::Incoming { admission, .. } = &peer.rest.kind else {
                continue;
            };
            let level = match admission {
                Admission::Listed(_) if peer.up => listed(admission, key),
                _ => Some(peer.level),
            };
            match level {
                Some(level) => {
                    self.set_rights(at, level);
                    self.enter_node(at);
                }
                None => {
                    self.context.metrics.count("link", "right_removed");
                    self.forget(net, at, "no longer in the list");
                }
            }
        }
    }

    /// A new level, and whether the key is a node's by now.
    fn set_rights(&mut self, at: At, level: Level) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let old = &peer.origin;
        peer.level = level;
        peer.origin = Arc::new(Origin {
            link: old.link,
            connection: connection_of(&self.context, old.link, old.key),
            remote: old.remote.clone(),
            key: old.key,
            extensions: old.extensions,
        });
    }

    fn enter_node(&mut self, at: At) {
        let Some(peer) = self.peers.get(at).filter(|peer| peer.up) else {
            return;
        };
        if let ConnectionId::Node(key) = peer.origin.connection {
            self.context.add_link_of(
                key,
                peer.origin.link,
                if peer.is_incoming() {
                    Opened::There
                } else {
                    Opened::Here
                },
            );
        }
    }
}

fn listed(admission: &Admission, key: Option<PublicKey>) -> Option<Level> {
    match admission {
        Admission::Listed(list) => key
            .and_then(|key| list.find(&key))
            .map(|allowed| allowed.level),
        Admission::Everybody(level) => Some(*level),
        Admission::Ask(_) => None,
    }
}
