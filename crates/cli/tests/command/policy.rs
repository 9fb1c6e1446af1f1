//! `slackwater policy`: the judgement on named traffics, and what hints gain.

use serde_json::Value;

use crate::place::{Place, stderr};

const CHAT: [&str; 8] = [
    "policy",
    "--generate",
    "--requests",
    "800",
    "--sessions",
    "60",
    "--sizes",
    "400",
];

fn run(options: &[&str]) -> (Option<i32>, String, String) {
    let output = Place::new().run(&[&CHAT[..], options].concat());
    let said = String::from_utf8(output.stdout.clone()).expect("text");
    (output.status.code(), said, stderr(&output))
}

#[test]
fn a_policy_below_its_peers_fails_and_one_above_them_does_not() {
    for (policies, code, holds) in [
        ("lru,wtinylfu", Some(1), false),
        ("wtinylfu,lru", Some(0), true),
    ] {
        let options = ["--traffic", "shrunk,trace", "--policies", policies];
        let (ended, table, error) = run(&options);
        assert_eq!(ended, code, "{error}");
        let subject = policies.split(',').next_back().expect("two policies");
        let verdict = if holds {
            "nowhere below"
        } else {
            "below the best"
        };
        assert!(
            table.contains(&format!("{subject} is {verdict}")),
            "{table}"
        );

        let (ended, json, error) = run(&[&options[..], &["--json"]].concat());
        assert_eq!(ended, code, "{error}");
        let report: Value = serde_json::from_str(&json).expect("one JSON object");
        assert_eq!(report["holds"], holds);
        assert_eq!(report["subject"], subject);
        let rows = report["rows"].as_array().expect("rows");
        let traffics: Vec<&Value> = rows.iter().map(|row| &row["traffic"]).collect();
        assert_eq!(traffics, ["trace", "shrunk"], "in the order of the set");
        for row in rows {
            let rates = row["rates"].as_array().expect("rates");
            let whole = |at: usize| rates[at]["whole"].as_f64().expect("a number");
            let margin = row["margin"].as_f64().expect("a number");
            assert!((whole(1) - whole(0) - margin).abs() < 1e-12, "{row}");
        }
    }
}

#[test]
fn the_judgement_is_written_as_a_page() {
    let place = Place::new();
    let options = [
        "--traffic",
        "trace",
        "--policies",
        "wtinylfu,lru",
        "--report",
        "out",
    ];
    let output = place.run(&[&CHAT[..], &options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(place.path("out/policy.html")).expect("the page");
    assert!(page.contains("second half") && page.contains("wtinylfu"));
    let json = std::fs::read_to_string(place.path("out/policy.json")).expect("the figures");
    assert!(serde_json::from_str::<Value>(&json).is_ok_and(|report| report["holds"] == true));
}

#[test]
fn what_cannot_be_judged_is_refused_and_the_message_says_what_can() {
    for (options, words) in [
        (["--traffic", "weather"], "known: trace, halves-swapped"),
        (["--hints", "1.5"], "expected a number from 0 to 1"),
    ] {
        let (code, _, error) = run(&options);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(words), "{error}");
    }
    let (code, _, error) = run(&["--traffic", "trace", "--policies", "lru"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("names lru only"), "{error}");
}

#[test]
fn hints_show_what_they_gain() {
    let options = ["--hints", "1", "--policies", "lru,gittins", "--json"];
    let (code, json, error) = run(&options);
    assert_eq!(code, Some(0), "{error}");
    let report: Value = serde_json::from_str(&json).expect("one JSON object");
    let gain = |at: usize| {
        let row = &report["rows"][at];
        let rate = |key: &str| row[key].as_f64().expect("a number");
        rate("hinted_hit_rate") - rate("hit_rate")
    };
    assert_eq!(gain(0), 0.0, "lru does not read hints");
    assert!(gain(1) > 0.0, "gittins learns from them: {report}");
    let (_, table, _) = run(&["--hints", "1", "--policies", "lru"]);
    assert!(
        table.contains("with hints") && table.contains("+0.0000"),
        "{table}"
    );
}

/// What holds in a replay without I/O holds in the store: the same hits, policy by policy, and so the same order of
/// policies. The store evicts from one watermark to the other, and the replay runs at the size between them.
#[test]
fn a_store_hits_what_the_replay_of_its_policy_hits() {
    const TOLERANCE: f64 = 0.005;
    const POLICIES: [&str; 4] = ["lru", "s3fifo", "gittins", "adaptive"];
    const TRAFFIC: [&str; 5] = ["--generate", "--requests", "3000", "--sessions", "150"];
    // 2,048 blocks fit, of which the watermarks leave 1,955 to 1,966.
    const STORE: [&str; 12] = [
        "--block-bytes",
        "4KiB",
        "--block-tokens",
        "512",
        "--memory",
        "8MiB",
        "--ssd",
        "0",
        "--evict-high",
        "0.96",
        "--evict-low",
        "0.955",
    ];
    let replayed = {
        let policies = POLICIES.join(",");
        let options = ["--sizes", "1960", "--policies", &policies, "--json"];
        let output = Place::new().run(&[&["policy"], &TRAFFIC[..], &options].concat());
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let rows = report["rows"].as_array().expect("rows").clone();
        rows.into_iter()
            .map(|row| row["hit_rate"].as_f64().expect("a number"))
            .collect::<Vec<_>>()
    };
    let stored = POLICIES.map(|policy| {
        let outcome = Place::new().replay(&[&TRAFFIC[..], &STORE, &["--policy", policy]].concat());
        outcome["prefix_hit_rate"].as_f64().expect("a number")
    });
    let figures = || format!("{POLICIES:?}, replay {replayed:.4?}, store {stored:.4?}");
    for (replayed, stored) in replayed.iter().zip(stored) {
        assert!((replayed - stored).abs() <= TOLERANCE, "{}", figures());
    }
    // Policies differ by more, so that one could not pass for another.
    assert!(stored[0] - stored[1] > 5.0 * TOLERANCE, "{}", figures());
}
