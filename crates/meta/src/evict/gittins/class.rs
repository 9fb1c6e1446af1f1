//! Which blocks are alike: the class of a segment, its features, and the bins of age.

use slackwater_base::Instant;
use slackwater_wire::Expectation;

use super::outlook::Outlook;

/// Time since the policy's first call, in units of 2^24 ns, about 17 ms. Thirty-two bits are enough for two years and
/// keep a segment small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tick(pub(super) u32);

/// Seconds a tick.
pub(super) const TICK_SECONDS: f64 = 0.016_777_216;

/// The time of a policy's first call. The clock counts from the boot of the machine, which may be longer ago than a
/// [`Tick`] can hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin(Option<u64>);

impl Origin {
    /// The tick of `now`; the first call is the origin.
    pub(super) fn advance(&mut self, now: Instant) -> Tick {
        self.0.get_or_insert(clock_ticks(now));
        self.tick(now)
    }

    /// The tick of `now`; zero before the first call.
    pub(super) fn tick(self, now: Instant) -> Tick {
        let now = clock_ticks(now);
        Tick(now.saturating_sub(self.0.unwrap_or(now)) as u32)
    }
}

const fn clock_ticks(now: Instant) -> u64 {
    now.as_nanos() >> 24
}

impl Tick {
    /// The tick so many later.
    pub(super) const fn after(self, ticks: u32) -> Tick {
        Tick(self.0.wrapping_add(ticks))
    }

    /// Ticks since `earlier`; zero when that is later.
    pub(super) const fn since(self, earlier: Tick) -> u32 {
        let ticks = self.0.wrapping_sub(earlier.0);
        if ticks > u32::MAX / 2 { 0 } else { ticks }
    }
}

/// Bins of age: two seconds, then octaves up to 36 hours and all beyond, those of [`HALVED`] in two.
pub(super) const BINS: usize = 24;
/// Octaves that have two bins, in seconds: the ages at which blocks mostly leave. Finer ones, there or elsewhere, take time
/// and tell no more.
const HALVED: std::ops::Range<f64> = 64.0..4096.0;
/// From this bin on (90 s) a class's hazard is assumed not to rise with age.
pub(super) const FIRST_FALLING_BIN: usize = bin_beginning_at(64.0 * std::f64::consts::SQRT_2);

/// Where bin `bin` begins, in seconds.
pub(super) const fn bin_start_seconds(bin: usize) -> f64 {
    BIN_STARTS[bin]
}

/// How long bin `bin` lasts, in seconds. The last one has no end.
pub(super) const fn bin_seconds(bin: usize) -> f64 {
    if bin + 1 < BINS {
        BIN_STARTS[bin + 1] - BIN_STARTS[bin]
    } else {
        f64::INFINITY
    }
}

static BIN_STARTS: [f64; BINS] = {
    let (mut starts, mut bin, mut octave) = ([0.0; BINS], 1, 2.0);
    while bin < BINS {
        starts[bin] = octave;
        bin += 1;
        if HALVED.start <= octave && octave < HALVED.end {
            starts[bin] = octave * std::f64::consts::SQRT_2;
            bin += 1;
        }
        octave *= 2.0;
    }
    starts
};

/// The bin that begins after so many seconds.
pub(super) const fn bin_beginning_at(seconds: f64) -> usize {
    let mut bin = 0;
    while BIN_STARTS[bin] < seconds {
        bin += 1;
    }
    assert!(BIN_STARTS[bin] == seconds, "no bin begins there");
    bin
}

/// Where each bin begins, in ticks.
pub(super) fn bin_starts() -> [u32; BINS] {
    std::array::from_fn(|bin| (bin_start_seconds(bin) / TICK_SECONDS) as u32)
}

/// Number of [`count_bucket`]s.
pub(super) const COUNT_BUCKETS: usize = 6;

/// Buckets of the reuse count: 0, 1, 2, 3-4, 5-9, 10 and more.
pub(super) const fn count_bucket(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3..=4 => 3,
        5..=9 => 4,
        _ => 5,
    }
}

/// Shapes of blocks that no hint tells anything of: of those never reused, five by the length of the output; of reused
/// ones, five by reuse count.
pub(super) const PLAIN_SHAPES: usize = 10;
/// The first plain shape of blocks that were reused.
pub(super) const FIRST_REUSED_SHAPE: usize = 5;
/// Each of the first plain shapes has two more, of blocks that a hint says leave or return. Blocks reused ten times and more
/// return whatever a hint says.
pub(super) const HINTED_SHAPES: usize = 9;
/// Shapes of the hazard.
pub(super) const SHAPES: usize = PLAIN_SHAPES + 2 * HINTED_SHAPES;
/// Levels of the multiplier, half octaves around [`NEUTRAL_LEVEL`].
pub(super) const LEVELS: usize = 9;
/// The level of a multiplier of one.
pub(super) const NEUTRAL_LEVEL: usize = 4;
/// Number of classes: shapes times levels.
pub(super) const CLASSES: usize = SHAPES * LEVELS;
/// Cells of the plain shapes, which come first.
pub(super) const PLAIN_CELLS: usize = PLAIN_SHAPES * LEVELS * BINS;
/// Number of cells: classes times bins of age.
pub(super) const CELLS: usize = CLASSES * BINS;

/// The multipliers from which the next level is nearer: odd quarters of an octave.
const LEVEL_EDGES: [f64; LEVELS - 1] = {
    // Two to the power of one quarter, and its third power.
    const QUARTER: f64 = 1.189_207_115_002_721;
    const THREE_QUARTERS: f64 = 1.681_792_830_507_429;
    [
        QUARTER / 4.0,
        THREE_QUARTERS / 4.0,
        QUARTER / 2.0,
        THREE_QUARTERS / 2.0,
        QUARTER,
        THREE_QUARTERS,
        QUARTER * 2.0,
        THREE_QUARTERS * 2.0,
    ]
};

/// A shape and a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    pub(super) fn new(shape: usize, multiplier: f64) -> Self {
        let level: usize = LEVEL_EDGES
            .iter()
            .map(|&edge| usize::from(multiplier >= edge))
            .sum();
        Self((shape * LEVELS + level) as u8)
    }

    /// The class of a number from another instance, limited to the valid range.
    pub(super) fn clamped(number: u8) -> Self {
        Self(number.min(CLASSES as u8 - 1))
    }

    pub(super) const fn shape(self) -> usize {
        self.0 as usize / LEVELS
    }

    pub(super) const fn level(self) -> usize {
        self.0 as usize % LEVELS
    }

    pub(super) const fn cell(self, bin: u8) -> usize {
        self.0 as usize * BINS + bin as usize
    }
}

/// The shape of a block by the bucket of its reuse count, the output length of the request that inserted it, and what
/// the request's hint says.
pub(super) const fn shape(bucket: u8, output_tokens: Option<u32>, outlook: Outlook) -> usize {
    let plain = match (bucket, output_tokens) {
        (1.., _) => FIRST_REUSED_SHAPE - 1 + bucket as usize,
        (0, Some(0..40)) => 0,
        (0, Some(40..150)) => 1,
        (0, Some(150..350)) => 2,
        (0, Some(_)) => 3,
        (0, None) => 4,
    };
    hinted_shape(plain, outlook)
}

/// The shape of blocks of a plain shape whose hint says something.
pub(super) const fn hinted_shape(plain: usize, outlook: Outlook) -> usize {
    match outlook {
        Outlook::Leaves if plain < HINTED_SHAPES => PLAIN_SHAPES + 2 * plain,
        Outlook::Returns if plain < HINTED_SHAPES => PLAIN_SHAPES + 2 * plain + 1,
        _ => plain,
    }
}

/// The plain shape of blocks of any shape, and what their hint says.
pub(super) const fn plain_shape(shape: usize) -> (usize, Outlook) {
    match shape.checked_sub(PLAIN_SHAPES) {
        None => (shape, Outlook::Unknown),
        Some(hinted) if hinted.is_multiple_of(2) => (hinted / 2, Outlook::Leaves),
        Some(hinted) => (hinted / 2, Outlook::Returns),
    }
}

/// Whether blocks of a shape were reused.
pub(super) const fn is_reused(shape: usize) -> bool {
    plain_shape(shape).0 >= FIRST_REUSED_SHAPE
}

/// The features of a request's blocks beside their class, packed in fourteen bits: group of reuse count, what the caller
/// expects, new length, gap since the last turn, the caller's opaque hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(pub(super) u16);

pub(super) const GROUPS: usize = 3;
pub(super) const NEW_BUCKETS: usize = 8;
pub(super) const GAP_BUCKETS: usize = 6;
pub(super) const HINT_BUCKETS: usize = 16;

/// The gap bucket of a request that continues nothing.
pub(super) const NO_GAP: u8 = 0;

impl Features {
    pub(super) const fn new(
        new_bucket: u8,
        gap_bucket: u8,
        hint_bucket: u8,
        expect: Option<Expectation>,
    ) -> Self {
        let expect = match expect {
            None => 0,
            Some(Expectation::Ends) => 1,
            Some(Expectation::Continues) => 2,
        };
        Self(
            expect << 10 | (new_bucket as u16) << 7 | (gap_bucket as u16) << 4 | hint_bucket as u16,
        )
    }

    /// What the caller expects of the chain.
    pub(super) const fn expect(self) -> Option<Expectation> {
        match self.0 >> 10 & 3 {
            1 => Some(Expectation::Ends),
            2 => Some(Expectation::Continues),
            _ => None,
        }
    }

    /// The same request's features for blocks of another reuse count.
    pub(super) const fn with_count(self, bucket: u8) -> Self {
        Self(self.0 & 0xfff | (group(bucket) as u16) << 12)
    }

    /// The group of reuse count.
    pub(super) const fn group(self) -> usize {
        (self.0 >> 12) as usize
    }

    /// Row of the table of new lengths.
    pub(super) const fn new_row(self) -> usize {
        self.group() * NEW_BUCKETS + (self.0 >> 7 & 7) as usize
    }

    /// Row of the table of gaps.
    pub(super) const fn gap_row(self) -> usize {
        self.group() * GAP_BUCKETS + (self.0 >> 4 & 7) as usize
    }

    /// The bucket of the hint; `None` where the caller gave none.
    pub(super) const fn hint(self) -> Option<usize> {
        match self.0 & 15 {
            0 => None,
            hint => Some(hint as usize),
        }
    }

    /// Row of the table of hints; `None` where the caller gave none.
    pub(super) fn hint_row(self) -> Option<usize> {
        self.hint().map(|hint| self.group() * HINT_BUCKETS + hint)
    }
}

/// The group of a bucket of reuse count: never, once, and more often.
const fn group(bucket: u8) -> usize {
    if bucket < 2 { bucket as usize } else { 2 }
}

/// Bucket of the number of new blocks of 512 tokens.
pub(super) fn new_bucket(blocks: f64) -> u8 {
    [2.0, 4.0, 7.0, 12.0, 20.0, 40.0, 80.0]
        .iter()
        .filter(|&&edge| blocks >= edge)
        .count() as u8
}

/// Bucket of the time since the deepest block that was known was last used.
pub(super) fn gap_bucket(seconds: f64) -> u8 {
    1 + [20.0, 60.0, 180.0, 600.0]
        .iter()
        .filter(|&&edge| seconds >= edge)
        .count() as u8
}

/// The bucket of an opaque hint; there are fifteen.
pub(super) const fn hint_bucket(hint: Option<u32>) -> u8 {
    match hint {
        None => 0,
        Some(hint) => 1 + (hint % (HINT_BUCKETS as u32 - 1)) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_count_from_the_first_call_however_long_the_machine_has_run() {
        let three_years = Instant::from_nanos(3 * 365 * 24 * 3600 * 1_000_000_000);
        let mut origin = Origin::default();
        assert_eq!(origin.tick(three_years), Tick(0));
        assert_eq!(origin.advance(three_years), Tick(0));
        let later = three_years + std::time::Duration::from_nanos(5 << 24);
        assert_eq!(origin.advance(later), Tick(5));
        assert_eq!(origin.tick(later), Tick(5));
        assert_eq!(origin.tick(Instant::ZERO), Tick(0));
    }

    #[test]
    fn bins_are_octaves_and_half_octaves_up_to_36_hours() {
        assert_eq!(
            [0, 1, 2, 6, 8].map(bin_start_seconds),
            [0.0, 2.0, 4.0, 64.0, 128.0]
        );
        assert_eq!(bin_start_seconds(bin_beginning_at(4096.0) + 1), 8192.0);
        assert_eq!(bin_start_seconds(BINS - 1), 131_072.0);
        assert!((90.0..91.0).contains(&bin_start_seconds(FIRST_FALLING_BIN)));
        assert!(bin_starts().windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn features_unpack_to_what_was_packed() {
        let features = Features::new(
            new_bucket(12.0),
            gap_bucket(61.0),
            hint_bucket(Some(3)),
            Some(Expectation::Continues),
        );
        for (bucket, group) in [(0, 0), (1, 1), (2, 2), (5, 2)] {
            let features = features.with_count(bucket);
            assert_eq!(features.new_row(), group * NEW_BUCKETS + 4);
            assert_eq!(features.gap_row(), group * GAP_BUCKETS + 3);
            assert_eq!(features.hint_row(), Some(group * HINT_BUCKETS + 4));
            assert_eq!(features.expect(), Some(Expectation::Continues));
        }
        for expect in [None, Some(Expectation::Ends), Some(Expectation::Continues)] {
            let features = Features::new(7, 5, hint_bucket(None), expect).with_count(5);
            assert_eq!((features.hint_row(), features.expect()), (None, expect));
        }
    }

    #[test]
    fn every_shape_has_one_meaning() {
        let outputs = [Some(0), Some(40), Some(150), Some(350), None];
        let mut shapes = Vec::new();
        for bucket in 0..=5 {
            for output in outputs {
                let plain = shape(bucket, output, Outlook::Unknown);
                for outlook in [Outlook::Unknown, Outlook::Leaves, Outlook::Returns] {
                    let shape = shape(bucket, output, outlook);
                    // The most reused ones return whatever a hint says.
                    let heard = if bucket < 5 {
                        outlook
                    } else {
                        Outlook::Unknown
                    };
                    assert_eq!(plain_shape(shape), (plain, heard));
                    assert_eq!(hinted_shape(plain, heard), shape);
                    assert_eq!(is_reused(shape), bucket > 0, "{bucket}");
                    shapes.push(shape);
                }
            }
        }
        shapes.sort_unstable();
        shapes.dedup();
        assert!(shapes.into_iter().eq(0..SHAPES));
    }

    #[test]
    fn levels_are_half_octaves_around_one() {
        let check = |multiplier: f64, level: usize| {
            assert_eq!(Class::new(9, multiplier).level(), level, "{multiplier}")
        };
        check(1.0, NEUTRAL_LEVEL);
        check(2.0, NEUTRAL_LEVEL + 2);
        check(0.001, 0);
        check(1000.0, LEVELS - 1);
        // The edges are constants: each is where the nearest half octave changes.
        for at in 1..1_000 {
            let multiplier = f64::from(at) / 100.0;
            let nearest = (2.0 * multiplier.log2()).round() + NEUTRAL_LEVEL as f64;
            check(multiplier, nearest.clamp(0.0, LEVELS as f64 - 1.0) as usize);
        }
        assert_eq!(Class::new(9, 1.0).shape(), 9);
    }

    #[test]
    fn ticks_order_across_their_wrap() {
        assert_eq!(Tick(3).since(Tick(u32::MAX)), 4);
        assert_eq!(Tick(u32::MAX).since(Tick(3)), 0);
    }
}
