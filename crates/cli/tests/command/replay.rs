//! `slackwater replay` as its users run it: a process, its exit code, what it prints and what it leaves behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::place::{PATIENCE, Place, object, open, output, stderr};

/// Little memory over enough SSD: blocks must leave memory and come back. A run that is always short of memory would
/// wait out the group commit time and again.
const SMALL: [&str; 8] = [
    "--memory",
    "8MiB",
    "--ssd",
    "256MiB",
    "--file-bytes",
    "4MiB",
    "--flush-delay",
    "2ms",
];
const CHAT: [&str; 7] = [
    "--generate",
    "--requests",
    "400",
    "--sessions",
    "20",
    "--block-bytes",
    "32KiB",
];

fn count(outcome: &Value, key: &str) -> u64 {
    outcome[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {outcome}"))
}

#[test]
fn generated_traffic_is_served_from_both_tiers_without_a_wrong_bit() {
    let place = Place::new();
    let outcome = place.replay(&[&CHAT[..], &SMALL[..]].concat());
    assert_eq!(
        (
            count(&outcome, "requests"),
            count(&outcome, "corrupt_reads")
        ),
        (400, 0)
    );
    let hits = count(&outcome, "memory_hits") + count(&outcome, "ssd_hits");
    assert_eq!(hits + count(&outcome, "misses"), count(&outcome, "blocks"));
    assert!(
        count(&outcome, "ssd_hits") > 0
            && count(&outcome, "offloads") > 0
            && count(&outcome, "evictions") > 0
    );
    assert_eq!(count(&outcome, "get_bytes"), hits * 32_768);
    let rate = outcome["prefix_hit_rate"].as_f64().unwrap();
    assert!(
        (0.5..0.9).contains(&rate),
        "everything fits on SSD, so nearly all that returns is a hit: {rate}"
    );
    assert!(
        outcome["memory_p50_us"].as_f64() > Some(0.0) && outcome["ssd_p50_us"].as_f64() > Some(0.0)
    );
    let ends: u64 = ["completed", "failed", "expired", "cancelled"]
        .iter()
        .map(|end| count(&outcome["promotions"], end))
        .sum();
    assert!(
        count(&outcome["promotions"], "admitted") >= ends
            && count(&outcome["promotions"], "completed") > 0
    );
}

/// The first thing that a newcomer ran held all its traffic in memory: SSD hits, offloads and promotions were all 0.
#[test]
fn generated_traffic_overflows_the_memory_that_it_gets_by_default() {
    let place = Place::new();
    let outcome = place.replay(&["--generate", "--requests", "1200"]);
    for key in ["ssd_hits", "offloads", "evictions"] {
        assert!(count(&outcome, key) > 0, "{key}: {outcome}");
    }
    assert!(count(&outcome["promotions"], "completed") > 0, "{outcome}");
}

#[test]
fn the_report_is_left_and_the_temporary_directory_is_not() {
    let place = Place::new();
    let output = place.run(&[&["replay", "--report", "out"], &CHAT[..], &SMALL[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.contains("prefix hit rate") && table.contains("report: out/report.html"),
        "{table}"
    );
    // Which rule evictions follow, and by how much it leads.
    let follow = "evictions from memory follow";
    assert!(
        table.contains(follow) && table.contains("points to the best other"),
        "{table}"
    );
    let html = std::fs::read_to_string(place.path("out/report.html")).unwrap();
    assert!(html.matches("<svg").count() == 6 && !html.contains("nothing of this happened"));
    assert!(!html.contains("http:") && !html.contains("https:"));
    assert!(html.contains(follow) && html.contains("evictions from SSD follow"));
    let json: Value =
        serde_json::from_slice(&std::fs::read(place.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(
        (count(&json, "requests"), count(&json, "corrupt_reads")),
        (400, 0)
    );
    let rules = &json["store"]["eviction_rules"][0];
    // In so short a run either rule may lead, by how the device kept up.
    let followed = rules["followed"].as_str().unwrap();
    assert!(["gittins", "lru", "lru-reused"].contains(&followed));
    assert_eq!(rules["tier"], "memory");
    assert!(
        rules["lead"].is_number() && (count(rules, "changes") > 0 || followed == "gittins"),
        "{rules}"
    );
    let timeline = json["timeline"].as_array().unwrap();
    assert!(
        (60..=121).contains(&timeline.len()) && count(timeline.last().unwrap(), "requests") == 400
    );
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
}

#[test]
fn a_second_run_in_the_same_directory_starts_warm() {
    let place = Place::new();
    let directory = place.path("kv");
    let arguments = [
        &CHAT[..],
        &SMALL[..],
        &["--dir", directory.to_str().unwrap()],
    ]
    .concat();
    let cold = place.replay(&arguments);
    let warm = place.replay(&arguments);
    assert_eq!(
        (count(&cold, "corrupt_reads"), count(&warm, "corrupt_reads")),
        (0, 0)
    );
    let (before, after) = (count(&cold, "misses"), count(&warm, "misses"));
    assert!(after < before / 2, "{before} misses cold, {after} warm");
}

/// The constant beside `--memory`: the binary, a replay's buffer of 16 MiB, read buffers, metadata.
const BESIDE_MEMORY_BYTES: u64 = 96 << 20;

#[test]
fn memory_stays_within_its_option_and_a_constant() {
    let place = Place::new();
    let sizes = [
        "--memory",
        "32MiB",
        "--ssd",
        "1GiB",
        "--read-buffers",
        "8MiB",
        "--flush-delay",
        "2ms",
    ];
    let traffic = [
        "--generate",
        "--requests",
        "300",
        "--sessions",
        "30",
        "--block-bytes",
        "256KiB",
    ];
    let outcome = place.replay(&[&traffic[..], &sizes[..]].concat());
    assert!(
        count(&outcome, "put_bytes") > 4 * (32 << 20),
        "the run must put far more than fits: {outcome}"
    );
    let peak = count(&outcome, "peak_rss_bytes");
    assert!(peak < (32 << 20) + BESIDE_MEMORY_BYTES, "{peak} bytes");
}

#[test]
fn a_wrong_line_ends_the_run_with_its_place_and_what_was_done_so_far() {
    let place = Place::new();
    let good =
        r#"{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2],"model":"x"}"#;
    let bad = good.replace("[1,2]", "[1,\"two\"]");
    std::fs::write(
        place.path("t.jsonl"),
        format!("{good}\n{good}\n{bad}\n{good}\n"),
    )
    .unwrap();
    let output = place.run(&[
        "replay", "t.jsonl", "--json", "--memory", "8MiB", "--ssd", "0",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "slackwater: t.jsonl, line 3: field `hash_ids[1]` is the text \"two\"; expected a whole number from 0 to \
         18446744073709551615\n"
    );
    let outcome = object(&output);
    assert_eq!(
        (count(&outcome, "requests"), count(&outcome, "memory_hits")),
        (2, 2)
    );
}

#[test]
fn what_cannot_be_done_is_said_in_one_line_each() {
    let place = Place::new();
    let check = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        for word in words {
            assert!(
                stderr(&output).contains(word),
                "{arguments:?}: {}",
                stderr(&output)
            );
        }
    };
    std::fs::write(place.path("empty.jsonl"), "\n\n").unwrap();
    std::fs::write(place.path("file"), "x").unwrap();
    check(
        &["replay", "none.jsonl"],
        1,
        &["cannot open the trace none.jsonl: No such file"],
    );
    check(
        &["replay", "empty.jsonl", "--memory", "8MiB", "--ssd", "0"],
        1,
        &["empty.jsonl holds no request"],
    );
    check(
        &[
            "replay",
            "--generate",
            "--memory",
            "12cats",
            "--evict-high",
            "2",
        ],
        1,
        &["12cats", "evict.high"],
    );
    check(
        &["replay", "--generate", "--dir", "file", "--ssd", "256MiB"],
        1,
        &["file", "not a directory"],
    );
    check(
        &["replay", "--generate", "--polcy", "lru"],
        2,
        &["--policy"],
    );
    check(&["config", "--config", "none.toml"], 1, &["none.toml"]);
}

#[test]
fn an_interrupt_ends_the_run_with_a_report_of_what_was_done() {
    let place = Place::new();
    let request = |at: u64| {
        format!(r#"{{"timestamp":{at},"input_length":512,"output_length":1,"hash_ids":[1]}}"#)
    };
    std::fs::write(
        place.path("t.jsonl"),
        format!("{}\n{}\n", request(0), request(36_000_000)),
    )
    .unwrap();
    let child = open(
        &place,
        &[&["t.jsonl", "--speed", "1x", "--dir", "kv"], &SMALL[..]].concat(),
    );
    signal(&child, &[Signal::INT]);
    let output = output(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(count(&object(&output), "requests") <= 1);
    let html = std::fs::read_to_string(place.path("report/report.html")).unwrap();
    assert!(html.contains("Cut short: interrupted"));
}

#[test]
fn the_page_shows_the_store_of_a_replay_while_it_runs() {
    let place = Place::new();
    let traffic = ["--generate", "--requests", "1000000", "--live=127.0.0.1:0"];
    let mut command = place.command(&[&["replay", "--json"], &traffic[..], &SMALL[..]].concat());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("live at http://");
    let address = address.unwrap_or_else(|| panic!("the replay said `{line}`"));
    // It goes on reading: a full pipe would stop the child.
    std::thread::spawn(move || said.lines().map_while(Result::ok).for_each(drop));
    let ask = |method: &str, path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    };
    let json = |path: &str| -> Value {
        let (status, body) = ask("GET", path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    assert!(ask("GET", "/").1.contains("<title>Slackwater</title>"));
    // What the store does is told as it does it.
    let begun = Instant::now();
    loop {
        let (stats, decisions) = (json("/api/v1/stats"), json("/api/v1/decisions"));
        let hottest = json("/api/v1/hottest");
        let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let told = some(&decisions["latest"]) && some(&hottest["chains"]);
        if told && stats["reads"]["memory_hits"].as_u64() > Some(0) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{stats} {decisions} {hottest}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // There are no keys to be read again.
    assert_eq!(ask("POST", "/api/v1/reload").0, 409);
    signal(&child, &[Signal::INT]);
    let output = output(child);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(count(&object(&output), "corrupt_reads"), 0);
    assert!(TcpStream::connect(address).is_err(), "the page has ended");
}

#[test]
fn the_page_of_a_replay_is_for_this_machine_alone() {
    let place = Place::new();
    let arguments = ["replay", "--generate", "--live=0.0.0.0:0"];
    let output = place.run(&[&arguments[..], &SMALL[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("0.0.0.0"), "{}", stderr(&output));
}

/// `timeout` signals its child and then the group that both are in: the second signal, meant to end a run that does
/// not heed the first, ended the run before its report was written.
#[test]
fn signals_that_come_together_are_one_and_the_report_is_written() {
    let place = Place::new();
    let child = open(
        &place,
        &[
            &["--generate", "--requests", "1000000", "--dir", "kv"],
            &SMALL[..],
        ]
        .concat(),
    );
    signal(&child, &[Signal::INT, Signal::TERM]);
    let output = output(child);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(count(&object(&output), "corrupt_reads"), 0);
    assert!(place.path("report/report.json").exists());
}

/// Sends signals one right after another. Each is another one, as two of a kind would be one while they wait.
fn signal(child: &Child, signals: &[Signal]) {
    signals
        .iter()
        .for_each(|signal| kill_process(Pid::from_child(child), *signal).unwrap());
}
