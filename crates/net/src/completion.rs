use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Something that happens once and that one thread waits for.
#[derive(Debug, Default)]
pub struct Completion {
    done: AtomicBool,
    waiting: Mutex<bool>,
    changed: Condvar,
}

impl Completion {
    /// Not yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It has happened. Costs no system call while nobody is parked.
    pub fn complete(&self) {
        self.done.store(true, Ordering::Release);
        if *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            self.changed.notify_all();
        }
    }

    /// Whether it has happened.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Parks until it has happened or `limit` has passed; whether it has happened.
    pub fn park(&self, limit: Duration) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = true;
        let (mut waiting, _) = self
            .changed
            .wait_timeout_while(waiting, limit, |_| !self.is_done())
            .unwrap_or_else(PoisonError::into_inner);
        *waiting = false;
        self.is_done()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_parked_thread_is_woken_and_a_late_one_does_not_park() {
        let completion = Arc::new(Completion::new());
        let parked = std::thread::spawn({
            let completion = Arc::clone(&completion);
            move || completion.park(Duration::from_secs(20))
        });
        completion.complete();
        assert!(parked.join().unwrap());
        assert!(completion.park(Duration::ZERO));
        assert!(!Completion::new().park(Duration::from_millis(1)));
    }
}
