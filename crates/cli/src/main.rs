//! The `slackwater` command.

mod admin;
mod answer;
mod args;
mod bench;
mod compare;
mod config;
mod doctor;
mod explain;
mod interrupt;
mod jobs;
mod kv_events;
mod manual;
mod notify;
mod policy;
mod pool;
mod printable;
mod remote;
mod replay;
mod serve;
mod service;
mod settings;
mod size;
mod source;
mod tools;
mod top;
mod topology;
mod traces;
mod usage;

use std::process::ExitCode;

use args::Command;

/// Ended as asked.
const DONE: u8 = 0;
/// Something is wrong: the message says what.
const WRONG: u8 = 1;
/// Cut short by Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;

#[expect(
    clippy::print_stderr,
    reason = "the last word of a command goes to its user"
)]
fn main() -> ExitCode {
    let args::Parsed { cli, flags, filed } =
        args::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let layers = config::Layers {
        file: cli.config,
        flags,
        problems: filed.problems,
        warnings: filed.warnings,
    };
    let done = match cli.command {
        Command::Replay(arguments) => replay::run(&arguments, layers),
        Command::Policy(arguments) => policy::run(&arguments),
        Command::Size(arguments) => size::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments, &layers),
        Command::Serve(arguments) => serve::run(&arguments, &layers),
        Command::Master(arguments) => pool::master(&arguments, &layers),
        Command::Node(arguments) => pool::node(&arguments, &layers),
        Command::Put(arguments) => remote::put(&arguments),
        Command::Get(arguments) => remote::get(&arguments),
        Command::Ls(arguments) => remote::ls(&arguments),
        Command::Stat(arguments) => remote::stat(&arguments),
        Command::Rm(arguments) => remote::rm(&arguments),
        Command::Cp(arguments) => jobs::cp(&arguments),
        Command::Mv(arguments) => jobs::mv(&arguments),
        Command::Drain(arguments) => jobs::drain(&arguments),
        Command::Jobs(arguments) => jobs::jobs(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Bench(scenario) => bench::run(&scenario),
        Command::Config(arguments) => config::run(&arguments, &layers),
        Command::Keys(verb) => tools::keys(&verb),
        Command::Mq(verb) => tools::mq(&verb),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::pages(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments, &layers),
        Command::Topology(arguments) => topology::run(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is::<answer::Closed>() => ExitCode::from(DONE),
        Err(error) => {
            eprintln!("slackwater: {}", said(&error));
            ExitCode::from(WRONG)
        }
    }
}

/// An error and its causes, each once: many an error has its cause in its own words.
fn said(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if said.contains(&words) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&words);
    }
    said
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::said;

    /// `the key file: FILE: mode 644 …` was followed by all of that again.
    #[test]
    fn a_cause_that_is_in_the_words_of_its_error_is_not_said_again() {
        let check = |causes: &[&'static str], expected: &str| {
            let mut rest = causes.iter();
            let innermost = anyhow!(*rest.next().unwrap());
            let error = rest.fold(innermost, |error, words| error.context(*words));
            assert_eq!(said(&error), expected);
        };
        check(&["no such file"], "no such file");
        check(&["no such file", "kv"], "kv: no such file");
        check(
            &["mode 644", "the key file: mode 644"],
            "the key file: mode 644",
        );
        check(&["b", "a b", "c"], "c: a b");
    }
}
