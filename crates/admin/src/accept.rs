//! In which form metrics are wanted (RFC 9110, section 12.5.1).

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use slackwater_wire::MetricsFormat;

/// Ranges that are looked at; further ones of a request are not.
const RANGES_MAX: usize = 64;

/// The form that these headers ask for. A scraper that asks for nothing that there is gets the form of Prometheus: it is better
/// than none.
pub(crate) fn metrics_format(headers: &HeaderMap) -> MetricsFormat {
    let lists = headers.get_all(ACCEPT).into_iter();
    let lists = lists.filter_map(|list| list.to_str().ok());
    let ranges: Vec<Range> = lists
        .flat_map(|list| split(list, ','))
        .take(RANGES_MAX)
        .filter_map(Range::parse)
        .collect();
    let open = best(&ranges, "application", "openmetrics-text", "1.0.0");
    let plain = best(&ranges, "text", "plain", "0.0.4");
    // Of two forms that are wanted as much, the one that only some ask for by its name.
    let is_named = open.is_named && open.weight > 0 && open.weight == plain.weight;
    match is_named || open.weight > plain.weight {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

/// How much a form is wanted.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// In thousandths; 0 is not at all.
    weight: u16,
    /// By its name, and not as one of many.
    is_named: bool,
}

/// The most specific range that has a form in it.
fn best(ranges: &[Range<'_>], kind: &str, subtype: &str, version: &str) -> Wanted {
    let holding = ranges.iter().filter_map(|range| {
        let place = range.holds(kind, subtype, version)?;
        Some((place, range.weight))
    });
    let found = holding.max();
    found.map_or_else(Wanted::default, |(place, weight)| Wanted {
        weight,
        is_named: place > 1,
    })
}

/// One media range.
struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    version: Option<&'a str>,
    weight: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = split(text, ';');
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut range = Self {
            kind,
            subtype,
            version: None,
            weight: 1000,
        };
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            match name.trim() {
                name if name.eq_ignore_ascii_case("q") => range.weight = weight(value)?,
                name if name.eq_ignore_ascii_case("version") => range.version = Some(value),
                _ => {}
            }
        }
        Some(range)
    }

    /// How specific the range is, if it has this form in it: 3 with a version, 0 for everything.
    fn holds(&self, kind: &str, subtype: &str, version: &str) -> Option<u8> {
        let is = str::eq_ignore_ascii_case;
        match (self.kind, self.subtype) {
            ("*", "*") => Some(0),
            (of, "*") if is(of, kind) => Some(1),
            (of, under) if is(of, kind) && is(under, subtype) => match self.version {
                None => Some(2),
                Some(wanted) => (wanted == version).then_some(3),
            },
            _ => None,
        }
    }
}

/// A weight of up to three decimals, in thousandths.
fn weight(text: &str) -> Option<u16> {
    let number: f64 = text.parse().ok()?;
    (0.0..=1.0)
        .contains(&number)
        .then(|| (number * 1000.0).round() as u16)
}

/// The parts between separators that are not within quotes, without what is empty.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let parts = text.split(move |letter| {
        quoted ^= letter == '"';
        letter == separator && !quoted
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const OPEN: &str = "application/openmetrics-text";

    #[test]
    fn the_form_is_the_one_that_is_wanted_most() {
        let check = |accept: &str, is_open: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            let found = metrics_format(&headers) == MetricsFormat::OpenMetrics;
            assert_eq!(found, is_open, "{accept}");
        };
        assert_eq!(metrics_format(&HeaderMap::new()), MetricsFormat::Prometheus);
        check("*/*", false);
        check("text/html,application/xhtml+xml,*/*;q=0.8", false);
        check("text/plain", false);
        check(OPEN, true);
        check("Application/OpenMetrics-Text; Version=1.0.0", true);
        // What Prometheus sends.
        check(
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            true,
        );
        check(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
             application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            true,
        );
        check("application/openmetrics-text;version=0.0.1", false);
        check(
            "application/openmetrics-text;version=2.0.0,*/*;q=0.1",
            false,
        );
        check("application/openmetrics-text;q=0.5,text/plain;q=0.6", false);
        check("application/openmetrics-text;q=0.5,text/plain;q=0.5", true);
        check("text/plain,application/openmetrics-text", true);
        check("application/openmetrics-text;q=0,*/*", false);
        check("application/openmetrics-text;q=0", false);
        check(
            "application/openmetrics-text;q=0.0001,text/plain;q=0",
            false,
        );
        check("text/plain;q=0,*/*;q=0.1", true);
        check("application/*,text/plain;q=0.9", true);
        check("application/*,text/*", false);
        check("*/*,application/openmetrics-text;q=0.2", false);
        // A weight that is none makes the range none.
        check("application/openmetrics-text;q=2", false);
        check("application/openmetrics-text;q=NaN", false);
        check("application/openmetrics-text;q=,text/plain;q=0.1", false);
        check(
            r#"application/openmetrics-text;x=", text/plain";q=1,text/plain;q=0.1"#,
            true,
        );
        check(",;,/,a/;q", false);
        let many = format!("{}{OPEN}", "a/b,".repeat(1_000));
        check(&many, false);
    }

    #[test]
    fn lists_in_several_headers_are_one() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static("text/plain;q=0.1"));
        headers.append(ACCEPT, HeaderValue::from_static(OPEN));
        headers.append(ACCEPT, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(metrics_format(&headers), MetricsFormat::OpenMetrics);
    }
}
