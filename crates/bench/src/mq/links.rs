use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use slackwater_base::Rng;
use slackwater_mq::{
    Address, Call, Category, ConnectFailure, ConnectOptions, ConnectionId, RequestError,
    RequestOptions, Run, Running,
};

use super::pairs::{Kind, OWN_DESCRIPTORS, Pair};
use super::process::{builder, listen, mq_error};
use super::{BenchError, LinksRatio, LinksRow, Options, Report, rpc};
use crate::process::{descriptor_limit, orders, resident_bytes, tell};
use crate::usage::{Mark, median};

/// Links that are opened at a time, so that no side of a fresh connection waits behind thousands of others.
const OPENING: usize = 256;

/// What is measured at a time: long enough for hundreds of messages, short enough that what a noisy machine does to one
/// slice it also does to the next.
pub(super) const SLICE: Duration = Duration::from_millis(300);
/// Before a slice: what was under way does not count.
const SETTLING: Duration = Duration::from_millis(50);
/// Bytes of a tick on the wire: two frames, the command and a body of [`BODY_BYTES`].
pub(super) const MESSAGE_BYTES: usize = 2 + 10 + 2 + BODY_BYTES;
const BODY_BYTES: usize = 64;

/// How long one link may take to be made; less than what the parent waits for all of them.
const CONNECTING: Duration = Duration::from_secs(30);

/// Without heartbeats all pairs are connected at the same time and are measured in turn, in slices of a window, so that a busy
/// moment of the machine meets all of them; the ratios are those of slices that follow each other. With heartbeats, which cost
/// even those links that wait for their turn, only the clients of one number of links are there at a time.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let counts = counts(options, report);
    let (Some(least), Some(most)) = (counts.first().copied(), counts.iter().max().copied()) else {
        return Ok(());
    };
    let peers = peers(options, report);
    for heartbeats in options.heartbeats.iter().copied() {
        let curve = counts.get(1).copied().unwrap_or(least);
        let of_count = |count| {
            let peers = peers.iter().map(move |kind| (*kind, count));
            std::iter::once((Kind::Null, count)).chain(peers)
        };
        if heartbeats {
            let rates = &options.rates[..1.min(options.rates.len())];
            for count in &counts {
                let pairs = connect(options, heartbeats, of_count(*count), report)?;
                take_turns(options, pairs, rates, report, (least, most))?;
            }
        } else {
            let limits = [
                (Kind::Curve, curve),
                (Kind::Bare, least),
                (Kind::Bare, most),
            ];
            let wanted = counts.iter().flat_map(|count| of_count(*count));
            let pairs = connect(options, heartbeats, wanted.chain(limits), report)?;
            take_turns(options, pairs, &options.rates, report, (least, most))?;
        }
    }
    Ok(())
}

/// The clients over libzmq, where the Python has it.
fn peers(options: &Options, report: &mut Report) -> Vec<Kind> {
    if rpc::has_peer(options) {
        return vec![Kind::LibzmqPoll, Kind::LibzmqEpoll];
    }
    report.notes.push(format!(
        "no links over libzmq: {} has no zmq module",
        options.python.display()
    ));
    Vec::new()
}

/// Starts pairs; a peer that does not start is left out and named.
fn connect(
    options: &Options,
    heartbeats: bool,
    wanted: impl Iterator<Item = (Kind, usize)>,
    report: &mut Report,
) -> Result<Vec<Pair>, BenchError> {
    let mut pairs = Vec::new();
    for (kind, count) in wanted {
        match Pair::start(options, kind, count, heartbeats) {
            Ok(pair) => pairs.push(pair),
            Err(error) if kind.is_peer() => {
                let name = kind.client();
                report
                    .notes
                    .push(format!("{name} with {count} links left out: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(pairs)
}

fn take_turns(
    options: &Options,
    mut pairs: Vec<Pair>,
    rates: &[u32],
    report: &mut Report,
    ends: (usize, usize),
) -> Result<(), BenchError> {
    let slices = (options.window.as_secs_f64() * options.rounds as f64 / SLICE.as_secs_f64())
        .ceil()
        .max(3.0) as usize;
    for rate in rates {
        for _ in 0..slices {
            for pair in &mut pairs {
                pair.slice(*rate)?;
            }
        }
        let ratios = [Kind::Null, Kind::Bare].map(|kind| ratio(&pairs, kind, ends, *rate));
        report.ratios.extend(ratios.into_iter().flatten());
        for pair in &mut pairs {
            let row = middle(std::mem::take(&mut pair.rows));
            if pair.kind == Kind::Bare {
                &mut report.bare
            } else {
                &mut report.links
            }
            .push(row);
        }
    }
    Ok(())
}

/// The numbers of links asked for, as far as descriptors reach.
fn counts(options: &Options, report: &mut Report) -> Vec<usize> {
    let limit = descriptor_limit() - OWN_DESCRIPTORS;
    let mut counts: Vec<usize> = Vec::new();
    for wanted in &options.links {
        let count = (*wanted).min(limit);
        if count < *wanted {
            report.notes.push(format!(
                "{wanted} links brought down to {count}: the descriptor limit"
            ));
        }
        if !counts.contains(&count) {
            counts.push(count);
        }
    }
    counts
}

/// What a message costs with the most links over what it costs with the least, slice by slice; the middle one.
///
/// None where they are not both there.
fn ratio(
    pairs: &[Pair],
    kind: Kind,
    (least, most): (usize, usize),
    rate: u32,
) -> Option<LinksRatio> {
    let of = |count| {
        pairs
            .iter()
            .find(|pair| pair.kind == kind && pair.count == count)
            .map(|pair| &pair.rows)
    };
    let (of_least, of_most) = (of(least)?, of(most)?);
    let cost = |row: &LinksRow| row.cpu_us_per_msg;
    let (few, many) = (of_least.iter().map(cost), of_most.iter().map(cost));
    let mut ratios: Vec<f64> = few.zip(many).map(|(few, many)| many / few).collect();
    Some(LinksRatio {
        client: kind.client(),
        least,
        most,
        rate,
        ratio: median(&mut ratios),
    })
}

/// Every figure by its own middle slice.
fn middle(rows: Vec<LinksRow>) -> LinksRow {
    let of = |pick: fn(&LinksRow) -> f64| median(&mut rows.iter().map(pick).collect::<Vec<_>>());
    let (arrived, cpu_percent, cpu_us_per_msg) = (
        of(|row| row.arrived),
        of(|row| row.cpu_percent),
        of(|row| row.cpu_us_per_msg),
    );
    let (p50_us, p99_us) = (of(|row| row.p50_us), of(|row| row.p99_us));
    let calls: Option<Vec<f64>> = rows.iter().map(|row| row.syscalls_per_msg).collect();
    let syscalls_per_msg = calls.map(|mut calls| median(&mut calls));
    let one = rows.into_iter().next().unwrap_or_default();
    LinksRow {
        arrived,
        cpu_percent,
        cpu_us_per_msg,
        p50_us,
        p99_us,
        syscalls_per_msg,
        ..one
    }
}

/// The server: every registered client gets a message from time to time.
pub(super) fn serve(mechanism: &str, heartbeats: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let registered: Arc<Mutex<Vec<ConnectionId>>> = Arc::default();
    let mut builder = builder(1, heartbeats == "on");
    builder
        .category(
            "bench",
            Category {
                run: Run::Inline,
                ..Category::default()
            },
        )
        .map_err(mq_error)?;
    let known = Arc::clone(&registered);
    let register = move |call: &Call<'_>| {
        known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call.from())
    };
    builder
        .command("bench.register", register)
        .map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    let mq = running.handle();
    let ticker = Ticker::start(move |random, body| {
        let to = {
            let registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
            registered[random.below(registered.len() as u64) as usize]
        };
        mq.send(to, "bench.tick", [body]);
    });
    listen(&running, mechanism)?;
    ticker.obey()
}

/// Sends to random links at a rate that the parent sets.
pub(super) struct Ticker {
    rate: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

/// No more ticks: the process ends.
const ENDING: u32 = u32::MAX;

impl Ticker {
    /// Every tick calls `send` with a source of randomness and a body that carries the time.
    pub(super) fn start(mut send: impl FnMut(&mut Rng, [u8; BODY_BYTES]) + Send + 'static) -> Self {
        let rate = Arc::new(AtomicU32::new(0));
        let asked = Arc::clone(&rate);
        let thread = std::thread::spawn(move || tick(&asked, &mut send));
        Self { rate, thread }
    }

    /// Does what the parent says until it ends.
    pub(super) fn obey(self) -> Result<(), BenchError> {
        for order in orders() {
            if let [word, number] = &order[..]
                && word == "tick"
            {
                self.rate
                    .store(number.parse().unwrap_or(0), Ordering::Release);
                self.thread.thread().unpark();
                tell("ticking")?;
            }
        }
        self.rate.store(ENDING, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
        Ok(())
    }
}

/// Ticks by the clock: a late wake-up is followed by what it has missed.
fn tick(asked: &AtomicU32, send: &mut dyn FnMut(&mut Rng, [u8; BODY_BYTES])) {
    let mut rng = Rng::new(7);
    let (mut began, mut sent, mut last) = (Instant::now(), 0u64, 0);
    loop {
        let rate = asked.load(Ordering::Acquire);
        match rate {
            ENDING => return,
            0 => {
                last = 0;
                std::thread::park();
                continue;
            }
            _ if rate != last => (began, sent, last) = (Instant::now(), 0, rate),
            _ => {}
        }
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        while sent < due {
            let mut body = [0u8; BODY_BYTES];
            body[..8].copy_from_slice(&slackwater_wait::now().as_nanos().to_le_bytes());
            send(&mut rng, body);
            sent += 1;
        }
        let next = Duration::from_secs_f64((sent + 1) as f64 / f64::from(rate));
        std::thread::park_timeout(next.saturating_sub(began.elapsed()));
    }
}

/// The client: many links, each of which registers.
pub(super) fn receive(address: &str, count: &str, heartbeats: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let address: Address = address.parse().map_err(mq_error)?;
    let count: usize = count.parse().map_err(mq_error)?;
    let heard = Arc::new(Mutex::new(new_histogram()));
    let mut builder = builder(2, heartbeats == "on");
    builder
        .category(
            "bench",
            Category {
                run: Run::Inline,
                ..Category::default()
            },
        )
        .map_err(mq_error)?;
    let into = Arc::clone(&heard);
    let hear = move |call: &Call<'_>| record(&into, call.part(0).unwrap_or_default());
    builder.command("bench.tick", hear).map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    let (seconds, bytes) = connect_all(&running, &address, count)?;
    tell(&format!("ready {seconds} {bytes}"))?;
    measure_windows(&heard, || {
        let mut calls = 0;
        running.loop_counters(|counters| calls += counters.hot_system_calls());
        calls
    })
}

/// Notes how long a tick was under way, by the time in its body.
pub(super) fn record(heard: &Mutex<Histogram<u64>>, body: &[u8]) {
    let now = slackwater_wait::now().as_nanos();
    let sent = body
        .first_chunk()
        .map_or(now, |sent| u64::from_le_bytes(*sent));
    heard
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .saturating_record(now.saturating_sub(sent));
}

fn connect_all(
    running: &Running,
    address: &Address,
    count: usize,
) -> Result<(f64, f64), BenchError> {
    let before = resident_bytes();
    let began = Instant::now();
    let (told, outcomes) = channel();
    let mut links = Vec::with_capacity(count);
    for number in 0..count {
        let told = told.clone();
        // A port of one address is not enough for all links, so they come from several.
        let from = ([127, 0, 0, 2 + (number / 10_000) as u8], 0).into();
        let options = ConnectOptions {
            timeout: Some(CONNECTING),
            from: Some(from),
            ..ConnectOptions::default()
        };
        let outcome = move |outcome| {
            // The receiver waits below for as many outcomes as there are links.
            let _ = told.send(outcome);
        };
        links.push(running.connect(address, &options, outcome));
        if number >= OPENING {
            next_outcome(&outcomes)?;
        }
    }
    for _ in 0..count.min(OPENING) {
        next_outcome(&outcomes)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    for link in &links {
        running.send(*link, "bench.register", [""; 0]);
    }
    // One request after all registrations on the last link, and every other link has had its turn before.
    match running.request_wait(
        links[count - 1],
        "bench.none",
        [""; 0],
        &RequestOptions::default(),
    ) {
        Err(RequestError::Refused(_)) => {}
        other => {
            return Err(mq_error(format!(
                "the server answered an unknown request with {other:?}"
            )));
        }
    }
    let bytes = resident_bytes().saturating_sub(before) as f64 / count as f64;
    Ok((seconds, bytes))
}

fn next_outcome(outcomes: &Receiver<Result<(), ConnectFailure>>) -> Result<(), BenchError> {
    outcomes
        .recv_timeout(CONNECTING * 2)
        .map_err(mq_error)?
        .map_err(mq_error)
}

/// Measures windows as the parent asks for them; `calls` counts the system calls so far.
pub(super) fn measure_windows(
    heard: &Mutex<Histogram<u64>>,
    calls: impl Fn() -> u64,
) -> Result<(), BenchError> {
    for order in orders() {
        let [word, seconds] = &order[..] else {
            continue;
        };
        if word != "measure" {
            continue;
        }
        let window = Duration::from_secs_f64(seconds.parse().map_err(mq_error)?);
        std::thread::sleep(SETTLING);
        heard.lock().unwrap_or_else(PoisonError::into_inner).reset();
        let (before, mark) = (calls(), Mark::now());
        std::thread::sleep(window);
        let (made, spent) = (calls() - before, mark.spent());
        let (cpu, seconds) = (spent.cpu.as_secs_f64(), spent.wall.as_secs_f64());
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| heard.value_at_quantile(quantile) as f64 / 1e3;
        tell(&format!(
            "measured {} {seconds} {cpu} {} {} {made}",
            heard.len(),
            at(0.5),
            at(0.99)
        ))?;
    }
    Ok(())
}

/// One microsecond to a minute, in nanoseconds, with three digits.
pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .expect("the bounds are in order and three digits are few")
}
