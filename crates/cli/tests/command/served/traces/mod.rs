//! Calls that belong to a trace, through the processes that they pass.

#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod exported;

use slackwater_remote::{GetOptions, PutOptions};
use slackwater_trace::within;
use slackwater_wire::{TraceContext, Traceparent};

use super::admin::Administered;
use super::*;

/// A server is told of a trace whether or not it exports spans, and its metrics name the last one.
#[test]
fn the_exemplars_of_a_server_name_the_traces_of_its_clients() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["serve", "--memory", "64MiB"]);
    let client = server.served.connect();
    client
        .put(b"k", &[7; 5000], &PutOptions::default())
        .unwrap();
    let open = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let ask = |accept: &str| server.ask("GET", "/metrics", accept).1;
    assert!(!ask(open).contains("trace_id"), "nothing is traced");
    let trace = TraceContext::new(0xabc << 64, 5).unwrap();
    let get = |of: Option<TraceContext>| {
        within(Traceparent(of), || client.get(b"k", &GetOptions::default())).unwrap()
    };
    assert!(get(Some(trace)).is_some());
    assert!(get(None).is_some());
    let exemplar = format!(" # {{trace_id=\"{}\"}} ", trace.trace);
    // A look-up is counted when it was answered.
    let mut text = String::new();
    until("the trace is named", || {
        text = ask(open);
        text.contains(&exemplar)
    });
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let mut marked = text.lines().filter(|line| line.contains(&exemplar));
    let marked = marked.next().unwrap_or_else(|| panic!("{text}"));
    let look_up = "slackwater_read_phase_seconds_bucket{phase=\"look_up\",le=";
    assert!(marked.starts_with(look_up), "{marked}");
    let plain = ask("");
    assert!(!plain.contains("trace_id") && !plain.contains("# EOF"));
}

#[test]
fn what_is_no_collector_or_no_trace_is_refused() {
    let place = Place::new();
    let check = |arguments: &[&str], expected: &str| {
        let output = place.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    check(
        &["get", "k", "--traces", "https://a"],
        "https is not spoken",
    );
    check(&["master", "--traces", "here"], "no address of a collector");
    check(
        &["get", "k", "--traceparent", "00-1-2-3"],
        "a traceparent is",
    );
}
