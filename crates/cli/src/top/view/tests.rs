use serde_json::json;

use super::told::COUNTED;
use super::*;
use crate::top::examples::{busy, empty, failing, sampled, seen, ten_nodes};

#[test]
fn rates_are_means_and_curves_are_not() {
    let mut history = History::default();
    assert!(history.view().is_none());
    let reads = |time_s: f64, memory: u64, missed: u64| {
        let mut sample = empty(time_s);
        sample["stats"]["reads"]["memory_hits"] = json!(memory);
        sample["stats"]["reads"]["misses"] = json!(missed);
        sampled(sample)
    };
    assert!(history.push(reads(1.0, 0, 0)));
    let first = history.view().unwrap();
    assert_eq!((first.hits, first.bytes), (None, None));
    assert_eq!(first.tiles[1], ("reads", "–".to_owned()));
    assert!(
        !history.push(reads(1.0, 0, 0)),
        "the server had no other yet"
    );
    for second in 2..=20 {
        // All is served, until the last second.
        let missed = if second == 20 { 10 } else { 0 };
        assert!(history.push(reads(f64::from(second), 10 * second as u64, missed)));
    }
    let view = history.view().unwrap();
    assert_eq!(view.points.len(), 19);
    assert_eq!(view.points.last().unwrap().hits, Some([0.5, 0.0]));
    assert_eq!(view.hits, Some([50.0 / 60.0, 0.0]));
    assert_eq!(view.tiles[1], ("reads", "12/s".to_owned()));
    assert_eq!(view.tiles[2], ("hits", "83.3 %".to_owned()));
    // It was started again: nothing of the life before is taken for growth, and the curve goes on.
    let mut anew = empty(1.0);
    anew["epoch"] = json!(8);
    assert!(history.push(sampled(anew)));
    let view = history.view().unwrap();
    assert_eq!((view.epoch, view.hits, view.points.len()), (8, None, 19));
}

#[test]
fn curves_and_decisions_are_bounded() {
    let mut history = History::default();
    for second in 0..2 * POINTS_MAX {
        history.push(sampled(busy(second as f64)));
    }
    let view = history.view().unwrap();
    assert_eq!(view.points.len(), POINTS_MAX);
    assert_eq!(view.latest.len(), LATEST_MAX);
    assert!(history.samples.len() <= MEAN + 1);
}

#[test]
fn decisions_are_told_once_with_their_reasons_and_grow_old() {
    let mut history = History::default();
    history.push(sampled(busy(10.0)));
    let mut again = busy(10.0);
    again["time_s"] = json!(15.0);
    // The older one is told no more, and the server says itself how old the other is.
    again["decisions"]["latest"]
        .as_array_mut()
        .unwrap()
        .remove(0);
    again["decisions"]["latest"][0]["age_s"] = json!(3.5);
    assert!(history.push(sampled(again)));
    let view = history.view().unwrap();
    assert_eq!(view.latest.len(), 2, "{:?}", view.latest);
    let [refused, evicted] = &view.latest[..] else {
        panic!("{:?}", view.latest);
    };
    assert_eq!(evicted.words, "Evicted from memory");
    assert_eq!(evicted.ago, "7.0 s ago");
    assert_eq!(evicted.subject, "model@1, 64.0 KiB, segment 300");
    assert_eq!(
        evicted.reason,
        "room was needed; another copy stays: system prompt; last read 75 s ago; returns with 42.0 % within 10 min; worth 36 hits an hour, what goes next 3.6; rule learned."
    );
    assert_eq!(
        (refused.words.as_str(), refused.ago.as_str()),
        ("Not promoted", "3.5 s ago")
    );
    assert_eq!(refused.reason, "room was needed; another copy stays.");
}

#[test]
fn decisions_of_another_life_are_others_though_their_numbers_are_lower() {
    let mut history = History::default();
    history.push(sampled(busy(10.0)));
    let mut anew = busy(1.0);
    anew["epoch"] = json!(8);
    history.push(sampled(anew));
    let latest = history.view().unwrap().latest;
    let numbers: Vec<u64> = latest.iter().map(|decision| decision.number).collect();
    assert_eq!(numbers, [7, 6]);
}

#[test]
fn each_part_of_the_page_is_there() {
    let view = seen(busy);
    assert_eq!(view.tiers.len(), 2);
    assert_eq!(view.tiers[0].marks, Some([0.85, 0.95]));
    assert_eq!(view.tiers[0].words, "921 MiB of 1.00 GiB");
    assert_eq!(view.nodes.len(), 1);
    assert_eq!(view.nodes[0].segments[1].name, "ssd");
    let promoted = &view.counted[0];
    assert_eq!(
        (promoted.now.as_str(), promoted.all.as_str()),
        ("10/s", "600")
    );
    assert_eq!(view.counted[5].all, "3", "three ends are one reason");
    assert_eq!(
        view.rules,
        ["Eviction from memory follows learned; simulated caches hit: learned 62.0 %, lru 50.0 %."]
    );
    let timed: Vec<&str> = view.times.iter().map(|timed| timed.words).collect();
    assert_eq!(
        timed,
        ["read from memory", "read from SSD", "look-up of a call"]
    );
    assert_eq!(view.times[1].quantiles[2], "1.20 ms");
    assert_eq!(view.chains[0].share, "40.0 %");
    assert_eq!(view.chains[1].tenant.as_deref(), Some("guests"));
    assert_eq!(view.tenants[0].tiers[0].words, "7.00 MiB, no quota");
    assert_eq!(view.tenants[1].tiers[0].share, Some(0.9375));
    assert_eq!(view.tenants_left, 3);
    assert_eq!(view.jobs[0].errors.as_deref(), Some("k: NO_SPACE"));
    assert_eq!(view.jobs[0].title, "8: copy k to 4, 5");
    assert_eq!(view.jobs[1].progress.share, Some(0.25));

    let pool = seen(ten_nodes);
    assert_eq!((pool.nodes.len(), pool.clients), (10, Some(3)));
    let tones: Vec<Tone> = pool.nodes[7..].iter().map(|node| node.tone).collect();
    assert_eq!(tones, [Tone::Good, Tone::Fair, Tone::Bad]);
    assert_eq!(pool.nodes[1].segments[0].name, "memory, draining");
    assert_eq!(pool.nodes[3].address, "10.0.0.103:50052");

    let alone = seen(empty);
    assert!(alone.counted.iter().all(|it| !it.words.contains("SSD")));
    assert!(alone.times.is_empty() && alone.chains.is_empty() && alone.jobs.is_empty());
}

#[test]
fn what_others_wrote_is_nothing_that_a_terminal_obeys() {
    let view = seen(failing);
    assert_eq!(
        view.not_ready.as_deref(),
        Some("no node lends memory: start one with `slackwater node`")
    );
    assert_eq!(view.warnings.len(), 5);
    assert_eq!(
        view.warnings[0].what,
        "not serving: no node lends memory\u{fffd}[2J"
    );
    assert_eq!(view.tiers[0].share, None, "there is no memory to be full");
}

/// The page and the terminal count the same under the same words.
#[test]
fn the_lines_of_the_funnels_are_those_of_the_page() {
    let page = include_str!("../../../../admin/page/tables.js");
    let start = page.find("const DECISIONS = [").unwrap();
    let end = page[start..].find("].map(").unwrap();
    let lines: Vec<&str> = page[start..start + end].lines().skip(1).collect();
    let ours: Vec<String> = COUNTED
        .iter()
        .map(|(words, paths, is_reason)| {
            let paths: Vec<String> = paths.iter().map(|path| format!("\"{path}\"")).collect();
            let paths = match &paths[..] {
                [one] => one.clone(),
                all => format!("[{}]", all.join(", ")),
            };
            let why = if *is_reason { ", \"why\"" } else { "" };
            format!("[\"{words}\", {paths}{why}],")
        })
        .collect();
    let page: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    assert_eq!(page, ours);
}
