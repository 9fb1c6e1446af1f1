//! Checks of the house that no compiler makes: `cargo xtask layers | tidy | words | homes | deps | figures | links`; packages, from
//! what cargo and maturin built: `cargo xtask wheel | deb | static | sbom`; the documents: `cargo xtask book | site`;
//! and the checklist of a release: `cargo xtask release --dry-run`.

mod book;
mod deps;
mod figures;
mod homes;
mod layers;
mod links;
mod package;
mod release;
mod tidy;
mod words;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::book::folder;

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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (Some(command), rest),
        None => (None, &[][..]),
    };
    let report = match command.map(String::as_str) {
        Some("layers") => layers::check()?,
        Some("tidy") => tidy::check()?,
        Some("words") => words::check()?,
        Some("homes") => homes::check()?,
        Some("deps") => deps::check()?,
        Some("figures") => figures::check()?,
        Some("links") => links::check()?,
        Some("all") => [
            layers::check()?,
            tidy::check()?,
            words::check()?,
            homes::check()?,
            deps::check()?,
            figures::check()?,
            links::check()?,
        ]
        .concat(),
        Some("wheel") => package::wheel(rest)?,
        Some("deb") => package::deb(rest)?,
        Some("static") => package::standalone(rest)?,
        Some("sbom") => package::sbom(rest)?,
        Some("release") => release::walk(rest)?,
        Some("book") => book::assemble(&folder(rest, "out", "usage: cargo xtask book --out DIR")?)?,
        Some("site") => book::check_site(&folder(rest, "at", "usage: cargo xtask site --at DIR")?)?,
        _ => bail!(
            "usage: cargo xtask layers | tidy | words | homes | deps | figures | links | all, or wheel | deb | static | sbom | book | site | \
             release with their flags"
        ),
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
