use super::{LinksRow, Report};
use slackwater_report::{Bound, Compared, Page, Table};

/// The report as one page without any other file.
pub(super) fn render(report: &Report) -> String {
    let links = |title: &str, rows: &[LinksRow]| {
        Table::new(
            title,
            &[
                "client",
                "links",
                "heartbeats",
                "mechanism",
                "msg/s",
                "CPU %",
                "CPU µs/msg",
                "p50 µs",
                "p99 µs",
                "calls/msg",
                "bytes/link",
                "connect s",
            ],
            rows.iter().map(|row| {
                vec![
                    row.client.to_owned(),
                    row.n.to_string(),
                    row.heartbeats.to_owned(),
                    row.mechanism.to_owned(),
                    format!("{:.0} of {}", row.arrived, row.rate),
                    format!("{:.2}", row.cpu_percent),
                    format!("{:.1}", row.cpu_us_per_msg),
                    format!("{:.0}", row.p50_us),
                    format!("{:.0}", row.p99_us),
                    row.syscalls_per_msg
                        .map_or("-".to_owned(), |calls| format!("{calls:.2}")),
                    format!("{:.0}", row.bytes_per_link),
                    format!("{:.2}", row.connect_seconds),
                ]
            }),
        )
    };
    let or_none =
        |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.0}"));
    let rpc = Table::new(
        "Request and reply",
        &[
            "links",
            "bytes",
            "mechanism",
            "p50 µs",
            "p99 µs",
            "per s",
            "per CPU s",
            "pyzmq p50 µs",
            "pyzmq per s",
            "pyzmq per CPU s",
        ],
        report.rpc.iter().map(|row| {
            vec![
                row.links.to_string(),
                row.size.to_string(),
                row.mechanism.to_owned(),
                format!("{:.1}", row.p50_us),
                format!("{:.1}", row.p99_us),
                format!("{:.0}", row.rps),
                format!("{:.0}", row.rps_per_cpu),
                or_none(row.peer_p50_us),
                or_none(row.peer_rps),
                or_none(row.peer_rps_per_cpu),
            ]
        }),
    );
    let bursts = Table::new(
        "A burst over the queue of a server that takes a millisecond for each",
        &[
            "client",
            "requests",
            "queue",
            "answered",
            "refused",
            "failed",
            "sent ms",
            "last refusal ms",
            "last outcome ms",
            "server KiB",
        ],
        report.bursts.iter().map(|row| {
            vec![
                row.client.to_owned(),
                row.requests.to_string(),
                row.queue.to_string(),
                row.answered.to_string(),
                row.refused.to_string(),
                row.failed.to_string(),
                format!("{:.1}", row.sent_ms),
                row.last_refusal_ms
                    .map_or("-".to_owned(), |millis| format!("{millis:.1}")),
                format!("{:.1}", row.last_ms),
                (row.server_bytes >> 10).to_string(),
            ]
        }),
    );
    let page = Page {
        title: "Message layer".to_owned(),
        lead: "One client with many links, and requests with their replies.".to_owned(),
        tables: vec![
            Bound::table(&report.bounds),
            Compared::table(&report.compared),
            links("One client, many links", &report.links),
            links(
                "The limit: a client that only waits with epoll and reads",
                &report.bare,
            ),
            rpc,
            bursts,
        ],
        notes: report.notes.clone(),
        ..Page::default()
    };
    page.html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mq::RpcRow;

    #[test]
    fn every_row_and_note_is_on_the_page() {
        let report = Report {
            links: vec![LinksRow {
                n: 12_345,
                mechanism: "NULL",
                ..LinksRow::default()
            }],
            rpc: vec![RpcRow {
                size: 64,
                mechanism: "CURVE",
                peer_rps: Some(777.0),
                ..RpcRow::default()
            }],
            notes: vec!["a <note>".into()],
            bounds: vec![Bound::at_most("a promise", 1.5, 2.0)],
            ..Report::default()
        };
        let page = render(&report);
        for text in [
            "12345",
            "CURVE",
            "777",
            "none",
            "a &lt;note&gt;",
            "a promise",
        ] {
            assert!(page.contains(text), "{text}");
        }
    }
}
