//! Callers that want windows while another caller's question is under way. The next caller to ask asks for all of them, so
//! that one answer of the owner serves a crowd (flat combining: Hendler et al., SPAA 2010).
//!
//! No caller sleeps while the link is free and nobody is told. A caller joins the queue before it tries for the turn, and the
//! holder of the turn gives it up before it looks into the queue: so either the try succeeds, or that look finds the caller.
//! What is put back is in the queue before the turn is given up. The first in the queue, once told, takes the turn, or finds
//! another holder, which will tell in its place, or gives up its place and tells the next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, Park, Seen, Site, Waiting};
use slackwater_wire::data::{Capability, Rights};

use super::link::WindowError;
use super::window::OpenWindow;

pub(crate) static TURN: Site = Site::new("host question");

type Opened = Result<OpenWindow, WindowError>;

/// The callers that wait, the first to come first.
#[derive(Default)]
pub(super) struct Askers(Mutex<VecDeque<Arc<Asker>>>);

/// A caller that waits.
pub(super) struct Asker {
    pub(super) capability: Capability,
    opened: Mutex<Option<Opened>>,
    /// Notified when the caller was given a window, or has the turn to ask.
    told: Event,
    /// Whether the caller has stopped waiting. Written under the lock of the queue.
    left: AtomicBool,
}

impl Askers {
    /// A caller begins to wait for a window.
    pub(super) fn join(&self, capability: Capability) -> Arc<Asker> {
        let asker = Arc::new(Asker {
            capability,
            opened: Mutex::default(),
            told: Event::new(),
            left: AtomicBool::new(false),
        });
        self.queue().push_back(Arc::clone(&asker));
        asker
    }

    /// A caller stops to wait, and does not ask. It may have been told to, or been given a window, at the same moment.
    pub(super) fn give_up(&self, asker: &Arc<Asker>) -> Option<Opened> {
        self.leave(asker);
        self.next();
        asker.take()
    }

    /// A caller stops to wait. A window that comes all the same is given back.
    pub(super) fn leave(&self, asker: &Arc<Asker>) {
        let mut queue = self.queue();
        asker.left.store(true, Ordering::Relaxed);
        queue.retain(|it| !Arc::ptr_eq(it, asker));
    }

    /// Whether the holder of the turn is asking for this caller.
    pub(super) fn is_asked_for(&self, asker: &Arc<Asker>) -> bool {
        !self.queue().iter().any(|it| Arc::ptr_eq(it, asker))
    }

    /// Takes the first `count` that are to write: their windows are about to be asked for. A reader asks by itself: the window
    /// that it opens is on all of the region, and those that wait beside it look for that one when it is their turn.
    pub(super) fn take_writers(&self, count: usize) -> Vec<Arc<Asker>> {
        let mut queue = self.queue();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for asker in queue.drain(..) {
            let writes = asker.capability.claims().rights.allow(Rights::WRITE);
            match writes && taken.len() < count {
                true => taken.push(asker),
                false => left.push_back(asker),
            }
        }
        *queue = left;
        taken
    }

    /// Callers that were not answered: each asks as its turn comes.
    pub(super) fn put_back(&self, askers: Vec<Arc<Asker>>) {
        let mut queue = self.queue();
        for asker in askers.into_iter().rev() {
            if !asker.left.load(Ordering::Relaxed) {
                queue.push_front(asker);
            }
        }
    }

    /// Tells the first that nobody has the turn.
    pub(super) fn next(&self) {
        let first = self.queue().front().map(Arc::clone);
        if let Some(first) = first {
            first.told.notify(1);
        }
    }

    /// How many wait, and have found that it is not their turn.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> usize {
        let queue = self.queue();
        queue.iter().filter(|it| it.told.sleepers() > 0).count()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Arc<Asker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asker {
    /// Hands over the window, or why there is none.
    pub(super) fn give(&self, opened: Opened) {
        *self.opened() = Some(opened);
        self.told.notify(1);
    }

    /// What was handed over.
    pub(super) fn take(&self) -> Option<Opened> {
        self.opened().take()
    }

    /// To be taken before a look at what [`Asker::wait`] waits for.
    pub(super) fn seen(&self) -> Seen {
        self.told.seen()
    }

    /// Waits for a hand-over or the turn; whether that came in time.
    pub(super) fn wait(&self, seen: Seen, until: Instant) -> bool {
        let waiting = Waiting::at(&TURN).by(&Park).until(until);
        self.told.wait(seen, &waiting).is_ok()
    }

    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::Incarnation;
    use slackwater_wire::data::{CapabilityKey, Grant};

    use super::*;

    fn capability(rights: Rights) -> Capability {
        CapabilityKey::new(&[0; 32]).mint(&Grant {
            incarnation: Incarnation(1),
            region: 0,
            generation: 0,
            offset: 0,
            bytes: 8,
            rights,
            tenant: 0,
            holder: Incarnation(0),
            expires_nanos: u64::MAX,
            nonce: 0,
        })
    }

    #[test]
    fn one_that_gives_up_takes_neither_the_turn_nor_a_window_with_it() {
        let askers = Askers::default();
        let [first, second] = [(); 2].map(|()| askers.join(capability(Rights::BOTH)));
        askers.next();
        let seen = second.seen();
        assert!(askers.give_up(&first).is_none());
        assert_ne!(second.seen(), seen, "it is the next one's turn");
        second.give(Err(WindowError::NoSlot));
        let given = askers.give_up(&second);
        assert!(matches!(given, Some(Err(WindowError::NoSlot))));
    }

    /// One that had left while it was asked for came back into the queue: it was told that it was its turn, and nobody asked.
    #[test]
    fn one_that_has_left_is_not_put_back() {
        let askers = Askers::default();
        let [first, second, third] = [(); 3].map(|()| askers.join(capability(Rights::BOTH)));
        let taken = askers.take_writers(2);
        assert!(askers.is_asked_for(&first) && !askers.is_asked_for(&third));
        askers.leave(&first);
        let seen = [&first, &second, &third].map(|asker| asker.seen());
        askers.put_back(taken);
        askers.next();
        let told = [&first, &second, &third].map(|asker| asker.told.seen());
        assert_eq!((told[0], told[2]), (seen[0], seen[2]));
        assert_ne!(told[1], seen[1], "it comes before those that came later");
        askers.leave(&second);
        askers.leave(&third);
        assert!(askers.take_writers(1).is_empty());
    }

    /// Readers of one region that were asked for together were told that the window before theirs is on all of it, before its
    /// opener could find it; each had another thread ask again.
    #[test]
    fn readers_are_left_to_ask() {
        let askers = Askers::default();
        let rights = [Rights::READ, Rights::BOTH, Rights::READ, Rights::WRITE];
        let joined = rights.map(|rights| askers.join(capability(rights)));
        let taken = askers.take_writers(8);
        let asked_for = joined.each_ref().map(|asker| askers.is_asked_for(asker));
        assert_eq!((taken.len(), asked_for), (2, [false, true, false, true]));
        assert!(Arc::ptr_eq(&taken[0], &joined[1]), "in their order");
    }
}
