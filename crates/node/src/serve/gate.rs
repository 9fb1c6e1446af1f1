//! The gate of the arena: which extents other processes may access now, and which they still do.
//!
//! An extent has a generation for each use. [`ExtentGate::fence`] makes generations dead at once: nothing begins under
//! them, and what is under way does not count. The agent's report that an extent is fenced is kept back
//! ([`ExtentGate::keep_back`]) until the last access of another process has ended too, so that bytes are never given out
//! again while one may still arrive. [`ExtentGate::seal`] ends the right to write before an object is published, and
//! [`ExtentGate::await_writers`] waits for the writes that began before. [`ExtentGate::outlive`] leaves of what an earlier
//! master granted only what was published.
//!
//! Processes of this host read without asking: they see in a table ([`GenerationTable`]) which generations are dead, and
//! nobody waits for them.
//!
//! The gate has a lock of its own, which is held for a few look-ups and under which nothing else is taken: event loops
//! call it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use slackwater_base::{Instant, Map, Set};
use slackwater_transfer::{Extent, Gate, GateAccess, GenerationTable, Refusal, Rights};
use slackwater_wait::{Event, Park, Site, Waiting};
use slackwater_wire::ExtentRef;

/// See the module.
pub(crate) struct ExtentGate {
    granule: u64,
    bytes: u64,
    state: Mutex<GateState>,
    /// Called when there is something to be taken by [`ExtentGate::take_drained`], or the last access has ended that
    /// [`ExtentGate::is_outlived`] tells of.
    drained: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The last write to a sealed extent has ended.
    written: Event,
    /// What is dead, for readers of this host; none where each of them asks.
    generations: Option<GenerationTable>,
}

struct GateState {
    /// By the granule at which extents begin: generations below are dead.
    dead_below: Vec<u64>,
    /// By the granule at which extents begin: generations below may be read only.
    sealed_below: Vec<u64>,
    next_access: u64,
    accesses: Map<GateAccess, Admitted>,
    users: Map<Use, Users>,
    /// Extents that the agent has fenced, and that other processes still access.
    kept_back: Map<Use, ExtentRef>,
    drained: Vec<ExtentRef>,
    /// What an earlier master granted, nobody published, and other processes still access.
    outlived: Set<Use>,
}

/// One use of the bytes at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Use {
    offset: u64,
    generation: u64,
}

/// The accesses to one use.
#[derive(Default)]
struct Users {
    all: u32,
    /// Those that may write.
    writers: u32,
    /// When the right to write was ended under them.
    sealed: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Admitted {
    of: Use,
    writes: bool,
}

/// The lock is held for so many granules at a time, some microseconds: event loops wait for it.
const LOCKED_GRANULES: usize = 4096;

pub(crate) static WRITTEN: Site = Site::new("store, ends of writes");

impl ExtentGate {
    /// A gate of `bytes` bytes of memory whose extents begin at multiples of `granule`.
    pub(crate) fn new(bytes: u64, granule: u64) -> Self {
        let generations = GenerationTable::create(bytes, granule).inspect_err(|error| {
            tracing::warn!(%error, "processes of this host ask for each read");
        });
        let granules = usize::try_from(bytes / granule).expect("the memory is mapped, so it fits");
        Self {
            granule,
            bytes,
            state: Mutex::new(GateState {
                dead_below: vec![0; granules],
                sealed_below: vec![0; granules],
                next_access: 0,
                accesses: Map::default(),
                users: Map::default(),
                kept_back: Map::default(),
                drained: Vec::new(),
                outlived: Set::default(),
            }),
            drained: OnceLock::new(),
            written: Event::new(),
            generations: generations.ok(),
        }
    }

    /// Calls `drained`, on any thread, when extents can be taken by [`ExtentGate::take_drained`].
    pub(crate) fn on_drained(&self, drained: impl Fn() + Send + Sync + 'static) {
        let first = self.drained.set(Box::new(drained)).is_ok();
        assert!(first, "a gate belongs to one store");
    }

    /// Makes extents dead, with all generations before them. Those at which transfers are under way are added to
    /// `released`.
    pub(crate) fn fence(&self, extents: &[ExtentRef], released: &mut Vec<Extent>) {
        let mut state = self.state();
        for extent in extents {
            self.kill(&mut state, extent.offset, extent.generation);
            state.release(extent, released);
        }
    }

    /// Ends the right to write to an extent that is about to be published. It is added to `released` if transfers are under
    /// way at it.
    pub(crate) fn seal(&self, now: Instant, extent: &ExtentRef, released: &mut Vec<Extent>) {
        let mut state = self.state();
        let at = self.index(extent.offset);
        state.sealed_below[at] = state.sealed_below[at].max(extent.generation.saturating_add(1));
        if let Some(users) = state.users.get_mut(&Use::of(extent)) {
            users.sealed.get_or_insert(now);
        }
        state.release(extent, released);
    }

    /// Waits for the writes that began before these extents were sealed, no longer than `until`. When one is still under
    /// way then, its bytes may land at any time: says since when its extent is sealed.
    pub(crate) fn await_writers(&self, extents: &[ExtentRef], until: Instant) -> Option<Instant> {
        loop {
            // Taken before the look, so that a write which ends from here on ends the wait.
            let seen = self.written.seen();
            self.written_since(extents)?;
            let waiting = Waiting::at(&WRITTEN).by(&Park).until(until);
            if self.written.wait(seen, &waiting).is_err() {
                return self.written_since(extents);
            }
        }
    }

    /// When the first of the sealed extents that are still written was sealed.
    pub(crate) fn written_since(&self, extents: &[ExtentRef]) -> Option<Instant> {
        let state = self.state();
        let users = extents
            .iter()
            .filter_map(|extent| state.users.get(&Use::of(extent)));
        let written = users.filter(|users| users.writers > 0);
        written.filter_map(|users| users.sealed).min()
    }

    /// Keeps those of the fenced `extents` back that other processes still access, and says which.
    pub(crate) fn keep_back(&self, extents: &mut Vec<ExtentRef>) -> Vec<ExtentRef> {
        let mut state = self.state();
        let mut kept = Vec::new();
        extents.retain(|extent| {
            let of = Use::of(extent);
            let busy = state.users.contains_key(&of);
            if busy {
                state.kept_back.insert(of, *extent);
                kept.push(*extent);
            }
            !busy
        });
        kept
    }

    /// Makes every generation below `floor` dead in the first `bytes` bytes, except `published` extents, in the order of
    /// their addresses, which may be read. Transfers at others are added to `released`.
    pub(crate) fn outlive<'a>(
        &self,
        bytes: u64,
        floor: u64,
        published: impl Iterator<Item = &'a ExtentRef>,
        released: &mut Vec<Extent>,
    ) {
        let mut published = published.peekable();
        let granules = self.index(bytes);
        for first in (0..granules).step_by(LOCKED_GRANULES) {
            let end = granules.min(first + LOCKED_GRANULES);
            let inside = |extent: &&ExtentRef| self.index(extent.offset) < end;
            let held: Vec<_> = std::iter::from_fn(|| published.next_if(inside)).collect();
            self.outlive_some(first..end, floor, held);
        }
        let mut state = self.state();
        let dead =
            |of: &Use| of.offset < bytes && of.generation < state.dead_below[self.index(of.offset)];
        let under_way = state.users.iter().filter(|(of, _)| dead(of));
        let under_way: Vec<Use> = under_way.map(|(of, _)| *of).collect();
        for of in under_way {
            released.push(Extent {
                offset: of.offset,
                bytes: self.granule,
                generation: of.generation,
            });
            state.outlived.insert(of);
        }
    }

    fn outlive_some(&self, granules: Range<usize>, floor: u64, published: Vec<&ExtentRef>) {
        let mut state = self.state();
        let mut published = published.into_iter().peekable();
        for at in granules {
            let offset = at as u64 * self.granule;
            let held = published.next_if(|extent| extent.offset == offset);
            let alive = held.map_or(floor, |extent| extent.generation.min(floor));
            self.kill_below(&mut state, offset, alive);
            state.sealed_below[at] = state.sealed_below[at].max(floor);
        }
    }

    /// Whether nobody may begin to access an extent any more, or it is none.
    pub(crate) fn is_dead(&self, extent: &ExtentRef) -> bool {
        let state = self.state();
        let dead_below = state.dead_below.get(self.index(extent.offset));
        dead_below.is_none_or(|below| extent.generation < *below)
    }

    /// Whether what an earlier master granted and nobody published is still accessed.
    pub(crate) fn is_outlived(&self) -> bool {
        !self.state().outlived.is_empty()
    }

    /// Takes the extents that were kept back and that nobody accesses any more.
    pub(crate) fn take_drained(&self) -> Vec<ExtentRef> {
        std::mem::take(&mut self.state().drained)
    }

    /// Makes an extent dead that no agent knows; says whether other processes access it.
    pub(crate) fn retire(&self, extent: Extent) -> bool {
        let mut state = self.state();
        self.kill(&mut state, extent.offset, extent.generation);
        state.users.contains_key(&Use::named(&extent))
    }

    /// Whether other processes access an extent.
    pub(crate) fn is_busy(&self, extent: Extent) -> bool {
        self.state().users.contains_key(&Use::named(&extent))
    }

    fn kill(&self, state: &mut GateState, offset: u64, generation: u64) {
        self.kill_below(state, offset, generation.saturating_add(1));
    }

    fn kill_below(&self, state: &mut GateState, offset: u64, dead_below: u64) {
        let at = self.index(offset);
        state.dead_below[at] = state.dead_below[at].max(dead_below);
        if let Some(generations) = &self.generations {
            generations.raise(offset, dead_below);
        }
    }

    fn index(&self, offset: u64) -> usize {
        (offset / self.granule) as usize
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admits(&self, state: &GateState, admitted: Admitted) -> bool {
        let Admitted { of, writes } = admitted;
        let at = self.index(of.offset);
        of.generation >= state.dead_below[at] && !(writes && of.generation < state.sealed_below[at])
    }
}

impl Gate for ExtentGate {
    fn begin(&self, extent: Extent, rights: Rights) -> Result<GateAccess, Refusal> {
        let inside = extent
            .offset
            .checked_add(extent.bytes)
            .is_some_and(|end| end <= self.bytes);
        if extent.bytes == 0 || !inside || !extent.offset.is_multiple_of(self.granule) {
            return Err(Refusal::Range);
        }
        let admitted = Admitted {
            of: Use::named(&extent),
            writes: rights.allow(Rights::WRITE),
        };
        let mut state = self.state();
        if !self.admits(&state, admitted) {
            return Err(Refusal::Generation);
        }
        let access = GateAccess(state.next_access);
        state.next_access += 1;
        state.accesses.insert(access, admitted);
        let users = state.users.entry(admitted.of).or_default();
        users.all += 1;
        users.writers += u32::from(admitted.writes);
        Ok(access)
    }

    fn is_live(&self, access: GateAccess) -> bool {
        let state = self.state();
        let admitted = state.accesses.get(&access);
        admitted.is_some_and(|admitted| self.admits(&state, *admitted))
    }

    fn end(&self, access: GateAccess) {
        let mut state = self.state();
        let Admitted { of, writes } = state
            .accesses
            .remove(&access)
            .expect("an access that began ends once");
        let users = state
            .users
            .get_mut(&of)
            .expect("an access under way is counted at its extent");
        users.all -= 1;
        users.writers -= u32::from(writes);
        let written = writes && users.writers == 0 && users.sealed.is_some();
        let drained = users.all == 0 && {
            state.users.remove(&of);
            let kept_back = state.kept_back.remove(&of);
            state.drained.extend(kept_back);
            let quiet = state.outlived.remove(&of) && state.outlived.is_empty();
            kept_back.is_some() || quiet
        };
        drop(state);
        if written {
            self.written.notify_all();
        }
        if let Some(drained) = self.drained.get().filter(|_| drained) {
            drained();
        }
    }

    fn generations(&self) -> Option<&GenerationTable> {
        self.generations.as_ref()
    }
}

impl GateState {
    fn release(&self, extent: &ExtentRef, released: &mut Vec<Extent>) {
        if self.users.contains_key(&Use::of(extent)) {
            released.push(Extent {
                offset: extent.offset,
                bytes: extent.bytes,
                generation: extent.generation,
            });
        }
    }
}

impl Use {
    fn named(extent: &Extent) -> Self {
        Self {
            offset: extent.offset,
            generation: extent.generation,
        }
    }

    fn of(extent: &ExtentRef) -> Self {
        Self {
            offset: extent.offset,
            generation: extent.generation,
        }
    }
}

impl std::fmt::Debug for ExtentGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let accesses = self.state().accesses.len();
        f.debug_struct("ExtentGate")
            .field("bytes", &self.bytes)
            .field("accesses", &accesses)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use slackwater_wait::now;
    use slackwater_wire::{Incarnation, SegmentId};

    use super::*;

    const GRANULE: u64 = 4096;

    fn extent(offset: u64, generation: u64) -> ExtentRef {
        ExtentRef {
            segment: SegmentId(1),
            incarnation: Incarnation(2),
            offset,
            bytes: GRANULE,
            generation,
        }
    }

    fn named(of: &ExtentRef) -> Extent {
        Extent {
            offset: of.offset,
            bytes: of.bytes,
            generation: of.generation,
        }
    }

    fn gate() -> (ExtentGate, Arc<AtomicUsize>) {
        let gate = ExtentGate::new(4 * GRANULE, GRANULE);
        let rung = Arc::new(AtomicUsize::new(0));
        let ring = Arc::clone(&rung);
        gate.on_drained(move || _ = ring.fetch_add(1, Ordering::Relaxed));
        (gate, rung)
    }

    #[test]
    fn a_fenced_extent_is_refused_and_its_last_access_ends_the_wait() {
        let (gate, rung) = gate();
        let (old, new) = (extent(0, 5), extent(0, 6));
        let reads = [(); 2].map(|()| gate.begin(named(&old), Rights::READ).unwrap());
        let mut released = Vec::new();
        gate.fence(&[old, extent(GRANULE, 3)], &mut released);
        assert_eq!(released, [named(&old)], "the other has no transfers");
        assert_eq!(
            gate.begin(named(&old), Rights::READ),
            Err(Refusal::Generation)
        );
        assert!(reads.iter().all(|read| !gate.is_live(*read)));
        let mut fenced = vec![old, extent(GRANULE, 3)];
        gate.keep_back(&mut fenced);
        assert_eq!(fenced, [extent(GRANULE, 3)]);
        gate.end(reads[0]);
        assert!(gate.take_drained().is_empty() && gate.is_busy(named(&old)));
        gate.end(reads[1]);
        assert_eq!(gate.take_drained(), [old]);
        assert_eq!(
            (rung.load(Ordering::Relaxed), gate.is_busy(named(&old))),
            (1, false)
        );
        let next = gate.begin(named(&new), Rights::WRITE).unwrap();
        assert!(gate.is_live(next));
        gate.end(next);
        let seen = gate.generations().unwrap();
        let live =
            [(0, 5), (0, 6), (GRANULE, 3), (GRANULE, 4)].map(|(at, of)| seen.is_live(at, of));
        assert_eq!(
            live,
            [false, true, false, true],
            "readers of this host see it"
        );
        gate.retire(named(&new));
        assert!(!seen.is_live(0, 6));
        assert_eq!(rung.load(Ordering::Relaxed), 1, "nobody waited for it");
    }

    /// A capability to write was good until its extent was freed: its holder could change an object that others read.
    #[test]
    fn what_is_published_is_not_written_any_more() {
        let (gate, _) = gate();
        let of = extent(2 * GRANULE, 9);
        let write = gate.begin(named(&of), Rights::WRITE).unwrap();
        let mut released = Vec::new();
        gate.seal(Instant::ZERO, &of, &mut released);
        assert_eq!(released, [named(&of)]);
        assert!(!gate.is_live(write), "its end is not acknowledged");
        for rights in [Rights::WRITE, Rights::BOTH] {
            assert_eq!(gate.begin(named(&of), rights), Err(Refusal::Generation));
        }
        let read = gate.begin(named(&of), Rights::READ).unwrap();
        assert!(gate.is_live(read));
        gate.end(write);
        gate.end(read);
        let next = extent(2 * GRANULE, 10);
        let write = gate.begin(named(&next), Rights::WRITE).unwrap();
        assert!(gate.is_live(write), "the next use may be written");
        gate.end(write);
    }

    #[test]
    fn the_end_of_the_last_write_to_what_is_sealed_ends_the_wait() {
        let (gate, _) = gate();
        let (of, other) = (extent(0, 9), extent(GRANULE, 9));
        let writes = [(); 2].map(|()| gate.begin(named(&of), Rights::WRITE).unwrap());
        let read = gate.begin(named(&of), Rights::READ).unwrap();
        let both = gate.begin(named(&other), Rights::BOTH).unwrap();
        assert_eq!(gate.await_writers(&[of], now()), None, "nothing is sealed");
        let (first, second) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(1));
        for (at, extent) in [(first, of), (second, other), (second, of)] {
            gate.seal(at, &extent, &mut Vec::new());
        }
        gate.end(writes[0]);
        assert_eq!(gate.await_writers(&[other, of], now()), Some(first));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.await_writers(&[of], Instant::NEVER));
            gate.end(writes[1]);
            assert_eq!(waiting.join().unwrap(), None, "a read does not matter");
        });
        assert_eq!(gate.await_writers(&[other, of], now()), Some(second));
        gate.end(both);
        gate.end(read);
        assert!(gate.state().users.is_empty());
    }

    #[test]
    fn what_is_no_extent_is_refused() {
        let (gate, _) = gate();
        let check = |offset, bytes| {
            let extent = Extent {
                offset,
                bytes,
                generation: 1,
            };
            assert_eq!(gate.begin(extent, Rights::READ), Err(Refusal::Range));
        };
        check(1, GRANULE);
        check(0, 0);
        check(0, 4 * GRANULE + 1);
        check(4 * GRANULE, 1);
        check(u64::MAX - (u64::MAX % GRANULE), GRANULE);
    }

    /// While a node with much memory met a new master, the gate was held for all of it: every transfer of the node stood still.
    #[test]
    fn what_an_earlier_master_granted_dies_in_parts_between_which_the_gate_is_free() {
        let granules = 3 * LOCKED_GRANULES as u64;
        let gate = ExtentGate::new(granules * GRANULE, GRANULE);
        let held: Vec<ExtentRef> = (0..3)
            .map(|part| extent(part * LOCKED_GRANULES as u64 * GRANULE, 5))
            .collect();
        let asked = held.iter().enumerate().inspect(|(part, _)| {
            let state = gate.state.try_lock().expect("nobody holds the gate");
            let dead = state.dead_below.iter().filter(|below| **below > 0).count();
            // The first extent of a part is looked for before the one before it dies.
            assert_eq!(dead, part.saturating_sub(1) * LOCKED_GRANULES);
        });
        gate.outlive(
            granules * GRANULE,
            100,
            asked.map(|(_, of)| of),
            &mut Vec::new(),
        );
        let state = gate.state();
        for (at, below) in state.dead_below.iter().enumerate() {
            let first = at.is_multiple_of(LOCKED_GRANULES);
            assert_eq!(*below, if first { 5 } else { 100 }, "{at}");
        }
        assert!(state.sealed_below.iter().all(|below| *below == 100));
    }

    /// A client went on writing to memory that a master had granted which died. The next one had given it to another.
    #[test]
    fn of_what_an_earlier_master_granted_only_published_extents_are_read() {
        let (gate, rung) = gate();
        let (published, granted) = (extent(GRANULE, 5), extent(2 * GRANULE, 6));
        let beside = extent(3 * GRANULE, 1);
        let reader = gate.begin(named(&published), Rights::READ).unwrap();
        let writer = gate.begin(named(&granted), Rights::WRITE).unwrap();
        let mut released = Vec::new();
        gate.outlive(3 * GRANULE, 100, [published].iter(), &mut released);
        assert_eq!(released, [named(&granted)]);
        assert!(gate.is_live(reader) && !gate.is_live(writer));
        let check = |extent: ExtentRef, rights, admitted: bool| {
            let access = gate.begin(named(&extent), rights);
            assert_eq!(access.is_ok(), admitted, "{extent:?}");
            let seen = gate.generations().unwrap();
            if rights == Rights::READ {
                assert_eq!(seen.is_live(extent.offset, extent.generation), admitted);
            }
            access.into_iter().for_each(|access| gate.end(access));
        };
        check(published, Rights::READ, true);
        check(published, Rights::WRITE, false);
        check(granted, Rights::READ, false);
        check(granted, Rights::WRITE, false);
        check(extent(0, 99), Rights::WRITE, false);
        check(extent(0, 100), Rights::WRITE, true);
        check(beside, Rights::WRITE, true);
        assert!(gate.is_outlived());
        assert_eq!(rung.load(Ordering::Relaxed), 0);
        gate.end(writer);
        assert!(!gate.is_outlived());
        assert_eq!(rung.load(Ordering::Relaxed), 1);
        gate.end(reader);
    }
}
