//! Spans as a collector is told of them, by a client, a master and a node that are processes of their own.

use std::net::TcpListener;

use slackwater_otel::{ExportOptions, export};
use slackwater_remote::ConnectOptions;
use slackwater_wire::Durability;

use super::super::pool::Node;
use super::collector::{Collector, Told};
use super::*;

/// The spans of a trace, once a span of each of these names was told.
fn told(collector: &Collector, trace: TraceContext, names: &[&str]) -> Vec<Told> {
    let bytes = trace.trace.0.get().to_be_bytes();
    let mut spans = Vec::new();
    until("all spans are told", || {
        spans = collector.of(&bytes);
        names
            .iter()
            .all(|name| spans.iter().any(|span| span.name == *name))
    });
    spans
}

/// The one span of this name, after a look at where it belongs.
fn check<'a>(spans: &'a [Told], name: &str, service: &str, kind: u64, parent: &[u8]) -> &'a Told {
    let mut named = spans.iter().filter(|span| span.name == name);
    let span = named.next().unwrap();
    assert!(named.next().is_none(), "{name} twice: {spans:?}");
    assert_eq!(
        (span.service.as_str(), span.kind),
        (service, kind),
        "{name}"
    );
    assert_eq!(span.parent, parent, "the parent of {name}: {spans:?}");
    assert!(span.ends >= span.begins && !span.failed, "{span:?}");
    span
}

const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;

#[test]
fn one_trace_follows_a_get_through_master_and_node() {
    let place = Place::new();
    let collector = Collector::start();
    let traces = ["--traces", &collector.url()];
    let master = Administered::spawn(&place, &[&["master"][..], &traces].concat());
    let address = master.served.address.clone();
    let dir = place.path("kv");
    let lends = [
        "--memory",
        "16MiB",
        "--ssd",
        "64MiB",
        "--dir",
        dir.to_str().unwrap(),
    ];
    let start = || Node::start(&place, &address, &[&lends[..], &traces].concat());
    let node = start();
    let options = ExportOptions {
        endpoint: collector.url().parse().unwrap(),
        service: "client".to_owned(),
        share: 0.0,
    };
    let exporter = export(&options).unwrap();
    // Within a host a node has no part in a read of its memory.
    let connect = || {
        slackwater_remote::Client::connect(&ConnectOptions {
            address: address.parse().unwrap(),
            force_tcp: true,
            connect_timeout: PATIENCE,
            deadline: PATIENCE,
            ..ConnectOptions::default()
        })
        .unwrap()
    };
    let bytes = value(1, 100_000);
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    connect().put(b"k", &bytes, &durable).unwrap();
    let get = |trace: TraceContext| {
        let client = connect();
        let got = within(Traceparent(Some(trace)), || {
            client.get(b"k", &GetOptions::default())
        });
        assert!(got.unwrap().unwrap() == bytes);
    };

    // From memory.
    let trace = TraceContext::new(0x1111 << 64, 0x22).unwrap();
    get(trace);
    let names = [
        "slackwater.get",
        "slackwater.look_up",
        "slackwater.master.look_up",
        "slackwater.read",
        "slackwater.node.read",
    ];
    let spans = told(&collector, trace, &names);
    let caller = trace.span.0.get().to_be_bytes();
    let whole = check(&spans, "slackwater.get", "client", CLIENT, &caller);
    assert_eq!(whole.notes["slackwater.bytes"], "100000");
    assert_eq!(whole.notes["slackwater.hits"], "1");
    let look_up = check(&spans, "slackwater.look_up", "client", CLIENT, &whole.id);
    check(
        &spans,
        "slackwater.master.look_up",
        "slackwater-master",
        SERVER,
        &look_up.id,
    );
    let read = check(&spans, "slackwater.read", "client", CLIENT, &whole.id);
    assert_eq!(read.notes["slackwater.way"], "tcp");
    let at_node = check(
        &spans,
        "slackwater.node.read",
        "slackwater-node",
        SERVER,
        &read.id,
    );
    assert_eq!(at_node.notes["slackwater.bytes"], "100000");
    assert_eq!(spans.len(), 5, "{spans:?}");
    // What was told is counted when its answer has come, and a look-up when it was answered.
    let (exemplar, counted) = (
        format!("trace_id=\"{}\"", trace.trace),
        r#"slackwater_trace_spans_total{status="exported"} "#,
    );
    until("the metrics of the master say so", || {
        let accept = "Accept: application/openmetrics-text\r\n";
        let (_, metrics) = master.ask("GET", "/metrics", accept);
        let exported = metrics.lines().find_map(|line| line.strip_prefix(counted));
        let exported: u64 = exported.unwrap().parse().unwrap();
        exported >= 1 && metrics.contains(&exemplar)
    });

    // From SSD, which is all that a node has that was started again.
    node.kill();
    let node = start();
    let trace = TraceContext::new(0x3333 << 64, 0x44).unwrap();
    until("the node has announced what it holds", || {
        let found = connect().stat(b"k", &Default::default()).unwrap();
        found.is_some_and(|found| !found.replicas.is_empty())
    });
    get(trace);
    let names = [
        "slackwater.get",
        "slackwater.read_record",
        "slackwater.master.stage",
        "slackwater.node.stage",
        "slackwater.node.ssd_read",
        "slackwater.read",
        "slackwater.node.read",
    ];
    let spans = told(&collector, trace, &names);
    let caller = trace.span.0.get().to_be_bytes();
    let whole = check(&spans, "slackwater.get", "client", CLIENT, &caller);
    let record = check(
        &spans,
        "slackwater.read_record",
        "client",
        CLIENT,
        &whole.id,
    );
    let master_stage = "slackwater.master.stage";
    let stage = check(
        &spans,
        master_stage,
        "slackwater-master",
        SERVER,
        &record.id,
    );
    let at_node = check(
        &spans,
        "slackwater.node.stage",
        "slackwater-node",
        SERVER,
        &stage.id,
    );
    let ssd = "slackwater.node.ssd_read";
    let ssd = check(&spans, ssd, "slackwater-node", INTERNAL, &at_node.id);
    assert!(stage.begins <= at_node.begins && at_node.begins <= ssd.begins);
    assert!(ssd.ends <= at_node.ends);
    let read = check(&spans, "slackwater.read", "client", CLIENT, &whole.id);
    check(
        &spans,
        "slackwater.node.read",
        "slackwater-node",
        SERVER,
        &read.id,
    );

    // Where the caller does not record its trace, nobody does.
    let client = connect();
    let got = within(Traceparent(None), || {
        client.get(b"k", &GetOptions::default())
    });
    assert!(got.unwrap().is_some());
    let before = slackwater_trace::counts();
    assert_eq!(before.dropped, 0);
    drop(exporter);

    // The command, which has a trace of its own unless it is given one.
    let text = "00-000000000000555500000000000000ff-0000000000000066-01";
    let arguments = [&["get", "k", "--traceparent", text][..], &traces].concat();
    let output = master.served.run(&place, &arguments, b"");
    assert!(output.status.success() && output.stdout == bytes);
    let Ok(Traceparent(Some(trace))) = text.parse() else {
        panic!("it is recorded");
    };
    let spans = told(&collector, trace, &["slackwater.get"]);
    let caller = trace.span.0.get().to_be_bytes();
    check(&spans, "slackwater.get", "slackwater", CLIENT, &caller);
    node.kill();
}

/// What a process has just done is told before it ends.
#[test]
fn a_process_that_is_told_to_end_tells_what_it_did() {
    let place = Place::new();
    let collector = Collector::start();
    let serve = ["serve", "--memory", "16MiB", "--traces", &collector.url()];
    let mut server = Administered::spawn(&place, &serve);
    let client = server.served.connect();
    let trace = TraceContext::new(0x7777 << 64, 0x88).unwrap();
    let missing = || client.get(b"k", &GetOptions::default());
    assert_eq!(within(Traceparent(Some(trace)), missing), Ok(None));
    server.served.signal(Signal::TERM);
    assert_eq!(exit_code(&mut server.served), Some(0));
    let spans = told(&collector, trace, &["slackwater.master.look_up"]);
    let look_up = spans
        .iter()
        .find(|span| span.name == "slackwater.master.look_up");
    assert_eq!(look_up.unwrap().service, "slackwater-serve");
}

/// One that takes connections and never answers, as a collector that hangs does.
#[test]
fn a_process_ends_without_a_collector_that_does_not_answer() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let serve = ["serve", "--memory", "16MiB", "--traces", &url];
    let mut server = Administered::spawn(&place, &serve);
    let client = server.served.connect();
    let trace = TraceContext::new(0x9999 << 64, 0xaa);
    for _ in 0..10 {
        let missing = || client.get(b"k", &GetOptions::default());
        assert_eq!(within(Traceparent(trace), missing), Ok(None));
    }
    let begun = std::time::Instant::now();
    server.served.signal(Signal::TERM);
    assert_eq!(exit_code(&mut server.served), Some(0));
    // An exchange that is under way, what may begin after it, and a machine that is busy.
    assert!(begun.elapsed() < Duration::from_secs(30));
    let url = format!("{url}/v1/traces");
    let get = [
        "get",
        "k",
        "--traces",
        &url,
        "--connect",
        "tcp://127.0.0.1:9",
    ];
    let output = place.run(&[&get[..], &["--timeout", "100ms"]].concat());
    assert_eq!(output.status.code(), Some(1));
}
