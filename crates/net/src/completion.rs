use std::time::Duration;

use slackwater_wait::{Site, Waiting, Word, now};

/// Something that happens once and that one thread waits for.
#[derive(Debug)]
pub struct Completion(Word);

/// It has happened.
const DONE: u32 = 1 << 1;

static SITE: Site = Site::new("answer of a link");

impl Completion {
    /// Not yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Word::new(0))
    }

    /// It has happened. Costs no system call while nobody is parked.
    pub fn complete(&self) {
        let before = self.0.set(DONE);
        self.0.wake(before);
    }

    /// Whether it has happened.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.load() & DONE != 0
    }

    /// Waits until it has happened or `limit` has passed; whether it has happened.
    pub fn park(&self, limit: Duration) -> bool {
        self.0
            .wait(&Waiting::at(&SITE).until(now() + limit), |value| {
                value & DONE != 0
            })
    }
}

impl Default for Completion {
    fn default() -> Self {
        Self::new()
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
