use super::Slot;
use super::ghosts::Ghosts;
use super::queued::{Queued, Rules};
use super::queues::Queues;

/// S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023): a small probationary queue in front of a main queue with lazy
/// promotion, and ghosts, so that blocks that return soon enter the main queue directly.
///
/// The queues are sized as shares of what is resident, not of the capacity: the catalog evicts below a watermark, and
/// a share of memory that is never filled would never be a limit.
pub(super) type S3Fifo = Queued<SmallAndMain, 2>;

#[derive(Debug, Default)]
pub(super) struct SmallAndMain {
    ghosts: Ghosts,
}

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue's share is one in this many.
const SMALL_SHARE: u64 = 10;
const MOST_READS: u8 = 3;
/// Reads in the small queue after which a block moves to the main one.
const PROMOTION_READS: u8 = 2;

impl Rules<2> for SmallAndMain {
    const NAME: &'static str = "s3fifo";

    fn read(&mut self, queues: &mut Queues<2>, _tag: u32, slot: Option<Slot>) {
        if let Some(slot) = slot {
            queues.set_mark(slot, (queues.mark(slot) + 1).min(MOST_READS));
        }
    }

    fn place(&mut self, _queues: &Queues<2>, tag: u32) -> usize {
        if self.ghosts.take(tag) { MAIN } else { SMALL }
    }

    fn choose(&mut self, queues: &mut Queues<2>, _tags: &[u32]) -> Option<Slot> {
        loop {
            let small = queues.coldest(SMALL);
            let main = queues.coldest(MAIN);
            let small_is_over = queues.units(SMALL) * SMALL_SHARE > queues.all_units();
            match (small, main) {
                (None, None) => return None,
                (Some(slot), main) if small_is_over || main.is_none() => {
                    if queues.mark(slot) < PROMOTION_READS {
                        return Some(slot);
                    }
                    queues.set_mark(slot, 0);
                    queues.move_to(slot, MAIN);
                }
                (_, Some(slot)) => {
                    let mark = queues.mark(slot);
                    if mark == 0 {
                        return Some(slot);
                    }
                    queues.set_mark(slot, mark - 1);
                    queues.move_to(slot, MAIN);
                }
                (Some(slot), None) => return Some(slot),
            }
        }
    }

    fn gone(&mut self, queues: &Queues<2>, queue: usize, tag: u32) {
        if queue == SMALL {
            self.ghosts.push(tag, queues.resident());
        }
    }

    fn overhead_bytes(&self) -> usize {
        self.ghosts.overhead_bytes()
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Instant;

    use super::*;
    use crate::evict::{Evict, Link, Walk};

    #[test]
    fn as_many_reads_as_promotion_takes_move_a_block_to_the_main_queue() {
        let mut policy = S3Fifo::default();
        let link = |number: u32| Link {
            hash: number.into(),
            slot: Some(Slot(number)),
            bytes: 4096,
        };
        let walk = |links: &[Link], read: &mut dyn FnMut(&Walk<'_>)| {
            read(&Walk::at_root(Instant::ZERO, links));
        };
        for number in 0..4 {
            walk(&[link(number)], &mut |walk| policy.insert(walk));
        }
        for (number, reads) in [(0, PROMOTION_READS), (1, PROMOTION_READS - 1)] {
            for _ in 0..reads {
                walk(&[link(number)], &mut |walk| policy.read(walk));
            }
        }
        let mut order = Vec::new();
        while let Some(slot) = policy.victim(Instant::ZERO) {
            policy.evicted(Instant::ZERO, slot);
            order.push(slot.0);
        }
        assert_eq!(order, [1, 2, 3, 0]);
    }
}
