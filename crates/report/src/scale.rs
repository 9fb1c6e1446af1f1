/// What a number on an axis means, and therefore how it is written and where ticks fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Count,
    /// A share of one, shown in percent.
    Share,
    /// Bytes, in powers of 1,024.
    Bytes,
    /// Bytes a second, in powers of 1,000.
    BytesPerSecond,
    /// Microseconds.
    Micros,
    /// Seconds of a run.
    Seconds,
}

/// How an axis maps values to places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    #[default]
    Linear,
    /// By the logarithm; values below the smallest positive one are drawn at the edge.
    Log,
}

impl Unit {
    /// The value as people write it: `64 KiB`, `12.5 %`, `1.2 ms`, `12 k`; a dash for no number.
    #[must_use]
    pub fn format(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        match self {
            Unit::Count => scaled(value, &[(1e9, " G"), (1e6, " M"), (1e3, " k")], ""),
            Unit::Share => format!("{} %", short(value * 100.0)),
            Unit::Bytes => {
                let (kib, mib) = (1024.0, 1_048_576.0);
                let scales = [
                    (mib * mib, " TiB"),
                    (mib * kib, " GiB"),
                    (mib, " MiB"),
                    (kib, " KiB"),
                ];
                scaled(value, &scales, " B")
            }
            Unit::BytesPerSecond => scaled(
                value,
                &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s")],
                " B/s",
            ),
            Unit::Micros => scaled(value, &[(1e6, " s"), (1e3, " ms")], " µs"),
            Unit::Seconds => seconds(value),
        }
    }

    /// The distance between ticks that people find round, at least `raw`.
    fn round_step(self, raw: f64) -> f64 {
        let raw = raw.max(f64::MIN_POSITIVE);
        match self {
            Unit::Bytes => 2f64.powi(raw.log2().ceil() as i32),
            Unit::Seconds if raw > 0.5 => {
                let steps = [
                    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0,
                    3600.0,
                ];
                steps
                    .into_iter()
                    .find(|step| *step >= raw)
                    .unwrap_or((raw / 7200.0).ceil() * 7200.0)
            }
            _ => {
                let decade = 10f64.powi(raw.log10().floor() as i32);
                let digit = [1.0, 2.0, 5.0, 10.0]
                    .into_iter()
                    .find(|digit| digit * decade >= raw * 0.999_999);
                digit.unwrap_or(10.0) * decade
            }
        }
    }
}

/// The extent of an axis and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    scale: Scale,
}

impl Range {
    /// A range that holds `low..=high` with about `wanted` ticks; it ends on ticks where `to_tick` says so.
    pub(crate) fn new(
        scale: Scale,
        unit: Unit,
        (low, high): (f64, f64),
        wanted: usize,
        to_tick: bool,
    ) -> Self {
        match scale {
            Scale::Linear => Self::linear(unit, low, high, wanted, to_tick),
            Scale::Log => Self::log(low, high, to_tick),
        }
    }

    fn linear(unit: Unit, low: f64, high: f64, wanted: usize, to_tick: bool) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = unit.round_step((high - low) / wanted.max(1) as f64);
        let end = if to_tick {
            (high / step - 1e-9).ceil() * step
        } else {
            high
        };
        let first = (low / step - 1e-9).ceil() as i64;
        let last = (end / step + 1e-9).floor() as i64;
        let ticks = (first..=last).map(|tick| tick as f64 * step).collect();
        Self {
            low,
            high: end,
            ticks,
            scale: Scale::Linear,
        }
    }

    fn log(low: f64, high: f64, to_tick: bool) -> Self {
        let low = low.max(1e-12);
        let high = high.max(low * 1.001);
        let first = 10f64.powi(low.log10().floor() as i32);
        let last = 10f64.powi(high.log10().ceil() as i32);
        let (low, high) = if to_tick { (first, last) } else { (low, high) };
        let decades = (last / first).log10().round() as i32;
        let digits: &[f64] = if decades <= 2 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let place = |decade: i32, digit: &f64| first * 10f64.powi(decade) * digit;
        let ticks =
            (0..=decades).flat_map(|decade| digits.iter().map(move |digit| place(decade, digit)));
        let inside = |tick: &f64| (low * 0.999_999..=high * 1.000_001).contains(tick);
        Self {
            low,
            high,
            ticks: ticks.filter(inside).collect(),
            scale: Scale::Log,
        }
    }

    /// The position of `value` between the ends, from 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

fn scaled(value: f64, scales: &[(f64, &str)], rest: &str) -> String {
    match scales
        .iter()
        .find(|(scale, _)| value.abs() >= *scale * 0.999_95)
    {
        Some((scale, unit)) => format!("{}{unit}", short(value / scale)),
        None => format!("{}{rest}", short(value)),
    }
}

fn seconds(value: f64) -> String {
    let (hours, minutes) = ((value / 3600.0).floor(), ((value % 3600.0) / 60.0).floor());
    match value {
        _ if value >= 3600.0 && minutes == 0.0 => format!("{hours} h"),
        _ if value >= 3600.0 => format!("{hours} h {minutes:02}"),
        _ if value >= 60.0 && value % 60.0 < 0.5 => format!("{minutes} min"),
        _ if value >= 60.0 => format!("{minutes}:{:02}", (value % 60.0).floor()),
        _ => format!("{} s", short(value)),
    }
}

/// Three significant digits, without zeros that say nothing.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_as_people_write_them() {
        let check = |unit: Unit, value: f64, text: &str| assert_eq!(unit.format(value), text);
        check(Unit::Count, 0.0, "0");
        check(Unit::Count, 1500.0, "1.5 k");
        check(Unit::Count, 999_960.0, "1 M");
        check(Unit::Share, 0.366, "36.6 %");
        check(Unit::Bytes, 65_536.0, "64 KiB");
        check(Unit::Bytes, 1.5 * 1024.0 * 1024.0 * 1024.0, "1.5 GiB");
        check(Unit::BytesPerSecond, 2.34e9, "2.34 GB/s");
        check(Unit::Micros, 12.0, "12 µs");
        check(Unit::Micros, 1250.0, "1.25 ms");
        check(Unit::Seconds, 90.0, "1:30");
        check(Unit::Seconds, 120.0, "2 min");
        check(Unit::Seconds, 3660.0, "1 h 01");
        check(Unit::Seconds, 0.25, "0.25 s");
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let check = |unit, span, wanted, ticks: &[f64]| {
            assert_eq!(
                Range::new(Scale::Linear, unit, span, wanted, true).ticks,
                ticks,
                "{unit:?} {span:?}"
            );
        };
        check(
            Unit::Share,
            (0.0, 0.37),
            4,
            &[0.0, 0.1, 0.2, 0.300_000_000_000_000_04, 0.4],
        );
        check(Unit::Count, (0.0, 0.0), 2, &[0.0, 0.5, 1.0]);
        check(
            Unit::Bytes,
            (0.0, 900.0),
            4,
            &[0.0, 256.0, 512.0, 768.0, 1024.0],
        );
        check(
            Unit::Seconds,
            (0.0, 3537.0),
            6,
            &[0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0, 3600.0],
        );
        let log = Range::new(Scale::Log, Unit::Micros, (7.0, 52_000.0), 4, true);
        assert_eq!((log.low, log.high), (1.0, 100_000.0));
        assert_eq!(log.ticks.len(), 6);
        assert!((log.place(1000.0) - 0.6).abs() < 1e-9);
        assert_eq!(log.place(0.0), 0.0);
        let log = Range::new(Scale::Log, Unit::Count, (1000.0, 30_000.0), 4, false);
        assert_eq!(
            (log.high, log.ticks),
            (30_000.0, vec![1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0])
        );
    }
}
