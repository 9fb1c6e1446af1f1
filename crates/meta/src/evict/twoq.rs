use super::Slot;
use super::ghosts::Ghosts;
use super::queued::{Queued, Rules};
use super::queues::Queues;

/// 2Q (Johnson and Shasha, VLDB 1994), aware of requests: new blocks are in a first-in-first-out queue, blocks that
/// were read again in a queue by recency, and blocks found among the ghosts of the first enter the second.
///
/// The original ignores hits in the first queue, because they may come from the same request. Here a request names each
/// block once, so a second read is a true return and promotes at once.
pub(super) type TwoQ = Queued<NewAndAgain, 2>;

#[derive(Debug, Default)]
pub(super) struct NewAndAgain {
    ghosts: Ghosts,
}

const NEW: usize = 0;
const AGAIN: usize = 1;
/// The new blocks' share of everything is one in this many, as the paper recommends.
const NEW_SHARE: u64 = 4;

impl Rules<2> for NewAndAgain {
    const NAME: &'static str = "twoq";

    fn read(&mut self, queues: &mut Queues<2>, _tag: u32, slot: Option<Slot>) {
        slot.into_iter()
            .for_each(|slot| queues.move_to(slot, AGAIN));
    }

    fn place(&mut self, _queues: &Queues<2>, tag: u32) -> usize {
        if self.ghosts.take(tag) { AGAIN } else { NEW }
    }

    fn choose(&mut self, queues: &mut Queues<2>, _tags: &[u32]) -> Option<Slot> {
        let new_is_over = queues.units(NEW) * NEW_SHARE > queues.all_units();
        let (first, second) = if new_is_over {
            (NEW, AGAIN)
        } else {
            (AGAIN, NEW)
        };
        queues.coldest(first).or_else(|| queues.coldest(second))
    }

    fn gone(&mut self, queues: &Queues<2>, queue: usize, tag: u32) {
        if queue == NEW {
            self.ghosts.push(tag, queues.resident());
        }
    }

    fn overhead_bytes(&self) -> usize {
        self.ghosts.overhead_bytes()
    }
}
