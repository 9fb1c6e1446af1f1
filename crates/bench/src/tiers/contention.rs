//! A read from SSD on an idle device, and beside offloads at full speed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_base::Rng;
use slackwater_meta::evict::PolicyKind;
use slackwater_node::{Config, GetOptions, PutOptions, Store, Tier};
use slackwater_replay::Content;

use super::raw::RawFile;
use super::{Error, Options, player};
use crate::usage::quantile;

/// What a reader and a stream of offloads do to each other.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Contention {
    /// Median time of a block's read from SSD on an idle device.
    pub idle_p50_us: f64,
    /// Its 99th percentile.
    pub idle_p99_us: f64,
    /// Median time of the same read beside the stream.
    pub beside_p50_us: f64,
    /// Its 99th percentile.
    pub beside_p99_us: f64,
    /// Bytes of the stream written in a second beside the reader.
    pub offload_beside_bytes_per_s: f64,
    /// Bytes of the stream written in a second when nobody reads.
    pub offload_alone_bytes_per_s: f64,
    /// Bytes that the raw device writes in a second to space that was not written before, in the same turns.
    pub raw_write_bytes_per_s: f64,
    /// The same to space that was.
    pub raw_rewrite_bytes_per_s: f64,
    /// The same with a sync every 100 milliseconds and one at the end, which the stream's bytes have too.
    pub raw_synced_bytes_per_s: f64,
}

impl Contention {
    /// Why there are no times of reads, where there are none.
    pub(super) fn untimed(&self) -> Option<&'static str> {
        let timed = self.idle_p50_us > 0.0 && self.beside_p50_us > 0.0;
        (!timed).then_some(
            "no block was left on the SSD to be read: its space is too small for so much memory",
        )
    }
}

/// Turns of the parts, of which the figures are the sums.
const TURNS: usize = 3;

pub(super) fn measure(options: &Options, part: Duration) -> Result<Contention, Error> {
    let directory = options.directory.join("contention");
    let settings = Config {
        offload: slackwater_meta::OffloadMode::Eager,
        promotion_enabled: false,
        // Other policies judge what is worth a full SSD, and soon write nothing of a stream that nobody reads.
        policy: PolicyKind::Lru,
        ..player::config(options, &directory)
    };
    let (memory, ssd) = (options.memory_bytes, options.ssd_bytes);
    let store = player::open(settings)?;
    // The stream may push out what is read: it ends before it has written a quarter of the SSD, and each part begins with all of
    // these blocks on SSD alone, the last to go.
    let readable = (ssd / 4).min(1 << 30) / options.block_bytes as u64;
    let streamed_most = ssd / 4;
    let mut stream = Stream::new(&store, options);
    let raw = RawFile::new(options)?;
    let (mut idle, mut beside) = (Vec::new(), Vec::new());
    let (mut written_beside, mut written_alone) = (0.0, 0.0);
    let (mut raw_rate, mut raw_again, mut raw_synced) = (0.0, 0.0, 0.0);
    let (rest, written) = (
        || player::rest(&store),
        || store.stats().ssd.map_or(0, |ssd| ssd.written_bytes),
    );
    for _ in 0..TURNS {
        stream.push_to_ssd(readable, memory)?;
        rest()?;
        let begun = Instant::now();
        read(&store, options, readable, &mut idle, || {
            begun.elapsed() < part
        })?;
        raw_rate += raw.write_rate()? / TURNS as f64;
        raw_again += raw.rewrite_rate()? / TURNS as f64;
        raw_synced += raw.synced_rate()? / TURNS as f64;
        let (before, begun) = (written(), Instant::now());
        let most = stream.next + streamed_most / options.block_bytes as u64;
        while begun.elapsed() < part && stream.next < most {
            stream.put();
        }
        rest()?;
        written_alone += (written() - before) as f64 / begun.elapsed().as_secs_f64() / TURNS as f64;
        stream.push_to_ssd(readable, memory)?;
        rest()?;
        let (before, begun) = (written(), Instant::now());
        let most = before + streamed_most;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < part {
                    stream.put();
                }
            });
            let result = read(&store, options, readable, &mut beside, || {
                begun.elapsed() < part && written() < most
            });
            stop.store(true, Ordering::Relaxed);
            result
        })?;
        written_beside +=
            (written() - before) as f64 / begun.elapsed().as_secs_f64() / TURNS as f64;
    }
    store.close()?;
    std::fs::remove_dir_all(&directory).map_err(|why| Error::Io {
        what: "removing the store's directory",
        why,
    })?;
    Ok(Contention {
        idle_p50_us: quantile(&mut idle, 0.5),
        idle_p99_us: quantile(&mut idle, 0.99),
        beside_p50_us: quantile(&mut beside, 0.5),
        beside_p99_us: quantile(&mut beside, 0.99),
        offload_beside_bytes_per_s: written_beside,
        offload_alone_bytes_per_s: written_alone,
        raw_write_bytes_per_s: raw_rate,
        raw_rewrite_bytes_per_s: raw_again,
        raw_synced_bytes_per_s: raw_synced,
    })
}

/// Reads blocks one after the other while that goes on, and keeps the times of those that came from SSD.
fn read(
    store: &Store,
    options: &Options,
    readable: u64,
    times: &mut Vec<f64>,
    goes_on: impl Fn() -> bool,
) -> Result<(), Error> {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let mut rng = Rng::new(SEED.fetch_add(1, Ordering::Relaxed));
    let mut buffer = vec![0; options.block_bytes];
    while goes_on() {
        let block = rng.below(readable);
        let (key, read) = (key(block), Instant::now());
        let got = store.get_into(&key, &mut buffer, &GetOptions::default())?;
        let took = read.elapsed();
        if got.is_some_and(|got| got.tier == Tier::Disk) {
            times.push(took.as_secs_f64() * 1e6);
            Content::of(&key)
                .check(&buffer)
                .map_err(|wrong| Error::WrongBytes {
                    block,
                    offset: wrong.offset,
                })?;
        }
    }
    Ok(())
}

/// New blocks without end, after those that are read.
struct Stream<'s> {
    store: &'s Store,
    buffer: Vec<u8>,
    next: u64,
}

impl<'s> Stream<'s> {
    fn new(store: &'s Store, options: &Options) -> Self {
        Self {
            store,
            buffer: vec![0; options.block_bytes],
            next: 0,
        }
    }

    /// Has the first blocks on SSD and not in memory, and younger than all that the stream has written.
    fn push_to_ssd(&mut self, readable: u64, memory: u64) -> Result<(), Error> {
        for block in 0..readable {
            let key = key(block);
            let options = GetOptions::default();
            if self
                .store
                .get_into(&key, &mut self.buffer, &options)?
                .is_none()
            {
                Content::of(&key).fill(&mut self.buffer);
                let _ = self.store.put(&key, &self.buffer, &PutOptions::default());
            }
        }
        self.next = self.next.max(readable);
        // What memory holds twice over leaves nothing of them there.
        for _ in 0..2 * memory / self.buffer.len() as u64 {
            self.put();
        }
        Ok(())
    }

    /// Every block has the bytes of the one before, so that the stream costs little but its puts.
    fn put(&mut self) {
        let key = key(self.next);
        self.next += 1;
        // One that finds no room waits, and is refused when the wait is over: the stream goes on.
        let _ = self.store.put(&key, &self.buffer, &PutOptions::default());
    }
}

fn key(block: u64) -> Vec<u8> {
    format!("stream/{block}").into_bytes()
}
