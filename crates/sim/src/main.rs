//! Runs seeds of the simulator from the command line.
#![expect(clippy::print_stdout, reason = "a command prints")]

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use slackwater_base::Planted;
use slackwater_sim::engine::Seed;
use slackwater_sim::options::Profile;
use slackwater_sim::plan::Plan;
use slackwater_sim::run::{run, run_seeds, shrink};

const USAGE: &str = "\
slackwater-sim --seed N [--trace] [--shrink] [--profile NAME] [--planted NAME]
slackwater-sim --seeds FROM..TO [--jobs N] [--profile NAME] [--planted NAME]
slackwater-sim --soak MINUTES [--jobs N] [--planted NAME]

Runs the cluster of a seed, or of a range of seeds, and says which invariant broke, if one did. A soak runs all
profiles on seeds that the clock chooses, so that none was used before.
Profiles: ordinary (unless another is named), churn, churn-rot, jobs, restarts, absences.
";

struct Arguments {
    seeds: Range<u64>,
    soak: Option<Duration>,
    jobs: usize,
    trace: bool,
    shrink: bool,
    profile: Profile,
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            println!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let failed = match arguments.soak {
        Some(length) => soak(&arguments, length),
        None if arguments.seeds.end - arguments.seeds.start == 1 => one(&arguments),
        None => many(&arguments),
    };
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let profile = Profile::Ordinary;
    let mut arguments = Arguments {
        seeds: 0..0,
        soak: None,
        jobs: 2,
        trace: false,
        shrink: false,
        profile,
        planted: None,
    };
    let mut words = words;
    let number = |word: Option<String>, of: &str| -> Result<u64, String> {
        let word = word.ok_or_else(|| format!("{of} needs a number"))?;
        word.parse()
            .map_err(|_| format!("`{word}` is not a number"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => {
                let seed = number(words.next(), "--seed")?;
                arguments.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let range = words
                    .next()
                    .ok_or("--seeds needs a range such as 0..2000")?;
                let (from, to) = range
                    .split_once("..")
                    .ok_or("--seeds needs a range such as 0..2000")?;
                arguments.seeds =
                    number(Some(from.into()), "--seeds")?..number(Some(to.into()), "--seeds")?;
            }
            "--soak" => {
                let minutes = number(words.next(), "--soak")?;
                arguments.soak = Some(Duration::from_secs(minutes.saturating_mul(60)));
            }
            "--jobs" => {
                let jobs = number(words.next(), "--jobs")?;
                arguments.jobs = usize::try_from(jobs.clamp(1, 256)).unwrap_or(1);
            }
            "--trace" => arguments.trace = true,
            "--shrink" => arguments.shrink = true,
            "--profile" => {
                let name = words.next().ok_or("--profile needs a name")?;
                arguments.profile = name.parse()?;
            }
            "--planted" => {
                let name = words.next().ok_or("--planted needs a name")?;
                let rare = || {
                    let others = Planted::LOG.iter().chain(Planted::POOL);
                    others.filter(|bug| !Planted::ALL.contains(bug))
                };
                let bugs = || Planted::ALL.iter().chain(rare());
                let known = bugs().find(|bug| format!("{bug:?}") == name);
                let list = || {
                    bugs()
                        .map(|bug| format!("{bug:?}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                arguments.planted =
                    Some(*known.ok_or_else(|| format!("`{name}` is none of {}", list()))?);
            }
            other => return Err(format!("`{other}` is not an option")),
        }
    }
    if arguments.seeds.is_empty() && arguments.soak.is_none() {
        Err("nothing to run".into())
    } else {
        Ok(arguments)
    }
}

fn one(arguments: &Arguments) -> bool {
    let mut plan = Plan::of(arguments.profile, Seed(arguments.seeds.start));
    println!("{:#?}", plan.options);
    if arguments.shrink {
        let first = run(&plan, arguments.planted, None);
        if let Some((_, violation)) = first.violation {
            let (faults, operations) = (plan.faults.len(), plan.operations());
            plan = shrink(&plan, arguments.planted, violation.invariant, 2000);
            println!("shrunk from {faults} faults and {operations} operations to:");
            println!("faults {:#?}\nscripts {:#?}", plan.faults, plan.scripts);
        }
    }
    let listener = arguments
        .trace
        .then_some((|line| println!("{line}")) as fn(&str));
    let outcome = run(&plan, arguments.planted, listener);
    println!("{:#?}", outcome.stats);
    println!("trace {:#018x}", outcome.trace_hash);
    match &outcome.violation {
        Some((at, violation)) => println!("seed {} at {at}: {violation}", arguments.seeds.start),
        None => println!("seed {}: every invariant held", arguments.seeds.start),
    }
    outcome.violation.is_some()
}

fn many(arguments: &Arguments) -> bool {
    let seeds = arguments.seeds.clone();
    let failures = quietly(arguments.profile, seeds.clone(), arguments);
    println!("{} seeds, {failures} failed", seeds.end - seeds.start);
    failures > 0
}

/// Runs all profiles in turn, [`SOAK_STEP`] seeds at a time, until the time has passed.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock ends the soak, and decides nothing within a run"
)]
fn soak(arguments: &Arguments, length: Duration) -> bool {
    let first = fresh_seed();
    let mut ranges = Profile::ALL.map(|profile| (profile, first..first));
    let (began, mut failures) = (Instant::now(), 0);
    while began.elapsed() < length {
        for (profile, range) in &mut ranges {
            let step = range.end..range.end + SOAK_STEP;
            failures += quietly(*profile, step.clone(), arguments);
            range.end = step.end;
        }
    }
    for (profile, range) in &ranges {
        println!("{} seeds {}..{}", profile.name(), range.start, range.end);
    }
    println!("{failures} failed in {} s", began.elapsed().as_secs());
    failures > 0
}

/// Seeds of each profile between two checks of the time.
const SOAK_STEP: u64 = 100;

/// A seed that no earlier soak began with: a thousand seeds are reserved for each second of wall time, more than a soak
/// runs.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock chooses seeds, and decides nothing within a run"
)]
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs()) * 1000
}

/// Runs seeds and prints each failure with the command that reproduces it.
fn quietly(profile: Profile, seeds: Range<u64>, arguments: &Arguments) -> u64 {
    std::panic::set_hook(Box::new(|_| ()));
    let (jobs, planted) = (arguments.jobs, arguments.planted);
    let failures = run_seeds(profile, seeds, jobs, planted, |seed, at, violation| {
        let planted = planted.map_or(String::new(), |bug| format!(" --planted {bug:?}"));
        println!("seed {seed} at {at}: {violation}");
        println!(
            "    cargo run -p slackwater-sim -- --seed {seed} --profile {}{planted} --trace",
            profile.name()
        );
    });
    drop(std::panic::take_hook());
    failures
}
