use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use slackwater_mq::{
    Address, Call, Category, ConnectOptions, ConnectionId, Mq, RequestOptions, Run, Running,
};
use slackwater_wait::{Countdown, Site, Waiting, now};

use super::links::new_histogram;
use super::process::{builder, listen, mq_error};
use super::{BenchError, Options, Report, RpcRow};
use crate::process::{Process, orders, tell};

static ANSWERS: Site = Site::new("bench, answers of all links");

/// The peer of the run: a ROUTER that echoes, and DEALERs that ask, over libzmq.
pub(super) const PEER: &str = include_str!("peer.py");

/// How long the last answers of a round may take: longer than the message layer's own limit, which is 15 s.
const ANSWER: Duration = Duration::from_secs(20);

/// One round of one side.
#[derive(Clone, Copy)]
struct Round {
    p50: f64,
    p99: f64,
    rps: f64,
    per_cpu: f64,
}

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    if options.rpc_links.is_empty() {
        return Ok(());
    }
    let peer: Vec<OsString> = vec![options.python.clone().into(), "-c".into(), PEER.into()];
    let has_peer = has_peer(options);
    if !has_peer {
        report.notes.push(format!(
            "no peer: {} has no zmq module",
            options.python.display()
        ));
    }
    for mechanism in ["NULL", "CURVE"] {
        for links in &options.rpc_links {
            let mut ours = Side::start(&options.child, mechanism, *links, options.patience())?;
            let mut theirs = has_peer
                .then(|| Side::start(&peer, mechanism, *links, options.patience()))
                .transpose()?;
            for size in &options.rpc_sizes {
                let (mut own, mut other) = (Vec::new(), Vec::new());
                for _ in 0..options.rounds {
                    own.push(ours.round(*size, options.rpc_window)?);
                    if let Some(theirs) = &mut theirs {
                        other.push(theirs.round(*size, options.rpc_window)?);
                    }
                }
                let of = |pick: fn(&Round) -> f64| median(&own, pick).unwrap_or(f64::NAN);
                report.rpc.push(RpcRow {
                    links: *links,
                    size: *size,
                    mechanism,
                    p50_us: of(|round| round.p50),
                    p99_us: of(|round| round.p99),
                    rps: of(|round| round.rps),
                    rps_per_cpu: of(|round| round.per_cpu),
                    peer_p50_us: median(&other, |round| round.p50),
                    peer_p99_us: median(&other, |round| round.p99),
                    peer_rps: median(&other, |round| round.rps),
                    peer_rps_per_cpu: median(&other, |round| round.per_cpu),
                });
            }
        }
    }
    Ok(())
}

/// Whether the Python of the options has libzmq.
pub(super) fn has_peer(options: &Options) -> bool {
    let probe = Command::new(&options.python)
        .args(["-c", "import zmq"])
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

/// A server and a client of one kind.
struct Side {
    server: Process,
    client: Process,
}

impl Side {
    fn start(
        command: &[OsString],
        mechanism: &str,
        links: usize,
        patience: Duration,
    ) -> Result<Self, BenchError> {
        let mut server = Process::start(command, &["rpc-server", mechanism], patience)?;
        let address = server.hear("listening")?;
        let mut client = Process::start(
            command,
            &["rpc-client", &address, &links.to_string()],
            patience,
        )?;
        client.hear("ready")?;
        Ok(Self { server, client })
    }

    fn round(&mut self, size: usize, window: Duration) -> Result<Round, BenchError> {
        let cpu = self.server.cpu_seconds() + self.client.cpu_seconds();
        self.client
            .say(&format!("ask {size} {}", window.as_secs_f64()))?;
        let [count, seconds, p50, p99] = self.client.numbers("asked")?;
        let cpu = self.server.cpu_seconds() + self.client.cpu_seconds() - cpu;
        Ok(Round {
            p50,
            p99,
            rps: count / seconds,
            per_cpu: count / cpu,
        })
    }
}

fn median(rounds: &[Round], pick: fn(&Round) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = rounds.iter().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The server: echoes.
pub(super) fn serve(mechanism: &str) -> Result<(), BenchError> {
    let mut builder = builder(1, true);
    builder
        .category(
            "bench",
            Category {
                run: Run::Inline,
                ..Category::default()
            },
        )
        .map_err(mq_error)?;
    let echo = |call: &Call<'_>| {
        call.reply(call.parts())
            .expect("a request command is only called with a tag")
    };
    builder
        .request_command("bench.echo", echo)
        .map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    listen(&running, mechanism)?;
    orders().for_each(drop);
    Ok(())
}

/// The client: asks, one request at a time on every link.
pub(super) fn ask(address: &str, count: &str) -> Result<(), BenchError> {
    let address: Address = address.parse().map_err(mq_error)?;
    let count: usize = count.parse().map_err(mq_error)?;
    let running = builder(2, true).start().map_err(mq_error)?;
    let connect = |_| {
        running
            .connect_wait(&address, &ConnectOptions::default())
            .map_err(mq_error)
    };
    let links: Vec<ConnectionId> = (0..count).map(connect).collect::<Result<_, _>>()?;
    tell("ready")?;
    for order in orders() {
        let [word, size, seconds] = &order[..] else {
            continue;
        };
        if word != "ask" {
            continue;
        }
        let body = vec![7u8; size.parse().map_err(mq_error)?];
        let window = Duration::from_secs_f64(seconds.parse().map_err(mq_error)?);
        let began = Instant::now();
        let times = match links[..] {
            [link] => ask_one(&running, link, &body, window)?,
            _ => ask_many(&running, &links, body, window)?,
        };
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        tell(&format!(
            "asked {} {} {} {}",
            times.len(),
            began.elapsed().as_secs_f64(),
            at(0.5),
            at(0.99)
        ))?;
    }
    Ok(())
}

fn ask_one(
    mq: &Running,
    to: ConnectionId,
    body: &[u8],
    window: Duration,
) -> Result<Histogram<u64>, BenchError> {
    let mut times = new_histogram();
    let began = Instant::now();
    while began.elapsed() < window {
        let asked = Instant::now();
        mq.request_wait(to, "bench.echo", [body], &RequestOptions::default())
            .map_err(mq_error)?;
        times.saturating_record(asked.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

/// What the requests of all links share.
struct Asking {
    mq: Mq,
    body: Vec<u8>,
    times: Mutex<Histogram<u64>>,
    until: Instant,
    /// One part for each link.
    links: Countdown,
}

fn ask_many(
    mq: &Running,
    links: &[ConnectionId],
    body: Vec<u8>,
    window: Duration,
) -> Result<Histogram<u64>, BenchError> {
    let asking = Arc::new(Asking {
        mq: mq.handle(),
        body,
        times: Mutex::new(new_histogram()),
        until: Instant::now() + window,
        links: Countdown::new(links.len() as u32),
    });
    links.iter().for_each(|link| ask_next(&asking, *link));
    let limit = window + ANSWER;
    let waiting = Waiting::at(&ANSWERS).until(now() + limit);
    asking.links.wait(&waiting).map_err(|_| {
        mq_error(format!(
            "{} of {} links had no answer within {limit:?}",
            asking.links.remaining(),
            links.len()
        ))
    })?;
    Ok(asking
        .times
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone())
}

/// Asks on a link; the answer asks again, until the window is over.
fn ask_next(asking: &Arc<Asking>, link: ConnectionId) {
    let asked = Instant::now();
    let again = Arc::clone(asking);
    let options = RequestOptions {
        inline: true,
        ..RequestOptions::default()
    };
    asking.mq.request(
        link,
        "bench.echo",
        [&asking.body],
        &options,
        move |answer| {
            let now = Instant::now();
            if answer.is_ok() {
                let nanos = now.duration_since(asked).as_nanos() as u64;
                again
                    .times
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .saturating_record(nanos);
            }
            if now < again.until {
                ask_next(&again, link);
            } else {
                again.links.complete();
            }
        },
    );
}
