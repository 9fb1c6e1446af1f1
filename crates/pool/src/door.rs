use slackwater_wait::{Waiting, Word};

/// The job accepts participants.
const OPEN: u32 = 1 << 1;
/// One place not taken yet.
const PLACE: u32 = 1 << 2;
/// All places.
const PLACES: u32 = (ACTIVE - 1) & !(PLACE - 1);
/// One participant inside.
const ACTIVE: u32 = 1 << 17;
/// All participants inside.
const ACTIVES: u32 = !(ACTIVE - 1);

/// Which workers may take part in a job, and how many still do: one word.
///
/// The submitter opens the door, works itself, closes the door and waits until all participants have left. A worker
/// that joined may use what the job borrows until it leaves; no worker joins through a closed door, so the borrow can
/// end.
#[derive(Debug)]
pub(crate) struct Door {
    word: Word,
}

/// The most places of one job.
pub(crate) const PLACES_MAX: usize = (PLACES / PLACE) as usize;

impl Door {
    pub(crate) fn new() -> Self {
        Self { word: Word::new(0) }
    }

    /// Lets up to `places` workers in, and publishes everything written before.
    ///
    /// The caller owns the slot it belongs to.
    ///
    /// # Panics
    /// The door is open, or a participant is inside.
    pub(crate) fn open(&self, places: usize) {
        debug_assert!(places <= PLACES_MAX);
        let opened = self.word.change(|value| {
            (value & (OPEN | ACTIVES) == 0)
                .then_some((value & Word::PARKED) | OPEN | (places as u32 * PLACE))
        });
        assert!(
            opened.is_ok(),
            "a slot is taken by one job at a time: {opened:x?}"
        );
    }

    /// Joins, unless the door is closed or the places are taken. Returns the number of places there were.
    pub(crate) fn join(&self) -> Option<usize> {
        let before = self.word.change(|value| {
            let free = value & OPEN != 0 && value & PLACES != 0 && value & ACTIVES != ACTIVES;
            free.then(|| value - PLACE + ACTIVE)
        });
        before.ok().map(|value| ((value & PLACES) / PLACE) as usize)
    }

    /// Leaves. Afterwards nothing that the job borrows may be touched.
    pub(crate) fn leave(&self) {
        let before = self.word.subtract(ACTIVE);
        self.left(before);
    }

    /// Leaves and gives the place back, for a job that may have more to do later.
    pub(crate) fn step_out(&self) {
        let before = self.word.subtract(ACTIVE - PLACE);
        self.left(before);
    }

    fn left(&self, before: u32) {
        // With the door open the submitter still works and does not wait.
        if before & ACTIVES == ACTIVE && before & OPEN == 0 {
            self.word.wake(before);
        }
    }

    /// Closes the door: no worker can join any more.
    pub(crate) fn close(&self) {
        self.word.clear(OPEN | PLACES);
    }

    /// Waits until everybody has left; the door must be closed. The borrow of the job ends here, so there is no
    /// deadline.
    pub(crate) fn wait_empty(&self, waiting: &Waiting<'_>) {
        while !self.word.wait(waiting, |value| value & ACTIVES == 0) {}
    }
}
