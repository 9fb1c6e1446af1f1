use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::{Ended, Event, Park, Seen, Site, Waiting, now};

/// The role of a loop's poller: held by its own thread, by a waiting caller, or for a moment by none. See `DRIVE.md`.
#[derive(Debug)]
pub(crate) struct Role {
    state: Mutex<State>,
    /// Notified after a change of the state, outside of the lock.
    changed: Event,
}

#[derive(Debug)]
struct State {
    holder: Holder,
    /// A caller waits for the background thread to let go.
    wanted: bool,
    /// The background thread sleeps until it is told.
    tell_background: bool,
    parked_callers: usize,
    grants: u64,
    released: Option<Instant>,
    stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Background,
    Caller,
}

pub(crate) static BACKGROUND: Site = Site::new("role of a loop, its thread");
pub(crate) static CALLER: Site = Site::new("role of a loop, caller");

/// How long after a caller's last turn the role stays free for its next one.
const LEASE: Duration = Duration::from_millis(1);

impl Role {
    pub(crate) fn new() -> Self {
        let state = State {
            holder: Holder::Nobody,
            wanted: false,
            tell_background: false,
            parked_callers: 0,
            grants: 0,
            released: None,
            stopped: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Event::new(),
        }
    }

    /// For the loop's thread: waits until the role is its own. False when the loop stops.
    pub(crate) fn take_background(&self) -> bool {
        loop {
            let (seen, mut state) = self.look();
            if state.stopped {
                return false;
            }
            let leased = state.was_released_lately() && state.parked_callers == 0;
            if state.holder == Holder::Nobody && !state.wanted && !leased {
                state.holder = Holder::Background;
                return true;
            }
            let grants = state.grants;
            drop(state);
            // No thread waits for this one, so it does not spin for the role.
            let waiting = Waiting::at(&BACKGROUND).by(&Park);
            let looked = self.changed.wait(seen, &waiting.until(now() + LEASE));
            let mut state = self.lock();
            if looked == Err(Ended::TimedOut)
                && state.holder == Holder::Caller
                && state.grants == grants
            {
                state.tell_background = true;
                drop(state);
                drop(self.until(&waiting, |state| !state.tell_background || state.stopped));
            }
        }
    }

    /// For the loop's thread, after a turn: whether it keeps the role.
    pub(crate) fn keep_background(&self) -> bool {
        let mut state = self.lock();
        if !state.wanted && !state.stopped {
            return true;
        }
        state.holder = Holder::Nobody;
        drop(state);
        self.changed.notify_all();
        false
    }

    /// For a caller: takes the role if it is free or the loop's thread lets go of it, for which `kick` must make it
    /// look. False when another caller has it, or when calls come too rarely for the take-over to pay.
    pub(crate) fn take_caller(&self, kick: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if state.holder == Holder::Caller || state.wanted || state.stopped {
            return false;
        }
        if state.holder == Holder::Background {
            if !state.was_released_lately() {
                state.released = Some(now());
                return false;
            }
            state.wanted = true;
            drop(state);
            kick();
            state = self.until(&Waiting::at(&CALLER), |state| {
                state.holder != Holder::Background || state.stopped
            });
            state.wanted = false;
        }
        state.holder = Holder::Caller;
        state.grants += 1;
        true
    }

    pub(crate) fn release_caller(&self) {
        let mut state = self.lock();
        state.holder = Holder::Nobody;
        state.released = Some(now());
        if state.tell_background || state.parked_callers > 0 || state.stopped {
            state.tell_background = false;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// A caller parks elsewhere: the role must not stay free after the one who has it.
    pub(crate) fn park_begins(&self) {
        let mut state = self.lock();
        state.parked_callers += 1;
        if state.holder == Holder::Nobody {
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(crate) fn park_ends(&self) {
        let mut state = self.lock();
        state.parked_callers -= 1;
        // The next call of a lone caller that was just answered may turn the loop itself.
        state.released = Some(now());
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// The state, and what to wait after if it is not as wanted.
    fn look(&self) -> (Seen, MutexGuard<'_, State>) {
        let seen = self.changed.seen();
        (seen, self.lock())
    }

    /// Waits until `wanted` holds.
    fn until(
        &self,
        waiting: &Waiting<'_>,
        wanted: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        loop {
            let (seen, state) = self.look();
            if wanted(&state) {
                return state;
            }
            drop(state);
            // Never closed and without a deadline: it ends with a notification.
            let _ = self.changed.wait(seen, waiting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a caller had its last turn within the lease.
    fn was_released_lately(&self) -> bool {
        self.released.is_some_and(|at| now().since(at) < LEASE)
    }
}
