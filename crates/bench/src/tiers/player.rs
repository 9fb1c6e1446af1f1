//! The requests on Slackwater.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use slackwater_base::ByteSize;
use slackwater_node::{Config, GetOptions, PutOptions, Store, Tier, ViewOptions};
use slackwater_replay::{Content, Request};
use slackwater_wire::Key;

use super::{Error, Options, Row};
use crate::usage::Mark;

/// Blocks of one call.
const CALL_BLOCKS: usize = 64;
/// Time that the store may take to come to rest after the run.
const REST: Duration = Duration::from_secs(60);

/// How the requests get values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Copied into the caller's buffer, and checked in passing.
    Copies,
    /// Looked at where they lie, as a cache hands out references to what it holds.
    Views,
}

impl Reading {
    pub(super) fn system(self) -> &'static str {
        match self {
            Self::Copies => "slackwater",
            Self::Views => "slackwater, views",
        }
    }
}

/// Blocks and times of one thread, or of all.
struct PlayCounts {
    blocks: u64,
    hits: u64,
    /// Time of a call for each block that it brought, in nanoseconds.
    reads: Histogram<u64>,
    /// The same for each that came from SSD.
    ssd_reads: Histogram<u64>,
}

impl PlayCounts {
    fn new() -> Self {
        let reads = Histogram::new_with_bounds(1, 90_000_000_000, 3);
        let reads = reads.expect("the bounds are in order");
        Self {
            blocks: 0,
            hits: 0,
            ssd_reads: reads.clone(),
            reads,
        }
    }

    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.hits += other.hits;
        let added = self.reads.add(&other.reads);
        let added = added.and_then(|()| self.ssd_reads.add(&other.ssd_reads));
        added.expect("the same bounds");
    }

    /// Compares every byte of the values that a call brought in `took`; how many there are.
    fn compare<'v>(
        &mut self,
        values: impl Iterator<Item = (&'v [u8], Tier)>,
        names: &[&[u8]],
        blocks: &[u64],
        took: Duration,
    ) -> Result<usize, Error> {
        let mut compared = 0;
        for (((value, tier), name), block) in values.zip(names).zip(blocks) {
            self.reads.saturating_record(took.as_nanos() as u64);
            if tier == Tier::Disk {
                self.ssd_reads.saturating_record(took.as_nanos() as u64);
            }
            Content::of(name)
                .check(value)
                .map_err(|wrong| Error::WrongBytes {
                    block: *block,
                    offset: wrong.offset,
                })?;
            compared += 1;
        }
        Ok(compared)
    }
}

/// The configuration of a store of these sizes.
pub(super) fn config(options: &Options, directory: &std::path::Path) -> Config {
    Config {
        memory: ByteSize(options.memory_bytes),
        ssd: ByteSize(options.ssd_bytes),
        dir: Some(directory.to_owned()),
        io: options.io,
        promotion_enabled: true,
        // As the peers: what is evicted is written.
        offload: slackwater_meta::OffloadMode::OnEvict,
        ..Config::default()
    }
}

pub(super) fn open(config: Config) -> Result<Store, Error> {
    Store::open(config).map_err(|error| Error::Open(error.to_string()))
}

/// Plays all requests from `in_flight` threads, on a store of its own; the row, and how that store did its I/O.
pub(super) fn play(
    options: &Options,
    requests: &[Request],
    in_flight: usize,
    reading: Reading,
) -> Result<(Row, String), Error> {
    let directory = options.directory.join("slackwater");
    let call_bytes = (CALL_BLOCKS * options.block_bytes) as u64;
    let store = open(Config {
        // All that the callers may look at together: less would have them wait for one another.
        views_buffers: ByteSize((in_flight as u64 * call_bytes).max(ByteSize::mib(1).0)),
        ..config(options, &directory)
    })?;
    let (before, mark) = (io_bytes(), Mark::now());
    let (next, total) = (AtomicUsize::new(0), Mutex::new(PlayCounts::new()));
    std::thread::scope(|scope| {
        let worker = || -> Result<(), Error> {
            let mut player = Player::new(&store, options.block_bytes, reading);
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                player.play(request)?;
            }
            let mut total = total.lock().expect("no worker panicked");
            total.add(&player.tally);
            Ok(())
        };
        let threads: Vec<_> = (0..in_flight).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    let (spent, after) = (mark.spent(), io_bytes());
    let io = store.stats().io.chosen;
    store.close()?;
    std::fs::remove_dir_all(&directory).map_err(|why| Error::Io {
        what: "removing the store's directory",
        why,
    })?;
    let tally = total.into_inner().expect("no worker panicked");
    let micros = |of: &Histogram<u64>, at| of.value_at_quantile(at) as f64 / 1e3;
    let row = Row {
        system: reading.system().to_owned(),
        in_flight,
        wall_s: spent.wall.as_secs_f64(),
        cpu_s: spent.cpu.as_secs_f64(),
        prefix_hit_rate: tally.hits as f64 / (tally.blocks as f64).max(1.0),
        read_p50_us: micros(&tally.reads, 0.5),
        read_p99_us: micros(&tally.reads, 0.99),
        ssd_read_p50_us: micros(&tally.ssd_reads, 0.5),
        ssd_read_p99_us: micros(&tally.ssd_reads, 0.99),
        device_read_bytes: after.0 - before.0,
        device_write_bytes: after.1 - before.1,
        floor_s: 0.0,
        wall_over_floor: 0.0,
    };
    Ok((row, io))
}

struct Player<'s> {
    store: &'s Store,
    reading: Reading,
    block_bytes: usize,
    buffer: Vec<u8>,
    tally: PlayCounts,
}

impl<'s> Player<'s> {
    fn new(store: &'s Store, block_bytes: usize, reading: Reading) -> Self {
        Self {
            store,
            reading,
            block_bytes,
            buffer: vec![0; CALL_BLOCKS * block_bytes],
            tally: PlayCounts::new(),
        }
    }

    fn play(&mut self, request: &Request) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = request.blocks.iter().map(|block| key(*block)).collect();
        let prefix = self.read_prefix(request, &keys)?;
        self.tally.blocks += keys.len() as u64;
        self.tally.hits += prefix as u64;
        for position in (prefix..keys.len()).step_by(CALL_BLOCKS) {
            let call = &keys[position..keys.len().min(position + CALL_BLOCKS)];
            for (key, block) in call.iter().zip(self.buffer.chunks_mut(self.block_bytes)) {
                Content::of(key).fill(block);
            }
            let values = self.buffer.chunks(self.block_bytes);
            let entries: Vec<_> = call.iter().map(Vec::as_slice).zip(values).collect();
            let options = PutOptions {
                chain: request.chain_of_put(parent(&keys, position), position),
                ..PutOptions::default()
            };
            // A block that finds no room is a miss later, as in any cache.
            let _ = self.store.put_batch(&entries, &options);
        }
        Ok(())
    }

    fn read_prefix(&mut self, request: &Request, keys: &[Vec<u8>]) -> Result<usize, Error> {
        let mut prefix = 0;
        while prefix < keys.len() {
            let call = &keys[prefix..keys.len().min(prefix + CALL_BLOCKS)];
            let names: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
            let options = GetOptions {
                chain: request.chain(parent(keys, prefix), prefix),
                prefix_only: true,
                ..GetOptions::default()
            };
            let blocks = &request.blocks[prefix..];
            let begun = Instant::now();
            let found = match self.reading {
                Reading::Copies => {
                    let buffers = self.buffer.chunks_mut(self.block_bytes);
                    let mut buffers: Vec<&mut [u8]> = buffers.take(call.len()).collect();
                    let got = self.store.get_batch_into(&names, &mut buffers, &options);
                    let took = begun.elapsed();
                    let tiers = got.iter().map_while(|got| match got {
                        Ok(Some(got)) => Some(got.tier),
                        Ok(None) | Err(_) => None,
                    });
                    let got = self.buffer.chunks(self.block_bytes).zip(tiers);
                    self.tally.compare(got, &names, blocks, took)?
                }
                Reading::Views => {
                    let options = ViewOptions {
                        read: options,
                        ..ViewOptions::default()
                    };
                    let views = self.store.view_batch(&names, &options);
                    let took = begun.elapsed();
                    let got = views.iter().map_while(|view| match view {
                        Ok(Some(view)) => Some((&**view, view.tier())),
                        Ok(None) | Err(_) => None,
                    });
                    self.tally.compare(got, &names, blocks, took)?
                }
            };
            prefix += found;
            if found < call.len() {
                break;
            }
        }
        Ok(prefix)
    }
}

fn key(block: u64) -> Vec<u8> {
    format!("tiers/{block}").into_bytes()
}

/// The block before this one, in its chain.
fn parent(keys: &[Vec<u8>], position: usize) -> Option<Key> {
    let before = position.checked_sub(1).map(|before| &keys[before]);
    before.and_then(|key| Key::new(key).ok())
}

/// Waits until nothing is on its way from one tier to the other.
pub(super) fn rest(store: &Store) -> Result<(), Error> {
    Ok(store.flush(REST)?)
}

/// Bytes that this process read from devices and wrote to them.
pub(super) fn io_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let fields: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let field = |name| fields.get(name).copied().unwrap_or_default();
    (field("read_bytes"), field("write_bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_with_the_time_of_its_call_and_where_it_came_from() {
        let (names, mut counts) = ([1, 2, 3].map(key), PlayCounts::new());
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut values = [[0; 64]; 3];
        let all = names.iter().zip(&mut values);
        all.for_each(|(name, value)| Content::of(name).fill(value));
        let tiers = [Tier::Memory, Tier::Disk, Tier::Disk];
        let came = |values: &[[u8; 64]; 3], counts: &mut PlayCounts, micros| {
            let values = values.iter().map(<[u8; 64]>::as_slice).zip(tiers);
            counts.compare(values, &names, &[1, 2, 3], Duration::from_micros(micros))
        };
        assert_eq!(came(&values, &mut counts, 100).unwrap(), 3);
        let mut total = PlayCounts::new();
        total.add(&counts);
        total.add(&counts);
        let at = |of: &Histogram<u64>| (of.len(), of.value_at_quantile(0.5) / 1000);
        assert_eq!(at(&total.reads), (6, 100));
        assert_eq!(at(&total.ssd_reads), (4, 100));
        values[1][9] ^= 1;
        let wrong = came(&values, &mut counts, 1).unwrap_err();
        assert_eq!(wrong.to_string(), "block 2 has wrong bytes at offset 9");
    }
}
