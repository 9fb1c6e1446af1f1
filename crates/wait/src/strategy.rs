use std::fmt::{self, Debug};
use std::str::FromStr;
use std::sync::RwLock;
use std::time::Duration;

use slackwater_base::{ParseUnitError, format_duration, parse_duration};
use thiserror::Error;

use crate::site::Site;
use crate::spinners;

mod adaptive;
mod park;
mod sleep;
mod spin;

pub use adaptive::Adaptive;
pub use park::Park;
pub use sleep::Sleep;
pub use spin::Spin;

/// A policy of waiting: it looks at what a site has learned and says how the next wait proceeds. The routine that all
/// waits share does the waiting.
pub trait Wait: Send + Sync + Debug {
    /// How the next wait at `site` proceeds.
    fn plan(&self, site: &Site) -> Plan;

    /// A spin at `site` found that the thread had lost its CPU meanwhile.
    fn preempted(&self, site: &Site) {
        let _ = site;
    }

    /// Whether a waiter does queued work itself, where its caller offers some, before it watches others do it.
    fn helps(&self) -> bool {
        false
    }
}

/// How one wait proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The longest spin; it ends at the deadline in any case.
    pub spin: Duration,
    /// Whether the spin needs a free CPU.
    pub needs_cpu: bool,
    /// The step after the spin.
    pub then: Then,
}

/// What follows the spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Sleep until woken.
    Park,
    /// Sleep, but look without being woken when `first` has passed, then every now and then, and sleep until woken only
    /// after `last`. Where the completer can tell that the sleeper is about to look, it need not wake it.
    Nap {
        /// The first look.
        first: Duration,
        /// The end of the looks.
        last: Duration,
    },
    /// Sleep for this long, look, and again.
    Sleep(Duration),
}

/// A strategy by name, as configuration and `SLACKWATER_WAIT` give it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Learn, spin while it pays, park otherwise.
    Adaptive(Adaptive),
    /// Spin until the deadline: for callers that own their cores.
    Spin,
    /// Park at once.
    Park,
    /// Look, sleep this long, look: for comparison.
    Sleep(Duration),
}

/// Why a text names no strategy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChoiceError {
    /// No strategy of this name.
    #[error(
        "`{0}` is no wait strategy (known: adaptive, adaptive:max_spin=DURATION,cpu_price=NUMBER, spin, park, \
         sleep:DURATION such as sleep:10us)"
    )]
    Unknown(String),
    /// A setting of `adaptive:` is not one, or beyond its bounds.
    #[error("`{text}` is no wait strategy: {reason}")]
    Setting {
        /// The whole text.
        text: String,
        /// What is wrong with the setting.
        reason: String,
    },
    /// The duration of `sleep:` is wrong.
    #[error("`{text}` is no wait strategy: {cause}")]
    Duration {
        /// The whole text.
        text: String,
        /// What is wrong with its duration.
        cause: ParseUnitError,
    },
    /// A sleep of nothing would be a spin without a pause.
    #[error("`{0}` is no wait strategy: a sleep lasts longer than 0")]
    Zero(String),
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        if let Some(settings) = text.trim().strip_prefix("adaptive:") {
            let adaptive = Adaptive::with(settings);
            return adaptive
                .map(Self::Adaptive)
                .map_err(|reason| ChoiceError::Setting {
                    text: text.to_owned(),
                    reason,
                });
        }
        match text.trim() {
            "adaptive" => Ok(Self::default()),
            "spin" => Ok(Self::Spin),
            "park" => Ok(Self::Park),
            other => match other.strip_prefix("sleep:") {
                None => Err(ChoiceError::Unknown(text.to_owned())),
                Some(duration) => match parse_duration(duration) {
                    Ok(Duration::ZERO) => Err(ChoiceError::Zero(text.to_owned())),
                    Ok(duration) => Ok(Self::Sleep(duration)),
                    Err(cause) => Err(ChoiceError::Duration {
                        text: text.to_owned(),
                        cause,
                    }),
                },
            },
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::Adaptive(Adaptive::new())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptive(adaptive) => write!(f, "{adaptive}"),
            Self::Spin => f.write_str("spin"),
            Self::Park => f.write_str("park"),
            Self::Sleep(duration) => write!(f, "sleep:{}", format_duration(*duration)),
        }
    }
}

impl Choice {
    /// The name of the environment variable.
    pub const ENV: &'static str = "SLACKWATER_WAIT";

    /// The strategy that the environment names; adaptive if it names none.
    ///
    /// # Errors
    /// The variable is set to something that is no strategy.
    pub fn from_env() -> Result<Self, ChoiceError> {
        match std::env::var_os(Self::ENV) {
            None => Ok(Self::default()),
            Some(text) => text.to_string_lossy().parse(),
        }
    }

    /// The strategy itself.
    #[must_use]
    pub fn strategy(self) -> Box<dyn Wait> {
        match self {
            Self::Adaptive(adaptive) => Box::new(adaptive),
            Self::Spin => Box::new(Spin),
            Self::Park => Box::new(Park),
            Self::Sleep(duration) => Box::new(Sleep(duration)),
        }
    }
}

static ADAPTIVE: Adaptive = Adaptive::new();
static CURRENT: RwLock<Option<&'static dyn Wait>> = RwLock::new(None);

/// The strategy of waits that name none: the one that was [installed](install), or that [`Choice::ENV`] names, or
/// adaptive. This is the one place that reads the variable; a value that names no strategy counts as none here and is
/// an error of [`Choice::from_env`], which whatever starts threads that wait asks first.
#[must_use]
pub fn current() -> &'static dyn Wait {
    let known = *CURRENT
        .read()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    known.unwrap_or_else(first)
}

/// The strategy at the first wait of the process.
#[cold]
fn first() -> &'static dyn Wait {
    let mut current = CURRENT
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    // Another thread may have been first, or may have installed one.
    *current.get_or_insert_with(|| match Choice::from_env() {
        Err(_) => &ADAPTIVE,
        Ok(choice) if choice == Choice::default() => &ADAPTIVE,
        Ok(choice) => Box::leak(choice.strategy()),
    })
}

/// Makes `strategy` the one of all waits that name none, and caps the spinners of the process; `None` leaves them to
/// the number of free CPUs. Belongs to the start of a process, after its configuration was read.
///
/// The strategy stays for good: a process installs one, a test a few.
pub fn install(strategy: Box<dyn Wait>, spinners_max: Option<u32>) {
    spinners::limit(spinners_max.unwrap_or(u32::MAX));
    *CURRENT
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Box::leak(strategy));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_read_as_people_write_them() {
        for (text, choice) in [
            ("adaptive", Choice::default()),
            (
                "adaptive:cpu_price=4",
                Choice::Adaptive(Adaptive {
                    cpu_price: 4.0,
                    ..Adaptive::new()
                }),
            ),
            (
                "adaptive:max_spin=20us,cpu_price=0.5",
                Choice::Adaptive(Adaptive {
                    max_spin: Duration::from_micros(20),
                    cpu_price: 0.5,
                }),
            ),
            (" spin ", Choice::Spin),
            ("park", Choice::Park),
            ("sleep:10us", Choice::Sleep(Duration::from_micros(10))),
            ("sleep:100ns", Choice::Sleep(Duration::from_nanos(100))),
        ] {
            assert_eq!(text.parse(), Ok(choice), "{text}");
            assert_eq!(choice.to_string(), text.trim());
        }
    }

    #[test]
    fn a_wrong_text_is_named_in_the_error() {
        for (text, message) in [
            (
                "sping",
                "`sping` is no wait strategy (known: adaptive, adaptive:max_spin=DURATION,cpu_price=NUMBER, spin, \
                 park, sleep:DURATION such as sleep:10us)",
            ),
            (
                "adaptive:max_spin",
                "`adaptive:max_spin` is no wait strategy: `max_spin` is not SETTING=VALUE",
            ),
            (
                "adaptive:spin=1us",
                "`adaptive:spin=1us` is no wait strategy: `spin` is none of max_spin, cpu_price",
            ),
            (
                "adaptive:max_spin=1s",
                "`adaptive:max_spin=1s` is no wait strategy: max_spin must be at most 100ms",
            ),
            (
                "adaptive:cpu_price=-1",
                "`adaptive:cpu_price=-1` is no wait strategy: cpu_price must be a number from 0 to 1000000",
            ),
            (
                "sleep:",
                "`sleep:` is no wait strategy: empty text where a duration was expected (such as 100ms)",
            ),
            (
                "sleep:0us",
                "`sleep:0us` is no wait strategy: a sleep lasts longer than 0",
            ),
        ] {
            assert_eq!(text.parse::<Choice>().unwrap_err().to_string(), message);
        }
    }
}
