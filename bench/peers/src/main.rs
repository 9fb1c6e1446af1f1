//! Plays a trace on foyer, a hybrid cache of memory and SSD, as `slackwater bench tiers` plays it on Slackwater: the same
//! requests, the same bytes, every byte compared. Prints one JSON object.
//!
//! ```text
//! slackwater-peers foyer DIR MEMORY SSD BLOCK IN_FLIGHT trace FILE
//! slackwater-peers foyer DIR MEMORY SSD BLOCK IN_FLIGHT generated REQUESTS SESSIONS SEED
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, PsyncIoEngineConfig, Source,
};
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use slackwater_replay::{Content, Generator, Request, TraceReader, Traffic};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Blocks of one call, as on Slackwater.
const CALL_BLOCKS: usize = 64;
/// Bytes that may wait to be written before foyer drops what is evicted: more than all tasks insert between two waits.
const QUEUE_BYTES: usize = 256 << 20;

fn main() -> Fallible<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [peer, directory, memory, ssd, block, in_flight, rest @ ..] = words.as_slice() else {
        return Err("slackwater-peers foyer DIR MEMORY SSD BLOCK IN_FLIGHT (trace FILE | generated REQUESTS SESSIONS SEED)".into());
    };
    if *peer != "foyer" {
        return Err(format!("`{peer}` is not a peer of this program: foyer is").into());
    }
    let requests = requests(rest)?;
    let in_flight: usize = in_flight.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let sizes = Sizes {
        memory: memory.parse()?,
        ssd: ssd.parse()?,
        block: block.parse()?,
    };
    let row = runtime.block_on(play(directory, sizes, in_flight, requests))?;
    println!("{row}");
    Ok(())
}

fn requests(words: &[&str]) -> Fallible<Vec<Request>> {
    match words {
        ["trace", path] => {
            let reader = TraceReader::new(*path, BufReader::new(File::open(path)?));
            Ok(reader.collect::<Result<_, _>>()?)
        }
        ["generated", requests, sessions, seed] => Ok(Generator::new(Traffic {
            requests: requests.parse()?,
            sessions: sessions.parse()?,
            seed: seed.parse()?,
            ..Traffic::default()
        })
        .collect()),
        other => Err(format!("{other:?} is neither `trace FILE` nor `generated …`").into()),
    }
}

#[derive(Clone, Copy)]
struct Sizes {
    memory: usize,
    ssd: usize,
    block: usize,
}

type Cache = HybridCache<u64, Vec<u8>>;

/// What happened, over all tasks.
#[derive(Default)]
struct Tally {
    blocks: AtomicU64,
    hits: AtomicU64,
    /// The time of the call that brought a block, and where that was.
    reads: Mutex<Vec<(Duration, Source)>>,
}

async fn play(
    directory: &str,
    sizes: Sizes,
    in_flight: usize,
    requests: Vec<Request>,
) -> Fallible<serde_json::Value> {
    let device = FsDeviceBuilder::new(directory)
        .with_capacity(sizes.ssd)
        .with_direct(true)
        .build()?;
    let cache: Cache = HybridCacheBuilder::new()
        .with_policy(HybridCachePolicy::WriteOnEviction)
        .memory(sizes.memory)
        .with_weighter(|_: &u64, value: &Vec<u8>| value.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(
            BlockEngineConfig::new(device)
                .with_block_size(64 << 20)
                .with_submit_queue_size_threshold(QUEUE_BYTES),
        )
        .build()
        .await?;
    let (before, begun, cpu) = (io_bytes(), Instant::now(), cpu_seconds());
    let (tally, next) = (Arc::new(Tally::default()), Arc::new(AtomicUsize::new(0)));
    let requests = Arc::new(requests);
    let tasks = (0..in_flight).map(|_| {
        let (cache, tally) = (cache.clone(), Arc::clone(&tally));
        let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
        tokio::spawn(async move {
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                one(&cache, &request.blocks, sizes.block, &tally).await?;
            }
            Fallible::Ok(())
        })
    });
    for ended in join_all(tasks).await {
        ended??;
    }
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let after = io_bytes();
    cache.close().await?;
    let mut all = Histogram::<u64>::new(3)?;
    let mut disk = Histogram::<u64>::new(3)?;
    for (took, source) in tally.reads.lock().expect("no task panicked").iter() {
        all.record(took.as_nanos() as u64)?;
        if matches!(source, Source::Disk) {
            disk.record(took.as_nanos() as u64)?;
        }
    }
    let micros = |of: &Histogram<u64>, at| of.value_at_quantile(at) as f64 / 1e3;
    let blocks = tally.blocks.load(Ordering::Relaxed).max(1) as f64;
    Ok(serde_json::json!({
        "system": "foyer",
        "in_flight": in_flight,
        "wall_s": wall,
        "cpu_s": cpu,
        "prefix_hit_rate": tally.hits.load(Ordering::Relaxed) as f64 / blocks,
        "read_p50_us": micros(&all, 0.5),
        "read_p99_us": micros(&all, 0.99),
        "ssd_read_p50_us": micros(&disk, 0.5),
        "ssd_read_p99_us": micros(&disk, 0.99),
        "device_read_bytes": after.0 - before.0,
        "device_write_bytes": after.1 - before.1,
    }))
}

/// Reads the longest present prefix of a request, compares every byte, and inserts the rest.
async fn one(cache: &Cache, blocks: &[u64], block_bytes: usize, tally: &Tally) -> Fallible<()> {
    let mut prefix = 0;
    let mut reads = Vec::new();
    'prefix: while prefix < blocks.len() {
        let call = &blocks[prefix..blocks.len().min(prefix + CALL_BLOCKS)];
        let begun = Instant::now();
        let all = join_all(call.iter().map(|block| cache.get(block))).await;
        let took = begun.elapsed();
        for (block, found) in call.iter().zip(all) {
            let Some(entry) = found? else {
                break 'prefix;
            };
            reads.push((took, entry.source()));
            Content::of(&key(*block))
                .check(entry.value())
                .map_err(|wrong| format!("block {block} has the wrong bytes: {wrong:?}"))?;
            prefix += 1;
        }
    }
    for call in blocks[prefix..].chunks(CALL_BLOCKS) {
        for block in call {
            let mut value = vec![0; block_bytes];
            Content::of(&key(*block)).fill(&mut value);
            cache.insert(*block, value);
        }
        // Without this most of what is evicted is dropped before it is written, and half of the hits are gone.
        cache.storage().wait().await;
    }
    tally.blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
    tally.hits.fetch_add(prefix as u64, Ordering::Relaxed);
    tally.reads.lock().expect("no task panicked").extend(reads);
    Ok(())
}

fn key(block: u64) -> Vec<u8> {
    format!("tiers/{block}").into_bytes()
}

/// Bytes that this process read from devices and wrote to them.
fn io_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let fields: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let field = |name| fields.get(name).copied().unwrap_or_default();
    (field("read_bytes"), field("write_bytes"))
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
