//! Callers that want windows while another one's question is under way. The next caller to ask asks for all of them, so that
//! one answer of the owner serves a crowd (flat combining: Hendler et al., SPAA 2010).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, Park, Seen, Site, Waiting};
use slackwater_wire::data::Capability;

use super::link::WindowError;
use super::window::OpenWindow;

type Opened = Result<OpenWindow, WindowError>;

/// Those that wait, the first to come first.
#[derive(Default)]
pub(super) struct Askers(Mutex<VecDeque<Arc<Asker>>>);

/// One of them.
pub(super) struct Asker {
    pub(super) capability: Capability,
    opened: Mutex<Option<Opened>>,
    /// It has its window, or it is its turn to ask.
    told: Event,
    /// It waits no more. Written under the lock of the queue.
    left: AtomicBool,
}

pub(crate) static TURN: Site = Site::new("host question");

impl Askers {
    /// Waits from now on for a window.
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

    /// Waits no more, and does not ask. It may have been told that it is its turn, or been given a window, at the same moment.
    pub(super) fn give_up(&self, asker: &Arc<Asker>) -> Option<Opened> {
        self.leave(asker);
        self.next();
        asker.take()
    }

    /// Waits no more. A window that comes all the same is given back. Says whether nobody was asking for this one.
    pub(super) fn leave(&self, asker: &Arc<Asker>) -> bool {
        let mut queue = self.queue();
        let place = queue.iter().position(|it| Arc::ptr_eq(it, asker));
        asker.left.store(true, Ordering::Relaxed);
        place.and_then(|at| queue.remove(at)).is_some()
    }

    /// Whether somebody is asking for this one.
    pub(super) fn is_asked_for(&self, asker: &Arc<Asker>) -> bool {
        !self.queue().iter().any(|it| Arc::ptr_eq(it, asker))
    }

    /// Takes the first `count`: their windows are about to be asked for.
    pub(super) fn take(&self, count: usize) -> Vec<Arc<Asker>> {
        let mut queue = self.queue();
        let count = count.min(queue.len());
        queue.drain(..count).collect()
    }

    /// They were not answered, and ask for themselves as their turns come.
    pub(super) fn put_back(&self, askers: Vec<Arc<Asker>>) {
        let mut queue = self.queue();
        for asker in askers.into_iter().rev() {
            if !asker.left.load(Ordering::Relaxed) {
                queue.push_front(asker);
            }
        }
    }

    /// Nobody asks now: the first may.
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
    /// Its window, or why it has none.
    pub(super) fn give(&self, opened: Opened) {
        *self.opened() = Some(opened);
        self.told.notify(1);
    }

    /// What it was given.
    pub(super) fn take(&self) -> Option<Opened> {
        self.opened().take()
    }

    /// To be taken before a look at what [`Asker::wait`] waits for.
    pub(super) fn seen(&self) -> Seen {
        self.told.seen()
    }

    /// Waits until it is given something, or it is its turn; whether that came in time.
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
    use slackwater_wire::data::Capability;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn one_that_gives_up_takes_neither_the_turn_nor_a_window_with_it() {
        let askers = Askers::default();
        let [first, second] = [(); 2].map(|()| askers.join(Capability::new_zeroed()));
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
        let [first, second, third] = [(); 3].map(|()| askers.join(Capability::new_zeroed()));
        let taken = askers.take(2);
        assert!(askers.is_asked_for(&first) && !askers.is_asked_for(&third));
        assert!(!askers.leave(&first), "somebody asks for it");
        let seen = [&first, &second, &third].map(|asker| asker.seen());
        askers.put_back(taken);
        askers.next();
        let told = [&first, &second, &third].map(|asker| asker.told.seen());
        assert_eq!((told[0], told[2]), (seen[0], seen[2]));
        assert_ne!(told[1], seen[1], "it comes before those that came later");
        assert!(askers.leave(&second) && askers.leave(&third));
        assert!(askers.take(1).is_empty());
    }
}
