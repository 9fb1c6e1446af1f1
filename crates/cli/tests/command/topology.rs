//! `slackwater topology`: the interfaces of this machine, and files that rank them.

use serde_json::{Value, json};

use crate::place::{Place, object, stderr};

#[test]
fn interfaces_are_listed_for_people_and_for_scripts() {
    let place = Place::new();
    let told = object(&place.run(&["topology", "--json"]));
    let interfaces = told["interfaces"].as_array().unwrap();
    let locations = told["locations"].as_object().unwrap();
    let nodes = told["nodes"].as_array().unwrap();
    assert!(!nodes.is_empty());
    for node in nodes {
        let [near, rest] = &locations[&format!("cpu:{}", node["node"])]
            .as_array()
            .unwrap()[..]
        else {
            panic!("{told}");
        };
        let names = near.as_array().unwrap().len() + rest.as_array().unwrap().len();
        assert_eq!(names, interfaces.len(), "{told}");
    }

    let shown = place.run(&["topology"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("cpu:"), "{shown}");
    for interface in interfaces {
        let name = interface["name"].as_str().unwrap();
        assert!(shown.contains(name), "{name}: {shown}");
    }
}

#[test]
fn a_file_ranks_interfaces_or_is_refused_with_what_to_write() {
    let place = Place::new();
    let told = object(&place.run(&["topology", "--json"]));
    let interfaces = told["interfaces"].as_array().unwrap();
    let names: Vec<Value> = interfaces.iter().map(|one| one["name"].clone()).collect();
    let with = |text: String| {
        std::fs::write(place.path("ranked.json"), text).unwrap();
        place.run(&["topology", "--json", "--file", "ranked.json"])
    };
    let ranked = json!({ "cuda:7": [[], names] });
    assert_eq!(
        object(&with(ranked.to_string()))["locations"]["cuda:7"],
        ranked["cuda:7"]
    );
    // What it prints can be given back.
    let again = object(&with(told["locations"].to_string()));
    assert_eq!(again["locations"], told["locations"]);

    let check = |text: &str, problem: &str| {
        let refused = with(text.to_owned());
        assert_eq!(refused.status.code(), Some(1));
        let said = stderr(&refused);
        let expected = format!("slackwater: topology file ranked.json: {problem}");
        assert!(said.starts_with(&expected), "{said}");
    };
    check(
        r#"{"cpu:0": [["none-such"], []]}"#,
        "cpu:0: this machine has no interface `none-such` (it has: ",
    );
    check(r#"{"cpu:0": ["eth0"]}"#, "invalid type");
}
