mod exchange;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_engine::Notice;
use slackwater_memory::RefusedMemory;
use slackwater_wait::now;
use slackwater_wire::data::{Capability, Refusal};
use thiserror::Error;
use zerocopy::byteorder::little_endian::U32;

use self::exchange::Exchange;
use super::askers::{Asker, Askers};
use super::message::{ATTACH_MAX, Detach};
use super::opening::{Greeted, LinkError, LinkTarget, greet};
use super::packets::Packets;
use super::page::ControlPage;
use super::process::Process;
use super::service::Service;
use super::watched::Watched;
use super::window::OpenWindow;

/// Why a window could not be attached.
#[derive(Debug, Error)]
pub(crate) enum WindowError {
    /// The owner refused the capability.
    #[error(transparent)]
    Refused(Refusal),
    /// The owner's control page has no slot left.
    #[error("no window left on the link")]
    NoSlot,
    /// Another window of the same answer is on all of the region.
    #[error("the window before it is on the whole region")]
    Before,
    /// No answer came in time.
    #[error("no answer in time")]
    TimedOut,
    /// The owner has ended.
    #[error("the process is gone")]
    Gone,
    /// The owner has ended the link, and said why.
    #[error("turned away: {0}")]
    TurnedAway(&'static str),
    /// The window lies in the owner's own memory, which this process may not reach.
    #[error("memory is not shared, and cannot be attached: {0}")]
    NoAttach(String),
    /// The shared memory was refused.
    #[error("shared memory: {0}")]
    Memory(#[from] RefusedMemory),
    /// The answer is not one of this protocol, and the link cannot be used any more; or one entry of it is none, and the
    /// others are.
    #[error("no answer of this protocol")]
    Garbled,
}

/// The initiator's side of a connection to a process of the same host, whose memory it reads and writes itself.
pub(crate) struct Link {
    packets: Packets,
    page: ControlPage,
    /// The process, or why its private memory cannot be reached.
    process: Result<Process, String>,
    watched: Arc<Watched>,
    service: Weak<Service>,
    token: u64,
    exchange: Mutex<Exchange>,
    /// Callers that found a question under way.
    askers: Askers,
    /// Windows that are no longer used; the next question tells the owner.
    detached: Mutex<Vec<Detach>>,
}

/// The right to ask. When it is dropped the first that waits for it is told.
pub(crate) struct Turn<'a> {
    exchange: Option<MutexGuard<'a, Exchange>>,
    askers: &'a Askers,
}

/// How a caller gets a window.
pub(crate) enum Asked<'a, W> {
    /// There was one when it was the caller's turn.
    Known(W),
    /// The owner has answered, and the turn is the caller's if it asked by itself: who has the next one looks for the window
    /// first, so this is to be kept before the turn ends.
    Answered(Result<OpenWindow, WindowError>, Option<Turn<'a>>),
}

impl Deref for Turn<'_> {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        self.exchange.as_ref().expect("held until the drop")
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Exchange {
        self.exchange.as_mut().expect("held until the drop")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // First, or the one that is woken finds it held.
        drop(self.exchange.take());
        self.askers.next();
    }
}

/// By so much a process ends after the last of its sockets, and far more.
const EXIT_TIME: Duration = Duration::from_millis(500);

/// A question that is asked later than this before its deadline would only leave an answer that nobody takes.
const ANSWER_TIME: Duration = Duration::from_millis(2);

impl Link {
    /// Opens a link to a process; `gone` is called once when that ends.
    pub(crate) fn open(
        service: &Arc<Service>,
        call: &LinkTarget<'_>,
        gone: impl Fn() + Send + Sync + 'static,
    ) -> Result<Arc<Self>, LinkError> {
        let Greeted {
            packets,
            page,
            process,
            seal,
        } = greet(service, call)?;
        let watched = Watched::new(gone);
        let token = service.watch(&packets, &watched)?;
        Ok(Arc::new(Self {
            packets,
            page,
            process,
            watched,
            service: Arc::downgrade(service),
            token,
            exchange: Mutex::new(Exchange::new(seal)),
            askers: Askers::default(),
            detached: Mutex::default(),
        }))
    }

    /// Whether the peer has ended or closed the link.
    pub(crate) fn is_gone(&self) -> bool {
        self.watched.is_gone()
    }

    /// Whether the process at the other end of a link that is gone has ended. One that lives may have shown this one out, or have
    /// closed its engine; of one that is out of sight nothing is known.
    pub(crate) fn has_ended(&self) -> bool {
        let ends = |process: &Process| process.ends_within(EXIT_TIME).unwrap_or(false);
        self.is_gone() && self.process.as_ref().is_ok_and(ends)
    }

    /// Why memory that is not shared cannot be reached, if it cannot.
    pub(crate) fn no_attach(&self) -> Option<&str> {
        self.process.as_ref().err().map(String::as_str)
    }

    /// Whether the owner has still to be told of unused windows.
    pub(crate) fn owes_detach(&self) -> bool {
        !self.detached().is_empty()
    }

    /// Sends bytes that are not a question.
    #[cfg(test)]
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        self.packets
            .send(&[bytes], &[])
            .expect("the owner takes it");
    }

    /// The windows on this link, as their owner sees them.
    pub(crate) fn page(&self) -> &ControlPage {
        &self.page
    }

    /// The process itself, or why its own memory is out of reach.
    pub(crate) fn process(&self) -> Result<&Process, &str> {
        self.process.as_ref().map_err(String::as_str)
    }

    /// Lets the next question tell the owner that a window is no longer used.
    pub(crate) fn detach(&self, slot: u32, epoch: u32) {
        self.detached().push(Detach {
            slot: U32::new(slot),
            epoch: U32::new(epoch),
        });
    }

    fn detached(&self) -> MutexGuard<'_, Vec<Detach>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows capabilities to their owner and opens windows: one result for each. Also says whether the notice, if there
    /// is one, was delivered. Without either it asks whether the owner is alive.
    pub(crate) fn ask(
        self: &Arc<Self>,
        capabilities: &[Capability],
        notice: Option<&Notice>,
        deadline: Instant,
    ) -> Result<(Vec<Result<OpenWindow, WindowError>>, bool), WindowError> {
        self.exchange(&mut self.turn(), capabilities, notice, deadline)
    }

    /// [`Link::ask`] for one window, and for those that wait meanwhile, unless `known` finds a window when it is this caller's
    /// turn. None where the questions of others take until the deadline.
    pub(crate) fn ask_by<W>(
        self: &Arc<Self>,
        capability: Capability,
        deadline: Instant,
        known: impl Fn() -> Option<W>,
    ) -> Option<Asked<'_, W>> {
        if let Some(turn) = self.free_turn() {
            return Some(self.ask_for_all(turn, capability, deadline, known));
        }
        let asker = self.askers.join(capability);
        let asked = self.wait_to_ask(&asker, deadline, known);
        asked.or_else(|| {
            let opened = self.askers.give_up(&asker)?;
            Some(Asked::Answered(opened, None))
        })
    }

    fn wait_to_ask<W>(
        self: &Arc<Self>,
        asker: &Arc<Asker>,
        deadline: Instant,
        known: impl Fn() -> Option<W>,
    ) -> Option<Asked<'_, W>> {
        let last_turn = deadline - ANSWER_TIME;
        loop {
            let seen = asker.seen();
            if let Some(opened) = asker.take() {
                return Some(Asked::Answered(opened, None));
            }
            let is_asked_for = self.askers.is_asked_for(asker);
            if !is_asked_for && let Some(turn) = self.free_turn() {
                // The holder before may have asked for this caller too.
                self.askers.leave(asker);
                return Some(match asker.take() {
                    Some(opened) => Asked::Answered(opened, None),
                    None => self.ask_for_all(turn, asker.capability, deadline, known),
                });
            }
            let until = if is_asked_for { deadline } else { last_turn };
            if !asker.wait(seen, until) && (is_asked_for || !self.askers.is_asked_for(asker)) {
                return None;
            }
        }
    }

    fn ask_for_all<'a, W>(
        self: &'a Arc<Self>,
        mut turn: Turn<'a>,
        capability: Capability,
        deadline: Instant,
        known: impl Fn() -> Option<W>,
    ) -> Asked<'a, W> {
        if let Some(window) = known() {
            return Asked::Known(window);
        }
        // Who has no time for an answer would open windows for the others that nobody takes.
        let has_time = now() + ANSWER_TIME <= deadline;
        let others = match has_time {
            true => self.askers.take_writers(ATTACH_MAX - 1),
            false => Vec::new(),
        };
        let mut capabilities = vec![capability];
        capabilities.extend(others.iter().map(|asker| asker.capability));
        let own = match self.exchange(&mut turn, &capabilities, None, deadline) {
            Ok((opened, _)) => {
                let mut opened = opened.into_iter();
                let own = opened.next();
                let given = others.iter().zip(opened);
                given.for_each(|(asker, opened)| asker.give(opened));
                own.unwrap_or(Err(WindowError::Garbled))
            }
            Err(error) => {
                self.askers.put_back(others);
                Err(error)
            }
        };
        Asked::Answered(own, Some(turn))
    }

    /// One that waits until another asks for it, and never asks.
    #[cfg(test)]
    pub(crate) fn join(&self, capability: Capability) -> impl Sized {
        self.askers.join(capability)
    }

    /// How many wait for their turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.askers.asleep()
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        self.turn_with(self.exchange.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The right to ask, if nobody has it.
    fn free_turn(&self) -> Option<Turn<'_>> {
        match self.exchange.try_lock() {
            Ok(exchange) => Some(self.turn_with(exchange)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.turn_with(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn turn_with<'a>(&'a self, exchange: MutexGuard<'a, Exchange>) -> Turn<'a> {
        Turn {
            exchange: Some(exchange),
            askers: &self.askers,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(service) = self.service.upgrade() {
            service.unwatch(self.token);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("gone", &self.is_gone())
            .field("attach", &self.process.is_ok())
            .finish_non_exhaustive()
    }
}
