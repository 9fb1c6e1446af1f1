//! Curves over time.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Sparkline};

use super::{plain, ruled};
use crate::top::cells::{Looks, fit};
use crate::top::figures::{byte_rate, percent, seconds};
use crate::top::view::{Tone, View};

/// The least time that a curve shows, in seconds.
const SPAN_S: f64 = 60.0;
/// The share of reads that memory served, and above it that of memory and SSD.
pub(super) fn hits(frame: &mut Frame<'_>, area: Rect, view: &View, looks: Looks) {
    let title = match view.hits {
        Some([memory, ssd]) => {
            format!("Hits: memory {}, SSD {}", percent(memory), percent(ssd))
        }
        None => "Hits: no reads".to_owned(),
    };
    let block = ruled(&title, area.width);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // Axes would take all of it.
    if inner.height < 3 || inner.width < 16 {
        let shares = view.points.iter().map(|point| match point.hits {
            Some([memory, ssd]) => (1000.0 * (memory + ssd)) as u64,
            None => 0,
        });
        let style = looks.of(Tone::Memory);
        spark(frame, inner, &shares.collect::<Vec<_>>(), 1000, style);
        return;
    }
    let now = view.points.last().map_or(0.0, |point| point.at_s);
    let first = view.points.first().map_or(0.0, |point| point.at_s);
    let span = (now - first).max(SPAN_S);
    let curve = |of: fn([f64; 2]) -> f64| -> Vec<(f64, f64)> {
        let known = view
            .points
            .iter()
            .filter_map(|point| Some((point.at_s, point.hits?)));
        known.map(|(at_s, hits)| (at_s, of(hits))).collect()
    };
    let (all, memory) = (
        curve(|[memory, ssd]| memory + ssd),
        curve(|[memory, _]| memory),
    );
    let quiet = looks.of(Tone::Quiet);
    let chart = Chart::new(vec![
        line(&all, looks.of(Tone::Ssd)),
        line(&memory, looks.of(Tone::Memory)),
    ])
    .legend_position(None)
    .x_axis(
        Axis::default()
            .style(quiet)
            .bounds([now - span, now])
            .labels([format!("−{}", seconds(span)), "now".to_owned()]),
    )
    .y_axis(
        Axis::default()
            .style(quiet)
            .bounds([0.0, 1.0])
            .labels(["0 %", "100 %"]),
    );
    frame.render_widget(chart, inner);
}

fn line(points: &[(f64, f64)], style: Style) -> Dataset<'_> {
    Dataset::default()
        .data(points)
        .graph_type(GraphType::Line)
        .marker(Marker::Braille)
        .style(style)
}

/// Bytes to and from clients, a line of words and a curve each.
pub(super) fn throughput(frame: &mut Frame<'_>, area: Rect, view: &View, looks: Looks) {
    let block = ruled("Bytes in a second", area.width);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let flows = [
        ("from memory", Tone::Memory),
        ("from SSD", Tone::Ssd),
        ("puts", Tone::Clients),
    ];
    let each = (inner.height / flows.len() as u16).max(1);
    let all = view.points.iter().flat_map(|point| point.bytes);
    let most = all.fold(1024.0, f64::max) as u64;
    for (at, (words, tone)) in flows.into_iter().enumerate() {
        let top = inner.y + at as u16 * each;
        if top >= inner.bottom() {
            return;
        }
        let area = Rect {
            y: top,
            height: each.min(inner.bottom() - top),
            ..inner
        };
        let now = view
            .bytes
            .map_or_else(|| "–".to_owned(), |bytes| byte_rate(bytes[at]));
        let text = fit(&format!("{words} {now}"), usize::from(area.width.min(23)));
        let [label, curve] = beside(area, 24);
        plain(frame, label, vec![Line::styled(text, looks.of(tone))]);
        let points: Vec<u64> = view
            .points
            .iter()
            .map(|point| point.bytes[at] as u64)
            .collect();
        spark(frame, curve, &points, most, looks.of(tone));
    }
}

/// The first columns, and what is right of them.
fn beside(area: Rect, columns: u16) -> [Rect; 2] {
    let columns = columns.min(area.width);
    let left = Rect {
        width: columns,
        ..area
    };
    let right = Rect {
        x: area.x + columns,
        width: area.width - columns,
        ..area
    };
    [left, right]
}

/// The last values that there are columns for.
fn spark(frame: &mut Frame<'_>, area: Rect, values: &[u64], most: u64, style: Style) {
    let first = values.len() - values.len().min(usize::from(area.width));
    let line = Sparkline::default()
        .data(&values[first..])
        .max(most)
        .style(style);
    frame.render_widget(line, area);
}
