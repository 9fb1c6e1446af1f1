use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::data::{Capability, Refusal};

use super::core::{Core, Way};
use super::link::{Link, NoWindow, Opened};
use super::message::ATTACH_MAX;
use crate::batch::Part;
use crate::cause::{Cause, Clock};
use crate::flow::Ticket;
use crate::job::Job;
use crate::mover::{Notice, Submission, WhenFull};

/// Something to ask that is no copy.
pub(super) enum Errand {
    Notify(Notice, Part),
    Probe(Instant, Part),
}
static COURIER: Site = Site::new("host courier");
impl Core {
    /// The courier: asks what is to be asked, until the peer is closed.
    pub(super) fn run(self: Arc<Self>) {
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

    pub(super) fn fail(self, cause: Cause) {
        match self {
            Self::Notify(_, part) | Self::Probe(_, part) => part.fail(cause),
        }
    }
}
