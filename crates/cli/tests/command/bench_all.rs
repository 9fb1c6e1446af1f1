//! `slackwater bench all`: kept runs, and the page that is made of them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::place::{Place, stderr};

fn all(place: &Place, report: &Path, more: &[&str]) -> std::process::Output {
    let directory = report.to_str().unwrap();
    let words = [
        "bench",
        "all",
        "--quick",
        "--only",
        "promotion",
        "--runs",
        "2",
        "--report",
        directory,
    ];
    place.run(&[&words[..], more].concat())
}

#[test]
fn what_is_measured_is_kept_and_what_is_missing_measured() {
    let place = Place::new();
    let report = place.path("figures");
    let output = all(&place, &report, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = report.join("figures.md");
    assert!(
        stderr(&output).contains("0 of 2 runs are over: promotion, run 1 · about "),
        "{}",
        stderr(&output)
    );
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told.trim(), page.to_str().unwrap());
    let text = fs::read_to_string(&page).unwrap();
    for part in [
        "## Promotion on hit",
        "2 runs.",
        "Machine: ",
        "| what must hold |",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // One run is gone, as after an interruption; another says something that only a kept one can say.
    let run = |name: &str| report.join("runs").join(name);
    fs::remove_file(run("promotion-quick-2.json")).unwrap();
    let mut kept: Value =
        serde_json::from_slice(&fs::read(run("promotion-quick-1.json")).unwrap()).unwrap();
    kept["report"]["told"] = "by hand".into();
    fs::write(run("promotion-quick-1.json"), kept.to_string()).unwrap();
    let again = all(&place, &report, &[]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert!(run("promotion-quick-2.json").exists());
    kept = serde_json::from_slice(&fs::read(run("promotion-quick-1.json")).unwrap()).unwrap();
    assert_eq!(kept["report"]["told"], "by hand");
    // A file that is no run is not measured over.
    fs::write(run("promotion-quick-1.json"), "{").unwrap();
    let broken = all(&place, &report, &[]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(
        stderr(&broken).contains("remove it to have it measured again"),
        "{}",
        stderr(&broken)
    );
    assert!(
        !stderr(&broken).contains("runs are over"),
        "it is told before anything is measured: {}",
        stderr(&broken)
    );
    // A run of another program is not laid beside ours unseen.
    kept["origin"]["binary"] = "0123".into();
    fs::write(run("promotion-quick-1.json"), kept.to_string()).unwrap();
    let other = all(&place, &report, &[]);
    assert_eq!(other.status.code(), Some(1));
    assert!(
        stderr(&other).contains("binary 0123") && stderr(&other).contains("--mix"),
        "{}",
        stderr(&other)
    );
    let mixed = all(&place, &report, &["--mix"]);
    assert_eq!(mixed.status.code(), Some(0), "{}", stderr(&mixed));
    let text = fs::read_to_string(&page).unwrap();
    assert!(
        text.contains("2 different programs") && text.contains("binary 0123"),
        "{text}"
    );
}
