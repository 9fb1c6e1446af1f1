//! `slackwater completions` and `slackwater man`: what shells and `man` know of the command, from the definition of its
//! arguments.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;

use crate::answer;
use crate::{DONE, args};

/// The script of one shell.
#[derive(Clone, Debug, Args)]
pub(crate) struct Completions {
    /// Shell to write the script for
    shell: Shell,
}

/// The directory for the pages.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pages {
    /// Directory for slackwater.1 and a page for each command; made if it is missing
    directory: PathBuf,
}

/// Prints the script.
pub(crate) fn completions(arguments: &Completions) -> Result<u8> {
    answer::write(&script(arguments.shell))?;
    Ok(DONE)
}

/// Writes the pages: one for the command and one for each command below it.
pub(crate) fn pages(arguments: &Pages) -> Result<u8> {
    let directory = &arguments.directory;
    let place = || format!("cannot write manual pages into {}", directory.display());
    std::fs::create_dir_all(directory).with_context(place)?;
    clap_mangen::generate_to(args::command(), directory).with_context(place)?;
    Ok(DONE)
}

fn script(shell: Shell) -> Vec<u8> {
    let (mut command, mut script) = (args::command(), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_is_told_of_commands_and_of_options_of_the_store() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for word in ["slackwater", "replay", "promotion-threshold", "completions"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_that_help_shows_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name));
        let arguments = Pages {
            directory: directory.path().to_owned(),
        };
        pages(&arguments).unwrap();
        for command in args::command().get_subcommands() {
            let name = format!("slackwater-{}.1", command.get_name());
            assert_eq!(page(&name).is_ok(), !command.is_hide_set(), "{name}");
        }
        assert!(page("slackwater.1").is_ok() && page("slackwater-mq-echo.1").is_ok());
        let serve = page("slackwater-serve.1").unwrap();
        assert!(serve.contains("\\fBslackwater serve\\fR"), "{serve}");
        assert!(serve.contains("promotion\\-threshold"), "{serve}");
    }
}
