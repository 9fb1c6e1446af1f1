//! What is where: which panes a tab has, and the part of the terminal that each gets.

use ratatui::layout::{Constraint, Layout, Rect};

use super::view::{Node, View};

/// What is shown below the warnings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Overview,
    Nodes,
    Decisions,
    Reasons,
    Reads,
    Tenants,
    Jobs,
    Warnings,
}

impl Tab {
    pub(super) const ALL: [Self; 8] = [
        Self::Overview,
        Self::Nodes,
        Self::Decisions,
        Self::Reasons,
        Self::Reads,
        Self::Tenants,
        Self::Jobs,
        Self::Warnings,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Nodes => "Nodes",
            Self::Decisions => "Decisions",
            Self::Reasons => "Reasons",
            Self::Reads => "Reads",
            Self::Tenants => "Tenants",
            Self::Jobs => "Jobs",
            Self::Warnings => "Warnings",
        }
    }

    /// The tab so many places further, around the end.
    pub(super) fn moved(self, by: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self as isize + by).rem_euclid(count) as usize]
    }
}

/// A part of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Head,
    Tabs,
    /// That the server does not answer.
    Trouble,
    /// The worst warnings, whatever the tab is.
    Strip,
    Tiles,
    Fill,
    Hits,
    Bytes,
    Nodes,
    Latest,
    Counted,
    Times,
    Chains,
    Tenants,
    Jobs,
    Warnings,
    Foot,
}

/// From this size on the overview has everything.
const WIDE: (u16, u16) = (140, 40);
/// Lower terminals have no line of keys, and one warning.
const LOW: u16 = 16;
/// The least columns of a tile, with its gap.
const TILE: u16 = 20;

/// The panes of a tab, which do not overlap. Those for which there is no room are not there.
pub(super) fn panes(area: Rect, tab: Tab, view: &View, is_lost: bool) -> Vec<(Pane, Rect)> {
    let is_low = area.height < LOW;
    let strip = match tab {
        // It has them all.
        Tab::Warnings => 0,
        _ => view.warnings.len().min(if is_low { 1 } else { 3 }) as u16,
    };
    let [head, tabs, trouble, strip, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(u16::from(is_lost)),
        Constraint::Length(strip),
        Constraint::Min(0),
        Constraint::Length(u16::from(!is_low)),
    ])
    .areas(area);
    let mut all = vec![
        (Pane::Head, head),
        (Pane::Tabs, tabs),
        (Pane::Trouble, trouble),
        (Pane::Strip, strip),
        (Pane::Foot, foot),
    ];
    match tab {
        Tab::Overview if area.width >= WIDE.0 && area.height >= WIDE.1 => {
            everything(body, view, &mut all);
        }
        Tab::Overview => overview(body, view, &mut all),
        Tab::Nodes => all.push((Pane::Nodes, body)),
        Tab::Decisions => all.push((Pane::Latest, body)),
        Tab::Reasons => all.push((Pane::Counted, body)),
        Tab::Reads => {
            let times = 2 + view.times.len() as u16;
            let [above, below] =
                Layout::vertical([Constraint::Length(times), Constraint::Min(0)]).areas(body);
            all.extend([(Pane::Times, above), (Pane::Chains, below)]);
        }
        Tab::Tenants => all.push((Pane::Tenants, body)),
        Tab::Jobs => all.push((Pane::Jobs, body)),
        Tab::Warnings => all.push((Pane::Warnings, body)),
    }
    all.retain(|(_, area)| !area.is_empty());
    all
}

/// Of so many tiles those in a row of this width, so that the rows are alike.
pub(super) fn tiles_beside(width: u16, count: usize) -> usize {
    let most = usize::from((width / TILE).max(1));
    count.div_ceil(count.div_ceil(most).max(1)).max(1)
}

/// Rows that the tiles take at this width.
fn tile_rows(width: u16, view: &View) -> u16 {
    let count = view.tiles.len();
    count.div_ceil(tiles_beside(width, count)) as u16
}

fn overview(body: Rect, view: &View, all: &mut Vec<(Pane, Rect)>) {
    let fill = 1 + view.tiers.len() as u16;
    let tiles = tile_rows(body.width, view);
    let charts = match body.height.saturating_sub(tiles + fill) {
        left @ 0..6 => left,
        6..12 => 6,
        left => left / 2,
    };
    // Where there is little room, how full it is goes before how fast.
    let [fill, tiles, charts, latest] = Layout::vertical([
        Constraint::Length(fill),
        Constraint::Length(tiles),
        Constraint::Length(charts),
        Constraint::Min(0),
    ])
    .areas(body);
    let [hits, bytes] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(1)
        .areas(charts);
    all.extend([
        (Pane::Fill, fill),
        (Pane::Tiles, tiles),
        (Pane::Hits, hits),
        (Pane::Bytes, bytes),
        (Pane::Latest, latest),
    ]);
}

fn everything(body: Rect, view: &View, all: &mut Vec<(Pane, Rect)>) {
    let [tiles, columns] = Layout::vertical([
        Constraint::Length(tile_rows(body.width, view)),
        Constraint::Min(0),
    ])
    .areas(body);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(2)
        .areas(columns);
    let fill = 1 + view.tiers.len() as u16;
    let lines = |node: &Node| 1 + node.segments.len();
    let nodes = 1 + view.nodes.iter().map(lines).sum::<usize>().max(1);
    let nodes = nodes.min(usize::from(left.height / 2)) as u16;
    let [fill, nodes, latest] = Layout::vertical([
        Constraint::Length(fill),
        Constraint::Length(nodes),
        Constraint::Min(0),
    ])
    .areas(left);
    let times = 2 + view.times.len().max(1) as u16;
    let tenants = 1 + 3 * view.tenants.len().clamp(1, 2) as u16;
    let [charts, times, chains, tenants, jobs, counted] = Layout::vertical([
        Constraint::Length((right.height / 6).max(5)),
        Constraint::Length(times),
        Constraint::Length(2 + view.chains.len().clamp(1, 5) as u16),
        Constraint::Length(tenants),
        Constraint::Length(1 + 2 * view.jobs.len().clamp(1, 2) as u16),
        Constraint::Min(0),
    ])
    .areas(right);
    let [hits, bytes] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(1)
        .areas(charts);
    all.extend([
        (Pane::Tiles, tiles),
        (Pane::Fill, fill),
        (Pane::Nodes, nodes),
        (Pane::Latest, latest),
        (Pane::Hits, hits),
        (Pane::Bytes, bytes),
        (Pane::Times, times),
        (Pane::Chains, chains),
        (Pane::Tenants, tenants),
        (Pane::Jobs, jobs),
        (Pane::Counted, counted),
    ]);
}
