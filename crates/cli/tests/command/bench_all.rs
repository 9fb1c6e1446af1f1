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
    let kept: Value =
        serde_json::from_slice(&fs::read(run("promotion-quick-1.json")).unwrap()).unwrap();
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
}
