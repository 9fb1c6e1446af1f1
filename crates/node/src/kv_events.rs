//! Tells routers of requests what the pool holds: what its master says becomes readable and goes is published as KV events,
//! in messages that any subscriber of ZeroMQ reads.
//!
//! Under its lock the master only puts events into a queue of bounded length. A thread writes them, and a message layer of
//! its own sends them, so that neither slow subscribers nor many delay requests.

mod queue;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use slackwater_mq::{
    Admission, AllowList, Allowed, Builder, Level, ListenOptions, Options, Publisher, Running,
    StreamOptions, Workers,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_wait::{Park, Site, Waiting};
use slackwater_wire::kv_events::KvEventFormat;

pub(crate) use queue::EventQueue;

use crate::OpenError;
use crate::serve::{Links, ServeError, epoch};

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
    /// Events that wait to be published at most; beyond them the oldest are dropped.
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

/// KV events that are being published. What waits is still published when this is dropped.
pub(crate) struct KvEvents {
    messages: Running,
    readers: Option<Readers>,
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
        let messages = Builder::new(Options {
            keys: links.keys.clone(),
            workers: Workers {
                general: 1,
                ..Workers::default()
            },
            connections: SUBSCRIBERS_MAX,
            ..Options::default()
        });
        let messages = messages.start()?;
        let stream = StreamOptions {
            replay_messages: options.replay_messages,
            first: first_number(),
            ..StreamOptions::default()
        };
        let replay = options.replay.map(Endpoint::Tcp);
        let allowed = links.allowed.clone().filter(|_| !options.open);
        let readers = allowed.map(|allowed| Readers::of(allowed, tenants));
        let listening = ListenOptions {
            encrypted: readers.is_some(),
            admission: match &readers {
                Some(readers) => Admission::Listed(readers.list.clone()),
                None => Admission::Everybody(Level::None),
            },
            access: UnixAccess::default(),
        };
        let endpoint = Endpoint::Tcp(options.listen);
        let publisher = messages.publish(&endpoint, replay.as_ref(), &listening, &stream);
        let publisher = publisher.map_err(|why| ServeError::KvEvents {
            address: options.listen,
            why,
        })?;
        let places = KvEventsPlaces {
            listen: tcp(publisher.endpoint()),
            replay: publisher.replay_endpoint().map(tcp),
        };
        let queue = Arc::new(EventQueue::new(options.queue, stream.first));
        let (taken, topic, format) = (
            Arc::clone(&queue),
            options.topic.clone(),
            options.format.clone(),
        );
        let thread = std::thread::Builder::new().name("slack-kv-events".to_owned());
        let run = move || publish(&taken, &publisher, topic.as_bytes(), &format);
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

    /// Ends the links of those that may not connect any more.
    pub(crate) fn rights_changed(&self) -> impl Fn() + Send + Sync + use<> {
        let (messages, readers) = (self.messages.handle(), self.readers.clone());
        move || {
            if let Some(readers) = &readers {
                readers.review();
                messages.rights_changed();
            }
        }
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
const SUBSCRIBERS_MAX: usize = 4_096;
/// Events of one message.
const BATCH_EVENTS_MAX: usize = 1_024;

static EVENTS: Site = Site::new("master, KV events");

/// The number of the first message and event of a life: above all of earlier lives, unless the clock went back.
fn first_number() -> u64 {
    epoch::versions_above(epoch::now()).0
}

/// Those of the allowed who may know the keys of all values.
#[derive(Clone)]
struct Readers {
    allowed: AllowList,
    tenants: bool,
    list: AllowList,
}

impl Readers {
    fn of(allowed: AllowList, tenants: bool) -> Self {
        let readers = Self {
            allowed,
            tenants,
            list: AllowList::of([]),
        };
        readers.review();
        readers
    }

    /// Takes over what has changed in the list of the allowed.
    fn review(&self) {
        let may = |key: &Allowed| match key.level {
            Level::Admin => true,
            Level::Basic => !self.tenants && key.tenants.is_empty(),
            Level::Node | Level::None => false,
        };
        self.list.replace(self.allowed.those(may));
    }
}

fn tcp(endpoint: &Endpoint) -> SocketAddr {
    let Endpoint::Tcp(address) = endpoint else {
        unreachable!("a TCP address is listened on as one")
    };
    *address
}

/// Publishes what waits until the queue is closed and empty.
fn publish(queue: &Arc<EventQueue>, publisher: &Publisher, topic: &[u8], format: &KvEventFormat) {
    let mut lost = 0;
    loop {
        // Taken before the look at the queue: what comes from here on ends the wait.
        let (seen, closed) = (queue.bell.seen(), queue.bell.is_closed());
        if let Some(taken) = queue.take(BATCH_EVENTS_MAX) {
            // Dropped together, they would have been one message or more: one number is enough for the gap.
            lost = lost.max(u64::from(taken.is_behind_a_gap));
            let batch = format.encode(millis(), taken.first, &taken.events);
            queue.told(&batch);
            if let Some(body) = batch.body {
                let room = queue.begin();
                publisher.publish_after(lost, topic, body, move || drop(room));
                lost = 0;
            }
        } else if closed {
            return;
        } else {
            // Rung or closed: the next turn looks at both.
            let _ = queue.bell.wait(seen, &Waiting::at(&EVENTS).by(&Park));
        }
    }
}

/// The time, in milliseconds since the beginning of 1970.
fn millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
