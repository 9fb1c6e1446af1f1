//! Reports as one self-contained HTML file: charts are inline SVG, nothing is fetched and no script runs.
//!
//! [`Page::html`] gives the file, [`Table::text`] the same table for a terminal. The crate knows nothing of what was measured.

mod bars;
mod bound;
mod chart;
mod compared;
mod page;
mod scale;

pub use bars::{Bars, figure};
pub use bound::Bound;
pub use chart::{Axis, Chart, Line, Mark, Tone};
pub use compared::{Better, Compared};
pub use page::{Page, Table, Tile};
pub use scale::{Scale, Unit};

/// `text` with every character that has a meaning in HTML and SVG replaced by its entity.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}
