//! Which blocks are alike: the class of a segment, its features, and the bins of age.

use slackwater_base::Instant;

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
    /// Ticks since `earlier`; zero when that is later.
    pub(super) const fn since(self, earlier: Tick) -> u32 {
        let ticks = self.0.wrapping_sub(earlier.0);
        if ticks > u32::MAX / 2 { 0 } else { ticks }
    }
}

/// Bins of age: one second, then half octaves up to 36 hours and all beyond.
pub(super) const BINS: usize = 36;
/// From this bin on (90 s) a class's hazard is assumed not to rise with age.
pub(super) const FIRST_FALLING_BIN: usize = 14;

/// Where bin `bin` begins, in seconds.
pub(super) const fn bin_start_seconds(bin: usize) -> f64 {
    if bin == 0 {
        return 0.0;
    }
    let half_octave = if bin.is_multiple_of(2) {
        std::f64::consts::SQRT_2
    } else {
        1.0
    };
    (1u64 << ((bin - 1) / 2)) as f64 * half_octave
}

/// Where each bin begins, in ticks.
pub(super) fn bin_starts() -> [u32; BINS] {
    std::array::from_fn(|bin| (bin_start_seconds(bin) / TICK_SECONDS) as u32)
}

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

/// Shapes of the hazard: of blocks never reused, five by the length of the output and two by a hint that tells
/// something; of reused ones, five by reuse count and four by such a hint.
pub(super) const SHAPES: usize = 16;
/// The first shape of blocks that were reused.
pub(super) const FIRST_REUSED_SHAPE: usize = 7;
/// The first shapes of hinted blocks: never reused, reused once, and more often.
const HINTED_SHAPES: [usize; 3] = [5, 12, 14];
/// Levels of the multiplier, half octaves around [`NEUTRAL_LEVEL`].
pub(super) const LEVELS: usize = 13;
/// The level of a multiplier of one.
pub(super) const NEUTRAL_LEVEL: usize = 6;
/// Number of classes: shapes times levels.
pub(super) const CLASSES: usize = SHAPES * LEVELS;
/// Number of cells: classes times bins of age.
pub(super) const CELLS: usize = CLASSES * BINS;

/// A shape and a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    pub(super) fn new(shape: usize, multiplier: f64) -> Self {
        let level = (2.0 * multiplier.log2()).round() + NEUTRAL_LEVEL as f64;
        Self((shape * LEVELS + level.clamp(0.0, LEVELS as f64 - 1.0) as usize) as u8)
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
    let returns = match outlook {
        Outlook::Unknown if bucket > 0 => return FIRST_REUSED_SHAPE - 1 + bucket as usize,
        Outlook::Unknown => {
            return match output_tokens {
                Some(0..40) => 0,
                Some(40..150) => 1,
                Some(150..350) => 2,
                Some(_) => 3,
                None => 4,
            };
        }
        Outlook::Leaves => 0,
        Outlook::Returns => 1,
    };
    HINTED_SHAPES[group(bucket)] + returns
}

/// What the hint of blocks of a shape says.
pub(super) fn outlook(shape: usize) -> Outlook {
    for first in HINTED_SHAPES {
        match shape.wrapping_sub(first) {
            0 => return Outlook::Leaves,
            1 => return Outlook::Returns,
            _ => {}
        }
    }
    Outlook::Unknown
}

/// The features of a request's blocks beside their class, packed in twelve bits: group of reuse count, new length, gap
/// since the last turn, the caller's hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(pub(super) u16);

pub(super) const GROUPS: usize = 3;
pub(super) const NEW_BUCKETS: usize = 8;
pub(super) const GAP_BUCKETS: usize = 6;
pub(super) const HINT_BUCKETS: usize = 16;

/// The gap bucket of a request that continues nothing.
pub(super) const NO_GAP: u8 = 0;

impl Features {
    pub(super) const fn new(new_bucket: u8, gap_bucket: u8, hint_bucket: u8) -> Self {
        Self((new_bucket as u16) << 7 | (gap_bucket as u16) << 4 | hint_bucket as u16)
    }

    /// The same request's features for blocks of another reuse count.
    pub(super) const fn with_count(self, bucket: u8) -> Self {
        Self(self.0 & 0x3ff | (group(bucket) as u16) << 10)
    }

    const fn group(self) -> usize {
        (self.0 >> 10) as usize
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

    /// Row of the table of hints, of which each group has one for blocks without a hint too.
    pub(super) const fn any_hint_row(self) -> usize {
        self.group() * HINT_BUCKETS + (self.0 & 15) as usize
    }

    /// Row of the table of hints; `None` where the caller gave none.
    pub(super) fn hint_row(self) -> Option<usize> {
        self.hint().map(|_| self.any_hint_row())
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
    fn bins_are_half_octaves_up_to_36_hours() {
        assert_eq!(bin_start_seconds(1), 1.0);
        assert_eq!(bin_start_seconds(3), 2.0);
        assert_eq!(bin_start_seconds(BINS - 1), 131_072.0);
        assert!((90.0..91.0).contains(&bin_start_seconds(FIRST_FALLING_BIN)));
        assert!(bin_starts().windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn features_unpack_to_what_was_packed() {
        let features = Features::new(new_bucket(12.0), gap_bucket(61.0), hint_bucket(Some(3)));
        for (bucket, group) in [(0, 0), (1, 1), (2, 2), (5, 2)] {
            let features = features.with_count(bucket);
            assert_eq!(features.new_row(), group * NEW_BUCKETS + 4);
            assert_eq!(features.gap_row(), group * GAP_BUCKETS + 3);
            assert_eq!(features.hint_row(), Some(group * HINT_BUCKETS + 4));
        }
        assert_eq!(Features::new(0, NO_GAP, hint_bucket(None)).hint_row(), None);
    }

    #[test]
    fn every_shape_has_one_meaning() {
        let outputs = [Some(0), Some(40), Some(150), Some(350), None];
        let mut shapes = Vec::new();
        for bucket in 0..=5 {
            let plain = outputs.map(|output| shape(bucket, output, Outlook::Unknown));
            shapes.extend(plain);
            for hinted in [Outlook::Leaves, Outlook::Returns] {
                let shape = shape(bucket, None, hinted);
                assert_eq!(outlook(shape), hinted);
                assert_eq!(shape >= FIRST_REUSED_SHAPE, bucket > 0, "{bucket}");
                shapes.push(shape);
            }
            for shape in plain {
                assert_eq!(outlook(shape), Outlook::Unknown);
                assert_eq!(shape >= FIRST_REUSED_SHAPE, bucket > 0, "{bucket}");
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
        assert_eq!(Class::new(9, 1.0).shape(), 9);
    }

    #[test]
    fn ticks_order_across_their_wrap() {
        assert_eq!(Tick(3).since(Tick(u32::MAX)), 4);
        assert_eq!(Tick(u32::MAX).since(Tick(3)), 0);
    }
}
