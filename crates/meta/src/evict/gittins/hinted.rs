//! Hazards of blocks that a hint tells something about: from the curves of all blocks of their kind follows what blocks do
//! of which such a thing is said, and from their own returns how much it is worth in fact.

use std::borrow::Cow;

use super::class::{
    BINS, FIRST_REUSED_SHAPE, HINTED_SHAPES, LEVELS, PLAIN_CELLS, PLAIN_SHAPES, bin_beginning_at,
    bin_start_seconds, hinted_shape, plain_shape,
};
use super::estimate::{Count, Curve, Hazards, ratio, smoothed};
use super::outlook::Outlook;

/// How often what a hint says is taken to be right before its returns are known.
const ACCURACY: f64 = 0.8;
/// The bin of age that the ten minutes end in, within which a continued chain is continued.
const HORIZON: usize = bin_beginning_at(512.0);
/// Strength of that belief, in typical events: over all ages, and in each bin of age.
const WEIGHT: f64 = 10.0;
/// Plain shapes whose hints are judged together: blocks that were never reused, reused once, and more often.
const KINDS: [std::ops::Range<usize>; 3] = [
    0..FIRST_REUSED_SHAPE,
    FIRST_REUSED_SHAPE..FIRST_REUSED_SHAPE + 1,
    FIRST_REUSED_SHAPE + 1..HINTED_SHAPES,
];
/// No hazard is less than this part of that of all blocks of the kind.
const LEAST_PART: f64 = 0.01;

/// The counts of the plain classes, with those of hinted blocks of each.
pub(super) fn plain_counts(counts: &[Count]) -> Cow<'_, [Count]> {
    let (plain, hinted) = counts.split_at(PLAIN_CELLS);
    if hinted.is_empty() {
        return Cow::Borrowed(plain);
    }
    let mut sums = plain.to_vec();
    for (at, shape) in hinted.chunks_exact(LEVELS * BINS).enumerate() {
        let first = plain_shape(PLAIN_SHAPES + at).0 * LEVELS * BINS;
        let sums = &mut sums[first..first + LEVELS * BINS];
        for (sum, count) in sums.iter_mut().zip(shape) {
            sum.add(*count);
        }
    }
    Cow::Owned(sums)
}

/// Gives the hinted shapes curves of their own, as soon as there are any such blocks. They come with those of their plain
/// shapes.
pub(super) fn apply(hazards: &mut Hazards, counts: &[Count], weight: f64) {
    if counts[PLAIN_CELLS..]
        .iter()
        .all(|count| *count == Count::default())
    {
        return;
    }
    for kind in KINDS {
        for (outlook, accuracy) in [
            (Outlook::Leaves, 1.0 - ACCURACY),
            (Outlook::Returns, ACCURACY),
        ] {
            let shapes = || kind.clone().map(|plain| hinted_shape(plain, outlook));
            let mut seen = [Count::default(); BINS];
            for shape in shapes() {
                hazards.same_as[shape] = shape;
                hazards.shapes[shape] = said(&hazards.shapes[shape], accuracy);
                for class in shape * LEVELS..(shape + 1) * LEVELS {
                    let curve = &mut hazards.classes[class];
                    *curve = said(curve, accuracy);
                    let row = &counts[class * BINS..(class + 1) * BINS];
                    for (bin, (sum, count)) in seen.iter_mut().zip(row).enumerate() {
                        sum.reused += count.reused;
                        // At risk in units of expected returns.
                        sum.exposed += count.exposed * curve[bin];
                    }
                }
            }
            let correction = correction(&seen, weight);
            for shape in shapes() {
                let classes = &mut hazards.classes[shape * LEVELS..(shape + 1) * LEVELS];
                for curve in classes.iter_mut().chain([&mut hazards.shapes[shape]]) {
                    for (hazard, times) in curve.iter_mut().zip(correction) {
                        *hazard *= times;
                    }
                }
            }
        }
    }
}

/// How many times as often blocks returned as expected, by bin of age, drawn to the mean over all ages, and that to one.
fn correction(seen: &[Count; BINS], weight: f64) -> Curve {
    let prior = WEIGHT * weight;
    let mean = ratio(seen, &[1.0; BINS], prior);
    smoothed(&seen.map(|count| (count.reused + prior) / (count.exposed + prior / mean)))
}

/// The hazard of blocks of which is said that they return within ten minutes, where this is right with `accuracy` for those
/// that do and for those that do not. Below one half it is said that they do not.
///
/// By Bayes' rule the odds of a return are multiplied by those of the accuracy. Blocks that do not return in time have no
/// hazard until then, and that of all others after it.
fn said(base: &Curve, accuracy: f64) -> Curve {
    let width = |bin: usize| bin_start_seconds(bin + 1) - bin_start_seconds(bin);
    let mut left = [1.0; HORIZON + 1];
    for bin in 1..=HORIZON {
        left[bin] = left[bin - 1] * (-base[bin - 1] * width(bin - 1)).exp();
    }
    let last = left[HORIZON];
    let returns = (1.0 - last).clamp(1e-9, 1.0 - 1e-9);
    let (right, wrong) = (accuracy * returns, (1.0 - accuracy) * (1.0 - returns));
    let share = right / (right + wrong);
    // The chance to be there still, when the bin begins.
    let alive = |bin: usize| share * (left[bin] - last) / returns + 1.0 - share;
    std::array::from_fn(|bin| {
        if bin < HORIZON {
            // Where nearly all return sooner, the rest would have none.
            let hazard = (alive(bin) / alive(bin + 1)).ln() / width(bin);
            hazard.max(LEAST_PART * base[bin])
        } else {
            base[bin]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::class::{CELLS, CLASSES, NEUTRAL_LEVEL, SHAPES};
    use super::super::estimate::hazards;
    use super::*;

    /// The chance to return within ten minutes.
    fn soon(curve: &Curve) -> f64 {
        let width = |bin: usize| bin_start_seconds(bin + 1) - bin_start_seconds(bin);
        let expected: f64 = (0..HORIZON).map(|bin| curve[bin] * width(bin)).sum();
        1.0 - (-expected).exp()
    }

    #[test]
    fn what_is_said_multiplies_the_odds_of_a_return_in_time() {
        for base in [1e-6, 1e-4, 1e-3, 1e-2] {
            let base = [base; BINS];
            let odds = |curve: &Curve| soon(curve) / (1.0 - soon(curve));
            for accuracy in [0.5, 0.8, 0.2] {
                let said = said(&base, accuracy);
                let times = odds(&said) / odds(&base);
                let expected = accuracy / (1.0 - accuracy);
                assert!((times / expected - 1.0).abs() < 1e-6, "{times} {expected}");
                assert_eq!(said[HORIZON..], base[HORIZON..]);
            }
        }
        for certain in [1e-12, 1.0, 1e9] {
            let said = said(&[certain; BINS], 0.8);
            assert!(
                said.iter()
                    .all(|hazard| hazard.is_finite() && *hazard > 0.0),
                "{said:?}"
            );
        }
    }

    fn see(counts: &mut [Count], shape: usize, reused: f64, exposed: f64) {
        let first = (shape * LEVELS + NEUTRAL_LEVEL) * BINS;
        for count in &mut counts[first + 4..first + 10] {
            count.reused += reused;
            count.exposed += exposed;
        }
    }

    #[test]
    fn hints_are_believed_at_first_and_then_what_they_were_worth() {
        let chances = |seen: &[(Outlook, f64, f64)]| {
            let mut counts = vec![Count::default(); CELLS];
            see(&mut counts, 0, 500.0, 5e5);
            for &(outlook, reused, exposed) in seen {
                see(&mut counts, hinted_shape(0, outlook), reused, exposed);
            }
            let hazards = hazards(&counts, 10.0, &[true; CLASSES]);
            let chance = |outlook| {
                let class = hinted_shape(0, outlook) * LEVELS + NEUTRAL_LEVEL;
                soon(&hazards.classes[class]) / soon(&hazards.classes[NEUTRAL_LEVEL])
            };
            [chance(Outlook::Leaves), chance(Outlook::Returns)]
        };
        let check =
            |story: &str, seen: &[(Outlook, f64, f64)], leaves: (f64, f64), returns: (f64, f64)| {
                let [left, returned] = chances(seen);
                assert!((leaves.0..leaves.1).contains(&left), "{story}: {left}");
                assert!(
                    (returns.0..returns.1).contains(&returned),
                    "{story}: {returned}"
                );
            };
        use Outlook::{Leaves, Returns};
        check("no hints", &[], (0.999, 1.001), (0.999, 1.001));
        check("one", &[(Returns, 0.2, 100.0)], (0.2, 0.6), (1.2, 2.5));
        let wrong = [(Leaves, 300.0, 1e5), (Returns, 20.0, 1e5)];
        check("always wrong", &wrong, (1.3, 4.0), (0.1, 0.5));
        let random = [(Leaves, 100.0, 1e5), (Returns, 100.0, 1e5)];
        check("at random", &random, (0.8, 1.25), (0.8, 1.25));
    }

    /// A share of requests with hints left the others with less evidence, and a small cache lost what the hints gained.
    #[test]
    fn hints_take_no_evidence_from_blocks_without_them() {
        let mut apart = vec![Count::default(); CELLS];
        see(&mut apart, 1, 70.0, 1e5);
        see(&mut apart, hinted_shape(1, Outlook::Returns), 60.0, 2e4);
        see(&mut apart, hinted_shape(1, Outlook::Leaves), 10.0, 5e4);
        let mut together = vec![Count::default(); CELLS];
        see(&mut together, 1, 140.0, 1.7e5);
        let (apart, together) = (
            hazards(&apart, 10.0, &[true; CLASSES]),
            hazards(&together, 10.0, &[true; CLASSES]),
        );
        for class in 0..PLAIN_SHAPES * LEVELS {
            for bin in 0..BINS {
                let (one, other) = (apart.classes[class][bin], together.classes[class][bin]);
                assert!((one / other - 1.0).abs() < 1e-9, "class {class}, bin {bin}");
            }
        }
        assert_eq!((apart.classes.len(), SHAPES * LEVELS), (CLASSES, CLASSES));
    }
}
