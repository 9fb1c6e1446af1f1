use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use slackwater_base::Instant;
use slackwater_wait::{Event, now};
use slackwater_wire::data::Refusal;

use super::carry::{Wanted, carry};
use super::core::{Core, Way};
use super::courier::Errand;
use super::crew::Crew;
use super::message::NOTICE_MAX;
use super::mover::HostLimits;
use super::service::Service;
use crate::batch::{BatchId, Part};
use crate::cause::Cause;
use crate::flow::Ticket;
use crate::job::Job;
use crate::mover::{Carried, Lone, Mover, Notice, PeerStats, WhenFull};
use crate::segment::Segment;

/// One process of this host, as its initiator sees it. What has to be asked of it is asked by a thread of its own, so
/// that a process which is stopped holds up nobody else; what is open already is copied without that thread.
pub(super) struct Peer {
    core: Arc<Core>,
    courier: Mutex<Option<JoinHandle<()>>>,
}

impl Peer {
    pub(super) fn new(
        segment: Arc<Segment>,
        service: Arc<Service>,
        crew: Arc<Crew>,
        fallback: Option<Arc<dyn Mover>>,
        limits: HostLimits,
    ) -> std::io::Result<Self> {
        let (state, wanted, flow) = (Mutex::default(), Event::new(), Arc::default());
        let core = Arc::new(Core { segment, service, crew, fallback, limits, state, wanted, flow });
        let courier = Arc::clone(&core);
        let thread = thread::Builder::new().name("slackwater-link".to_owned()).spawn(move || courier.run())?;
        Ok(Self { core, courier: Mutex::new(Some(thread)) })
    }

    /// Why bytes do not go this way at present.
    pub(super) fn why_not(&self) -> Option<String> {
        match &self.core.state().way {
            Way::Shut { reason, until } if now() < *until => Some(reason.clone()),
            Way::Open(link) => link.no_attach().map(|reason| format!("only shared memory: {reason}")),
            _ => None,
        }
    }

    /// Whether it is worth a try.
    pub(super) fn is_shut(&self) -> bool {
        matches!(&self.core.state().way, Way::Shut { until, .. } if now() < *until)
    }

    /// Whether the process has ended and nothing of it is left here.
    pub(super) fn is_over(&self) -> bool {
        let state = self.core.state();
        matches!(&state.way, Way::Shut { until, .. } if *until == Instant::NEVER) && self.core.flow.len() == 0
    }

    /// Takes jobs; gives back what this mover does not carry.
    pub(super) fn submit(&self, jobs: Vec<Job>, when_full: WhenFull) -> Vec<Job> {
        let core = &self.core;
        let (mut given_back, mut ready) = (Vec::new(), Vec::new());
        let mut asks = false;
        for job in jobs {
            let Some(job) = core.wait_for_room(job, when_full) else { continue };
            let mut state = core.state();
            if state.closed {
                drop(state);
                core.end(job, Err(Cause::Closed));
                continue;
            }
            let shut = matches!(&state.way, Way::Shut { until, .. } if now() < *until);
            if shut || !job.buffers.are_host() {
                given_back.push(job);
                continue;
            }
            let ticket = core.flow.begin();
            match state.open_window(&job) {
                Some(window) => ready.push((job, window, ticket)),
                None => {
                    state.waiting.push_back((job, ticket));
                    asks = true;
                }
            }
        }
        if asks {
            core.wanted.notify_all();
        }
        core.start(ready);
        given_back
    }

    /// Copies on this thread what the caller waits for, if its window is open; otherwise gives it back.
    pub(super) fn carry_now(&self, lone: Lone) -> Carried {
        let core = &self.core;
        let key = lone.remote.capability.to_bytes();
        let window = {
            let state = core.state();
            let known = matches!(state.way, Way::Open(_)).then(|| state.windows.get(&key).map(Arc::clone)).flatten();
            known.filter(|_| lone.buffers.are_host() && !state.closed)
        };
        let Some(window) = window else { return Carried::Back(lone) };
        let ticket = core.flow.begin();
        let Lone { op, buffers, remote, deadline } = lone;
        let bytes = buffers.bytes();
        let wanted = Wanted { op, buffers: &buffers, remote: &remote, deadline, part: None, together: bytes };
        let result = carry(&wanted, &window, &core.crew);
        core.forget_stale(&result, &remote, &window);
        core.count(op, bytes, &result);
        drop(window);
        drop(ticket);
        drop(buffers);
        Carried::Done(result)
    }

    pub(super) fn cancel(&self, batch: BatchId) {
        let mut state = self.core.state();
        let (over, left) = take(&mut state.waiting).into_iter().partition(|(job, _)| job.part.batch() == batch);
        state.waiting = left;
        drop(state);
        let over: VecDeque<(Job, Ticket)> = over;
        for (job, _ticket) in over {
            self.core.end(job, Err(Cause::Cancelled));
        }
        // What waits for a copy thread looks for itself, between any two pieces.
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
        self.core.errand(Errand::Notify(notice, part));
    }

    pub(super) fn probe(&self, deadline: Instant, part: Part) {
        self.core.errand(Errand::Probe(deadline, part));
    }

    pub(super) fn stats(&self) -> PeerStats {
        let state = self.core.state();
        let pending = state.waiting.len() as u64;
        PeerStats { pending, active: (self.core.flow.len() as u64).saturating_sub(pending), ..state.stats }
    }

    /// Ends what is left and the thread.
    pub(super) fn close(&self) {
        let core = &self.core;
        let (waiting, errands) = {
            let mut state = core.state();
            state.closed = true;
            (take(&mut state.waiting), take(&mut state.errands))
        };
        for (job, _ticket) in waiting {
            core.end(job, Err(Cause::Closed));
        }
        errands.into_iter().for_each(|errand| errand.fail(Cause::Closed));
        core.wanted.close();
        core.flow.close();
        if let Some(courier) = self.courier.lock().unwrap_or_else(PoisonError::into_inner).take()
            && courier.thread().id() != thread::current().id()
        {
            // A panic in it was reported where it happened.
            let _ = courier.join();
        }
        let mut state = core.state();
        (state.way, state.windows) = (Way::Unknown, HashMap::new());
    }
}
impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("segment", &self.core.segment.name).finish_non_exhaustive()
    }
}
