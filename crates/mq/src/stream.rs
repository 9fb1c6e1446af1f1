use std::sync::Arc;

use slackwater_net::Endpoint;

use crate::context::Context;
use crate::shard::{LoopCommand, StreamId};

/// The handler of the messages of a stream, called in order where they are read: it must not block. Pass work that may
/// take long to a [`TaggedThread`](crate::TaggedThread), which keeps the order.
pub type StreamHandler = Arc<dyn Fn(&Published<'_>) + Send + Sync>;

/// One message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published<'a> {
    /// Its topic.
    pub topic: &'a [u8],
    /// Its number; every message of the stream has the next one, whatever its topic.
    pub sequence: u64,
    /// The number of the message received before it on this stream.
    pub previous: Option<u64>,
    /// Its body.
    pub body: &'a [u8],
}

/// A gap in the numbers of the received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The stream began again: its publisher was restarted.
    Restarted,
    /// So many messages were dropped, or had topics that this side does not want.
    Missing(u64),
}

impl Published<'_> {
    /// The gap just before this message.
    #[must_use]
    pub fn gap(&self) -> Option<Gap> {
        match self.previous {
            Some(previous) if self.sequence <= previous => Some(Gap::Restarted),
            Some(previous) if self.sequence > previous + 1 => {
                Some(Gap::Missing(self.sequence - previous - 1))
            }
            _ => None,
        }
    }
}

/// What a publisher keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Bytes that wait for one subscriber; beyond them the oldest are dropped, and it sees the gap.
    pub subscriber_bytes: usize,
    /// Messages kept for replays.
    pub replay_messages: usize,
    /// Bytes kept for replays.
    pub replay_bytes: usize,
    /// The number of the first message. A publisher that begins each life above all numbers of the last one lets its
    /// subscribers see a restart as a gap, and ask for what they missed.
    pub first: u64,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            subscriber_bytes: 8 << 20,
            replay_messages: 10_000,
            replay_bytes: 64 << 20,
            first: 0,
        }
    }
}

/// Called when a peer wants messages that are not kept any more.
pub(crate) type Missed = Box<dyn Fn() + Send>;

/// A message on its way to the loop of its stream.
pub(crate) struct Publishing {
    pub(crate) topic: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// Messages that the source lost before it.
    pub(crate) lost: u64,
    #[expect(dead_code, reason = "what it does, it does when it is dropped")]
    done: Option<Done>,
}

/// Says that a message is done with, however it ended.
struct Done(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

/// A stream that this side publishes.
#[derive(Clone)]
pub struct Publisher {
    pub(crate) context: Arc<Context>,
    pub(crate) shard: u16,
    pub(crate) stream: StreamId,
    pub(crate) endpoint: Endpoint,
    pub(crate) replay: Option<Endpoint>,
}

impl Publisher {
    /// Publishes a message to all subscribers of its topic. Never blocks and never fails: a subscriber that reads too
    /// slowly loses the oldest.
    pub fn publish(&self, topic: &[u8], body: &[u8]) {
        self.order(Publishing {
            topic: topic.to_vec(),
            body: body.to_vec(),
            lost: 0,
            done: None,
        });
    }

    /// The same for a source that lost `lost` messages just before this one: they get numbers too, so that every subscriber
    /// sees the gap. `done` is called when the message has been given to the links, or cannot be any more: a source that
    /// waits for it queues no more than it means to.
    pub fn publish_after(
        &self,
        lost: u64,
        topic: &[u8],
        body: Vec<u8>,
        done: impl FnOnce() + Send + 'static,
    ) {
        self.order(Publishing {
            topic: topic.to_vec(),
            body,
            lost,
            done: Some(Done(Some(Box::new(done)))),
        });
    }

    fn order(&self, publishing: Publishing) {
        let order = LoopCommand::Publish(self.stream, Box::new(publishing));
        self.context.order(self.shard, order);
    }

    /// Has `missed` called on the loop of the stream, where it must not block, each time that a peer is to be given messages
    /// which are not kept any more: it asked for them too late, or takes them so slowly that they were dropped meanwhile.
    pub fn when_missed(&self, missed: impl Fn() + Send + 'static) {
        let order = LoopCommand::WhenMissed(self.stream, Box::new(missed));
        self.context.order(self.shard, order);
    }

    /// Where it listens for subscribers.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where it answers replay requests.
    #[must_use]
    pub const fn replay_endpoint(&self) -> Option<&Endpoint> {
        self.replay.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_seen() {
        let gap = |previous, sequence| {
            Published {
                topic: b"",
                sequence,
                previous,
                body: b"",
            }
            .gap()
        };
        assert_eq!(gap(None, 5), None);
        assert_eq!(gap(Some(5), 6), None);
        assert_eq!(gap(Some(5), 9), Some(Gap::Missing(3)));
        assert_eq!(gap(Some(5), 0), Some(Gap::Restarted));
    }
}
