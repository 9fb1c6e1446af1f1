//! How close the embedded store comes to what the machine can do: reads from memory beside a plain copy, reads from
//! SSD beside direct reads of a plain file, in one run and in turns, so that a noisy machine is noisy to both.

mod memory;
pub(crate) mod redis;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_base::{BLOCK_BYTES, ByteSize, Rng};
use slackwater_node::{Config, GetOptions, OpenError, PutOptions, Store, StoreError, Tier};

use crate::machine::Machine;
use crate::peer::Skipped;
pub use memory::{BufferRow, ViewTimes};

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where files are made and removed again: on the device that is to be measured.
    pub directory: PathBuf,
    /// Length of a value.
    pub value_bytes: usize,
    /// Bytes that one pass over memory reads; more than the last-level cache.
    pub memory_pass: ByteSize,
    /// Bytes that one pass over the SSD reads.
    pub ssd_pass: ByteSize,
    /// Reads under way at once in the deep pass over the SSD.
    pub depth: usize,
    /// Passes of each kind; the median counts.
    pub passes: usize,
    /// Whether the peers run as well.
    pub peers: bool,
}

impl Options {
    /// The published benchmark, in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            value_bytes: 1 << 20,
            memory_pass: ByteSize::mib(256),
            ssd_pass: ByteSize::mib(128),
            depth: 8,
            passes: 7,
            peers: true,
        }
    }
}

/// Medians of the passes, in 10^9 bytes a second.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// `get_into` from memory, verified, into buffers that begin as the allocator gives them.
    pub get_into_gbps: f64,
    /// `get_into` from memory into buffers at each offset.
    pub buffers: Vec<BufferRow>,
    /// Views of values in memory.
    pub views: ViewTimes,
    /// A plain copy of the same lengths between buffers of the same size.
    pub memcpy_gbps: f64,
    /// The first by the second, the median of the passes' own ratios.
    pub ratio: f64,
    /// `put` into memory, checksummed.
    pub put_gbps: f64,
    /// `get_into` from SSD, one after another, verified.
    pub ssd_read_gbps: f64,
    /// Direct reads of a plain file, one after another.
    pub raw_ssd_gbps: f64,
    /// The first by the second.
    pub ssd_ratio: f64,
    /// `get_batch_into` from SSD, `depth` values a call.
    pub ssd_batch_gbps: f64,
    /// Direct reads of a plain file by `depth` threads.
    pub raw_ssd_batch_gbps: f64,
    /// The first by the second.
    pub ssd_batch_ratio: f64,
    /// Values under way at once in the two above.
    pub depth: usize,
    /// Length of a value.
    pub value_bytes: usize,
    /// How SSD reads were done.
    pub io: String,
    /// `get_batch_into` from memory, [`BATCH`] values a call, copied by as many threads as there are CPUs.
    pub batch_get_gbps: f64,
    /// The same by the speed of the caller alone.
    pub batch_get_ratio: f64,
    /// `put_batch` of as many values a call into memory that was used before.
    pub batch_put_gbps: f64,
    /// The same by the speed of the caller alone.
    pub batch_put_ratio: f64,
    /// `get_into` from memory over GET of Redis through a Unix socket.
    pub get_over_redis: Option<f64>,
    /// `put` into memory over SET of Redis.
    pub put_over_redis: Option<f64>,
    /// Peers that did not run, or not to the end.
    pub skipped: Vec<Skipped>,
    /// Every pass.
    pub rows: Vec<Row>,
    /// What the machine does without a store, from this run.
    pub limits: Vec<Limit>,
}

/// One pass.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The operation that was measured.
    pub what: &'static str,
    /// Which one of its kind.
    pub pass: usize,
    /// Bytes a second, in 10^9.
    pub gbps: f64,
}

/// A limit of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// The rows that it limits.
    pub what: &'static str,
    /// Bytes a second, in 10^9.
    pub gbps: f64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be made or read.
    #[error("{what}: {why}")]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        why: io::Error,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store refused a call.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store did not do what the benchmark is about.
    #[error("{0}")]
    Unexpected(String),
}

/// Measures.
///
/// # Errors
/// When files or the store fail, or a read came from another tier than the one measured.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let mut rows = Vec::new();
    let skipped = memory::memory(options, &mut rows)?;
    memory::batches(options, &mut rows)?;
    let (buffers, views) = memory::in_place(options)?;
    let io = ssd(options, &mut rows)?;
    let median = |what: &str| {
        median(
            rows.iter()
                .filter(|row| row.what == what)
                .map(|row| row.gbps)
                .collect(),
        )
    };
    let ratio = |ours: &str, limit: &str| {
        let of = |what: &str| {
            rows.iter()
                .filter(move |row| row.what == what)
                .map(|row| row.gbps)
                .collect::<Vec<_>>()
        };
        self::median(
            of(ours)
                .into_iter()
                .zip(of(limit))
                .map(|(ours, limit)| ours / limit)
                .collect(),
        )
    };
    let over = |ours: &str, peer: &str| Some(ratio(ours, peer)).filter(|ratio| *ratio > 0.0);
    let limits = [MEMCPY, RAW, RAW_DEEP]
        .map(|what| Limit {
            what,
            gbps: median(what),
        })
        .to_vec();
    Ok(Report {
        machine: Machine::detect(),
        get_into_gbps: median(GET),
        buffers,
        views,
        memcpy_gbps: median(MEMCPY),
        ratio: ratio(GET, MEMCPY),
        put_gbps: median(PUT),
        ssd_read_gbps: median(SSD),
        raw_ssd_gbps: median(RAW),
        ssd_ratio: ratio(SSD, RAW),
        ssd_batch_gbps: median(SSD_DEEP),
        raw_ssd_batch_gbps: median(RAW_DEEP),
        ssd_batch_ratio: ratio(SSD_DEEP, RAW_DEEP),
        depth: options.depth,
        value_bytes: options.value_bytes,
        io,
        batch_get_gbps: median(BATCH_GET),
        batch_get_ratio: ratio(BATCH_GET, BATCH_GET_ALONE),
        batch_put_gbps: median(BATCH_PUT),
        batch_put_ratio: ratio(BATCH_PUT, BATCH_PUT_ALONE),
        get_over_redis: over(GET, redis::GET),
        put_over_redis: over(PUT, redis::SET),
        skipped,
        rows,
        limits,
    })
}

const GET: &str = "get_into from memory";
const MEMCPY: &str = "memcpy";
const PUT: &str = "put into memory";
const SSD: &str = "get_into from SSD";
const RAW: &str = "direct reads";
const SSD_DEEP: &str = "get_batch_into from SSD";
const RAW_DEEP: &str = "direct reads, several at once";

const BATCH_GET: &str = "get_batch_into from memory";
const BATCH_GET_ALONE: &str = "get_batch_into from memory, caller alone";
const BATCH_PUT: &str = "put_batch into memory";
const BATCH_PUT_ALONE: &str = "put_batch into memory, caller alone";

/// Values of one call of the batches from memory.
pub const BATCH: usize = 16;

/// Where copies go: in turn over more than the cache, as the buffers of real callers do.
const TARGETS: usize = 64;

fn ssd(options: &Options, rows: &mut Vec<Row>) -> Result<String, Failure> {
    let (bytes, count) = (
        options.value_bytes,
        options.ssd_pass.0 as usize / options.value_bytes,
    );
    let config = Config {
        memory: ByteSize(8 * bytes as u64).max(ByteSize::mib(1)),
        // A small log keeps a larger part of itself free for reclaim: with this on top nothing is evicted.
        ssd: ByteSize(options.ssd_pass.0 * 2 + ByteSize::mib(64).0),
        dir: Some(options.directory.join("store")),
        promotion_enabled: false,
        ..Config::default()
    };
    let source = random(3, bytes * count);
    let store = Store::open(config.clone())?;
    for (number, value) in source.chunks(bytes).enumerate() {
        store.put(number.to_string().as_bytes(), value, &PutOptions::default())?;
    }
    // Opened again, everything is on SSD and nothing in memory.
    store.close()?;
    let store = Store::open(config)?;
    let raw = RawFile::write(options, &source)?;
    let mut targets = Targets::new(bytes, TARGETS.next_multiple_of(options.depth));
    let mut rng = Rng::new(4);
    for pass in 0..options.passes {
        let order = shuffled(&mut rng, count);
        let begun = Instant::now();
        for (turn, number) in order.iter().enumerate() {
            let read = raw
                .direct
                .read_exact_at(targets.get(turn), (number * bytes) as u64);
            read.map_err(file("a direct read"))?;
        }
        rows.push(Row {
            what: RAW,
            pass,
            gbps: rate(bytes * count, begun),
        });
        let begun = Instant::now();
        for (turn, number) in order.iter().enumerate() {
            let key = number.to_string();
            let got = store.get_into(key.as_bytes(), targets.get(turn), &GetOptions::default())?;
            expect(got.map(|got| got.tier), Tier::Disk, &key)?;
        }
        rows.push(Row {
            what: SSD,
            pass,
            gbps: rate(bytes * count, begun),
        });
        rows.push(Row {
            what: RAW_DEEP,
            pass,
            gbps: raw_deep(options, &raw, &order, &mut targets)?,
        });
        rows.push(Row {
            what: SSD_DEEP,
            pass,
            gbps: deep(options, &store, &order, &mut targets)?,
        });
    }
    let io = store.stats().io.chosen;
    store.close()?;
    Ok(io)
}

/// Bytes a second, in 10^9, that reads of `depth` values a call take from the SSD.
fn deep(
    options: &Options,
    store: &Store,
    order: &[usize],
    targets: &mut Targets,
) -> Result<f64, Failure> {
    let begun = Instant::now();
    for (turn, numbers) in order.chunks(options.depth).enumerate() {
        let keys: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let mut into = targets.batch(turn, options.depth);
        into.truncate(keys.len());
        for (got, key) in store
            .get_batch_into(&keys, &mut into, &GetOptions::default())
            .into_iter()
            .zip(numbers)
        {
            expect(got?.map(|got| got.tier), Tier::Disk, &key.to_string())?;
        }
    }
    Ok(rate(options.value_bytes * order.len(), begun))
}

/// The same from the plain file, by as many threads as `depth`, each with its share of the reads.
fn raw_deep(
    options: &Options,
    raw: &RawFile,
    order: &[usize],
    targets: &mut Targets,
) -> Result<f64, Failure> {
    let bytes = options.value_bytes;
    let begun = Instant::now();
    std::thread::scope(|scope| -> Result<(), Failure> {
        let share = order.len().div_ceil(options.depth);
        let parts = order.chunks(share).zip(targets.shares(options.depth));
        let threads: Vec<_> = parts
            .map(|(numbers, share)| {
                scope.spawn(move || {
                    numbers.iter().enumerate().try_for_each(|(turn, number)| {
                        let target = turn * bytes % share.len();
                        raw.direct.read_exact_at(
                            &mut share[target..target + bytes],
                            (number * bytes) as u64,
                        )
                    })
                })
            })
            .collect();
        for thread in threads {
            let done = thread
                .join()
                .map_err(|_| Failure::Unexpected("a reading thread panicked".to_owned()))?;
            done.map_err(file("a direct read"))?;
        }
        Ok(())
    })?;
    Ok(rate(bytes * order.len(), begun))
}

/// The same bytes in a plain file, read past the page cache.
struct RawFile {
    direct: File,
    path: PathBuf,
}

impl RawFile {
    fn write(options: &Options, bytes: &[u8]) -> Result<Self, Failure> {
        let path = options.directory.join("raw");
        let mut plain = File::create(&path).map_err(file("the plain file"))?;
        plain
            .write_all(bytes)
            .and_then(|()| plain.sync_all())
            .map_err(file("the plain file"))?;
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .map_err(file("direct I/O"))?;
        Ok(Self { direct, path })
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        // What is left lies in a directory that the caller removes.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where reads from SSD go, beginning on a block without asking the allocator for it: in turn over more than the cache,
/// for the store's reads and for direct ones. Into one buffer again and again, the device writes over lines that the
/// processor has just checksummed and has to give up first, which no caller with a buffer a value sees.
struct Targets {
    memory: Vec<u8>,
    begin: usize,
    bytes: usize,
    count: usize,
}

impl Targets {
    /// Room for `count` values of `bytes` bytes.
    fn new(bytes: usize, count: usize) -> Self {
        let memory = vec![0xa5; bytes * count + BLOCK_BYTES as usize];
        let begin = memory.as_ptr().align_offset(BLOCK_BYTES as usize);
        Self {
            memory,
            begin,
            bytes,
            count,
        }
    }

    /// The one whose turn it is.
    fn get(&mut self, turn: usize) -> &mut [u8] {
        let at = self.begin + turn % self.count * self.bytes;
        &mut self.memory[at..at + self.bytes]
    }

    /// Those of the batch whose turn it is, of `depth` values each; there is room for whole batches only.
    fn batch(&mut self, turn: usize, depth: usize) -> Vec<&mut [u8]> {
        let (bytes, first) = (self.bytes, turn * depth % self.count);
        self.all()[first * bytes..]
            .chunks_mut(bytes)
            .take(depth)
            .collect()
    }

    /// All of them in `count` equal parts.
    fn shares(&mut self, count: usize) -> std::slice::ChunksMut<'_, u8> {
        let share = self.count / count * self.bytes;
        self.all().chunks_mut(share)
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.bytes * self.count]
    }
}

pub(crate) fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::new(seed).fill(&mut value);
    value
}

/// Every number below `count` once (Fisher and Yates, 1938).
pub(crate) fn shuffled(rng: &mut Rng, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

pub(crate) fn expect(found: Option<Tier>, tier: Tier, key: &str) -> Result<(), Failure> {
    if found == Some(tier) {
        Ok(())
    } else {
        Err(Failure::Unexpected(format!(
            "{key}: {found:?} instead of {tier:?}"
        )))
    }
}

fn rate(bytes: usize, begun: Instant) -> f64 {
    bytes as f64 / begun.elapsed().max(Duration::from_nanos(1)).as_secs_f64() / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn file(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |why| Failure::File { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_fills_every_figure() {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            value_bytes: 64 << 10,
            memory_pass: ByteSize::mib(4),
            ssd_pass: ByteSize::mib(4),
            depth: 4,
            passes: 2,
            ..Options::new(root.path().to_owned())
        };
        let report = run(&options).unwrap();
        let of_peer = report
            .rows
            .iter()
            .filter(|row| row.what.starts_with("redis"))
            .count();
        assert_eq!((report.rows.len() - of_peer, report.limits.len()), (22, 3));
        let ran =
            of_peer == 4 && report.get_over_redis > Some(0.0) && report.put_over_redis > Some(0.0);
        assert!(
            ran != (report.skipped.len() == 1),
            "redis ran or is said to be missing: {report:?}"
        );
        assert!(report.buffers.len() == 4 && report.buffers.iter().all(|row| row.gbps > 0.0));
        assert!(report.views.one_ns > 0.0 && report.views.of_batch_ns > 0.0);
        let json = serde_json::to_value(&report).unwrap();
        for name in [
            "get_into_gbps",
            "memcpy_gbps",
            "ratio",
            "ssd_read_gbps",
            "raw_ssd_gbps",
            "ssd_ratio",
            "batch_get_ratio",
        ] {
            assert!(
                json[name].as_f64().is_some_and(|figure| figure > 0.0),
                "{name}"
            );
        }
    }
}
