use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use slackwater_base::Instant;
use slackwater_pool::Pool;
use slackwater_pool::copy::{Stores, Tuning};
use slackwater_wait::{Event, Site, Waiting, now};
use slackwater_wire::data::{Capability, Op, Refusal};

use super::carry::{Wanted, carry};
use super::crew::Crew;
use super::link::{Link, NoWindow, Opened};
use super::message::{ATTACH_MAX, NOTICE_MAX};
use super::mover::HostLimits;
use super::service::Service;
use crate::batch::{BatchId, Part};
use crate::cause::{Cause, Clock};
use crate::flow::{Flow, Ticket};
use crate::job::{Job, Remote};
use crate::mover::{Carried, Lone, Mover, Notice, PeerStats, Submission, WhenFull};
use crate::segment::Segment;

/// One process of this host, as its initiator sees it. What has to be asked of it is asked by a thread of its own, so
/// that a process which is stopped holds up nobody else; what is open already is copied without that thread.
pub(super) struct Peer {
    core: Arc<Core>,
    courier: Mutex<Option<JoinHandle<()>>>,
}

struct Core {
    segment: Arc<Segment>,
    service: Arc<Service>,
    crew: Arc<Crew>,
    fallback: Option<Arc<dyn Mover>>,
    limits: HostLimits,
    state: Mutex<State>,
    /// Something is to be asked.
    wanted: Event,
    flow: Arc<Flow>,
}

#[derive(Default)]
struct State {
    way: Way,
    closed: bool,
    windows: HashMap<[u8; Capability::BYTES], Arc<Opened>>,
    /// In line until their window is open.
    waiting: VecDeque<(Job, Ticket)>,
    errands: VecDeque<Errand>,
    /// Jobs went to the fallback, so a fence has to go there as well.
    forwarded: bool,
    stats: PeerStats,
}

#[derive(Default)]
enum Way {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    Open(Arc<Link>),
    /// There is none, and nobody asks again before that time.
    Shut {
        reason: String,
        until: Instant,
    },
}

/// Something to ask that is no copy.
enum Errand {
    Notify(Notice, Part),
    Probe(Instant, Part),
}

static COURIER: Site = Site::new("host courier");

/// Small copies are handed to a copy thread together, up to so many bytes.
const HANDOVER_BYTES: u64 = 1 << 20;

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
        let wanted = Wanted { op, buffers: &buffers, remote: &remote, deadline, part: None };
        let stores = Tuning::current().stores(usize::try_from(bytes).unwrap_or(usize::MAX));
        let result = carry(&wanted, &window, stores, core.crew.pool());
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

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job, once the queue has room for it; otherwise it has been ended.
    fn wait_for_room(&self, job: Job, when_full: WhenFull) -> Option<Job> {
        loop {
            let seen = self.flow.seen();
            let queued = self.flow.len();
            if queued < self.limits.queue_entries {
                return Some(job);
            }
            if when_full == WhenFull::Refuse {
                self.end(job, Err(Cause::Full { queued: queued as u64 }));
                return None;
            }
            if job.part.is_cancelled() {
                self.end(job, Err(Cause::Cancelled));
                return None;
            }
            if !self.flow.wait(seen, job.deadline) {
                let closed = self.state().closed;
                self.end(job, Err(if closed { Cause::Closed } else { Cause::TimedOut(Clock::Total) }));
                return None;
            }
        }
    }

    /// Copies what is open: little of it here and now, since to hand it over would cost as much; the rest on the copy
    /// threads.
    fn start(self: &Arc<Self>, ready: Vec<(Job, Arc<Opened>, Ticket)>) {
        let bytes: u64 = ready.iter().map(|(job, ..)| job.buffers.bytes()).sum();
        // What is submitted together cannot all stay in the cache, though each part might.
        let stores = Tuning::current().stores(usize::try_from(bytes).unwrap_or(usize::MAX));
        if bytes <= self.limits.inline_bytes_max {
            let pool = self.crew.pool();
            ready.into_iter().for_each(|(job, window, ticket)| self.copy(job, window, ticket, stores, pool));
            return;
        }
        let mut group = Vec::new();
        let mut group_bytes = 0;
        for item in ready {
            group_bytes += item.0.buffers.bytes();
            group.push(item);
            if group_bytes >= HANDOVER_BYTES {
                self.hand_over(take(&mut group), stores);
                group_bytes = 0;
            }
        }
        if !group.is_empty() {
            self.hand_over(group, stores);
        }
    }

    fn hand_over(self: &Arc<Self>, group: Vec<(Job, Arc<Opened>, Ticket)>, stores: Stores) {
        let core = Arc::clone(self);
        self.crew.push(Box::new(move |pool| {
            group.into_iter().for_each(|(job, window, ticket)| core.copy(job, window, ticket, stores, pool));
        }));
    }

    fn copy(&self, job: Job, window: Arc<Opened>, ticket: Ticket, stores: Stores, pool: &Pool) {
        let closed = self.state().closed;
        let result = if closed { Err(Cause::Closed) } else { carry(&Wanted::of(&job), &window, stores, pool) };
        self.forget_stale(&result, &job.remote, &window);
        self.end(job, result);
        // The window first: who waits for the ticket may be waiting for its slot.
        drop(window);
        drop(ticket);
    }

    /// A window whose generation is over is of no more use.
    fn forget_stale(&self, result: &Result<(), Cause>, remote: &Remote, window: &Arc<Opened>) {
        if !matches!(result, Err(Cause::Refused(Refusal::Generation))) {
            return;
        }
        let mut state = self.state();
        let key = remote.capability.to_bytes();
        if state.windows.get(&key).is_some_and(|known| Arc::ptr_eq(known, window)) {
            state.windows.remove(&key);
        }
    }

    fn count(&self, op: Op, bytes: u64, result: &Result<(), Cause>) {
        let stats = &mut self.state().stats;
        match (result, op) {
            (Err(_), _) => stats.failed += 1,
            (Ok(()), Op::Read) => {
                (stats.completed, stats.bytes_read) = (stats.completed + 1, stats.bytes_read + bytes);
            }
            (Ok(()), Op::Write) => {
                (stats.completed, stats.bytes_written) = (stats.completed + 1, stats.bytes_written + bytes);
            }
        }
    }

    /// Counts a job, lets go of its memory, and ends it.
    fn end(&self, job: Job, result: Result<(), Cause>) {
        let Job { op, buffers, part, .. } = job;
        let bytes = buffers.bytes();
        self.count(op, bytes, &result);
        drop(buffers);
        match result {
            Ok(()) => part.complete(bytes),
            Err(cause) => part.fail(cause),
        }
    }

    fn errand(&self, errand: Errand) {
        let mut state = self.state();
        if state.closed {
            drop(state);
            return errand.fail(Cause::Closed);
        }
        state.errands.push_back(errand);
        drop(state);
        self.wanted.notify_all();
    }

    /// The courier: asks what is to be asked, until the peer is closed.
    fn run(self: Arc<Self>) {
        loop {
            let seen = self.wanted.seen();
            let (idle, ended) = {
                let state = self.state();
                if state.closed {
                    return;
                }
                let ended = matches!(&state.way, Way::Open(link) if link.is_gone());
                (state.waiting.is_empty() && state.errands.is_empty(), ended)
            };
            if ended {
                // Its memory is given back at once, not when somebody next asks for it.
                self.shut("the process has ended".to_owned(), Instant::NEVER);
                continue;
            }
            if idle {
                // Closed or notified: both are looked at above.
                let _ = self.wanted.wait(seen, &Waiting::at(&COURIER));
                continue;
            }
            match self.link() {
                Ok(link) => self.ask(&link),
                Err(reason) => {
                    // What is known to have ended stays so.
                    let ended = matches!(&self.state().way, Way::Shut { until, .. } if *until == Instant::NEVER);
                    self.shut(reason, if ended { Instant::NEVER } else { now() + self.limits.retry_after });
                }
            }
        }
    }

    fn link(self: &Arc<Self>) -> Result<Arc<Link>, String> {
        match &self.state().way {
            Way::Open(link) => return Ok(Arc::clone(link)),
            Way::Shut { reason, until } if now() < *until => return Err(reason.clone()),
            _ => {}
        }
        let Some(contact) = &self.segment.host else { return Err("no host contact".to_owned()) };
        let deadline = now() + self.limits.answer_timeout;
        let core = Arc::downgrade(self);
        let gone = move || {
            if let Some(core) = core.upgrade() {
                core.wanted.notify_all();
            }
        };
        let link = Link::open(&self.service, &contact.socket, self.segment.incarnation, deadline, gone)
            .map_err(|error| error.to_string())?;
        let mut state = self.state();
        if state.closed {
            return Err("closing".to_owned());
        }
        state.way = Way::Open(Arc::clone(&link));
        Ok(link)
    }

    /// One question: an errand, or the windows that the first jobs in line need.
    fn ask(self: &Arc<Self>, link: &Arc<Link>) {
        self.end_late();
        let (errand, wanted, first_deadline) = {
            let mut state = self.state();
            let mut wanted: Vec<Capability> = Vec::new();
            for (job, _) in &state.waiting {
                if wanted.len() < ATTACH_MAX && !wanted.contains(&job.remote.capability) {
                    wanted.push(job.remote.capability);
                }
            }
            let first = state.waiting.iter().map(|(job, _)| job.deadline).min().unwrap_or(Instant::NEVER);
            (state.errands.pop_front(), wanted, first)
        };
        let notice = match &errand {
            Some(Errand::Notify(notice, _)) => Some(notice),
            _ => None,
        };
        let patience = now() + self.limits.answer_timeout;
        let probed = match &errand {
            Some(Errand::Probe(deadline, _)) => *deadline,
            _ => Instant::NEVER,
        };
        let deadline = patience.min(first_deadline).min(probed);
        match link.ask(&wanted, notice, deadline) {
            Ok((opened, noticed)) => {
                if let Some(errand) = errand {
                    errand.answered(noticed);
                }
                self.opened(&wanted, opened);
            }
            Err(NoWindow::TimedOut) if deadline < patience => {
                if let Some(errand) = errand {
                    errand.retry_or_fail(self);
                }
                self.end_late();
            }
            Err(error) => {
                let reason = error.to_string();
                // A life that has ended stays ended; what is only slow may be asked again.
                let over = link.is_gone() || matches!(error, NoWindow::Gone);
                if let Some(errand) = errand {
                    errand.fail(if over {
                        Cause::Lost(reason.clone())
                    } else {
                        Cause::TimedOut(Clock::Acknowledgement)
                    });
                }
                self.shut(reason, if over { Instant::NEVER } else { now() + self.limits.retry_after });
            }
        }
    }

    /// Jobs whose time has passed, or for which nobody waits, leave the line.
    fn end_late(&self) {
        let mut state = self.state();
        let at = now();
        let late = |job: &Job| at >= job.deadline || job.part.is_cancelled();
        if !state.waiting.iter().any(|(job, _)| late(job)) {
            return;
        }
        let (over, left) = take(&mut state.waiting).into_iter().partition(|(job, _)| late(job));
        state.waiting = left;
        drop(state);
        let over: VecDeque<(Job, Ticket)> = over;
        for (job, _ticket) in over {
            let cause = if job.part.is_cancelled() { Cause::Cancelled } else { Cause::TimedOut(Clock::Total) };
            self.end(job, Err(cause));
        }
    }

    /// Windows were opened or refused: the jobs in line for them go on, in order. Those for which the owner has no slot
    /// stay in line until windows that nobody uses any more have made room.
    fn opened(self: &Arc<Self>, wanted: &[Capability], opened: Vec<Result<Opened, NoWindow>>) {
        let (mut refused, mut crowded) = (HashMap::new(), false);
        let (mut ready, mut over, mut forward) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.state();
            for (capability, window) in wanted.iter().zip(opened) {
                match window {
                    Ok(window) => {
                        state.windows.insert(capability.to_bytes(), Arc::new(window));
                    }
                    Err(NoWindow::NoSlot) => crowded = true,
                    Err(error) => {
                        refused.insert(capability.to_bytes(), error);
                    }
                }
            }
            let mut left = VecDeque::new();
            for (job, ticket) in take(&mut state.waiting) {
                if let Some(window) = state.open_window(&job) {
                    ready.push((job, window, ticket));
                    continue;
                }
                match refused.get(&job.remote.capability.to_bytes()) {
                    None => left.push_back((job, ticket)),
                    Some(NoWindow::Refused(refusal)) => over.push((job, ticket, Cause::Refused(*refusal))),
                    Some(error) => forward.push((job, ticket, error.to_string())),
                }
            }
            state.waiting = left;
        }
        for (job, _ticket, cause) in over {
            self.end(job, Err(cause));
        }
        if !forward.is_empty() {
            let reason = forward[0].2.clone();
            self.forward(forward.into_iter().map(|(job, ticket, _)| (job, ticket)).collect(), &reason);
        }
        self.start(ready);
        if crowded {
            self.make_room();
        }
    }

    /// Forgets windows that no copy uses, and waits for the end of a copy while there is none.
    fn make_room(&self) {
        loop {
            let seen = self.flow.seen();
            let (idle, first_deadline) = {
                let mut state = self.state();
                let in_use = state.windows.len();
                state.windows.retain(|_, window| Arc::strong_count(window) > 1);
                let first = state.waiting.iter().map(|(job, _)| job.deadline).min();
                (state.windows.len() < in_use || in_use == 0 || state.closed, first)
            };
            // Without jobs in line nobody wants the room; past a deadline the line is looked at first.
            if idle || !first_deadline.is_some_and(|deadline| self.flow.wait(seen, deadline)) {
                return;
            }
        }
    }

    /// There is no way: what is in line goes another one.
    fn shut(self: &Arc<Self>, reason: String, until: Instant) {
        let (jobs, errands) = {
            let mut state = self.state();
            state.way = Way::Shut { reason: reason.clone(), until };
            state.windows.clear();
            (take(&mut state.waiting), take(&mut state.errands))
        };
        tracing::debug!(peer = %self.segment.name, reason, "no way over the host");
        for errand in errands {
            match (&self.fallback, errand) {
                (Some(fallback), Errand::Notify(notice, part)) => fallback.notify(&self.segment, notice, part),
                (Some(fallback), Errand::Probe(deadline, part)) => fallback.probe(&self.segment, deadline, part),
                (None, errand) => errand.fail(Cause::Unreachable(reason.clone())),
            }
        }
        self.forward(jobs, &reason);
    }

    fn forward(&self, jobs: VecDeque<(Job, Ticket)>, reason: &str) {
        if jobs.is_empty() {
            return;
        }
        let (jobs, tickets): (Vec<Job>, Vec<Ticket>) = jobs.into_iter().unzip();
        let Some(fallback) = self.fallback.as_ref().filter(|fallback| fallback.reaches(&self.segment)) else {
            jobs.into_iter().for_each(|job| self.end(job, Err(Cause::Unreachable(reason.to_owned()))));
            return;
        };
        self.state().forwarded = true;
        let submission = Submission { jobs, when_full: WhenFull::Wait };
        for job in fallback.submit(&self.segment, submission) {
            self.end(job, Err(Cause::Unreachable(reason.to_owned())));
        }
        drop(tickets);
    }
}

impl State {
    fn open_window(&self, job: &Job) -> Option<Arc<Opened>> {
        match &self.way {
            Way::Open(_) => self.windows.get(&job.remote.capability.to_bytes()).map(Arc::clone),
            _ => None,
        }
    }
}

impl Errand {
    fn answered(self, noticed: bool) {
        match self {
            Self::Notify(_, part) if !noticed => part.fail(Cause::Refused(Refusal::Limit)),
            Self::Notify(_, part) | Self::Probe(_, part) => part.complete(0),
        }
    }

    /// The question ran into somebody's deadline. A notice may have been taken all the same, so it is not repeated.
    fn retry_or_fail(self, core: &Core) {
        match self {
            Self::Probe(deadline, part) if now() < deadline => core.errand(Self::Probe(deadline, part)),
            Self::Probe(_, part) => part.fail(Cause::TimedOut(Clock::Total)),
            Self::Notify(_, part) => part.fail(Cause::TimedOut(Clock::Acknowledgement)),
        }
    }

    fn fail(self, cause: Cause) {
        match self {
            Self::Notify(_, part) | Self::Probe(_, part) => part.fail(cause),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("segment", &self.core.segment.name).finish_non_exhaustive()
    }
}
