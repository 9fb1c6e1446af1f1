use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::{ByteSize, format_duration, parse_duration};
use slackwater_meta::evict::PolicyKind;
use slackwater_pool::copy::{IsaChoice, IsaError};
use slackwater_wait::{Choice as WaitChoice, ChoiceError, Cpus};

/// A type that an option can have: it reads from one line of text and prints as one that reads back.
pub trait Value: Clone + PartialEq {
    /// What a reader of the documentation sees: `size`, `duration`, `one of …`.
    const KIND: &'static str;

    /// Reads the value.
    ///
    /// # Errors
    /// Says what is wrong with the text and what would be right.
    fn parse(text: &str) -> Result<Self, String>;

    /// Prints the value.
    fn show(&self) -> String;

    /// Every text there is, where they are few.
    #[must_use]
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }
}

impl Value for ByteSize {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|error: slackwater_base::ParseUnitError| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| error.to_string())
    }

    fn show(&self) -> String {
        format_duration(*self)
    }
}

impl Value for bool {
    const KIND: &'static str = "true or false";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("`{text}` is neither true nor false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn choices() -> Vec<&'static str> {
        vec!["true", "false"]
    }
}

impl Value for u32 {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        let digits: String = text.trim().chars().filter(|c| *c != '_').collect();
        digits
            .parse()
            .map_err(|_| format!("`{text}` is not a whole number from 0 to {}", u32::MAX))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Which log lines are written: a level, or `target=level` pairs separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter as the subscriber of log lines takes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl Value for LogFilter {
    const KIND: &'static str = "log filter";

    fn parse(text: &str) -> Result<Self, String> {
        match tracing_subscriber::EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("`{text}` selects no log lines: {error}")),
        }
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// A path, or nothing when the text is empty.
impl Value for Option<PathBuf> {
    const KIND: &'static str = "path";

    fn parse(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }

    fn show(&self) -> String {
        self.as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }
}

impl Value for WaitChoice {
    const KIND: &'static str = "wait strategy";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: ChoiceError| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for IsaChoice {
    const KIND: &'static str = "instructions";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: IsaError| error.to_string())
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn choices() -> Vec<&'static str> {
        IsaChoice::names()
    }
}

/// How many threads do something: a number, or `auto`, as many as the process has usable CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// As many as there are usable CPUs.
    Auto,
    /// So many; 0 and 1 both mean the caller alone.
    Count(u32),
}

impl Threads {
    /// The most that may be asked for.
    pub const MAX: u32 = 1024;

    /// The number.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Threads::Auto => (Cpus::current().usable as usize).min(Self::MAX as usize),
            Threads::Count(count) => count as usize,
        }
    }
}

impl Value for Threads {
    const KIND: &'static str = "number or auto";

    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(Threads::Auto);
        }
        match u32::parse(text) {
            Ok(count) if count <= Self::MAX => Ok(Threads::Count(count)),
            _ => Err(format!(
                "`{text}` is neither `auto` nor a whole number from 0 to {}",
                Self::MAX
            )),
        }
    }

    fn show(&self) -> String {
        match self {
            Threads::Auto => "auto".to_owned(),
            Threads::Count(count) => count.to_string(),
        }
    }
}

/// A part of a whole, written `0.9` or `90%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

impl Value for Ratio {
    const KIND: &'static str = "ratio from 0 to 1";

    fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let (number, scale) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 100.0),
            None => (trimmed, 1.0),
        };
        let value: f64 = number
            .parse()
            .map_err(|_| format!("`{text}` is not a ratio (write it as 0.9 or 90%)"))?;
        let ratio = value / scale;
        if (0.0..=1.0).contains(&ratio) {
            Ok(Self(ratio))
        } else {
            Err(format!("`{text}` is not between 0 and 1"))
        }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Makes an enumeration an option's type: one word a variant.
macro_rules! words {
    ($name:ident: $kind:literal { $($variant:ident = $word:literal,)* }) => {
        impl $crate::config::Value for $name {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> Result<Self, String> {
                $crate::config::value::choose(text, &[$(($word, $name::$variant),)*])
            }

            fn show(&self) -> String {
                match self {
                    $($name::$variant => $word.to_owned(),)*
                }
            }

            fn choices() -> Vec<&'static str> {
                vec![$($word,)*]
            }
        }
    };
}
pub(super) use words;

/// The choice whose word is `text`; hyphen and underscore are the same, as is case.
pub(super) fn choose<T: Copy>(text: &str, choices: &[(&'static str, T)]) -> Result<T, String> {
    let wanted = text.trim().to_ascii_lowercase().replace('_', "-");
    if let Some((_, found)) = choices.iter().find(|(word, _)| *word == wanted) {
        return Ok(*found);
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let hint = super::suggest::nearest(&wanted, words.iter().copied());
    let hint = hint
        .map(|near| format!(", did you mean `{near}`?"))
        .unwrap_or_default();
    Err(format!("`{text}` is none of {}{hint}", words.join(", ")))
}

impl Value for PolicyKind {
    const KIND: &'static str = "policy";

    fn parse(text: &str) -> Result<Self, String> {
        choose(text, &PolicyKind::ALL.map(|policy| (policy.name(), policy)))
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn choices() -> Vec<&'static str> {
        PolicyKind::ALL.map(PolicyKind::name).to_vec()
    }
}
