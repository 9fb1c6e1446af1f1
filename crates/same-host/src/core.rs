use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::{Checksum, Instant};
use slackwater_engine::{Cause, Flow, FlowGuard, Job, Mover, PeerStats, Remote, WhenFull};
use slackwater_wait::Event;
use slackwater_wire::data::{Capability, Op, Refusal, Rights, Segment};

use super::carry::{CopyRequest, NotCopied, carry};
use super::control::ControlRequest;
use super::copy_threads::CopyThreads;
use super::link::Link;
use super::mover::HostLimits;
use super::service::Service;
use super::window::OpenWindow;

/// The state that the callers of one peer, the copy threads and its control thread share.
pub(super) struct Core {
    pub(super) segment: Arc<Segment>,
    pub(super) service: Arc<Service>,
    pub(super) copy_threads: Arc<CopyThreads>,
    pub(super) fallback: Option<Arc<dyn Mover>>,
    pub(super) limits: HostLimits,
    pub(super) state: Mutex<CoreState>,
    /// Notified when the control thread has something to do.
    pub(super) wanted: Event,
    pub(super) flow: Arc<Flow>,
}

#[derive(Default)]
pub(super) struct CoreState {
    pub(super) link: LinkState,
    pub(super) closed: bool,
    pub(super) windows: HashMap<[u8; Capability::BYTES], Arc<OpenWindow>>,
    /// Windows on all of a region, by the number that capabilities name it by: for all rights to read there.
    pub(super) regions: HashMap<u32, Arc<OpenWindow>>,
    /// Capabilities whose memory cannot be reached this way, with the reason: not asked for again.
    pub(super) elsewhere: HashMap<[u8; Capability::BYTES], String>,
    /// Jobs that wait until their window is open.
    pub(super) waiting: VecDeque<(Job, FlowGuard)>,
    pub(super) requests: VecDeque<ControlRequest>,
    /// Jobs went to the fallback, so a fence has to go there too.
    pub(super) forwarded: bool,
    pub(super) stats: PeerStats,
}

#[derive(Default)]
pub(super) enum LinkState {
    /// No connection was tried yet.
    #[default]
    Unknown,
    Open(Arc<Link>),
    /// The process cannot be reached, and no connection is tried before that time.
    Shut {
        reason: String,
        until: Instant,
    },
    /// The process has ended: no other way leads to it either.
    Ended,
}

/// Why requests to such a process fail.
pub(super) const ENDED: &str = "the process has ended";

/// A job whose window is open.
pub(super) type Ready = (Job, Arc<OpenWindow>, FlowGuard);

/// The most capabilities that are remembered as not reached this way.
const ELSEWHERE_MAX: usize = 4096;

/// Small copies are given to a copy thread together, up to this many bytes.
const HANDOVER_BYTES: u64 = 1 << 20;

impl Core {
    pub(super) fn is_full(&self) -> bool {
        self.flow.unfinished() >= self.limits.queue_entries
    }

    pub(super) fn state(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queue has room for a job; otherwise ends the job.
    pub(super) fn wait_for_room(&self, job: Job, when_full: WhenFull) -> Option<Job> {
        match self.flow.room(self.limits.queue_entries, &job, when_full) {
            Ok(()) => Some(job),
            Err(cause) => {
                self.end(job, Err(cause));
                None
            }
        }
    }

    /// Copies the jobs whose windows are open: a few bytes on this thread, since handing them over would cost as much;
    /// more of them on the copy threads.
    pub(super) fn start(self: &Arc<Self>, ready: Vec<Ready>) {
        let submitted_bytes: u64 = ready.iter().map(|(job, ..)| job.buffers.bytes()).sum();
        if submitted_bytes <= self.limits.inline_bytes_max {
            ready
                .into_iter()
                .for_each(|ready| self.copy(ready, submitted_bytes));
            return;
        }
        let mut group = Vec::new();
        let mut group_bytes = 0;
        for item in ready {
            group_bytes += item.0.buffers.bytes();
            group.push(item);
            if group_bytes >= HANDOVER_BYTES {
                self.hand_over(take(&mut group), submitted_bytes);
                group_bytes = 0;
            }
        }
        if !group.is_empty() {
            self.hand_over(group, submitted_bytes);
        }
    }

    fn hand_over(self: &Arc<Self>, group: Vec<Ready>, submitted_bytes: u64) {
        let core = Arc::clone(self);
        self.copy_threads.push(Box::new(move || {
            group
                .into_iter()
                .for_each(|ready| core.copy(ready, submitted_bytes))
        }));
    }

    fn copy(&self, (job, window, ticket): Ready, submitted_bytes: u64) {
        let closed = self.state().closed;
        let carried = match closed {
            true => Err(NotCopied::Failed(Cause::Closed)),
            false => carry(
                &CopyRequest::of(&job, submitted_bytes),
                &window,
                &self.copy_threads,
            ),
        };
        self.forget_stale(&carried, &job.remote, &window);
        // Before the end is reported: a caller that waits for it may be waiting for the slot of the window.
        drop(window);
        match carried {
            Ok(_) => self.end(job, Ok(())),
            Err(NotCopied::Failed(cause)) => self.end(job, Err(cause)),
            Err(NotCopied::Stale) => return self.wait_for_window(job, ticket),
        }
        drop(ticket);
    }

    /// Has a job wait until its window is open.
    fn wait_for_window(&self, job: Job, ticket: FlowGuard) {
        let mut state = self.state();
        if state.closed {
            drop(state);
            return self.end(job, Err(Cause::Closed));
        }
        state.waiting.push_back((job, ticket));
        drop(state);
        self.wanted.notify_all();
    }

    /// Forgets a window that was revoked.
    pub(super) fn forget_stale(
        &self,
        carried: &Result<Option<Checksum>, NotCopied>,
        remote: &Remote,
        window: &Arc<OpenWindow>,
    ) {
        let refused = matches!(
            carried,
            Err(NotCopied::Stale | NotCopied::Failed(Cause::Refused(Refusal::Generation)))
        );
        if !refused || !window.is_over() {
            return;
        }
        let state = &mut *self.state();
        let is_it = |known: &Arc<OpenWindow>| Arc::ptr_eq(known, window);
        let key = remote.capability.to_bytes();
        if state.windows.get(&key).is_some_and(is_it) {
            state.windows.remove(&key);
        }
        state.regions.retain(|_, known| !is_it(known));
    }

    pub(super) fn count<T>(&self, op: Op, bytes: u64, result: &Result<T, Cause>) {
        let stats = &mut self.state().stats;
        match (result, op) {
            (Err(_), _) => stats.failed += 1,
            (Ok(_), Op::Read) => {
                (stats.completed, stats.bytes_read) =
                    (stats.completed + 1, stats.bytes_read + bytes);
            }
            (Ok(_), Op::Write) => {
                (stats.completed, stats.bytes_written) =
                    (stats.completed + 1, stats.bytes_written + bytes);
            }
        }
    }

    /// Counts a job, releases its memory, and ends it.
    pub(super) fn end(&self, job: Job, result: Result<(), Cause>) {
        let Job {
            op, buffers, part, ..
        } = job;
        let bytes = buffers.bytes();
        self.count(op, bytes, &result);
        drop(buffers);
        match result {
            Ok(()) => part.complete(bytes),
            Err(cause) => part.fail(cause),
        }
    }

    pub(super) fn request(&self, request: ControlRequest) {
        let mut state = self.state();
        let queued = state.requests.len();
        if state.closed || queued >= self.limits.queue_entries {
            let cause = if state.closed {
                Cause::Closed
            } else {
                Cause::Full {
                    queued: queued as u64,
                }
            };
            drop(state);
            return request.fail(cause);
        }
        state.requests.push_back(request);
        drop(state);
        self.wanted.notify_all();
    }
}

impl CoreState {
    pub(super) fn open_window(&self, op: Op, remote: &Remote) -> Option<Arc<OpenWindow>> {
        let LinkState::Open(_) = &self.link else {
            return None;
        };
        let capability = &remote.capability;
        // A write that has no right to be one gets no other window, and is refused at this one.
        let reads = op == Op::Read || !capability.claims().rights.allow(Rights::WRITE);
        if reads && let Some(window) = self.regions.get(&capability.claims().region) {
            return Some(Arc::clone(window));
        }
        self.windows.get(&capability.to_bytes()).map(Arc::clone)
    }

    /// Keeps a window that was opened for a capability.
    pub(super) fn keep(&mut self, capability: &Capability, window: OpenWindow) {
        let window = Arc::new(window);
        match window.is_on_region() {
            true => self.regions.insert(capability.claims().region, window),
            false => self.windows.insert(capability.to_bytes(), window),
        };
    }

    /// Forgets the windows that their owner has taken back, so that the memory behind them is not kept here.
    pub(super) fn forget_over(&mut self) {
        self.windows.retain(|_, window| !window.is_over());
        self.regions.retain(|_, window| !window.is_over());
    }

    /// Remembers that this memory cannot be reached this way, and why.
    pub(super) fn is_elsewhere(&mut self, capability: &Capability, reason: String) {
        if self.elsewhere.len() >= ELSEWHERE_MAX {
            self.elsewhere.clear();
        }
        self.elsewhere.insert(capability.to_bytes(), reason);
    }

    /// The earliest deadline of the waiting jobs.
    pub(super) fn first_deadline(&self) -> Instant {
        self.waiting
            .iter()
            .map(|(job, _)| job.deadline)
            .min()
            .unwrap_or(Instant::NEVER)
    }
}
