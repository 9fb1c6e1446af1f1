//! `slackwater bench all`: every benchmark several times, each run a process of its own, and one page of all figures.
//!
//! Each run is kept as soon as it is over, so that a command that was interrupted goes on where it was.

mod figures;
mod plan;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::one_or_more;
use crate::answer;
use crate::{DONE, WRONG};
use figures::Measured;
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

    /// End with exit code 1 where a bound does not hold in most runs
    #[arg(long)]
    strict: bool,
}

/// A run that is over.
#[derive(Serialize, Deserialize)]
struct Run {
    /// The command that it is of: another plan measures anew.
    command: String,
    report: Value,
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
    let kept = arguments.report.join("runs");
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let bar = progress((parts.len() * arguments.runs) as u64);
    let mut measured = Vec::new();
    for part in parts {
        let words = if arguments.quick {
            part.quick
        } else {
            part.words
        };
        let directory = part
            .writes
            .then(|| format!(" --dir {}", arguments.dir.display()));
        let command = format!(
            "slackwater bench {}{}",
            words.join(" "),
            directory.unwrap_or_default()
        );
        // A taste takes no place of a run.
        let name = match arguments.quick {
            true => format!("{}-quick", part.name),
            false => part.name.to_owned(),
        };
        let mut of_part = Measured {
            part,
            command,
            runs: Vec::new(),
            failure: None,
        };
        for number in 1..=arguments.runs {
            bar.set_message(format!("{}, run {number}", of_part.part.name));
            bar.tick();
            let path = kept.join(format!("{name}-{number}.json"));
            match kept_run(&path, &of_part.command)? {
                Some(report) => of_part.runs.push(report),
                None => match measure(&program, words, part.writes.then_some(&arguments.dir)) {
                    Ok(report) => {
                        keep(&path, &of_part.command, &report)?;
                        of_part.runs.push(report);
                    }
                    Err(error) => {
                        bar.println(format!("{}: {error:#}", of_part.part.name));
                        of_part.failure = Some(format!("{error:#}"));
                        bar.inc((arguments.runs - number + 1) as u64);
                        break;
                    }
                },
            }
            bar.inc(1);
        }
        measured.push(of_part);
    }
    bar.finish_and_clear();
    let page = arguments.report.join("figures.md");
    write(&page, figures::page(&measured).as_bytes())?;
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

fn progress(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = "{bar:28.cyan/dim} {pos}/{len} · {elapsed} · {eta} left · {msg}";
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("━╸─"));
    bar
}

/// A run that is there already, of the same command.
fn kept_run(path: &Path, command: &str) -> Result<Option<Value>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let run: Run = serde_json::from_slice(&text).with_context(|| {
        let path = path.display();
        format!("{path} is no run of a benchmark: remove it to have it measured again")
    })?;
    Ok((run.command == command).then_some(run.report))
}

fn keep(path: &Path, command: &str, report: &Value) -> Result<()> {
    let run = Run {
        command: command.to_owned(),
        report: report.clone(),
    };
    write(path, &serde_json::to_vec(&run)?)
}

/// Whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Runs one benchmark for its report.
fn measure(program: &OsString, words: &[&str], directory: Option<&PathBuf>) -> Result<Value> {
    let mut command = Command::new(program);
    command.arg("bench").args(words).arg("--json");
    if let Some(directory) = directory {
        command.arg("--dir").arg(directory);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot start this program again")?;
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

    #[test]
    fn a_run_is_taken_for_its_own_command_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wait-1.json");
        assert!(kept_run(&path, "a").unwrap().is_none());
        keep(&path, "a", &serde_json::json!({ "us": 1 })).unwrap();
        assert_eq!(kept_run(&path, "a").unwrap().unwrap()["us"], 1);
        assert!(kept_run(&path, "b").unwrap().is_none());
        fs::write(&path, "{").unwrap();
        let error = kept_run(&path, "a").unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }
}
