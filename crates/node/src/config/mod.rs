//! Configuration: every option is declared once, in `options.rs`, and from that one row come its key in a TOML file,
//! its environment name, its flag, its documentation and its line in `config --explain`.
//!
//! Layers, later ones winning: defaults, file, environment, flags. Loading reports every problem there is at once.

mod layers;
mod options;
mod range;
mod role;
mod service;
mod suggest;
mod value;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use slackwater_meta::Promotion;
use slackwater_wire::{SegmentKind, Watermarks};

pub use options::{Config, HugePages, IoBackend, LogFormat};
pub use role::Role;
pub use service::ServiceSetting;
pub use value::{LogFilter, Ratio, Threads, Value};

pub use slackwater_meta::evict::PolicyKind;
pub use slackwater_meta::{OffloadMode, PromotionAdmission};

/// Prefix of every environment name.
pub const ENV_PREFIX: &str = "SLACKWATER_";

/// An option as documentation, flags and loaders see it.
pub struct OptionSpec {
    /// Its name in a file, dots separating tables: `promotion.threshold`.
    pub key: &'static str,
    /// What it does, in sentences.
    pub doc: &'static str,
    /// What kind of value it takes.
    pub kind: &'static str,
    /// Which values of that kind it takes; empty when all.
    pub range: fn() -> String,
    /// Every text it takes, where they are few.
    pub choices: fn() -> Vec<&'static str>,
    /// Sets it from text, or says what is wrong with the text.
    pub set: fn(&mut Config, &str) -> Result<(), String>,
    /// Its value as text.
    pub show: fn(&Config) -> String,
}

impl OptionSpec {
    /// Its environment name: `SLACKWATER_PROMOTION_THRESHOLD`.
    #[must_use]
    pub fn env(&self) -> String {
        format!(
            "{ENV_PREFIX}{}",
            self.key.replace('.', "_").to_ascii_uppercase()
        )
    }

    /// Its flag without the dashes: `promotion-threshold`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// What it takes: the kind of value and its range.
    #[must_use]
    pub fn takes(&self) -> String {
        let range = (self.range)();
        if range.is_empty() {
            self.kind.to_owned()
        } else {
            format!("{}, {range}", self.kind)
        }
    }

    /// Its default as text.
    #[must_use]
    pub fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

impl fmt::Debug for OptionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionSpec")
            .field("key", &self.key)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// No layer set it.
    #[default]
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Env(name) => f.write_str(name),
            Source::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Where each option of a [`Config`] came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

impl Sources {
    fn get(&self, option: usize) -> Source {
        self.0.get(option).cloned().unwrap_or_default()
    }

    fn set(&mut self, option: usize, source: Source) {
        if self.0.len() <= option {
            self.0.resize(option + 1, Source::Default);
        }
        self.0[option] = source;
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Where it was said; the default source for problems between options.
    pub source: Source,
    /// The option, or what was taken for one; empty when the file as a whole is wrong.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source != Source::Default {
            write!(f, "{}: ", self.source)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigProblem {}

/// One line of `config --explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Name in a file.
    pub key: &'static str,
    /// Environment name.
    pub env: String,
    /// Flag, without the dashes.
    pub flag: String,
    /// Kind of value, and its range.
    pub takes: String,
    /// Kind of value.
    pub kind: &'static str,
    /// Value in force.
    pub value: String,
    /// Value when no layer sets it.
    pub default: String,
    /// Where the value in force came from.
    pub source: Source,
    /// The option's documentation, in sentences.
    pub doc: &'static str,
}

impl Config {
    /// Reads the layers in order: defaults, `file`, `env`, `flags`.
    ///
    /// Of `env`, names outside [`ENV_PREFIX`] are ignored. A flag is named as in [`OptionSpec::flag`], leading dashes
    /// optional; the key itself will do too.
    ///
    /// # Errors
    /// Every problem there is, of all layers, not only the first.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (OsString, OsString)>,
        flags: &[(String, String)],
    ) -> Result<Config, Vec<ConfigProblem>> {
        let mut loader = layers::Loader::default();
        if let Some(path) = file {
            loader.file(path);
        }
        loader.env(env);
        loader.flags(flags);
        loader.finish()
    }

    /// Gives an option another value where no layer set one: what a face prefers to the default.
    ///
    /// # Errors
    /// What the option says about the value.
    ///
    /// # Panics
    /// When there is no such option.
    pub fn default_to(&mut self, key: &str, value: &str) -> Result<(), String> {
        let option = Config::option(key).expect("faces name options that there are");
        if self.source_of(key) == Source::Default {
            (option.set)(self, value)
        } else {
            Ok(())
        }
    }

    /// Every option: value, default, source and names.
    #[must_use]
    pub fn explain(&self) -> Vec<Explained> {
        let line = |(index, spec): (usize, &OptionSpec)| Explained {
            key: spec.key,
            env: spec.env(),
            flag: spec.flag(),
            takes: spec.takes(),
            kind: spec.kind,
            value: (spec.show)(self),
            default: spec.default(),
            source: self.sources.get(index),
            doc: spec.doc,
        };
        Config::OPTIONS.iter().enumerate().map(line).collect()
    }

    /// What is wrong between options, each of which is fine alone. A configuration made in code is held to the same
    /// rules when a store is opened with it.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        for (index, spec) in Config::OPTIONS.iter().enumerate() {
            let mut copy = self.clone();
            if let Err(message) = (spec.set)(&mut copy, &(spec.show)(self)) {
                problems.push(ConfigProblem {
                    source: self.sources.get(index),
                    key: spec.key.to_owned(),
                    message,
                });
            }
        }
        let mut between = |key: &str, message: String| {
            problems.push(ConfigProblem {
                source: self.source_of(key),
                key: key.to_owned(),
                message,
            });
        };
        if self.ssd.0 > 0 && self.dir.is_none() {
            between(
                "ssd",
                format!("{} of SSD need a directory: set `dir`", self.ssd),
            );
        }
        let pairs = [
            ("evict.low", self.evict_low, "evict.high", self.evict_high),
            (
                "evict.ssd_low",
                self.evict_ssd_low,
                "evict.ssd_high",
                self.evict_ssd_high,
            ),
            (
                "promotion.high",
                self.promoted_below(),
                "evict.high",
                self.evict_high,
            ),
        ];
        for (low_key, low, high_key, high) in pairs {
            if low > high {
                between(
                    low_key,
                    format!("{} is above `{high_key}` ({})", low.show(), high.show()),
                );
            }
        }
        problems
    }

    /// Used part of memory from which nothing is promoted: where nobody has said, no more than that at which eviction begins.
    #[must_use]
    pub(crate) fn promoted_below(&self) -> Ratio {
        let unsaid = self.source_of("promotion.high") == Source::Default
            && self.promotion_high == Config::default().promotion_high;
        match unsaid && self.promotion_high > self.evict_high {
            true => self.evict_high,
            false => self.promotion_high,
        }
    }

    /// The watermarks that a node has of its own for its memory or its SSD: where it was told one of the two, or has others than
    /// all have, both.
    #[must_use]
    pub(crate) fn own_watermarks(&self, kind: SegmentKind) -> Option<Watermarks> {
        let of = |config: &Self| match kind {
            SegmentKind::Memory => (config.evict_low, config.evict_high),
            SegmentKind::Disk => (config.evict_ssd_low, config.evict_ssd_high),
        };
        let keys = match kind {
            SegmentKind::Memory => ["evict.low", "evict.high"],
            SegmentKind::Disk => ["evict.ssd_low", "evict.ssd_high"],
        };
        let mut keys = keys.iter();
        let (low, high) = of(self);
        let told = keys.any(|key| self.source_of(key) != Source::Default)
            || (low, high) != of(&Self::default());
        told.then_some(Watermarks {
            low: low.0,
            high: high.0,
        })
    }

    /// What is allowed but does not do what its author must have meant.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let asked = self.source_of("promotion.enabled") != Source::Default;
        let offloads = self.ssd.0 > 0 && self.offload != OffloadMode::Off;
        if self.promotion_enabled && !offloads && (asked || self.ssd.0 > 0) {
            let missing = if self.ssd.0 == 0 {
                "`ssd` is 0"
            } else {
                "`offload` is off"
            };
            warnings.push(format!(
                "promotion on hit has no effect: {missing}, so nothing is ever on SSD alone"
            ));
        }
        if self.offload != OffloadMode::Off
            && self.ssd.0 == 0
            && self.source_of("offload") != Source::Default
        {
            warnings.push(format!(
                "`offload` = {} has no effect: `ssd` is 0",
                self.offload.show()
            ));
        }
        let threshold = self.promotion_threshold;
        let (least, most) = Promotion::THRESHOLD.into_inner();
        let taken = threshold.clamp(least, most);
        if taken != threshold {
            warnings.push(format!(
                "`promotion.threshold` = {threshold} is taken as {taken}: the counters of reads end at {most}"
            ));
        }
        if self.dir.is_some() && self.ssd.0 == 0 {
            warnings.push("`dir` has no effect: `ssd` is 0".to_owned());
        }
        warnings
    }

    /// The option of this key, if there is one.
    #[must_use]
    pub fn option(key: &str) -> Option<&'static OptionSpec> {
        Config::OPTIONS.iter().find(|spec| spec.key == key)
    }

    fn source_of(&self, key: &str) -> Source {
        let index = Config::OPTIONS.iter().position(|spec| spec.key == key);
        index
            .map(|index| self.sources.get(index))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_options_are_unique_in_every_form_and_documented() {
        let mut envs: Vec<String> = Config::OPTIONS.iter().map(OptionSpec::env).collect();
        let mut flags: Vec<String> = Config::OPTIONS.iter().map(OptionSpec::flag).collect();
        for names in [&mut envs, &mut flags] {
            names.sort();
            names.dedup();
            assert_eq!(names.len(), Config::OPTIONS.len());
        }
        for spec in Config::OPTIONS {
            assert!(
                spec.doc.ends_with('.') && spec.doc.len() > 20,
                "{}: {:?}",
                spec.key,
                spec.doc
            );
        }
    }

    #[test]
    fn every_default_reads_back_as_itself_and_is_sound() {
        let config = Config::default();
        for spec in Config::OPTIONS {
            let mut copy = config.clone();
            (spec.set)(&mut copy, &(spec.show)(&config))
                .unwrap_or_else(|error| panic!("{}: {error}", spec.key));
            assert_eq!(copy, config, "{}", spec.key);
        }
        assert_eq!(config.problems(), []);
        assert_eq!(config.warnings(), Vec::<String>::new());
    }

    #[test]
    fn options_that_contradict_each_other_are_problems() {
        let check = |change: fn(&mut Config), key: &str, part: &str| {
            let mut config = Config::default();
            change(&mut config);
            let problems = config.problems();
            assert!(
                problems
                    .iter()
                    .any(|p| p.key == key && p.message.contains(part)),
                "{key}: {problems:?}"
            );
        };
        check(
            |c| c.ssd = slackwater_base::ByteSize::gib(1),
            "ssd",
            "need a directory",
        );
        check(
            |c| c.ssd = slackwater_base::ByteSize(4096),
            "ssd",
            "at least",
        );
        check(
            |c| c.evict_low = Ratio(0.99),
            "evict.low",
            "above `evict.high`",
        );
        check(
            |c| c.evict_ssd_low = Ratio(0.99),
            "evict.ssd_low",
            "above `evict.ssd_high`",
        );
        check(
            |c| c.memory = slackwater_base::ByteSize(5),
            "memory",
            "at least",
        );
    }

    #[test]
    fn a_wait_strategy_is_read_and_a_wrong_one_is_named() {
        let load = |text: &str| {
            Config::load(
                None,
                [("SLACKWATER_WAIT".into(), text.into())].into_iter(),
                &[],
            )
        };
        for text in [
            "adaptive",
            "adaptive:max_spin=20us,cpu_price=4",
            "park",
            "spin",
            "sleep:10us",
        ] {
            assert_eq!(load(text).unwrap().wait.show(), text);
        }
        let problems = load("sping").unwrap_err();
        let message = "SLACKWATER_WAIT: wait: `sping` is no wait strategy (known: adaptive, \
                       adaptive:max_spin=DURATION,cpu_price=NUMBER, spin, park, sleep:DURATION such as sleep:10us)";
        assert_eq!(
            problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [message]
        );
    }

    #[test]
    fn a_number_of_threads_is_auto_or_a_number_within_reason() {
        for (text, threads) in [
            ("auto", Threads::Auto),
            ("0", Threads::Count(0)),
            (" 1024 ", Threads::Count(1024)),
        ] {
            assert_eq!(Threads::parse(text), Ok(threads), "{text}");
        }
        for text in ["1025", "-1", "all"] {
            let message = format!("`{text}` is neither `auto` nor a whole number from 0 to 1024");
            assert_eq!(Threads::parse(text), Err(message));
        }
        assert!(Threads::Auto.count() >= 1);
    }

    #[test]
    fn a_node_has_watermarks_of_its_own_where_it_is_told_one_of_them() {
        let check = |flags: &[(&str, &str)], expected: [Option<(f64, f64)>; 2]| {
            let flags = flags.iter();
            let flags: Vec<(String, String)> = flags
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let config = Config::load(None, std::iter::empty(), &flags).unwrap();
            let own = [SegmentKind::Memory, SegmentKind::Disk].map(|kind| {
                let own = config.own_watermarks(kind);
                own.map(|own| (own.low, own.high))
            });
            assert_eq!(own, expected, "{flags:?}");
        };
        check(&[], [None, None]);
        check(&[("memory", "2GiB")], [None, None]);
        check(&[("evict-low", "50%")], [Some((0.5, 0.95)), None]);
        check(
            &[("evict-high", "0.6"), ("evict-low", "0.5")],
            [Some((0.5, 0.6)), None],
        );
        check(&[("evict-ssd-high", "90%")], [None, Some((0.83, 0.9))]);
        // As a program sets it.
        let config = Config {
            evict_high: Ratio(0.6),
            evict_low: Ratio(0.5),
            ..Config::default()
        };
        let own = config.own_watermarks(SegmentKind::Memory);
        assert_eq!(own.map(|own| (own.low, own.high)), Some((0.5, 0.6)));
        assert_eq!(config.own_watermarks(SegmentKind::Disk), None);
    }

    /// Where eviction was to begin earlier, the start was refused until another option was set that nobody had asked for.
    #[test]
    fn promotion_ends_where_eviction_begins_unless_it_is_told_to_go_on() {
        let load = |flags: &[(&str, &str)]| {
            let flags = flags.iter();
            let flags: Vec<(String, String)> = flags
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let loaded = Config::load(None, std::iter::empty(), &flags);
            loaded.map(|config| config.promoted_below().0)
        };
        let early = [("evict-high", "60%"), ("evict-low", "50%")];
        assert_eq!(load(&[]), Ok(0.94));
        assert_eq!(load(&early), Ok(0.6));
        assert_eq!(
            load(&[&early[..], &[("promotion-high", "30%")]].concat()),
            Ok(0.3)
        );
        let problems = load(&[&early[..], &[("promotion-high", "94%")]].concat()).unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected = "--promotion-high: promotion.high: 0.94 is above `evict.high` (0.6)";
        assert_eq!(said, [expected]);
    }

    #[test]
    fn options_without_effect_are_warnings() {
        let check = |flags: &[(&str, &str)], part: &str| {
            let flags: Vec<(String, String)> = flags
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let config = Config::load(None, std::iter::empty(), &flags).unwrap();
            let warnings = config.warnings();
            assert!(
                warnings.iter().any(|w| w.contains(part)),
                "{flags:?}: {warnings:?}"
            );
        };
        check(&[("promotion-enabled", "true")], "`ssd` is 0");
        check(
            &[("ssd", "1GiB"), ("dir", "/x"), ("offload", "off")],
            "`offload` is off",
        );
        check(&[("promotion-threshold", "300")], "taken as 255");
        check(&[("promotion-threshold", "0")], "taken as 1");
        check(&[("offload", "eager")], "`offload` = eager has no effect");
        check(&[("dir", "/x")], "`dir` has no effect");
    }

    #[test]
    fn explain_names_value_default_and_source() {
        let flags = [("memory".to_owned(), "2GiB".to_owned())];
        let config = Config::load(None, std::iter::empty(), &flags).unwrap();
        let lines = config.explain();
        let memory = lines.iter().find(|line| line.key == "memory").unwrap();
        assert_eq!(
            (memory.value.as_str(), memory.default.as_str()),
            ("2GiB", "1GiB")
        );
        assert_eq!(memory.source, Source::Flag("memory".into()));
        assert_eq!(memory.env, "SLACKWATER_MEMORY");
        let threshold = lines
            .iter()
            .find(|line| line.key == "promotion.threshold")
            .unwrap();
        assert_eq!(threshold.flag, "promotion-threshold");
        assert_eq!(threshold.source.to_string(), "default");
    }
}
