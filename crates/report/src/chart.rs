use std::fmt::Write as _;

use crate::escape;
use crate::scale::{Range, Scale, Unit};

/// A chart of lines or stacked areas over one axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows, in a few words.
    pub title: String,
    /// One sentence on how to read it.
    pub note: String,
    /// The axis along.
    pub x: Axis,
    /// The axis up. It begins at zero where its scale allows.
    pub y: Axis,
    /// What is drawn, each on top of those before it; areas are stacked in this order.
    pub lines: Vec<Line>,
}

/// One axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity along the axis, in words.
    pub label: String,
    /// What its numbers mean.
    pub unit: Unit,
    /// How values map to places.
    pub scale: Scale,
    /// Ticks in place of computed ones: for axes whose values are transformed.
    pub ticks: Vec<(f64, String)>,
}

/// One line or area.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend calls it.
    pub name: String,
    /// Its colour.
    pub tone: Tone,
    /// How it is drawn.
    pub mark: Mark,
    /// Its values by place along, in order.
    pub points: Vec<(f64, f64)>,
}

/// How values are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Solid,
    /// A thin dashed line, for limits and references.
    Dashed,
    /// An area on top of the stacked areas before it; all of a chart's share their places along.
    Stacked,
}

/// A colour that reads on light and dark ground and apart from the others without full colour sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Memory, or the subject.
    Blue,
    /// SSD, or the one compared with.
    Orange,
    /// A third.
    Green,
    /// A fourth.
    Purple,
    /// A fifth.
    Red,
    /// A sixth.
    Teal,
    /// References.
    Grey,
}

impl Tone {
    /// Those of lines beside one another, in the order in which they are given out.
    pub const SERIES: [Self; 6] = [
        Self::Blue,
        Self::Orange,
        Self::Green,
        Self::Purple,
        Self::Red,
        Self::Teal,
    ];
}

impl Axis {
    /// A linear axis with computed ticks.
    #[must_use]
    pub fn new(label: &str, unit: Unit) -> Self {
        Self {
            label: label.to_owned(),
            unit,
            scale: Scale::Linear,
            ticks: Vec::new(),
        }
    }
}

impl Tone {
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Tone::Blue => "blue",
            Tone::Orange => "orange",
            Tone::Green => "green",
            Tone::Purple => "purple",
            Tone::Red => "red",
            Tone::Teal => "teal",
            Tone::Grey => "grey",
        }
    }
}

impl Chart {
    /// The chart as a figure with its title, legend and SVG.
    #[must_use]
    pub fn html(&self) -> String {
        let mut out = format!("<figure><figcaption><h3>{}</h3>", escape(&self.title));
        let _ = write!(
            out,
            "<p>{}</p></figcaption><div class=\"legend\">",
            escape(&self.note)
        );
        for line in &self.lines {
            let shape = if line.mark == Mark::Dashed {
                "dash"
            } else {
                "dot"
            };
            let _ = write!(
                out,
                "<span class=\"{} {shape}\">{}</span>",
                line.tone.class(),
                escape(&line.name)
            );
        }
        out.push_str("</div>");
        out.push_str(&self.svg());
        out.push_str("</figure>");
        out
    }

    /// The drawing alone.
    #[must_use]
    pub fn svg(&self) -> String {
        let label = escape(&self.title);
        let mut out =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">");
        let drawn = self.drawn();
        if drawn.iter().all(|line| line.upper.is_empty()) {
            let (x, y) = (WIDTH / 2.0, HEIGHT / 2.0);
            let _ = write!(
                out,
                "<text class=\"empty\" x=\"{x}\" y=\"{y}\">nothing of this happened</text></svg>"
            );
            return out;
        }
        let plot = Plot::of(self, &drawn);
        plot.frame(self, &mut out);
        for line in &drawn {
            plot.line(line, &mut out);
        }
        plot.readings(self, &mut out);
        out.push_str("</svg>");
        out
    }

    /// Every line with its lower and upper edge: an area begins at the sum of those before it.
    fn drawn(&self) -> Vec<Drawn<'_>> {
        let mut floor: Vec<f64> = Vec::new();
        let mut drawn = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            if line.mark != Mark::Stacked {
                drawn.push(Drawn {
                    line,
                    lower: Vec::new(),
                    upper: line.points.clone(),
                });
                continue;
            }
            floor.resize(line.points.len().max(floor.len()), 0.0);
            let lower: Vec<(f64, f64)> = line
                .points
                .iter()
                .zip(&floor)
                .map(|((x, _), low)| (*x, *low))
                .collect();
            for (low, (_, value)) in floor.iter_mut().zip(&line.points) {
                *low += value;
            }
            let upper = line
                .points
                .iter()
                .zip(&floor)
                .map(|((x, _), high)| (*x, *high))
                .collect();
            drawn.push(Drawn { line, lower, upper });
        }
        drawn
    }
}

struct Drawn<'a> {
    line: &'a Line,
    lower: Vec<(f64, f64)>,
    upper: Vec<(f64, f64)>,
}

/// The drawing area with its two ranges.
struct Plot {
    x: Range,
    y: Range,
}

impl Plot {
    fn of(chart: &Chart, drawn: &[Drawn<'_>]) -> Self {
        let points = || drawn.iter().flat_map(|line| &line.upper);
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let along = span(&mut points().map(|point| point.0));
        let up = match chart.y.scale {
            Scale::Linear => (0.0, span(&mut points().map(|point| point.1)).1),
            Scale::Log => span(&mut points().map(|point| point.1).filter(|value| *value > 0.0)),
        };
        let up = if up.1.is_finite() { up } else { (1.0, 10.0) };
        Self {
            x: Range::new(chart.x.scale, chart.x.unit, along, 6, false),
            y: Range::new(chart.y.scale, chart.y.unit, up, 4, true),
        }
    }

    fn left(&self, x: f64) -> f64 {
        LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM)
    }

    fn frame(&self, chart: &Chart, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in &self.y.ticks {
            let (y, text) = (self.top(*tick), chart.y.unit.format(*tick));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            let _ = write!(
                out,
                "<text class=\"up\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        let computed = || {
            self.x
                .ticks
                .iter()
                .map(|tick| (*tick, chart.x.unit.format(*tick)))
                .collect()
        };
        let ticks: Vec<(f64, String)> = if chart.x.ticks.is_empty() {
            computed()
        } else {
            chart.x.ticks.clone()
        };
        for (tick, text) in &ticks {
            let (x, text) = (self.left(*tick), escape(text));
            let _ = write!(
                out,
                "<text class=\"along\" x=\"{x:.1}\" y=\"{}\">{text}</text>",
                bottom + 18.0
            );
        }
        let _ = write!(
            out,
            "<line class=\"base\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>"
        );
        let (middle, label) = ((LEFT + right) / 2.0, escape(&chart.x.label));
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{middle}\" y=\"{}\">{label}</text>",
            HEIGHT - 4.0
        );
        let label = escape(&chart.y.label);
        let _ = write!(
            out,
            "<text class=\"unit\" x=\"{LEFT}\" y=\"{}\">{label}</text>",
            TOP - 10.0
        );
    }

    fn line(&self, drawn: &Drawn<'_>, out: &mut String) {
        let tone = drawn.line.tone.class();
        let path = |points: &mut dyn Iterator<Item = &(f64, f64)>| {
            points.fold(String::new(), |mut path, (x, y)| {
                let _ = write!(
                    path,
                    "{}{:.1} {:.1}",
                    if path.is_empty() { "" } else { "L" },
                    self.left(*x),
                    self.top(*y)
                );
                path
            })
        };
        let upper = path(&mut drawn.upper.iter());
        if upper.is_empty() {
            return;
        }
        let class = match drawn.line.mark {
            Mark::Stacked => {
                let lower = path(&mut drawn.lower.iter().rev());
                let _ = write!(out, "<path class=\"area {tone}\" d=\"M{upper}L{lower}Z\"/>");
                "line"
            }
            Mark::Solid => "line",
            Mark::Dashed => "line dashed",
        };
        let _ = write!(out, "<path class=\"{class} {tone}\" d=\"M{upper}\"/>");
    }

    /// Invisible bands that show the values under the pointer: hover by CSS alone.
    fn readings(&self, chart: &Chart, out: &mut String) {
        let Some(longest) = chart.lines.iter().max_by_key(|line| line.points.len()) else {
            return;
        };
        let stride = longest.points.len().div_ceil(READINGS_MAX).max(1);
        let places: Vec<f64> = longest
            .points
            .iter()
            .skip(stride - 1)
            .step_by(stride)
            .map(|point| point.0)
            .collect();
        for (index, place) in places.iter().enumerate() {
            let before = index.checked_sub(1).map_or(LEFT, |before| {
                (self.left(places[before]) + self.left(*place)) / 2.0
            });
            let after = places.get(index + 1).map_or(WIDTH - RIGHT, |next| {
                (self.left(*next) + self.left(*place)) / 2.0
            });
            let (top, height) = (TOP, HEIGHT - TOP - BOTTOM);
            let width = (after - before).max(0.5);
            let _ = write!(
                out,
                "<g class=\"reading\"><rect x=\"{before:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"/>"
            );
            self.tip(chart, *place, out);
            out.push_str("</g>");
        }
    }

    fn tip(&self, chart: &Chart, place: f64, out: &mut String) {
        let x = self.left(place);
        let named = chart
            .x
            .ticks
            .iter()
            .find(|(tick, _)| (tick - place).abs() < 1e-9);
        let head = named.map_or_else(|| chart.x.unit.format(place), |(_, text)| escape(text));
        let mut rows = vec![(Tone::Grey, head)];
        for line in &chart.lines {
            if let Some(value) = nearest(&line.points, place) {
                rows.push((
                    line.tone,
                    format!("{}: {}", escape(&line.name), chart.y.unit.format(value)),
                ));
            }
        }
        let widest = rows
            .iter()
            .map(|(_, text)| text.chars().count())
            .max()
            .unwrap_or(0);
        let (width, height) = (widest as f64 * 6.4 + 16.0, rows.len() as f64 * 16.0 + 8.0);
        let left = if x + 10.0 + width > WIDTH {
            x - 10.0 - width
        } else {
            x + 10.0
        };
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        let _ = write!(
            out,
            "<g class=\"tip\"><line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>"
        );
        let _ = write!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.0}\" height=\"{height}\" rx=\"4\"/>"
        );
        for (row, (tone, text)) in rows.iter().enumerate() {
            let y = top + 17.0 + row as f64 * 16.0;
            let _ = write!(
                out,
                "<text class=\"{}\" x=\"{:.1}\" y=\"{y}\">{text}</text>",
                tone.class(),
                left + 8.0
            );
        }
        out.push_str("</g>");
    }
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
const READINGS_MAX: usize = 60;

/// The value at the point next to `place`, where the line reaches there.
fn nearest(points: &[(f64, f64)], place: f64) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    if place < first.0 || place > last.0 {
        return None;
    }
    let distance = |point: &&(f64, f64)| (point.0 - place).abs();
    points
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .map(|point| point.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: Vec<Line>) -> Chart {
        Chart {
            title: "A <b> & \"c\"".to_owned(),
            note: "n".to_owned(),
            x: Axis::new("time", Unit::Seconds),
            y: Axis::new("bytes", Unit::Bytes),
            lines,
        }
    }

    fn line(mark: Mark, points: &[(f64, f64)]) -> Line {
        Line {
            name: "l".to_owned(),
            tone: Tone::Blue,
            mark,
            points: points.to_vec(),
        }
    }

    #[test]
    fn stacked_areas_stand_on_each_other() {
        let chart = chart(vec![
            line(Mark::Stacked, &[(0.0, 1.0), (1.0, 2.0)]),
            line(Mark::Dashed, &[(0.0, 9.0), (1.0, 9.0)]),
            line(Mark::Stacked, &[(0.0, 10.0), (1.0, 20.0)]),
        ]);
        let drawn = chart.drawn();
        assert_eq!(drawn[2].lower, [(0.0, 1.0), (1.0, 2.0)]);
        assert_eq!(drawn[2].upper, [(0.0, 11.0), (1.0, 22.0)]);
        assert_eq!(drawn[1].upper, [(0.0, 9.0), (1.0, 9.0)]);
    }

    #[test]
    fn text_cannot_break_out_of_the_markup() {
        let html = chart(vec![line(Mark::Solid, &[(0.0, 1.0)])]).html();
        assert!(html.contains("A &lt;b&gt; &amp; &quot;c&quot;") && !html.contains("<b>"));
    }

    /// NaN, a single point, all zeros and no points: a report of a cut-off run is drawn all the same.
    #[test]
    fn odd_values_draw_without_leaving_the_frame() {
        let cases: [&[(f64, f64)]; 5] = [
            &[],
            &[(3.0, 0.0)],
            &[(0.0, 0.0), (1.0, 0.0)],
            &[(0.0, f64::NAN), (1.0, 1.0)],
            &[(0.0, 1e300), (1.0, 1.0)],
        ];
        for points in cases {
            for mark in [Mark::Solid, Mark::Stacked] {
                for scale in [Scale::Linear, Scale::Log] {
                    let mut chart = chart(vec![line(mark, points)]);
                    chart.y.scale = scale;
                    let svg = chart.svg();
                    assert!(svg.ends_with("</svg>"));
                    assert!(
                        !svg.contains("NaN") && !svg.contains("inf"),
                        "{points:?} {scale:?}: {svg}"
                    );
                }
            }
        }
    }

    #[test]
    fn readings_are_bounded() {
        let points: Vec<(f64, f64)> = (0..10_000).map(|x| (f64::from(x), 1.0)).collect();
        let svg = chart(vec![line(Mark::Solid, &points)]).svg();
        assert!(svg.matches("class=\"reading\"").count() <= READINGS_MAX);
    }
}
