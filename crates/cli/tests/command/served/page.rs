//! The numbers of the page are those of the other paths at that moment.

use std::collections::BTreeSet;
use std::net::TcpStream;

use serde_json::Value;

use super::admin::Administered;
use super::pool::{Node, put};
use super::*;

/// The first sample of a stream.
fn sample(server: &Administered) -> Value {
    let mut stream = TcpStream::connect(&server.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    serde_json::from_str(&data.unwrap()).unwrap()
}

/// Each number of a sample that has a metric, and the metric.
const NUMBERS: &[(&str, &str)] = &[
    ("/objects", "slackwater_objects"),
    (
        "/memory/capacity_bytes",
        "slackwater_capacity_bytes{tier=\"memory\"}",
    ),
    (
        "/memory/used_bytes",
        "slackwater_used_bytes{tier=\"memory\"}",
    ),
    (
        "/reads/memory_hits",
        "slackwater_hits_total{tier=\"memory\"}",
    ),
    ("/reads/ssd_hits", "slackwater_hits_total{tier=\"ssd\"}"),
    (
        "/reads/memory_bytes",
        "slackwater_hit_bytes_total{tier=\"memory\"}",
    ),
    ("/reads/misses", "slackwater_misses_total"),
    ("/puts/stored", "slackwater_puts_total{status=\"stored\"}"),
    ("/puts/existed", "slackwater_puts_total{status=\"existed\"}"),
    ("/puts/refused", "slackwater_puts_total{status=\"refused\"}"),
    ("/puts/bytes", "slackwater_put_bytes_total"),
    ("/puts/waited", "slackwater_puts_waited_total"),
    (
        "/evictions/count",
        "slackwater_evictions_total{tier=\"memory\"}",
    ),
    (
        "/evictions/bytes",
        "slackwater_eviction_bytes_total{tier=\"memory\"}",
    ),
    (
        "/ssd_evictions/bytes",
        "slackwater_eviction_bytes_total{tier=\"ssd\"}",
    ),
    ("/copies/bytes", "slackwater_copy_bytes_total"),
    (
        "/offloads/completed_bytes",
        "slackwater_offload_bytes_total",
    ),
    (
        "/offloads/skipped_not_worth",
        "slackwater_offloads_skipped_total{status=\"not_worth\"}",
    ),
    (
        "/promotions/completed_bytes",
        "slackwater_promotion_bytes_total",
    ),
    (
        "/promotions/rejected_index",
        "slackwater_promotions_rejected_total{status=\"index\"}",
    ),
    (
        "/phases/look_up/count",
        "slackwater_read_phase_seconds_count{phase=\"look_up\"}",
    ),
    (
        "/phases/wire/count",
        "slackwater_read_phase_seconds_count{phase=\"wire\"}",
    ),
];

#[test]
fn a_sample_says_what_the_metrics_and_the_statistics_say() {
    let place = Place::new();
    let store = Administered::spawn(
        &place,
        &[
            "serve", "--memory", "16MiB", "--ssd", "256MiB", "--dir", "kv",
        ],
    );
    let master = Administered::spawn(&place, &["master"]);
    let _nodes =
        [(); 2].map(|()| Node::start(&place, &master.served.address, &["--memory", "16MiB"]));
    for (server, is_pool) in [(&store, false), (&master, true)] {
        let client = server.served.connect();
        for name in 0..40 {
            put(&client, name);
        }
        for name in 20..60 {
            client
                .get(format!("k{name}").as_bytes(), &Default::default())
                .unwrap();
        }
        // What a client has read where it knew that it was is told once a second, and offloads go on for a while. A sample may
        // be of a second ago, when somebody else looked.
        let mut other = Vec::new();
        let begun = std::time::Instant::now();
        loop {
            let (before, shown, after) = (numbers(server), sample(server), numbers(server));
            let reads = &shown["stats"]["reads"];
            let reads = ["memory_hits", "ssd_hits", "misses"].map(|name| reads[name].as_u64());
            let number = |path| shown["stats"].pointer(path).and_then(Value::as_f64);
            let differ = |(path, metric): &&(&'static str, &str)| {
                let told = before.iter().find(|(name, _)| name == metric);
                let (_, told) = told.unwrap_or_else(|| panic!("there is no metric {metric}"));
                number(path) != Some(*told)
            };
            if before == after && reads.iter().flatten().sum::<u64>() >= 40 {
                other = NUMBERS.iter().filter(differ).collect();
                if other.is_empty() {
                    break;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "they differ: {other:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (mut shown, mut told) = (Value::Null, Value::Null);
        let mut waits = [Value::Null, Value::Null];
        // The device is synced between two looks at it, now and then.
        until("the sample says what the statistics say", || {
            (shown, told) = (sample(server), server.json("/api/v1/stats"));
            // Threads wait also for what nobody asked.
            waits = [&mut shown["stats"], &mut told]
                .map(|stats| stats.as_object_mut().unwrap().remove("waits").unwrap());
            shown["stats"] == told
        });
        assert!(shown["stats"]["puts"]["stored"].as_u64() > Some(0));
        let of_messages = |wait: &&Value| wait["site"] == "mq worker";
        let [_, told_waits] = &waits;
        let workers = told_waits.as_array().unwrap().iter().find(of_messages);
        assert!(
            workers.unwrap()["parked"].as_u64() > Some(0),
            "{told_waits}"
        );
        let (_, metrics) = server.ask("GET", "/metrics", "");
        assert!(metrics.contains("slackwater_wait_looks_total{site=\"mq worker\"} "));
        let segments = server.json("/api/v1/segments");
        assert_eq!(shown["segments"], segments["segments"]);
        let high = shown["segments"][0]["high_watermark"].as_f64();
        assert!(high > Some(0.5) && high <= Some(1.0), "{high:?}");
        let nodes = shown["stats"]["nodes"]["nodes"].as_array().map(Vec::len);
        assert_eq!(nodes, is_pool.then_some(2));
        let (status, page) = server.ask("GET", "/", "");
        assert!(status == 200 && page.contains("<title>Slackwater</title>"));
    }
}

#[test]
fn the_parts_of_a_read_from_ssd_are_timed() {
    let place = Place::new();
    let sizes = ["--memory", "16MiB", "--ssd", "256MiB", "--dir", "kv"];
    let store = Administered::spawn(&place, &[&["serve"], &sizes[..]].concat());
    let client = store.served.connect();
    let bytes = value(7, 1 << 20);
    for name in 0..40 {
        let key = format!("long{name}");
        client
            .put(key.as_bytes(), &bytes, &Default::default())
            .unwrap();
    }
    until("a value is read from SSD", || {
        let _ = client.get(b"long0", &Default::default()).unwrap();
        let stats = store.json("/api/v1/stats");
        let counts = ["look_up", "queue", "ssd", "wire"];
        let count = |part: &str| stats["phases"][part]["count"].as_u64();
        counts.iter().all(|part| count(part) > Some(0))
            && stats["reads"]["ssd_hits"].as_u64() > Some(0)
    });
}

/// Every metric that the page shows, with its value. Of a pool, rules of all segments had once been written as one series,
/// of which a scraper keeps one value or none.
fn numbers(server: &Administered) -> Vec<(String, f64)> {
    let (status, text) = server.ask("GET", "/metrics", "");
    assert_eq!(status, 200);
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = series
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect();
    let different: BTreeSet<&str> = series.iter().copied().collect();
    assert_eq!(
        different.len(),
        series.len(),
        "a series stands twice: {text}"
    );
    assert!(text.contains("slackwater_eviction_rule_followed{segment=\""));
    let shown = |name: &str| NUMBERS.iter().any(|(_, metric)| *metric == name);
    text.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(name, _)| shown(name))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}
