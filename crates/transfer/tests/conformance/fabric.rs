//! A one-sided fabric in software, built on the public contract alone: it proves that the contract carries what RDMA
//! needs. Registration gives a key, a window is bound to a capability, work requests name the key and are carried out by
//! an adapter without the target's processor, and their ends come through a completion queue.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use slackwater_base::Instant;
use slackwater_transfer::{
    Abilities, Access, BatchId, Capability, Cause, Deadline, Home, Job, Mover, Notice, Op, Part,
    PeerStats, Refusal, Region, RegionId, RegionKey, RegisterError, Revocation, Segment,
    Submission,
};
use slackwater_wait::now;
use slackwater_wire::Incarnation;

/// One adapter and its driver.
#[derive(Debug)]
pub(crate) struct Fabric {
    port: Arc<Port>,
    work: Mutex<Option<Sender<Work>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stats: Arc<Mutex<PeerStats>>,
}

/// What peers can reach of a process: its keys, and the windows bound under them.
#[derive(Debug)]
struct Port {
    home: Arc<Home>,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    next: u64,
    regions: BTreeMap<u64, RegionId>,
    windows: BTreeMap<(u64, [u8; Capability::BYTES], bool), Arc<Access>>,
}

/// The switch: every port of this process.
static PORTS: Mutex<BTreeMap<Incarnation, Arc<Port>>> = Mutex::new(BTreeMap::new());

enum Work {
    Copy(Arc<Segment>, Job),
    Send(Arc<Segment>, Notice, Part),
    Fence(Part),
}

/// An entry of the completion queue.
enum Completion {
    Copy(Job, Result<(), Cause>),
    Other(Part, Result<(), Cause>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    pub(crate) fn start(home: &Arc<Home>) -> Self {
        let port = Arc::new(Port {
            home: Arc::clone(home),
            keys: Mutex::default(),
        });
        lock(&PORTS).insert(home.incarnation(), Arc::clone(&port));
        let (work, posted) = channel();
        let (complete, completed) = channel();
        let stats = Arc::new(Mutex::new(PeerStats::default()));
        let (counting, adapter) = (Arc::clone(&stats), Arc::clone(&port));
        let threads = vec![
            std::thread::spawn(move || adapter.carry_out(&posted, &complete)),
            std::thread::spawn(move || poll_completions(&completed, &counting)),
        ];
        Self {
            port,
            work: Mutex::new(Some(work)),
            threads: Mutex::new(threads),
            stats,
        }
    }

    fn post(&self, work: Work) {
        let unposted = match &*lock(&self.work) {
            Some(queue) => queue.send(work).err().map(|error| error.0),
            None => Some(work),
        };
        match unposted {
            Some(Work::Copy(_, Job { part, .. }) | Work::Send(_, _, part) | Work::Fence(part)) => {
                part.fail(Cause::Closed)
            }
            None => {}
        }
    }
}

impl Port {
    /// The adapter: carries work out in order, out of the initiator's memory into the target's.
    fn carry_out(&self, posted: &Receiver<Work>, complete: &Sender<Completion>) {
        for work in posted {
            let completion = match work {
                Work::Copy(segment, job) => {
                    let result = self.copy(&segment, &job);
                    Completion::Copy(job, result)
                }
                Work::Send(segment, notice, part) => {
                    let result = match lock(&PORTS).get(&segment.incarnation) {
                        Some(port) if port.home.deliver(self.home.incarnation(), notice) => Ok(()),
                        Some(_) => Err(Cause::Refused(Refusal::Limit)),
                        None => Err(Cause::Unreachable(segment.name.clone())),
                    };
                    Completion::Other(part, result)
                }
                Work::Fence(part) => Completion::Other(part, Ok(())),
            };
            if complete.send(completion).is_err() {
                return;
            }
        }
    }

    fn copy(&self, segment: &Segment, job: &Job) -> Result<(), Cause> {
        if job.part.is_cancelled() {
            return Err(Cause::Cancelled);
        }
        if now() >= job.deadline {
            return Err(Cause::TimedOut(Deadline::Total));
        }
        let port = lock(&PORTS).get(&segment.incarnation).map(Arc::clone);
        let port = port.ok_or_else(|| Cause::Unreachable(segment.name.clone()))?;
        let key = job
            .remote
            .key
            .ok_or_else(|| Cause::Invalid("no key".to_owned()))?;
        let claims = job.remote.capability.claims();
        let window = port
            .bind(key, &job.remote.capability, job.op, self.home.incarnation())
            .map_err(Cause::Refused)?;
        let start = job
            .remote
            .offset
            .checked_sub(claims.offset)
            .ok_or(Cause::Refused(Refusal::Range))?;
        let end = start
            .checked_add(job.buffers.bytes())
            .ok_or(Cause::Refused(Refusal::Range))?;
        if end > window.bytes() {
            return Err(Cause::Refused(Refusal::Range));
        }
        job.part.started();
        let mut theirs = window.start().wrapping_add(start as usize);
        for span in job.buffers.spans() {
            let (into, from) = match job.op {
                Op::Read => (span.start(), theirs),
                Op::Write => (theirs, span.start()),
            };
            // SAFETY: the job holds its span, and the window the range of the region that it was found to lie in.
            unsafe { std::ptr::copy(from, into, span.bytes()) };
            theirs = theirs.wrapping_add(span.bytes());
        }
        // The adapter reports an access that was revoked meanwhile, though it did no harm.
        match window.is_live() {
            true => Ok(()),
            false => Err(Cause::Refused(Refusal::Generation)),
        }
    }

    /// Binds a window to a capability, or finds the one that is bound. A revoked key opens none.
    fn bind(
        &self,
        key: RegionKey,
        capability: &Capability,
        op: Op,
        holder: Incarnation,
    ) -> Result<Arc<Access>, Refusal> {
        let mut keys = lock(&self.keys);
        if !keys.regions.contains_key(&key.0) {
            return Err(Refusal::Generation);
        }
        let name = (key.0, capability.to_bytes(), op == Op::Write);
        if let Some(window) = keys.windows.get(&name) {
            return Ok(Arc::clone(window));
        }
        let claims = capability.claims();
        let window = Arc::new(self.home.admit(
            capability,
            op.right(),
            (claims.offset, claims.bytes),
            holder,
        )?);
        keys.windows.insert(name, Arc::clone(&window));
        Ok(window)
    }
}

/// The driver: takes completions and ends their parts.
fn poll_completions(completed: &Receiver<Completion>, stats: &Mutex<PeerStats>) {
    for completion in completed {
        let (part, result, bytes) = match completion {
            Completion::Copy(Job { buffers, part, .. }, result) => (part, result, buffers.bytes()),
            Completion::Other(part, result) => (part, result, 0),
        };
        match result {
            Ok(()) => {
                lock(stats).completed += 1;
                part.complete(bytes);
            }
            Err(cause) => {
                lock(stats).failed += 1;
                part.fail(cause);
            }
        }
    }
}

impl Mover for Fabric {
    fn name(&self) -> &'static str {
        "fabric"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            one_sided: true,
            ..Abilities::HOST
        }
    }

    fn reaches(&self, segment: &Segment) -> bool {
        lock(&PORTS).contains_key(&segment.incarnation)
    }

    fn register(&self, region: &Arc<Region>) -> Result<Option<RegionKey>, RegisterError> {
        let mut keys = lock(&self.port.keys);
        keys.next += 1;
        let key = keys.next;
        keys.regions.insert(key, region.id());
        Ok(Some(RegionKey(key)))
    }

    fn invalidate(&self, revoked: &Revocation) {
        let mut keys = lock(&self.port.keys);
        if revoked.extent.is_none() {
            keys.regions.retain(|_, id| *id != revoked.region);
        }
        // A copy under way holds its window, and with it the region, until it is over.
        keys.windows.retain(|_, window| !revoked.covers(window));
    }

    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job> {
        let (host, other) = submission
            .jobs
            .into_iter()
            .partition::<Vec<_>, _>(|job| job.buffers.are_host());
        host.into_iter()
            .for_each(|job| self.post(Work::Copy(Arc::clone(segment), job)));
        other
    }

    /// Posted work runs; work that was not begun checks for cancellation itself.
    fn cancel(&self, _batch: BatchId) {}

    fn fence(&self, _segment: &Arc<Segment>, part: Part) {
        self.post(Work::Fence(part));
    }

    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part) {
        self.post(Work::Send(Arc::clone(segment), notice, part));
    }

    fn probe(&self, segment: &Arc<Segment>, _deadline: Instant, part: Part) {
        match self.reaches(segment) {
            true => part.complete(0),
            false => part.fail(Cause::Unreachable(segment.name.clone())),
        }
    }

    fn stats(&self, _segment: &Segment) -> PeerStats {
        *lock(&self.stats)
    }

    fn close(&self) {
        lock(&PORTS).remove(&self.port.home.incarnation());
        // Without a sender the adapter carries out what is posted and ends, and the driver after it.
        drop(lock(&self.work).take());
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
        *lock(&self.port.keys) = Keys::default();
    }
}
