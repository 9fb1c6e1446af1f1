use slackwater_base::Instant;
use slackwater_wait::{Choice, Completer, Completion, Site, Stopped, Wait, Waiting};

use super::StoreError;

/// Something that is answered later than asked.
pub(crate) struct Later<T>(Completion<Result<T, StoreError>>);

/// The end that answers.
pub(crate) type Owed<T> = Completer<Result<T, StoreError>>;

impl<T> Later<T> {
    /// Both ends of one answer.
    pub(crate) fn new() -> (Owed<T>, Self) {
        let (owed, completion) = Completion::new();
        (owed, Self(completion))
    }

    /// Waits for the answer.
    pub(super) fn wait(self, waiting: &Waiting<'_>) -> Result<T, StoreError> {
        self.take(waiting)
            .expect("a wait without a deadline ends with an answer")
    }

    /// Waits for the answer, until `deadline` at most.
    pub(crate) fn wait_until(
        self,
        deadline: Instant,
        waiting: Waiting<'_>,
    ) -> Option<Result<T, StoreError>> {
        self.take(&waiting.until(deadline))
    }

    fn take(mut self, waiting: &Waiting<'_>) -> Option<Result<T, StoreError>> {
        match self.0.wait(waiting) {
            Ok(answer) => Some(answer),
            Err(Stopped::Failed(_)) => Some(Err(StoreError::Closed)),
            Err(Stopped::Ended(_)) => None,
        }
    }
}

/// How the threads of one store wait, and what for.
pub(super) struct Waits {
    pub(super) strategy: Box<dyn Wait>,
    /// A put for space.
    pub(super) space: Site,
    /// A put for its SSD copy.
    pub(super) durable: Site,
    /// Any other call for its answer.
    pub(super) answer: Site,
    /// A flush.
    pub(super) flush: Site,
    /// The opening of the log.
    pub(super) log: Site,
    /// The steward for the next deadline.
    pub(super) steward: Site,
}

impl Waits {
    pub(super) fn new(choice: Choice) -> Self {
        Self {
            strategy: choice.strategy(),
            space: Site::new("put, space"),
            durable: Site::new("put, durable"),
            answer: Site::new("call, answer"),
            flush: Site::new("flush"),
            log: Site::new("open, log"),
            steward: Site::new("steward, deadline"),
        }
    }

    /// A wait at one of the sites, by the strategy of the store.
    pub(super) fn at<'a>(&'a self, site: &'a Site) -> Waiting<'a> {
        Waiting::at(site).by(&*self.strategy)
    }

    pub(super) fn sites(&self) -> [&Site; 6] {
        [
            &self.space,
            &self.durable,
            &self.answer,
            &self.flush,
            &self.log,
            &self.steward,
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_wait::now;

    use super::*;

    #[test]
    fn an_answer_reaches_its_waiter_by_every_strategy() {
        for choice in [
            Choice::default(),
            Choice::Spin,
            Choice::Park,
            Choice::Sleep(Duration::from_micros(10)),
        ] {
            let waits = Waits::new(choice);
            let (owed, later) = Later::new();
            let bringer = std::thread::spawn(move || owed.complete(Ok(7)));
            assert_eq!(later.wait(&waits.at(&waits.answer)), Ok(7), "{choice:?}");
            bringer.join().unwrap();
        }
    }

    #[test]
    fn no_answer_in_time_is_none_and_no_answer_ever_is_a_closed_store() {
        let waits = Waits::new(Choice::Park);
        let (owed, later) = Later::<()>::new();
        assert_eq!(later.wait_until(now(), waits.at(&waits.space)), None);
        drop(owed);
        assert_eq!(waits.space.counts().timeouts, 1);
        let (owed, later) = Later::<()>::new();
        drop(owed);
        assert_eq!(later.wait(&waits.at(&waits.space)), Err(StoreError::Closed));
    }
}
