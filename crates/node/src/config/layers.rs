use std::ffi::OsString;
use std::path::Path;

use slackwater_wait::FAILPOINT_ENV;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::service::ServiceSetting;
use super::{Config, ConfigProblem, ENV_PREFIX, OptionSpec, Source, suggest};

/// Environment names under our prefix that are no options of a store: those of commands, and of other parts, which read
/// them themselves.
const OTHER_ENV: &[&str] = &[
    "SLACKWATER_ADMIN",
    "SLACKWATER_ADMIN_TOKEN_FILE",
    "SLACKWATER_ALLOW",
    "SLACKWATER_CONFIG",
    "SLACKWATER_CONNECT",
    "SLACKWATER_DATA",
    "SLACKWATER_FORCE_TCP",
    "SLACKWATER_KEY_FILE",
    "SLACKWATER_KV_EVENTS",
    "SLACKWATER_KV_EVENTS_OPEN",
    "SLACKWATER_LISTEN",
    "SLACKWATER_MASTER",
    "SLACKWATER_NAME",
    "SLACKWATER_NODE_KEY_FILE",
    "SLACKWATER_PYTHON",
    "SLACKWATER_TRACES",
];
/// Names that begin so are options of the transfer engine, which reads them itself.
const TRANSFER_ENV: &str = "SLACKWATER_TCP_";

/// The table of a file that holds settings of services. Stores leave it alone.
const SERVICE: &str = "service";

/// Takes layers one after another and collects what is wrong with them.
#[derive(Default)]
pub(super) struct Loader {
    config: Config,
    pub(super) service: Vec<ServiceSetting>,
    problems: Vec<ConfigProblem>,
}

impl Loader {
    pub(super) fn file(&mut self, path: &Path) {
        let whole = |message: String| ConfigProblem {
            source: Source::File {
                path: path.to_owned(),
                line: 1,
            },
            key: String::new(),
            message,
        };
        match std::fs::read_to_string(path) {
            Ok(text) => self.text(path, &text),
            Err(error) => self
                .problems
                .push(whole(format!("cannot be read: {error}"))),
        }
    }

    fn text(&mut self, path: &Path, text: &str) {
        let at = |offset: usize| Source::File {
            path: path.to_owned(),
            line: 1 + text.as_bytes()[..offset.min(text.len())]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count(),
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let source = at(error.span().map_or(0, |span| span.start));
                self.problems.push(ConfigProblem {
                    source,
                    key: String::new(),
                    message: error.message().to_owned(),
                });
                return;
            }
        };
        self.table("", &table, &at);
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>, at: &impl Fn(usize) -> Source) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let name_text: &str = name.get_ref();
            let key = if prefix.is_empty() {
                name_text.to_owned()
            } else {
                format!("{prefix}.{name_text}")
            };
            let source = at(name.span().start);
            match value.get_ref() {
                DeValue::Table(inner) if is_table(&key) => self.table(&key, inner, at),
                DeValue::Table(inner) if key == SERVICE => self.service(inner, at),
                _ => match position(|spec| spec.key == key) {
                    Some(option) => self.value(option, value, source),
                    None => self.unknown(source, &key, Config::OPTIONS.iter().map(|spec| spec.key)),
                },
            }
        }
    }

    /// Takes in the settings of services, which only the commands know that have them.
    fn service(&mut self, table: &DeTable<'_>, at: &impl Fn(usize) -> Source) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let (source, name) = (at(name.span().start), name.get_ref().to_string());
            match text_of(value) {
                Ok(text) => self.service.push(ServiceSetting { name, text, source }),
                Err(found) => self.problems.push(ConfigProblem {
                    source,
                    key: format!("{SERVICE}.{name}"),
                    message: format!("expected text or a number, found {found}"),
                }),
            }
        }
    }

    fn value(&mut self, option: usize, value: &Spanned<DeValue<'_>>, source: Source) {
        let spec = &Config::OPTIONS[option];
        match text_of(value) {
            Ok(text) => self.set(option, &text, source),
            Err(found) => self.problems.push(ConfigProblem {
                source,
                key: spec.key.to_owned(),
                message: format!("expected {}, found {found}", spec.kind),
            }),
        }
    }

    pub(super) fn env(&mut self, env: impl Iterator<Item = (OsString, OsString)>) {
        let others = |name: &str| {
            OTHER_ENV.contains(&name)
                || name.starts_with(TRANSFER_ENV)
                || FAILPOINT_ENV == Some(name)
        };
        // No option has a name that is not text. What other programs put into the environment is none of our business.
        let mut ours: Vec<(String, OsString)> = env
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX) && !others(name))
            .collect();
        ours.sort();
        for (name, value) in ours {
            match position(|spec| spec.env() == name) {
                Some(option) => match value.into_string() {
                    Ok(text) => self.set(option, &text, Source::Env(name)),
                    Err(value) => self.problems.push(ConfigProblem {
                        source: Source::Env(name),
                        key: Config::OPTIONS[option].key.to_owned(),
                        message: format!("`{}` is not UTF-8", value.display()),
                    }),
                },
                None => {
                    let names: Vec<String> = Config::OPTIONS.iter().map(OptionSpec::env).collect();
                    self.unknown(
                        Source::Env(name.clone()),
                        &name,
                        names.iter().map(String::as_str),
                    );
                }
            }
        }
    }

    pub(super) fn flags(&mut self, flags: &[(String, String)]) {
        for (name, text) in flags {
            let flag = name.trim_start_matches('-').replace(['.', '_'], "-");
            match position(|spec| spec.flag() == flag) {
                Some(option) => self.set(option, text, Source::Flag(flag)),
                None => {
                    let names: Vec<String> = Config::OPTIONS.iter().map(OptionSpec::flag).collect();
                    self.unknown(
                        Source::Flag(flag.clone()),
                        &flag,
                        names.iter().map(String::as_str),
                    );
                }
            }
        }
    }

    pub(super) fn finish(self) -> Result<Config, Vec<ConfigProblem>> {
        let Self {
            config,
            mut problems,
            ..
        } = self;
        problems.extend(config.problems());
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    fn set(&mut self, option: usize, text: &str, source: Source) {
        let spec = &Config::OPTIONS[option];
        match (spec.set)(&mut self.config, text) {
            Ok(()) => self.config.sources.set(option, source),
            Err(message) => self.problems.push(ConfigProblem {
                source,
                key: spec.key.to_owned(),
                message,
            }),
        }
    }

    fn unknown<'a>(&mut self, source: Source, name: &str, names: impl Iterator<Item = &'a str>) {
        let hint = suggest::hint(name, names);
        self.problems.push(ConfigProblem {
            source,
            key: String::new(),
            message: format!("there is no option `{name}`{hint}"),
        });
    }
}

/// A value as people would write it on a command line, or what it is instead.
fn text_of(value: &Spanned<DeValue<'_>>) -> Result<String, &'static str> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        other => Err(other.type_str()),
    }
}

fn position(is: impl Fn(&OptionSpec) -> bool) -> Option<usize> {
    Config::OPTIONS.iter().position(is)
}

/// Whether options lie below this key, so that a table of that name is one of ours.
fn is_table(key: &str) -> bool {
    Config::OPTIONS.iter().any(|spec| {
        spec.key
            .strip_prefix(key)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use slackwater_base::ByteSize;

    use super::*;

    fn problems(text: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Vec<String> {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let mut loader = Loader::default();
        loader.text(Path::new("s.toml"), text);
        loader.env(env.iter().map(|(name, value)| (name.into(), value.into())));
        loader.flags(&pairs(flags));
        match loader.finish() {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn later_layers_win() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.toml");
        std::fs::write(
            &path,
            "memory = '2GiB'\npolicy = 'lru'\n[promotion]\nthreshold = 3\nenabled = true\n",
        )
        .unwrap();
        let env = [
            ("SLACKWATER_MEMORY", "3GiB"),
            ("SLACKWATER_PROMOTION_THRESHOLD", "4"),
            ("HOME", "/x"),
        ];
        let env = env.iter().map(|(name, value)| (name.into(), value.into()));
        let flags = [("--memory".to_owned(), "4GiB".to_owned())];
        let config = Config::load(Some(&path), env, &flags).unwrap();
        assert_eq!(config.memory, ByteSize::gib(4));
        assert_eq!(config.promotion_threshold, 4);
        assert_eq!(config.policy, crate::config::PolicyKind::Lru);
        assert_eq!(config.source_of("policy"), Source::File { path, line: 2 });
        assert_eq!(config.source_of("memory"), Source::Flag("memory".into()));
        assert_eq!(
            config.source_of("promotion.threshold"),
            Source::Env("SLACKWATER_PROMOTION_THRESHOLD".into())
        );
        assert_eq!(config.source_of("io"), Source::Default);
    }

    #[test]
    fn all_layers_report_at_once_with_place_and_suggestion() {
        let text = "memroy = '1GiB'\nlease_ttl = 'soon'\n\n[promotion]\ntreshold = 2\nlimit = 0\nbatch = [1]\n[colour]\n";
        let found = problems(
            text,
            &[("SLACKWATER_POLICI", "lru"), ("SLACKWATER_SSD", "8 gigs")],
            &[("io-dpeth", "4"), ("policy", "lur"), ("evict-high", "120%")],
        );
        assert_eq!(
            found,
            [
                "s.toml:1: there is no option `memroy`, did you mean `memory`?",
                "s.toml:2: lease_ttl: `soon` is not a duration: unknown unit `soon` (known: ns, us, ms, s, m, h, d)",
                "s.toml:5: there is no option `promotion.treshold`, did you mean `promotion.threshold`?",
                "s.toml:6: promotion.limit: 0 is not between 1 and 10000000",
                "s.toml:7: promotion.batch: expected number, found array",
                "s.toml:8: there is no option `colour`",
                "SLACKWATER_POLICI: there is no option `SLACKWATER_POLICI`, did you mean `SLACKWATER_POLICY`?",
                "SLACKWATER_SSD: ssd: `8 gigs` is not a size: unknown unit `gigs` (known: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)",
                "--io-dpeth: there is no option `io-dpeth`, did you mean `io-depth`?",
                "--policy: policy: `lur` is none of lru, s3fifo, wtinylfu, arc, twoq, gittins, adaptive, did you mean `lru`?",
                "--evict-high: evict.high: `120%` is not between 0 and 1",
            ]
        );
    }

    #[test]
    fn settings_of_services_are_left_to_the_services() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.toml");
        let text = "memory = '2GiB'\n[service]\nlisten = '127.0.0.1:1'\nforce_tcp = true\n";
        std::fs::write(&path, text).unwrap();
        let config = Config::load(Some(&path), std::iter::empty(), &[]).unwrap();
        assert_eq!(config.memory, ByteSize::gib(2));
        let setting = |name: &str, text: &str, line| ServiceSetting {
            name: name.to_owned(),
            text: text.to_owned(),
            source: Source::File {
                path: path.clone(),
                line,
            },
        };
        let expected = [
            setting("listen", "127.0.0.1:1", 3),
            setting("force_tcp", "true", 4),
        ];
        assert_eq!(Config::service_settings(&path), expected);
        let unknown = setting("lisen", "", 3).unknown(["listen"].into_iter());
        let said = "s.toml:3: service.lisen: no service has such a setting, did you mean `listen`?";
        assert!(unknown.to_string().ends_with(said), "{unknown}");
        assert_eq!(
            problems("[service]\nallow = ['a']\n[service.more]\n", &[], &[]),
            [
                "s.toml:2: service.allow: expected text or a number, found array",
                "s.toml:3: service.more: expected text or a number, found table",
            ]
        );
        assert_eq!(Config::service_settings(Path::new("/nowhere")), []);
    }

    #[test]
    fn a_file_that_is_no_toml_or_not_there_says_where() {
        assert_eq!(
            problems("memory = '1GiB'\nssd = = 3\n", &[], &[])[0]
                .split(':')
                .nth(1),
            Some("2")
        );
        let error =
            Config::load(Some(Path::new("/nowhere/s.toml")), std::iter::empty(), &[]).unwrap_err();
        assert!(
            error[0]
                .to_string()
                .starts_with("/nowhere/s.toml:1: cannot be read: No such file"),
            "{error:?}"
        );
    }

    /// The environment was read as text: one variable of any program that was not, and every process that opened a store
    /// panicked.
    #[test]
    fn an_environment_that_is_not_text_is_a_problem_where_it_is_ours() {
        let not_text = || OsString::from_vec(b"x\xff".to_vec());
        let mut loader = Loader::default();
        let env = [
            (not_text(), "1".into()),
            ("LS_COLORS".into(), not_text()),
            ("SLACKWATER_DIR".into(), not_text()),
        ];
        loader.env(env.into_iter());
        let problems = loader.finish().unwrap_err();
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["SLACKWATER_DIR: dir: `x\u{fffd}` is not UTF-8"]);
    }

    #[test]
    fn names_of_other_parts_are_left_alone() {
        let others = [
            ("SLACKWATER_CONFIG", "x"),
            ("SLACKWATER_PYTHON", "x"),
            ("SLACKWATER_FORCE_TCP", "1"),
            ("SLACKWATER_TCP_IO_THREADS", "2"),
        ];
        assert_eq!(problems("", &others, &[]), Vec::<String>::new());
    }

    /// Masters and nodes that were to end at a failpoint refused the name of it and ended at once, which their tests took
    /// for the end that they waited for.
    #[test]
    fn the_name_of_failpoints_is_left_alone_where_there_are_some() {
        let found = problems("", &[("SLACKWATER_FAILPOINT", "here=kill")], &[]);
        assert_eq!(found.is_empty(), FAILPOINT_ENV.is_some(), "{found:?}");
    }
}
