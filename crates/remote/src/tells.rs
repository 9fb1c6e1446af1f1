//! The thread that gives back what calls were granted and did not use: it sends each request until it is answered. It also
//! tells the master of reads that needed no look-up, and wakes the tasks of calls that pause. It sleeps while there is nothing
//! to say.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_client::{Locations, Operations, Stamp, Tells};
use slackwater_wait::{Event, Park, Site, Waiting, now};
use slackwater_wire::{Answered, ErrorCode, OperationId, Reads, Reply, Request, Version};

use crate::drive::rights;
use crate::link::{Link, Unanswered};
use crate::locations::{LocationCache, Rights};

/// See the module. It ends when this is dropped; what is unanswered then ends at the server with the link.
pub(crate) struct Telling {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    link: Arc<Link>,
    operations: Operations,
    locations: Arc<LocationCache>,
    tells: Mutex<Tells>,
    sleepers: Mutex<Sleepers>,
    bell: Event,
}

/// Most unanswered requests; calls wait with new ones beyond that.
const TELLS_MAX: usize = 4_096;
/// How long each answer is waited for.
const AGAIN: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(5));

static SITE: Site = Site::new("client, tells");

impl Telling {
    pub(crate) fn start(
        link: Arc<Link>,
        jitter: Rng,
        operations: Operations,
        locations: Locations<Rights>,
    ) -> io::Result<Self> {
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            link,
            operations,
            locations: Arc::new(LocationCache::new(locations, {
                let shared = Weak::clone(shared);
                move || {
                    shared
                        .upgrade()
                        .iter()
                        .for_each(|shared| _ = shared.bell.notify_all())
                }
            })),
            tells: Mutex::new(Tells::new(TELLS_MAX, AGAIN, jitter)),
            sleepers: Mutex::default(),
            bell: Event::new(),
        });
        let other = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("slack-tells".to_owned())
            .spawn(move || other.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Sends a request now, and again until it is answered.
    pub(crate) fn tell(&self, operation: OperationId, request: Request) {
        self.shared.send(operation, &request);
        self.shared.tells().tell(now(), operation, request);
        self.shared.bell.notify_all();
    }

    /// Wakes a task then, or before.
    pub(crate) fn sleeper(&self, at: Instant) -> Sleeper<'_> {
        let slot = Arc::<Slot>::default();
        let number = self.shared.sleepers().add(at, Arc::clone(&slot));
        self.shared.bell.notify_all();
        Sleeper {
            shared: &self.shared,
            name: (at, number),
            slot,
        }
    }

    /// The locations that calls share, which it renews.
    pub(crate) fn locations(&self) -> &LocationCache {
        &self.shared.locations
    }

    /// Whether so many requests are unanswered that nothing new is to begin.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.tells().is_full()
    }
}

impl Shared {
    fn run(self: &Arc<Self>) {
        while !self.bell.is_closed() {
            // Taken before the look at what is due, so that a ring from here on ends the wait.
            let seen = self.bell.seen();
            let mut due = Vec::new();
            self.tells().on_deadline(now(), &mut due);
            for (operation, request) in due {
                self.send(operation, &request);
            }
            for told in self.locations.on_deadline() {
                self.renew(told);
            }
            let rested = self.sleepers().take(now());
            rested.iter().for_each(|slot| slot.wake());
            let next = [
                self.tells().next_deadline(),
                self.locations.next_deadline(),
                self.sleepers().next(),
            ];
            let until = next.into_iter().flatten().min().unwrap_or(Instant::NEVER);
            let waiting = Waiting::at(&SITE).by(&Park).until(until);
            // Rung, due or closed: the next turn looks at all three.
            let _ = self.bell.wait(seen, &waiting);
        }
    }

    fn send(self: &Arc<Self>, operation: OperationId, request: &Request) {
        let shared = Arc::downgrade(self);
        let heard = move |answer: Result<Answered, Unanswered>| {
            let reply = match answer {
                Ok(answered) => answered.reply,
                Err(Unanswered::Refused(code)) => Reply::Failed(code),
                Err(Unanswered::Foreign(_)) => Reply::Failed(ErrorCode::DeserializeFail),
                // It is sent again.
                Err(Unanswered::Late | Unanswered::Lost | Unanswered::Cancelled) => return,
            };
            if let Some(shared) = shared.upgrade() {
                shared.tells().on_reply(operation, &reply);
            }
        };
        self.link.ask_later(operation, request, heard);
    }

    /// Tells of reads that needed no look-up. Without an answer their leases end, and nothing else.
    fn renew(self: &Arc<Self>, (reads, stamps): (Reads, Vec<Stamp>)) {
        let (locations, at) = (Arc::clone(&self.locations), now());
        let request = Request::Reads(reads.clone());
        let versions: Vec<Version> = reads.versions().collect();
        let heard = move |answer: Result<Answered, Unanswered>| {
            if let Ok(Answered {
                reply: reply @ Reply::Get(_),
                capabilities,
                ..
            }) = answer
            {
                let extents = rights(&reply, capabilities);
                let Reply::Get(lookups) = &reply else { return };
                locations.keep(
                    &reads.tenant,
                    reads.keys(),
                    (&stamps, &versions),
                    at,
                    (lookups, &extents),
                );
            }
        };
        self.link.ask_later(self.operations.next(), &request, heard);
    }

    fn tells(&self) -> MutexGuard<'_, Tells> {
        self.tells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause of a call that a task awaits, until this is dropped.
pub(crate) struct Sleeper<'a> {
    shared: &'a Shared,
    name: (Instant, u64),
    slot: Arc<Slot>,
}

impl Sleeper<'_> {
    /// The task that polls now is woken, and no earlier one.
    pub(crate) fn wakes(&self, waker: &Waker) {
        *self.slot.waker() = Some(waker.clone());
    }

    pub(crate) fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.shared.sleepers().slots.remove(&self.name);
    }
}

/// The task that the end of a pause wakes.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<Waker>>);

impl Slot {
    pub(crate) fn wake(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls that pause.
#[derive(Default)]
struct Sleepers {
    count: u64,
    /// By when they go on, and in their order.
    slots: BTreeMap<(Instant, u64), Arc<Slot>>,
}

impl Sleepers {
    fn add(&mut self, at: Instant, slot: Arc<Slot>) -> u64 {
        self.count += 1;
        self.slots.insert((at, self.count), slot);
        self.count
    }

    /// Those that go on at `now`.
    fn take(&mut self, now: Instant) -> Vec<Arc<Slot>> {
        let due = |(at, _): &(Instant, u64), _: &mut Arc<Slot>| *at <= now;
        let due = self.slots.extract_if(.., due);
        due.map(|(_, slot)| slot).collect()
    }

    fn next(&self) -> Option<Instant> {
        let ((at, _), _) = self.slots.first_key_value()?;
        Some(*at)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.shared.bell.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
