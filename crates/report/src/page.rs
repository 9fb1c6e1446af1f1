use std::fmt::Write as _;

use crate::{Bars, Chart, escape};

/// A report: headline figures, charts, tables, notes, in one file.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// What was run, in a sentence.
    pub lead: String,
    /// A sentence that must not be missed, such as what cut the run short.
    pub alert: Option<String>,
    /// The headline figures.
    pub tiles: Vec<Tile>,
    /// The charts.
    pub charts: Vec<Chart>,
    /// The bar charts, after the others.
    pub bars: Vec<Bars>,
    /// The tables.
    pub tables: Vec<Table>,
    /// What else is to be said, a sentence or two each.
    pub notes: Vec<String>,
}

/// One headline figure.
#[derive(Clone, Debug)]
pub struct Tile {
    /// The name of the quantity.
    pub label: String,
    /// The figure.
    pub value: String,
    /// What it is made of.
    pub note: String,
}

/// A table with a heading; the first column is text, the others are figures.
#[derive(Clone, Debug)]
pub struct Table {
    /// The heading.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows, each as long as `head`.
    pub rows: Vec<Vec<String>>,
}

impl Tile {
    /// A figure from its texts.
    #[must_use]
    pub fn new(label: &str, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self {
            label: label.to_owned(),
            value: value.into(),
            note: note.into(),
        }
    }
}

impl Page {
    /// The page as one HTML file that fetches nothing.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
             <style>{STYLE}</style></head><body><main><header><h1>{title}</h1><p>{}</p></header>",
            escape(&self.lead)
        );
        if let Some(alert) = &self.alert {
            let _ = write!(
                out,
                "<p class=\"alert\" role=\"alert\">{}</p>",
                escape(alert)
            );
        }
        self.write_tiles(&mut out);
        out.push_str("<section class=\"charts\">");
        self.charts
            .iter()
            .for_each(|chart| out.push_str(&chart.html()));
        self.bars.iter().for_each(|bars| out.push_str(&bars.html()));
        out.push_str("</section><section class=\"tables\">");
        self.tables.iter().for_each(|table| table.write(&mut out));
        out.push_str("</section>");
        for note in &self.notes {
            let _ = write!(out, "<p class=\"notes\">{}</p>", escape(note));
        }
        out.push_str("</main></body></html>\n");
        out
    }

    fn write_tiles(&self, out: &mut String) {
        out.push_str("<section class=\"tiles\">");
        for Tile { label, value, note } in &self.tiles {
            let (label, value, note) = (escape(label), escape(value), escape(note));
            let _ = write!(
                out,
                "<div><span>{label}</span><strong>{value}</strong><small>{note}</small></div>"
            );
        }
        out.push_str("</section>");
    }
}

impl Table {
    /// A table from its texts.
    #[must_use]
    pub fn new(title: &str, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let head = head.iter().map(|&name| name.to_owned()).collect();
        Self {
            title: title.to_owned(),
            head,
            rows: rows.into_iter().collect(),
        }
    }

    /// The table in plain text, its columns as wide as needed; the first on the left, the others on the right.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| {
            lines()
                .map(|cells| cells[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = String::new();
        for cells in lines() {
            for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                let _ = if column == 0 {
                    write!(text, "{cell:<width$}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            text.push('\n');
        }
        text
    }

    fn write(&self, out: &mut String) {
        let _ = write!(
            out,
            "<div class=\"table\"><h3>{}</h3><table><thead><tr>",
            escape(&self.title)
        );
        for name in &self.head {
            let _ = write!(out, "<th>{}</th>", escape(name));
        }
        out.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            out.push_str("<tr>");
            for cell in row {
                let _ = write!(out, "<td>{}</td>", escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>");
    }
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone() {
        let page = Page {
            title: "Replay of <x>".to_owned(),
            lead: "l".to_owned(),
            alert: Some("stopped & kept".to_owned()),
            tiles: vec![Tile::new("hits", "36 %", "of all")],
            tables: vec![Table::new(
                "t",
                &["a", "b"],
                vec![vec!["<i>".to_owned(), "1".to_owned()]],
            )],
            notes: vec!["n < m".to_owned()],
            ..Page::default()
        };
        let html = page.html();
        assert!(
            html.contains("Replay of &lt;x&gt;")
                && html.contains("stopped &amp; kept")
                && html.contains("&lt;i&gt;")
        );
        assert!(html.contains("n &lt; m"));
        for fetching in [
            "http:", "https:", "<script", "@import", "url(", "<link", "src=",
        ] {
            assert!(!html.contains(fetching), "{fetching}");
        }
    }
    #[test]
    fn text_columns_line_up() {
        let rows = [["a", "1.00"], ["longer", "10"]].map(|row| row.map(str::to_owned).to_vec());
        let table = Table::new("t", &["name", "µs"], rows);
        assert_eq!(table.text(), "name      µs\na       1.00\nlonger    10\n");
    }
}
