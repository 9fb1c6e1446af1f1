use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use serde_json::{Value, json};

use super::*;
use crate::top::examples::{busy, empty, failing, sampled, seen, ten_nodes};
use crate::top::view::History;

const SAMPLES: [fn(f64) -> Value; 4] = [empty, busy, failing, ten_nodes];
/// From a corner of a screen to a whole one.
const SIZES: [(u16, u16); 5] = [(80, 24), (40, 10), (200, 60), (120, 30), (140, 40)];

fn shown(tab: Tab) -> Shown {
    Shown {
        tab,
        ..Shown::new(Looks { colors: true })
    }
}

fn drawn(view: &View, shown: &mut Shown, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, shown)).unwrap();
    terminal.backend().buffer().clone()
}

fn rows(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let row = |y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
    (0..area.height).map(row).collect()
}

fn text(view: &View, shown: &mut Shown, size: (u16, u16)) -> String {
    rows(&drawn(view, shown, size)).join("\n")
}

/// Calls with every sample on every tab at every size, with and without a server.
fn everywhere(mut check: impl FnMut(&View, &mut Shown, (u16, u16))) {
    for view in SAMPLES.map(seen) {
        for tab in Tab::ALL {
            for size in SIZES {
                for trouble in [None, Some("nobody answers".to_owned())] {
                    let mut shown = shown(tab);
                    shown.trouble = trouble;
                    check(&view, &mut shown, size);
                }
            }
        }
    }
}

#[test]
fn panes_lie_on_the_terminal_and_beside_each_other() {
    everywhere(|view, shown, (width, height)| {
        let whole = Rect::new(0, 0, width, height);
        let all = panes(whole, shown.tab, view, shown.trouble.is_some());
        assert!(all.len() >= 3, "{all:?}");
        for (at, (pane, area)) in all.iter().enumerate() {
            assert_eq!(
                area.intersection(whole),
                *area,
                "{pane:?} of {width}x{height}"
            );
            for (other, beside) in &all[at + 1..] {
                let (tab, size) = (shown.tab, (width, height));
                assert!(
                    !area.intersects(*beside) && pane != other,
                    "{tab:?} {size:?}: {pane:?} {area:?} is over {other:?} {beside:?}"
                );
            }
        }
    });
}

#[test]
fn what_is_cut_says_so() {
    let mut cut = 0;
    everywhere(|view, shown, size| {
        for row in rows(&drawn(view, shown, size)) {
            let parts: Vec<&str> = row.split("-and-so-on").collect();
            if parts.len() > 1 {
                assert!(
                    row.contains('…') || row.contains("THE-END"),
                    "{size:?}: {row}"
                );
                cut += usize::from(row.contains('…'));
            }
        }
    });
    assert!(cut > 100, "only {cut} rows had something to cut");
}

#[test]
fn the_worst_warning_the_state_and_a_lost_server_are_seen_whatever_is_looked_at() {
    everywhere(|view, shown, size| {
        let text = text(view, shown, size);
        let lines: Vec<&str> = text.lines().collect();
        if let Some(worst) = view.warnings.first() {
            let beginning: String = worst.what.chars().take(20).collect();
            assert!(
                text.contains(&beginning),
                "{:?} {size:?}:\n{text}",
                shown.tab
            );
        }
        let state = match (&shown.trouble, &view.not_ready) {
            (Some(_), _) => "no link",
            (None, Some(_)) => "not serving",
            (None, None) => "serving",
        };
        assert!(lines[0].starts_with(state), "{}", lines[0]);
        assert!(lines[1].contains(shown.tab.name()), "{}", lines[1]);
        let is_told = lines[2].starts_with("What is below is as it was");
        assert_eq!(is_told, shown.trouble.is_some(), "{}", lines[2]);
    });
    let failing = seen(failing);
    let strip = text(&failing, &mut shown(Tab::Overview), (80, 24));
    let counted = strip
        .lines()
        .find(|line| line.trim_end().ends_with("(8: 2 more)"));
    assert!(
        counted.unwrap().starts_with("! the SSD takes no records"),
        "{strip}"
    );
}

#[test]
fn a_terminal_of_80_columns_shows_what_the_page_shows() {
    let view = seen(busy);
    let check = |tab: Tab, words: &[&str]| {
        let text = text(&view, &mut shown(tab), (80, 24));
        for word in words {
            assert!(text.contains(word), "{tab:?}: {word}:\n{text}");
        }
    };
    check(
        Tab::Overview,
        &[
            "serving  epoch 7  tcp://127.0.0.1:50051",
            "objects 12,003",
            "reads 1,000/s",
            "hits 90.0 %",
            "bytes put 40.0 MiB/s",
            "Hits: memory 60.0 %, SSD 30.0 %",
            "from memory 600 MiB/s",
            "100 %",
            "89.9 %",
            "921 MiB of 1.00 GiB",
            "┊",
            "┃",
            "Latest decisions, of 300 that were made",
            "q: quit",
        ],
    );
    check(
        Tab::Nodes,
        &["Segments", "has a link", "300 MiB of 1.00 GiB"],
    );
    check(
        Tab::Decisions,
        &[
            "Evicted from memory  model@1, 64.0 KiB, segment 300",
            "room was needed; another copy stays: system prompt; last read",
        ],
    );
    check(
        Tab::Reasons,
        &[
            "Promoted into memory",
            "not: read too rarely",
            "20/s",
            "more lines",
        ],
    );
    check(
        Tab::Reads,
        &[
            "p99.9",
            "read from SSD",
            "388 µs",
            "1.20 ms",
            "look-up of a call",
            "guests: prefix-2",
            "40.0 %",
        ],
    );
    check(
        Tab::Tenants,
        &[
            "Tenants (3 more hold less)",
            "7.00 MiB, no quota",
            "15.0 MiB of 16.0 MiB",
            "12,000 objects",
        ],
    );
    check(
        Tab::Jobs,
        &[
            "7: drain memory-300",
            "running",
            "25.0 %",
            "3.00 MiB left",
            "k: NO_SPACE",
            "failed",
        ],
    );
    check(Tab::Warnings, &["Nothing is to be done."]);
}

#[test]
fn a_large_terminal_shows_everything_at_once() {
    let view = seen(ten_nodes);
    let text = text(&view, &mut shown(Tab::Overview), (200, 60));
    for word in [
        "Nodes: 10; clients with a link: 3",
        "key 6668-7aad-f862-bd77",
        "Hits: memory",
        "Latest decisions",
        "p99.9",
        "Chains that are read most",
        "Tenants (3 more hold less)",
        "8: copy k to 4, 5",
        "epoch 7, 3 clients",
    ] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
}

#[test]
fn long_lists_are_scrolled_as_far_as_they_go() {
    let view = seen(ten_nodes);
    let size = (80, 24);
    let mut shown = shown(Tab::Nodes);
    let first = text(&view, &mut shown, size);
    assert!(
        first.contains("node 100") && !first.contains("node 109        "),
        "{first}"
    );
    assert!(first.contains("more lines"), "{first}");
    shown.press(Key::Down);
    let next = text(&view, &mut shown, size);
    assert!(
        !next.contains("node 100 ") && next.contains("1 above"),
        "{next}"
    );
    shown.press(Key::Last);
    let last = text(&view, &mut shown, size);
    assert!(
        last.contains("node 109        has no link") && last.contains("lines above"),
        "{last}"
    );
    for _ in 0..100 {
        shown.press(Key::PageDown);
    }
    assert_eq!(text(&view, &mut shown, size), last);
    shown.press(Key::PageUp);
    assert_ne!(text(&view, &mut shown, size), last);
    for _ in 0..100 {
        shown.press(Key::Up);
    }
    assert_eq!(text(&view, &mut shown, size), first);
    shown.press(Key::Last);
    // What is shorter now is shown from its end, not past it.
    let few = text(&seen(empty), &mut shown, size);
    assert!(few.contains("node 300"), "{few}");
    shown.press(Key::Next);
    assert_eq!((shown.tab, shown.scroll), (Tab::Decisions, 0));
    shown.press(Key::Tab(0));
    shown.press(Key::Previous);
    shown.press(Key::Tab(8));
    assert_eq!(shown.tab, Tab::Warnings);
    let all = text(&view, &mut shown, size);
    assert!(
        all.contains("  Reads of what it holds wait for it."),
        "{all}"
    );
    shown.press(Key::Pause);
    assert!(text(&view, &mut shown, size).starts_with("serving, paused"));
}

#[test]
fn without_colours_nothing_has_one() {
    let has_colors = |colors: bool| {
        let mut found = false;
        everywhere(|view, shown, size| {
            shown.looks = Looks { colors };
            let buffer = drawn(view, shown, size);
            let reset = ratatui::style::Color::Reset;
            found |= buffer
                .content
                .iter()
                .any(|cell| cell.fg != reset || cell.bg != reset);
        });
        found
    };
    assert!(has_colors(true));
    assert!(!has_colors(false));
}

/// The paths of all that is neither an object nor a list, and of the lists.
fn paths(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            fields.for_each(|(name, value)| paths(value, &format!("{path}/{name}"), out));
        }
        Value::Array(items) => {
            out.push(path.to_owned());
            let items = items.iter().take(1).enumerate();
            items.for_each(|(at, value)| paths(value, &format!("{path}/{at}"), out));
        }
        _ => out.push(path.to_owned()),
    }
}

/// Servers of other releases tell other things, and something else may answer at the address.
#[test]
fn a_sample_with_something_else_in_it_is_no_fault() {
    let mut all = Vec::new();
    paths(&ten_nodes(60.0), "", &mut all);
    assert!(all.len() > 100, "{all:?}");
    let others = [
        json!(null),
        json!(u64::MAX),
        json!(-1e300),
        json!("\u{1b}[2J"),
        json!([[]]),
    ];
    for path in all {
        for other in &others {
            let mut history = History::default();
            for second in 59..=60 {
                let mut sample = ten_nodes(f64::from(second));
                *sample.pointer_mut(&path).unwrap() = other.clone();
                history.push(sampled(sample));
            }
            let view = history.view().unwrap();
            let text = text(&view, &mut shown(Tab::Overview), (140, 40));
            assert!(!text.contains('\u{1b}'), "{path}: {other}");
        }
    }
}

#[test]
fn a_terminal_without_room_is_no_fault() {
    for view in SAMPLES.map(seen) {
        for tab in Tab::ALL {
            for size in [(1, 1), (2, 3), (7, 5), (9, 200), (500, 2), (30, 7)] {
                drawn(&view, &mut shown(tab), size);
            }
        }
    }
}
