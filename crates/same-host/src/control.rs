use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_engine::{
    Cause, Deadline, FlowGuard, Job, Notice, Part, SingleRequest, Submission, WhenFull,
};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::data::{Capability, Refusal};
use slackwater_zmtp::PublicKey;

use super::core::{Core, ENDED, LinkState};
use super::link::{Asked, Link, WindowError};
use super::message::ATTACH_MAX;
use super::opening::LinkTarget;
use super::window::OpenWindow;

/// A request to the owner that is not a copy.
pub(super) enum ControlRequest {
    Notify(Notice, Part),
    Probe(Instant, Part),
}

/// How long a caller waits by itself for an owner, which answers within microseconds unless it is stopped or has much to do.
const CALLERS_PATIENCE: Duration = Duration::from_millis(10);

pub(crate) static CONTROL: Site = Site::new("host control");

impl Core {
    /// The control thread: sends requests to the owner until the peer is closed.
    pub(super) fn run(self: Arc<Self>) {
        loop {
            let seen = self.wanted.seen();
            let (idle, lost, is_over) = {
                let state = self.state();
                if state.closed {
                    return;
                }
                let lost = match &state.link {
                    LinkState::Open(link) if link.is_gone() => Some(Arc::clone(link)),
                    _ => None,
                };
                let idle = state.waiting.is_empty() && state.requests.is_empty();
                (idle, lost, matches!(&state.link, LinkState::Ended))
            };
            if let Some(link) = lost {
                // Its memory is released at once, not at the next request.
                match link.farewell() {
                    Some(reason) => self.shut(reason.to_owned(), now() + self.limits.retry_after),
                    None => self.lose(
                        link.has_ended(),
                        "the process has closed the link".to_owned(),
                    ),
                }
                continue;
            }
            if idle {
                // Closed or notified: both are checked above.
                let _ = self.wanted.wait(seen, &Waiting::at(&CONTROL));
                continue;
            }
            if is_over {
                self.end_all();
                continue;
            }
            match self.link() {
                Ok(link) => self.ask(&link),
                Err(reason) => {
                    // A process that is known to have ended stays so.
                    let ended = matches!(&self.state().link, LinkState::Shut { until, .. } if *until == Instant::NEVER);
                    self.shut(
                        reason,
                        if ended {
                            Instant::NEVER
                        } else {
                            now() + self.limits.retry_after
                        },
                    );
                }
            }
        }
    }

    fn link(self: &Arc<Self>) -> Result<Arc<Link>, String> {
        match &self.state().link {
            LinkState::Open(link) => return Ok(Arc::clone(link)),
            LinkState::Shut { reason, until } if now() < *until => return Err(reason.clone()),
            _ => {}
        }
        let Some(contact) = &self.segment.host else {
            return Err("no host contact".to_owned());
        };
        let core = Arc::downgrade(self);
        let gone = move || {
            if let Some(core) = core.upgrade() {
                core.wanted.notify_all();
            }
        };
        let call = LinkTarget {
            name: &contact.socket,
            target: self.segment.incarnation,
            key: self.segment.public_key.map(PublicKey::from_bytes),
            deadline: now() + self.limits.answer_timeout,
            // A stopped process does not answer; requests wait for it only until their own deadlines.
            meanwhile: &|| {
                self.end_late();
                self.state().first_deadline()
            },
        };
        let link = Link::open(&self.service, &call, gone).map_err(|error| error.to_string())?;
        let mut state = self.state();
        if state.closed {
            return Err("closing".to_owned());
        }
        state.link = LinkState::Open(Arc::clone(&link));
        Ok(link)
    }

    /// Sends one question: a control request, and the windows that the first waiting jobs need.
    fn ask(self: &Arc<Self>, link: &Arc<Link>) {
        self.end_late();
        let (over, request, wanted, first_deadline) = {
            let mut state = self.state();
            let over = state.forget_over();
            let mut wanted: Vec<Capability> = Vec::new();
            for (job, _) in &state.waiting {
                if wanted.len() < ATTACH_MAX && !wanted.contains(&job.remote.capability) {
                    wanted.push(job.remote.capability);
                }
            }
            let request = state.requests.pop_front();
            (over, request, wanted, state.first_deadline())
        };
        if wanted.is_empty() && request.is_none() {
            // Every request in it was late.
            return;
        }
        let notice = match &request {
            Some(ControlRequest::Notify(notice, _)) => Some(notice),
            _ => None,
        };
        let patience = now() + self.limits.answer_timeout;
        let probed = match &request {
            Some(ControlRequest::Probe(deadline, _)) => *deadline,
            _ => Instant::NEVER,
        };
        let deadline = patience.min(first_deadline).min(probed);
        let asked = link.ask(&wanted, notice, deadline);
        // Only now: new windows on the memory of these share its mapping. A client that writes one extent after another, and
        // has no other window there, would else map all of the region for each, and touch each page of it for the first time.
        drop(over);
        match asked {
            Ok((opened, noticed)) => {
                if let Some(request) = request {
                    request.answered(noticed);
                }
                self.opened(&wanted, opened);
            }
            Err(WindowError::TimedOut) if deadline < patience => {
                if let Some(request) = request {
                    request.retry_or_fail(self);
                }
                self.end_late();
            }
            Err(error) => {
                let reason = error.to_string();
                // An ended process stays ended; a slow one may be asked again.
                let over = match &error {
                    WindowError::TurnedAway(_) => false,
                    WindowError::Gone => link.farewell().is_none(),
                    _ => link.is_gone(),
                };
                let has_ended = over && link.has_ended();
                if let Some(request) = request {
                    request.fail(match over {
                        true if has_ended => Cause::Lost(ENDED.to_owned()),
                        true => Cause::Lost(reason.clone()),
                        false => Cause::TimedOut(Deadline::Acknowledgement),
                    });
                }
                match over {
                    true => self.lose(has_ended, reason),
                    false => self.shut(reason, now() + self.limits.retry_after),
                }
            }
        }
    }

    /// Opens the window of a request on the thread of its caller, who waits: the control thread would have to be woken for
    /// it, and wake the caller. A refusal of the owner is one. None where requests wait for the control thread already, or the owner does not
    /// answer at once; the control thread goes by what else it says.
    pub(super) fn ask_for_window(
        self: &Arc<Self>,
        single: &SingleRequest,
    ) -> Option<Result<Arc<OpenWindow>, Refusal>> {
        let capability = single.remote.capability;
        let link = {
            let state = self.state();
            let is_idle = state.waiting.is_empty() && state.requests.is_empty();
            let is_elsewhere = state.elsewhere.contains_key(&capability.to_bytes());
            match &state.link {
                LinkState::Open(link) if is_idle && !is_elsewhere => Arc::clone(link),
                _ => return None,
            }
        };
        let at = now();
        if single.deadline <= at {
            return None;
        }
        let deadline = single.deadline.min(at + CALLERS_PATIENCE);
        let known = || {
            let window = self.state().open_window(single.op, &single.remote);
            // One that is over stays until there is another on its memory.
            window.filter(|window| !window.is_over())
        };
        let (window, turn) = match link.ask_by(capability, deadline, known)? {
            Asked::Known(window) => return Some(Ok(window)),
            Asked::Answered(Ok(window), turn) => (window, turn),
            Asked::Answered(Err(WindowError::Refused(refusal)), _) => return Some(Err(refusal)),
            Asked::Answered(Err(_), _) => return None,
        };
        let mut state = self.state();
        let is_current =
            matches!(&state.link, LinkState::Open(current) if Arc::ptr_eq(current, &link));
        if state.closed || !is_current {
            return None;
        }
        // Only now: the new window shares the mapping of these, as in `ask`.
        let over = state.forget_over();
        state.keep(&capability, window);
        let opened = state.open_window(single.op, &single.remote);
        drop(state);
        drop(turn);
        drop(over);
        opened.map(Ok)
    }

    /// A link is gone whose owner has not said why.
    fn lose(self: &Arc<Self>, has_ended: bool, reason: String) {
        match has_ended {
            true => self.end_all(),
            false => self.shut(reason, Instant::NEVER),
        }
    }

    /// The process has ended: what waits for it fails. Over another way it would be tried until its deadline.
    fn end_all(&self) {
        let (jobs, requests) = {
            let mut state = self.state();
            state.link = LinkState::Ended;
            state.windows.clear();
            state.regions.clear();
            state.elsewhere.clear();
            (take(&mut state.waiting), take(&mut state.requests))
        };
        let cause = || Cause::Lost(ENDED.to_owned());
        requests
            .into_iter()
            .for_each(|request| request.fail(cause()));
        for (job, _ticket) in jobs {
            self.end(job, Err(cause()));
        }
    }

    /// Ends waiting jobs that are late or cancelled.
    fn end_late(&self) {
        let mut state = self.state();
        let at = now();
        let late = |job: &Job| at >= job.deadline || job.part.is_cancelled();
        if !state.waiting.iter().any(|(job, _)| late(job)) {
            return;
        }
        let (over, left) = take(&mut state.waiting)
            .into_iter()
            .partition(|(job, _)| late(job));
        state.waiting = left;
        drop(state);
        let over: VecDeque<(Job, FlowGuard)> = over;
        for (job, _ticket) in over {
            let cause = if job.part.is_cancelled() {
                Cause::Cancelled
            } else {
                Cause::TimedOut(Deadline::Total)
            };
            self.end(job, Err(cause));
        }
    }

    /// Windows were opened or refused: the jobs that waited for them go on, in order. Jobs for which the owner has no
    /// slot keep waiting until unused windows have made room.
    fn opened(
        self: &Arc<Self>,
        wanted: &[Capability],
        opened: Vec<Result<OpenWindow, WindowError>>,
    ) {
        let (mut refused, mut crowded) = (HashMap::new(), false);
        let (mut ready, mut over, mut forward) = (Vec::new(), Vec::new(), VecDeque::new());
        let mut reason = String::new();
        {
            let mut state = self.state();
            for (capability, window) in wanted.iter().zip(opened) {
                match window {
                    Ok(window) => state.keep(capability, window),
                    // What waits for it finds that one, or asks again.
                    Err(WindowError::Before) => {}
                    Err(WindowError::NoSlot) => crowded = true,
                    Err(error) => {
                        if matches!(error, WindowError::NoAttach(_) | WindowError::Memory(_)) {
                            state.is_elsewhere(capability, error.to_string());
                        }
                        refused.insert(capability.to_bytes(), error);
                    }
                }
            }
            let mut left = VecDeque::new();
            for (job, ticket) in take(&mut state.waiting) {
                if let Some(window) = state.open_window(job.op, &job.remote) {
                    ready.push((job, window, ticket));
                    continue;
                }
                match refused.get(&job.remote.capability.to_bytes()) {
                    None => left.push_back((job, ticket)),
                    Some(WindowError::Refused(refusal)) => {
                        over.push((job, ticket, Cause::Refused(*refusal)))
                    }
                    Some(error) => {
                        reason = error.to_string();
                        forward.push_back((job, ticket));
                    }
                }
            }
            state.waiting = left;
        }
        for (job, _ticket, cause) in over {
            self.end(job, Err(cause));
        }
        self.forward(forward, &reason, WhenFull::Wait);
        self.start(ready);
        if crowded && !self.make_room() {
            // This process has given all its windows back, and the owner still has no slot: the jobs go another way.
            let jobs = take(&mut self.state().waiting);
            self.forward(jobs, &WindowError::NoSlot.to_string(), WhenFull::Wait);
        }
    }

    /// Forgets windows that no copy uses, or waits for the end of a copy. Says whether asking again can succeed.
    fn make_room(&self) -> bool {
        loop {
            let seen = self.flow.seen();
            let (forgotten, copying, first_deadline) = {
                let mut state = self.state();
                let before = state.windows.len();
                state
                    .windows
                    .retain(|_, window| Arc::strong_count(window) > 1);
                let owes = matches!(&state.link, LinkState::Open(link) if link.owes_detach());
                let forgotten = state.windows.len() < before
                    || owes
                    || state.closed
                    || state.waiting.is_empty();
                (
                    forgotten,
                    self.flow.unfinished() > state.waiting.len(),
                    state.first_deadline(),
                )
            };
            if forgotten || !copying {
                return forgotten;
            }
            if !self.flow.wait(seen, first_deadline) {
                // At a deadline the late jobs are ended first.
                return true;
            }
        }
    }

    /// The process cannot be reached: waiting jobs and requests go to the fallback.
    fn shut(self: &Arc<Self>, reason: String, until: Instant) {
        let (jobs, requests) = {
            let mut state = self.state();
            state.link = LinkState::Shut {
                reason: reason.clone(),
                until,
            };
            state.windows.clear();
            state.regions.clear();
            state.elsewhere.clear();
            (take(&mut state.waiting), take(&mut state.requests))
        };
        tracing::debug!(peer = %self.segment.name, reason, "no way over the host");
        for request in requests {
            match (&self.fallback, request) {
                (Some(fallback), ControlRequest::Notify(notice, part)) => {
                    fallback.notify(&self.segment, notice, part)
                }
                (Some(fallback), ControlRequest::Probe(deadline, part)) => {
                    fallback.probe(&self.segment, deadline, part)
                }
                (None, request) => request.fail(Cause::Unreachable(reason.clone())),
            }
        }
        self.forward(jobs, &reason, WhenFull::Wait);
    }

    /// Hands jobs to the fallback, if that reaches the peer.
    pub(super) fn forward(
        &self,
        jobs: VecDeque<(Job, FlowGuard)>,
        reason: &str,
        when_full: WhenFull,
    ) {
        if jobs.is_empty() {
            return;
        }
        let (jobs, tickets): (Vec<Job>, Vec<FlowGuard>) = jobs.into_iter().unzip();
        let Some(fallback) = self
            .fallback
            .as_ref()
            .filter(|fallback| fallback.reaches(&self.segment))
        else {
            jobs.into_iter()
                .for_each(|job| self.end(job, Err(Cause::Unreachable(reason.to_owned()))));
            return;
        };
        self.state().forwarded = true;
        let submission = Submission { jobs, when_full };
        for job in fallback.submit(&self.segment, submission) {
            self.end(job, Err(Cause::Unreachable(reason.to_owned())));
        }
        drop(tickets);
    }
}
impl ControlRequest {
    fn answered(self, noticed: bool) {
        match self {
            Self::Notify(_, part) if !noticed => part.fail(Cause::Refused(Refusal::Limit)),
            Self::Notify(_, part) | Self::Probe(_, part) => part.complete(0),
        }
    }

    /// The question ran into a deadline. A notice may have been delivered all the same, so it is not repeated.
    fn retry_or_fail(self, core: &Core) {
        match self {
            Self::Probe(deadline, part) if now() < deadline => {
                core.request(Self::Probe(deadline, part))
            }
            Self::Probe(_, part) => part.fail(Cause::TimedOut(Deadline::Total)),
            Self::Notify(_, part) => part.fail(Cause::TimedOut(Deadline::Acknowledgement)),
        }
    }

    pub(super) fn fail(self, cause: Cause) {
        match self {
            Self::Notify(_, part) | Self::Probe(_, part) => part.fail(cause),
        }
    }
}
