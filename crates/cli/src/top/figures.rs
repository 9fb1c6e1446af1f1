//! Numbers for people, as the page writes them.

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Three figures and a unit of powers of 1024.
pub(super) fn bytes(count: f64) -> String {
    let (mut value, mut unit) = (count.abs(), 0);
    while value >= 1023.5 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

pub(super) fn byte_rate(rate: f64) -> String {
    format!("{}/s", bytes(rate))
}

/// A count with separators, or with a suffix from a million on.
pub(super) fn count(value: f64) -> String {
    if value >= 999_950_000.0 {
        return format!("{:.2} G", value / 1e9);
    }
    if value >= 999_950.0 {
        return format!("{:.2} M", value / 1e6);
    }
    let whole = value.round() as u64;
    match whole / 1000 {
        0 => whole.to_string(),
        thousands => format!("{thousands},{:03}", whole % 1000),
    }
}

/// How often in a second.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0/s".to_owned(),
        value if value < 0.05 => "< 0.1/s".to_owned(),
        value if value < 9.95 => format!("{value:.1}/s"),
        value => format!("{}/s", count(value)),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A time from microseconds.
pub(super) fn micros(value: f64) -> String {
    match value {
        value if value < 9.95 => format!("{value:.1} µs"),
        value if value < 999.5 => format!("{value:.0} µs"),
        value if value < 9_950.0 => format!("{:.2} ms", value / 1e3),
        value if value < 999_500.0 => format!("{:.1} ms", value / 1e3),
        value => format!("{:.2} s", value / 1e6),
    }
}

/// A time from seconds, in its largest unit.
pub(super) fn seconds(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{:.0} ms", value * 1e3),
        value if value < 10.0 => format!("{value:.1} s"),
        value if value < 90.0 => format!("{value:.0} s"),
        value if value < 5400.0 => format!("{:.0} min", value / 60.0),
        value if value < 172_800.0 => format!("{:.1} h", value / 3600.0),
        value => format!("{:.0} days", value / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let check = |shown: String, expected: &str| assert_eq!(shown, expected);
        check(bytes(0.0), "0 B");
        check(bytes(1023.0), "1023 B");
        check(bytes(1024.0), "1.00 KiB");
        check(bytes(12.34 * 1024.0 * 1024.0), "12.3 MiB");
        check(byte_rate(1023.9 * 1024.0 * 1024.0), "1.00 GiB/s");
        check(bytes(5000.0 * 1024f64.powi(5)), "5000 PiB");
        check(count(999.0), "999");
        check(count(12_003.0), "12,003");
        check(count(1_234_567.0), "1.23 M");
        check(count(2.5e9), "2.50 G");
        check(rate(0.0), "0/s");
        check(rate(0.01), "< 0.1/s");
        check(rate(3.26), "3.3/s");
        check(rate(12_003.0), "12,003/s");
        check(percent(0.9876), "98.8 %");
        check(micros(3.21), "3.2 µs");
        check(micros(321.0), "321 µs");
        check(micros(3_210.0), "3.21 ms");
        check(micros(32_100.0), "32.1 ms");
        check(micros(3.2e6), "3.20 s");
        check(seconds(0.25), "250 ms");
        check(seconds(2.0), "2.0 s");
        check(seconds(75.0), "75 s");
        check(seconds(600.0), "10 min");
        check(seconds(7200.0), "2.0 h");
        check(seconds(864_000.0), "10 days");
    }
}
