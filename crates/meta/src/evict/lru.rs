use super::Slot;
use super::queued::{Queued, Rules};
use super::queues::Queues;

/// Least recently used.
pub(super) type Lru = Queued<ByRecency, 1>;

#[derive(Debug, Default)]
pub(super) struct ByRecency;

impl Rules<1> for ByRecency {
    const NAME: &'static str = "lru";

    fn read(&mut self, queues: &mut Queues<1>, _tag: u32, slot: Option<Slot>) {
        slot.into_iter().for_each(|slot| queues.move_to(slot, 0));
    }

    fn place(&mut self, _queues: &Queues<1>, _tag: u32) -> usize {
        0
    }

    fn choose(&mut self, queues: &mut Queues<1>, _tags: &[u32]) -> Option<Slot> {
        queues.coldest(0)
    }
}
