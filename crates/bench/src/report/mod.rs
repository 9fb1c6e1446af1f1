//! Reports as one self-contained HTML file: charts are inline SVG, nothing is fetched and no script runs.

mod bars;
mod bound;
mod chart;
mod page;
mod scale;

pub use bars::{Bars, figure};
pub use bound::Bound;
pub use chart::{Axis, Chart, Line, Mark, Tone};
pub use page::{Page, Table, Tile};
pub use scale::{Scale, Unit};

use serde::Serialize;

/// A peer that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Which.
    pub peer: &'static str,
    /// Why.
    pub reason: String,
}

/// `text` with the characters that HTML and SVG give a meaning made harmless.
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
