//! The mathematics of the policy, without its state: from counts to hazards, and from hazards to the index.

use std::ops::Range;

use super::class::{
    BINS, CLASSES, FIRST_FALLING_BIN, FIRST_REUSED_SHAPE, LEVELS, NEUTRAL_LEVEL, PLAIN_SHAPES,
    SHAPES, bin_seconds, bin_start_seconds, plain_shape,
};
use super::hinted;

/// Reused blocks and block-seconds at risk, in one class and bin of age.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Count {
    pub(super) reused: f64,
    pub(super) exposed: f64,
}

impl Count {
    pub(super) fn add(&mut self, other: Self) {
        self.reused += other.reused;
        self.exposed += other.exposed;
    }
}

/// Hazards in events a second.
pub(super) type Curve = [f64; BINS];

/// Strength of the priors, in typical events: of the pooled curve, of a class's level, of a cell.
const POOLED_WEIGHT: f64 = 3.0;
const LEVEL_WEIGHT: f64 = 32.0;
const CELL_WEIGHT: f64 = 48.0;

/// Plain shapes whose blocks return alike: those that were never reused, and those that were.
const FAMILIES: [Range<usize>; 2] = [0..FIRST_REUSED_SHAPE, FIRST_REUSED_SHAPE..MOST_REUSED_SHAPE];
/// The plain shape of blocks that were reused ten times and more. They open many chains or belong to long sessions, and
/// return so much more often than others that they say nothing about these. There are events enough to go by their own.
const MOST_REUSED_SHAPE: usize = PLAIN_SHAPES - 1;

/// The hazard before anything is known: half a return within the age so far, as under LRU.
fn prior(bin: usize) -> f64 {
    let middle = if bin + 1 < BINS {
        (bin_start_seconds(bin) + bin_start_seconds(bin + 1)) / 2.0
    } else {
        bin_start_seconds(bin) * 1.2
    };
    0.5 / (middle + 150.0)
}

/// The learned curves of all blocks but the most reused ones together, of all shapes and of all classes.
pub(super) struct Hazards {
    pub(super) pooled: Curve,
    pub(super) shapes: Box<[Curve; SHAPES]>,
    pub(super) classes: Vec<Curve>,
    /// The first shape with the same curves as each: of several of a family without data, the first, of hinted ones while
    /// there is no hint, their plain shape, otherwise itself.
    pub(super) same_as: [usize; SHAPES],
}

/// Estimates hazards of the `wanted` classes from `counts` (a cell each, or a plain cell each), where a typical event has
/// `weight` blocks. Of the classes that are not wanted nothing was counted; they have no curve.
///
/// Pooled over all shapes but the most reused one first, then by family around the pooled curve, by shape around its
/// family, and by class around its shape, each weighted by its amount of data. Blocks with a hint count as those of their
/// plain shape here, so that a hint takes no evidence from others; their own curves follow from these ([`hinted`]).
pub(super) fn hazards(counts: &[Count], weight: f64, wanted: &[bool; CLASSES]) -> Hazards {
    let plain = &*hinted::plain_counts(counts);
    let mut by_shape = [[Count::default(); BINS]; PLAIN_SHAPES];
    for (class, row) in plain.chunks_exact(BINS).enumerate() {
        if !wanted[class] {
            continue;
        }
        let shape = &mut by_shape[class / LEVELS];
        for (bin, count) in row.iter().enumerate() {
            shape[bin].add(*count);
        }
    }
    let pooled = summed(&by_shape[..MOST_REUSED_SHAPE]);
    let pooled_weight = POOLED_WEIGHT * weight;
    let h0 = drawn(&pooled, &std::array::from_fn(prior), pooled_weight);
    let families = FAMILIES.map(|family| {
        let row = summed(&by_shape[family]);
        let scale = ratio(&row, &h0, weight);
        drawn(&row, &h0.map(|h| h * scale), weight)
    });
    let mut shapes = Box::new([[0.0; BINS]; SHAPES]);
    for (shape, row) in by_shape.iter().enumerate() {
        let base = family_of(shape).map_or(&h0, |family| &families[family]);
        let scale = ratio(row, base, weight);
        shapes[shape] = smoothed(&shrunk(row, &base.map(|h| h * scale), weight));
    }
    let empty = by_shape.map(|row| row.iter().all(|count| *count == Count::default()));
    let plain_same_as = |shape: usize| {
        let is_alike = |at: &usize| empty[*at] && family_of(*at) == family_of(shape);
        let first = empty[shape].then(|| (0..shape).find(is_alike)).flatten();
        first.unwrap_or(shape)
    };
    let same_as = std::array::from_fn(|shape| plain_same_as(plain_shape(shape).0));
    let mut classes: Vec<Curve> = Vec::with_capacity(CLASSES);
    for class in 0..PLAIN_SHAPES * LEVELS {
        if !wanted[class] {
            classes.push([0.0; BINS]);
            continue;
        }
        let same = same_as[class / LEVELS] * LEVELS + class % LEVELS;
        if same < class && wanted[same] {
            classes.push(classes[same]);
            continue;
        }
        let row = &plain[class * BINS..(class + 1) * BINS];
        classes.push(class_curve(
            row,
            &shapes[class / LEVELS],
            class % LEVELS,
            weight,
        ));
    }
    for shape in PLAIN_SHAPES..SHAPES {
        let (plain, _) = plain_shape(shape);
        shapes[shape] = shapes[plain];
        classes.extend_from_within(plain * LEVELS..(plain + 1) * LEVELS);
    }
    let mut hazards = Hazards {
        pooled: h0,
        shapes,
        classes,
        same_as,
    };
    hinted::apply(&mut hazards, counts, weight);
    hazards
}

/// The family of a plain shape; `None` for that of the most reused blocks.
fn family_of(shape: usize) -> Option<usize> {
    FAMILIES.iter().position(|family| family.contains(&shape))
}

fn summed(rows: &[[Count; BINS]]) -> [Count; BINS] {
    let mut sums = [Count::default(); BINS];
    for row in rows {
        for (sum, count) in sums.iter_mut().zip(row) {
            sum.add(*count);
        }
    }
    sums
}

/// The row's own hazards, each drawn towards `base` by `weight` events.
fn drawn(row: &[Count; BINS], base: &Curve, weight: f64) -> Curve {
    std::array::from_fn(|bin| (row[bin].reused + weight) / (row[bin].exposed + weight / base[bin]))
}

/// The curve of the classes of a level around that of their shape.
pub(super) fn class_curve(row: &[Count], shape: &Curve, level: usize, weight: f64) -> Curve {
    let multiplier = (level as f64 - NEUTRAL_LEVEL as f64).exp2().sqrt();
    let base = shape.map(|h| h * multiplier);
    let own = ratio(row, &base, LEVEL_WEIGHT * weight);
    shrunk(row, &base.map(|h| h * own), CELL_WEIGHT * weight)
}

/// The ratio of observed to expected events under `base`, drawn towards one by `weight` events.
pub(super) fn ratio(row: &[Count], base: &Curve, weight: f64) -> f64 {
    let seen: f64 = row.iter().map(|count| count.reused).sum();
    let expected: f64 = row
        .iter()
        .zip(base)
        .map(|(count, h)| count.exposed * h)
        .sum();
    (seen + weight) / (expected + weight)
}

/// The row's own hazards, each drawn towards `base` by `weight` events, not rising in the tail.
fn shrunk(row: &[Count], base: &Curve, weight: f64) -> Curve {
    let mut weights = [0.0; BINS];
    let mut curve = [0.0; BINS];
    for bin in 0..BINS {
        weights[bin] = row[bin].exposed + weight / base[bin];
        curve[bin] = (row[bin].reused + weight) / weights[bin];
    }
    make_falling(
        &mut curve[FIRST_FALLING_BIN..],
        &weights[FIRST_FALLING_BIN..],
    );
    curve
}

/// Pools adjacent violators until the values do not rise (Ayer, Brunk, Ewing, Reid and Silverman 1955).
fn make_falling(values: &mut [f64], weights: &[f64]) {
    let mut pools: [(f64, f64, usize); BINS] = [(0.0, 0.0, 0); BINS];
    let mut depth = 0;
    for (&value, &weight) in values.iter().zip(weights) {
        pools[depth] = (value, weight, 1);
        while depth > 0 && pools[depth].0 > pools[depth - 1].0 {
            let (above, pool) = (pools[depth], &mut pools[depth - 1]);
            pool.0 = (pool.0 * pool.1 + above.0 * above.1) / (pool.1 + above.1);
            pool.1 += above.1;
            pool.2 += above.2;
            depth -= 1;
        }
        depth += 1;
    }
    let pooled = pools[..depth]
        .iter()
        .flat_map(|&(value, _, count)| std::iter::repeat_n(value, count));
    for (value, pooled) in values.iter_mut().zip(pooled) {
        *value = pooled;
    }
}

pub(super) fn smoothed(curve: &Curve) -> Curve {
    std::array::from_fn(|bin| {
        let (left, right) = (curve[bin.saturating_sub(1)], curve[(bin + 1).min(BINS - 1)]);
        0.4 * curve[bin] + 0.3 * (left + right)
    })
}

/// A stretch of ages: the chance of a hit within it, the expected time spent in it, the chance to outlive it.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    hit: f64,
    time: f64,
    survive: f64,
}

impl Stretch {
    fn of_bin(bin: usize, hazard: f64) -> Self {
        if bin + 1 == BINS {
            return Self {
                hit: 1.0,
                time: 1.0 / hazard,
                survive: 0.0,
            };
        }
        let survive = (-hazard * bin_seconds(bin)).exp();
        Self {
            hit: 1.0 - survive,
            time: (1.0 - survive) / hazard,
            survive,
        }
    }

    fn rate(&self) -> f64 {
        self.hit / self.time
    }

    fn then(&self, next: &Self) -> Self {
        Self {
            hit: self.hit + self.survive * next.hit,
            time: self.time + self.survive * next.time,
            survive: self.survive * next.survive,
        }
    }
}

/// The Gittins index of a class at the beginning of each bin: the most hits a block-second that holding a block can
/// give, over all ages to stop at (Gittins 1979; for job ages, Aalto, Ayesta and Righter 2009).
///
/// From the oldest bin down, each stretch absorbs the next older ones while these have a higher rate.
pub(super) fn gittins_index(curve: &Curve) -> Curve {
    let mut index = [0.0; BINS];
    // Each stretch with its rate, which is compared more than once.
    let none = Stretch {
        hit: 0.0,
        time: 1.0,
        survive: 0.0,
    };
    let mut stack = [(none, 0.0); BINS];
    let mut depth = 0;
    for bin in (0..BINS).rev() {
        let mut stretch = Stretch::of_bin(bin, curve[bin]);
        let mut rate = stretch.rate();
        while depth > 0 && stack[depth - 1].1 > rate {
            stretch = stretch.then(&stack[depth - 1].0);
            rate = stretch.rate();
            depth -= 1;
        }
        index[bin] = rate;
        stack[depth] = (stretch, rate);
        depth += 1;
    }
    index
}

/// The chance that a block which reached the beginning of `bin` returns within the next `seconds`.
pub(super) fn return_chance(curve: &Curve, bin: usize, seconds: f64) -> f64 {
    let (begin, mut expected) = (bin_start_seconds(bin), 0.0);
    for (at, &hazard) in curve.iter().enumerate().skip(bin) {
        let end = if at + 1 < BINS {
            bin_start_seconds(at + 1)
        } else {
            f64::INFINITY
        };
        let overlap = end.min(begin + seconds) - bin_start_seconds(at);
        if overlap <= 0.0 {
            break;
        }
        expected += hazard * overlap;
    }
    1.0 - (-expected).exp()
}

/// A cell and the key that it is sorted by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub(super) key: f32,
    pub(super) cell: u16,
}

/// Bits of a key that [`ranking`] rounds off.
const LEFT_OUT: u32 = 9;

/// The cells of some classes, each with its keys by bin of age, from the lowest key to the highest; of equal ones the older
/// age first, so that without data the order is that of LRU.
///
/// By digits from the last to the first, which takes a quarter of the time of comparisons. No key may be negative.
/// Keys are rounded down to thirteen bits, one part in eight thousand, which spares a third of the work.
pub(super) fn ranking(keys: &[(usize, [f32; BINS])]) -> Vec<Ranked> {
    const DIGIT_BITS: u32 = 11;
    const DIGITS: usize = 2;
    const CELL_BITS: u32 = u16::BITS;
    let digit = |entry: u64, at: usize| {
        (entry >> (CELL_BITS + DIGIT_BITS * at as u32)) as usize & ((1 << DIGIT_BITS) - 1)
    };
    let count = keys.len() * BINS;
    // The key before the cell: the bits of positive floats sort like the floats.
    let mut entries = Vec::with_capacity(count);
    for bin in (0..BINS).rev() {
        entries.extend(keys.iter().map(|(class, keys)| {
            u64::from(keys[bin].to_bits() >> LEFT_OUT) << CELL_BITS | (class * BINS + bin) as u64
        }));
    }
    let mut ends = [[0u16; 1 << DIGIT_BITS]; DIGITS];
    for &entry in &entries {
        for (at, ends) in ends.iter_mut().enumerate() {
            ends[digit(entry, at)] += 1;
        }
    }
    let mut sorted = vec![0; count];
    for (at, ends) in ends.iter_mut().enumerate() {
        let mut end = 0;
        for count in ends.iter_mut() {
            end += *count;
            *count = end;
        }
        // From the last on, so that cells of one digit keep their order.
        for &entry in entries.iter().rev() {
            let end = &mut ends[digit(entry, at)];
            *end -= 1;
            sorted[usize::from(*end)] = entry;
        }
        std::mem::swap(&mut entries, &mut sorted);
    }
    let ranked = entries.iter().map(|&entry| Ranked {
        key: f32::from_bits(((entry >> CELL_BITS) as u32) << LEFT_OUT),
        cell: entry as u16,
    });
    ranked.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::class::CELLS;
    use super::*;

    /// The definition, term by term.
    fn index_by_definition(curve: &Curve, from: usize) -> f64 {
        let (mut hit, mut time, mut survive, mut best) = (0.0, 0.0, 1.0, 0.0f64);
        for (bin, &hazard) in curve.iter().enumerate().skip(from) {
            let width = if bin + 1 < BINS {
                bin_start_seconds(bin + 1) - bin_start_seconds(bin)
            } else {
                f64::INFINITY
            };
            let chance = 1.0 - (-hazard * width).exp();
            hit += survive * chance;
            time += survive * chance / hazard;
            survive *= 1.0 - chance;
            best = best.max(hit / time);
        }
        best
    }

    proptest! {
        #[test]
        fn index_is_the_best_rate_over_all_stopping_ages(exponents in prop::collection::vec(-18.0f64..2.0, BINS)) {
            let curve: Curve = std::array::from_fn(|bin| exponents[bin].exp2());
            let index = gittins_index(&curve);
            for (bin, &index) in index.iter().enumerate() {
                let expected = index_by_definition(&curve, bin);
                prop_assert!((index / expected - 1.0).abs() < 1e-9, "bin {bin}: {index} of {expected}");
            }
        }

        #[test]
        fn pooling_makes_values_fall_and_keeps_their_weighted_sum(
            pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), 1..BINS),
        ) {
            let (mut values, weights): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let sum = |values: &[f64]| -> f64 { values.iter().zip(&weights).map(|(value, weight)| value * weight).sum() };
            let before = sum(&values);
            make_falling(&mut values, &weights);
            prop_assert!(values.windows(2).all(|pair| pair[0] >= pair[1]));
            prop_assert!((sum(&values) / before - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn without_data_older_is_worse_and_levels_order_the_classes() {
        let hazards = hazards(&[Count::default(); CELLS], 10.0, &[true; CLASSES]);
        for class in 0..CLASSES {
            let index = gittins_index(&hazards.classes[class]);
            assert!(
                index.windows(2).all(|pair| pair[0] >= pair[1]),
                "class {class}"
            );
            if class % LEVELS > 0 {
                assert!(
                    index[0] > gittins_index(&hazards.classes[class - 1])[0],
                    "class {class}"
                );
            }
        }
    }

    #[test]
    fn shapes_without_data_share_their_curves() {
        let mut counts = [Count::default(); CELLS];
        counts[0].exposed = 1e6;
        counts[3 * LEVELS * BINS + 5].reused = 10.0;
        let hazards = hazards(&counts, 10.0, &[true; CLASSES]);
        let expected = std::array::from_fn(|shape| match plain_shape(shape).0 {
            0 => 0,
            3 => 3,
            1 | 2 | 4 => 1,
            MOST_REUSED_SHAPE => MOST_REUSED_SHAPE,
            _ => FIRST_REUSED_SHAPE,
        });
        assert_eq!(hazards.same_as, expected);
        for (class, curve) in hazards.classes.iter().enumerate() {
            let same = expected[class / LEVELS] * LEVELS + class % LEVELS;
            assert_eq!(*curve, hazards.classes[same], "class {class}");
        }
        assert_ne!(hazards.classes[0], hazards.classes[LEVELS]);
    }

    fn see(counts: &mut [Count], shape: usize, bins: Range<usize>, reused: f64) {
        let first = (shape * LEVELS + NEUTRAL_LEVEL) * BINS;
        for count in &mut counts[first..][bins] {
            count.reused += reused;
            count.exposed += 1e5;
        }
    }

    /// The block that opened all chains returned every third of a second, and was in the curve that all others were drawn
    /// to: new blocks were kept for their first seconds, in which they never return.
    #[test]
    fn the_most_reused_blocks_say_nothing_of_others() {
        let curves = |of_most_reused: f64| {
            let mut counts = vec![Count::default(); CELLS];
            see(&mut counts, 1, 4..10, 500.0);
            see(&mut counts, FIRST_REUSED_SHAPE, 3..10, 900.0);
            see(&mut counts, MOST_REUSED_SHAPE, 0..1, of_most_reused);
            hazards(&counts, 10.0, &[true; CLASSES])
        };
        let (rarely, often) = (curves(1e3), curves(1e6));
        assert_eq!(rarely.pooled, often.pooled);
        for shape in 0..SHAPES {
            let same = rarely.shapes[shape] == often.shapes[shape];
            assert_eq!(
                same,
                plain_shape(shape).0 != MOST_REUSED_SHAPE,
                "shape {shape}"
            );
        }
    }

    #[test]
    fn shapes_are_drawn_to_those_of_their_family() {
        let mut counts = vec![Count::default(); CELLS];
        see(&mut counts, 0, 4..10, 100.0);
        see(&mut counts, FIRST_REUSED_SHAPE, 4..10, 2_000.0);
        let shapes = hazards(&counts, 10.0, &[true; CLASSES]).shapes;
        // How many times as often blocks of a shape return as those of the first shape that something was counted of.
        let check = |shape: usize, times: Range<f64>| {
            let found = shapes[shape][6] / shapes[0][6];
            assert!(times.contains(&found), "shape {shape}: {found}");
        };
        check(1, 0.9..1.5);
        check(FIRST_REUSED_SHAPE - 1, 0.9..1.5);
        check(FIRST_REUSED_SHAPE, 15.0..21.0);
        check(FIRST_REUSED_SHAPE + 1, 12.0..21.0);
        check(MOST_REUSED_SHAPE - 1, 12.0..21.0);
        // Nothing of it is known: as all others together.
        check(MOST_REUSED_SHAPE, 5.0..12.0);
    }

    /// Data outweighs the prior: a class that returns at a known rate is given that rate.
    #[test]
    fn much_data_outweighs_the_prior() {
        let mut counts = [Count::default(); CELLS];
        let rate = |bin: usize| 0.01 / (bin + 1) as f64;
        for (bin, count) in counts[..BINS].iter_mut().enumerate() {
            *count = Count {
                reused: 1e9 * rate(bin),
                exposed: 1e9,
            };
        }
        let curve = hazards(&counts, 10.0, &[true; CLASSES]).classes[0];
        for (bin, &hazard) in curve.iter().enumerate() {
            assert!(
                (hazard / rate(bin) - 1.0).abs() < 1e-3,
                "bin {bin}: {hazard}"
            );
        }
    }

    #[test]
    fn cells_are_ranked_by_key_and_of_equal_ones_the_older_comes_first() {
        let mut rng = slackwater_base::Rng::new(1);
        // Few distinct keys, so that many are equal, over the whole range of floats.
        let keys: Vec<f32> = (0..CELLS)
            .map(|_| (rng.below(250) as f32 - 125.0).exp2() * (1.0 + rng.below(3) as f32 / 3.0))
            .collect();
        let cells = keys.iter().zip(0..);
        let ranked = |(&key, cell): (&f32, u16)| {
            let key = f32::from_bits(key.to_bits() >> LEFT_OUT << LEFT_OUT);
            Ranked { key, cell }
        };
        let mut expected: Vec<Ranked> = cells.map(ranked).collect();
        expected.sort_by(|a, b| {
            let bin = |ranked: &Ranked| usize::from(ranked.cell) % BINS;
            a.key.total_cmp(&b.key).then(bin(b).cmp(&bin(a)))
        });
        let rows = keys.chunks_exact(BINS).enumerate();
        let rows: Vec<_> = rows
            .map(|(class, row)| (class, std::array::from_fn(|bin| row[bin])))
            .collect();
        assert_eq!(ranking(&rows), expected);
        // Classes that are left out change nothing in the order of the rest.
        let some: Vec<_> = rows
            .into_iter()
            .filter(|(class, _)| class % 3 == 1)
            .collect();
        expected.retain(|ranked| usize::from(ranked.cell) / BINS % 3 == 1);
        assert_eq!(ranking(&some), expected);
    }

    #[test]
    fn return_chance_follows_the_curve() {
        let chance = return_chance(&[0.01; BINS], 5, 100.0);
        assert!((chance - (1.0 - (-1.0f64).exp())).abs() < 1e-12);
        assert!(return_chance(&[0.01; BINS], BINS - 1, 1e9) > 0.999);
    }
}
