use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use slackwater_base::Instant;
use slackwater_engine::{
    Carried, Cause, FlowGuard, Job, Mover, Notice, Part, PeerStats, SingleRequest, WhenFull,
};
use slackwater_wait::{Event, now};
use slackwater_wire::data::{Refusal, Segment};

use super::carry::{CopyRequest, NotCopied, carry};
use super::control::ControlRequest;
use super::copy_threads::CopyThreads;
use super::core::{Core, ENDED, LinkState, Ready};
use super::message::NOTICE_MAX;
use super::mover::HostLimits;
use super::service::Service;

/// One process of this host, as seen by an initiator. A caller that waits asks it for a window for a moment, in its turn, and a control thread else, so that a stopped process
/// delays no other; copies through open windows do not need that thread.
pub(super) struct HostPeer {
    core: Arc<Core>,
    control_thread: Mutex<Option<JoinHandle<()>>>,
}

/// The jobs of a submission that were taken and not started.
#[derive(Default)]
struct Taken {
    ready: Vec<Ready>,
    /// Jobs for the fallback; `reason` says why.
    elsewhere: VecDeque<(Job, FlowGuard)>,
    reason: String,
    /// A job waits for a window.
    asks: bool,
}

impl Taken {
    fn start(&mut self, core: &Arc<Core>, when_full: WhenFull) {
        if take(&mut self.asks) {
            core.wanted.notify_all();
        }
        core.start(take(&mut self.ready));
        core.forward(take(&mut self.elsewhere), &self.reason, when_full);
    }
}

impl HostPeer {
    pub(super) fn new(
        segment: Arc<Segment>,
        service: Arc<Service>,
        copy_threads: Arc<CopyThreads>,
        fallback: Option<Arc<dyn Mover>>,
        limits: HostLimits,
    ) -> std::io::Result<Self> {
        let (state, wanted, flow) = (Mutex::default(), Event::new(), Arc::default());
        let core = Arc::new(Core {
            segment,
            service,
            copy_threads,
            fallback,
            limits,
            state,
            wanted,
            flow,
        });
        let control_thread = Arc::clone(&core);
        let thread = thread::Builder::new()
            .name("slackwater-link".to_owned())
            .spawn(move || control_thread.run())?;
        Ok(Self {
            core,
            control_thread: Mutex::new(Some(thread)),
        })
    }

    /// Why bytes do not go this way at present.
    pub(super) fn why_not(&self) -> Option<String> {
        match &self.core.state().link {
            LinkState::Shut { reason, until } if now() < *until => Some(reason.clone()),
            LinkState::Open(link) => link
                .no_attach()
                .map(|reason| format!("only shared memory: {reason}")),
            LinkState::Ended => Some(ENDED.to_owned()),
            _ => None,
        }
    }

    /// Whether requests to the process go another way now. Those to one that has ended go none.
    pub(super) fn is_shut(&self) -> bool {
        matches!(&self.core.state().link, LinkState::Shut { until, .. } if now() < *until)
    }

    /// Whether the process has ended and nothing of it is left here.
    pub(super) fn is_over(&self) -> bool {
        let state = self.core.state();
        let is_over = match &state.link {
            LinkState::Shut { until, .. } => *until == Instant::NEVER,
            LinkState::Ended => true,
            LinkState::Unknown | LinkState::Open(_) => false,
        };
        is_over && self.core.flow.unfinished() == 0
    }

    /// Takes jobs; returns those that this mover does not carry.
    pub(super) fn submit(&self, jobs: Vec<Job>, when_full: WhenFull) -> Vec<Job> {
        let core = &self.core;
        let (mut given_back, mut taken) = (Vec::new(), Taken::default());
        for job in jobs {
            if core.is_full() {
                // The jobs taken so far must be started: their ends make room.
                taken.start(core, when_full);
            }
            let Some(job) = core.wait_for_room(job, when_full) else {
                continue;
            };
            let mut state = core.state();
            if state.closed {
                drop(state);
                core.end(job, Err(Cause::Closed));
                continue;
            }
            if matches!(&state.link, LinkState::Ended) {
                drop(state);
                core.end(job, Err(Cause::Lost(ENDED.to_owned())));
                continue;
            }
            let shut = matches!(&state.link, LinkState::Shut { until, .. } if now() < *until);
            if shut || !job.buffers.are_host() {
                given_back.push(job);
                continue;
            }
            let ticket = core.flow.begin();
            if let Some(window) = state.open_window(job.op, &job.remote) {
                taken.ready.push((job, window, ticket));
            } else if let Some(reason) = state.elsewhere.get(&job.remote.capability.to_bytes()) {
                taken.reason.clone_from(reason);
                taken.elsewhere.push_back((job, ticket));
            } else {
                state.waiting.push_back((job, ticket));
                taken.asks = true;
            }
        }
        taken.start(core, when_full);
        given_back
    }

    /// Copies a request on the caller's thread, if its window is open or its owner opens it at once; otherwise returns it.
    pub(super) fn carry_now(&self, single: SingleRequest) -> Carried {
        let core = &self.core;
        let known = {
            let state = core.state();
            let known = state.open_window(single.op, &single.remote);
            let needs_owner = known.is_none() && !single.may_wait;
            if needs_owner || state.closed || !single.buffers.are_host() {
                drop(state);
                return Carried::Back(single);
            }
            known
        };
        let ticket = core.flow.begin();
        let window = match known.map(Ok).or_else(|| core.ask_for_window(&single)) {
            Some(Ok(window)) => window,
            Some(Err(refusal)) => {
                let refused = Err(Cause::Refused(refusal));
                core.count(single.op, 0, &refused);
                return Carried::Done(refused);
            }
            None => {
                drop(ticket);
                return Carried::Back(single);
            }
        };
        let SingleRequest {
            op,
            ref buffers,
            ref remote,
            deadline,
            checksum,
            may_wait: _,
        } = single;
        let bytes = buffers.bytes();
        let carried = carry(
            &CopyRequest {
                op,
                buffers,
                remote,
                deadline,
                part: None,
                submitted_bytes: bytes,
                checksum,
            },
            &window,
            &core.copy_threads,
        );
        core.forget_stale(&carried, remote, &window);
        drop(window);
        drop(ticket);
        let result = match carried {
            Ok(checksum) => Ok(checksum),
            Err(NotCopied::Failed(cause)) => Err(cause),
            // Submitted as a batch, the request asks the owner.
            Err(NotCopied::Stale) => return Carried::Back(single),
        };
        core.count(op, bytes, &result);
        drop(single);
        Carried::Done(result)
    }

    /// Ends the jobs for which there is a cause, as long as they wait for their windows. Those on the copy threads look
    /// for it themselves, between any two pieces.
    pub(super) fn give_up(&self, cause: impl Fn(&Job) -> Option<Cause>) {
        let mut state = self.core.state();
        let (over, left) = take(&mut state.waiting)
            .into_iter()
            .partition(|(job, _)| cause(job).is_some());
        state.waiting = left;
        drop(state);
        let over: VecDeque<(Job, FlowGuard)> = over;
        for (job, _ticket) in over {
            let cause = cause(&job).unwrap_or(Cause::Cancelled);
            self.core.end(job, Err(cause));
        }
    }

    pub(super) fn fence(&self, part: Part) {
        let core = Arc::clone(&self.core);
        self.core.flow.fence(Box::new(move || {
            let forwarded = core.state().forwarded;
            match &core.fallback {
                Some(fallback) if forwarded => fallback.fence(&core.segment, part),
                _ => part.complete(0),
            }
        }));
    }

    pub(super) fn notify(&self, notice: Notice, part: Part) {
        if notice.name.len() + notice.bytes.len() > NOTICE_MAX {
            return match &self.core.fallback {
                Some(fallback) => fallback.notify(&self.core.segment, notice, part),
                None => part.fail(Cause::Refused(Refusal::Limit)),
            };
        }
        self.core.request(ControlRequest::Notify(notice, part));
    }

    pub(super) fn probe(&self, deadline: Instant, part: Part) {
        self.core.request(ControlRequest::Probe(deadline, part));
    }

    pub(super) fn stats(&self) -> PeerStats {
        let state = self.core.state();
        let pending = state.waiting.len() as u64;
        PeerStats {
            pending,
            active: (self.core.flow.unfinished() as u64).saturating_sub(pending),
            ..state.stats
        }
    }

    /// Ends the waiting jobs, the control requests and the thread.
    pub(super) fn close(&self) {
        let core = &self.core;
        let (waiting, requests) = {
            let mut state = core.state();
            state.closed = true;
            (take(&mut state.waiting), take(&mut state.requests))
        };
        for (job, _ticket) in waiting {
            core.end(job, Err(Cause::Closed));
        }
        requests
            .into_iter()
            .for_each(|request| request.fail(Cause::Closed));
        core.wanted.close();
        core.flow.close();
        if let Some(control_thread) = self
            .control_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            && control_thread.thread().id() != thread::current().id()
        {
            // A panic in it was reported where it happened.
            let _ = control_thread.join();
        }
        let mut state = core.state();
        (state.link, state.windows) = (LinkState::Unknown, HashMap::new());
        state.regions.clear();
    }
}
impl fmt::Debug for HostPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("segment", &self.core.segment.name)
            .finish_non_exhaustive()
    }
}
