//! Carries out what flows want until they have their outcomes.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::task::Poll;

use slackwater_base::Instant;
use slackwater_client::{Action, Answer, CallFlow, GetFlow, PutFlow};
use slackwater_transfer::Capability;
use slackwater_wait::{Event, Park, Site, Waiting, now};
use slackwater_wire::{Answered, ExtentRef, OperationId, Reply, Request};

use crate::link::{Link, Unanswered, UnderWay};
use crate::tells::Telling;
use crate::waits::{Caller, Waits};

/// What all flows have in common.
pub(crate) trait Flow: Send {
    fn on_reply(&mut self, now: Instant, of: OperationId, reply: Reply, out: &mut Vec<Action>);
    fn on_link_lost(&mut self, now: Instant, out: &mut Vec<Action>);
    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>);
    fn cancel(&mut self, out: &mut Vec<Action>);
    fn next_deadline(&self) -> Option<Instant>;
    fn is_over(&self) -> bool;
}

/// Moves the bytes of a flow.
pub(crate) trait Carry<F>: Send {
    /// A request is about to be sent, for the first time or again.
    fn asks(&mut self, operation: OperationId, request: &Request) {
        let _ = (operation, request);
    }
    /// The rights to the extents of a reply that the flow is about to be given.
    fn granted(&mut self, request: &Request, reply: &Reply, extents: Vec<(ExtentRef, Capability)>);
    /// Moves the bytes of these [`Action::Read`]s or [`Action::Write`]s together, and tells the flow how each ended.
    fn carry(
        &mut self,
        flow: &mut F,
        moves: Vec<Action>,
        out: &mut Vec<Action>,
    ) -> impl Future<Output = ()> + Send;
    /// Tells the flow that the movement of an item, which has not begun, is cancelled.
    fn cancelled(&mut self, flow: &mut F, index: usize, out: &mut Vec<Action>);
}

/// How a flow is driven.
pub(crate) struct Drive<'a> {
    pub(crate) link: &'a Link,
    pub(crate) telling: &'a Telling,
    pub(crate) caller: Caller<'a>,
}

static PAUSE: Site = Site::new("client, pause");

impl<'a> Drive<'a> {
    /// Runs a flow that has begun with these actions. Returns when it has its outcomes: then nothing moves any more.
    pub(crate) async fn run<F: Flow>(
        &self,
        flow: &mut F,
        begun: Vec<Action>,
        carry: &mut impl Carry<F>,
    ) {
        let mut queue = VecDeque::from(begun);
        let mut given_up = false;
        loop {
            let mut out = Vec::new();
            if !given_up && self.caller.is_cancelled() {
                given_up = true;
                flow.cancel(&mut out);
            } else if queue.front().is_some_and(is_move) {
                let others = queue.iter().position(|queued| !is_move(queued));
                let moves = queue.drain(..others.unwrap_or(queue.len()));
                carry.carry(flow, moves.collect(), &mut out).await;
            } else if let Some(action) = queue.pop_front() {
                self.act(flow, action, carry, &mut out).await;
            } else if flow.is_over() {
                return;
            } else {
                let at = flow.next_deadline().unwrap_or_else(now);
                self.pause(at).await;
            }
            if flow.next_deadline().is_some_and(|at| at <= now()) {
                flow.on_deadline(now(), &mut out);
            }
            for action in out {
                enter(flow, action, carry, &mut queue);
            }
        }
    }

    async fn act<F: Flow>(
        &self,
        flow: &mut F,
        action: Action,
        carry: &mut impl Carry<F>,
        out: &mut Vec<Action>,
    ) {
        match action {
            Action::Ask { operation, request } => {
                let Some(until) = flow.next_deadline() else {
                    return;
                };
                carry.asks(operation, &request);
                let answer = self.link.ask(operation, &request, until, self.caller);
                let answer = answer.await;
                heard(flow, operation, &request, answer, carry, out);
            }
            Action::Tell { operation, request } => self.telling.tell(operation, request),
            Action::Read { .. } | Action::Write { .. } | Action::Cancel { .. } => {
                unreachable!("movements are made together, and a cancellation is not queued")
            }
        }
    }

    /// Sends the request that a call begins with, unless the call is cancelled.
    pub(crate) fn send(&self, flow: CallFlow, begun: Vec<Action>) -> Sent<'a> {
        let until = flow.next_deadline();
        let is_cancelled = self.caller.is_cancelled();
        let asked = begun.into_iter().find_map(|action| match action {
            Action::Ask { operation, request } if !is_cancelled => {
                let under_way = self.link.send(operation, &request, until?, self.caller);
                Some((operation, request, under_way))
            }
            _ => None,
        });
        Sent { flow, asked }
    }

    /// Waits for the answer to a call that was sent, and goes on with the call where that is not its end.
    pub(crate) async fn hear(&self, sent: Sent<'_>) -> Option<Answer> {
        let Sent { mut flow, asked } = sent;
        let mut out = Vec::new();
        if let Some((operation, request, under_way)) = asked {
            let answer = match under_way {
                Ok(sent) => self.link.hear(sent).await,
                Err(unanswered) => Err(unanswered),
            };
            heard(
                &mut flow,
                operation,
                &request,
                answer,
                &mut Nothing,
                &mut out,
            );
        }
        self.run(&mut flow, out, &mut Nothing).await;
        flow.into_answer()
    }

    /// Waits until then, or until the caller cancels.
    async fn pause(&self, until: Instant) {
        match (self.caller.waits, self.caller.cancel) {
            (Waits::Task, cancel) => {
                let sleeper = self.telling.sleeper(until);
                let ends = cancel.map(|cancel| {
                    let slot = sleeper.slot();
                    cancel.ends(move || slot.wake())
                });
                let pause = poll_fn(|context| {
                    // Before the look: who comes after it wakes this task.
                    sleeper.wakes(context.waker());
                    match now() >= until || self.caller.is_cancelled() {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                });
                pause.await;
                drop((ends, sleeper));
            }
            (Waits::Thread, Some(cancel)) => cancel.pause(until),
            (Waits::Thread, None) => {
                let event = Event::new();
                let waiting = Waiting::at(&PAUSE).by(&Park).until(until);
                // Nobody notifies: it ends at its deadline.
                let _ = event.wait(event.seen(), &waiting);
            }
        }
    }
}

/// A call whose first request was sent.
pub(crate) struct Sent<'a> {
    flow: CallFlow,
    asked: Option<(OperationId, Request, Result<UnderWay<'a>, Unanswered>)>,
}

/// Tells a flow what came of a request.
fn heard<F: Flow>(
    flow: &mut F,
    operation: OperationId,
    request: &Request,
    answer: Result<Answered, Unanswered>,
    carry: &mut impl Carry<F>,
    out: &mut Vec<Action>,
) {
    match answer {
        Ok(answered) => {
            let Answered {
                reply,
                capabilities,
                ..
            } = answered;
            carry.granted(request, &reply, rights(&reply, capabilities));
            flow.on_reply(now(), operation, reply, out);
        }
        Err(Unanswered::Refused(code)) => {
            flow.on_reply(now(), operation, Reply::Failed(code), out);
        }
        Err(Unanswered::Foreign(what)) => {
            tracing::warn!(what, "an answer that this release does not understand");
            let failed = Reply::Failed(slackwater_wire::ErrorCode::DeserializeFail);
            flow.on_reply(now(), operation, failed, out);
        }
        Err(Unanswered::Lost) => flow.on_link_lost(now(), out),
        // The flow's deadline, or the cancellation, is what comes next.
        Err(Unanswered::Late | Unanswered::Cancelled) => {}
    }
}

/// The extents that a reply names, with the rights to them.
pub(crate) fn rights(reply: &Reply, capabilities: Vec<Capability>) -> Vec<(ExtentRef, Capability)> {
    let extents = reply.extents();
    let named = extents.iter().map(|named| named.extent);
    named.zip(capabilities).collect()
}

fn is_move(action: &Action) -> bool {
    matches!(action, Action::Read { .. } | Action::Write { .. })
}

/// Queues an action. A movement that is cancelled is in the queue still: those that were begun have ended.
fn enter<F>(flow: &mut F, action: Action, carry: &mut impl Carry<F>, queue: &mut VecDeque<Action>) {
    let Action::Cancel { index: cancelled } = action else {
        return queue.push_back(action);
    };
    queue.retain(|queued| match queued {
        Action::Read { index, .. } | Action::Write { index, .. } => *index != cancelled,
        _ => true,
    });
    let mut out = Vec::new();
    carry.cancelled(flow, cancelled, &mut out);
    for action in out {
        enter(flow, action, carry, queue);
    }
}

macro_rules! flows {
    ($($flow:ty),*) => {
        $(impl Flow for $flow {
            fn on_reply(&mut self, now: Instant, of: OperationId, reply: Reply, out: &mut Vec<Action>) {
                self.on_reply(now, of, reply, out);
            }

            fn on_link_lost(&mut self, now: Instant, out: &mut Vec<Action>) {
                self.on_link_lost(now, out);
            }

            fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
                self.on_deadline(now, out);
            }

            fn cancel(&mut self, out: &mut Vec<Action>) {
                self.cancel(out);
            }

            fn next_deadline(&self) -> Option<Instant> {
                self.next_deadline()
            }

            fn is_over(&self) -> bool {
                self.outcomes().is_some()
            }
        })*
    };
}

flows!(GetFlow, PutFlow);

impl Flow for CallFlow {
    fn on_reply(&mut self, now: Instant, of: OperationId, reply: Reply, _: &mut Vec<Action>) {
        self.on_reply(now, of, reply);
    }

    fn on_link_lost(&mut self, now: Instant, _: &mut Vec<Action>) {
        self.on_link_lost(now);
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.on_deadline(now, out);
    }

    fn cancel(&mut self, _: &mut Vec<Action>) {
        self.cancel();
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn is_over(&self) -> bool {
        self.answer().is_some()
    }
}

/// Calls move no bytes.
pub(crate) struct Nothing;

impl Carry<CallFlow> for Nothing {
    fn granted(&mut self, _: &Request, _: &Reply, _: Vec<(ExtentRef, Capability)>) {}

    async fn carry(&mut self, _: &mut CallFlow, _: Vec<Action>, _: &mut Vec<Action>) {
        unreachable!("a call moves no bytes")
    }

    fn cancelled(&mut self, _: &mut CallFlow, _: usize, _: &mut Vec<Action>) {}
}
