//! The message layer's benchmark end to end, small: every row is there and its figures make sense.

use std::ffi::OsString;
use std::time::Duration;

use slackwater_bench::mq::{Options, child, run};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "child") {
        return child(&arguments[1..]).expect("the parent speaks to this process as its own");
    }
    let report = run(&Options {
        links: vec![5, 20],
        rates: vec![500],
        window: Duration::from_millis(100),
        rpc_links: vec![1, 4],
        rpc_sizes: vec![64],
        rpc_window: Duration::from_millis(50),
        burst: 400,
        rounds: 1,
        python: "no-such-python".into(),
        child: vec![this_program(), "child".into()],
        ..Options::default()
    })
    .expect("loopback");
    let links: Vec<_> = report
        .links
        .iter()
        .map(|row| (row.n, row.mechanism, row.heartbeats))
        .collect();
    let off = [
        (5, "NULL", "off"),
        (20, "NULL", "off"),
        (20, "CURVE", "off"),
    ];
    let on = [(5, "NULL", "on"), (20, "NULL", "on")];
    assert_eq!(links, [&off[..], &on].concat());
    for row in &report.links {
        assert!(
            row.arrived > 0.0 && row.p50_us > 0.0 && row.p50_us <= row.p99_us,
            "{row:?}"
        );
        assert!(
            row.cpu_percent > 0.0
                && row
                    .syscalls_per_msg
                    .is_some_and(|calls| calls > 0.5 && calls < 6.0),
            "{row:?}"
        );
    }
    let rpc: Vec<_> = report
        .rpc
        .iter()
        .map(|row| (row.links, row.mechanism))
        .collect();
    assert_eq!(rpc, [(1, "NULL"), (4, "NULL"), (1, "CURVE"), (4, "CURVE")]);
    for row in &report.rpc {
        assert!(
            row.rps > 10.0
                && row.p50_us > 0.0
                && row.p50_us <= row.p99_us
                && row.peer_rps.is_none(),
            "{row:?}"
        );
    }
    let [burst] = &report.bursts[..] else {
        panic!("ours only: {:?}", report.bursts);
    };
    assert_eq!(burst.answered + burst.refused, 400, "{burst:?}");
    assert!(
        burst.answered > burst.queue && burst.refused > 0,
        "{burst:?}"
    );
    assert!(
        burst
            .last_refusal_ms
            .is_some_and(|refusal| refusal < burst.last_ms),
        "{burst:?}"
    );
    assert!(report.notes.iter().any(|note| note.starts_with("no peer")));
    let json = serde_json::to_value(&report).expect("plain figures");
    for field in [
        "n",
        "rate",
        "cpu_percent",
        "cpu_us_per_msg",
        "p50_us",
        "p99_us",
        "syscalls_per_msg",
        "bytes_per_link",
    ] {
        assert!(json["links"][0].get(field).is_some(), "{field}");
    }
    for field in [
        "links",
        "size",
        "mechanism",
        "p50_us",
        "p99_us",
        "rps",
        "peer_p50_us",
        "peer_rps",
    ] {
        assert!(json["rpc"][0].get(field).is_some(), "{field}");
    }
    assert!(report.to_html().contains("<table>"));
    beside_libzmq(vec![this_program(), "child".into()]);
}

fn this_program() -> OsString {
    let this = std::env::current_exe().expect("this is a program");
    this.into()
}

/// Where the Python has pyzmq, its two clients stand beside ours; where it has none, the report says so.
fn beside_libzmq(child: Vec<OsString>) {
    let report = run(&Options {
        links: vec![20],
        rates: vec![1_000],
        heartbeats: vec![false],
        window: Duration::from_millis(100),
        rpc_links: Vec::new(),
        burst: 300,
        rounds: 1,
        child,
        ..Options::default()
    })
    .expect("loopback");
    let of = |client: &str| report.links.iter().find(|row| row.client == client);
    let peers = ["libzmq poll", "libzmq epoll"].map(of);
    if report
        .notes
        .iter()
        .any(|note| note.contains("no zmq module"))
    {
        assert!(peers.iter().all(Option::is_none), "{:?}", report.links);
        return;
    }
    for row in peers {
        let row = row.expect("pyzmq is there");
        assert!(
            row.arrived > 0.0 && row.cpu_percent > 0.0 && row.p50_us > 0.0,
            "{row:?}"
        );
    }
    let theirs = report.bursts.iter().find(|row| row.client == "libzmq");
    let theirs = theirs.expect("pyzmq is there");
    assert_eq!(
        (theirs.answered, theirs.refused, theirs.failed),
        (300, 0, 0),
        "libzmq keeps all: {theirs:?}"
    );
    let json = serde_json::to_value(&report).expect("plain figures");
    assert!(
        json["compared"][0]["before"].is_number() && json["compared"][0]["their_fix"].is_number(),
        "{json}"
    );
}
