//! `slackwater mq load`: requests to one command, counted and timed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use slackwater_base::ByteSize;
use slackwater_mq::tool::Target;
use slackwater_mq::{ConnectionId, Options, RequestError, RequestOptions, Running};
use slackwater_report::Unit;

use super::Peer;
use crate::interrupt::Interrupt;
use crate::{DONE, INTERRUPTED, WRONG, answer};

/// What is asked, how much of it, and how fast.
#[derive(Clone, Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    peer: Peer,
    /// The command, which must answer requests
    #[arg(default_value = "echo.echo")]
    command: String,
    /// Requests in all
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// Requests a second over all connections; without, each connection asks again once it is answered
    ///
    /// A request that had to wait for its connection is timed from when it was due.
    #[arg(long, value_name = "R", value_parser = crate::args::positive)]
    rate: Option<f64>,
    /// Connections, each with one request under way
    #[arg(long, default_value_t = 1, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Bytes of a request's one part
    #[arg(long, default_value = "64B", value_name = "SIZE", value_parser = message)]
    message: ByteSize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How often the progress is shown.
const PERIOD: Duration = Duration::from_millis(200);

/// Asks until all requests are over, or the user stops it, and prints the report in either case. The exit code says whether all
/// requests were answered.
pub(super) fn run(load: &Load) -> Result<u8> {
    // Before any thread is started, so that none of them takes the signal.
    let interrupt = Interrupt::install()?;
    let target = load.peer.target();
    let bar = bar(load.requests);
    let asking = Arc::new(Asking::open(load, &target, interrupt.clone())?);
    let seconds = asking.run(&bar)?;
    bar.finish_and_clear();
    let report = asking.outcomes().report(load, seconds);
    answer::say(if load.json {
        serde_json::to_string(&report)?
    } else {
        report.text()
    })?;
    Ok(match () {
        () if interrupt.requested() => INTERRUPTED,
        () if report.answered == report.requests => DONE,
        () => WRONG,
    })
}

/// What all connections share.
struct Asking {
    running: Running,
    links: Vec<ConnectionId>,
    interrupt: Interrupt,
    command: String,
    body: Vec<u8>,
    timeout: Duration,
    requests: u64,
    rate: Option<f64>,
    /// The number of the next request.
    next: AtomicU64,
    outcomes: Mutex<Outcomes>,
}

/// What has come of the requests so far.
struct Outcomes {
    /// From the request to its answer, in nanoseconds.
    times: Histogram<u64>,
    /// Requests without an answer, by the reason.
    failed: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct Report {
    address: String,
    command: String,
    connections: u32,
    message_bytes: u64,
    rate: Option<f64>,
    requests: u64,
    answered: u64,
    failed: BTreeMap<String, u64>,
    seconds: f64,
    per_second: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
}

impl Asking {
    /// Opens the connections, one after the other: a listener bounds how many of one host it takes at a time.
    fn open(load: &Load, target: &Target, interrupt: Interrupt) -> Result<Self> {
        let running = target.start()?;
        let mut links = Vec::new();
        while links.len() < load.connections as usize && !interrupt.requested() {
            links.push(target.connect(&running)?);
        }
        Ok(Self {
            running,
            links,
            interrupt,
            command: load.command.clone(),
            body: vec![7; load.message.0 as usize],
            timeout: target.timeout,
            requests: load.requests,
            rate: load.rate,
            next: AtomicU64::new(0),
            outcomes: Mutex::new(Outcomes::new()),
        })
    }

    /// One thread for each connection; returns how many seconds it took.
    fn run(self: &Arc<Self>, bar: &ProgressBar) -> Result<f64> {
        self.end_with_interrupt()?;
        let began = Instant::now();
        let (over, ended) = channel::<Infallible>();
        let started: Result<()> = self.links.iter().try_for_each(|link| {
            let (asking, over, link) = (Arc::clone(self), over.clone(), *link);
            let ask = move || {
                asking.ask(link, began);
                drop(over);
            };
            std::thread::Builder::new()
                .name("load".to_owned())
                .spawn(ask)
                .context("cannot start a thread for each connection")
                .map(drop)
        });
        drop(over);
        if started.is_err() {
            self.next.store(self.requests, Ordering::Relaxed);
        }
        self.follow(&ended, bar, began);
        started.map(|()| began.elapsed().as_secs_f64())
    }

    /// What waits for an answer when the user stops it ends at once with its link.
    fn end_with_interrupt(self: &Arc<Self>) -> Result<()> {
        let (interrupt, mq, links) = (
            self.interrupt.clone(),
            self.running.handle(),
            self.links.clone(),
        );
        let watch = move || {
            interrupt.wait();
            links.into_iter().for_each(|link| mq.disconnect(link));
        };
        std::thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(watch)
            .context("cannot start a thread")
            .map(drop)
    }

    /// Shows the progress until all connections are done.
    fn follow(&self, ended: &Receiver<Infallible>, bar: &ProgressBar, began: Instant) {
        if bar.is_hidden() {
            let _ = ended.recv();
            return;
        }
        while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            let outcomes = self.outcomes();
            let (answered, failed) = (outcomes.times.len(), outcomes.failures());
            drop(outcomes);
            bar.set_position(answered + failed);
            let rate = Unit::Count.format(answered as f64 / began.elapsed().as_secs_f64());
            bar.set_message(format!("{rate} a second · {failed} failed"));
        }
    }

    /// Asks on one connection, one request after the other.
    fn ask(&self, link: ConnectionId, began: Instant) {
        let options = RequestOptions {
            timeout: Some(self.timeout),
            ..RequestOptions::default()
        };
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests || self.interrupt.requested() {
                return;
            }
            let Some(from) = self.begin(number, began) else {
                return;
            };
            let outcome = self
                .running
                .request_wait(link, &self.command, [&self.body], &options);
            let took = from.elapsed();
            if outcome.is_err() && self.interrupt.requested() {
                // Ended with its link by the user.
                return;
            }
            self.outcomes().add(took, outcome.map(drop));
        }
    }

    /// Waits until a request is due; returns from when it is timed, or none when the user stopped the run. What this
    /// thread oversleeps is no latency of the peer's; what a request waited for its connection is.
    fn begin(&self, number: u64, began: Instant) -> Option<Instant> {
        let now = Instant::now();
        let Some(rate) = self.rate else {
            return Some(now);
        };
        let after = Duration::try_from_secs_f64(number as f64 / rate).ok();
        let Some(due) = after.and_then(|after| began.checked_add(after)) else {
            // Later than any clock tells.
            self.interrupt.wait();
            return None;
        };
        if due <= now {
            return Some(due);
        }
        (!self.interrupt.sleep_until(due)).then(Instant::now)
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outcomes {
    fn new() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        let times = Histogram::new_with_bounds(1, HOUR, 3);
        Self {
            times: times.expect("the bounds are in order and three digits are few"),
            failed: BTreeMap::new(),
        }
    }

    fn add(&mut self, took: Duration, outcome: Result<(), RequestError>) {
        match outcome {
            Ok(()) => self.times.saturating_record(took.as_nanos() as u64),
            Err(error) => *self.failed.entry(error.to_string()).or_default() += 1,
        }
    }

    fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    fn report(&self, load: &Load, seconds: f64) -> Report {
        let answered = self.times.len();
        let at = |nanos: u64| (answered > 0).then_some(nanos as f64 / 1e3);
        let quantile = |share| at(self.times.value_at_quantile(share));
        Report {
            address: load.peer.address.to_string(),
            command: load.command.clone(),
            connections: load.connections,
            message_bytes: load.message.0,
            rate: load.rate,
            requests: load.requests,
            answered,
            failed: self.failed.clone(),
            seconds,
            per_second: answered as f64 / seconds,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: at(self.times.max()),
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let micros = |value: Option<f64>| Unit::Micros.format(value.unwrap_or(f64::NAN));
        let failed: Vec<String> = self
            .failed
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        format!(
            "{} at {}: {} of {} requests answered in {} ({} each, connections: {})\n\
             rate     {} a second\n\
             latency  p50 {} · p99 {} · p99.9 {} · max {}\n\
             failed   {}",
            self.command,
            self.address,
            self.answered,
            self.requests,
            Unit::Seconds.format(self.seconds),
            Unit::Bytes.format(self.message_bytes as f64),
            self.connections,
            Unit::Count.format(self.per_second),
            micros(self.p50_us),
            micros(self.p99_us),
            micros(self.p999_us),
            micros(self.max_us),
            if failed.is_empty() {
                "0".to_owned()
            } else {
                failed.join(", ")
            },
        )
    }
}

/// The size of a message that a link takes.
fn message(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|error: slackwater_base::ParseUnitError| error.to_string())?;
    let most = ByteSize(Options::default().queue_bytes as u64 / 2);
    if size > most {
        return Err(format!("expected at most {most}"));
    }
    Ok(size)
}

/// The line of the progress; hidden where standard error is no terminal.
fn bar(requests: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(requests), ProgressDrawTarget::stderr());
    let style =
        ProgressStyle::with_template("{bar:28.cyan/dim} {percent:>3} % · {msg} · {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("━╸─"));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        let peer = Peer {
            address: "tcp://127.0.0.1:5000".parse().unwrap(),
            key_file: None,
            timeout: Duration::from_secs(5),
            raw: false,
        };
        Load {
            peer,
            command: "echo.echo".to_owned(),
            requests: 100,
            rate: None,
            connections: 4,
            message: ByteSize(64),
            json: false,
        }
    }

    #[test]
    fn a_report_counts_answers_and_says_why_others_failed() {
        let check = |answered: u64, failures: &[RequestError], text: &str| {
            let mut outcomes = Outcomes::new();
            (1..=answered).for_each(|at| outcomes.add(Duration::from_micros(10 * at), Ok(())));
            for failure in failures {
                outcomes.add(Duration::from_secs(9), Err(failure.clone()));
            }
            assert_eq!(outcomes.failures(), failures.len() as u64);
            assert_eq!(outcomes.report(&load(), 2.0).text(), text);
        };
        let busy = RequestError::Refused(slackwater_mq::Refusal::Busy);
        check(
            100,
            &[],
            "echo.echo at tcp://127.0.0.1:5000: 100 of 100 requests answered in 2 s (64 B each, connections: 4)\n\
             rate     50 a second\nlatency  p50 500 µs · p99 990 µs · p99.9 1 ms · max 1 ms\nfailed   0",
        );
        check(
            0,
            &[busy.clone(), RequestError::Timeout, busy],
            "echo.echo at tcp://127.0.0.1:5000: 0 of 100 requests answered in 2 s (64 B each, connections: 4)\n\
             rate     0 a second\nlatency  p50 – · p99 – · p99.9 – · max –\nfailed   2 BUSY, 1 TIMEOUT",
        );
    }

    /// A peer that stalls makes later requests wait for their connection: they are timed from when they were due.
    #[test]
    fn a_request_that_is_late_is_timed_from_when_it_was_due() {
        let mut load = load();
        load.connections = 0;
        load.rate = Some(1_000.0);
        let asking = Asking::open(&load, &load.peer.target(), Interrupt::default()).unwrap();
        let now = Instant::now();
        let began = now.checked_sub(Duration::from_secs(1)).unwrap();
        let late = asking.begin(400, began);
        assert_eq!(late, Some(began + Duration::from_millis(400)));
        let due = now + Duration::from_millis(20);
        let on_time = asking.begin(1_020, began).unwrap();
        assert!(on_time >= due, "it waits until it is due");
        load.rate = None;
        let asking = Asking::open(&load, &load.peer.target(), Interrupt::default()).unwrap();
        assert!(asking.begin(u64::MAX, now).unwrap() < now + Duration::from_secs(60));
    }
}
