//! The learned state: events and exposure by class and age, factors by feature, and the index computed from them.

use super::class::{
    self, BINS, CELLS, CLASSES, Class, Features, GAP_BUCKETS, GROUPS, HINT_BUCKETS, LEVELS,
    NEW_BUCKETS, PLAIN_CELLS, PLAIN_SHAPES, SHAPES, TICK_SECONDS, Tick, bin_starts, plain_shape,
    shape,
};
use super::estimate::{Count, Curve, Ranked, class_curve, gittins_index, hazards, ranking};
use super::outlook::{HintCount, Outlooks};
use super::rule::Rule;
use super::segments::ChainSegment;

/// The learned state of one policy.
#[derive(Debug)]
pub(super) struct Tables {
    cells: Vec<Cell>,
    new_factors: [Factor; GROUPS * NEW_BUCKETS],
    gap_factors: [Factor; GROUPS * GAP_BUCKETS],
    hint_factors: [Factor; GROUPS * HINT_BUCKETS],
    outlooks: Outlooks,
    /// Sums of the blocks and squared blocks of events: their ratio is the size of a typical event.
    weights: f64,
    squared_weights: f64,
    typical_event: f64,
    /// The hazards of all blocks but the most reused ones together, of each shape, and of each class.
    pooled_hazards: Curve,
    shape_hazards: Box<[Curve; SHAPES]>,
    class_hazards: Vec<Curve>,
    index: Vec<f32>,
    /// Classes that blocks are of, or were. The others are left out of estimation and ranking, because they are most of
    /// all: nothing was counted for them, so that their curve follows from that of their shape when it is needed.
    covered: [bool; CLASSES],
    /// The size of a typical event at the latest estimate.
    estimated_event: f64,
    /// By what blocks are valued.
    rule: Rule,
    /// Cells are ranked by their [`Tables::floor`].
    ranks: Vec<u16>,
    ranked: Vec<Ranked>,
    bin_starts: [u32; BINS],
    /// One over the ticks that each bin lasts; zero for the last one, which has no end.
    bin_rates: [f64; BINS],
}

/// One class and bin of age: what was counted, and the blocks that are in it.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Reused blocks.
    reused: f64,
    /// Block-ticks at risk, of blocks that have left the cell.
    exposed: f64,
    /// Blocks that are in the cell now.
    blocks: u64,
    /// Sum of the ticks at which these blocks were last used.
    block_ticks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Factor {
    value: f64,
    /// Events that were expected of blocks with this feature: the more, the smaller the steps of the factor.
    expected: f64,
}

/// A time at risk: a number of blocks for a number of ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exposure {
    pub(super) class: Class,
    pub(super) bin: u8,
    pub(super) features: Features,
    pub(super) blocks: u32,
    pub(super) ticks: u32,
}

/// A typical event before any was seen, in blocks.
const FIRST_WEIGHT: f64 = 10.0;
/// Factor by which the sums decay over [`DECAY_REQUESTS`] requests: a half-life of about 9,000 requests.
const DECAY: f64 = 0.99;
const DECAY_REQUESTS: f64 = 128.0;
const NO_FACTOR: Factor = Factor {
    value: 1.0,
    expected: 0.0,
};
const FACTORS: usize = GROUPS * (NEW_BUCKETS + GAP_BUCKETS + HINT_BUCKETS);
const FACTOR_RANGE: (f64, f64) = (0.05, 20.0);
/// Correlated features count the same event: full steps of each would overshoot.
const FACTOR_STEP: f64 = 0.25;
/// Typical events by which a factor is drawn to its first value: fewer follow noise where features tell nothing.
const FACTOR_WEIGHT: f64 = 4.0;
const LARGEST_STEP: f64 = 0.5;
/// Logarithm of the first factor of requests of which hardly anything is new, and less that of those that are nearly all
/// new: a short turn of a long conversation is likely to be followed by another one, a long document is mostly asked about
/// once.
const SHORT_TURN: f64 = 0.6;

impl Tables {
    pub(super) fn new() -> Self {
        let mut tables = Self {
            cells: vec![Cell::default(); CELLS],
            new_factors: std::array::from_fn(first_new_factor),
            gap_factors: [NO_FACTOR; GROUPS * GAP_BUCKETS],
            hint_factors: [NO_FACTOR; GROUPS * HINT_BUCKETS],
            outlooks: Outlooks::new(),
            weights: FIRST_WEIGHT,
            squared_weights: FIRST_WEIGHT * FIRST_WEIGHT,
            typical_event: FIRST_WEIGHT,
            pooled_hazards: [0.0; BINS],
            shape_hazards: Box::new([[0.0; BINS]; SHAPES]),
            class_hazards: vec![[0.0; BINS]; CLASSES],
            index: vec![0.0; CELLS],
            covered: [false; CLASSES],
            estimated_event: FIRST_WEIGHT,
            rule: Rule::default(),
            ranks: vec![0; CELLS],
            ranked: Vec::new(),
            bin_starts: bin_starts(),
            bin_rates: bin_rates(),
        };
        tables.estimate(Tick(0));
        tables
    }

    /// The class of blocks of a bucket of reuse count.
    pub(super) fn class(
        &self,
        bucket: u8,
        features: Features,
        output_tokens: Option<u32>,
    ) -> Class {
        let outlook = self.outlooks.outlook(features, self.typical_event);
        let shape = shape(bucket, output_tokens, outlook);
        Class::new(shape, self.multiplier(features))
    }

    fn multiplier(&self, features: Features) -> f64 {
        let hint = features
            .hint_row()
            .map_or(1.0, |row| self.hint_factors[row].value);
        self.new_factors[features.new_row()].value
            * self.gap_factors[features.gap_row()].value
            * hint
    }

    /// Most hits a block-second that blocks of this class and age can give.
    pub(super) fn index(&self, class: Class, bin: u8) -> f32 {
        self.index[class.cell(bin)]
    }

    /// Whether blocks are valued by what was learned.
    pub(super) fn is_learned(&self) -> bool {
        self.rule == Rule::Index
    }

    /// What a block of a cell is worth at an age in ticks, by the rule that is followed.
    pub(super) fn value(&self, cell: usize, age: u32) -> f64 {
        self.worth(self.rule, cell, age)
    }

    /// The same by any rule.
    pub(super) fn worth(&self, rule: Rule, cell: usize, age: u32) -> f64 {
        if rule == Rule::Index {
            return self.learned(cell, age);
        }
        let by_age = rule.by_age(is_reused(cell), age);
        by_age.unwrap_or_else(|| self.learned(cell, age))
    }

    /// The index of a block of a cell at an age in ticks: between those at the beginning and at the end of its bin, so
    /// that of cells with like indices the older block has the lower one.
    pub(super) fn learned(&self, cell: usize, age: u32) -> f64 {
        let (bin, begin) = (cell % BINS, f64::from(self.index[cell]));
        if bin + 1 == BINS {
            return begin;
        }
        let ticks = age.saturating_sub(self.bin_starts[bin]);
        let part = (f64::from(ticks) * self.bin_rates[bin]).min(1.0);
        begin + (f64::from(self.index[cell + 1]) - begin) * part
    }

    /// The lowest [`Tables::value`] of a cell's blocks: that at one of the ends of its bin. The last bin has no end.
    pub(super) fn floor(&self, cell: usize) -> f64 {
        let bin = cell % BINS;
        let end = self.bin_starts.get(bin + 1);
        if self.rule == Rule::Index {
            let begin = self.index[cell];
            return end
                .map_or(begin, |_| begin.min(self.index[cell + 1]))
                .into();
        }
        end.map_or(0.0, |&end| self.value(cell, end))
    }

    /// Follows `rule` from now on. Every list has to be ranked anew.
    pub(super) fn follow(&mut self, rule: Rule) {
        self.rule = rule;
        self.sort_cells();
    }

    /// Whether a class was taken in.
    pub(super) const fn covers(&self, class: Class) -> bool {
        self.covered[class.0 as usize]
    }

    /// Takes a class in from its first block on. Returns whether it was left out until then: then every list has to be
    /// ranked anew.
    pub(super) fn cover(&mut self, class: Class) -> bool {
        if self.covers(class) {
            return false;
        }
        if class.shape() < PLAIN_SHAPES {
            self.take_in(class);
        } else {
            // Blocks with hints count for their plain shape, and its curves are needed for theirs.
            self.cover_all();
        }
        self.sort_cells();
        true
    }

    /// Takes every class in.
    pub(super) fn cover_all(&mut self) {
        for class in (0..CLASSES as u8).map(Class) {
            if !self.covered[usize::from(class.0)] {
                self.take_in(class);
            }
        }
        self.sort_cells();
    }

    /// Gives a class of which nothing was counted the curve that the latest estimate would have given it: a hinted one
    /// that of its plain class, which is taken in already.
    fn take_in(&mut self, class: Class) {
        let (at, level) = (usize::from(class.0), class.level());
        let (plain, _) = plain_shape(class.shape());
        let curve = if class.shape() == plain {
            let nothing = [Count::default(); BINS];
            class_curve(
                &nothing,
                &self.shape_hazards[plain],
                level,
                self.estimated_event,
            )
        } else {
            self.class_hazards[plain * LEVELS + level]
        };
        self.covered[at] = true;
        self.class_hazards[at] = curve;
        self.set_index(at, &curve);
    }

    fn set_index(&mut self, class: usize, curve: &Curve) {
        let row = &mut self.index[class * BINS..(class + 1) * BINS];
        for (slot, index) in row.iter_mut().zip(gittins_index(curve)) {
            *slot = index as f32;
        }
    }

    fn covered_classes(&self) -> impl Iterator<Item = usize> {
        let classes = self.covered.iter().enumerate();
        classes.filter_map(|(class, covered)| covered.then_some(class))
    }

    fn sort_cells(&mut self) {
        let mut floors = Vec::with_capacity(CLASSES);
        for class in self.covered_classes() {
            let cells = class * BINS..(class + 1) * BINS;
            if self.rule == Rule::Index {
                let index = &self.index[cells.clone()];
                let row: [f32; BINS] =
                    std::array::from_fn(|bin| index[bin].min(index[(bin + 1).min(BINS - 1)]));
                floors.push((class, row));
            } else {
                // Rounded down, so that no block of the cell is worth less.
                let row = std::array::from_fn(|bin| {
                    (self.floor(cells.start + bin) as f32).next_down().max(0.0)
                });
                floors.push((class, row));
            }
        }
        self.ranked = ranking(&floors);
        for (rank, ranked) in self.ranked.iter().enumerate() {
            self.ranks[usize::from(ranked.cell)] = rank as u16;
        }
    }

    /// Place of a cell in the order of the floors, lowest first.
    pub(super) fn rank(&self, cell: usize) -> usize {
        usize::from(self.ranks[cell])
    }

    /// All cells that are ranked, each with its [`Tables::floor`], lowest floor first.
    pub(super) fn ranked(&self) -> &[Ranked] {
        &self.ranked
    }

    /// Where a bin begins, in ticks of age.
    pub(super) const fn bin_start(&self, bin: u8) -> u32 {
        self.bin_starts[bin as usize]
    }

    /// Blocks last used at `last_use` are in the cell from now on.
    pub(super) fn enter(&mut self, cell: usize, blocks: u32, last_use: Tick) {
        let cell = &mut self.cells[cell];
        cell.blocks += u64::from(blocks);
        cell.block_ticks += u64::from(blocks) * u64::from(last_use.0);
    }

    /// The blocks are in the cell no longer.
    pub(super) fn leave(&mut self, cell: usize, blocks: u32, last_use: Tick) {
        let cell = &mut self.cells[cell];
        cell.blocks -= u64::from(blocks);
        cell.block_ticks -= u64::from(blocks) * u64::from(last_use.0);
    }

    /// The blocks of a segment were at risk for all of a bin and are in the cell of the next one from now on.
    #[inline]
    pub(super) fn outlive(&mut self, bin: usize, segment: &ChainSegment) {
        let blocks = u64::from(segment.blocks);
        let last_uses = blocks * u64::from(segment.last_use.0);
        let ticks = self.bin_starts[bin + 1] - self.bin_starts[bin];
        let block_ticks = blocks as f64 * f64::from(ticks);
        if let [from, to, ..] = &mut self.cells[segment.class.cell(bin as u8)..] {
            from.exposed += block_ticks;
            from.blocks -= blocks;
            from.block_ticks -= last_uses;
            to.blocks += blocks;
            to.block_ticks += last_uses;
        }
        self.expect(segment.class, bin, segment.features, block_ticks);
    }

    /// Blocks were at risk and did not return.
    pub(super) fn expose(&mut self, exposure: Exposure) {
        let Exposure {
            class,
            bin,
            features,
            blocks,
            ticks,
        } = exposure;
        if ticks == 0 {
            return;
        }
        let block_ticks = f64::from(blocks) * f64::from(ticks);
        self.cells[class.cell(bin)].exposed += block_ticks;
        self.expect(class, bin.into(), features, block_ticks);
    }

    /// Blocks of a class with these features did not return for so many block-ticks in a bin.
    #[inline]
    fn expect(&mut self, class: Class, bin: usize, features: Features, block_ticks: f64) {
        let block_seconds = block_ticks * TICK_SECONDS;
        let pooled = block_seconds * self.pooled_hazards[bin];
        self.outlooks.expect(features, pooled);
        let base = self.shape_hazards[class.shape()][bin];
        let weight = FACTOR_WEIGHT * self.typical_event;
        let (new, gap) = (features.new_row(), features.gap_row());
        let hint = features.hint_row();
        let known = self.new_factors[new].value * self.gap_factors[gap].value;
        let hinted = hint.map_or(1.0, |row| self.hint_factors[row].value);
        let expected = block_seconds * base * (known * hinted);
        self.new_factors[new].expect(expected, weight);
        self.gap_factors[gap].expect(expected, weight);
        if let Some(row) = hint {
            self.hint_factors[row].expect(expected, weight);
        }
    }

    /// A run of blocks returned.
    pub(super) fn reuse(&mut self, class: Class, bin: u8, features: Features, blocks: u32) {
        let blocks = f64::from(blocks);
        self.cells[class.cell(bin)].reused += blocks;
        self.outlooks.reuse(features, blocks);
        self.weights += blocks;
        self.squared_weights += blocks * blocks;
        self.typical_event = self.squared_weights / self.weights;
        let weight = FACTOR_WEIGHT * self.typical_event;
        self.for_factors(features, |factor| {
            let step = FACTOR_STEP * blocks / (weight + factor.expected);
            factor.shift(step.min(LARGEST_STEP))
        });
    }

    fn for_factors(&mut self, features: Features, mut change: impl FnMut(&mut Factor)) {
        change(&mut self.new_factors[features.new_row()]);
        change(&mut self.gap_factors[features.gap_row()]);
        if let Some(row) = features.hint_row() {
            change(&mut self.hint_factors[row]);
        }
    }

    /// Decays the sums after `requests` more requests.
    pub(super) fn decay(&mut self, requests: u64) {
        let keep = DECAY.powf(requests as f64 / DECAY_REQUESTS);
        for (row, covered) in self.cells.chunks_exact_mut(BINS).zip(self.covered) {
            if covered {
                for cell in row {
                    cell.reused *= keep;
                    cell.exposed *= keep;
                }
            }
        }
        for factor in self.factors_mut() {
            factor.expected *= keep;
        }
        self.outlooks.decay(keep);
        self.weights *= keep;
        self.squared_weights *= keep;
    }

    /// Computes index and ranks from the counts. Its cost depends on the number of cells and not on what is cached.
    pub(super) fn estimate(&mut self, now: Tick) {
        let hazards = hazards(&self.counts(now), self.typical_event, &self.covered);
        for class in 0..CLASSES {
            if !self.covered[class] {
                continue;
            }
            let (shape, row) = (class / LEVELS, class * BINS);
            let same = class - (shape - hazards.same_as[shape]) * LEVELS;
            if same < class && self.covered[same] {
                self.index.copy_within(same * BINS..(same + 1) * BINS, row);
            } else {
                self.set_index(class, &hazards.classes[class]);
            }
        }
        self.estimated_event = self.typical_event;
        self.pooled_hazards = hazards.pooled;
        self.shape_hazards = hazards.shapes;
        self.class_hazards = hazards.classes;
        self.sort_cells();
    }

    /// Everything counted, and the exposure so far of the blocks that are still in a cell: without it the counts would
    /// be biased to blocks that return early.
    fn counts(&self, now: Tick) -> Vec<Count> {
        let hinted = self.covered[PLAIN_SHAPES * LEVELS..].contains(&true);
        let cells = if hinted { CELLS } else { PLAIN_CELLS };
        let mut counts = Vec::with_capacity(cells);
        let rows = self.cells[..cells].chunks_exact(BINS);
        for (row, covered) in rows.zip(self.covered) {
            if !covered {
                counts.resize(counts.len() + BINS, Count::default());
                continue;
            }
            counts.extend(row.iter().enumerate().map(|(bin, cell)| Count {
                reused: cell.reused,
                exposed: (cell.exposed + self.so_far(bin, cell, now)) * TICK_SECONDS,
            }));
        }
        counts
    }

    /// Block-ticks at risk so far of the blocks that are in a cell now.
    fn so_far(&self, bin: usize, cell: &Cell, now: Tick) -> f64 {
        if cell.blocks == 0 {
            return 0.0;
        }
        let begin = f64::from(self.bin_starts[bin]);
        let width = self
            .bin_starts
            .get(bin + 1)
            .map_or(f64::INFINITY, |&end| f64::from(end) - begin);
        let blocks = cell.blocks as f64;
        let entered = cell.block_ticks as f64 + blocks * begin;
        (blocks * f64::from(now.0) - entered).clamp(0.0, blocks * width)
    }

    /// What was learned, as plain numbers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let sums = [self.weights, self.squared_weights];
        let cells = self
            .cells
            .iter()
            .flat_map(|cell| [cell.reused, cell.exposed]);
        let factors = self
            .factors()
            .flat_map(|factor| [factor.value, factor.expected]);
        let hints = self.outlooks.counts();
        let hints = hints.flat_map(|hint| [hint.reused, hint.expected]);
        sums.into_iter().chain(cells).chain(factors).chain(hints)
    }

    /// How many numbers there are.
    pub(super) const NUMBERS: usize = 2 + 2 * (CELLS + FACTORS + Outlooks::COUNT);

    /// Replaces what was learned by what [`Tables::numbers`] returned. The blocks in the cells stay.
    pub(super) fn set_numbers(&mut self, numbers: &[f64]) {
        let (sums, rest) = numbers.split_at(2);
        // Without events there is no size of a typical one.
        (self.weights, self.squared_weights) = (sums[0].max(1.0), sums[1].max(1.0));
        self.typical_event = self.squared_weights / self.weights;
        let (cells, rest) = rest.split_at(2 * CELLS);
        let (factors, hints) = rest.split_at(2 * FACTORS);
        for (cell, pair) in self.cells.iter_mut().zip(cells.chunks_exact(2)) {
            (cell.reused, cell.exposed) = (pair[0], pair[1]);
        }
        let seen = |cell: &Cell| cell.reused + cell.exposed > 0.0;
        for (covered, row) in self.covered.iter_mut().zip(self.cells.chunks_exact(BINS)) {
            *covered |= row.iter().any(seen);
        }
        if self.covered[PLAIN_SHAPES * LEVELS..].contains(&true) {
            self.covered = [true; CLASSES];
        }
        for (factor, pair) in self.factors_mut().zip(factors.chunks_exact(2)) {
            *factor = Factor {
                value: pair[0].clamp(FACTOR_RANGE.0, FACTOR_RANGE.1),
                expected: pair[1],
            };
        }
        let pairs = hints.chunks_exact(2);
        for (hint, pair) in self.outlooks.counts_mut().zip(pairs) {
            *hint = HintCount {
                reused: pair[0],
                expected: pair[1],
            };
        }
    }

    fn factors(&self) -> impl Iterator<Item = &Factor> {
        self.new_factors
            .iter()
            .chain(&self.gap_factors)
            .chain(&self.hint_factors)
    }

    fn factors_mut(&mut self) -> impl Iterator<Item = &mut Factor> {
        self.new_factors
            .iter_mut()
            .chain(&mut self.gap_factors)
            .chain(&mut self.hint_factors)
    }

    /// The bin of an age.
    pub(super) fn bin_of(&self, ticks: u32) -> u8 {
        (self.bin_starts.partition_point(|&start| start <= ticks) - 1) as u8
    }

    /// The bin of an age, looked for from an earlier bin on.
    pub(super) fn bin_from(&self, mut bin: u8, ticks: u32) -> u8 {
        while self
            .bin_starts
            .get(usize::from(bin) + 1)
            .is_some_and(|&start| start <= ticks)
        {
            bin += 1;
        }
        bin
    }

    /// The hazards of a class by the latest estimate, from which its index was computed.
    pub(super) fn curve(&self, class: Class) -> &Curve {
        &self.class_hazards[usize::from(class.0)]
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        size_of::<Self>()
            + self.cells.capacity() * size_of::<Cell>()
            + size_of::<[Curve; SHAPES]>()
            + self.class_hazards.capacity() * size_of::<Curve>()
            + self.index.capacity() * size_of::<f32>()
            + self.ranks.capacity() * size_of::<u16>()
            + self.ranked.capacity() * size_of::<Ranked>()
    }
}

/// The factor of a row of the table of new lengths before any event. Blocks that were reused more than once mostly return,
/// whatever else was new.
fn first_new_factor(row: usize) -> Factor {
    let (group, bucket) = (row / NEW_BUCKETS, (row % NEW_BUCKETS) as f64);
    let middle = (NEW_BUCKETS - 1) as f64 / 2.0;
    let value = if group + 1 < GROUPS {
        (SHORT_TURN * (middle - bucket) / middle).exp()
    } else {
        1.0
    };
    Factor { value, ..NO_FACTOR }
}

fn bin_rates() -> [f64; BINS] {
    let starts = bin_starts();
    std::array::from_fn(|bin| {
        let end = starts.get(bin + 1);
        end.map_or(0.0, |end| 1.0 / f64::from(end - starts[bin]))
    })
}

/// Whether the blocks of a cell were reused.
const fn is_reused(cell: usize) -> bool {
    class::is_reused(cell / BINS / LEVELS)
}

impl Factor {
    /// So many events were expected of blocks with this feature, and did not come.
    fn expect(&mut self, events: f64, weight: f64) {
        self.expected += events;
        // No more than `FACTOR_STEP`, since the divisor holds what it divides.
        self.shift(-FACTOR_STEP * events / (weight + self.expected));
    }

    /// Multiplies by e to the power of `x`, which is no further from zero than [`LARGEST_STEP`].
    fn shift(&mut self, x: f64) {
        // The series to the fourth power is exact to a thousandth for the largest step, and takes a quarter of the time
        // of `exp`.
        let power = 1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x / 24.0)));
        self.value = (self.value * power).clamp(FACTOR_RANGE.0, FACTOR_RANGE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{NO_GAP, hint_bucket};
    use slackwater_wire::Expectation;

    use super::super::outlook::Outlook;
    use super::*;

    fn features(hint: Option<u32>) -> Features {
        Features::new(3, NO_GAP, hint_bucket(hint), None)
    }

    /// New blocks were at risk, of which so many returned.
    fn see(tables: &mut Tables, hint: Option<u32>, reused: u32) {
        let (features, bin) = (features(hint), 10);
        let class = tables.class(0, features, Some(100));
        tables.cover(class);
        tables.expose(Exposure {
            class,
            bin,
            features,
            blocks: 1_000,
            ticks: 2_000,
        });
        for _ in 0..reused / 10 {
            tables.reuse(class, bin, features, 10);
        }
    }

    fn says(tables: &Tables, hint: Option<u32>) -> Outlook {
        plain_shape(tables.class(0, features(hint), Some(100)).shape()).1
    }

    #[test]
    fn what_hints_tell_is_learned_and_kept_over_a_restart() {
        let mut tables = Tables::new();
        for _ in 0..20 {
            see(&mut tables, None, 100);
            see(&mut tables, Some(1), 400);
            see(&mut tables, Some(2), 10);
        }
        let check = |tables: &Tables| {
            let said = [None, Some(1), Some(2), Some(3)].map(|hint| says(tables, hint));
            let expected = [
                Outlook::Unknown,
                Outlook::Returns,
                Outlook::Leaves,
                Outlook::Unknown,
            ];
            assert_eq!(said, expected);
        };
        check(&tables);
        let numbers: Vec<f64> = tables.numbers().collect();
        assert_eq!(numbers.len(), Tables::NUMBERS);
        let mut restored = Tables::new();
        restored.set_numbers(&numbers);
        check(&restored);
        assert!(restored.numbers().eq(numbers), "nothing is left out");
    }

    #[test]
    fn short_turns_are_kept_for_longer_until_events_speak_against_it() {
        let of = |new: u8, bucket: u8| Features::new(new, NO_GAP, 0, None).with_count(bucket);
        let check = |story: &str, tables: &Tables, bucket: u8, more: std::cmp::Ordering| {
            let level = |new: u8| tables.class(bucket, of(new, bucket), Some(100)).level();
            assert_eq!(level(0).cmp(&level(7)), more, "{story}, bucket {bucket}");
        };
        let mut tables = Tables::new();
        use std::cmp::Ordering::{Equal, Greater, Less};
        check("nothing seen", &tables, 0, Greater);
        check("nothing seen", &tables, 1, Greater);
        check("mostly return", &tables, 2, Equal);
        check("mostly return", &tables, 5, Equal);
        for _ in 0..20 {
            for (new, reused) in [(0, 1), (7, 20)] {
                let class = tables.class(0, of(new, 0), Some(100));
                tables.cover(class);
                tables.expose(Exposure {
                    class,
                    bin: 10,
                    features: of(new, 0),
                    blocks: 1_000,
                    ticks: 2_000,
                });
                for _ in 0..reused {
                    tables.reuse(class, 10, of(new, 0), 10);
                }
            }
        }
        check("the other way round", &tables, 0, Less);
        check("not seen", &tables, 1, Greater);
    }

    #[test]
    fn classes_are_ranked_from_their_first_block_on() {
        let mut tables = Tables::new();
        let ranked = |tables: &Tables| {
            let ranked = tables.ranked();
            let cells = || ranked.iter().map(|ranked| usize::from(ranked.cell));
            assert!(
                cells()
                    .enumerate()
                    .all(|(at, cell)| tables.rank(cell) == at)
            );
            assert!(ranked.windows(2).all(|pair| pair[0].key <= pair[1].key));
            // The key is what a search stops at: it is no higher than the floor, and hardly lower.
            let keys = ranked.iter().map(|ranked| f64::from(ranked.key));
            for (key, floor) in keys.zip(cells().map(|cell| tables.floor(cell))) {
                let rounded_down = floor * (1.0 - 1.0 / 4096.0)..=floor;
                assert!(rounded_down.contains(&key), "{key} {floor}");
            }
            ranked.len() / BINS
        };
        let expecting = |expect| Features::new(3, NO_GAP, hint_bucket(None), expect);
        let plain = tables.class(0, expecting(None), None);
        let hinted = tables.class(0, expecting(Some(Expectation::Ends)), None);
        assert_eq!(ranked(&tables), 0);
        assert!(tables.cover(plain) && !tables.cover(plain));
        assert_eq!(ranked(&tables), 1);
        tables.follow(Rule::Recency);
        assert!(tables.cover(Class(plain.0 + 1)));
        assert_eq!(ranked(&tables), 2);
        assert!(tables.cover(hinted));
        assert_eq!(ranked(&tables), CLASSES);
        assert!(!tables.cover(hinted) && !tables.cover(plain));
        // What was learned of them is not left out after a restart either.
        tables.reuse(hinted, 10, expecting(Some(Expectation::Ends)), 5);
        let numbers: Vec<f64> = tables.numbers().collect();
        let mut restored = Tables::new();
        restored.set_numbers(&numbers);
        restored.estimate(Tick(0));
        assert_eq!(ranked(&restored), CLASSES);
        let mut tables = Tables::new();
        tables.cover(plain);
        tables.reuse(plain, 10, expecting(None), 5);
        let numbers: Vec<f64> = tables.numbers().collect();
        let mut restored = Tables::new();
        restored.set_numbers(&numbers);
        restored.estimate(Tick(0));
        assert_eq!(ranked(&restored), 1);
    }

    /// A class that is taken in late has the curve and the index that it would have had from the beginning.
    #[test]
    fn a_class_is_not_valued_otherwise_because_it_was_left_out() {
        let learn = |tables: &mut Tables| {
            for _ in 0..20 {
                see(tables, None, 100);
            }
            tables.estimate(Tick(5_000));
            // The size of a typical event is another one than at the estimate.
            see(tables, None, 10);
            tables.reuse(
                tables.class(0, features(None), Some(100)),
                10,
                features(None),
                90,
            );
        };
        let (mut late, mut early) = (Tables::new(), Tables::new());
        early.cover_all();
        learn(&mut late);
        learn(&mut early);
        // From the last plain class down, then the hinted ones.
        let plain = (PLAIN_SHAPES * LEVELS) as u8;
        for class in (0..plain).rev().chain(plain..CLASSES as u8).map(Class) {
            late.cover(class);
            assert_eq!(late.curve(class), early.curve(class), "{class:?}");
            for bin in 0..BINS as u8 {
                assert_eq!(late.index(class, bin), early.index(class, bin), "{class:?}");
            }
        }
        assert_eq!(late.ranked(), early.ranked());
        assert!(late.numbers().eq(early.numbers()));
    }

    /// The index of shapes without data is computed once and copied.
    #[test]
    fn the_index_is_that_of_the_curve_for_every_class() {
        let mut tables = Tables::new();
        tables.cover_all();
        for _ in 0..20 {
            see(&mut tables, None, 100);
        }
        let now = Tick(5_000);
        tables.estimate(now);
        for class in (0..CLASSES as u8).map(Class) {
            let index = gittins_index(tables.curve(class)).map(|index| index as f32);
            let row = class.cell(0)..class.cell(0) + BINS;
            assert_eq!(tables.index[row], index, "{class:?}");
        }
    }

    /// Returns of a class count for as long as they are not forgotten, also when no block of it is left.
    #[test]
    fn counts_outlive_the_blocks_that_they_are_of() {
        let mut tables = Tables::new();
        see(&mut tables, None, 100);
        let counted: f64 = tables.counts(Tick(5_000)).iter().map(|it| it.reused).sum();
        assert_eq!(counted, 100.0);
    }

    #[test]
    fn a_bin_is_found_from_any_earlier_one() {
        let tables = Tables::new();
        for age in [0, 118, 119, 5_000, 40_000, u32::MAX] {
            let bin = tables.bin_of(age);
            assert!((0..=bin).all(|from| tables.bin_from(from, age) == bin));
        }
    }

    /// A factor follows noise when a single event moves it far: it is drawn to its first value by some.
    #[test]
    fn one_event_moves_a_factor_by_little() {
        let mut tables = Tables::new();
        let factor = |tables: &Tables| tables.new_factors[features(None).new_row()].value;
        let first = factor(&tables);
        tables.reuse(Class(0), 10, features(None), FIRST_WEIGHT as u32);
        let times = factor(&tables) / first;
        assert!((1.05..1.10).contains(&times), "{times}");
    }
}
