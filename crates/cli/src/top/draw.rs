//! Draws a view: each pane into its part of the terminal.

mod charts;
mod lists;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use self::charts::{hits, throughput};
use self::lists::{
    chains, counted, fill_line, jobs, latest, latest_title, nodes, nodes_title, tenants,
    tenants_title, times, warnings,
};
use super::cells::{Looks, MARKS, bold, fit, wide};
use super::keys::Key;
use super::panes::{Pane, Tab, panes, tiles_beside};
use super::view::{Tone, View};

/// What the user has chosen to see, and how.
pub(super) struct Shown {
    pub(super) looks: Looks,
    pub(super) tab: Tab,
    /// Lines above the first one that is shown, and the most that these can be.
    scroll: usize,
    scroll_max: usize,
    /// Lines that a page has.
    page: usize,
    pub(super) is_paused: bool,
    /// Why the server does not answer.
    pub(super) trouble: Option<String>,
}

impl Shown {
    pub(super) fn new(looks: Looks) -> Self {
        Self {
            looks,
            tab: Tab::default(),
            scroll: 0,
            scroll_max: 0,
            page: 1,
            is_paused: false,
            trouble: None,
        }
    }

    /// Does what a key asks for, but for the end.
    pub(super) fn press(&mut self, key: Key) {
        let page = self.page.max(1);
        match key {
            Key::Quit => {}
            Key::Tab(number) => self.turn_to(Tab::ALL.get(number).copied()),
            Key::Next => self.turn_to(Some(self.tab.moved(1))),
            Key::Previous => self.turn_to(Some(self.tab.moved(-1))),
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = (self.scroll + 1).min(self.scroll_max),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(page),
            Key::PageDown => self.scroll = (self.scroll + page).min(self.scroll_max),
            Key::First => self.scroll = 0,
            Key::Last => self.scroll = self.scroll_max,
            Key::Pause => self.is_paused = !self.is_paused,
        }
    }

    fn turn_to(&mut self, tab: Option<Tab>) {
        if let Some(tab) = tab {
            (self.tab, self.scroll) = (tab, 0);
        }
    }

    /// The pane whose lines are scrolled: the last one of a tab that is one list.
    fn scrolled(&self) -> Option<Pane> {
        match self.tab {
            Tab::Overview => None,
            Tab::Nodes => Some(Pane::Nodes),
            Tab::Decisions => Some(Pane::Latest),
            Tab::Reasons => Some(Pane::Counted),
            Tab::Reads => Some(Pane::Chains),
            Tab::Tenants => Some(Pane::Tenants),
            Tab::Jobs => Some(Pane::Jobs),
            Tab::Warnings => Some(Pane::Warnings),
        }
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, shown: &mut Shown) {
    let looks = shown.looks;
    for (pane, area) in panes(frame.area(), shown.tab, view, shown.trouble.is_some()) {
        let Some((title, lines)) = titled(pane, view, usize::from(area.width), looks) else {
            untitled(frame, area, pane, view, shown);
            continue;
        };
        let is_scrolled = shown.scrolled() == Some(pane);
        let skipped = if is_scrolled { shown.scroll } else { 0 };
        let last = list(frame, area, &title, lines, skipped, looks);
        if is_scrolled {
            shown.scroll_max = last;
            shown.scroll = shown.scroll.min(last);
            shown.page = usize::from(area.height.saturating_sub(2));
        }
    }
}

/// The title and the lines of a pane that is a list.
fn titled(
    pane: Pane,
    view: &View,
    width: usize,
    looks: Looks,
) -> Option<(String, Vec<Line<'static>>)> {
    let (title, lines) = match pane {
        Pane::Fill => {
            let [low, high] = MARKS;
            let fill = |fill| fill_line(fill, width, looks);
            (
                format!("Fill ({low} eviction ends, {high} begins)"),
                view.tiers.iter().map(fill).collect(),
            )
        }
        Pane::Nodes => (nodes_title(view), nodes(view, width, looks)),
        Pane::Latest => (latest_title(view), latest(view, width, looks)),
        Pane::Counted => ("Reasons".to_owned(), counted(view, width, looks)),
        Pane::Times => {
            let title = "Time of a value, and of parts of reads";
            (title.to_owned(), times(view, width, looks))
        }
        Pane::Chains => (
            "Chains that are read most".to_owned(),
            chains(view, width, looks),
        ),
        Pane::Tenants => (tenants_title(view), tenants(view, width, looks)),
        Pane::Jobs => ("Jobs".to_owned(), jobs(view, width, looks)),
        Pane::Warnings => (
            "Warnings, and what to do".to_owned(),
            warnings(view, width, looks),
        ),
        Pane::Head
        | Pane::Tabs
        | Pane::Trouble
        | Pane::Strip
        | Pane::Tiles
        | Pane::Hits
        | Pane::Bytes
        | Pane::Foot => return None,
    };
    Some((title, lines))
}

fn untitled(frame: &mut Frame<'_>, area: Rect, pane: Pane, view: &View, shown: &Shown) {
    let (width, looks) = (usize::from(area.width), shown.looks);
    let lines = match pane {
        Pane::Head => vec![head(view, shown, width)],
        Pane::Tabs => vec![tabs(shown.tab, width)],
        Pane::Strip => strip(view, area, looks),
        Pane::Tiles => tiles(view, area),
        Pane::Trouble => {
            let why = shown.trouble.as_deref().unwrap_or_default();
            let text = format!("What is below is as it was: {why}. It goes on by itself.");
            vec![Line::styled(fit(&text, width), looks.of(Tone::Bad))]
        }
        Pane::Hits => return hits(frame, area, view, looks),
        Pane::Bytes => return throughput(frame, area, view, looks),
        _ => {
            let keys = "1–8 or Tab: panes   ↑ ↓ PgUp PgDn: scroll   p: pause   q: quit";
            vec![Line::styled(fit(keys, width), looks.of(Tone::Quiet))]
        }
    };
    plain(frame, area, lines);
}

fn plain(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    frame.render_widget(Paragraph::new(lines), area);
}

/// A line with a title above what is below it.
fn ruled(title: &str, width: u16) -> Block<'static> {
    let title = fit(title, usize::from(width.saturating_sub(4)));
    let title = Span::styled(format!(" {title} "), bold());
    Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().add_modifier(Modifier::DIM))
        .title(title)
}

/// Lines below a title, from the one after `skipped` on; the last place says how many more there are. Returns the most
/// that can be skipped.
fn list(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    lines: Vec<Line<'static>>,
    skipped: usize,
    looks: Looks,
) -> usize {
    let block = ruled(title, area.width);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let (height, count) = (usize::from(inner.height), lines.len());
    if height == 0 {
        return 0;
    }
    if count <= height {
        plain(frame, inner, lines);
        return 0;
    }
    let room = height - 1;
    let last = count - room;
    let skipped = skipped.min(last);
    let mut kept: Vec<Line<'_>> = lines.into_iter().skip(skipped).take(room).collect();
    let more = match (skipped, last - skipped) {
        (0, below) => format!("… {below} more lines"),
        (above, 0) => format!("… {above} lines above"),
        (above, below) => format!("… {below} more lines, {above} above"),
    };
    kept.push(Line::styled(
        fit(&more, usize::from(inner.width)),
        looks.of(Tone::Quiet),
    ));
    plain(frame, inner, kept);
    last
}

fn head(view: &View, shown: &Shown, width: usize) -> Line<'static> {
    let (tone, state) = match (&shown.trouble, &view.not_ready) {
        (Some(_), _) => (Tone::Bad, "no link".to_owned()),
        (None, Some(_)) => (Tone::Bad, "not serving".to_owned()),
        (None, None) => (Tone::Good, "serving".to_owned()),
    };
    let paused = if shown.is_paused { ", paused" } else { "" };
    let state = format!("{state}{paused}");
    let clients = view.clients.map(|clients| format!(", {clients} clients"));
    let about = format!(
        "  epoch {}{}  {}  Slackwater {}",
        view.epoch,
        clients.unwrap_or_default(),
        view.address,
        view.version
    );
    let state = fit(&state, width);
    let room = width.saturating_sub(wide(&state));
    let style = shown.looks.of(tone).add_modifier(Modifier::BOLD);
    Line::from(vec![
        Span::styled(state, style),
        Span::raw(fit(&about, room)),
    ])
}

/// The names of all tabs, or where these do not fit their numbers and the name of this one.
fn tabs(chosen: Tab, width: usize) -> Line<'static> {
    let named = |at: usize, tab: Tab| format!("{} {}", at + 1, tab.name());
    let all: usize = Tab::ALL
        .iter()
        .enumerate()
        .map(|(at, tab)| wide(&named(at, *tab)) + 1)
        .sum();
    let mut spans = Vec::new();
    let mut room = width;
    for (at, tab) in Tab::ALL.into_iter().enumerate() {
        let text = match all <= width + 1 || tab == chosen {
            true => named(at, tab),
            false => (at + 1).to_string(),
        };
        let style = match tab == chosen {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        let text = fit(&text, room);
        room = room.saturating_sub(wide(&text) + 1);
        spans.extend([Span::styled(text, style), Span::raw(" ")]);
    }
    Line::from(spans)
}

/// The worst warnings, a line each; the last line says how many more there are.
fn strip(view: &View, area: Rect, looks: Looks) -> Vec<Line<'static>> {
    let (height, width) = (usize::from(area.height), usize::from(area.width));
    let more = view.warnings.len() - height.min(view.warnings.len());
    let shown = view.warnings.iter().take(height).enumerate();
    shown
        .map(|(at, warning)| {
            let counted = match more > 0 && at + 1 == height {
                true => format!(" (8: {more} more)"),
                false => String::new(),
            };
            let text = format!("! {}: {}", warning.what, warning.action);
            let room = width.saturating_sub(wide(&counted));
            Line::styled(fit(&text, room) + &counted, looks.of(warning.tone))
        })
        .collect()
}

fn tiles(view: &View, area: Rect) -> Vec<Line<'static>> {
    let beside = tiles_beside(area.width, view.tiles.len());
    let tile = |(words, value): &(&'static str, String)| {
        let column = usize::from(area.width) / beside - 1;
        let value = fit(value, column.saturating_sub(wide(words) + 1));
        let space = column.saturating_sub(wide(words) + 1 + wide(&value)) + 1;
        [
            Span::raw(format!("{words} ")),
            Span::styled(value, bold()),
            Span::raw(" ".repeat(space)),
        ]
    };
    view.tiles
        .chunks(beside)
        .map(|tiles| Line::from(tiles.iter().flat_map(tile).collect::<Vec<_>>()))
        .collect()
}

#[cfg(test)]
mod tests;
