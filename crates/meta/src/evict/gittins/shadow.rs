//! A simulated cache: which blocks of the sampled chains it would hold under one rule, without the blocks.

use slackwater_base::Map;

use super::class::{Class, Tick};
use super::rule::Rule;
use super::segments::NONE;
use super::tables::Tables;
use crate::evict::queues::grow;

/// A block of a sampled request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    pub(super) tag: u32,
    pub(super) class: Class,
    /// Whether it is in the real cache, or comes into it: only such blocks are known to be full ones.
    pub(super) kept: bool,
}

/// Metadata of one simulated cache.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_tag: Map<u32, u32>,
    /// Walks over the entries, so that victims are looked for among other ones each time.
    hand: usize,
    /// The entry that was found to be worth least, and the last of its chain: the chain is evicted up to it.
    leaving: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u32,
    last_use: Tick,
    /// The blocks before and after it in the last request that went through it.
    up: u32,
    down: u32,
    class: Class,
    held: bool,
}

const NO_ENTRY: Entry = Entry {
    tag: 0,
    last_use: Tick(0),
    up: NONE,
    down: NONE,
    class: Class(0),
    held: false,
};
/// Entries looked at for a victim: as good as all of them, to a few in a hundred.
const CANDIDATES: usize = 24;
/// Bytes of an entry with its places in the table of tags, which is partly empty, and in the list of free ones.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + 24;

impl Shadow {
    /// Leading blocks that are held.
    pub(super) fn hits(&self, visits: &[Visit]) -> usize {
        let held = |visit: &&Visit| self.by_tag.contains_key(&visit.tag);
        visits.iter().take_while(held).count()
    }

    /// The request used these blocks, after the block `parent`: those that are held or kept are held now.
    pub(super) fn visit(&mut self, visits: &[Visit], parent: Option<u32>, now: Tick) {
        self.leaving = None;
        let mut above = parent.and_then(|tag| self.by_tag.get(&tag).copied());
        for visit in visits {
            let known = self.by_tag.get(&visit.tag).copied();
            if known.is_none() && !visit.kept {
                return;
            }
            let number = known.unwrap_or_else(|| self.add(visit.tag));
            let entry = &mut self.entries[number as usize];
            (entry.last_use, entry.class) = (now, visit.class);
            (entry.up, entry.down) = (above.unwrap_or(NONE), NONE);
            if let Some(above) = above {
                self.entries[above as usize].down = number;
            }
            above = Some(number);
        }
    }

    /// Evicts until no more than `capacity` blocks are held.
    pub(super) fn shrink(&mut self, capacity: usize, rule: Rule, tables: &Tables, now: Tick) {
        while self.by_tag.len() > capacity {
            let held = |&(_, last): &(u32, u32)| {
                let entry = self.entries.get(last as usize);
                entry.is_some_and(|entry| entry.held)
            };
            let (least, last) = match self.leaving.filter(held) {
                Some(leaving) => leaving,
                None => self.choose(rule, tables, now),
            };
            let gone = std::mem::replace(&mut self.entries[last as usize], NO_ENTRY);
            self.by_tag.remove(&gone.tag);
            self.free.push(last);
            self.leaving = (last != least).then_some((least, gone.up));
        }
    }

    /// The least worthy of some entries, and the last of those that were used after it by the same request.
    fn choose(&mut self, rule: Rule, tables: &Tables, now: Tick) -> (u32, u32) {
        let mut best: Option<(f64, u32)> = None;
        let (mut looked, mut passed) = (0, 0);
        while looked < CANDIDATES && passed < self.entries.len() {
            self.hand = (self.hand + 1) % self.entries.len();
            passed += 1;
            let entry = &self.entries[self.hand];
            if !entry.held {
                continue;
            }
            looked += 1;
            let value = tables.worth(rule, entry.class, now.since(entry.last_use));
            if best.is_none_or(|(least, _)| value < least) {
                best = Some((value, self.hand as u32));
            }
        }
        let (_, least) = best.expect("more is held than may be");
        let mut last = least;
        // No chain is longer than what is held.
        for _ in 0..self.by_tag.len() {
            let below = self.entries[last as usize].down;
            let next = self.entries.get(below as usize);
            let continues = next.is_some_and(|next| {
                let used = self.entries[last as usize].last_use;
                next.held && next.up == last && next.last_use == used
            });
            if !continues {
                break;
            }
            last = below;
        }
        (least, last)
    }

    fn add(&mut self, tag: u32) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.entries.len();
            grow(&mut self.entries, number, NO_ENTRY);
            number as u32
        });
        let held = true;
        self.entries[number as usize] = Entry {
            tag,
            held,
            ..NO_ENTRY
        };
        self.by_tag.insert(tag, number);
        number
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_tag.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visits(tags: std::ops::Range<u32>, kept: bool) -> Vec<Visit> {
        let visit = |tag| Visit {
            tag,
            class: Class::new(0, 1.0),
            kept,
        };
        tags.map(visit).collect()
    }

    #[test]
    fn the_oldest_chain_goes_leaf_first_and_hits_are_leading_blocks() {
        let (mut shadow, tables) = (Shadow::default(), Tables::new());
        for (chain, second) in [(0, 0), (100, 10), (200, 20)] {
            shadow.visit(&visits(chain..chain + 5, true), None, Tick(second * 60));
        }
        shadow.shrink(12, Rule::Recency, &tables, Tick(1_800));
        assert_eq!(shadow.hits(&visits(0..5, false)), 2);
        assert_eq!(shadow.hits(&visits(100..105, false)), 5);
        // A request through the rest of the oldest makes it the newest.
        shadow.visit(&visits(0..5, false), None, Tick(1_900));
        shadow.shrink(7, Rule::Recency, &tables, Tick(1_900));
        let held = [0, 100, 200].map(|chain| shadow.hits(&visits(chain..chain + 5, false)));
        assert_eq!(held, [2, 0, 5]);
        // What the real cache did not keep does not come in.
        assert_eq!(shadow.hits(&visits(2..5, false)), 0);
    }

    #[test]
    fn a_later_part_of_a_request_follows_the_one_before() {
        let (mut shadow, tables) = (Shadow::default(), Tables::new());
        shadow.visit(&visits(0..3, true), None, Tick(5));
        shadow.visit(&visits(3..6, true), Some(2), Tick(5));
        shadow.shrink(4, Rule::Recency, &tables, Tick(5));
        assert_eq!(shadow.hits(&visits(0..6, false)), 4);
        assert_eq!(shadow.by_tag.len(), 4);
    }
}
