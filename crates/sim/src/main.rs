//! Runs seeds of the simulator from the command line.
#![expect(clippy::print_stdout, reason = "a command prints")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_base::Planted;
use slackwater_sim::engine::Seed;
use slackwater_sim::options::Profile;
use slackwater_sim::plan::Plan;
use slackwater_sim::run::{run, run_seed, shrink};

const USAGE: &str = "\
slackwater-sim --seed N [--trace] [--shrink] [--profile NAME] [--planted NAME]
slackwater-sim --seeds FROM..TO [--jobs N] [--profile NAME] [--planted NAME]

Runs the cluster of a seed, or of a range of seeds, and says which invariant broke, if one did.
Profiles: ordinary (unless another is named), churn, churn-rot.
";

struct Arguments {
    seeds: std::ops::Range<u64>,
    jobs: u64,
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
    let failed = if arguments.seeds.end - arguments.seeds.start == 1 {
        one(&arguments)
    } else {
        many(&arguments)
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
        jobs: 2,
        trace: false,
        shrink: false,
        profile,
        planted: None,
    };
    let mut words = words;
    let number = |word: Option<String>, of: &str| -> Result<u64, String> {
        let word = word.ok_or_else(|| format!("{of} needs a number"))?;
        word.parse().map_err(|_| format!("`{word}` is no number"))
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
            "--jobs" => arguments.jobs = number(words.next(), "--jobs")?.max(1),
            "--trace" => arguments.trace = true,
            "--shrink" => arguments.shrink = true,
            "--profile" => {
                let name = words.next().ok_or("--profile needs a name")?;
                arguments.profile = name.parse()?;
            }
            "--planted" => {
                let name = words.next().ok_or("--planted needs a name")?;
                let known = Planted::ALL.iter().find(|bug| format!("{bug:?}") == name);
                let list = || {
                    Planted::ALL
                        .iter()
                        .map(|bug| format!("{bug:?}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                arguments.planted =
                    Some(*known.ok_or_else(|| format!("`{name}` is none of {}", list()))?);
            }
            other => return Err(format!("`{other}` is no option")),
        }
    }
    if arguments.seeds.is_empty() {
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
    let (next, failures) = (AtomicU64::new(arguments.seeds.start), AtomicU64::new(0));
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.seeds.end {
                        break;
                    }
                    if let Some((at, violation)) =
                        run_seed(arguments.profile, seed, arguments.planted).violation
                    {
                        failures.fetch_add(1, Ordering::Relaxed);
                        println!("seed {seed} at {at}: {violation}");
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    println!(
        "{} seeds, {failures} failed",
        arguments.seeds.end - arguments.seeds.start
    );
    failures > 0
}
