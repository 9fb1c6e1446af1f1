//! Memory for records of the SSD log that other processes read: bounded, lent for the time of a lease, and fenced before
//! it is used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::{ByteSize, Extent as Piece, ExtentAllocator, Instant};
use slackwater_transfer::Extent;
use slackwater_wire::ClientId;

use super::ExtentGate;

/// Part of the memory that one client may hold.
const SHARE: u64 = 2;

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
    /// Not lent any more, but other processes may still read them.
    retired: Vec<Piece>,
}

struct Lent {
    piece: Piece,
    client: ClientId,
    /// None while it is being filled.
    until: Option<Instant>,
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
        client: ClientId,
        bytes: u64,
        released: &mut Vec<Extent>,
    ) -> Option<Extent> {
        let mut state = self.state();
        let over = |lent: &Lent| lent.until.is_some_and(|until| until <= now);
        let late: Vec<u64> = state
            .lent
            .iter()
            .filter(|(_, lent)| over(lent))
            .map(|(generation, _)| *generation)
            .collect();
        for generation in late {
            self.retire(&mut state, generation, released);
        }
        self.reclaim(&mut state);
        let held: u64 = state
            .lent
            .values()
            .filter(|lent| lent.client == client)
            .map(|lent| lent.piece.bytes)
            .sum();
        if held + bytes > self.bytes_max() {
            return None;
        }
        let piece = state.allocator.allocate(bytes).ok()?;
        let lent = Lent {
            piece,
            client,
            until: None,
        };
        state.lent.insert(piece.generation, lent);
        Some(self.extent(&piece))
    }

    /// Lends filled room for a time.
    pub(super) fn lend(&self, now: Instant, generation: u64, time: Duration) {
        if let Some(lent) = self.state().lent.get_mut(&generation) {
            lent.until = Some(now + time);
        }
    }

    /// Takes room back from a client, before its time or unfilled. What it does not hold is none of its business.
    pub(super) fn give_back(&self, client: ClientId, generation: u64, released: &mut Vec<Extent>) {
        let mut state = self.state();
        let own = |lent: &Lent| lent.client == client;
        if state.lent.get(&generation).is_some_and(own) {
            self.retire(&mut state, generation, released);
            self.reclaim(&mut state);
        }
    }

    fn retire(&self, state: &mut StagingState, generation: u64, released: &mut Vec<Extent>) {
        if let Some(Lent { piece, .. }) = state.lent.remove(&generation) {
            let extent = self.extent(&piece);
            if self.gate.retire(extent) {
                released.push(extent);
            }
            state.allocator.retire(piece);
            state.retired.push(piece);
        }
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
        staging.take(now, ClientId(client), granules * GRANULE, &mut released)
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
        let taken = staging.take(late, ClientId(3), 4 * GRANULE, &mut released);
        assert_eq!(taken.map(|extent| extent.offset), Some(two.offset));
        assert_eq!(released, [one]);
        assert!(!gate.is_live(read) && gate.begin(one, Rights::READ).is_err());
        assert!(take(&staging, late, 4, 1).is_none());
        gate.end(read);
        assert!(take(&staging, late, 4, 4).is_some());
    }
}
