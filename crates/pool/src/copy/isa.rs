use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use thiserror::Error;

/// The instructions that copies and checksums are made of.
///
/// Every path gives the same bytes and the same checksums; they differ in speed only. [`Isa::current`] is the widest
/// that the processor has, unless [`IsaChoice::ENV`] or [`Isa::install`] chose another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Isa {
    /// No vector instructions of our own: the C library's copy, then a checksum of what was copied.
    Portable = 1,
    /// 16-byte vectors with carry-less multiplication: SSE4.1 and PCLMULQDQ.
    Sse,
    /// 32-byte vectors with carry-less multiplication: AVX2 and VPCLMULQDQ.
    Avx2,
    /// 64-byte vectors with carry-less multiplication: AVX-512F and VPCLMULQDQ.
    Avx512,
    /// 16-byte vectors of aarch64 with polynomial multiplication: NEON and PMULL.
    Neon,
}

/// The path in force; 0 is not asked for yet.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// Every path, the narrowest first.
    pub const ALL: &[Self] = &[
        Self::Portable,
        Self::Sse,
        Self::Neon,
        Self::Avx2,
        Self::Avx512,
    ];

    /// The path in force: the installed one, or else that of [`IsaChoice::ENV`], or else the widest of this processor.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        let current = CURRENT.load(Ordering::Relaxed);
        Self::ALL
            .iter()
            .copied()
            .find(|isa| *isa as u8 == current)
            .unwrap_or_else(Self::first)
    }

    /// The widest path of this processor.
    #[must_use]
    pub fn widest() -> Self {
        let widest = Self::ALL.iter().rev().copied().find(|isa| isa.available());
        widest.unwrap_or(Self::Portable)
    }

    /// The path at the first copy of the process, which is put in force. This is the one place that reads the variable;
    /// a value that names no path of this processor counts as none here and is an error of [`IsaChoice::from_env`],
    /// which whatever opens a store or begins a benchmark asks first.
    #[cold]
    fn first() -> Self {
        let first = match IsaChoice::from_env() {
            Ok(IsaChoice::Forced(isa)) => isa,
            Ok(IsaChoice::Auto) | Err(_) => Self::widest(),
        };
        // Where another thread was first, its choice stands: it found the same, or installed another.
        match CURRENT.compare_exchange(0, first as u8, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => first,
            Err(_) => Self::current(),
        }
    }

    /// Puts this path in force for the whole process.
    ///
    /// # Errors
    /// [`IsaError::Missing`] if the processor does not have its instructions; nothing changes then.
    pub fn install(self) -> Result<(), IsaError> {
        if !self.available() {
            return Err(IsaError::Missing { isa: self });
        }
        CURRENT.store(self as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this processor, and this build, have the path.
    #[must_use]
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Sse => {
                is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("pclmulqdq")
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Neon => {
                use std::arch::is_aarch64_feature_detected as detected;
                detected!("neon") && detected!("aes")
            }
            _ => false,
        }
    }

    /// The name that [`Isa::from_str`] reads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sse => "sse",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads the name of a path that this processor has.
impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        let named = |isa: &Self| isa.name().eq_ignore_ascii_case(name.trim());
        let found = Self::ALL.iter().copied().find(named);
        let isa = found.ok_or_else(|| IsaError::Unknown { name: name.into() })?;
        if isa.available() {
            Ok(isa)
        } else {
            Err(IsaError::Missing { isa })
        }
    }
}

/// Which path copies and checksums take, as configuration and `SLACKWATER_ISA` give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsaChoice {
    /// The widest that the processor has.
    #[default]
    Auto,
    /// This one, which the processor has.
    Forced(Isa),
}

impl IsaChoice {
    /// The name of the environment variable.
    pub const ENV: &'static str = "SLACKWATER_ISA";

    /// The name that means [`IsaChoice::Auto`].
    const AUTO: &'static str = "auto";

    /// The path that the environment names; `Auto` if it names none.
    ///
    /// # Errors
    /// The variable is set to something that is no path of this processor.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os(Self::ENV) {
            None => Ok(Self::Auto),
            Some(name) => name.to_string_lossy().parse(),
        }
    }

    /// Puts the path in force for the whole process. `Auto` leaves in force what is.
    ///
    /// # Errors
    /// As [`Isa::install`].
    pub fn install(self) -> Result<(), IsaError> {
        match self {
            Self::Auto => Ok(()),
            Self::Forced(isa) => isa.install(),
        }
    }

    /// The name that [`IsaChoice::from_str`] reads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => Self::AUTO,
            Self::Forced(isa) => isa.name(),
        }
    }

    /// Every name, of paths that this processor lacks too.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let paths = Isa::ALL.iter().map(|isa| isa.name());
        std::iter::once(Self::AUTO).chain(paths).collect()
    }
}

impl FromStr for IsaChoice {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        if name.trim().eq_ignore_ascii_case(Self::AUTO) {
            return Ok(Self::Auto);
        }
        name.parse().map(Self::Forced)
    }
}

/// Why a path cannot be taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IsaError {
    /// The processor, or this build, does not have its instructions.
    #[error("this processor has no {isa}; it has {}", available())]
    Missing {
        /// The path.
        isa: Isa,
    },
    /// No path has this name.
    #[error("`{name}` is none of {}", IsaChoice::names().join(", "))]
    Unknown {
        /// The name as it was given.
        name: String,
    },
}

/// The names of the paths that this processor has.
fn available() -> String {
    let available = Isa::ALL.iter().filter(|isa| isa.available());
    let names: Vec<_> = available.map(|isa| isa.name()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that no processor of this kind has.
    const FOREIGN: Isa = if cfg!(target_arch = "x86_64") {
        Isa::Neon
    } else {
        Isa::Avx2
    };

    #[test]
    fn names_are_read_as_they_are_written() {
        for isa in Isa::ALL.iter().filter(|isa| isa.available()) {
            assert_eq!(isa.name().parse(), Ok(*isa));
            let choice = IsaChoice::Forced(*isa);
            assert_eq!(choice.name().to_uppercase().parse(), Ok(choice));
        }
        assert_eq!("auto".parse(), Ok(IsaChoice::Auto));
        assert_eq!(IsaChoice::Auto.name(), "auto");
    }

    #[test]
    fn what_is_no_path_or_missing_is_refused_by_name() {
        let check = |name: &str, words: &str| {
            let error = name.parse::<IsaChoice>().unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        };
        check(
            "mmx",
            "`mmx` is none of auto, portable, sse, neon, avx2, avx512",
        );
        check("", "`` is none of auto");
        check(FOREIGN.name(), "this processor has no");
        check(FOREIGN.name(), "it has portable");
        assert!(Isa::widest().available());
        let before = Isa::current();
        assert_eq!(FOREIGN.install(), Err(IsaError::Missing { isa: FOREIGN }));
        assert_eq!(
            IsaChoice::Forced(FOREIGN).install(),
            Err(IsaError::Missing { isa: FOREIGN })
        );
        assert!(Isa::current() == before && before.available());
    }

    /// A run whose environment forces a path that is not there would test another one and pass.
    #[test]
    fn the_tests_run_on_the_path_that_the_environment_forces() {
        match IsaChoice::from_env() {
            Ok(IsaChoice::Forced(isa)) => assert_eq!(Isa::current(), isa),
            Ok(IsaChoice::Auto) => assert_eq!(Isa::current(), Isa::widest()),
            Err(error) => panic!("{}: {error}", IsaChoice::ENV),
        }
    }
}
