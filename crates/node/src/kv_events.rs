//! Tells routers of requests what the pool holds: what its master says becomes readable and goes is published as KV events,
//! in messages that any subscriber of ZeroMQ reads.
//!
//! Under its lock the master only puts events into a queue of bounded length. A thread writes them, and a message layer of
//! its own sends them, so that neither slow subscribers nor many delay requests. Where the queue was too short, readers are
//! told that nothing is held, and then what there is: the thread asks the master for a slice of it when nothing else is to
//! be told, and no sooner than a moment after the last one, which leaves the master to requests and lets subscribers keep up.
//! The same is done for readers who ask for messages that are not kept any more, once in a while.

mod pace;
mod queue;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::SystemTime;

use slackwater_mq::{
    Admission, AllowList, Allowed, Builder, Level, ListenOptions, Mq, Options, Publisher, Running,
    StreamOptions, Workers,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_wait::{Park, Site, Waiting, now};
use slackwater_wire::kv_events::{KvEncoder, KvEventFormat};
use slackwater_zmtp::{KeyPair, Limits};

pub(crate) use queue::{Dropped, EventQueue, MoreEvents, Rung};

use pace::{Next, Pace};

use crate::OpenError;
use crate::serve::{Links, ServeError};

/// How KV events are published.
#[derive(Clone, Debug)]
pub struct KvEventsOptions {
    /// Where subscribers connect; a port of 0 means a free one.
    pub listen: SocketAddr,
    /// Where they ask for what they have missed; nowhere when none.
    pub replay: Option<SocketAddr>,
    /// Whether everybody who reaches these addresses may read, unencrypted and without a key.
    pub open: bool,
    /// The topic of the messages.
    pub topic: String,
    /// How events are written.
    pub format: KvEventFormat,
    /// Events that wait to be published at most; beyond them all are dropped, and readers are told anew what is held.
    pub queue: usize,
    /// Messages kept for those who have missed them.
    pub replay_messages: usize,
}

impl KvEventsOptions {
    /// The port of events when nothing else is said.
    pub const PORT: u16 = 5_557;
}

impl Default for KvEventsOptions {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], Self::PORT).into(),
            replay: None,
            open: false,
            topic: String::new(),
            format: KvEventFormat::default(),
            queue: 65_536,
            replay_messages: StreamOptions::default().replay_messages,
        }
    }
}

/// The addresses at which KV events are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventsPlaces {
    /// The address that subscribers connect to.
    pub listen: SocketAddr,
    /// The address that answers who has missed something.
    pub replay: Option<SocketAddr>,
}

/// KV events that are being published. When this is dropped, what waits is still given to the links, which have the time in
/// which a link that ends may write.
pub(crate) struct KvEvents {
    #[expect(dead_code, reason = "it stops when it is dropped")]
    messages: Running,
    #[expect(
        dead_code,
        reason = "the list of the allowed tells it of changes until it is dropped"
    )]
    readers: Option<Arc<Readers>>,
    queue: Arc<EventQueue>,
    thread: Option<JoinHandle<()>>,
    places: KvEventsPlaces,
}

impl KvEvents {
    /// Listens, and publishes what is put into [`Self::queue`]; does nothing without options.
    /// `tenants` is whether tenants are told apart.
    pub(crate) fn start(
        options: Option<&KvEventsOptions>,
        links: &Links,
        tenants: bool,
    ) -> Result<Option<Self>, ServeError> {
        let Some(options) = options else {
            return Ok(None);
        };
        for address in [Some(options.listen), options.replay].into_iter().flatten() {
            if !options.open && links.check(address).is_err() {
                return Err(ServeError::KvEventsNeedKeys { address });
            }
        }
        let messages = Builder::new(message_options(links.keys.clone())).start()?;
        let stream = StreamOptions {
            replay_messages: options.replay.map_or(0, |_| options.replay_messages),
            ..StreamOptions::default()
        };
        let replay = options.replay.map(Endpoint::Tcp);
        let allowed = links.allowed.as_ref().filter(|_| !options.open);
        let readers = allowed.map(|allowed| Readers::of(allowed, tenants, messages.handle()));
        let listening = ListenOptions {
            encrypted: readers.is_some(),
            plain_anywhere: options.open,
            admission: match &readers {
                Some(readers) => Admission::Listed(readers.list.clone()),
                None => Admission::Everybody(Level::None),
            },
            access: UnixAccess::default(),
            beside: false,
        };
        let endpoint = Endpoint::Tcp(options.listen);
        let publisher = messages.publish(&endpoint, replay.as_ref(), &listening, &stream);
        let publisher = publisher.map_err(ServeError::KvEvents)?;
        let places = KvEventsPlaces {
            listen: tcp(publisher.endpoint()),
            replay: publisher.replay_endpoint().map(tcp),
        };
        let queue = Arc::new(EventQueue::new(options.queue));
        let told = Arc::clone(&queue);
        publisher.when_missed(move || told.miss());
        let (taken, topic) = (Arc::clone(&queue), options.topic.clone());
        let encoder = KvEncoder::new(options.format.clone());
        let thread = std::thread::Builder::new().name("slack-kv-events".to_owned());
        let run = move || publish(&taken, &publisher, topic.as_bytes(), encoder);
        let thread = thread.spawn(run).map_err(|why| OpenError::System {
            what: "a thread",
            why,
        })?;
        Ok(Some(Self {
            messages,
            readers,
            queue,
            thread: Some(thread),
            places,
        }))
    }

    pub(crate) fn queue(&self) -> Arc<EventQueue> {
        Arc::clone(&self.queue)
    }

    pub(crate) fn places(&self) -> KvEventsPlaces {
        self.places
    }
}

impl Drop for KvEvents {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of KV events panicked");
        }
    }
}

/// Subscribers, and those who ask for what they have missed, at a time.
const SUBSCRIBERS_MAX: usize = 512;
/// Bytes of a message that they may send: a topic, or the number of a message.
const REQUEST_BYTES_MAX: u64 = 4_096;
/// Parts of such a message.
const REQUEST_PARTS_MAX: usize = 8;
/// Topics that one of them may ask for.
const TOPICS_MAX: usize = 16;
/// Events of one message.
const BATCH_EVENTS_MAX: usize = 256;

pub(crate) static EVENTS: Site = Site::new("master, KV events");

/// A message layer for peers of which nothing is known where everybody may read: what each may have kept for it is little.
fn message_options(keys: Option<KeyPair>) -> Options {
    Options {
        keys,
        workers: Workers {
            general: 1,
            ..Workers::default()
        },
        connections: SUBSCRIBERS_MAX,
        limits: Limits {
            frame_bytes: REQUEST_BYTES_MAX,
            message_bytes: REQUEST_BYTES_MAX,
            parts: REQUEST_PARTS_MAX,
            ..Limits::default()
        },
        stream_topics: TOPICS_MAX,
        ..Options::default()
    }
}

/// Those of the allowed who may know the keys of all values.
struct Readers {
    allowed: AllowList,
    tenants: bool,
    list: AllowList,
    messages: Mq,
    /// Held while the one list is made of the other.
    reviewing: Mutex<()>,
}

impl Readers {
    /// Follows the list of the allowed until it is dropped.
    fn of(allowed: &AllowList, tenants: bool, messages: Mq) -> Arc<Self> {
        let readers = Arc::new(Self {
            allowed: allowed.clone(),
            tenants,
            list: AllowList::of([]),
            messages,
            reviewing: Mutex::default(),
        });
        let following = Arc::downgrade(&readers);
        allowed.when_changed(move || {
            let readers = following.upgrade();
            readers.iter().for_each(|readers| readers.review());
            readers.is_some()
        });
        readers.review();
        readers
    }

    /// Takes over what has changed in the list of the allowed, and ends the links of those that may not read any more.
    fn review(&self) {
        let _turn = self.reviewing.lock();
        let readers = self.allowed.those(|key| may_read(key, self.tenants));
        self.list.replace(readers);
        self.messages.rights_changed();
    }
}

/// Whether a key may know the keys of all values; `tenants` is whether tenants are told apart.
fn may_read(key: &Allowed, tenants: bool) -> bool {
    match key.level {
        Level::Admin => true,
        Level::Basic => !tenants && key.tenants.is_empty(),
        Level::Node | Level::None => false,
    }
}

fn tcp(endpoint: &Endpoint) -> SocketAddr {
    let Endpoint::Tcp(address) = endpoint else {
        unreachable!("a TCP address is listened on as one")
    };
    *address
}

/// Publishes what waits until the queue is closed and empty.
fn publish(queue: &Arc<EventQueue>, publisher: &Publisher, topic: &[u8], mut encoder: KvEncoder) {
    // Messages begin with the number of the first event, which is above all of earlier lives.
    let mut lost = None;
    let mut pace = Pace::default();
    loop {
        // Taken before the look at the queue: what comes from here on ends the wait.
        let (seen, closed) = (queue.bell.seen(), queue.bell.is_closed());
        if let Some(taken) = queue.take(BATCH_EVENTS_MAX) {
            // Dropped together, they would have been one message or more: one number is enough for the gap.
            let gap = u64::from(taken.is_behind_a_gap);
            let before = lost.map_or(taken.first, |lost: u64| lost.max(gap));
            lost = Some(before);
            let batch = encoder.encode(millis(), taken.first, &taken.events);
            queue.told(&batch);
            if let Some(body) = batch.body {
                let room = queue.begin();
                publisher.publish_after(before, topic, body, move || drop(room));
                lost = Some(0);
            }
            continue;
        }
        if closed {
            return;
        }
        match pace.next(now(), queue.need()) {
            Next::Ask(more) => queue.ask(more),
            // Rung, closed or time for more: the next turn looks at all three.
            Next::Wait(until) => {
                let waiting = Waiting::at(&EVENTS).by(&Park).until(until);
                let _ = queue.bell.wait(seen, &waiting);
            }
        }
    }
}

/// The time, in milliseconds since the beginning of 1970.
fn millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_know_of_all_values_reads_and_nobody_else() {
        let check = |level, tenants: &[&str], told_apart, expected| {
            let key = Allowed {
                level,
                tenants: tenants.iter().map(|name| (*name).to_owned()).collect(),
                maps: true,
                name: String::new(),
            };
            let read = may_read(&key, told_apart);
            assert_eq!(read, expected, "{level:?} {tenants:?} {told_apart}");
        };
        check(Level::Admin, &[], false, true);
        check(Level::Admin, &[], true, true);
        check(Level::Basic, &[], false, true);
        check(Level::Basic, &[], true, false);
        check(Level::Basic, &["acme"], false, false);
        check(Level::Basic, &["acme"], true, false);
        for told_apart in [false, true] {
            check(Level::Node, &[], told_apart, false);
            check(Level::None, &[], told_apart, false);
        }
    }
}
