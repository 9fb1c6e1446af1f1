//! `slackwater bench all`: every benchmark several times, each run a process of its own, and one page of all figures.
//!
//! Each run is kept as soon as it is over, so that a command that was interrupted goes on where it was.

mod figures;
mod kept;
mod pace;
mod plan;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use slackwater_bench::tied;

use super::args::one_or_more;
use crate::answer;
use crate::{DONE, WRONG};
use figures::Measured;
use kept::{Origin, Run};
use pace::Pace;
use plan::{PARTS, Part};

/// See [`super::Bench::All`].
#[derive(Clone, Debug, Args)]
pub(crate) struct All {
    /// Directory for the runs and the page: one that has some already is gone on with
    #[arg(long, value_name = "DIR")]
    report: PathBuf,

    /// Where files are made and removed again: on the device to be measured
    #[arg(long, default_value = ".", value_name = "DIR")]
    dir: PathBuf,

    /// Runs of each benchmark
    #[arg(long, default_value = "5", value_name = "N", value_parser = one_or_more)]
    runs: usize,

    /// Benchmarks [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = part)]
    only: Vec<Part>,

    /// A taste of a few seconds each: the figures mean nothing
    #[arg(long)]
    quick: bool,

    /// Keep runs of another program or machine: the page says so
    #[arg(long)]
    mix: bool,

    /// End with exit code 1 where a bound does not hold in most runs
    #[arg(long)]
    strict: bool,
}

fn part(name: &str) -> Result<Part, String> {
    let mut parts = PARTS.iter();
    let names = || {
        PARTS
            .iter()
            .map(|part| part.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = parts.find(|part| part.name == name).copied();
    found.ok_or_else(|| format!("`{name}` is no benchmark: one of {}", names()))
}

/// Measures what is missing, and writes the page.
pub(super) fn run(arguments: &All, program: OsString) -> Result<u8> {
    let parts = match &arguments.only[..] {
        [] => PARTS.to_vec(),
        only => only.to_vec(),
    };
    let directory = arguments.report.join("runs");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let origin = Origin::of(&program)?;
    let mut measured: Vec<Measured> = parts.into_iter().map(|part| arguments.part(part)).collect();
    // All that is kept is read before anything is measured: what is wrong with it is told now and not after hours.
    let mut missing = Vec::new();
    for (at, part) in measured.iter_mut().enumerate() {
        for number in 1..=arguments.runs {
            let path = directory.join(arguments.file(part.part, number));
            match kept::read(&path, &part.command)? {
                Some(run) if run.origin != origin && !arguments.mix => bail!(
                    "{} is of {}, not of {origin}: remove it to have it measured again, or keep it by --mix",
                    path.display(),
                    run.origin
                ),
                Some(run) => part.runs.push(run),
                None => missing.push((at, number, path)),
            }
        }
    }
    let mut pace = Pace::new(
        &measured,
        missing.iter().map(|(at, ..)| *at),
        arguments.quick,
    );
    for (at, number, path) in missing {
        let part = &mut measured[at];
        if part.failure.is_some() {
            pace.over(at, None);
            continue;
        }
        pace.begin(part.part.name, number);
        let began = slackwater_wait::now();
        let words = arguments.words(part.part);
        let found = measure(&program, words, part.part.writes.then_some(&arguments.dir));
        let seconds = slackwater_wait::now().since(began).as_secs_f64();
        match found {
            Ok(report) => {
                let run = Run {
                    command: part.command.clone(),
                    origin: origin.clone(),
                    seconds,
                    report,
                };
                kept::write(&path, &serde_json::to_vec(&run)?)?;
                part.runs.push(run);
                pace.over(at, Some(seconds));
            }
            Err(error) => {
                pace.say(&format!("{}: {error:#}", part.part.name));
                part.failure = Some(format!("{error:#}"));
                pace.over(at, None);
            }
        }
    }
    pace.finish();
    let page = arguments.report.join("figures.md");
    kept::write(&page, figures::page(&measured, &origin).as_bytes())?;
    answer::say(page.display())?;
    let failed = measured.iter().any(|part| part.failure.is_some());
    let broken: usize = measured.iter().map(Measured::broken).sum();
    if broken > 0 {
        crate::remote::note(&format!("{broken} bounds do not hold; the page says which"));
    }
    Ok(match failed || (arguments.strict && broken > 0) {
        true => WRONG,
        false => DONE,
    })
}

impl All {
    fn words(&self, part: Part) -> &'static [&'static str] {
        match self.quick {
            true => part.quick,
            false => part.words,
        }
    }

    fn part(&self, part: Part) -> Measured {
        let mut command = format!("slackwater bench {}", self.words(part).join(" "));
        if part.writes {
            command += &format!(" --dir {}", self.dir.display());
        }
        Measured {
            part,
            command,
            runs: Vec::new(),
            failure: None,
        }
    }

    /// A taste takes no place of a run.
    fn file(&self, part: Part, number: usize) -> String {
        let quick = if self.quick { "-quick" } else { "" };
        format!("{}{quick}-{number}.json", part.name)
    }
}

/// Runs one benchmark for its report.
fn measure(program: &OsString, words: &[&str], directory: Option<&PathBuf>) -> Result<Value> {
    let mut command = Command::new(program);
    command.arg("bench").args(words).arg("--json");
    if let Some(directory) = directory {
        command.arg("--dir").arg(directory);
    }
    let output = tied::output(command).context("cannot start this program again")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("it said nothing");
        bail!("{}: {last}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("its report is no JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_of_their_own() {
        let mut names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
        assert!(part("wait").is_ok());
        assert!(part("all").unwrap_err().contains("one of wait, promotion"));
    }
}
