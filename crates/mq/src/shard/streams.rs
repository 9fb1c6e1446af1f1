use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackwater_net::Net;
use slackwater_zmtp::{Interests, Message, Out, Subscriptions, TooManyTopics};

use super::Shard;
use super::outbound::put;
use super::peer::{Queued, Role};
use super::peers::At;
use crate::stream::{Missed, Published, Publishing, StreamHandler};

/// A stream of one loop, published or listened to.
pub(crate) type StreamId = u64;

/// How a stream begins.
pub(crate) enum StreamSetup {
    /// This side publishes.
    Publish {
        cap_bytes: usize,
        replay_messages: usize,
        replay_bytes: usize,
        first: u64,
        topics: usize,
    },
    /// This side listens to these topics.
    Listen {
        topics: Vec<Vec<u8>>,
        handler: StreamHandler,
    },
}

pub(super) enum Stream {
    Publisher {
        cap_bytes: usize,
        subscriptions: Subscriptions<At>,
        next: u64,
        window: VecDeque<(u64, Arc<Message>)>,
        window_bytes: usize,
        window_limit: (usize, usize),
        /// The number of the last message that is not kept any more.
        forgotten: Option<u64>,
        missed: Option<Missed>,
        /// Replays under way: what each link gets next, read from the window as it takes it, so that a slow link keeps
        /// no memory.
        replays: BTreeMap<At, u64>,
    },
    Listener {
        interests: Interests,
        handler: StreamHandler,
        last: Option<u64>,
    },
}

/// Stored messages begin with the empty part that replies to a replay have and the stream itself has not.
const STREAM_SKIPS: usize = 1;
/// The sequence number that ends a replay: −1, as consumers of KV events expect.
const END: [u8; 8] = [0xff; 8];

impl Stream {
    pub(super) fn new(setup: StreamSetup) -> Self {
        match setup {
            StreamSetup::Publish {
                cap_bytes,
                replay_messages,
                replay_bytes,
                first,
                topics,
            } => Stream::Publisher {
                cap_bytes,
                subscriptions: Subscriptions::new(topics),
                next: first,
                window: VecDeque::new(),
                window_bytes: 0,
                window_limit: (replay_messages, replay_bytes),
                forgotten: None,
                missed: None,
                replays: BTreeMap::new(),
            },
            StreamSetup::Listen { topics, handler } => {
                let mut interests = Interests::new();
                topics.iter().for_each(|topic| {
                    interests.add(topic);
                });
                Stream::Listener {
                    interests,
                    handler,
                    last: None,
                }
            }
        }
    }
}

impl Shard {
    /// Sends a message to all subscribers of its topic and keeps it for replays.
    pub(super) fn publish(&mut self, net: &mut Net, stream: StreamId, publishing: &Publishing) {
        let Publishing {
            topic, body, lost, ..
        } = publishing;
        let Some(Stream::Publisher {
            cap_bytes,
            subscriptions,
            next,
            window,
            window_bytes,
            window_limit,
            forgotten,
            ..
        }) = self.streams.get_mut(&stream)
        else {
            return;
        };
        let sequence = next.saturating_add(*lost);
        *next = sequence.saturating_add(1);
        let message = Arc::new(Message::of([
            &b""[..],
            topic,
            &sequence.to_be_bytes(),
            body,
        ]));
        let size = message.payload_bytes();
        window.push_back((sequence, Arc::clone(&message)));
        *window_bytes += size;
        while window.len() > window_limit.0 || *window_bytes > window_limit.1 {
            let Some((number, oldest)) = window.pop_front() else {
                break;
            };
            *forgotten = Some(number);
            *window_bytes -= oldest.payload_bytes();
        }
        let (receivers, cap) = (subscriptions.receivers(topic), *cap_bytes);
        for at in receivers {
            self.offer(
                net,
                at,
                Queued {
                    message: Arc::clone(&message),
                    skip: STREAM_SKIPS,
                    request: None,
                },
                cap,
            );
        }
    }

    pub(super) fn on_subscription(&mut self, net: &mut Net, at: At, topic: &[u8], wanted: bool) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        let Role::Subscriber(stream) = peer.role else {
            return;
        };
        let Some(Stream::Publisher { subscriptions, .. }) = self.streams.get_mut(&stream) else {
            return;
        };
        if !wanted {
            return subscriptions.cancel(at, topic);
        }
        match subscriptions.subscribe(at, topic) {
            Ok(()) => self
                .context
                .metrics
                .rare(&self.context.metrics.subscriptions),
            Err(TooManyTopics { .. }) => {
                self.context.metrics.count("link", "too_many_topics");
                self.forget(net, at, "too many topics");
            }
        }
    }

    /// A link ends: removes its subscriptions and replays.
    pub(super) fn forget_subscriber(&mut self, at: At) {
        let Some(Role::Subscriber(stream) | Role::Replay(stream)) =
            self.peers.get(at).map(|peer| peer.role)
        else {
            return;
        };
        if let Some(Stream::Publisher {
            subscriptions,
            replays,
            ..
        }) = self.streams.get_mut(&stream)
        {
            subscriptions.remove(at);
            replays.remove(&at);
        }
    }

    /// Begins what a replay request asks for, an optional empty part and a sequence number: everything from that number
    /// on that is still in the window, then the end mark. A peer that has not taken its last replay gets no other.
    pub(super) fn replay(&mut self, net: &mut Net, at: At, stream: StreamId, request: &Message) {
        let from = request
            .parts()
            .last()
            .and_then(|part| part.try_into().ok())
            .map(u64::from_be_bytes);
        let (Some(from), Some(Stream::Publisher { replays, .. })) =
            (from, self.streams.get_mut(&stream))
        else {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        };
        match replays.entry(at) {
            Entry::Occupied(_) => self.context.metrics.rare(&self.context.metrics.queue_full),
            Entry::Vacant(place) => {
                place.insert(from);
                self.go_on_with_replay(net, at, stream);
            }
        }
    }

    /// Puts on the link what of its replay has room there.
    pub(super) fn go_on_with_replay(&mut self, net: &mut Net, at: At, stream: StreamId) {
        let Some(Stream::Publisher {
            window,
            forgotten,
            missed,
            replays,
            ..
        }) = self.streams.get_mut(&stream)
        else {
            return;
        };
        let (Some(cursor), Some(peer)) = (replays.get_mut(&at), self.peers.get_mut(at)) else {
            return;
        };
        // It was asked for too late, or has left the window since.
        if let Some(last) = forgotten.filter(|last| *cursor <= *last) {
            *cursor = last.saturating_add(1);
            missed.iter().for_each(|missed| missed());
        }
        loop {
            // What has left the window meanwhile, and what its source lost, is a gap that its reader sees.
            let from = window.partition_point(|(sequence, _)| *sequence < *cursor);
            let wanted = window.get(from);
            let end = Message::of([&b""[..], b"", &END, b""]);
            let (message, next) = match wanted {
                Some((sequence, message)) => (&**message, Some(sequence + 1)),
                None => (&end, None),
            };
            if !put(net, peer, message, 0) {
                if let Some(conn) = peer.conn {
                    net.call_when_drained(conn);
                }
                return;
            }
            self.context.metrics.messages_out.add(1);
            match next {
                Some(next) => *cursor = next,
                None => {
                    replays.remove(&at);
                    return;
                }
            }
        }
    }

    /// Sends the subscriptions of this side to a publisher whose link has just come up.
    pub(super) fn tell_interests(&mut self, net: &mut Net, at: At, stream: StreamId) {
        let Some(Stream::Listener { interests, .. }) = self.streams.get(&stream) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let (Some(conn), Some(link)) = (peer.conn, &mut peer.link) else {
            return;
        };
        let Some(wire) = net.wire(conn) else { return };
        let mut out = Out {
            wire,
            events: &mut self.events,
        };
        for topic in interests.iter() {
            // The link has just come up; if it is gone again, the next link gets the subscriptions.
            let _ = link.subscribe(topic, true, peer.minor, &mut out);
        }
    }

    pub(super) fn on_published(&mut self, stream: StreamId, message: &Message) {
        let Some(Stream::Listener {
            interests,
            handler,
            last,
        }) = self.streams.get_mut(&stream)
        else {
            return;
        };
        let sequence = message
            .part(1)
            .and_then(|part| part.try_into().ok())
            .map(u64::from_be_bytes);
        let (Some(topic), Some(sequence), Some(body)) =
            (message.part(0), sequence, message.part(2))
        else {
            return self
                .context
                .metrics
                .rare(&self.context.metrics.misplaced_words);
        };
        if !interests.wants(topic) {
            return;
        }
        let previous = last.replace(sequence);
        let handler = Arc::clone(handler);
        let published = Published {
            topic,
            sequence,
            previous,
            body,
        };
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(&published)));
        if outcome.is_err() {
            self.context
                .metrics
                .rare(&self.context.metrics.handlers_failed);
        }
    }
}
