//! Settings of services out of a file: what `serve`, `master` and `node` take as flags beside the options of a store may also stand
//! in its table `[service]`. Flags go before the environment, and that before the file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use slackwater_node::Config;
use slackwater_node::config::{ConfigProblem, ServiceSetting};

/// The commands that have settings of services.
pub(crate) const SERVICES: [&str; 3] = ["serve", "master", "node"];

/// What a file adds to a command line.
#[derive(Debug, Default)]
pub(crate) struct Filed {
    /// Settings that neither a flag nor the environment gives, as flags.
    added: Vec<(ServiceSetting, OsString)>,
    /// What is wrong with others.
    pub(crate) problems: Vec<ConfigProblem>,
    /// Settings that only other services have.
    pub(crate) warnings: Vec<String>,
}

impl Filed {
    /// Reads the file that a command line names, if its command is a service or shows the configuration.
    pub(crate) fn read(
        command: &Command,
        line: &CommandLine<'_>,
        env: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Self {
        let mut filed = Self::default();
        let file = line.value(CONFIG).or_else(|| env(OsStr::new(CONFIG_ENV)));
        let (Some(file), Some(name)) = (file.map(PathBuf::from), line.name) else {
            return filed;
        };
        if !SERVICES.contains(&name) && name != "config" {
            return filed;
        }
        let own = command.find_subcommand(name);
        for setting in Config::service_settings(Path::new(&file)) {
            let of = |service: &str| command.find_subcommand(service);
            let whose = SERVICES.into_iter().filter(|service| {
                of(service).is_some_and(|service| argument(service, &setting.name).is_some())
            });
            let whose: Vec<&str> = whose.collect();
            if whose.is_empty() {
                let all = SERVICES.into_iter().filter_map(of).flat_map(settings);
                let all: Vec<String> = all.map(|(name, _)| name).collect();
                let unknown = setting.unknown(all.iter().map(String::as_str));
                filed.problems.push(unknown);
            } else if name == "config" {
                continue;
            } else if let Some(argument) = own.and_then(|own| argument(own, &setting.name)) {
                let in_env = argument.get_env().and_then(&env).is_some();
                if !in_env && !line.has(&flag_of(&setting.name)) {
                    filed.add(argument, setting);
                }
            } else {
                filed.warnings.push(format!(
                    "{}: `service.{}` has no effect in `slackwater {name}`: it is a setting of `slackwater {}`",
                    setting.source,
                    setting.name,
                    whose.join("` and `slackwater ")
                ));
            }
        }
        filed
    }

    fn add(&mut self, argument: &Arg, setting: ServiceSetting) {
        let flag = flag_of(&setting.name);
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
        let added = match (is_switch, setting.text.as_str()) {
            (false, text) => format!("{flag}={text}"),
            (true, "true") => flag,
            (true, "false") => return,
            (true, text) => {
                let message = format!("`{text}` is neither true nor false");
                return self.problems.push(setting.problem(message));
            }
        };
        self.added.push((setting, added.into()));
    }

    /// The flags that stand for the settings.
    pub(crate) fn flags(&self) -> impl Iterator<Item = OsString> {
        self.added.iter().map(|(_, flag)| flag.clone())
    }

    /// Says where a value is that was refused, if it is one of the file's.
    pub(crate) fn placed(&self, command: &mut Command, error: clap::Error) -> clap::Error {
        let Some(ContextValue::String(told)) = error.get(ContextKind::InvalidArg) else {
            return error;
        };
        let flag = told.split([' ', '=', '[']).next().unwrap_or(told);
        let refused = (self.added.iter()).find(|(setting, _)| flag_of(&setting.name) == flag);
        match (refused, std::error::Error::source(&error)) {
            (Some((setting, _)), Some(why)) => {
                let problem = setting.problem(format!("`{}`: {why}", setting.text));
                command.error(ErrorKind::ValueValidation, problem)
            }
            _ => error,
        }
    }
}

/// A command line before it is understood.
#[derive(Debug)]
pub(crate) struct CommandLine<'a> {
    words: &'a [OsString],
    /// The command, and where it stands.
    pub(crate) name: Option<&'a str>,
    at: usize,
}

impl<'a> CommandLine<'a> {
    /// Finds the command among the words.
    pub(crate) fn of(words: &'a [OsString]) -> Self {
        let mut at = 1;
        while let Some(word) = words.get(at) {
            if word.as_bytes().first() != Some(&b'-') {
                break;
            }
            // The one flag before the command that takes a value.
            at += if word == CONFIG { 2 } else { 1 };
        }
        let name = words.get(at).and_then(|word| word.to_str());
        Self { words, name, at }
    }

    /// The words with others right behind the command.
    pub(crate) fn with(&self, more: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let (before, behind) = self.words.split_at(self.words.len().min(self.at + 1));
        let before = before.iter().cloned();
        before.chain(more).chain(behind.iter().cloned()).collect()
    }

    fn has(&self, flag: &str) -> bool {
        self.value(flag).is_some() || self.words.iter().any(|word| word == flag)
    }

    /// The value of a flag, behind it or as the next word.
    fn value(&self, flag: &str) -> Option<OsString> {
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            if word == flag {
                return words.next().cloned();
            }
            let rest = word.as_bytes().strip_prefix(flag.as_bytes());
            if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(OsStr::from_bytes(value).to_owned());
            }
        }
        None
    }
}

/// The settings of a service by the names that they have in a file.
fn settings(service: &Command) -> impl Iterator<Item = (String, &Arg)> {
    service.get_arguments().filter_map(|argument| {
        let flag = argument.get_long()?;
        let of_store = Config::OPTIONS.iter().any(|option| option.flag() == flag);
        (!of_store).then(|| (flag.replace('-', "_"), argument))
    })
}

fn argument<'c>(service: &'c Command, name: &str) -> Option<&'c Arg> {
    let mut settings = settings(service);
    settings.find_map(|(of, argument)| (of == name).then_some(argument))
}

fn flag_of(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

const CONFIG: &str = "--config";
const CONFIG_ENV: &str = "SLACKWATER_CONFIG";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// What a command line with this file and this environment becomes.
    fn read(table: &str, line: &str, env: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s.toml");
        std::fs::write(&file, format!("[service]\n{table}")).unwrap();
        let path = file.display().to_string();
        let words = line.replace("FILE", &path);
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let command = args::command();
        let line = CommandLine::of(&words);
        let filed = Filed::read(&command, &line, |name| {
            let found = env.iter().find(|(of, _)| name == *of);
            found.map(|(_, value)| value.replace("FILE", &path).into())
        });
        let short = |text: String| text.replace(&path, "s.toml");
        let words = line.with(filed.flags()).into_iter();
        let words = words.map(|word| short(word.into_string().unwrap()));
        let problems = filed.problems.iter().map(ToString::to_string);
        let told = problems.chain(filed.warnings.clone()).map(short);
        (words.collect(), told.collect())
    }

    #[test]
    fn a_file_gives_what_neither_a_flag_nor_the_environment_does() {
        let table = "listen = '127.0.0.1:1'\nadmin = 'none'\n";
        let check = |line: &str, env: &[(&str, &str)], expected: &str| {
            let (words, told) = read(table, line, env);
            assert_eq!(
                (words.join(" "), told),
                (expected.to_owned(), vec![]),
                "{line}"
            );
        };
        let of_file = "x --config s.toml serve --listen=127.0.0.1:1 --admin=none";
        check("x --config FILE serve", &[], of_file);
        let named = [("SLACKWATER_CONFIG", "FILE")];
        check(
            "x serve",
            &named,
            "x serve --listen=127.0.0.1:1 --admin=none",
        );
        check(
            "x serve --listen 127.0.0.1:2 --config=FILE",
            &[],
            "x serve --admin=none --listen 127.0.0.1:2 --config=s.toml",
        );
        let listens = [("SLACKWATER_LISTEN", "127.0.0.1:3")];
        check(
            "x serve --config=FILE",
            &listens,
            "x serve --admin=none --config=s.toml",
        );
        check("x get k --config=FILE", &[], "x get k --config=s.toml");
        check("x config --config=FILE", &[], "x config --config=s.toml");
        check("x serve", &[], "x serve");
    }

    #[test]
    fn a_switch_is_true_or_false_and_names_are_those_of_flags() {
        let check = |table: &str, expected: &[&str], told: &[&str]| {
            let (words, problems) = read(table, "x node --config=FILE", &[]);
            assert_eq!(words[2..words.len() - 1], *expected, "{table}");
            assert_eq!(problems, told, "{table}");
        };
        check("force_tcp = true", &["--force-tcp"], &[]);
        check("force_tcp = false", &[], &[]);
        check(
            "force_tcp = 'yes'",
            &[],
            &["s.toml:2: service.force_tcp: `yes` is neither true nor false"],
        );
        check(
            "leave_time = '0s'\nkey_file = 'k'\nallow = 'a'",
            &["--leave-time=0s", "--key-file=k", "--allow=a"],
            &[],
        );
        check(
            "dtaa = '127.0.0.1:1'",
            &[],
            &["s.toml:2: service.dtaa: no service has such a setting, did you mean `data`?"],
        );
        // An option of the store stands outside the table.
        check(
            "memory = '1GiB'",
            &[],
            &["s.toml:2: service.memory: no service has such a setting"],
        );
        check(
            "directory = '/d'",
            &[],
            &[
                "s.toml:2: `service.directory` has no effect in `slackwater node`: it is a setting of `slackwater master`",
            ],
        );
    }

    #[test]
    fn a_value_that_is_refused_is_told_with_its_place() {
        let check = |table: &str, expected: &str| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("s.toml");
            std::fs::write(&file, format!("[service]\n{table}\n")).unwrap();
            let line = [
                "x".as_ref(),
                "--config".as_ref(),
                file.as_os_str(),
                "node".as_ref(),
            ];
            let error = args::parse(line).unwrap_err();
            let said = error
                .to_string()
                .replace(&file.display().to_string(), "s.toml");
            assert!(said.starts_with(expected), "{said}");
            assert_eq!(error.exit_code(), 2);
        };
        check(
            "data = 'nowhere'",
            "error: s.toml:2: service.data: `nowhere`: invalid socket address",
        );
        check(
            "force_tcp = true\nleave_time = 'soon'",
            "error: s.toml:3: service.leave_time: `soon`: ",
        );
        check("key_file = 'k'", "error: the following required arguments");
    }

    #[test]
    fn every_setting_is_in_the_guide() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/configuration.md");
        let guide = std::fs::read_to_string(path).unwrap();
        let command = args::command();
        let services = SERVICES.map(|name| command.find_subcommand(name).unwrap());
        for (name, _) in services.into_iter().flat_map(settings) {
            assert!(guide.contains(&format!("`{name}`")), "{name}");
        }
    }
}
