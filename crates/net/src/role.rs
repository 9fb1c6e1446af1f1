use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who polls a loop: its own thread, a waiting caller, or for a moment nobody. See `DRIVE.md`.
#[derive(Debug)]
pub(crate) struct Role {
    state: Mutex<State>,
    changed: Condvar,
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
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// For the loop's thread: waits until the role is its own. False when the loop stops.
    pub(crate) fn take_background(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return false;
            }
            let leased = state.released.is_some_and(|at| at.elapsed() < LEASE) && state.parked_callers == 0;
            if state.holder == Holder::Nobody && !state.wanted && !leased {
                state.holder = Holder::Background;
                return true;
            }
            let grants = state.grants;
            let (after, looked) = self.changed.wait_timeout(state, LEASE).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if looked.timed_out() && state.holder == Holder::Caller && state.grants == grants {
                state.tell_background = true;
                while state.tell_background && !state.stopped {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
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
        self.changed.notify_all();
        false
    }

    /// For a caller: takes the role if it is free or the loop's thread lets go of it, for which `kick` must make it
    /// look. False when another caller has it, or when calls come too rarely for the take-over to pay.
    pub(crate) fn take_caller(&self, kick: impl FnOnce()) -> bool {
        let mut state = self.lock();
        let recent = state.released.is_some_and(|at| at.elapsed() < LEASE);
        if state.holder == Holder::Caller || state.wanted || state.stopped {
            return false;
        }
        if state.holder == Holder::Background {
            if !recent {
                state.released = Some(Instant::now());
                return false;
            }
            state.wanted = true;
            kick();
            while state.holder == Holder::Background && !state.stopped {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.wanted = false;
        }
        state.holder = Holder::Caller;
        state.grants += 1;
        true
    }

    pub(crate) fn release_caller(&self) {
        let mut state = self.lock();
        state.holder = Holder::Nobody;
        state.released = Some(Instant::now());
        if state.tell_background || state.parked_callers > 0 || state.stopped {
            state.tell_background = false;
            self.changed.notify_all();
        }
    }

    /// A caller parks elsewhere: the role must not stay free after the one who has it.
    pub(crate) fn park_begins(&self) {
        let mut state = self.lock();
        state.parked_callers += 1;
        if state.holder == Holder::Nobody {
            self.changed.notify_all();
        }
    }

    pub(crate) fn park_ends(&self) {
        let mut state = self.lock();
        state.parked_callers -= 1;
        // The next call of a lone caller that was just answered may turn the loop itself.
        state.released = Some(Instant::now());
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
