//! An HTML page of bar charts, readable without any other file.

use std::fmt::Write;

use crate::machine::Machine;

/// A report page under construction.
#[derive(Debug)]
pub struct Page {
    html: String,
}

/// Bars side by side, in groups.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The names of the bars of a group, in order.
    pub series: Vec<String>,
    /// The groups: a label, and a value for each of the series (`None` was not measured).
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1d2733}\
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dee6;text-align:right}td:first-child,th:first-child{text-align:left}\
.note{color:#566373}svg text{font:12px system-ui,sans-serif;fill:#1d2733}";

const COLOURS: [&str; 6] = ["#0b6e8f", "#d98e04", "#7a5195", "#3d8b57", "#b3443c", "#6b7785"];

const LABEL: usize = 150;
const WIDTH: usize = 620;
const BAR: usize = 14;

impl Page {
    /// A page with its heading and the machine it speaks of.
    #[must_use]
    pub fn new(title: &str, machine: &Machine) -> Self {
        let (title, machine) = (escape(title), escape(&machine.line()));
        let html = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>\
             <p class=\"note\">{machine}</p>\n"
        );
        Self { html }
    }

    /// A paragraph.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p class=\"note\">{}</p>", escape(text));
    }

    /// A table; the first row is its heading.
    pub fn table(&mut self, title: &str, heading: &[&str], rows: &[Vec<String>]) {
        let _ = write!(self.html, "<h2>{}</h2><table><tr>", escape(title));
        for cell in heading {
            let _ = write!(self.html, "<th>{}</th>", escape(cell));
        }
        for row in rows {
            self.html.push_str("</tr>\n<tr>");
            for cell in row {
                let _ = write!(self.html, "<td>{}</td>", escape(cell));
            }
        }
        self.html.push_str("</tr></table>\n");
    }

    /// A chart of horizontal bars. Bars are drawn on a scale of their own in each chart, from zero.
    pub fn chart(&mut self, chart: &Chart) {
        let values = || chart.groups.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let most = values().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let bars: usize = chart.groups.len() * chart.series.len();
        let height = bars * (BAR + 3) + chart.groups.len() * 10 + 4;
        let _ = write!(
            self.html,
            "<h2>{} <span class=\"note\">({})</span></h2><svg role=\"img\" width=\"{}\" height=\"{height}\" \
             viewBox=\"0 0 {} {height}\">",
            escape(&chart.title),
            escape(chart.unit),
            LABEL + WIDTH + 90,
            LABEL + WIDTH + 90
        );
        let mut y = 2;
        for (label, values) in &chart.groups {
            let _ = write!(self.html, "<text x=\"0\" y=\"{}\">{}</text>", y + BAR - 2, escape(label));
            for (series, value) in values.iter().enumerate() {
                self.bar(y, series, *value, most, &chart.series[series]);
                y += BAR + 3;
            }
            y += 10;
        }
        self.html.push_str("</svg>\n");
    }

    fn bar(&mut self, y: usize, series: usize, value: Option<f64>, most: f64, name: &str) {
        let colour = COLOURS[series % COLOURS.len()];
        let width = value.unwrap_or_default() / most * WIDTH as f64 * 0.7;
        let text = value.map_or_else(|| "skipped".to_owned(), figure);
        let _ = write!(
            self.html,
            "<rect x=\"{LABEL}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{} {}</text>",
            LABEL as f64 + width + 5.0,
            y + BAR - 2,
            escape(&text),
            escape(name)
        );
    }

    /// The finished page.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.html.push_str("</html>\n");
        self.html
    }
}

/// Three digits that say something.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table in plain text, its columns as wide as needed; the first column on the left, the others on the right.
#[must_use]
pub fn text_table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate();
        let mut line = String::new();
        for (column, (cell, &width)) in cells {
            let _ = if column == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        line + "\n"
    };
    let body: String = rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).collect();
    line(heading.to_vec()) + &body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_every_value_and_lets_no_markup_through() {
        let mut page = Page::new("a <b> title", &Machine::detect());
        page.chart(&Chart {
            title: "t".to_owned(),
            unit: "ms",
            series: vec!["one".to_owned(), "two".to_owned()],
            groups: vec![("group".to_owned(), vec![Some(12.345), None])],
        });
        page.table("figures", &["name", "value"], &[vec!["x".to_owned(), "1".to_owned()]]);
        let html = page.finish();
        assert!(html.contains("a &lt;b&gt; title") && !html.contains("<b>"));
        assert!(html.contains("12.3 one") && html.contains("skipped two") && html.contains("<td>1</td>"));
    }

    #[test]
    fn text_columns_line_up() {
        let rows = [vec!["a".to_owned(), "1.00".to_owned()], vec!["longer".to_owned(), "10".to_owned()]];
        assert_eq!(text_table(&["name", "v"], &rows), "name       v\na       1.00\nlonger    10\n");
    }
}
