use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use slackwater_base::Rng;
use slackwater_mq::{
    Address, Call, Category, ConnectOptions, ConnectionId, Mq, RequestError, RequestOptions, Run, Running,
};

use super::process::{builder, listen, mq_error};
use super::{BenchError, LinksRow, Options, Report};
use crate::process::{Process, descriptor_limit, orders, resident_bytes, tell};
use crate::usage::Mark;

/// Descriptors that are no links.
const OWN_DESCRIPTORS: usize = 100;
/// Links that are opened at a time, so that no side of a fresh connection waits behind thousands of others.
const OPENING: usize = 256;

/// How long one link may take to stand; less than what the parent waits for all of them.
const CONNECTING: Duration = Duration::from_secs(30);

/// A server and a client with its links.
struct Pair {
    server: Process,
    client: Process,
    mechanism: &'static str,
    count: usize,
    connect_seconds: f64,
    bytes_per_link: f64,
}

/// All pairs stand at the same time and are measured in turn, so that a busy moment of the machine meets all of them.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let limit = descriptor_limit() - OWN_DESCRIPTORS;
    let mut counts: Vec<usize> = Vec::new();
    for wanted in &options.links {
        let count = (*wanted).min(limit);
        if count < *wanted {
            report.notes.push(format!("{wanted} links brought down to {count}: the descriptor limit"));
        }
        if !counts.contains(&count) {
            counts.push(count);
        }
    }
    if !options.heartbeats && !counts.is_empty() {
        report
            .notes
            .push("links are measured without heartbeats; each costs its own messages, however it is carried".into());
    }
    let curve = counts.get(1).or(counts.first()).map(|count| ("CURVE", *count));
    let mut pairs = Vec::new();
    for (mechanism, count) in counts.iter().map(|count| ("NULL", *count)).chain(curve) {
        pairs.push(Pair::start(options, mechanism, count)?);
    }
    for rate in &options.rates {
        let mut windows: Vec<Vec<LinksRow>> = pairs.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for (pair, windows) in pairs.iter_mut().zip(&mut windows) {
                windows.push(pair.window(*rate, options)?);
            }
        }
        for mut windows in windows {
            windows.sort_by(|a, b| a.cpu_us_per_msg.total_cmp(&b.cpu_us_per_msg));
            let middle = windows.len() / 2;
            report.links.extend(windows.into_iter().nth(middle));
        }
    }
    Ok(())
}

impl Pair {
    fn start(options: &Options, mechanism: &'static str, count: usize) -> Result<Self, BenchError> {
        let heartbeats = if options.heartbeats { "on" } else { "off" };
        let patience = options.patience();
        let mut server = Process::start(&options.child, &["links-server", mechanism, heartbeats], patience)?;
        let address = server.hear("listening")?;
        let arguments = ["links-client", &address, &count.to_string(), heartbeats];
        let mut client = Process::start(&options.child, &arguments, patience)?;
        let [connect_seconds, bytes_per_link] = client.numbers("ready")?;
        Ok(Self { server, client, mechanism, count, connect_seconds, bytes_per_link })
    }

    fn window(&mut self, rate: u32, options: &Options) -> Result<LinksRow, BenchError> {
        self.server.say(&format!("tick {rate}"))?;
        self.server.hear("ticking")?;
        self.client.say(&format!("measure {}", options.window.as_secs_f64()))?;
        let [messages, seconds, cpu, p50, p99, calls] = self.client.numbers("measured")?;
        self.server.say("tick 0")?;
        self.server.hear("ticking")?;
        Ok(LinksRow {
            n: self.count,
            mechanism: self.mechanism,
            rate,
            arrived: messages / seconds,
            cpu_percent: 100.0 * cpu / seconds,
            cpu_us_per_msg: 1e6 * cpu / messages,
            p50_us: p50,
            p99_us: p99,
            syscalls_per_msg: calls / messages,
            bytes_per_link: self.bytes_per_link,
            connect_seconds: self.connect_seconds,
        })
    }
}

/// The server: whoever registers gets a message now and then.
pub(super) fn serve(mechanism: &str, heartbeats: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let registered: Arc<Mutex<Vec<ConnectionId>>> = Arc::default();
    let mut builder = builder(1, heartbeats == "on");
    builder.category("bench", Category { run: Run::Inline, ..Category::default() }).map_err(mq_error)?;
    let known = Arc::clone(&registered);
    let register = move |call: &Call<'_>| known.lock().unwrap_or_else(PoisonError::into_inner).push(call.from());
    builder.command("bench.register", register).map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    let rate = Arc::new(AtomicU32::new(0));
    let ending = Arc::new(AtomicBool::new(false));
    let ticking = {
        let (mq, rate, ending) = (running.handle(), Arc::clone(&rate), Arc::clone(&ending));
        std::thread::spawn(move || tick(&mq, &registered, &rate, &ending))
    };
    listen(&running, mechanism)?;
    for order in orders() {
        if let [word, number] = &order[..]
            && word == "tick"
        {
            rate.store(number.parse().unwrap_or(0), Ordering::Release);
            ticking.thread().unpark();
            tell("ticking")?;
        }
    }
    ending.store(true, Ordering::Release);
    ticking.thread().unpark();
    let _ = ticking.join();
    Ok(())
}

/// Sends to a random link at the asked rate, by the clock: a late wake-up is followed by what it has missed.
fn tick(mq: &Mq, registered: &Mutex<Vec<ConnectionId>>, rate: &AtomicU32, ending: &AtomicBool) {
    let mut rng = Rng::new(7);
    let (mut began, mut sent, mut last) = (Instant::now(), 0u64, 0);
    while !ending.load(Ordering::Acquire) {
        let rate = rate.load(Ordering::Acquire);
        if rate == 0 {
            last = 0;
            std::thread::park();
            continue;
        }
        if rate != last {
            (began, sent, last) = (Instant::now(), 0, rate);
        }
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        while sent < due {
            let to = {
                let registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
                registered[rng.below(registered.len() as u64) as usize]
            };
            let mut body = [0u8; 64];
            body[..8].copy_from_slice(&slackwater_wait::now().as_nanos().to_le_bytes());
            mq.send(to, "bench.tick", [body]);
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
    builder.category("bench", Category { run: Run::Inline, ..Category::default() }).map_err(mq_error)?;
    let into = Arc::clone(&heard);
    let hear = move |call: &Call<'_>| {
        let now = slackwater_wait::now().as_nanos();
        let sent = call.part(0).and_then(|body| body.first_chunk()).map_or(now, |sent| u64::from_le_bytes(*sent));
        into.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(now.saturating_sub(sent));
    };
    builder.command("bench.tick", hear).map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    let (seconds, bytes) = connect_all(&running, &address, count)?;
    tell(&format!("ready {seconds} {bytes}"))?;
    for order in orders() {
        if let [word, seconds] = &order[..]
            && word == "measure"
        {
            measure_window(&running, &heard, Duration::from_secs_f64(seconds.parse().map_err(mq_error)?))?;
        }
    }
    Ok(())
}

fn connect_all(running: &Running, address: &Address, count: usize) -> Result<(f64, f64), BenchError> {
    let before = resident_bytes();
    let began = Instant::now();
    let (told, outcomes) = channel();
    let mut links = Vec::with_capacity(count);
    for number in 0..count {
        let told = told.clone();
        // A port of one address is not enough for all links, so they come from several.
        let from = ([127, 0, 0, 2 + (number / 10_000) as u8], 0).into();
        let options = ConnectOptions { timeout: Some(CONNECTING), from: Some(from), ..ConnectOptions::default() };
        let outcome = move |outcome| {
            // The receiver waits below for as many outcomes as there are links.
            let _ = told.send(outcome);
        };
        links.push(running.connect(address, &options, outcome).map_err(mq_error)?);
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
    match running.request_wait(links[count - 1], "bench.none", [""; 0], &RequestOptions::default()) {
        Err(RequestError::Refused(_)) => {}
        other => return Err(mq_error(format!("the server answered an unknown request with {other:?}"))),
    }
    let bytes = resident_bytes().saturating_sub(before) as f64 / count as f64;
    Ok((seconds, bytes))
}

fn next_outcome(outcomes: &Receiver<Result<(), String>>) -> Result<(), BenchError> {
    outcomes.recv_timeout(CONNECTING * 2).map_err(mq_error)?.map_err(mq_error)
}

fn measure_window(running: &Running, heard: &Mutex<Histogram<u64>>, window: Duration) -> Result<(), BenchError> {
    // What was under way before the window does not count.
    std::thread::sleep(Duration::from_millis(200));
    heard.lock().unwrap_or_else(PoisonError::into_inner).reset();
    let (calls, mark) = (system_calls(running), Mark::now());
    std::thread::sleep(window);
    let (calls, spent) = (system_calls(running) - calls, mark.spent());
    let (cpu, seconds) = (spent.cpu.as_secs_f64(), spent.wall.as_secs_f64());
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    let at = |quantile| heard.value_at_quantile(quantile) as f64 / 1e3;
    Ok(tell(&format!("measured {} {seconds} {cpu} {} {} {calls}", heard.len(), at(0.5), at(0.99)))?)
}

fn system_calls(running: &Running) -> u64 {
    let mut calls = 0;
    running.loop_counters(|counters| calls += counters.hot_system_calls());
    calls
}

/// One microsecond to a minute, in nanoseconds, with three digits.
pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order and three digits are few")
}
