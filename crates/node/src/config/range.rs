use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, ByteSize};

use super::{Ratio, Value};

/// Which values of its type an option takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Range<T> {
    /// This or more.
    AtLeast(T),
    /// Zero, or this or more.
    ZeroOrAtLeast(T),
    /// Both ends included.
    Between(T, T),
    /// As `Between`, in whole blocks of the disk.
    Blocks(T, T),
    /// A value outside is taken as the nearer end, with a warning.
    Clamped(T, T),
}

/// A type of option whose values can have a range.
pub(super) trait Bounded: Value + PartialOrd {
    /// Whether the value is zero bytes.
    fn is_zero(&self) -> bool {
        false
    }

    /// Whether the value is a number of bytes that ends on a block of the disk.
    fn is_whole_blocks(&self) -> bool {
        false
    }
}

impl Bounded for u32 {}
impl Bounded for Duration {}
impl Bounded for Ratio {}

impl Bounded for ByteSize {
    fn is_zero(&self) -> bool {
        self.0 == 0
    }

    fn is_whole_blocks(&self) -> bool {
        self.0.is_multiple_of(BLOCK_BYTES)
    }
}

impl<T: Bounded> Range<T> {
    /// Whether the value lies in the range.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(&self, value: &T) -> Result<(), String> {
        let shown = value.show();
        match self {
            Range::Clamped(..) => Ok(()),
            Range::ZeroOrAtLeast(_) if value.is_zero() => Ok(()),
            Range::AtLeast(least) | Range::ZeroOrAtLeast(least) if value < least => {
                Err(format!("{shown} must be at least {}", least.show()))
            }
            Range::Between(least, most) | Range::Blocks(least, most)
                if value < least || value > most =>
            {
                let (least, most) = (least.show(), most.show());
                Err(format!("{shown} is not between {least} and {most}"))
            }
            Range::Blocks(..) if !value.is_whole_blocks() => {
                Err(format!("{shown} is not a multiple of {BLOCK_BYTES} bytes"))
            }
            _ => Ok(()),
        }
    }

    /// The range as documentation writes it.
    pub(super) fn text(&self) -> String {
        match self {
            Range::AtLeast(least) => format!("at least {}", least.show()),
            Range::ZeroOrAtLeast(least) => format!("0 or at least {}", least.show()),
            Range::Between(least, most) => format!("from {} to {}", least.show(), most.show()),
            Range::Blocks(least, most) => format!(
                "from {} to {}, a multiple of {BLOCK_BYTES} bytes",
                least.show(),
                most.show()
            ),
            Range::Clamped(least, most) => format!(
                "from {} to {}, others are taken as the nearer end",
                least.show(),
                most.show()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_takes_what_it_says() {
        let check = |range: Range<ByteSize>, taken: &[u64], refused: &[u64]| {
            for bytes in taken {
                assert_eq!(range.check(&ByteSize(*bytes)), Ok(()), "{range:?} {bytes}");
            }
            for bytes in refused {
                let refusal = range.check(&ByteSize(*bytes)).unwrap_err();
                assert!(refusal.contains(&ByteSize(*bytes).show()), "{refusal}");
            }
            assert!(!range.text().is_empty());
        };
        let (least, most) = (ByteSize(4096), ByteSize(16384));
        check(Range::AtLeast(least), &[4096, 16385], &[0, 4095]);
        check(Range::ZeroOrAtLeast(least), &[0, 4096], &[1, 4095]);
        check(
            Range::Between(least, most),
            &[4096, 5000, 16384],
            &[4095, 16385],
        );
        check(Range::Blocks(least, most), &[4096, 8192], &[5000, 0, 20480]);
        check(Range::Clamped(least, most), &[0, 4096, 20480], &[]);
    }
}
