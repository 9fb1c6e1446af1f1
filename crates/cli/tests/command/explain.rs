//! `slackwater explain`: what a person and a script are told of an object.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime};

use slackwater_node::{Config, GetOptions, PutOptions, Store};
use slackwater_wire::Durability;

use crate::place::{Place, object, stderr};

/// A store in which `often` was read every ten seconds, and much else came and never returned.
fn taught(place: &Place, policy: &str) -> Store {
    let flags = [
        ("memory", "4MiB"),
        ("ssd", "64MiB"),
        ("policy", policy),
        ("log", "off"),
    ];
    let mut flags: Vec<(String, String)> = flags
        .map(|(flag, value)| (flag.to_owned(), value.to_owned()))
        .into();
    flags.push(("dir".to_owned(), place.path("store").display().to_string()));
    let store = Store::open(Config::load(None, std::iter::empty(), &flags).unwrap()).unwrap();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    store.put(b"often", &[7; 5000], &durable).unwrap();
    for round in 1..60 {
        store.skip_to(Duration::from_secs(10 * round)).unwrap();
        let _ = store.get(b"often", &GetOptions::default()).unwrap();
        store
            .put(
                format!("once {round}").as_bytes(),
                &[1; 5000],
                &PutOptions::default(),
            )
            .unwrap();
    }
    store
}

#[test]
fn a_key_is_explained_in_words_and_to_scripts() {
    let place = Place::new();
    let store = taught(&place, "gittins");
    let reasons = store
        .explain(b"often", &Default::default())
        .unwrap()
        .unwrap();
    let learned = reasons[0].learned.clone().unwrap();
    assert!(learned.reuses >= 50 && learned.age_s < 10.0, "{learned:?}");
    assert!(
        learned
            .returns
            .iter()
            .any(|point| point.within_s == 60.0 && point.chance > 0.5),
        "{learned:?}"
    );
    assert_eq!(store.explain(b"never", &Default::default()).unwrap(), None);
    store.close().unwrap();

    let dir = place.path("store");
    let explain = ["explain", "often", "--dir", dir.to_str().unwrap()];
    let output = place.run(&explain);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("often\n  in SSD, "), "{text}");
    for part in ["returns with", "% within 10m", "hits an hour"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report = object(&place.run(&[&explain[..], &["--json"]].concat()));
    assert_eq!(
        (&report["key"], &report["tiers"][0]["tier"]),
        (&"often".into(), &"ssd".into()),
        "{report}"
    );
    assert_eq!(report["tiers"][0]["held"], true);
    for key in ["class", "reuses", "age_s", "index", "lowest_index"] {
        assert!(
            !report["tiers"][0]["learned"][key].is_null(),
            "{key}: {report}"
        );
    }
    let curve = report["tiers"][0]["learned"]["returns"].as_array().unwrap();
    let chances: Vec<f64> = curve
        .iter()
        .map(|point| point["chance"].as_f64().unwrap())
        .collect();
    assert!(
        chances.len() > 3 && chances.is_sorted() && chances[0] >= 0.0 && chances[3] <= 1.0,
        "{report}"
    );
}

#[test]
fn the_rule_that_evictions_follow_and_its_lead_are_told() {
    let place = Place::new();
    taught(&place, "adaptive").close().unwrap();
    let dir = place.path("store");
    let explain = [
        "explain",
        "often",
        "--dir",
        dir.to_str().unwrap(),
        "--policy",
        "adaptive",
    ];
    let text = String::from_utf8(place.run(&explain).stdout).unwrap();
    assert!(
        text.contains("; gittins leads by 0.0 % of the blocks"),
        "{text}"
    );
    let report = object(&place.run(&[&explain[..], &["--json"]].concat()));
    let learned = &report["tiers"][0]["learned"];
    assert_eq!(learned["rule"], "gittins", "{report}");
    assert_eq!(learned["rule_lead"], 0.0, "{report}");
}

/// Whatever a directory holds: names, lengths, times of change and bytes.
fn contents(directory: &Path) -> BTreeMap<OsString, (SystemTime, Vec<u8>)> {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let changed = entry.metadata().unwrap().modified().unwrap();
        (
            entry.file_name(),
            (changed, std::fs::read(entry.path()).unwrap()),
        )
    };
    std::fs::read_dir(directory).unwrap().map(entry).collect()
}

/// `explain` opened the directory as a store does: it took the lock, signed it, wrote the learned tables anew and could
/// delete files of the log. A store that started meanwhile was refused, and a look changed what was looked at.
#[test]
fn a_directory_that_is_explained_does_not_change() {
    let place = Place::new();
    taught(&place, "gittins").close().unwrap();
    let dir = place.path("store");
    let before = contents(&dir);
    let output = place.run(&["explain", "often", "--dir", dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(contents(&dir) == before, "the directory changed");
}

/// A store that ran held the lock, so `explain` could not say why it kept what it kept.
#[test]
fn a_store_that_runs_is_asked() {
    let place = Place::new();
    let store = taught(&place, "gittins");
    let dir = place.path("store").display().to_string();
    let explain = |key: &str| place.run(&["explain", key, "--dir", &dir, "--json"]);
    let report = object(&explain("often"));
    assert_eq!(report["running"], true, "{report}");
    let own = store
        .explain(b"often", &Default::default())
        .unwrap()
        .unwrap();
    assert_eq!(own[0].tier, slackwater_node::Tier::Memory);
    for (tier, own) in own.iter().enumerate() {
        let told = &report["tiers"][tier];
        assert_eq!(told["policy"], own.policy, "{report}");
        assert_eq!(told["held"], own.held, "{report}");
        let reuses = own.learned.as_ref().map(|learned| learned.reuses);
        assert_eq!(told["learned"]["reuses"].as_u64(), reuses.map(u64::from));
    }
    let missing = explain("never");
    assert!(stderr(&missing).contains("no object with the key never"));
    store.close().unwrap();
    assert_eq!(object(&explain("often"))["running"], false);
}

#[test]
fn damaged_tables_are_refused_with_a_warning_and_cost_nothing_else() {
    let place = Place::new();
    taught(&place, "gittins").close().unwrap();
    let tables = place.path("store").join("eviction.tables");
    let mut bytes = std::fs::read(&tables).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&tables, bytes).unwrap();
    let explain = [
        "explain",
        "often",
        "--dir",
        place.path("store").to_str().unwrap(),
    ]
    .map(str::to_owned);
    let explain = explain.each_ref().map(String::as_str);
    let output = place.run(&explain);
    assert!(output.status.success(), "{}", stderr(&output));
    let warning = stderr(&output);
    for part in [
        "WARN",
        "learned eviction tables are not taken: eviction starts fresh",
        "eviction.tables",
        "checksum",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    let again = place.run(&explain);
    assert!(
        stderr(&again).contains("checksum"),
        "nothing was written: {}",
        stderr(&again)
    );
}

#[test]
fn what_cannot_be_explained_is_said() {
    let place = Place::new();
    let dir = place.path("store").display().to_string();
    let check = |arguments: &[&str], message: &str| {
        let output = place.run(&[&["explain"], arguments].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    };
    check(&["often"], "--dir names its directory");
    check(&["often", "--dir", &dir], "there is no store in");
    taught(&place, "lru").close().unwrap();
    check(&["never", "--dir", &dir], "no object with the key never");
    let output = place.run(&["explain", "often", "--dir", &dir, "--policy", "lru"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "often\n  in SSD, in a line of lru, which knows nothing but the order\n"
    );
}
