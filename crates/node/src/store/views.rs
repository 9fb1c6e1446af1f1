//! The books of open views: whether there may be another one, which of them are late, and what they hold.
//!
//! Every view has the same time, so those that are late are the oldest: a prefix of the table.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_tier::arena::AccessId;
use slackwater_wire::{GuardId, Key, Tenant};

use super::stats::ViewStats;
use super::{StoreError, Tier};

/// Identifies one view; a later one has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ViewId(u64);

/// A view, as the books know it.
#[derive(Debug)]
pub(super) struct OpenView {
    pub(super) tenant: Tenant,
    pub(super) key: Key,
    pub(super) bytes: usize,
    pub(super) hold: Hold,
}

/// What keeps the bytes of a view in place until it is closed.
#[derive(Debug)]
pub(super) enum Hold {
    /// An extent: the guard keeps it from eviction, and the access from being used again whatever becomes of its object.
    Extent {
        access: AccessId,
        guard: Option<GuardId>,
    },
    /// A buffer that belongs to the view.
    Buffer,
}

impl Hold {
    pub(super) fn tier(&self) -> Tier {
        match self {
            Hold::Extent { .. } => Tier::Memory,
            Hold::Buffer => Tier::Disk,
        }
    }
}

/// The views of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueViews {
    /// How many are open.
    pub(super) open: u32,
    /// How long the oldest is.
    pub(super) oldest: Duration,
    /// Whether that is longer than a view may be.
    pub(super) late: bool,
}

/// The views that became late since they were last asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewlyLate {
    pub(super) views: usize,
    /// The key of the first.
    pub(super) key: Key,
}

/// The views of a store.
#[derive(Debug)]
pub(super) struct Views {
    limit: usize,
    time: Duration,
    open: BTreeMap<ViewId, (Instant, OpenView)>,
    next: u64,
    /// Views before this one are late.
    late_before: ViewId,
    newly_late: Option<NewlyLate>,
    stats: ViewStats,
}

/// Views that become late in one step: the others do in the next.
const STEP: usize = 256;

impl Views {
    /// At most `limit` at once, each for no longer than `time`.
    pub(super) fn new(limit: usize, time: Duration) -> Self {
        Self {
            limit,
            time,
            open: BTreeMap::new(),
            next: 0,
            late_before: ViewId(0),
            newly_late: None,
            stats: ViewStats::default(),
        }
    }

    /// Whether there may be another view; a refusal counts.
    ///
    /// # Errors
    /// As [`Self::room_for`].
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), StoreError> {
        let admitted = self.room_for(now, 1);
        self.stats.refused += u64::from(admitted.is_err());
        admitted
    }

    /// Whether there may be `more` views.
    ///
    /// # Errors
    /// There are too many, or one is late: what holders keep that do not let go must not grow.
    pub(super) fn room_for(&self, now: Instant, more: usize) -> Result<(), StoreError> {
        if self.open.len() + more > self.limit {
            return Err(StoreError::TooManyViews {
                open: self.open.len(),
                limit: self.limit,
            });
        }
        match self.open.first_key_value() {
            Some((_, (opened, view))) if now.since(*opened) >= self.time => {
                Err(StoreError::LateView {
                    key: view.key.clone(),
                    held: now.since(*opened),
                    limit: self.time,
                })
            }
            _ => Ok(()),
        }
    }

    /// Enters a view that was admitted.
    pub(super) fn open(&mut self, now: Instant, view: OpenView) -> ViewId {
        let id = ViewId(self.next);
        self.next += 1;
        self.stats.opened += 1;
        self.stats.open_bytes += view.bytes as u64;
        self.open.insert(id, (now, view));
        id
    }

    /// Strikes a view out; the caller ends its hold.
    pub(super) fn close(&mut self, id: ViewId) -> Option<OpenView> {
        let (_, view) = self.open.remove(&id)?;
        self.stats.late -= u64::from(id < self.late_before);
        self.stats.open_bytes -= view.bytes as u64;
        Some(view)
    }

    /// Counts the views that have become late.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        for (id, (opened, view)) in self.open.range(self.late_before..).take(STEP) {
            if *opened + self.time > now {
                break;
            }
            self.late_before = ViewId(id.0 + 1);
            self.stats.late += 1;
            self.stats.became_late += 1;
            let first = || NewlyLate {
                views: 0,
                key: view.key.clone(),
            };
            self.newly_late.get_or_insert_with(first).views += 1;
        }
    }

    /// When the next view becomes late.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (_, (opened, _)) = self.open.range(self.late_before..).next()?;
        Some(*opened + self.time)
    }

    /// The views that became late since this was last asked.
    pub(super) fn take_newly_late(&mut self) -> Option<NewlyLate> {
        self.newly_late.take()
    }

    /// The views of one value, of its earlier versions too; `None` when there are none.
    pub(super) fn of(&self, now: Instant, tenant: &Tenant, key: &Key) -> Option<ValueViews> {
        let mut of_key = self
            .open
            .values()
            .filter(|(_, view)| view.key == *key && view.tenant == *tenant);
        let (oldest, _) = of_key.next()?;
        let oldest = now.since(*oldest);
        Some(ValueViews {
            open: of_key.count() as u32 + 1,
            oldest,
            late: oldest >= self.time,
        })
    }

    pub(super) fn stats(&self) -> ViewStats {
        ViewStats {
            open: self.open.len() as u64,
            ..self.stats
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    fn view(key: u8, bytes: usize) -> OpenView {
        OpenView {
            tenant: Tenant::DEFAULT,
            key: Key::new(&[key]).unwrap(),
            bytes,
            hold: Hold::Buffer,
        }
    }

    /// What the books should say, counted anew each time.
    #[derive(Default)]
    struct Model {
        open: Vec<(ViewId, Instant, u8, usize)>,
        opened: u64,
        refused: u64,
        became_late: u64,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open(u8, usize),
        Close(usize),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..3u8, 1..1000usize).prop_map(|(key, bytes)| Step::Open(key, bytes)),
            3 => any::<usize>().prop_map(Step::Close),
            2 => (0..6u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn the_books_are_those_of_a_list(limit in 1..6usize, steps in prop::collection::vec(step(), 0..60)) {
            let (mut views, mut model) = (Views::new(limit, TIME), Model::default());
            let mut now = Instant::ZERO;
            for step in steps {
                let late = |(_, opened, ..): &&(ViewId, Instant, u8, usize)| now.since(*opened) >= TIME;
                match step {
                    Step::Open(key, bytes) => {
                        let room = model.open.len() < limit && !model.open.iter().any(|view| late(&view));
                        prop_assert_eq!(views.admit(now).is_ok(), room);
                        if room {
                            let id = views.open(now, view(key, bytes));
                            model.open.push((id, now, key, bytes));
                            model.opened += 1;
                        } else {
                            model.refused += 1;
                        }
                    }
                    Step::Close(at) if model.open.is_empty() => {
                        prop_assert!(views.close(ViewId(at as u64 + (1 << 32))).is_none());
                    }
                    Step::Close(at) => {
                        let (id, _, key, bytes) = model.open.remove(at % model.open.len());
                        let closed = views.close(id).unwrap();
                        prop_assert_eq!((closed.key.as_bytes(), closed.bytes), (&[key][..], bytes));
                        prop_assert!(views.close(id).is_none());
                    }
                    Step::Wait(seconds) => {
                        let before = now;
                        now += Duration::from_secs(seconds);
                        let became = |opened: &Instant| now.since(*opened) >= TIME && before.since(*opened) < TIME;
                        let newly = model.open.iter().filter(|(_, opened, ..)| became(opened)).count();
                        let due = views.next_deadline().is_some_and(|at| at <= now);
                        prop_assert_eq!(due, newly > 0);
                        views.on_deadline(now);
                        model.became_late += newly as u64;
                        let said = views.take_newly_late();
                        prop_assert_eq!(said.map_or(0, |late| late.views), newly);
                    }
                }
                let late = |(_, opened, ..): &&(ViewId, Instant, u8, usize)| now.since(*opened) >= TIME;
                let expected = ViewStats {
                    open: model.open.len() as u64,
                    open_bytes: model.open.iter().map(|view| view.3 as u64).sum(),
                    late: model.open.iter().filter(late).count() as u64,
                    opened: model.opened,
                    became_late: model.became_late,
                    refused: model.refused,
                };
                prop_assert_eq!(views.stats(), expected);
                for key in 0..3u8 {
                    let mut own = model.open.iter().filter(|view| view.2 == key);
                    let first = own.next().map(|view| ValueViews {
                        open: own.count() as u32 + 1,
                        oldest: now.since(view.1),
                        late: now.since(view.1) >= TIME,
                    });
                    prop_assert_eq!(views.of(now, &Tenant::DEFAULT, &Key::new(&[key]).unwrap()), first);
                }
            }
        }
    }

    #[test]
    fn a_refusal_says_why() {
        let mut views = Views::new(2, TIME);
        views.open(Instant::ZERO, view(b'a', 1));
        assert!(views.room_for(Instant::ZERO, 1).is_ok());
        let check = |refused: Result<(), StoreError>, words: &str| {
            assert_eq!(refused.unwrap_err().to_string(), words);
        };
        check(
            views.room_for(Instant::ZERO, 2),
            "1 views are open, of 2 at most (`views.limit`): end some first",
        );
        check(
            views.room_for(Instant::ZERO + TIME, 1),
            "no further view: one of a has been open for 10s, and 10s is the limit (`views.time`)",
        );
    }

    #[test]
    fn many_views_become_late_in_steps() {
        let mut views = Views::new(usize::MAX, TIME);
        for _ in 0..STEP + 1 {
            views.open(Instant::ZERO, view(b'a', 1));
        }
        let end = Instant::ZERO + TIME;
        for late in [STEP, 1] {
            assert_eq!(views.next_deadline(), Some(end));
            views.on_deadline(end);
            assert_eq!(views.take_newly_late().unwrap().views, late);
        }
        assert_eq!(views.next_deadline(), None);
        let other = Tenant::new("other").unwrap();
        assert_eq!(views.of(end, &other, &Key::new(b"a").unwrap()), None);
    }
}
