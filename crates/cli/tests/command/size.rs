//! `slackwater size`: from a trace to sizes, a page and a configuration that can be used.

use std::fs;

use serde_json::Value;

use crate::place::{Place, stderr};

const CHAT: [&str; 6] = [
    "size",
    "--generate",
    "--requests",
    "400",
    "--sessions",
    "30",
];

fn run(place: &Place, options: &[&str]) -> Value {
    let output = place.run(&[&CHAT[..], options, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn more_of_either_finds_no_less_and_the_configuration_is_one() {
    let place = Place::new();
    let options = [
        "--model",
        "llama-3.1-8b",
        "--prefill-tokens-per-s",
        "8000",
        "--report",
        "out",
        "--policy",
        "lru",
    ];
    let answer = run(&place, &options);
    let points = answer["points"].as_array().unwrap();
    assert_eq!(points.len(), 7 * 8);
    let rates: Vec<f64> = points
        .iter()
        .map(|point| point["hit_rate"].as_f64().unwrap())
        .collect();
    let of_memory: Vec<f64> = rates.iter().step_by(8).copied().collect();
    assert!(
        of_memory.is_sorted(),
        "LRU finds more in more memory: {of_memory:?}"
    );
    assert!(of_memory[0] < of_memory[6], "{of_memory:?}");
    // All of it in memory finds what all of it on SSD does.
    assert!((rates[6 * 8] - rates[7 * 8 - 1]).abs() < 1e-9);
    assert_eq!(answer["facts"]["kv_bytes_per_token"], 131_072);
    assert_eq!(answer["ssd"]["slower_than_computing"], false);
    let best = points
        .iter()
        .filter_map(|point| point["seconds_saved_per_hour"].as_f64())
        .fold(0.0, f64::max);
    let chosen = answer["chosen"]["seconds_saved_per_hour"].as_f64().unwrap();
    assert!(best > 0.0 && chosen >= 0.98 * best, "{chosen} of {best}");

    let file = place.path("chosen.toml");
    fs::write(&file, answer["configuration"].as_str().unwrap()).unwrap();
    let read = place.run(&["config", "--config", file.to_str().unwrap()]);
    assert!(read.status.success(), "{}", stderr(&read));
    assert!(
        String::from_utf8(read.stdout)
            .unwrap()
            .contains("policy = \"lru\"")
    );

    let page = fs::read_to_string(place.path("out/size.html")).unwrap();
    for part in [
        "Hits by memory",
        "Hits by SSD",
        "Prefill time saved",
        "llama-3.1-405b",
        "<svg",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let written: Value =
        serde_json::from_slice(&fs::read(place.path("out/size.json")).unwrap()).unwrap();
    assert_eq!(written["chosen"], answer["chosen"]);
}

#[test]
fn without_a_prefill_speed_hits_count_and_the_even_speed_is_told() {
    let place = Place::new();
    let sizes = ["--memory", "64MiB,1GiB", "--ssd", "0,4GiB"];
    let line = [&CHAT[..], &["--kv-bytes-per-token", "4096"], &sizes].concat();
    let output = place.run(&line);
    let text = String::from_utf8(output.stdout).unwrap();
    // 3 GB/s over 4,096 bytes a token.
    for part in [
        "more than 732422 tokens a second.",
        "Prompt tokens saved an hour",
        "SSD 4GiB",
        "64MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let answer = run(
        &place,
        &[&["--kv-bytes-per-token", "4096"], &sizes[..]].concat(),
    );
    assert!(answer["points"][0]["seconds_saved_per_hour"].is_null());
    assert!(answer["ssd"]["slower_than_computing"].is_null());
}

#[test]
fn what_is_missing_or_unknown_is_said() {
    for (options, message) in [
        (&[][..], "--model <NAME>"),
        (&["--model", "gpt"], "known are llama-3.2-1b"),
        (
            &["--kv-bytes-per-token", "1", "--prefill-tokens-per-s", "0"],
            "expected a number above zero",
        ),
        (
            &["--kv-bytes-per-token", "1", "--ssd-rate", "0"],
            "expected a size above zero",
        ),
        (&["--kv-bytes-per-token", "1", "--policy", "fifi"], "fifi"),
        (
            &["--kv-bytes-per-token", "1", "--memory", "1"],
            "must be at least 1MiB",
        ),
    ] {
        let output = Place::new().run(&[&CHAT[..], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(
            stderr(&output).contains(message),
            "{options:?}: {}",
            stderr(&output)
        );
    }
}
