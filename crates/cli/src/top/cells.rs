//! Lines of cells that end in an ellipsis where they do not fit.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::view::{Fill, Tone};

/// Between two cells of a line.
const GAP: usize = 1;
/// Columns below which the cell that takes the rest is no use: others go first.
const REST_MIN: usize = 8;

/// How tones look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looks {
    /// Whether there are colours; without them weight alone tells tones apart.
    pub(super) colors: bool,
}

impl Looks {
    pub(super) fn of(self, tone: Tone) -> Style {
        let style = Style::new();
        let style = match tone {
            Tone::Plain | Tone::Good | Tone::Memory | Tone::Ssd | Tone::Clients => style,
            Tone::Quiet => style.add_modifier(Modifier::DIM),
            Tone::Fair | Tone::Bad => style.add_modifier(Modifier::BOLD),
        };
        let color = match tone {
            Tone::Plain | Tone::Quiet => return style,
            Tone::Good => Color::Green,
            Tone::Fair => Color::Yellow,
            Tone::Bad => Color::Red,
            Tone::Memory => Color::Cyan,
            Tone::Ssd => Color::Magenta,
            Tone::Clients => Color::Blue,
        };
        match self.colors {
            true => style.fg(color),
            false => style,
        }
    }
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Columns that a terminal gives to the text.
pub(super) fn wide(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, or as much of it as fits with an ellipsis.
pub(super) fn fit(text: &str, width: usize) -> String {
    if wide(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else {
        return String::new();
    };
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if wide(&kept) > room {
            kept.pop();
            break;
        }
    }
    kept.push('…');
    kept
}

/// The words in lines of this width; a word that is longer is cut.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if wide(line) + 1 + wide(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fit(word, width)),
        }
    }
    lines
}

/// A part of a line.
pub(super) struct Cell {
    text: String,
    style: Style,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Takes what the others leave.
    Rest,
    Left(usize),
    Right(usize),
}

impl Cell {
    /// One that takes what the others leave; a line has one of these.
    pub(super) fn rest(text: impl Into<String>) -> Self {
        Self::new(text.into(), Kind::Rest)
    }

    pub(super) fn left(text: impl Into<String>, width: usize) -> Self {
        Self::new(text.into(), Kind::Left(width))
    }

    pub(super) fn right(text: impl Into<String>, width: usize) -> Self {
        Self::new(text.into(), Kind::Right(width))
    }

    pub(super) fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    fn new(text: String, kind: Kind) -> Self {
        Self {
            text,
            style: Style::new(),
            kind,
        }
    }

    fn fixed(&self) -> usize {
        match self.kind {
            Kind::Rest => 0,
            Kind::Left(width) | Kind::Right(width) => width + GAP,
        }
    }
}

/// The cells beside each other. On a narrow line the last of fixed width goes first, whole, so that what stays can be read.
pub(super) fn row(width: usize, mut cells: Vec<Cell>) -> Line<'static> {
    let fixed = |cells: &[Cell]| cells.iter().map(Cell::fixed).sum::<usize>();
    while fixed(&cells) + REST_MIN > width {
        match cells.iter().rposition(|cell| cell.kind != Kind::Rest) {
            Some(last) => cells.remove(last),
            None => break,
        };
    }
    let rest = width.saturating_sub(fixed(&cells));
    let mut spans = Vec::with_capacity(2 * cells.len());
    for (at, cell) in cells.into_iter().enumerate() {
        if at > 0 {
            spans.push(Span::raw(" ".repeat(GAP)));
        }
        let (columns, to_right) = match cell.kind {
            Kind::Rest => (rest, false),
            Kind::Left(columns) => (columns, false),
            Kind::Right(columns) => (columns, true),
        };
        let text = fit(&cell.text, columns);
        let space = " ".repeat(columns.saturating_sub(wide(&text)));
        let text = match to_right {
            true => space + &text,
            false => text + &space,
        };
        spans.push(Span::styled(text, cell.style));
    }
    Line::from(spans)
}

/// Where eviction ends, and where it begins.
pub(super) const MARKS: [char; 2] = ['┊', '┃'];

/// A bar of how full something is, with the marks of eviction on it.
pub(super) fn bar(fill: &Fill, width: usize, looks: Looks) -> Vec<Span<'static>> {
    let Some(share) = fill.share else {
        return vec![Span::raw(" ".repeat(width))];
    };
    let full = (share * width as f64).round() as usize;
    let place = |at: f64| ((at * width as f64) as usize).min(width.saturating_sub(1));
    let marks = fill.marks.map(|marks| marks.map(place));
    let (held, free) = (looks.of(fill.tone), looks.of(Tone::Quiet));
    let cell = |at: usize| {
        let is_held = at < full;
        let marked = marks.and_then(|marks| marks.iter().rposition(|mark| *mark == at));
        match (marked, is_held) {
            (Some(mark), true) => {
                let style = held.add_modifier(Modifier::REVERSED);
                Span::styled(MARKS[mark].to_string(), style)
            }
            (Some(mark), false) => Span::raw(MARKS[mark].to_string()),
            (None, true) => Span::styled("█", held),
            (None, false) => Span::styled("░", free),
        }
    };
    (0..width).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &Line<'_>) -> String {
        line.spans.iter().map(|span| &*span.content).collect()
    }

    #[test]
    fn what_does_not_fit_ends_in_an_ellipsis() {
        let check = |text: &str, width: usize, expected: &str| {
            assert_eq!(fit(text, width), expected);
            assert!(wide(&fit(text, width)) <= width);
        };
        check("memory", 6, "memory");
        check("memory", 5, "memo…");
        check("memory", 1, "…");
        check("memory", 0, "");
        // A wide letter takes two columns, or none.
        check("键键键", 4, "键…");
        assert_eq!(wrapped("do what is needed", 8), ["do what", "is", "needed"]);
        assert_eq!(wrapped("incomprehensible", 5), ["inco…"]);
        assert!(wrapped("", 5).is_empty());
    }

    #[test]
    fn a_narrow_line_loses_its_last_cells_and_not_their_ends() {
        let check = |width: usize, expected: &str| {
            let cells = vec![
                Cell::left("4", 3),
                Cell::rest("a long name of a segment"),
                Cell::right("25 %", 6),
                Cell::right("1 of 4 GiB", 12),
            ];
            let line = plain(&row(width, cells));
            assert_eq!(line, expected);
            assert_eq!(wide(&line), width);
        };
        check(50, "4   a long name of a segment     25 %   1 of 4 GiB");
        check(35, "4   a long nam…   25 %   1 of 4 GiB");
        check(24, "4   a long name …   25 %");
        check(12, "4   a long …");
        check(8, "a long …");
        check(3, "a …");
    }

    #[test]
    fn a_bar_shows_fill_and_marks() {
        let bar = |share: Option<f64>, marks: Option<[f64; 2]>| -> String {
            let fill = Fill {
                name: String::new(),
                tone: Tone::Memory,
                share,
                marks,
                words: String::new(),
            };
            let spans = super::bar(&fill, 10, Looks { colors: true });
            spans.iter().map(|span| &*span.content).collect()
        };
        assert_eq!(bar(Some(0.25), None), "███░░░░░░░");
        assert_eq!(bar(Some(0.5), Some([0.7, 0.95])), "█████░░┊░┃");
        assert_eq!(bar(Some(1.0), Some([0.7, 0.95])), "███████┊█┃");
        assert_eq!(bar(Some(0.0), Some([0.9, 0.95])), "░░░░░░░░░┃");
        assert_eq!(bar(None, None), "          ");
    }
}
