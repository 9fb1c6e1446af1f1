use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// A number of bytes that is parsed and printed as people write it: `64KiB`, `1.5GiB`, `200GB`, `4096`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is not a size or duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseUnitError {
    /// The text is empty or only white space.
    #[error("empty text where a {what} was expected (such as {example})")]
    Empty {
        /// What the text should have been.
        what: &'static str,
        /// A text that would have been right.
        example: &'static str,
    },
    /// The part before the unit is not a non-negative number.
    #[error("`{text}` is not a {what}: `{number}` is not a number (write it as {example})")]
    Number {
        /// What the text should have been.
        what: &'static str,
        /// The whole text.
        text: String,
        /// The part that should have been a number.
        number: String,
        /// A text that would have been right.
        example: &'static str,
    },
    /// The unit is unknown.
    #[error("`{text}` is not a {what}: unknown unit `{unit}` (known: {known})")]
    Unit {
        /// What the text should have been.
        what: &'static str,
        /// The whole text.
        text: String,
        /// The part that should have been a unit.
        unit: String,
        /// The known units.
        known: &'static str,
    },
    /// The value does not fit.
    #[error("`{text}` is too large for a {what}")]
    Range {
        /// What the text should have been.
        what: &'static str,
        /// The whole text.
        text: String,
    },
}

impl ByteSize {
    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let bytes = parse_scaled(text, &SIZES)?;
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("TiB", 1u64 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        match units.iter().find(|(_, scale)| self.0 >= *scale) {
            Some((unit, scale)) if self.0.is_multiple_of(*scale) => {
                write!(f, "{}{unit}", self.0 / scale)
            }
            Some((unit, scale)) => write!(f, "{:.2}{unit}", self.0 as f64 / *scale as f64),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Reads a duration such as `100ms`, `1.5s`, `30m`, `250us`, `1h`, `2d`; a bare number is in milliseconds.
///
/// # Errors
/// Names the part of the text that is wrong, and an example.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    Ok(Duration::from_nanos(parse_scaled(text, &DURATIONS)? as u64))
}

/// Writes a duration in the largest unit that keeps it exact or readable: `1.50s`, `250us`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units: [(&str, u128); 6] = [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];
    let Some((unit, scale)) = units.iter().find(|(_, scale)| nanos >= *scale) else {
        return "0s".to_owned();
    };
    if nanos.is_multiple_of(*scale) {
        return format!("{}{unit}", nanos / scale);
    }
    format!("{:.2}{unit}", nanos as f64 / *scale as f64)
}

struct Scale {
    what: &'static str,
    example: &'static str,
    known: &'static str,
    units: &'static [(&'static str, u64)],
}

const SIZES: Scale = Scale {
    what: "size",
    example: "512MiB",
    known: "B, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
    units: &[
        ("", 1),
        ("b", 1),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("t", 1 << 40),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
    ],
};

const DURATIONS: Scale = Scale {
    what: "duration",
    example: "100ms",
    known: "ns, us, ms, s, m, h, d",
    units: &[
        ("", 1_000_000),
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ],
};

/// The value of `text` in the scale's smallest unit; exact for whole numbers, rounded to nearest for fractions.
fn parse_scaled(text: &str, scale: &Scale) -> Result<u128, ParseUnitError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(ParseUnitError::Empty {
            what: scale.what,
            example: scale.example,
        });
    }
    let split = trimmed
        .find(|c: char| c.is_alphabetic())
        .unwrap_or(trimmed.len());
    let (number, unit) = (trimmed[..split].trim(), trimmed[split..].trim());
    let range = || ParseUnitError::Range {
        what: scale.what,
        text: text.to_owned(),
    };
    let lower = unit.to_lowercase();
    let (_, factor) = scale
        .units
        .iter()
        .find(|(name, _)| *name == lower)
        .ok_or_else(|| ParseUnitError::Unit {
            what: scale.what,
            text: text.to_owned(),
            unit: unit.to_owned(),
            known: scale.known,
        })?;
    let digits: String = number.chars().filter(|c| *c != '_').collect();
    let bad_number = || ParseUnitError::Number {
        what: scale.what,
        text: text.to_owned(),
        number: number.to_owned(),
        example: scale.example,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !plain {
        return Err(bad_number());
    }
    let value = if digits.contains('.') {
        let fraction: f64 = digits.parse().map_err(|_| bad_number())?;
        (fraction * *factor as f64).round() as u128
    } else {
        let whole: u128 = digits.parse().map_err(|_| range())?;
        whole.checked_mul(u128::from(*factor)).ok_or_else(range)?
    };
    if value > u128::from(u64::MAX) {
        Err(range())
    } else {
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let check = |text: &str, bytes: u64| {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}")
        };
        check("0", 0);
        check("4096", 4096);
        check("64KiB", 65536);
        check(" 64 kib ", 65536);
        check("1.5GiB", 3 << 29);
        check("200GB", 200_000_000_000);
        check("1_000", 1000);
        check("16m", 16 << 20);
    }

    #[test]
    fn every_unit_of_size_and_time_has_its_factor() {
        for (power, unit) in (1u32..).zip(["k", "m", "g", "t"]) {
            let binary = ByteSize(1 << (10 * power));
            assert_eq!(format!("1{unit}").parse(), Ok(binary), "{unit}");
            assert_eq!(format!("1{unit}ib").parse(), Ok(binary), "{unit}ib");
            let decimal = ByteSize(1_000u64.pow(power));
            assert_eq!(format!("1{unit}b").parse(), Ok(decimal), "{unit}b");
        }
        for (text, nanos) in [
            ("1", 1_000_000),
            ("1ns", 1),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1ms", 1_000_000),
            ("1s", 1_000_000_000),
            ("1m", 60_000_000_000),
            ("1min", 60_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
    }

    #[test]
    fn durations_read_as_people_write_them() {
        let check = |text: &str, nanos: u64| {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(nanos)),
                "{text}"
            )
        };
        check("10000", 10_000_000_000);
        check("5s", 5_000_000_000);
        check("30m", 1_800_000_000_000);
        check("1.5ms", 1_500_000);
        check("10µs", 10_000);
    }

    #[test]
    fn errors_name_the_wrong_part() {
        let size = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(
            size(""),
            "empty text where a size was expected (such as 512MiB)"
        );
        assert_eq!(
            size("-1GiB"),
            "`-1GiB` is not a size: `-1` is not a number (write it as 512MiB)"
        );
        assert_eq!(
            size("1GiBs"),
            "`1GiBs` is not a size: unknown unit `GiBs` (known: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)"
        );
        assert_eq!(size("99999999TiB"), "`99999999TiB` is too large for a size");
        assert_eq!(
            size("1.2.3k"),
            "`1.2.3k` is not a size: `1.2.3` is not a number (write it as 512MiB)"
        );
        assert!(
            parse_duration("5 parsecs")
                .unwrap_err()
                .to_string()
                .contains("unknown unit `parsecs`")
        );
    }

    #[test]
    fn printing_is_exact_or_two_digits() {
        assert_eq!(ByteSize::mib(512).to_string(), "512MiB");
        assert_eq!(ByteSize(1536).to_string(), "1.50KiB");
        assert_eq!(ByteSize(17).to_string(), "17B");
        assert_eq!(format_duration(Duration::from_millis(1500)), "1.50s");
        assert_eq!(format_duration(Duration::from_micros(250)), "250us");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }
}
