use std::fmt::Write as _;

use crate::{Tone, escape};

/// Horizontal bars side by side in groups, on one scale from zero.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The heading of the figure.
    pub title: String,
    /// The unit of the values, and which way is better.
    pub unit: &'static str,
    /// The names of the bars of a group, in order.
    pub series: Vec<String>,
    /// The groups: a label, and a value for each of the series (`None` was not measured).
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

const WIDTH: f64 = 640.0;
/// Room for the labels of the groups on the left, and for values and names on the right.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 150.0;
const BAR: f64 = 14.0;
const BETWEEN_BARS: f64 = 3.0;
const BETWEEN_GROUPS: f64 = 10.0;

impl Bars {
    /// The bars as a figure with its title.
    #[must_use]
    pub fn html(&self) -> String {
        let step = BAR + BETWEEN_BARS;
        let height = self.groups.len() as f64 * (self.series.len() as f64 * step + BETWEEN_GROUPS);
        let (title, unit) = (escape(&self.title), escape(self.unit));
        let mut out = format!(
            "<figure><figcaption><h3>{title}</h3><p>{unit}</p></figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">"
        );
        let values = self
            .groups
            .iter()
            .flat_map(|(_, values)| values.iter().flatten());
        let most = values.copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let mut top = 0.0;
        for (label, values) in &self.groups {
            let _ = write!(
                out,
                "<text x=\"0\" y=\"{}\">{}</text>",
                top + BAR - 2.0,
                escape(label)
            );
            for ((value, name), tone) in values
                .iter()
                .zip(&self.series)
                .zip(Tone::SERIES.iter().cycle())
            {
                let width = value.unwrap_or_default() / most * (WIDTH - LEFT - RIGHT);
                let text = value.map_or_else(|| "skipped".to_owned(), figure);
                let _ = write!(
                    out,
                    "<rect class=\"bar {}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\"/>\
                     <text x=\"{:.1}\" y=\"{}\">{text} {}</text>",
                    tone.class(),
                    LEFT + width + 5.0,
                    top + BAR - 2.0,
                    escape(name)
                );
                top += step;
            }
            top += BETWEEN_GROUPS;
        }
        out.push_str("</svg></figure>");
        out
    }
}

/// The value with three significant digits, whole from 100 on.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_shown_and_no_markup_comes_through() {
        let bars = Bars {
            title: "a <b> title".to_owned(),
            unit: "ms",
            series: vec!["one".to_owned(), "two".to_owned()],
            groups: vec![("group".to_owned(), vec![Some(12.345), None])],
        };
        let html = bars.html();
        assert!(html.contains("a &lt;b&gt; title") && !html.contains("<b>"));
        assert!(
            html.contains("12.3 one") && html.contains("skipped two"),
            "{html}"
        );
    }
}
