use std::fmt;
use std::str::FromStr;

use super::Evict;
use super::arc::Arc;
use super::gittins::Gittins;
use super::lru::Lru;
use super::s3fifo::S3Fifo;
use super::twoq::TwoQ;
use super::wtinylfu::WTinyLfu;

/// The eviction policies, by the names that configuration and reports use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Least recently used, tail of the chain first.
    Lru,
    /// S3-FIFO: small and main queues, ghosts.
    S3Fifo,
    /// W-TinyLFU: window, segmented main part, admission by frequency.
    WTinyLfu,
    /// ARC: queues for blocks read once and read again; ghosts of both move the border.
    Arc,
    /// 2Q that takes the reads of one request as one.
    TwoQ,
    /// Learned hazards of return, Gittins index over segments of chains.
    Gittins,
    /// [`PolicyKind::Gittins`] with a safety net: it follows a simpler rule while small simulated caches show that this
    /// one has more hits.
    Adaptive,
}

impl PolicyKind {
    /// Every policy, in the order reports list them.
    pub const ALL: [PolicyKind; 7] = [
        Self::Lru,
        Self::S3Fifo,
        Self::WTinyLfu,
        Self::Arc,
        Self::TwoQ,
        Self::Gittins,
        Self::Adaptive,
    ];

    /// The name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3fifo",
            Self::WTinyLfu => "wtinylfu",
            Self::Arc => "arc",
            Self::TwoQ => "twoq",
            Self::Gittins => "gittins",
            Self::Adaptive => "adaptive",
        }
    }

    /// A fresh policy for a segment of `capacity_bytes`.
    #[must_use]
    pub fn build(self, capacity_bytes: u64) -> Box<dyn Evict> {
        let mut policy: Box<dyn Evict> = match self {
            Self::Lru => Box::<Lru>::default(),
            Self::S3Fifo => Box::<S3Fifo>::default(),
            Self::WTinyLfu => Box::<WTinyLfu>::default(),
            Self::Arc => Box::<Arc>::default(),
            Self::TwoQ => Box::<TwoQ>::default(),
            Self::Gittins => Box::new(Gittins::new()),
            Self::Adaptive => Box::new(Gittins::adaptive()),
        };
        policy.set_capacity(capacity_bytes);
        policy
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not that of a policy.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown eviction policy `{text}` (known: {})", known())]
pub struct UnknownPolicy {
    /// The name that was given.
    pub text: String,
}

fn known() -> String {
    PolicyKind::ALL.map(PolicyKind::name).join(", ")
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    /// Accepts the names in any case, with or without hyphens: `W-TinyLFU` is `wtinylfu`.
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let plain: String = text
            .trim()
            .chars()
            .filter(|c| !matches!(c, '-' | '_'))
            .collect();
        let found = Self::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(&plain));
        found.ok_or_else(|| UnknownPolicy {
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_the_error_for_an_unknown_one_lists_them() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.build(1 << 20).name(), kind.name());
        }
        assert_eq!("S3-FIFO".parse(), Ok(PolicyKind::S3Fifo));
        let message = "clock".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(
            message.starts_with("unknown eviction policy `clock` (known: lru, s3fifo, wtinylfu"),
            "{message}"
        );
    }
}
