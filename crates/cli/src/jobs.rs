//! `slackwater cp`, `mv`, `drain` and `jobs`: values go between the nodes of a pool, by jobs of its master.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use indicatif::HumanDuration;
use slackwater_admin::job_described;
use slackwater_base::{ByteSize, format_duration};
use slackwater_remote::{CallOptions, Client};
use slackwater_wire::{JobId, JobSpec, JobState, JobStatus, JobWork, Key};

use crate::answer::say;
use crate::printable::printable;
use crate::remote::{Connection, note};
use crate::{DONE, WRONG};

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cp {
    /// Key of the value
    key: OsString,

    /// Nodes that get a replica: numbers of nodes, or names of segments
    #[arg(required = true, value_name = "NODE")]
    to: Vec<String>,

    #[command(flatten)]
    connection: Connection,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Mv {
    /// Key of the value
    key: OsString,

    /// Node that the replica goes to: the number of a node, or the name of a segment
    #[arg(value_name = "NODE")]
    to: String,

    /// Node that it leaves [default: any that holds one in memory]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    connection: Connection,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Drain {
    /// Nodes that are emptied: numbers of nodes, or names of segments
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,

    /// Where values go [default: any other memory]
    #[arg(long, value_name = "NODE")]
    to: Vec<String>,

    /// Values that are carried at a time, up to 64
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,

    /// Bytes that are carried in a second, at most [default: as many as there can be]
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteSize>,

    /// Stop after this time [default: when all is done]
    #[arg(long, value_name = "DURATION", value_parser = slackwater_base::parse_duration)]
    within: Option<Duration>,

    /// Leave what is on SSD where it is
    #[arg(long)]
    memory_only: bool,

    /// Return at once; `slackwater jobs` says how far it is
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    connection: Connection,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Jobs {
    /// Cancel this job; what it drained takes new values again
    #[arg(long, value_name = "JOB")]
    cancel: Option<u64>,

    #[command(flatten)]
    connection: Connection,
}

/// Pauses between looks at a job.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

pub(crate) fn cp(arguments: &Cp) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let work = JobWork::Copy {
        tenant: call.tenant.clone(),
        key: Key::new(arguments.key.as_bytes())?,
        targets: arguments.to.clone(),
    };
    work.check()?;
    run(&client, &call, plain(work), arguments.connection.json)
}

pub(crate) fn mv(arguments: &Mv) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let work = JobWork::Move {
        tenant: call.tenant.clone(),
        key: Key::new(arguments.key.as_bytes())?,
        source: arguments.from.clone(),
        target: arguments.to.clone(),
    };
    run(&client, &call, plain(work), arguments.connection.json)
}

pub(crate) fn drain(arguments: &Drain) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let spec = JobSpec {
        work: JobWork::Drain {
            places: arguments.nodes.clone(),
            targets: arguments.to.clone(),
            disks: !arguments.memory_only,
        },
        concurrency: arguments.concurrency,
        bytes_per_second: arguments.rate.map(|rate| rate.0),
        time: arguments.within,
    };
    spec.work.check()?;
    if !arguments.no_wait {
        return run(&client, &call, spec, arguments.connection.json);
    }
    let state = client.start_job(spec, &call)?;
    tell(&state, arguments.connection.json)?;
    Ok(DONE)
}

pub(crate) fn jobs(arguments: &Jobs) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    if let Some(job) = arguments.cancel {
        let state = client.cancel_job(JobId(job), &call)?;
        tell(&state, arguments.connection.json)?;
        return Ok(DONE);
    }
    let states = client.jobs(&call)?;
    if arguments.connection.json {
        let all: Vec<_> = states.iter().map(job_described).collect();
        say(serde_json::json!({ "jobs": all }))?;
    } else {
        let told = states.iter().try_for_each(|state| tell(state, false));
        told?;
    }
    Ok(DONE)
}

fn plain(work: JobWork) -> JobSpec {
    JobSpec {
        work,
        concurrency: 0,
        bytes_per_second: None,
        time: None,
    }
}

/// Begins a job and waits for its end, with its progress on a terminal.
fn run(client: &Client, call: &CallOptions, spec: JobSpec, json: bool) -> Result<u8> {
    let mut state = client.start_job(spec, call)?;
    let shows = std::io::stderr().is_terminal() && !json;
    let (mut pause, most) = LOOKS;
    while !state.status.is_over() {
        if shows {
            progress(&state);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(most);
        state = client.query_job(state.job, call)?;
    }
    if shows {
        progress(&state);
        clear();
    }
    tell(&state, json)?;
    if !json {
        let failed = state.errors.iter();
        failed.for_each(|(key, code)| note(&format!("{key}: {code}")));
    }
    Ok(match state.status {
        JobStatus::Succeeded => DONE,
        _ => WRONG,
    })
}

fn tell(state: &JobState, json: bool) -> Result<()> {
    if json {
        return say(job_described(state));
    }
    say(sentence(state))
}

fn sentence(state: &JobState) -> String {
    let work = match &state.spec.work {
        JobWork::Copy { key, targets, .. } => format!("copy {key} to {}", targets.join(", ")),
        JobWork::Move { key, target, .. } => format!("move {key} to {target}"),
        JobWork::Drain { places, .. } => format!("drain {}", places.join(", ")),
    };
    let status = match state.status {
        JobStatus::Running => "is under way",
        JobStatus::Succeeded => "is done",
        JobStatus::Failed => "has failed in part",
        JobStatus::Cancelled => "was cancelled",
    };
    let mut text = format!(
        "job {}: {work} {status} after {}: {} carried in {} values",
        state.job,
        format_duration(state.age),
        ByteSize(state.done_bytes),
        state.done,
    );
    if state.failed > 0 {
        text += &format!(", {} not", state.failed);
    }
    if state.left_bytes > 0 {
        text += &format!(", {} left", ByteSize(state.left_bytes));
    }
    printable(&text)
}

#[expect(clippy::print_stderr, reason = "progress, beside the answer")]
fn progress(state: &JobState) {
    eprint!("\r\x1b[2K{}{}", sentence(state), pace(state));
}

/// How fast a job that is under way carries bytes, and how long those that are left take so.
fn pace(state: &JobState) -> String {
    let rate = state.done_bytes as f64 / state.age.as_secs_f64();
    if state.status != JobStatus::Running || !rate.is_finite() || rate < 1.0 {
        return String::new();
    }
    let mut text = format!(", {}/s", ByteSize(rate as u64));
    if state.left_bytes > 0 {
        let left = Duration::try_from_secs_f64(state.left_bytes as f64 / rate);
        let left = HumanDuration(left.unwrap_or(Duration::MAX));
        text += &format!(", about {left} to go");
    }
    text
}

#[expect(clippy::print_stderr, reason = "progress, beside the answer")]
fn clear() {
    eprint!("\r\x1b[2K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_under_way_says_how_fast_it_is_and_how_long_it_takes() {
        let check = |status, (done_bytes, left_bytes): (u64, u64), age, expected: &str| {
            let state = JobState {
                job: JobId(7),
                spec: plain(JobWork::Drain {
                    places: vec!["4".to_owned()],
                    targets: Vec::new(),
                    disks: false,
                }),
                status,
                age: Duration::from_secs(age),
                unchanged: Duration::ZERO,
                active: 1,
                done: 1,
                done_bytes,
                failed: 0,
                left_bytes,
                errors: Vec::new(),
            };
            assert_eq!(pace(&state), expected);
        };
        let (running, mib) = (JobStatus::Running, 1 << 20);
        check(
            running,
            (20 * mib, 240 * mib),
            10,
            ", 2MiB/s, about 2 minutes to go",
        );
        check(running, (20 * mib, 0), 10, ", 2MiB/s");
        check(running, (20 * mib, mib), 0, "");
        check(running, (0, u64::MAX), 10, "");
        let slow = format!(", 1B/s, about {} to go", HumanDuration(Duration::MAX));
        check(running, (1, u64::MAX), 1, &slow);
        check(JobStatus::Succeeded, (20 * mib, 0), 10, "");
    }
}
