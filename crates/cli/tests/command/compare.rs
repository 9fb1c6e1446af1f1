//! `slackwater compare`: reports as the other commands write them.

use std::fs;

use serde_json::Value;

use crate::place::{Place, stderr};

fn report(place: &Place, name: &str, sizes: &str) {
    let line = [
        "policy",
        "--generate",
        "--requests",
        "300",
        "--policies",
        "lru",
        "--sizes",
        sizes,
        "--json",
    ];
    let output = place.run(&line);
    assert!(output.status.success(), "{}", stderr(&output));
    fs::write(place.path(name), output.stdout).unwrap();
}

#[test]
fn two_reports_stand_side_by_side_and_several_runs_tell_the_noise() {
    let place = Place::new();
    report(&place, "a.json", "100,300");
    report(&place, "a2.json", "100,300");
    report(&place, "b.json", "300,900");
    let output = place.run(&[
        "compare",
        "a.json,a2.json",
        "b.json",
        "--json",
        "--report",
        "out",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = comparison["figures"].as_array().unwrap();
    let rate = figures
        .iter()
        .find(|figure| figure["name"] == "rows[lru 300].hit_rate")
        .unwrap();
    // The replay is the same one each time, its speed is not.
    assert_eq!(
        (&rate["ratio"], &rate["noise"], &rate["clear"]),
        (&1.0.into(), &0.0.into(), &false.into())
    );
    assert!(
        !figures
            .iter()
            .any(|figure| figure["name"].as_str().unwrap().contains("lru 900"))
    );
    let page = fs::read_to_string(place.path("out/compare.html")).unwrap();
    assert!(
        page.contains("rows[lru 300].hit_rate") && page.contains("a2.json"),
        "{page}"
    );
    let written: Value =
        serde_json::from_slice(&fs::read(place.path("out/compare.json")).unwrap()).unwrap();
    assert_eq!(written, comparison);

    let output = place.run(&["compare", "a.json", "b.json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("rows[lru 300].hit_rate") && text.contains("One run of each side"),
        "{text}"
    );
    let output = place.run(&["compare", "a.json,a2.json", "b.json", "--clear"]);
    assert!(
        !String::from_utf8(output.stdout)
            .unwrap()
            .contains("hit_rate")
    );
}

#[test]
fn what_cannot_be_compared_is_said() {
    let place = Place::new();
    report(&place, "a.json", "100");
    fs::write(place.path("text"), "wall 3 s\n").unwrap();
    fs::write(place.path("other.json"), "{\"x\": 1}\n").unwrap();
    for (after, message) in [
        ("none.json", "cannot read the report none.json"),
        ("text", "text is not a report"),
        ("other.json", "have no figure in common"),
    ] {
        let output = place.run(&["compare", "a.json", after]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
}
