//! The client's part: fills the store and runs one kind of call on so many threads.

use std::io::{BufRead, Write};
use std::sync::Barrier;
use std::time::Duration;

use slackwater_base::{Instant, Rng};
use slackwater_remote::{Client, ConnectOptions, GetOptions, PutOptions, RemoveOptions};
use slackwater_wait::now;
use slackwater_wire::{Pin, PutMode};

use super::{Op, Path, ServedError, values_of};
use crate::usage::quantile;

/// Memory that the buffers of all threads lie in: more than a cache holds.
const BUFFER_BYTES: usize = 64 << 20;
/// How long a put may wait for room.
const PATIENCE: Duration = Duration::from_secs(30);
/// Values that a thread puts in turn.
const PUTS: usize = 4;

/// A kind of call, and how it is made.
#[derive(Clone, Copy)]
struct Run {
    op: Op,
    block: usize,
    concurrency: usize,
    batch: usize,
    window: Duration,
}

/// What one thread did.
#[derive(Default)]
struct Done {
    values: usize,
    micros: Vec<f64>,
    /// From its first call to the end of its last one.
    time: Option<(Instant, Instant)>,
}

pub(super) fn run(address: &str, path: Path) -> Result<(), ServedError> {
    let wrong = |what: &str| ServedError::Call(format!("`{what}` is no command"));
    let options = ConnectOptions {
        address: address.parse().map_err(|_| wrong(address))?,
        force_tcp: path == Path::Tcp,
        ..ConnectOptions::default()
    };
    let client = Client::connect(&options)?;
    let asking = Client::connect(&ConnectOptions {
        locations: 0,
        ..options
    })?;
    say("ready")?;
    let mut filled = None;
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    while let Some(line) = lines.next() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["fill", block] => {
                let block = block.parse().map_err(|_| wrong(&line))?;
                fill(&client, filled.replace(block), block)?;
                say("filled")?;
            }
            ["run", op, block, concurrency, batch, millis] => {
                let number = |word: &str| word.parse::<usize>().map_err(|_| wrong(&line));
                let run = Run {
                    op: Op::parse(op).ok_or_else(|| wrong(op))?,
                    block: number(block)?,
                    concurrency: number(concurrency)?,
                    batch: number(batch)?,
                    window: Duration::from_millis(number(millis)? as u64),
                };
                say("begun")?;
                lines.next();
                let of = match run.op {
                    Op::GetIntoAsked => &asking,
                    _ => &client,
                };
                let (values, seconds, mut micros) = run.on(of)?;
                let p50 = quantile(&mut micros, 0.5);
                let p99 = quantile(&mut micros, 0.99);
                let mean = micros.iter().sum::<f64>() / micros.len().max(1) as f64;
                say(&format!("ran {values} {seconds} {p50} {p99} {mean}"))?;
            }
            _ => return Err(wrong(&line)),
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<(), ServedError> {
    let mut out = std::io::stdout();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(failed)
}

fn failed(error: impl ToString) -> ServedError {
    ServedError::Call(error.to_string())
}

/// Puts the values that are read, instead of those of another length.
fn fill(client: &Client, before: Option<usize>, block: usize) -> Result<(), ServedError> {
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    if let Some(before) = before {
        for number in 0..values_of(before) {
            let removed = client.remove(&[&key(before, number)], &force);
            removed.into_iter().try_for_each(|it| it.map_err(failed))?;
        }
    }
    // The calls that put may fill the store many times over, and a value that went for them cannot be read.
    let stays = PutOptions {
        pin: Pin::Hard,
        ..PutOptions::default()
    };
    let mut value = vec![7; block];
    for number in 0..values_of(block) {
        value[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let put = client.put(&key(block, number), &value, &stays);
        put.map_err(failed)?;
    }
    Ok(())
}

fn key(block: usize, number: usize) -> Vec<u8> {
    format!("value-{block}-{number}").into_bytes()
}

impl Run {
    /// The values that were moved, the seconds that took, and the microseconds of each call.
    fn on(self, client: &Client) -> Result<(usize, f64, Vec<f64>), ServedError> {
        let barrier = Barrier::new(self.concurrency);
        let done: Result<Vec<Done>, ServedError> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.concurrency)
                .map(|thread| {
                    let (client, barrier) = (client.clone(), &barrier);
                    scope.spawn(move || self.thread(&client, thread, barrier))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|end| end.map_err(|_| failed("a thread panicked")).flatten())
                .collect()
        });
        let done = done?;
        // The making of threads and their memory is no part of it.
        let times = || done.iter().filter_map(|done| done.time);
        let first = times().map(|(begun, _)| begun).min();
        let last = times().map(|(_, ended)| ended).max();
        let took = first.zip(last).map(|(first, last)| last.since(first));
        let seconds = took.unwrap_or_default().as_secs_f64();
        let values = done.iter().map(|done| done.values).sum();
        let micros = done.into_iter().flat_map(|done| done.micros).collect();
        Ok((values, seconds, micros))
    }

    fn thread(
        self,
        client: &Client,
        thread: usize,
        barrier: &Barrier,
    ) -> Result<Done, ServedError> {
        let at_once = if self.op.is_batch() { self.batch } else { 1 };
        let slots = (BUFFER_BYTES / self.concurrency / self.block).max(at_once);
        let mut memory = vec![1; slots * self.block];
        let mut rng = Rng::new(thread as u64 + 1);
        let mut done = Done::default();
        let mut slot = 0;
        barrier.wait();
        let first = now();
        let until = first + self.window;
        while now() < until {
            if slot + at_once > slots {
                slot = 0;
            }
            let room = &mut memory[slot * self.block..][..at_once * self.block];
            let begun = now();
            self.call(client, (thread, done.micros.len()), &mut rng, room)?;
            let took = now().since(begun);
            done.micros.push(took.as_nanos() as f64 / 1e3);
            done.values += at_once;
            slot += at_once;
        }
        done.time = Some((first, now()));
        Ok(done)
    }

    fn call(
        self,
        client: &Client,
        (thread, turn): (usize, usize),
        rng: &mut Rng,
        room: &mut [u8],
    ) -> Result<(), ServedError> {
        let count = values_of(self.block) as u64;
        match self.op {
            Op::PutFrom | Op::PutBatch => {
                let named: Vec<Vec<u8>> = (0..room.len() / self.block)
                    .map(|at| format!("put-{thread}-{}-{at}", turn % PUTS).into_bytes())
                    .collect();
                let values = room.chunks(self.block);
                let entries: Vec<(&[u8], &[u8])> =
                    named.iter().map(Vec::as_slice).zip(values).collect();
                let upsert = PutOptions {
                    mode: PutMode::Upsert,
                    // Large batches of many callers want more room at once than there is.
                    wait: Some(PATIENCE),
                    ..PutOptions::default()
                };
                let stored = client.put_batch(&entries, &upsert);
                stored
                    .into_iter()
                    .try_for_each(|it| it.map(drop))
                    .map_err(failed)
            }
            Op::Get => {
                let number = rng.below(count);
                let got = client.get(&key(self.block, number as usize), &GetOptions::default());
                check(number, got.map_err(failed)?.as_deref())
            }
            Op::GetInto | Op::GetIntoAsked => {
                let number = rng.below(count);
                let key = key(self.block, number as usize);
                let got = client.get_into(&key, room, &GetOptions::default());
                check(number, got.map_err(failed)?.map(|bytes| &room[..bytes]))
            }
            Op::GetBatchInto => {
                let numbers: Vec<u64> = room.chunks(self.block).map(|_| rng.below(count)).collect();
                let named: Vec<Vec<u8>> = numbers
                    .iter()
                    .map(|number| key(self.block, *number as usize))
                    .collect();
                let keys: Vec<&[u8]> = named.iter().map(Vec::as_slice).collect();
                let mut buffers: Vec<&mut [u8]> = room.chunks_mut(self.block).collect();
                let got = client.get_batch_into(&keys, &mut buffers, &GetOptions::default());
                for ((got, buffer), number) in got.into_iter().zip(buffers).zip(numbers) {
                    check(number, got.map_err(failed)?.map(|bytes| &buffer[..bytes]))?;
                }
                Ok(())
            }
        }
    }
}

/// Whether these are the bytes of this value: a figure of wrong ones is worth nothing.
fn check(number: u64, got: Option<&[u8]>) -> Result<(), ServedError> {
    let head = got.and_then(|got| got.first_chunk::<8>());
    match head.map(|head| u64::from_le_bytes(*head)) {
        Some(found) if found == number => Ok(()),
        found => Err(failed(format!("value {number} was read as {found:?}"))),
    }
}
