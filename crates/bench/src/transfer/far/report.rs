//! What a report says of two machines.

use serde::Serialize;
use slackwater_report::{Bound, Table, Tile};

use crate::transfer::raw::MESSAGE;
use crate::transfer::report::{figure_of, gbps};
use crate::transfer::{Report, Row};

/// The far end of a report.
#[derive(Clone, Debug, Serialize)]
pub struct FarReport {
    /// Its address, without its key.
    pub address: String,
    /// What the run was told of the link.
    pub link: Option<String>,
    /// Whether keys were proven and bytes of engines were encrypted. Those of the limits never are.
    pub sealed: bool,
    /// Its machine.
    pub far_machine: serde_json::Value,
}

/// Blocks of 1 MiB under way that fill a link of 10 Gbit/s and 10 ms.
const MANY_BLOCKS: usize = 16;

impl FarReport {
    /// `aes` is that of this machine: AES seals where both have its instructions.
    pub(in crate::transfer) fn table(&self, aes: Option<&str>) -> Table {
        let of = |name: &str| match &self.far_machine[name] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (cpu, cores, kernel) = (of("cpu"), of("cores"), of("kernel"));
        let sealed = match (self.sealed, aes, self.far_machine["aes"].as_str()) {
            (true, Some(here), Some(there)) => {
                format!("yes; AES-256-GCM by {here} here, by {there} there")
            }
            (true, ..) => "yes; ChaCha20-Poly1305".to_owned(),
            (false, ..) => "no".to_owned(),
        };
        let rows = [
            ("far end", self.address.clone()),
            (
                "its machine",
                format!("{cpu}, {cores} CPUs, Linux {kernel}"),
            ),
            (
                "link",
                self.link
                    .clone()
                    .unwrap_or_else(|| "not told (--link)".to_owned()),
            ),
            ("sealed, which the limits are not", sealed),
        ];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
        Table::new("Between two machines", &["what", "which"], rows)
    }
}

impl Report {
    /// What is promised between two machines: with enough under way, what the network gives.
    pub(super) fn judge_across(&mut self) {
        let many = |row: &&Row| row.block == MESSAGE && row.concurrency * row.batch >= MANY_BLOCKS;
        let bound = |row: &Row| {
            let (op, threads, batch) = (row.op.name(), row.concurrency, row.batch);
            let what = format!("{op} 1 MiB {threads}x{batch} across: GB/s over the limit");
            Some(Bound::at_least(what, row.gbps_over_limit?, 0.9))
        };
        self.bounds = self.rows.iter().filter(many).filter_map(bound).collect();
    }

    /// The limits of the network, each way.
    pub(in crate::transfer) fn network_limits(&self) -> Vec<Vec<String>> {
        let limits = &self.limits;
        let rows = [
            (
                "blocking socket to the far end, GB/s",
                limits.blocking_socket_write_gbps,
            ),
            (
                "… CPU-seconds per GB",
                limits.blocking_socket_write_cpu_s_per_gb,
            ),
            (
                "iperf3 to the far end, one stream, GB/s",
                limits.iperf3_write_gbps,
            ),
        ];
        let rows = rows.iter().filter(|_| self.across.is_some());
        rows.map(|(name, value)| vec![(*name).to_owned(), figure_of(*value)])
            .collect()
    }

    pub(in crate::transfer) fn network_tiles(&self) -> Vec<Tile> {
        let limits = &self.limits;
        vec![
            Tile::new(
                "from the far end",
                gbps(limits.blocking_socket_gbps),
                "a bare blocking socket",
            ),
            Tile::new(
                "to the far end",
                gbps(limits.blocking_socket_write_gbps),
                "a bare blocking socket",
            ),
            Tile::new(
                "iperf3",
                gbps(limits.iperf3_gbps),
                "one stream from the far end",
            ),
        ]
    }
}
