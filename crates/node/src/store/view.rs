//! Views: values that are read where they lie.
//!
//! A view of a value in memory holds a guard on its replica, so that it is not evicted, and an access to its extent, so
//! that the extent is not used again even if the object is removed or replaced. A value on SSD is read into a buffer
//! that belongs to the view. Both end when the view is dropped, and at no time before: no view shows bytes of another
//! value.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time;

use slackwater_base::Instant;
use slackwater_tier::arena::{Access as ArenaAccess, AccessId};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wire::{Chain, Get, GuardId, Key, Lookup, Object, ReplicaAt, Reply, Request};

use super::core::{Asked, Core};
use super::get::{Reader, in_pieces};
use super::shared::Shared;
use super::sink::Sink;
use super::views::{Hold, OpenView, ViewId};
use super::{StoreError, Tier, Verify, ViewOptions};
use crate::disk::Scratch;
use crate::fork;
use crate::region::{Access, Grant};

/// A value that is read where it lies, as `&[u8]`.
///
/// Its bytes stay as they are until it is dropped: also when its key is removed or replaced, when memory is short, and
/// when the store is closed, whose memory then stays until the last view has gone. In a child of `fork` a view shows the
/// bytes as they were at the fork, and dropping it does nothing.
pub struct View {
    held: ManuallyDrop<Held>,
    bytes: usize,
    tier: Tier,
    id: ViewId,
    /// Value of [`fork::generation`] in the process that opened it.
    generation: u64,
}

/// What a view keeps alive. Dropped only in the process that opened it.
struct Held {
    place: Place,
    /// The store, of which a view keeps nothing but the memory that it shows: not the directory, for one.
    store: Weak<Shared>,
}

/// Where the bytes of a view are.
enum Place {
    Extent(Grant),
    Buffer(Scratch),
}

impl View {
    fn new(shared: &Arc<Shared>, place: Place, bytes: usize, (id, tier): (ViewId, Tier)) -> Self {
        let store = Arc::downgrade(shared);
        Self {
            held: ManuallyDrop::new(Held { place, store }),
            bytes,
            tier,
            id,
            generation: fork::generation(),
        }
    }

    /// Where the value was when the view was opened.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.held.place {
            Place::Extent(grant) => grant.as_slice(self.bytes),
            Place::Buffer(buffer) => &buffer[..self.bytes],
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("bytes", &self.bytes)
            .field("tier", &self.tier)
            .finish_non_exhaustive()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // In a child of `fork` another thread may have held the locks, for ever.
        if self.generation != fork::generation() {
            return;
        }
        if let Some(store) = self.held.store.upgrade() {
            // A store that is closed or broken need not know: nothing is used again there.
            let _ = store.with(|core, now| core.close_view(now, self.id));
        }
        // SAFETY: this is the only place that drops it, and it is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.held) };
    }
}

/// A view that is being opened by the long way: with a read from SSD, or a check of its bytes.
pub(super) struct Viewing {
    shared: Arc<Shared>,
    pub(super) verify: Verify,
    place: Option<(Place, usize)>,
    view: Option<View>,
}

impl Viewing {
    /// Memory for a value of this length that is on SSD; `None` when there is none.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let buffer = self.shared.view_buffers.try_take(bytes)?;
        let (place, _) = self.place.insert((Place::Buffer(buffer), bytes));
        match place {
            Place::Buffer(buffer) => Some(&mut buffer[..bytes]),
            Place::Extent(_) => None,
        }
    }

    /// What was read into [`Viewing::room`]; nothing of a value in memory.
    pub(super) fn read(&self) -> &[u8] {
        match &self.place {
            Some((Place::Buffer(buffer), bytes)) => &buffer[..*bytes],
            Some((Place::Extent(_), _)) | None => &[],
        }
    }

    /// The value is in memory, here.
    pub(super) fn found(&mut self, grant: Grant, bytes: usize) {
        self.place = Some((Place::Extent(grant), bytes));
    }

    /// The view is open: what was found or read is shown.
    pub(super) fn opened(&mut self, id: ViewId, tier: Tier) {
        let (place, bytes) = self.place.take().expect("what is shown has a place");
        self.view = Some(View::new(&self.shared, place, bytes, (id, tier)));
    }
}

/// What looking at memory alone gave.
enum Quick {
    /// A view of each value that there is.
    Done(Vec<Option<View>>),
    /// Something else has to be done, from this answer of the master on.
    Answered(Reply),
}

impl Shared {
    /// Opens a view of each key.
    pub(super) fn view(
        self: &Arc<Self>,
        keys: &[&[u8]],
        options: &ViewOptions,
    ) -> Vec<Result<Option<View>, StoreError>> {
        let view = |keys: &[&[u8]], chain: &Chain| {
            let known: Option<Vec<Key>> = keys.iter().map(|key| Key::new(key).ok()).collect();
            let quick = match known {
                Some(known) if options.verify == Verify::OnArrival => {
                    self.view_in_memory(known, chain, options).map(Some)
                }
                _ => Ok(None),
            };
            match quick {
                Ok(Some(Quick::Done(views))) => views.into_iter().map(Ok).collect(),
                Ok(Some(Quick::Answered(reply))) => {
                    self.view_by_reading(keys, chain, options, Some(reply))
                }
                Ok(None) => self.view_by_reading(keys, chain, options, None),
                Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
            }
        };
        let span = TraceSpan::root("slackwater.get", SpanKind::Internal).keys(keys.len());
        let opened = || in_pieces(keys, &options.read, view);
        span.read_each(opened, |view: &View| view.bytes, StoreError::code)
    }

    /// Opens views of values that are all in memory, under one hold of the lock.
    fn view_in_memory(
        self: &Arc<Self>,
        keys: Vec<Key>,
        chain: &Chain,
        options: &ViewOptions,
    ) -> Result<Quick, StoreError> {
        self.check_open()?;
        let begun = time::Instant::now();
        let get = Get {
            tenant: options.read.tenant.clone(),
            keys: keys.clone(),
            chain: chain.clone(),
            hold: slackwater_wire::Hold::Guard,
            prefix_only: options.read.prefix_only,
        };
        let quick = self.with(|core, now| {
            let reply = match core.ask(now, Request::Get(get)) {
                Asked::Now(reply) => reply,
                Asked::Later(_) => Reply::Failed(NO_ANSWER),
            };
            match self.open_all(core, now, &reply, keys, options) {
                Some(opened) => Ok(opened),
                None => Err(reply),
            }
        })?;
        let opened = match quick {
            Ok(opened) => opened,
            Err(reply) => return Ok(Quick::Answered(reply)),
        };
        let took = begun.elapsed();
        let view = |(id, found): (ViewId, Found)| {
            self.meters.read(Tier::Memory, found.bytes, took);
            let place = Place::Extent(found.grant);
            View::new(self, place, found.bytes, (id, Tier::Memory))
        };
        let views = opened.into_iter().map(|opened| opened.map(view));
        Ok(Quick::Done(views.collect()))
    }

    /// Enters a view of each value that there is, if all of them are in memory and may be viewed; else nothing has changed.
    fn open_all(
        &self,
        core: &mut Core,
        now: Instant,
        reply: &Reply,
        keys: Vec<Key>,
        options: &ViewOptions,
    ) -> Option<Vec<Option<(ViewId, Found)>>> {
        let Reply::Get(lookups) = reply else {
            return None;
        };
        let mut all = Vec::with_capacity(lookups.len());
        for lookup in lookups {
            let found = match lookup {
                Lookup::Missing => Some(None),
                Lookup::Found(object) => self.begin(core, now, object).map(Some),
                _ => None,
            };
            match found {
                Some(found) => all.push(found),
                None => return abandon(core, now, all),
            }
        }
        let hits = all.iter().flatten().count();
        if hits > 0 && core.views.room_for(now, hits).is_err() {
            return abandon(core, now, all);
        }
        let enter = |(key, found): (Key, Option<Found>)| {
            let found = found?;
            let view = OpenView {
                tenant: options.read.tenant.clone(),
                key,
                bytes: found.bytes,
                hold: Hold::Extent {
                    access: found.access,
                    guard: found.guard,
                },
            };
            Some((core.views.open(now, view), found))
        };
        Some(keys.into_iter().zip(all).map(enter).collect())
    }

    /// Begins to use the extent of an object; `None` when it is not in memory.
    fn begin(&self, core: &mut Core, now: Instant, object: &Object) -> Option<Found> {
        let Some(ReplicaAt::Memory(extent)) = object.replicas.first() else {
            return None;
        };
        let access = core.begin_access(extent, ArenaAccess::Read)?;
        // SAFETY: the look-up names extents that were filled and published, and until this access ends, which the view
        // does when it is dropped, the agent lets nobody write to it nor the master give it out again.
        let Some(grant) = (unsafe { self.segment.grant(extent, Access::Read) }) else {
            core.end_access(now, access);
            return None;
        };
        Some(Found {
            grant,
            access,
            guard: object.guard,
            bytes: object.bytes as usize,
        })
    }

    /// Opens views as a read goes: replica by replica, bytes verified where that is asked for.
    fn view_by_reading(
        self: &Arc<Self>,
        keys: &[&[u8]],
        chain: &Chain,
        options: &ViewOptions,
        answer: Option<Reply>,
    ) -> Vec<Result<Option<View>, StoreError>> {
        let viewing = || Viewing {
            shared: Arc::clone(self),
            verify: options.verify,
            place: None,
            view: None,
        };
        let mut sinks: Vec<Sink<'_>> = keys.iter().map(|_| Sink::View(viewing())).collect();
        let reader = Reader::new(self, &options.read, &mut sinks).answered(answer);
        let outcomes = reader.run(keys, chain);
        let view = |(outcome, sink)| match (outcome?, sink) {
            (Some(_), Sink::View(viewing)) => Ok(viewing.view),
            _ => Ok(None),
        };
        outcomes.into_iter().zip(sinks).map(view).collect()
    }
}

/// An extent in use by a view that is not open yet.
struct Found {
    grant: Grant,
    access: AccessId,
    guard: Option<GuardId>,
    bytes: usize,
}

/// Ends the use of these extents; their guards belong to the read that goes on from the answer.
fn abandon(
    core: &mut Core,
    now: Instant,
    all: Vec<Option<Found>>,
) -> Option<Vec<Option<(ViewId, Found)>>> {
    for found in all.into_iter().flatten() {
        drop(found.grant);
        core.end_access(now, found.access);
    }
    None
}

/// What a look-up without an answer counts as: the master of this process answers at once.
const NO_ANSWER: slackwater_wire::ErrorCode = slackwater_wire::ErrorCode::InternalError;
