//! The lines of each list.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::top::cells::{Cell, Looks, bar, bold, fit, row, wide, wrapped};
use crate::top::figures::percent;
use crate::top::view::{Decision, Fill, Holder, Job, Node, Tone, View, Warning};

/// Columns of the bar of a job, of a name and of the words beside a bar; a bar has at least so many.
const BAR: usize = 24;
const NAME: usize = 18;
const FIGURES: usize = 20;
const BAR_MIN: usize = 8;

/// A name, a bar, a share and words; narrow lines go without the bar.
pub(super) fn fill_line(fill: &Fill, width: usize, looks: Looks) -> Line<'static> {
    let share = fill.share.map(percent).unwrap_or_default();
    let figures = vec![
        Cell::rest(fill.name.clone()).style(looks.of(fill.tone)),
        Cell::right(share, 7),
        Cell::right(fill.words.clone(), FIGURES),
    ];
    let words = NAME + 8 + FIGURES + 1 + 1;
    let columns = width.saturating_sub(words).min(width / 2);
    if columns < BAR_MIN {
        return row(width, figures);
    }
    let line = row(width - columns - 1, figures);
    let mut spans = line.spans;
    spans.push(Span::raw(" "));
    spans.extend(bar(fill, columns, looks));
    Line::from(spans)
}

pub(super) fn nodes_title(view: &View) -> String {
    match (view.nodes.len(), view.clients) {
        (_, None) => "Segments".to_owned(),
        (nodes, Some(clients)) => format!("Nodes: {nodes}; clients with a link: {clients}"),
    }
}

pub(super) fn nodes(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.nodes.is_empty() {
        return none(
            "No node lends memory. Start one with `slackwater node`.",
            width,
            looks,
        );
    }
    let of_node = |node: &Node| {
        let key = node.fingerprint.as_ref();
        let key = key.map(|key| format!("key {key}")).unwrap_or_default();
        let cells = vec![
            Cell::left(format!("node {}", node.number), 15).style(bold()),
            Cell::left(node.link.clone(), 13).style(looks.of(node.tone)),
            Cell::rest(node.address.clone()),
            Cell::right(key, 23).style(looks.of(Tone::Quiet)),
        ];
        let mut lines = vec![row(width, cells)];
        let indented = |fill: &Fill| {
            let fill = Fill {
                name: format!("  {}", fill.name),
                ..fill.clone()
            };
            fill_line(&fill, width, looks)
        };
        lines.extend(node.segments.iter().map(indented));
        lines
    };
    view.nodes.iter().flat_map(of_node).collect()
}

pub(super) fn latest_title(view: &View) -> String {
    format!("Latest decisions, of {} that were made", view.made)
}

pub(super) fn latest(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.latest.is_empty() {
        let text = "Nothing was evicted, written to SSD or promoted since this looks.";
        return none(text, width, looks);
    }
    let decision = |it: &Decision| {
        let cells = vec![
            Cell::left(it.words.clone(), 20).style(looks.of(it.tone)),
            Cell::rest(it.subject.clone()),
            Cell::right(it.ago.clone(), 11).style(looks.of(Tone::Quiet)),
        ];
        let reason = wrapped(&it.reason, width.saturating_sub(2)).into_iter();
        let mut lines = vec![row(width, cells)];
        lines.extend(reason.map(|line| Line::raw(format!("  {line}"))));
        lines
    };
    view.latest.iter().flat_map(decision).collect()
}

pub(super) fn counted(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    let line = |words: String, now: String, all: String, style: Style| {
        let cells = vec![
            Cell::rest(words).style(style),
            Cell::right(now, 11),
            Cell::right(all, 11),
        ];
        row(width, cells)
    };
    let quiet = looks.of(Tone::Quiet);
    let mut lines = vec![line(
        "decision".to_owned(),
        "now".to_owned(),
        "in all".to_owned(),
        quiet,
    )];
    lines.extend(view.counted.iter().map(|it| {
        let (words, style) = match it.is_reason {
            true => (format!("  {}", it.words), Style::new()),
            false => (it.words.to_owned(), bold()),
        };
        line(words, it.now.clone(), it.all.clone(), style)
    }));
    let rules = view.rules.iter().flat_map(|rule| wrapped(rule, width));
    lines.extend(rules.map(Line::raw));
    lines
}

pub(super) fn times(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.times.is_empty() {
        return none("Nothing was measured yet.", width, looks);
    }
    let line = |words: String, cells: [String; 4], style: Style| {
        let mut all = vec![Cell::rest(words).style(style)];
        all.extend(cells.into_iter().map(|cell| Cell::right(cell, 8)));
        row(width, all)
    };
    let heads = ["p50", "p95", "p99", "p99.9"].map(str::to_owned);
    let mut lines = vec![line(String::new(), heads, Style::new())];
    lines.extend(view.times.iter().map(|it| {
        let style = if it.is_part { Style::new() } else { bold() };
        let indent = if it.is_part { "  " } else { "" };
        line(format!("{indent}{}", it.words), it.quantiles.clone(), style)
    }));
    lines
}

pub(super) fn chains(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.chains.is_empty() {
        return none("Nothing was looked up since this looks.", width, looks);
    }
    let line = |key: String, reads: String, share: String, style: Style| {
        let cells = vec![
            Cell::rest(key).style(style),
            Cell::right(reads, 9),
            Cell::right(share, 7),
        ];
        row(width, cells)
    };
    let heads = ["first block", "look-ups", "of all"].map(str::to_owned);
    let [key, reads, share] = heads;
    let mut lines = vec![line(key, reads, share, looks.of(Tone::Quiet))];
    lines.extend(view.chains.iter().map(|chain| {
        let key = match &chain.tenant {
            Some(tenant) => format!("{tenant}: {}", chain.key),
            None => chain.key.clone(),
        };
        line(key, chain.reads.clone(), chain.share.clone(), Style::new())
    }));
    lines
}

pub(super) fn tenants_title(view: &View) -> String {
    match view.tenants_left {
        0 => "Tenants".to_owned(),
        more => format!("Tenants ({more} more hold less)"),
    }
}

pub(super) fn tenants(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.tenants.is_empty() {
        return none("No tenant holds anything or has a quota.", width, looks);
    }
    let of_tenant = |holder: &Holder| {
        let name = vec![
            Cell::rest(holder.name.clone()).style(bold()),
            Cell::right(holder.objects.clone(), 16),
        ];
        let mut lines = vec![row(width, name)];
        lines.extend(holder.tiers.iter().map(|fill| {
            let fill = Fill {
                name: format!("  {}", fill.name),
                ..fill.clone()
            };
            fill_line(&fill, width, looks)
        }));
        lines
    };
    view.tenants.iter().flat_map(of_tenant).collect()
}

pub(super) fn jobs(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.jobs.is_empty() {
        let text = "No job is under way. A drain empties a node before it is switched off.";
        return none(text, width, looks);
    }
    let of_job = |job: &Job| {
        let title = vec![
            Cell::rest(job.title.clone()).style(bold()),
            Cell::right(job.status.clone(), 9).style(looks.of(job.tone)),
        ];
        let share = job.progress.share.map(percent).unwrap_or_default();
        let progress = format!("  {share}  {}", job.progress.words);
        let mut lines = vec![row(width, title)];
        let columns = width.saturating_sub(wide(&progress) + 1).min(BAR);
        let mut spans = vec![Span::raw(fit(&progress, width))];
        if columns >= 4 {
            spans.push(Span::raw(" "));
            spans.extend(bar(&job.progress, columns, looks));
        }
        lines.push(Line::from(spans));
        if let Some(errors) = &job.errors {
            let text = fit(&format!("  {errors}"), width);
            lines.push(Line::styled(text, looks.of(Tone::Bad)));
        }
        lines
    };
    view.jobs.iter().flat_map(of_job).collect()
}

pub(super) fn warnings(view: &View, width: usize, looks: Looks) -> Vec<Line<'static>> {
    if view.warnings.is_empty() {
        return none("Nothing is to be done.", width, looks);
    }
    let of_warning = |warning: &Warning| {
        let style = looks.of(warning.tone);
        let what = wrapped(&warning.what, width);
        let what = what.into_iter().map(move |line| Line::styled(line, style));
        let action = wrapped(&warning.action, width.saturating_sub(2));
        let action = action
            .into_iter()
            .map(|line| Line::raw(format!("  {line}")));
        what.chain(action).collect::<Vec<_>>()
    };
    view.warnings.iter().flat_map(of_warning).collect()
}

fn none(text: &str, width: usize, looks: Looks) -> Vec<Line<'static>> {
    let lines = wrapped(text, width).into_iter();
    lines
        .map(|line| Line::styled(line, looks.of(Tone::Quiet)))
        .collect()
}
