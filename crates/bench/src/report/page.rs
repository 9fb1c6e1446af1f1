use std::fmt::Write as _;

use super::{Chart, escape};

/// A report: headline figures, charts, tables, in one file.
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
    /// The tables.
    pub tables: Vec<Table>,
}

/// One headline figure.
#[derive(Clone, Debug)]
pub struct Tile {
    /// What it is.
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
        Self { label: label.to_owned(), value: value.into(), note: note.into() }
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
            let _ = write!(out, "<p class=\"alert\" role=\"alert\">{}</p>", escape(alert));
        }
        self.write_tiles(&mut out);
        out.push_str("<section class=\"charts\">");
        self.charts.iter().for_each(|chart| out.push_str(&chart.html()));
        out.push_str("</section><section class=\"tables\">");
        self.tables.iter().for_each(|table| table.write(&mut out));
        out.push_str("</section></main></body></html>\n");
        out
    }

    fn write_tiles(&self, out: &mut String) {
        out.push_str("<section class=\"tiles\">");
        for Tile { label, value, note } in &self.tiles {
            let (label, value, note) = (escape(label), escape(value), escape(note));
            let _ = write!(out, "<div><span>{label}</span><strong>{value}</strong><small>{note}</small></div>");
        }
        out.push_str("</section>");
    }
}

impl Table {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "<div class=\"table\"><h3>{}</h3><table><thead><tr>", escape(&self.title));
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
            charts: Vec::new(),
            tables: vec![Table {
                title: "t".to_owned(),
                head: vec!["a".to_owned(), "b".to_owned()],
                rows: vec![vec!["<i>".to_owned(), "1".to_owned()]],
            }],
        };
        let html = page.html();
        assert!(
            html.contains("Replay of &lt;x&gt;") && html.contains("stopped &amp; kept") && html.contains("&lt;i&gt;")
        );
        for fetching in ["http:", "https:", "<script", "@import", "url(", "<link", "src="] {
            assert!(!html.contains(fetching), "{fetching}");
        }
    }
}
