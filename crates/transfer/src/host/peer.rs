use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use slackwater_base::Instant;
use slackwater_wait::{Event, now};
use slackwater_wire::data::Refusal;

use super::carry::{Uncarried, Wanted, carry};
use super::core::{Core, Ready, Way};
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

/// What was taken of a submission and is not begun.
#[derive(Default)]
struct Taken {
    ready: Vec<Ready>,
    /// What goes to the fallback, and why.
    elsewhere: VecDeque<(Job, Ticket)>,
    reason: String,
    /// Something stands in line for a window.
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

impl Peer {
    pub(super) fn new(
        segment: Arc<Segment>,
        service: Arc<Service>,
        crew: Arc<Crew>,
        fallback: Option<Arc<dyn Mover>>,
        limits: HostLimits,
    ) -> std::io::Result<Self> {
        let (state, wanted, flow) = (Mutex::default(), Event::new(), Arc::default());
        let core = Arc::new(Core {
            segment,
            service,
            crew,
            fallback,
            limits,
            state,
            wanted,
            flow,
        });
        let courier = Arc::clone(&core);
        let thread = thread::Builder::new()
            .name("slackwater-link".to_owned())
            .spawn(move || courier.run())?;
        Ok(Self {
            core,
            courier: Mutex::new(Some(thread)),
        })
    }

    /// Why bytes do not go this way at present.
    pub(super) fn why_not(&self) -> Option<String> {
        match &self.core.state().way {
            Way::Shut { reason, until } if now() < *until => Some(reason.clone()),
            Way::Open(link) => link
                .no_attach()
                .map(|reason| format!("only shared memory: {reason}")),
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
        matches!(&state.way, Way::Shut { until, .. } if *until == Instant::NEVER)
            && self.core.flow.len() == 0
    }

    /// Takes jobs; gives back what this mover does not carry.
    pub(super) fn submit(&self, jobs: Vec<Job>, when_full: WhenFull) -> Vec<Job> {
        let core = &self.core;
        let (mut given_back, mut taken) = (Vec::new(), Taken::default());
        for job in jobs {
            if core.is_full() {
                // The room that is waited for is made by what was taken already.
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
            let shut = matches!(&state.way, Way::Shut { until, .. } if now() < *until);
            if shut || !job.buffers.are_host() {
                given_back.push(job);
                continue;
            }
            let ticket = core.flow.begin();
            if let Some(window) = state.open_window(&job) {
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

    /// Copies on this thread what the caller waits for, if its window is open; otherwise gives it back.
    pub(super) fn carry_now(&self, lone: Lone) -> Carried {
        let core = &self.core;
        let key = lone.remote.capability.to_bytes();
        let window = {
            let state = core.state();
            let known = matches!(state.way, Way::Open(_))
                .then(|| state.windows.get(&key).map(Arc::clone))
                .flatten();
            known.filter(|_| lone.buffers.are_host() && !state.closed)
        };
        let Some(window) = window else {
            return Carried::Back(lone);
        };
        let ticket = core.flow.begin();
        let Lone {
            op,
            ref buffers,
            ref remote,
            deadline,
        } = lone;
        let bytes = buffers.bytes();
        let carried = carry(
            &Wanted {
                op,
                buffers,
                remote,
                deadline,
                part: None,
                together: bytes,
            },
            &window,
            &core.crew,
        );
        core.forget_stale(&carried, remote, &window);
        drop(window);
        drop(ticket);
        let result = match carried {
            Ok(()) => Ok(()),
            Err(Uncarried::Failed(cause)) => Err(cause),
            // As a batch it asks the owner.
            Err(Uncarried::Stale) => return Carried::Back(lone),
        };
        core.count(op, bytes, &result);
        drop(lone);
        Carried::Done(result)
    }

    pub(super) fn cancel(&self, batch: BatchId) {
        let mut state = self.core.state();
        let (over, left) = take(&mut state.waiting)
            .into_iter()
            .partition(|(job, _)| job.part.batch() == batch);
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
        PeerStats {
            pending,
            active: (self.core.flow.len() as u64).saturating_sub(pending),
            ..state.stats
        }
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
        errands
            .into_iter()
            .for_each(|errand| errand.fail(Cause::Closed));
        core.wanted.close();
        core.flow.close();
        if let Some(courier) = self
            .courier
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
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
        f.debug_struct("Peer")
            .field("segment", &self.core.segment.name)
            .finish_non_exhaustive()
    }
}
