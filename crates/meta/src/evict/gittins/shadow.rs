//! Simulated caches: which blocks of the sampled chains each would hold under its rule, without the blocks.

use slackwater_base::Map;

use super::class::{Class, Tick, is_reused};
use super::rule::{RULES, Rule};
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

/// Metadata of one simulated cache a rule. They see the same requests and mostly hold the same blocks, so that a block is
/// looked up once for all of them and has one entry, with the caches that hold it.
#[derive(Debug, Default)]
pub(super) struct Shadows {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_tag: Map<u32, u32>,
    caches: [Cache; RULES],
}

/// What the simulated cache of one rule does not share with the others.
#[derive(Clone, Copy, Debug, Default)]
struct Cache {
    held: usize,
    /// Walks over the entries, so that victims are looked for among other ones each time.
    hand: usize,
    /// The entry that was found to be worth least, and the last of its chain: the chain is evicted up to it.
    leaving: Option<(u32, u32)>,
    /// The entry that was worth least but one when a victim was looked for: it is looked at again next time.
    spare: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u32,
    last_use: Tick,
    /// The blocks before and after it in the last request that went through it.
    up: u32,
    down: u32,
    class: Class,
    /// The bin of its age when it was last looked at.
    bin: u8,
    /// The caches that hold it, a bit each.
    held: u8,
}

const NO_ENTRY: Entry = Entry {
    tag: 0,
    last_use: Tick(0),
    up: NONE,
    down: NONE,
    class: Class(0),
    bin: 0,
    held: 0,
};
/// The bits of all caches.
const ALL: u8 = (1 << RULES) - 1;
/// Entries looked at for a victim, beside the second best of those before: as good as all of them, to a few in a hundred.
const CANDIDATES: usize = 8;
/// Bytes of an entry with its places in the table of tags, which is partly empty, and in the list of free ones.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + 24;

impl Shadows {
    /// The request used these blocks, after the block `parent`: those that a cache holds or the real one keeps are held by
    /// it now, up to the first that is neither. Returns how many leading ones each held before.
    pub(super) fn visit(
        &mut self,
        visits: &[Visit],
        parent: Option<u32>,
        now: Tick,
    ) -> [usize; RULES] {
        self.caches
            .iter_mut()
            .for_each(|cache| cache.leaving = None);
        let mut above = parent.and_then(|tag| self.by_tag.get(&tag).copied());
        let (mut found, mut follows) = (ALL, ALL);
        let mut hits = [0; RULES];
        for visit in visits {
            let known = self.by_tag.get(&visit.tag).copied();
            let held = known.map_or(0, |number| self.entries[number as usize].held);
            found &= held;
            follows &= if visit.kept { ALL } else { held };
            if follows == 0 {
                break;
            }
            let number = known.unwrap_or_else(|| self.add(visit.tag));
            for (at, cache) in self.caches.iter_mut().enumerate() {
                hits[at] += usize::from(found >> at & 1);
                cache.held += usize::from((follows & !held) >> at & 1);
            }
            self.entries[number as usize] = Entry {
                tag: visit.tag,
                last_use: now,
                up: above.unwrap_or(NONE),
                down: NONE,
                class: visit.class,
                bin: 0,
                held: held | follows,
            };
            if let Some(above) = above {
                self.entries[above as usize].down = number;
            }
            above = Some(number);
        }
        hits
    }

    /// Evicts until no cache holds more than `capacity` blocks.
    pub(super) fn shrink(&mut self, capacity: usize, tables: &Tables, now: Tick) {
        for (at, rule) in Rule::ALL.into_iter().enumerate() {
            while self.caches[at].held > capacity {
                let leaving = self.caches[at].leaving;
                let (least, last) = leaving
                    .filter(|&(_, last)| self.holds(at, last))
                    .unwrap_or_else(|| self.choose(at, rule, tables, now));
                self.caches[at].held -= 1;
                let gone = &mut self.entries[last as usize];
                gone.held &= !(1 << at);
                self.caches[at].leaving = (last != least).then_some((least, gone.up));
                if gone.held == 0 {
                    self.by_tag.remove(&gone.tag);
                    *gone = NO_ENTRY;
                    self.free.push(last);
                }
            }
        }
    }

    fn holds(&self, cache: usize, number: u32) -> bool {
        let entry = self.entries.get(number as usize);
        entry.is_some_and(|entry| entry.held >> cache & 1 == 1)
    }

    /// The least worthy of some entries, and the last of those that were used after it by the same request.
    fn choose(&mut self, cache: usize, rule: Rule, tables: &Tables, now: Tick) -> (u32, u32) {
        let least = match rule {
            Rule::Index => self.least(cache, |entry| {
                let age = now.since(entry.last_use);
                entry.bin = tables.bin_from(entry.bin, age);
                // The bits of positive floats sort like the floats.
                tables.learned(entry.class.cell(entry.bin), age).to_bits()
            }),
            Rule::Recency | Rule::Reused => self.least(cache, |entry| {
                let is_reused = is_reused(entry.class.shape());
                u64::MAX / 2 - rule.age_counted(is_reused, now.since(entry.last_use))
            }),
        };
        let mut last = least;
        // No chain is longer than what is held.
        for _ in 0..self.caches[cache].held {
            let entry = &self.entries[last as usize];
            let below = entry.down;
            let continues = self.holds(cache, below) && {
                let next = &self.entries[below as usize];
                next.up == last && next.last_use == entry.last_use
            };
            if !continues {
                break;
            }
            last = below;
        }
        (least, last)
    }

    /// The entry that is worth least of some that a cache holds.
    #[inline]
    fn least(&mut self, cache: usize, worth: impl Fn(&mut Entry) -> u64) -> u32 {
        let Cache {
            mut hand, spare, ..
        } = self.caches[cache];
        let bit = 1 << cache;
        let spare = spare.filter(|&number| self.holds(cache, number));
        let spare = spare.map(|number| (worth(&mut self.entries[number as usize]), number));
        let none = (u64::MAX, NONE);
        let (mut least, mut next) = (spare.unwrap_or(none), none);
        let mut looked = 0;
        for _ in 0..self.entries.len() {
            hand += 1;
            if hand >= self.entries.len() {
                hand = 0;
            }
            let entry = &mut self.entries[hand];
            if entry.held & bit == 0 || hand as u32 == least.1 {
                continue;
            }
            let found = (worth(entry), hand as u32);
            if found.0 < least.0 {
                next = std::mem::replace(&mut least, found);
            } else if found.0 < next.0 {
                next = found;
            }
            looked += 1;
            if looked == CANDIDATES {
                break;
            }
        }
        self.caches[cache].hand = hand;
        self.caches[cache].spare = (next.1 != NONE).then_some(next.1);
        assert!(
            least.1 != NONE,
            "invariant broken: more is counted than is held"
        );
        least.1
    }

    fn add(&mut self, tag: u32) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.entries.len();
            grow(&mut self.entries, number, NO_ENTRY);
            number as u32
        });
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

    const RECENCY: usize = Rule::Recency as usize;

    fn visits(tags: std::ops::Range<u32>, kept: bool) -> Vec<Visit> {
        visits_of(tags, kept, 0)
    }

    fn visits_of(tags: std::ops::Range<u32>, kept: bool, shape: usize) -> Vec<Visit> {
        let visit = |tag| Visit {
            tag,
            class: Class::new(shape, 1.0),
            kept,
        };
        tags.map(visit).collect()
    }

    /// How many leading ones of these each cache holds; nothing is changed.
    fn held(shadows: &Shadows, tags: std::ops::Range<u32>) -> [usize; RULES] {
        std::array::from_fn(|cache| {
            let holds = |tag: &u32| {
                let number = shadows.by_tag.get(tag);
                number.is_some_and(|&number| shadows.holds(cache, number))
            };
            tags.clone().take_while(holds).count()
        })
    }

    /// The counts of what is held are those of the entries, and no entry is held by nobody.
    fn check_books(shadows: &Shadows) {
        for (at, cache) in shadows.caches.iter().enumerate() {
            let numbers = 0..shadows.entries.len() as u32;
            let held = numbers.filter(|&number| shadows.holds(at, number)).count();
            assert_eq!(held, cache.held, "cache {at}");
        }
        let living = shadows.entries.len() - shadows.free.len();
        assert_eq!(shadows.by_tag.len(), living);
        let is_held = |&number: &u32| shadows.entries[number as usize].held != 0;
        assert!(shadows.by_tag.iter().all(|(_, number)| is_held(number)));
    }

    #[test]
    fn the_oldest_chain_goes_leaf_first_and_hits_are_leading_blocks() {
        let (mut shadows, tables) = (Shadows::default(), Tables::new());
        for (chain, second) in [(0, 0), (100, 10), (200, 20)] {
            shadows.visit(&visits(chain..chain + 5, true), None, Tick(second * 60));
        }
        shadows.shrink(12, &tables, Tick(1_800));
        check_books(&shadows);
        assert_eq!(held(&shadows, 0..5)[RECENCY], 2);
        assert_eq!(held(&shadows, 100..105)[RECENCY], 5);
        // A request through the rest of the oldest makes it the newest.
        let hits = shadows.visit(&visits(0..5, false), None, Tick(1_900));
        assert_eq!(hits[RECENCY], 2);
        shadows.shrink(7, &tables, Tick(1_900));
        check_books(&shadows);
        let kept = [0, 100, 200].map(|chain| held(&shadows, chain..chain + 5)[RECENCY]);
        assert_eq!(kept, [2, 0, 5]);
        // What the real cache did not keep does not come in.
        let hits = shadows.visit(&visits(2..5, false), None, Tick(1_950));
        assert_eq!((hits[RECENCY], held(&shadows, 2..5)[RECENCY]), (0, 0));
    }

    #[test]
    fn a_later_part_of_a_request_follows_the_one_before() {
        let (mut shadows, tables) = (Shadows::default(), Tables::new());
        shadows.visit(&visits(0..3, true), None, Tick(5));
        shadows.visit(&visits(3..6, true), Some(2), Tick(5));
        shadows.shrink(4, &tables, Tick(5));
        check_books(&shadows);
        assert_eq!(held(&shadows, 0..6), [4; RULES]);
    }

    /// Only some entries are looked at, and the second best of them is not lost.
    #[test]
    fn the_second_oldest_of_a_look_goes_next() {
        let (mut shadows, tables) = (Shadows::default(), Tables::new());
        for tag in 0..40 {
            let old = [3, 5].contains(&tag);
            let tick = if old { tag } else { 1_000 + tag };
            shadows.visit(&visits(tag..tag + 1, true), None, Tick(tick));
        }
        shadows.shrink(38, &tables, Tick(2_000));
        check_books(&shadows);
        for tag in 0..40 {
            let expected = usize::from(![3, 5].contains(&tag));
            assert_eq!(held(&shadows, tag..tag + 1)[RECENCY], expected, "{tag}");
        }
    }

    /// The caches share entries, and each has to count and evict its own blocks.
    #[test]
    fn each_cache_follows_its_own_rule() {
        let (mut shadows, tables) = (Shadows::default(), Tables::new());
        let reused = super::super::class::FIRST_REUSED_SHAPE;
        shadows.visit(&visits_of(0..5, true, reused), None, Tick(0));
        shadows.visit(&visits(100..105, true), None, Tick(600));
        shadows.shrink(5, &tables, Tick(1_200));
        check_books(&shadows);
        let [_, recency, younger] = held(&shadows, 0..5);
        assert_eq!((recency, younger), (0, 5));
        let [_, recency, younger] = held(&shadows, 100..105);
        assert_eq!((recency, younger), (5, 0));
        // A block that only one holds is a hit of that one, and comes into none while the real cache has it not.
        let [_, recency, younger] = shadows.visit(&visits(0..6, false), None, Tick(1_300));
        assert_eq!((recency, younger), (0, 5));
        let [_, recency, younger] = held(&shadows, 0..6);
        assert_eq!((recency, younger), (0, 5));
        check_books(&shadows);
    }
}
