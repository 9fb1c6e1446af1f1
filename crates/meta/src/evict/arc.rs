use super::Slot;
use super::ghosts::Ghosts;
use super::queued::{Queued, Rules};
use super::queues::Queues;

/// ARC (Megiddo and Modha, FAST 2003): blocks read once and blocks read again in two queues, with ghosts of both that
/// move the border between them in favour of the one that was too short.
pub(super) type Arc = Queued<MovingBorder, 2>;

#[derive(Debug, Default)]
pub(super) struct MovingBorder {
    ghosts: [Ghosts; 2],
    /// What the queue of blocks read once may hold, in the queues' units.
    once_target: f64,
}

const ONCE: usize = 0;
const AGAIN: usize = 1;

impl Rules<2> for MovingBorder {
    const NAME: &'static str = "arc";

    fn read(&mut self, queues: &mut Queues<2>, _tag: u32, slot: Option<Slot>) {
        slot.into_iter()
            .for_each(|slot| queues.move_to(slot, AGAIN));
    }

    /// A hit in the ghosts of a queue shows that this queue was too short; the step depends on how many ghosts each
    /// queue has.
    fn place(&mut self, queues: &Queues<2>, tag: u32) -> usize {
        let lengths = [
            self.ghosts[ONCE].len().max(1) as f64,
            self.ghosts[AGAIN].len().max(1) as f64,
        ];
        let block = queues.all_units() as f64 / queues.resident().max(1) as f64;
        let step = if self.ghosts[ONCE].take(tag) {
            (lengths[AGAIN] / lengths[ONCE]).max(1.0)
        } else if self.ghosts[AGAIN].take(tag) {
            -(lengths[ONCE] / lengths[AGAIN]).max(1.0)
        } else {
            return ONCE;
        };
        self.once_target = (self.once_target + step * block).clamp(0.0, queues.all_units() as f64);
        AGAIN
    }

    fn choose(&mut self, queues: &mut Queues<2>, _tags: &[u32]) -> Option<Slot> {
        let once_is_over = queues.units(ONCE) as f64 > self.once_target;
        let (first, second) = if once_is_over {
            (ONCE, AGAIN)
        } else {
            (AGAIN, ONCE)
        };
        queues.coldest(first).or_else(|| queues.coldest(second))
    }

    fn gone(&mut self, queues: &Queues<2>, queue: usize, tag: u32) {
        let resident = queues.resident();
        self.ghosts[queue].push(tag, resident);
        // Blocks read once, resident or ghost, are no more than the cache holds; all four lists no more than twice
        // that.
        let others = self.ghosts[AGAIN].len();
        let once_limit = resident
            .saturating_sub(queues.slots(ONCE))
            .min(resident.saturating_sub(others));
        self.ghosts[ONCE].trim(once_limit.max(1));
        self.ghosts[AGAIN].trim(resident.saturating_sub(self.ghosts[ONCE].len()).max(1));
    }

    fn overhead_bytes(&self) -> usize {
        self.ghosts.iter().map(Ghosts::overhead_bytes).sum()
    }
}
