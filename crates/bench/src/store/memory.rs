//! What concerns memory alone: reads and puts beside plain copies, batches by several threads, buffers as users have
//! them, and views.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;
use slackwater_base::{BLOCK_BYTES, ByteSize};
use slackwater_node::config::Threads;
use slackwater_node::{Config, GetOptions, PutOptions, Store, Tier, ViewOptions};

use super::redis::Peer;
use super::{
    BATCH, BATCH_GET, BATCH_GET_ALONE, BATCH_PUT, BATCH_PUT_ALONE, Failure, GET, MEMCPY, Options,
    PUT, Row, TARGETS, expect, random, rate,
};
use crate::peer::Skipped;
use crate::turns::Turns;
use crate::usage::median;

/// Reads from memory into buffers of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct BufferRow {
    /// Bytes from the start of a cache line to the start of the buffer: `malloc`, `bytearray` and numpy give 0, 8 and 16.
    pub offset_bytes: usize,
    /// `get_into`, verified, in 10^9 bytes a second.
    pub gbps: f64,
    /// The same over `memcpy` to the same buffers.
    pub over_memcpy: f64,
    /// The same over that of offset 0.
    pub over_aligned: f64,
}

/// How long views of values in memory take, opened, looked at and ended: medians, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ViewTimes {
    /// One alone.
    pub one_ns: f64,
    /// Each of a batch of [`BATCH`].
    pub of_batch_ns: f64,
}

pub(super) fn memory(options: &Options, rows: &mut Vec<Row>) -> Result<Vec<Skipped>, Failure> {
    let (bytes, count) = (
        options.value_bytes,
        options.memory_pass.0 as usize / options.value_bytes,
    );
    let memory = ByteSize(options.memory_pass.0 * 5 / 4);
    // One thread on either side: several would be compared with one plain copy.
    let copy_threads = Threads::Count(1);
    let store = Store::open(Config {
        memory,
        copy_threads,
        ..Config::default()
    })?;
    let source = random(1, bytes * count);
    let mut targets = random(2, bytes * TARGETS);
    let mut peer = Peer::start(options.peers, &options.directory);
    let (put, get) = (PutOptions::default(), GetOptions::default());
    for pass in 0..options.passes {
        let begun = Instant::now();
        for (number, value) in source.chunks(bytes).enumerate() {
            store.put(format!("{pass}-{number}").as_bytes(), value, &put)?;
        }
        rows.push(Row {
            what: PUT,
            pass,
            gbps: rate(bytes * count, begun),
        });
        let begun = Instant::now();
        for (number, value) in source.chunks(bytes).enumerate() {
            let target = number % TARGETS * bytes;
            targets[target..target + bytes].copy_from_slice(std::hint::black_box(value));
            std::hint::black_box(&mut targets);
        }
        rows.push(Row {
            what: MEMCPY,
            pass,
            gbps: rate(bytes * count, begun),
        });
        let begun = Instant::now();
        for number in 0..count {
            let target = number % TARGETS * bytes;
            let key = format!("{pass}-{number}");
            let got = store.get_into(key.as_bytes(), &mut targets[target..target + bytes], &get)?;
            expect(got.map(|got| got.tier), Tier::Memory, &key)?;
        }
        rows.push(Row {
            what: GET,
            pass,
            gbps: rate(bytes * count, begun),
        });
        peer.pass(pass, bytes, &source, &mut targets, rows);
    }
    store.close()?;
    Ok(peer.skipped)
}

/// Batches by the caller alone and by several threads, in turns.
pub(super) fn batches(options: &Options, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let (bytes, count) = (
        options.value_bytes,
        options.memory_pass.0 as usize / options.value_bytes,
    );
    let memory = ByteSize(options.memory_pass.0 * 5 / 4);
    let forms = [
        (Threads::Count(1), BATCH_PUT_ALONE, BATCH_GET_ALONE),
        (Threads::Auto, BATCH_PUT, BATCH_GET),
    ];
    let mut stores = Vec::new();
    for (copy_threads, put, get) in forms {
        stores.push((
            Store::open(Config {
                memory,
                copy_threads,
                ..Config::default()
            })?,
            put,
            get,
        ));
    }
    let source = random(5, bytes * count);
    let mut targets = random(6, bytes * TARGETS);
    // The first pass touches the memory of each store and is no part of the result.
    for pass in 0..=options.passes {
        for (store, put, get) in &stores {
            let keys: Vec<String> = (0..count)
                .map(|number| format!("{pass}-{number}"))
                .collect();
            let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            let entries: Vec<(&[u8], &[u8])> =
                keys.iter().copied().zip(source.chunks(bytes)).collect();
            let begun = Instant::now();
            for batch in entries.chunks(BATCH) {
                for stored in store.put_batch(batch, &PutOptions::default()) {
                    stored?;
                }
            }
            let put_gbps = rate(bytes * count, begun);
            let begun = Instant::now();
            for (number, batch) in keys.chunks(BATCH).enumerate() {
                let target = number * BATCH % TARGETS * bytes;
                let mut into: Vec<&mut [u8]> = targets[target..]
                    .chunks_mut(bytes)
                    .take(batch.len())
                    .collect();
                for got in store.get_batch_into(batch, &mut into, &GetOptions::default()) {
                    expect(got?.map(|got| got.tier), Tier::Memory, "a batch")?;
                }
            }
            let get_gbps = rate(bytes * count, begun);
            if let Some(pass) = pass.checked_sub(1) {
                rows.push(Row {
                    what: put,
                    pass,
                    gbps: put_gbps,
                });
                rows.push(Row {
                    what: get,
                    pass,
                    gbps: get_gbps,
                });
            }
        }
    }
    stores
        .into_iter()
        .try_for_each(|(store, ..)| Ok(store.close()?))
}

/// Where buffers begin, in bytes beyond a cache line.
const OFFSETS: [usize; 4] = [0, 8, 16, 63];
/// A cache line, in bytes.
const LINE: usize = 64;
/// What one way copies in a turn, in bytes: about a millisecond.
const TURN_BYTES: usize = 8 << 20;
/// Turns for each pass of the other measurements.
const TURNS_A_PASS: usize = 8;
/// Views that are timed together, and how often.
const VIEWS: (usize, usize) = (256, 200);

/// Reads into buffers as users have them, each beside a plain copy to the same, and views of the same values.
pub(super) fn in_place(options: &Options) -> Result<(Vec<BufferRow>, ViewTimes), Failure> {
    let (bytes, count) = (
        options.value_bytes,
        options.memory_pass.0 as usize / options.value_bytes,
    );
    let store = Store::open(Config {
        memory: ByteSize(options.memory_pass.0 * 5 / 4),
        copy_threads: Threads::Count(1),
        ..Config::default()
    })?;
    // Values lie on blocks in a store, so the plain copies begin there too.
    let source = random(1, bytes * count + BLOCK_BYTES as usize);
    let source = &source[source.as_ptr().align_offset(BLOCK_BYTES as usize)..];
    let keys: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    for (key, value) in keys.iter().zip(source.chunks(bytes)) {
        store.put(key.as_bytes(), value, &PutOptions::default())?;
    }
    let stride = bytes.next_multiple_of(LINE) + LINE;
    let mut targets = random(2, stride * TARGETS.min(count) + LINE);
    let first = targets.as_ptr().align_offset(LINE);
    let few = (TURN_BYTES / bytes).clamp(1, TARGETS.min(count));
    let (mut next, get) = (0, GetOptions::default());
    let turns = Turns::take(options.passes * TURNS_A_PASS, 2 * OFFSETS.len(), |way| {
        for _ in 0..few {
            let at = next % TARGETS.min(count) * stride + first + OFFSETS[way / 2];
            let (number, target) = (next % count, &mut targets[at..at + bytes]);
            if way % 2 == 0 {
                target.copy_from_slice(&source[number * bytes..][..bytes]);
                black_box(target);
            } else {
                let got = store.get_into(keys[number].as_bytes(), target, &get)?;
                expect(got.map(|got| got.tier), Tier::Memory, &keys[number])?;
            }
            next += 1;
        }
        Ok::<_, Failure>(few * bytes)
    })?;
    let row = |(at, offset): (usize, &usize)| BufferRow {
        offset_bytes: *offset,
        gbps: turns.gbps(2 * at + 1),
        over_memcpy: turns.ratio(2 * at + 1, 2 * at),
        over_aligned: turns.ratio(2 * at + 1, 1),
    };
    let rows = OFFSETS.iter().enumerate().map(row).collect();
    let times = views(&store, &keys)?;
    store.close()?;
    Ok((rows, times))
}

/// Views one by one and in batches, in turns.
fn views(store: &Store, keys: &[String]) -> Result<ViewTimes, Failure> {
    let (together, rounds) = VIEWS;
    let options = ViewOptions::default();
    let numbers: Vec<usize> = (0..together).map(|number| number % keys.len()).collect();
    let batches: Vec<Vec<&[u8]>> = numbers
        .chunks(BATCH)
        .map(|batch| batch.iter().map(|at| keys[*at].as_bytes()).collect())
        .collect();
    let (mut alone, mut batched) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        for number in &numbers {
            let view = store.view(keys[*number].as_bytes(), &options)?;
            black_box(view.as_ref().map(|view| view[0]));
        }
        alone.push(begun.elapsed().as_nanos() as f64 / together as f64);
        let begun = Instant::now();
        for batch in &batches {
            for view in store.view_batch(batch, &options) {
                black_box(view?.as_ref().map(|view| view[0]));
            }
        }
        batched.push(begun.elapsed().as_nanos() as f64 / together as f64);
    }
    let shown = store.stats().views.opened;
    if shown != 2 * (together * rounds) as u64 {
        return Err(Failure::Unexpected(format!("{shown} values were shown")));
    }
    Ok(ViewTimes {
        one_ns: median(&mut alone),
        of_batch_ns: median(&mut batched),
    })
}
