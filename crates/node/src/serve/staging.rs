//! Memory for records of the SSD log that other processes read: bounded, lent for the time of a lease, and fenced before
//! it is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::{ByteSize, Extent as Piece, ExtentAllocator, Instant};
use slackwater_transfer::Extent;
use slackwater_wire::ClientId;
use slackwater_zmtp::PublicKey;

use super::ExtentGate;

/// Part of the memory that the clients of one key may hold, or one client where there are no keys.
const SHARE: u64 = 2;

/// Who borrows. A process may have any number of names, but only the keys that it was given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Borrower {
    pub(super) client: ClientId,
    pub(super) key: Option<PublicKey>,
}

/// See the module. Offsets are from the start of the region that it is a part of.
pub(super) struct Staging {
    gate: Arc<ExtentGate>,
    start: u64,
    bytes: u64,
    state: Mutex<StagingState>,
}

struct StagingState {
    allocator: ExtentAllocator,
    lent: BTreeMap<u64, Lent>,
    /// What is lent for a time, by when that is over.
    due: BTreeSet<(Instant, u64)>,
    /// Bytes that are lent, by who counts as one.
    held: BTreeMap<Holder, u64>,
    /// Not lent any more, but other processes may still read them.
    retired: Vec<Piece>,
}

/// Whose bytes are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Key(PublicKey),
    Client(ClientId),
}

struct Lent {
    piece: Piece,
    borrower: Borrower,
    /// Since when and until when it is lent; none while it is being filled.
    lent: Option<(Instant, Instant)>,
}

impl Borrower {
    fn holder(&self) -> Holder {
        self.key.map_or(Holder::Client(self.client), Holder::Key)
    }
}

impl Staging {
    /// The `bytes` bytes behind `start`.
    pub(super) fn new(gate: Arc<ExtentGate>, start: u64, bytes: ByteSize, granule: u64) -> Self {
        Self {
            gate,
            start,
            bytes: bytes.0,
            state: Mutex::new(StagingState {
                allocator: ExtentAllocator::new(bytes.0, granule, 1),
                lent: BTreeMap::new(),
                due: BTreeSet::new(),
                held: BTreeMap::new(),
                retired: Vec::new(),
            }),
        }
    }

    /// Length of the longest record that can be staged.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes / SHARE
    }

    /// Room for a record, which nobody else touches until it is lent or given back; `None` while there is none.
    /// Extents whose time is over, at which transfers may be under way, are added to `released`.
    pub(super) fn take(
        &self,
        now: Instant,
        borrower: Borrower,
        bytes: u64,
        released: &mut Vec<Extent>,
    ) -> Option<Extent> {
        let mut state = self.state();
        while let Some((_, generation)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            self.retire(&mut state, generation, released);
        }
        self.reclaim(&mut state);
        let holder = borrower.holder();
        let held = state.held.get(&holder).copied().unwrap_or_default();
        if held.saturating_add(bytes) > self.bytes_max() {
            return None;
        }
        let piece = state.allocator.allocate(bytes).ok()?;
        let lent = Lent {
            piece,
            borrower,
            lent: None,
        };
        state.lent.insert(piece.generation, lent);
        *state.held.entry(holder).or_default() += piece.bytes;
        Some(self.extent(&piece))
    }

    /// Lends filled room for a time.
    pub(super) fn lend(&self, now: Instant, generation: u64, time: Duration) {
        let state = &mut *self.state();
        if let Some(lent) = state.lent.get_mut(&generation) {
            lent.lent = Some((now, now + time));
            state.due.insert((now + time, generation));
        }
    }

    /// Takes room back from a client, before its time or unfilled; since when it was lent, if it was. What it does not hold
    /// is none of its business.
    pub(super) fn give_back(
        &self,
        client: ClientId,
        generation: u64,
        released: &mut Vec<Extent>,
    ) -> Option<Instant> {
        let mut state = self.state();
        let lent = state.lent.get(&generation);
        let own = lent.filter(|lent| lent.borrower.client == client)?;
        let since = own.lent.map(|(since, _)| since);
        self.retire(&mut state, generation, released);
        self.reclaim(&mut state);
        since
    }

    fn retire(&self, state: &mut StagingState, generation: u64, released: &mut Vec<Extent>) {
        let Some(lent) = state.lent.remove(&generation) else {
            return;
        };
        let Lent {
            piece,
            borrower,
            lent,
        } = lent;
        if let Some((_, until)) = lent {
            state.due.remove(&(until, generation));
        }
        let holder = borrower.holder();
        if let Some(held) = state.held.get_mut(&holder) {
            *held -= piece.bytes;
            if *held == 0 {
                state.held.remove(&holder);
            }
        }
        let extent = self.extent(&piece);
        if self.gate.retire(extent) {
            released.push(extent);
        }
        state.allocator.retire(piece);
        state.retired.push(piece);
    }

    fn reclaim(&self, state: &mut StagingState) {
        let StagingState {
            allocator, retired, ..
        } = state;
        retired.retain(|piece| {
            let busy = self.gate.is_busy(self.extent(piece));
            if !busy {
                allocator.release(*piece);
            }
            busy
        });
    }

    fn extent(&self, piece: &Piece) -> Extent {
        Extent {
            offset: self.start + piece.offset,
            bytes: piece.bytes,
            generation: piece.generation,
        }
    }

    fn state(&self) -> MutexGuard<'_, StagingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use slackwater_transfer::{Gate, Rights};

    use super::*;

    const GRANULE: u64 = 4096;
    const LEASE: Duration = Duration::from_secs(5);

    fn staging() -> (Arc<ExtentGate>, Staging) {
        let gate = Arc::new(ExtentGate::new(16 * GRANULE, GRANULE));
        let bytes = ByteSize(8 * GRANULE);
        let staging = Staging::new(Arc::clone(&gate), 8 * GRANULE, bytes, GRANULE);
        (gate, staging)
    }

    fn take(staging: &Staging, now: Instant, client: u64, granules: u64) -> Option<Extent> {
        let mut released = Vec::new();
        staging.take(now, named(client), granules * GRANULE, &mut released)
    }

    fn named(client: u64) -> Borrower {
        Borrower {
            client: ClientId(client),
            key: None,
        }
    }

    #[test]
    fn room_is_bounded_for_each_client_and_comes_back_when_its_time_is_over() {
        let (_, staging) = staging();
        let now = Instant::ZERO;
        assert!(take(&staging, now, 1, 5).is_none(), "more than its share");
        let first = take(&staging, now, 1, 4).unwrap();
        assert!(first.offset >= 8 * GRANULE);
        assert!(take(&staging, now, 1, 1).is_none());
        let other = take(&staging, now, 2, 4).unwrap();
        assert!(take(&staging, now, 3, 1).is_none(), "everything is lent");
        staging.lend(now, first.generation, LEASE);
        assert!(take(&staging, now + LEASE / 2, 3, 1).is_none());
        let again = take(&staging, now + LEASE, 3, 1).unwrap();
        assert_ne!(again.generation, first.generation);
        let mut released = Vec::new();
        staging.give_back(ClientId(1), other.generation, &mut released);
        assert!(take(&staging, now, 4, 4).is_none(), "another client's");
        staging.give_back(ClientId(2), other.generation, &mut released);
        assert!(take(&staging, now, 4, 4).is_some() && released.is_empty());
    }

    /// Each client had a share of its own: a process that took several names with one key had everything.
    #[test]
    fn the_clients_of_a_key_have_one_share_together() {
        let (_, staging) = staging();
        let take = |client, key: Option<u8>, granules: u64| {
            let borrower = Borrower {
                client: ClientId(client),
                key: key.map(|byte| PublicKey::from_bytes([byte; 32])),
            };
            let bytes = granules * GRANULE;
            staging.take(Instant::ZERO, borrower, bytes, &mut Vec::new())
        };
        let first = take(1, Some(1), 3).unwrap();
        assert!(
            take(2, Some(1), 2).is_none(),
            "more than the share of the key"
        );
        assert!(take(2, Some(1), 1).is_some());
        assert!(take(3, Some(2), 4).is_some(), "another key has another one");
        staging.give_back(ClientId(1), first.generation, &mut Vec::new());
        assert!(take(2, Some(1), 3).is_some());
        assert!(
            staging
                .state()
                .held
                .values()
                .all(|held| *held == 4 * GRANULE)
        );
    }

    /// A client that was stopped in the middle of a read went on after its lease: the room had another record by then.
    #[test]
    fn room_that_is_still_read_is_not_given_to_another() {
        let (gate, staging) = staging();
        let now = Instant::ZERO;
        let [one, two] = [1, 2].map(|client| take(&staging, now, client, 4).unwrap());
        for lent in [one, two] {
            staging.lend(now, lent.generation, LEASE);
        }
        let read = gate.begin(one, Rights::READ).unwrap();
        let mut released = Vec::new();
        let late = now + LEASE;
        let taken = staging.take(late, named(3), 4 * GRANULE, &mut released);
        assert_eq!(taken.map(|extent| extent.offset), Some(two.offset));
        assert_eq!(released, [one]);
        assert!(!gate.is_live(read) && gate.begin(one, Rights::READ).is_err());
        assert!(take(&staging, late, 4, 1).is_none());
        gate.end(read);
        assert!(take(&staging, late, 4, 4).is_some());
    }
}
