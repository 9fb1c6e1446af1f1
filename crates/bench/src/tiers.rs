//! A trace on memory over SSD, beside a peer and beside what the raw device gives for the same bytes.
//!
//! Every system is played the same requests from the same threads: read the longest present prefix, compare every byte, put
//! the rest. A row's floor is the time that the device alone takes for the row's bytes, read and written in its proportion.

mod bounds;
mod contention;
mod player;
pub(crate) mod raw;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_node::StoreError;
use slackwater_node::config::IoBackend;
use slackwater_replay::{Request, Traffic};
use slackwater_report::Bound;

pub use contention::Contention;
use player::Reading;

use crate::peer::Skipped;
use crate::tied;

/// What is played, and on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where directories are made and removed again: on the device that is to be measured.
    pub directory: PathBuf,
    /// The requests.
    pub source: Source,
    /// Length of a block in bytes.
    pub block_bytes: usize,
    /// Memory of values in bytes.
    pub memory_bytes: u64,
    /// SSD space of values in bytes.
    pub ssd_bytes: u64,
    /// How the store reads and writes its SSD.
    pub io: IoBackend,
    /// Requests under way at once, a row each.
    pub in_flight: Vec<usize>,
    /// How often the systems take turns; the run with the middle wall time counts.
    pub rounds: usize,
    /// The program that plays the peers.
    pub peers: Option<PathBuf>,
    /// How long each part of the reads beside a stream of offloads lasts, three times over; none leaves them out.
    pub contention: Option<Duration>,
}

/// Where requests come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file of them, with what was read from it.
    Trace {
        /// The file.
        path: PathBuf,
        /// Its requests.
        requests: Vec<Request>,
    },
    /// Generated ones.
    Generated(Traffic),
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One a system and number of requests under way.
    pub rows: Vec<Row>,
    /// What bounds the rows.
    pub limits: Limits,
    /// A read from SSD on an idle device and beside offloads at full speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contention: Option<Contention>,
    /// How the store read and wrote its SSD.
    pub io: String,
    /// Peers that did not run.
    pub skipped: Vec<Skipped>,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// One system with one number of requests under way.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Row {
    /// Its name.
    pub system: String,
    /// Requests under way at once.
    pub in_flight: usize,
    /// Time of the run.
    pub wall_s: f64,
    /// Processor time of the run, all threads.
    pub cpu_s: f64,
    /// Part of the blocks that were read, each after all blocks before it.
    pub prefix_hit_rate: f64,
    /// Median over the blocks that were read of the time of the call that brought each, with up to 63 others.
    pub read_p50_us: f64,
    /// Its 99th percentile.
    pub read_p99_us: f64,
    /// The same over those that came from SSD.
    pub ssd_read_p50_us: f64,
    /// Its 99th percentile.
    pub ssd_read_p99_us: f64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Bytes written to the device.
    pub device_write_bytes: u64,
    /// What the device alone takes for these bytes, measured once for a row; zero until then.
    #[serde(default)]
    pub floor_s: f64,
    /// Wall time over the floor.
    #[serde(default)]
    pub wall_over_floor: f64,
}

/// What the raw device does, with direct I/O.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Bytes written in a second, one after the other, two pieces of a mebibyte under way.
    pub raw_write_bytes_per_s: f64,
    /// Median time of a read of one block at a random place.
    pub raw_read_p50_us: f64,
    /// Its 99th percentile.
    pub raw_read_p99_us: f64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store could not be opened.
    #[error("cannot open a store: {0}")]
    Open(String),
    /// Files of the measurement.
    #[error("{what}: {why}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The operating system's answer.
        why: std::io::Error,
    },
    /// A value that was read was not what was put.
    #[error("block {block} has wrong bytes at offset {offset}")]
    WrongBytes {
        /// The block.
        block: u64,
        /// The first of them.
        offset: usize,
    },
}

/// How long a part of the reads beside offloads lasts for figures that mean something.
pub const CONTENTION: Duration = Duration::from_secs(2);

impl Source {
    fn requests(&self) -> Vec<Request> {
        match self {
            Source::Trace { requests, .. } => requests.clone(),
            Source::Generated(traffic) => slackwater_replay::Generator::new(*traffic).collect(),
        }
    }

    /// The source as the program of the peers takes it.
    fn words(&self) -> Vec<String> {
        match self {
            Source::Trace { path, .. } => vec!["trace".into(), path.display().to_string()],
            Source::Generated(traffic) => vec![
                "generated".into(),
                traffic.requests.to_string(),
                traffic.sessions.to_string(),
                traffic.seed.to_string(),
            ],
        }
    }
}

/// Plays the requests on every system, in turns.
///
/// # Errors
/// What the store or the device says, or a read that gave other bytes than were put.
pub fn run(options: &Options) -> Result<Report, Error> {
    let requests = options.source.requests();
    let limits = raw::limits(options)?;
    let (mut rows, mut skipped, mut io) = (Vec::new(), Vec::new(), String::new());
    if options.peers.is_none() {
        skipped.push(Skipped {
            peer: "foyer",
            reason: "no program of the peers was named: `make peers` builds one for --peers"
                .to_owned(),
        });
    }
    for in_flight in options.in_flight.iter().copied() {
        let (mut ours, mut views, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds.max(1) {
            for (reading, of_one) in [(Reading::Copies, &mut ours), (Reading::Views, &mut views)] {
                let (row, chosen) = player::play(options, &requests, in_flight, reading)?;
                of_one.push(row);
                io = chosen;
            }
            match options.peers.as_ref().map(|_| foyer(options, in_flight)) {
                Some(Ok(row)) => peers.push(row),
                Some(Err(reason)) => skipped.push(Skipped {
                    peer: "foyer",
                    reason,
                }),
                None => {}
            }
        }
        for of_one in [ours, views, peers] {
            let Some(mut row) = middle(of_one) else {
                continue;
            };
            row.floor_s = raw::floor(options, &row)?;
            row.wall_over_floor = row.wall_s / row.floor_s.max(1e-9);
            rows.push(row);
        }
    }
    let contention = options
        .contention
        .map(|part| contention::measure(options, part))
        .transpose()?;
    if let Some(reason) = contention.as_ref().and_then(Contention::untimed) {
        skipped.push(Skipped {
            peer: "reads beside offloads",
            reason: reason.to_owned(),
        });
    }
    let mut report = Report {
        rows,
        limits,
        contention,
        io,
        skipped,
        bounds: Vec::new(),
    };
    report.bounds = bounds::of(&report, options.block_bytes);
    Ok(report)
}

/// The run with the middle wall time; of two, the faster.
fn middle(mut rows: Vec<Row>) -> Option<Row> {
    rows.sort_by(|a, b| a.wall_s.total_cmp(&b.wall_s));
    let at = rows.len().checked_sub(1)? / 2;
    Some(rows.swap_remove(at))
}

/// Has the peers' program play foyer on a directory of its own.
fn foyer(options: &Options, in_flight: usize) -> Result<Row, String> {
    let program = options.peers.as_ref().ok_or("no program")?;
    let directory = options.directory.join("foyer");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .arg("foyer")
        .arg(&directory)
        .args([options.memory_bytes, options.ssd_bytes].map(|bytes| bytes.to_string()))
        .args([options.block_bytes, in_flight].map(|number| number.to_string()))
        .args(options.source.words());
    let output = tied::output(command).map_err(|error| format!("{}: {error}", program.display()));
    let removed = std::fs::remove_dir_all(&directory);
    let output = output?;
    removed.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", output.status, told.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("its row: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &std::path::Path) -> Options {
        Options {
            directory: directory.to_owned(),
            source: Source::Generated(Traffic {
                requests: 120,
                sessions: 16,
                seed: 3,
                ..Traffic::default()
            }),
            block_bytes: 16 << 10,
            memory_bytes: 2 << 20,
            ssd_bytes: 64 << 20,
            io: IoBackend::Pread,
            in_flight: vec![1, 3],
            rounds: 1,
            peers: None,
            contention: Some(Duration::from_millis(100)),
        }
    }

    #[test]
    fn the_keys_of_a_row_are_the_contract_and_every_block_is_compared() {
        let directory = tempfile::tempdir().unwrap();
        let report = run(&options(directory.path())).unwrap();
        let systems: Vec<&str> = report.rows.iter().map(|row| row.system.as_str()).collect();
        let both = ["slackwater", "slackwater, views"];
        assert_eq!(systems, [both, both].concat());
        let row = serde_json::to_value(&report.rows[0]).unwrap();
        assert_eq!(report.io, "pread", "as asked");
        let contract = "system in_flight wall_s cpu_s prefix_hit_rate read_p50_us read_p99_us ssd_read_p50_us \
             ssd_read_p99_us device_read_bytes device_write_bytes";
        for key in contract.split_whitespace() {
            assert!(row.get(key).is_some(), "{key}");
        }
        for row in &report.rows {
            assert!(
                row.prefix_hit_rate > 0.2 && row.prefix_hit_rate < 1.0,
                "{row:?}"
            );
            assert!(row.wall_s > 0.0 && row.floor_s > 0.0, "{row:?}");
            assert!(row.ssd_read_p50_us > 0.0, "{row:?}");
        }
        let contention = report.contention.unwrap();
        // The stream between the parts had pushed out what the second one reads.
        assert_eq!(contention.untimed(), None, "{contention:?}");
        assert!(contention.offload_alone_bytes_per_s > 0.0);
        assert_eq!(report.skipped.len(), 1, "{:?}", report.skipped);
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_peer_that_fails_is_skipped_with_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(directory.path());
        options.peers = Some("/nonexistent/program".into());
        let reason = foyer(&options, 1).unwrap_err();
        assert!(reason.contains("/nonexistent/program"), "{reason}");
        options.peers = Some(peer(directory.path(), "echo no such cache >&2; exit 3"));
        let reason = foyer(&options, 1).unwrap_err();
        assert!(reason.contains("no such cache"), "{reason}");
        options.peers = Some(peer(directory.path(), "echo '{}'"));
        let reason = foyer(&options, 1).unwrap_err();
        assert!(reason.contains("its row: missing field"), "{reason}");
    }

    #[test]
    fn a_row_of_a_peer_gets_its_floor_and_ours_are_held_against_it() {
        let directory = tempfile::tempdir().unwrap();
        let row = r#"{"system":"foyer","in_flight":'$6',"wall_s":9e9,"cpu_s":9e9,"prefix_hit_rate":0.5,"read_p50_us":1.0,
            "read_p99_us":2.0,"ssd_read_p50_us":3.0,"ssd_read_p99_us":4.0,"device_read_bytes":16384,"device_write_bytes":1048576}"#;
        let script = format!(
            "[ \"$1 $3 $4 $5 $7 $8\" = 'foyer 2097152 67108864 16384 generated 60' ] || exit 1; [ -d \"$2\" ] && echo '{row}'"
        );
        let small = options(directory.path());
        let report = run(&Options {
            source: Source::Generated(Traffic {
                requests: 60,
                sessions: 8,
                ..Traffic::default()
            }),
            in_flight: vec![2],
            peers: Some(peer(directory.path(), &script)),
            contention: None,
            ..small
        })
        .unwrap();
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
        let [_, _, theirs] = &report.rows[..] else {
            panic!("three systems: {:?}", report.rows);
        };
        assert_eq!((theirs.system.as_str(), theirs.in_flight), ("foyer", 2));
        assert_eq!(theirs.device_write_bytes, 1 << 20);
        assert!(theirs.floor_s > 0.0 && theirs.wall_over_floor > 1.0);
        let holds: Vec<bool> = report.bounds.iter().map(Bound::holds).collect();
        assert_eq!(holds[..2], [true, true], "no run takes so long");
        assert_eq!(holds.len(), 3, "{:?}", report.bounds);
    }

    fn peer(directory: &std::path::Path, script: &str) -> PathBuf {
        let path = directory.join("peer");
        // Written by a process of its own: one that another test forks meanwhile must not keep it open, for it is run at once.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let mut shell = std::process::Command::new("/bin/sh");
        let ended = shell
            .args(["-c", write, "sh"])
            .arg(&path)
            .arg(script)
            .status();
        assert!(ended.unwrap().success());
        path
    }

    #[test]
    fn the_middle_of_the_rounds_counts() {
        let row = |wall_s| Row {
            system: String::new(),
            in_flight: 1,
            wall_s,
            cpu_s: 0.0,
            prefix_hit_rate: 0.0,
            read_p50_us: 0.0,
            read_p99_us: 0.0,
            ssd_read_p50_us: 0.0,
            ssd_read_p99_us: 0.0,
            device_read_bytes: 0,
            device_write_bytes: 0,
            floor_s: 0.0,
            wall_over_floor: 0.0,
        };
        let walls = |walls: &[f64]| middle(walls.iter().map(|at| row(*at)).collect());
        assert_eq!(walls(&[3.0, 1.0, 2.0]).unwrap().wall_s, 2.0);
        assert_eq!(walls(&[3.0, 1.0]).unwrap().wall_s, 1.0);
        assert_eq!(walls(&[]), None);
    }
}
