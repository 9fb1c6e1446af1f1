//! Checks of the house that no compiler makes: `cargo xtask layers | tidy | words | homes | deps`.

mod deps;
mod homes;
mod layers;
mod tidy;
mod words;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people"
)]
fn main() -> ExitCode {
    match run() {
        Ok(lines) => {
            println!("{}", lines.join("\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Vec<String>> {
    let command = std::env::args().nth(1);
    let report = match command.as_deref() {
        Some("layers") => layers::check()?,
        Some("tidy") => tidy::check()?,
        Some("words") => words::check()?,
        Some("homes") => homes::check()?,
        Some("deps") => deps::check()?,
        Some("all") => [
            layers::check()?,
            tidy::check()?,
            words::check()?,
            homes::check()?,
            deps::check()?,
        ]
        .concat(),
        _ => bail!("usage: cargo xtask layers | tidy | words | homes | deps | all"),
    };
    Ok(report)
}

/// One line of success, or every problem at once.
fn verdict(what: &str, checked: usize, problems: Vec<String>) -> Result<Vec<String>> {
    if problems.is_empty() {
        return Ok(vec![format!("{what}: {checked} checked, all good")]);
    }
    bail!(
        "{what}: {} problem(s)\n  {}",
        problems.len(),
        problems.join("\n  ")
    )
}
