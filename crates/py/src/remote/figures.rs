//! What a client counts.

use std::fmt::Write;

use serde_json::{Value, json};
use slackwater_remote::{Client, PeerStats};

/// The counts of a client at one time.
pub(super) struct Figures {
    moved: Vec<(&'static str, PeerStats)>,
    record_reads: u64,
}

/// What is told of the requests of one way: name, kind, meaning, and each value with its label.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&PeerStats) -> Vec<(&'static str, u64)>,
);

const FAMILIES: [Family; 4] = [
    (
        "slackwater_client_transfers_total",
        "counter",
        "Transfers between this process and nodes, by way and by how they ended.",
        |stats| {
            vec![
                (",status=\"completed\"", stats.completed),
                (",status=\"failed\"", stats.failed),
            ]
        },
    ),
    (
        "slackwater_client_transfer_bytes_total",
        "counter",
        "Bytes that were read from nodes and written to them.",
        |stats| {
            vec![
                (",direction=\"read\"", stats.bytes_read),
                (",direction=\"written\"", stats.bytes_written),
            ]
        },
    ),
    (
        "slackwater_client_transfer_retries_total",
        "counter",
        "Tries after a broken connection.",
        |stats| vec![("", stats.retries)],
    ),
    (
        "slackwater_client_transfers",
        "gauge",
        "Transfers that have begun, and that wait for their turn.",
        |stats| {
            vec![
                (",state=\"active\"", stats.active),
                (",state=\"pending\"", stats.pending),
            ]
        },
    ),
];

impl Figures {
    pub(super) fn of(client: &Client) -> Self {
        Self {
            moved: client.moved(),
            record_reads: client.record_reads(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let way = |(way, stats): &(&'static str, PeerStats)| {
            let PeerStats {
                completed,
                failed,
                bytes_read,
                bytes_written,
                active,
                pending,
                retries,
            } = *stats;
            let counts = json!({
                "completed": completed,
                "failed": failed,
                "bytes_read": bytes_read,
                "bytes_written": bytes_written,
                "active": active,
                "pending": pending,
                "retries": retries,
            });
            ((*way).to_owned(), counts)
        };
        let moved: serde_json::Map<_, _> = self.moved.iter().map(way).collect();
        json!({ "moved": moved, "record_reads": self.record_reads })
    }

    /// The same in exposition format 0.0.4.
    pub(super) fn to_prometheus(&self) -> String {
        let mut text = String::new();
        for (name, kind, meaning, values) in FAMILIES {
            head(&mut text, name, kind, meaning);
            for (way, stats) in &self.moved {
                for (label, value) in values(stats) {
                    let _ = writeln!(text, "{name}{{way=\"{way}\"{label}}} {value}");
                }
            }
        }
        let name = "slackwater_client_record_reads_total";
        let meaning =
            "How often nodes were asked for what is on SSD only, those of one batch together.";
        head(&mut text, name, "counter", meaning);
        let _ = writeln!(text, "{name} {}", self.record_reads);
        text
    }
}

fn head(text: &mut String, name: &str, kind: &str, meaning: &str) {
    let _ = writeln!(text, "# HELP {name} {meaning}\n# TYPE {name} {kind}");
}
