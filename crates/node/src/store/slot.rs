use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// One value that one thread waits for and another brings.
#[derive(Debug)]
pub(super) struct Slot<T> {
    value: Mutex<Option<T>>,
    filled: Condvar,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self { value: Mutex::new(None), filled: Condvar::new() }
    }

    /// Brings the value. A second one is dropped: the first is the answer.
    pub(super) fn fill(&self, value: T) {
        let mut place = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(value);
        drop(place);
        self.filled.notify_one();
    }

    /// Waits for the value.
    pub(super) fn wait(&self) -> T {
        let place = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.filled.wait_while(place, |value| value.is_none());
        let taken = waited.unwrap_or_else(PoisonError::into_inner).take();
        taken.expect("the wait ends when there is a value")
    }

    /// Waits for the value, at most `longest`.
    pub(super) fn wait_for(&self, longest: Duration) -> Option<T> {
        let place = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.filled.wait_timeout_while(place, longest, |value| value.is_none());
        let (mut place, _) = waited.unwrap_or_else(PoisonError::into_inner);
        place.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_value_reaches_its_waiter() {
        let slot = Arc::new(Slot::new());
        assert_eq!(slot.wait_for(Duration::ZERO), None);
        let other = Arc::clone(&slot);
        let bringer = std::thread::spawn(move || {
            other.fill(7);
            other.fill(8);
        });
        assert_eq!(slot.wait(), 7);
        bringer.join().unwrap();
    }
}
