//! A burst of requests that overfills a queue: how many are answered, how many refused, and when each requester knows.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater_mq::{
    Address, Builder, Call, Category, ConnectOptions, Options as MqOptions, Queueing, Refusal,
    RequestError, RequestOptions, Workers,
};
use slackwater_wait::{Countdown, Site, Waiting, now};

use super::process::{listen, mq_error, options_of};
use super::rpc::{PEER, has_peer};
use super::{BenchError, BurstRow, Options, Report};
use crate::process::{Process, orders, resident_bytes_of, tell};

static OUTCOMES: Site = Site::new("bench, outcomes of a burst");

/// Commands that the server lets wait; libzmq's sockets hold as many on each side, beside what the kernel's buffers take.
const QUEUE: usize = 100;
/// How long the server's only worker is busy with one.
const WORK: Duration = Duration::from_millis(1);
const BODY_BYTES: usize = 64;

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    if options.burst == 0 {
        return Ok(());
    }
    report.bursts.push(row("ours", &options.child, options)?);
    if has_peer(options) {
        let peer = [options.python.clone().into(), "-c".into(), PEER.into()];
        report.bursts.push(row("libzmq", &peer, options)?);
    }
    Ok(())
}

fn row(
    client: &'static str,
    command: &[OsString],
    options: &Options,
) -> Result<BurstRow, BenchError> {
    let requests = options.burst;
    let patience = options.patience() + 2 * WORK * requests as u32;
    let (queue, work) = (QUEUE.to_string(), WORK.as_secs_f64().to_string());
    let mut server = Process::start(command, &["burst-server", &queue, &work], patience)?;
    let address = server.hear("listening")?;
    let mut asking = Process::start(command, &["burst-client", &address, &queue], patience)?;
    asking.hear("ready")?;
    let before = resident_bytes_of(server.id());
    asking.say(&format!("burst {requests} {BODY_BYTES}"))?;
    let [answered, refused, failed, sent, last_refusal, last] = asking.numbers("burst")?;
    Ok(BurstRow {
        client,
        requests,
        queue: QUEUE,
        answered: answered as usize,
        refused: refused as usize,
        failed: failed as usize,
        sent_ms: 1e3 * sent,
        last_refusal_ms: (refused > 0.0).then_some(1e3 * last_refusal),
        last_ms: 1e3 * last,
        server_bytes: resident_bytes_of(server.id()).saturating_sub(before),
    })
}

/// The server: one worker, which is slow.
pub(super) fn serve(queue: &str, work: &str) -> Result<(), BenchError> {
    let queue: usize = queue.parse().map_err(mq_error)?;
    let work = Duration::from_secs_f64(work.parse().map_err(mq_error)?);
    let mut builder = Builder::new(MqOptions {
        workers: Workers::with_general(1),
        ..options_of(1, true)
    });
    let queueing = Queueing {
        queue: Some(queue),
        ..Queueing::default()
    };
    let slow = Category {
        queueing,
        ..Category::default()
    };
    builder.category("bench", slow).map_err(mq_error)?;
    let answer = move |call: &Call<'_>| {
        std::thread::sleep(work);
        call.reply(call.parts())
            .expect("a request command is only called with a tag");
    };
    builder
        .request_command("bench.slow", answer)
        .map_err(mq_error)?;
    let running = builder.start().map_err(mq_error)?;
    listen(&running, "NULL")?;
    orders().for_each(drop);
    Ok(())
}

/// What has come of a burst so far.
#[derive(Default)]
struct Outcomes {
    answered: usize,
    refused: usize,
    failed: usize,
    last_refusal: Duration,
    last: Duration,
}

/// The client: all requests of a burst at once, on one link.
pub(super) fn ask(address: &str) -> Result<(), BenchError> {
    let address: Address = address.parse().map_err(mq_error)?;
    let running = Builder::new(options_of(2, true))
        .start()
        .map_err(mq_error)?;
    let to = running
        .connect_wait(&address, &ConnectOptions::default())
        .map_err(mq_error)?;
    tell("ready")?;
    for order in orders() {
        let [word, requests, bytes] = &order[..] else {
            continue;
        };
        if word != "burst" {
            continue;
        }
        let (requests, bytes): (u32, usize) = (
            requests.parse().map_err(mq_error)?,
            bytes.parse().map_err(mq_error)?,
        );
        let (body, limit) = (vec![7u8; bytes], 10 * WORK * requests + WORK * 1000);
        let asking = RequestOptions {
            inline: true,
            timeout: Some(limit),
            ..RequestOptions::default()
        };
        let shared = Arc::new((
            Mutex::new(Outcomes::default()),
            Countdown::<()>::new(requests),
        ));
        let began = Instant::now();
        for _ in 0..requests {
            let shared = Arc::clone(&shared);
            running.request(to, "bench.slow", [&body], &asking, move |outcome| {
                let took = began.elapsed();
                shared
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .add(took, outcome.map(drop));
                shared.1.complete();
            });
        }
        let sent = began.elapsed().as_secs_f64();
        let waiting = Waiting::at(&OUTCOMES).until(now() + 2 * limit);
        shared
            .1
            .wait(&waiting)
            .map_err(|_| mq_error("a request of the burst had no outcome"))?;
        let seen = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (refusal, last) = (seen.last_refusal.as_secs_f64(), seen.last.as_secs_f64());
        tell(&format!(
            "burst {} {} {} {sent} {refusal} {last}",
            seen.answered, seen.refused, seen.failed
        ))?;
    }
    Ok(())
}

impl Outcomes {
    fn add(&mut self, took: Duration, outcome: Result<(), RequestError>) {
        self.last = self.last.max(took);
        match outcome {
            Ok(()) => self.answered += 1,
            Err(RequestError::Refused(Refusal::Busy)) => {
                self.refused += 1;
                self.last_refusal = self.last_refusal.max(took);
            }
            Err(_) => self.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_kind_and_the_latest_of_each_is_kept() {
        let mut outcomes = Outcomes::default();
        let busy = || Err(RequestError::Refused(Refusal::Busy));
        let told = [
            (5, busy()),
            (3, busy()),
            (9, Ok(())),
            (7, Err(RequestError::Full)),
            (8, Err(RequestError::Refused(Refusal::Forbidden))),
        ];
        for (millis, outcome) in told {
            outcomes.add(Duration::from_millis(millis), outcome);
        }
        let Outcomes {
            answered,
            refused,
            failed,
            ..
        } = outcomes;
        assert_eq!((answered, refused, failed), (1, 2, 2));
        assert_eq!(outcomes.last_refusal, Duration::from_millis(5));
        assert_eq!(outcomes.last, Duration::from_millis(9));
    }
}
