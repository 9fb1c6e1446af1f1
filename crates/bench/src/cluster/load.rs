//! The client's part: fills the pool, asks the master on so many links, and follows it through a restart.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slackwater_base::{Instant, Rng};
use slackwater_mq::Address;
use slackwater_remote::{
    CallOptions, Client, ClientError, ConnectOptions, GetOptions, PutOptions, Stored,
};
use slackwater_wait::now;
use slackwater_wire::{Durability, Key, PutMode};

use super::caller::Caller;
use super::echo::Asker;
use super::master::Op;
use super::{ClusterError, failed, key};
use crate::process::{orders, tell};
use crate::usage::quantile;

/// Values of one call while the pool is filled.
const FILL_BATCH: u64 = 256;
/// Threads that fill it.
const FILL_THREADS: usize = 4;
/// Keys that one call asks for while the master's return is followed.
const WALK_BATCH: usize = 4096;
/// How long everything may take to come back.
const RETURN_TIME: Duration = Duration::from_secs(120);
/// Values that are read and compared after a restart.
const COMPARED: u64 = 1000;
/// Keys that a thread puts in turn.
const PUTS: usize = 4096;

pub(super) fn run(address: &str) -> Result<(), ClusterError> {
    let wrong = |what: &str| failed(format!("`{what}` is no order"));
    let address: Address = address.parse().map_err(|_| wrong(address))?;
    let client = connect(&address)?;
    tell("ready")?;
    let mut orders = orders();
    while let Some(order) = orders.next() {
        let words: Vec<&str> = order.iter().map(String::as_str).collect();
        let number = |word: &str| word.parse::<u64>().map_err(|_| wrong(word));
        match words[..] {
            ["fill", objects, bytes, durable] => {
                let every = number(durable)?;
                fill(&client, number(objects)?, number(bytes)? as usize, every)?;
                tell("filled")?;
            }
            ["run", op, batch, in_flight, clients, objects, millis] => {
                let run = Run {
                    batch: number(batch)? as usize,
                    in_flight: number(in_flight)? as usize,
                    objects: number(objects)?,
                    window: Duration::from_millis(number(millis)?),
                    every: Duration::ZERO,
                };
                let op = Op::parse(op).ok_or_else(|| wrong(op))?;
                let hands = (0..number(clients)?).map(|_| Hand::connect(op, &address));
                run.on(hands.collect::<Result<_, _>>()?, &mut orders)?;
            }
            ["echo", address, clients, millis] => {
                let run = Run {
                    batch: 1,
                    in_flight: 1,
                    objects: 1,
                    window: Duration::from_millis(number(millis)?),
                    every: Duration::ZERO,
                };
                let hand = || Asker::connect(address).map(Hand::Echo);
                let hands = (0..number(clients)?).map(|_| hand());
                run.on(hands.collect::<Result<_, _>>()?, &mut orders)?;
            }
            ["get", clients, objects, millis, every_us] => {
                let run = Run {
                    batch: 1,
                    in_flight: 1,
                    objects: number(objects)?,
                    window: Duration::from_millis(number(millis)?),
                    every: Duration::from_micros(number(every_us)?),
                };
                let hands = (0..number(clients)?).map(|_| connect(&address).map(Hand::Get));
                run.on(hands.collect::<Result<_, _>>()?, &mut orders)?;
            }
            ["walk", objects] => {
                let all: Vec<u64> = (0..number(objects)?).collect();
                let begun = now();
                let missing = absent(&client, all)?.len();
                let seconds = now().since(begun).as_secs_f64();
                tell(&format!("walked {seconds} {missing}"))?;
            }
            ["follow", objects] => follow(&client, number(objects)?)?,
            _ => return Err(wrong(&order.join(" "))),
        }
    }
    Ok(())
}

pub(super) fn connect(address: &Address) -> Result<Client, ClusterError> {
    Ok(Client::connect(&ConnectOptions {
        address: address.clone(),
        connect_timeout: Duration::from_secs(10),
        deadline: Duration::from_secs(60),
        locations: 0,
        ..ConnectOptions::default()
    })?)
}

/// Puts the objects; of every so many the first is on SSD too when its put is acknowledged. 0 for none.
fn fill(client: &Client, objects: u64, bytes: usize, durable: u64) -> Result<(), ClusterError> {
    let next = AtomicU64::new(0);
    let fill = || -> Result<(), ClusterError> {
        loop {
            let first = next.fetch_add(FILL_BATCH, Ordering::Relaxed);
            if first >= objects {
                return Ok(());
            }
            let all = first..objects.min(first + FILL_BATCH);
            let (kept, passing): (Vec<u64>, Vec<u64>) =
                all.partition(|number| durable > 0 && number.is_multiple_of(durable));
            put_all(client, &kept, bytes, Durability::Disk)?;
            put_all(client, &passing, bytes, PutOptions::default().durability)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FILL_THREADS).map(|_| scope.spawn(fill)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|end| end.map_err(|_| failed("a thread panicked")).flatten())
    })
}

pub(super) fn put_all(
    client: &Client,
    numbers: &[u64],
    bytes: usize,
    durability: Durability,
) -> Result<(), ClusterError> {
    let named: Vec<(Vec<u8>, Vec<u8>)> = numbers
        .iter()
        .map(|number| (key(*number), value(*number, bytes)))
        .collect();
    let entries: Vec<(&[u8], &[u8])> = named
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    for stored in client.put_batch(&entries, &options) {
        match stored.map_err(failed)? {
            Stored::New => {}
            other => return Err(failed(format!("an object was there already: {other:?}"))),
        }
    }
    Ok(())
}

/// A value that says which one it is.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![number as u8; bytes.max(8)];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// One link, and what is done with it.
enum Hand {
    LookUp(Box<Caller>),
    Exists(Client),
    Put(Client),
    /// Whole reads, whose bytes come from the nodes and are compared.
    Get(Client),
    Echo(Asker),
}

impl Hand {
    fn connect(op: Op, address: &Address) -> Result<Self, ClusterError> {
        Ok(match op {
            Op::Lookup => Self::LookUp(Box::new(Caller::connect(address)?)),
            Op::Exists => Self::Exists(connect(address)?),
            Op::Put => Self::Put(connect(address)?),
        })
    }

    /// One call with these many items.
    fn call(
        &mut self,
        run: Run,
        thread: usize,
        turn: usize,
        rng: &mut Rng,
    ) -> Result<(), ClusterError> {
        let any = |rng: &mut Rng| key(rng.below(run.objects));
        match self {
            Self::LookUp(caller) => {
                let keys =
                    (0..run.batch * run.in_flight).map(|_| Key::new(&any(rng)).map_err(failed));
                let keys = keys.collect::<Result<_, _>>()?;
                match run.in_flight {
                    1 => caller.look_up(keys),
                    _ => caller.look_up_each(keys),
                }
            }
            Self::Exists(client) => {
                let keys: Vec<Vec<u8>> = (0..run.batch).map(|_| any(rng)).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let there = client.exists(&keys, &CallOptions::default());
                match there.map_err(failed)?.into_iter().all(|there| there) {
                    true => Ok(()),
                    false => Err(failed("an object is not there")),
                }
            }
            Self::Put(client) => {
                let named: Vec<Vec<u8>> = (0..run.batch)
                    .map(|at| {
                        format!("put-{thread}-{}", (turn * run.batch + at) % PUTS).into_bytes()
                    })
                    .collect();
                let value = value(turn as u64, 64);
                let entries: Vec<(&[u8], &[u8])> =
                    named.iter().map(|key| (&**key, &*value)).collect();
                let upsert = PutOptions {
                    mode: PutMode::Upsert,
                    ..PutOptions::default()
                };
                let stored = client.put_batch(&entries, &upsert);
                stored
                    .into_iter()
                    .try_for_each(|it| it.map(drop).map_err(failed))
            }
            Self::Get(client) => {
                let number = rng.below(run.objects);
                match read(client, number).map_err(failed)? {
                    Some(true) => Ok(()),
                    Some(false) => Err(failed(format!("object {number} has other bytes"))),
                    None => Err(failed(format!("object {number} is not there"))),
                }
            }
            Self::Echo(asker) => asker.ask(),
        }
    }
}

/// Calls on so many links at once.
#[derive(Clone, Copy)]
struct Run {
    batch: usize,
    /// Requests of one link at once.
    in_flight: usize,
    objects: u64,
    window: Duration,
    /// From the beginning of a call to that of the next one on average, where that call has ended by then.
    every: Duration,
}

impl Run {
    /// Says how many items it were, in how many seconds, and half and 99 of 100 calls took how many microseconds at most;
    /// and, of calls that were not made one after the other, how many each took.
    fn on(
        self,
        hands: Vec<Hand>,
        orders: &mut impl Iterator<Item = Vec<String>>,
    ) -> Result<(), ClusterError> {
        let start = Barrier::new(hands.len() + 1);
        let thread = |(thread, mut hand): (usize, Hand)| -> Result<Done, ClusterError> {
            let mut rng = Rng::new(thread as u64 + 1);
            let mut micros = Vec::new();
            start.wait();
            let first = now();
            let (mut last, until) = (first, first + self.window);
            let mut due = first;
            while last < until {
                if last < due {
                    std::thread::sleep(due.since(last));
                    last = now();
                }
                let begun = last;
                // Equal pauses would keep the threads as far apart as they happened to begin: in step, or never in each
                // other's way, for a whole window.
                due = begun + self.every / 2 + self.every.mul_f64(rng.unit());
                hand.call(self, thread, micros.len(), &mut rng)?;
                last = now();
                micros.push(last.since(begun).as_nanos() as f64 / 1e3);
            }
            // The end of its link is no part of it.
            Ok((hand, micros, first, last))
        };
        let done = std::thread::scope(|scope| -> Result<Vec<Done>, ClusterError> {
            let threads: Vec<_> = hands
                .into_iter()
                .enumerate()
                .map(|hand| scope.spawn(|| thread(hand)))
                .collect();
            tell("begun")?;
            // The process that measures has looked at the clocks of the others.
            orders.next();
            start.wait();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|end| end.map_err(|_| failed("a thread panicked")).flatten())
                .collect()
        })?;
        let first = done.iter().map(|(_, _, first, _)| *first).min();
        let last = done.iter().map(|(_, _, _, last)| *last).max();
        let took = first.zip(last).map(|(first, last)| last.since(first));
        let seconds = took.unwrap_or_default().as_secs_f64();
        let mut micros: Vec<f64> = done
            .iter()
            .flat_map(|(_, micros, ..)| micros.clone())
            .collect();
        let items = micros.len() * self.batch * self.in_flight;
        let [p50, p99] = [0.5, 0.99].map(|share| quantile(&mut micros, share));
        tell(&format!("ran {items} {seconds} {p50} {p99}"))?;
        // Their links end when the clocks have been looked at again.
        orders.next();
        drop(done);
        if self.every.is_zero() {
            return Ok(tell("ended")?);
        }
        let each: Vec<String> = micros.iter().map(|it| format!(" {it:.1}")).collect();
        Ok(tell(&format!("ended{}", each.concat()))?)
    }
}

/// A link, the microseconds of each call on it, and when the first began and the last ended.
type Done = (Hand, Vec<f64>, Instant, Instant);

/// Those that are not there.
fn absent(client: &Client, numbers: Vec<u64>) -> Result<Vec<u64>, ClusterError> {
    let mut absent = Vec::new();
    for piece in numbers.chunks(WALK_BATCH) {
        let named: Vec<Vec<u8>> = piece.iter().map(|number| key(*number)).collect();
        let keys: Vec<&[u8]> = named.iter().map(Vec::as_slice).collect();
        let there = client
            .exists(&keys, &CallOptions::default())
            .map_err(failed)?;
        let gone = piece.iter().zip(there).filter(|(_, there)| !there);
        absent.extend(gone.map(|(number, _)| *number));
    }
    Ok(absent)
}

/// Says when a value is read again, when all are there, and how many are lost or wrong.
fn follow(client: &Client, objects: u64) -> Result<(), ClusterError> {
    let mut rng = Rng::new(1);
    let until = now() + RETURN_TIME;
    let mut wrong = 0;
    loop {
        let number = rng.below(objects);
        if let Some(right) = read(client, number).map_err(failed)? {
            wrong += u64::from(!right);
            break;
        }
        if now() > until {
            return Err(failed("nothing was read again"));
        }
    }
    tell("hit")?;
    let mut missing: Vec<u64> = (0..objects).collect();
    while !missing.is_empty() && now() < until {
        missing = absent(client, missing)?;
    }
    tell("all")?;
    let mut lost = missing.len();
    for _ in 0..COMPARED.min(objects) {
        match read(client, rng.below(objects)).map_err(failed)? {
            Some(true) => {}
            Some(false) => wrong += 1,
            None => lost += 1,
        }
    }
    Ok(tell(&format!("compared {lost} {wrong}"))?)
}

/// Whether a value is the one that was put; none when there is none.
fn read(client: &Client, number: u64) -> Result<Option<bool>, ClientError> {
    let got = client.get(&key(number), &GetOptions::default())?;
    Ok(got.map(|got| got == value(number, got.len())))
}
