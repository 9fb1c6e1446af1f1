//! The interface of the crate: regions, peers, batches. Every request goes to the first mover that reaches its peer.

mod regions;
mod single;
mod together;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use slab::Slab;
use slackwater_base::Instant;
use slackwater_data_plane::{Cause, Notice};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::Segment;
use thiserror::Error;

use crate::batch::{Batch, BatchError, BatchId, Follower, Part};
use crate::home::{Home, HomeGuard};
use crate::job::{Buffers, Job, RegionKey};
use crate::mover::{Mover, PeerStats, Submission, WhenFull};
use crate::region::{Extent, RegionId, RegisterError, ReopenError, Revocation, StillBusy};
use crate::request::{PeerId, Request, Submit};

/// Moves bytes between regions of this process and regions of its peers.
///
/// Clones are handles to the same engine; it closes when the last one is dropped, or by [`Engine::close`].
#[derive(Clone, Debug)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    life: HomeGuard,
    segment: Segment,
    movers: Vec<Arc<dyn Mover>>,
    peers: RwLock<Peers>,
    batches: Mutex<BTreeMap<BatchId, Batch>>,
    keys: Mutex<BTreeMap<RegionId, Vec<(&'static str, RegionKey)>>>,
}

#[derive(Debug, Default)]
struct Peers {
    open: Slab<(u32, Arc<Segment>)>,
    next_serial: u32,
}

/// Why a call of the engine failed.
#[derive(Debug, Error)]
pub enum EngineError {
    /// There is no such region, or it was unregistered.
    #[error("no region {0:?}")]
    NoRegion(RegionId),
    /// Its extents have generations of their own, which its gate keeps.
    #[error("the extents of region {0:?} are granted and fenced one by one")]
    Gated(RegionId),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Accesses are still under way.
    #[error(transparent)]
    StillBusy(#[from] StillBusy),
}

impl From<ReopenError> for EngineError {
    fn from(error: ReopenError) -> Self {
        match error {
            ReopenError::Busy(busy) => Self::StillBusy(busy),
            ReopenError::Gone(region) => Self::NoRegion(region),
        }
    }
}

pub(crate) static BATCHES: Site = Site::new("transfer batches");

impl Engine {
    /// An engine called `segment.name` over these movers, the preferred ones first.
    #[must_use]
    pub fn assemble(life: HomeGuard, segment: Segment, movers: Vec<Arc<dyn Mover>>) -> Self {
        Self(Arc::new(Inner {
            life,
            segment,
            movers,
            peers: RwLock::default(),
            batches: Mutex::default(),
            keys: Mutex::default(),
        }))
    }

    /// The segment to publish, so that others can open this engine.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.0.segment
    }

    /// The passive side.
    #[must_use]
    pub fn home(&self) -> &Arc<Home> {
        &self.0.life
    }

    /// Opens a peer's segment; nothing is connected yet. The same segment opened again is the same peer.
    #[must_use]
    pub fn open(&self, segment: Segment) -> PeerId {
        let mut peers = self.0.peers.write().unwrap_or_else(PoisonError::into_inner);
        let known = peers
            .open
            .iter()
            .find(|(_, (_, open))| **open == segment)
            .map(|(index, (serial, _))| (index, *serial));
        if let Some((index, serial)) = known {
            return PeerId {
                index: index as u32,
                serial,
            };
        }
        let serial = peers.next_serial;
        peers.next_serial = serial.wrapping_add(1);
        let index = peers.open.insert((serial, Arc::new(segment)));
        PeerId {
            index: index as u32,
            serial,
        }
    }

    /// Forgets a peer; its id is invalid from now on. Requests under way go on.
    pub fn forget(&self, peer: PeerId) {
        let mut peers = self.0.peers.write().unwrap_or_else(PoisonError::into_inner);
        if peers
            .open
            .get(peer.index as usize)
            .is_some_and(|(serial, _)| *serial == peer.serial)
        {
            peers.open.remove(peer.index as usize);
        }
    }

    /// Gives requests to the movers. Never connects, resolves or waits for bytes; waits for room in a full queue if
    /// that was asked for. An invalid request ends at once, as [`Status::Invalid`](crate::Status).
    #[must_use]
    pub fn submit(&self, requests: Vec<Request>, submit: &Submit) -> Batch {
        let (batch, parts) = self.new_batch(requests.len(), self.follower(submit));
        let deadline = now() + submit.timeout;
        let resolved = requests.into_iter().zip(parts);
        let jobs = resolved.filter_map(|(request, part)| self.resolve(request, deadline, part));
        for (segment, jobs) in by_peer(jobs) {
            self.0.dispatch(&segment, jobs, submit.when_full);
        }
        batch
    }

    /// Submits and waits.
    ///
    /// # Errors
    /// As [`Batch::wait`].
    pub fn transfer(&self, requests: Vec<Request>, submit: &Submit) -> Result<(), BatchError> {
        if let [request] = requests.as_slice()
            && submit.notice.is_none()
            && let Some(outcome) = self.alone(request, now() + submit.timeout)
        {
            return outcome.map_err(BatchError::Failed);
        }
        // A little later than the requests' own deadlines, which the movers check: their errors say more.
        let patience = now() + submit.timeout.saturating_mul(2);
        self.submit(requests, submit)
            .wait(&Waiting::at(&BATCHES).until(patience))
    }

    /// Keeps a batch under its id, for language bindings that cannot hold it.
    pub fn keep(&self, batch: &Batch) -> BatchId {
        lock(&self.0.batches).insert(batch.id(), batch.clone());
        batch.id()
    }

    /// A kept batch; none for an id that is freed or unknown.
    #[must_use]
    pub fn batch(&self, id: BatchId) -> Option<Batch> {
        lock(&self.0.batches).get(&id).cloned()
    }

    /// Releases a kept batch; says whether there was one. It is not cancelled.
    pub fn free(&self, id: BatchId) -> bool {
        lock(&self.0.batches).remove(&id).is_some()
    }

    /// Finds out whether a peer answers, within `timeout`.
    ///
    /// # Errors
    /// It does not, or another process does.
    pub fn probe(&self, peer: PeerId, timeout: Duration) -> Result<(), BatchError> {
        let deadline = now() + timeout;
        self.ask(peer, deadline, |mover, segment, part| {
            mover.probe(segment, deadline, part)
        })
    }

    /// Waits until everything submitted to a peer before has ended and its effects can be seen there.
    ///
    /// # Errors
    /// It was not within `timeout`.
    pub fn fence(&self, peer: PeerId, timeout: Duration) -> Result<(), BatchError> {
        self.ask(peer, now() + timeout, |mover, segment, part| {
            mover.fence(segment, part)
        })
    }

    /// Sends a notice to a peer and waits until the peer has it.
    ///
    /// # Errors
    /// It was not within `timeout`.
    pub fn notify(
        &self,
        peer: PeerId,
        notice: Notice,
        timeout: Duration,
    ) -> Result<(), BatchError> {
        self.ask(peer, now() + timeout, |mover, segment, part| {
            mover.notify(segment, notice, part)
        })
    }

    /// Takes the notices that peers sent, with their incarnations; waits for the first until `deadline`.
    #[must_use]
    pub fn take_notices(&self, deadline: Instant) -> Vec<(Incarnation, Notice)> {
        self.home().take_notices(deadline)
    }

    /// The counters of each mover for a peer.
    #[must_use]
    pub fn stats(&self, peer: PeerId) -> Vec<(&'static str, PeerStats)> {
        let Some(segment) = self.0.peer(peer) else {
            return Vec::new();
        };
        self.0
            .movers
            .iter()
            .map(|mover| (mover.name(), mover.stats(&segment)))
            .collect()
    }

    /// The counters of all movers, by mover and by name.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, Vec<(&'static str, u64)>)> {
        self.0
            .movers
            .iter()
            .map(|mover| (mover.name(), mover.metrics()))
            .collect()
    }

    /// The mover that requests to a peer would go to now.
    #[must_use]
    pub fn mover(&self, peer: PeerId) -> Option<&'static str> {
        let segment = self.0.peer(peer)?;
        self.0
            .movers
            .iter()
            .find(|mover| mover.reaches(&segment))
            .map(|mover| mover.name())
    }

    /// Ends all transfers and stops all threads; requests that are left end with [`Cause::Closed`].
    pub fn close(&self) {
        self.0.movers.iter().for_each(|mover| mover.close());
    }

    fn resolve(
        &self,
        request: Request,
        deadline: Instant,
        part: Part,
    ) -> Option<(Arc<Segment>, Job)> {
        let Some(segment) = self.0.peer(request.target.peer) else {
            part.fail(Cause::Invalid(format!("no peer {:?}", request.target.peer)));
            return None;
        };
        let regions = self.home().regions();
        let accesses: Result<Vec<_>, _> = request
            .local
            .iter()
            .map(|range| regions.access(range.region, range.offset, range.bytes))
            .collect();
        let buffers = match accesses {
            Ok(accesses) => Buffers::held(accesses),
            Err(error) => {
                part.fail(Cause::Invalid(error.to_string()));
                return None;
            }
        };
        if buffers.bytes() == 0 {
            part.complete(0);
            return None;
        }
        let remote = request.target.remote();
        let deadline = request
            .timeout
            .map_or(deadline, |timeout| deadline.min(now() + timeout));
        Some((
            segment,
            Job {
                op: request.op,
                buffers,
                remote,
                deadline,
                priority: request.priority,
                part,
            },
        ))
    }

    fn follower(&self, submit: &Submit) -> Option<Follower> {
        let (peer, notice) = submit.notice.clone()?;
        let inner = Arc::downgrade(&self.0);
        Some(Box::new(move |part| {
            let Some(inner) = inner.upgrade() else {
                return part.fail(Cause::Closed);
            };
            match inner.first_mover(peer) {
                Ok((mover, segment)) => mover.notify(&segment, notice, part),
                Err(cause) => part.fail(cause),
            }
        }))
    }

    fn ask(
        &self,
        peer: PeerId,
        deadline: Instant,
        question: impl FnOnce(&dyn Mover, &Arc<Segment>, Part),
    ) -> Result<(), BatchError> {
        let (batch, mut parts) = self.new_batch(1, None);
        if let Some(part) = parts.pop() {
            match self.0.first_mover(peer) {
                Ok((mover, segment)) => question(&**mover, &segment, part),
                Err(cause) => part.fail(cause),
            }
        }
        batch.wait(&Waiting::at(&BATCHES).until(deadline))
    }

    fn new_batch(&self, requests: usize, follower: Option<Follower>) -> (Batch, Vec<Part>) {
        let inner: Weak<Inner> = Arc::downgrade(&self.0);
        Batch::new(requests as u32, follower, move |batch| {
            if let Some(inner) = inner.upgrade() {
                inner.movers.iter().for_each(|mover| mover.cancel(batch));
            }
        })
    }
}

impl Inner {
    fn peer(&self, peer: PeerId) -> Option<Arc<Segment>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers
            .open
            .get(peer.index as usize)
            .filter(|(serial, _)| *serial == peer.serial)
            .map(|(_, open)| Arc::clone(open))
    }

    /// Has all movers release accesses of peers to a region, or to one extent of it.
    fn release(&self, region: RegionId, extent: Option<Extent>) {
        let revoked = Revocation { region, extent };
        self.movers
            .iter()
            .for_each(|mover| mover.invalidate(&revoked));
    }

    fn first_mover(&self, peer: PeerId) -> Result<(&Arc<dyn Mover>, Arc<Segment>), Cause> {
        let segment = self
            .peer(peer)
            .ok_or_else(|| Cause::Invalid(format!("no peer {peer:?}")))?;
        match self.movers.iter().find(|mover| mover.reaches(&segment)) {
            Some(mover) => Ok((mover, segment)),
            None => Err(Cause::NoMover(segment.name.clone())),
        }
    }

    fn dispatch(&self, segment: &Arc<Segment>, mut jobs: Vec<Job>, when_full: WhenFull) {
        for mover in &self.movers {
            if jobs.is_empty() {
                return;
            }
            if mover.reaches(segment) {
                jobs = mover.submit(segment, Submission { jobs, when_full });
            }
        }
        for job in jobs {
            let Job { buffers, part, .. } = job;
            drop(buffers);
            part.fail(Cause::NoMover(segment.name.clone()));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.movers.iter().for_each(|mover| mover.close());
    }
}

/// The jobs of each peer together, in order.
fn by_peer(jobs: impl Iterator<Item = (Arc<Segment>, Job)>) -> Vec<(Arc<Segment>, Vec<Job>)> {
    let mut by_peer: Vec<(Arc<Segment>, Vec<Job>)> = Vec::new();
    for (segment, job) in jobs {
        match by_peer
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, &segment))
        {
            Some((_, jobs)) => jobs.push(job),
            None => by_peer.push((segment, vec![job])),
        }
    }
    by_peer
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
