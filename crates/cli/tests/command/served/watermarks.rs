//! Nodes of a pool that are evicted from earlier or later than others.

use serde_json::Value;
use slackwater_remote::PutOptions;

use super::admin::Administered;
use super::pool::{BYTES, Node};
use super::*;

/// The memory of a node as an operator is told of it.
fn memory(server: &Administered, name: &str) -> Value {
    let told = server.json("/api/v1/segments");
    let mut all = told["segments"].as_array().unwrap().iter();
    let found = all.find(|segment| segment["name"] == name && segment["presence"] == "here");
    found.unwrap_or_else(|| panic!("{name}: {told}")).clone()
}

fn used(server: &Administered, name: &str) -> f64 {
    let segment = memory(server, name);
    let [used, capacity] = ["used_bytes", "capacity_bytes"].map(|of| segment[of].as_f64().unwrap());
    used / capacity
}

/// All nodes of a pool were evicted from alike: one on a machine that needed its memory for more could not keep some free.
#[test]
fn each_node_is_evicted_from_by_its_own_watermarks() {
    let place = Place::new();
    let server = Administered::spawn(
        &place,
        &["master", "--evict-high", "90%", "--evict-low", "80%"],
    );
    let address = &server.served.address;
    std::fs::write(
        place.path("right.toml"),
        "memory = '16MiB'\n[evict]\nhigh = '50%'\nlow = '25%'\n[service]\nname = 'right'\n",
    )
    .unwrap();
    let _left = Node::start(&place, address, &["--memory", "16MiB", "--name", "left"]);
    let right = || Node::start(&place, address, &["--config", "right.toml"]);
    let first = right();
    let marks = |name| {
        let segment = memory(&server, name);
        ["low_watermark", "high_watermark"].map(|mark| segment[mark].as_f64().unwrap())
    };
    assert_eq!((marks("left"), marks("right")), ([0.8, 0.9], [0.25, 0.5]));

    let client = server.served.connect();
    let fill = |name: &str, begin: u64| {
        let options = PutOptions {
            preferred: vec![name.to_owned()],
            ..PutOptions::default()
        };
        let mut fullest: f64 = 0.0;
        for number in begin..begin + 80 {
            let key = format!("{name}-{number}");
            let put = client.put(key.as_bytes(), &value(number, BYTES), &options);
            assert!(put.is_ok(), "{put:?}");
            fullest = fullest.max(used(&server, name));
        }
        fullest
    };
    let (left, right_most) = (fill("left", 0), fill("right", 0));
    assert!((0.85..=0.92).contains(&left), "{left}");
    assert!((0.45..=0.52).contains(&right_most), "{right_most}");

    // They go with the node, to the next life of it too.
    first.kill();
    let _again = right();
    assert_eq!(marks("right"), [0.25, 0.5]);
    let right_most = fill("right", 1000);
    assert!((0.45..=0.52).contains(&right_most), "{right_most}");
    let page = place.run(&["top", "--address", &server.admin, "--count", "1"]);
    let page = String::from_utf8_lossy(&page.stdout);
    assert!(page.contains("% (25-50 %)"), "{page}");
    let page = place.run(&["top", "--address", &server.admin, "--count", "1", "--json"]);
    let sample: Value = serde_json::from_slice(&page.stdout).unwrap();
    let segments = sample["segments"].as_array().unwrap();
    let high = segments
        .iter()
        .map(|it| it["high_watermark"].as_f64().unwrap());
    let mut high: Vec<f64> = high.collect();
    high.sort_by(f64::total_cmp);
    // That of the life that was killed is not given up yet.
    assert_eq!(high, [0.5, 0.5, 0.9], "{sample}");
}

#[test]
fn watermarks_that_a_node_cannot_have_end_its_start() {
    let place = Place::new();
    let check = |flags: &[&str], said: &str| {
        let refused = place.run(&[&["node", "--master", "tcp://127.0.0.1:9"], flags].concat());
        assert_eq!(refused.status.code(), Some(1), "{flags:?}");
        let told = stderr(&refused);
        assert!(told.contains(said), "{flags:?}: {told}");
    };
    check(
        &["--evict-high", "50%"],
        "evict.low: 0.9 is above `evict.high` (0.5)",
    );
    check(&["--evict-high", "0"], "at least 0.01");
    check(&["--evict-high", "120%"], "`120%` is not between 0 and 1");
    check(&["--evict-low", "much"], "`much` is not a ratio");
    check(
        &["--evict-ssd-high", "50%"],
        "evict.ssd_low: 0.83 is above `evict.ssd_high` (0.5)",
    );
}
