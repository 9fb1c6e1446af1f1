use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// The instructions that copies and checksums are made of.
///
/// Every path gives the same bytes and the same checksums; they differ in speed only. [`Isa::current`] is the widest
/// that the processor has, unless [`Isa::install`] chose another.
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

    /// The path in force: the installed one, or else the widest of this processor.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        let current = CURRENT.load(Ordering::Relaxed);
        Self::ALL
            .iter()
            .copied()
            .find(|isa| *isa as u8 == current)
            .unwrap_or_else(Self::detect)
    }

    /// Finds the widest path of this processor and puts it in force, unless one is in force already.
    #[cold]
    fn detect() -> Self {
        let widest = Self::ALL.iter().rev().copied().find(|isa| isa.available());
        let widest = widest.unwrap_or(Self::Portable);
        // Where another thread was first, its choice stands: it detected the same, or installed another.
        match CURRENT.compare_exchange(0, widest as u8, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => widest,
            Err(_) => Self::current(),
        }
    }

    /// Puts this path in force for the whole process.
    ///
    /// # Errors
    /// [`IsaMissing`] if the processor does not have its instructions; nothing changes then.
    pub fn install(self) -> Result<(), IsaMissing> {
        if !self.available() {
            return Err(IsaMissing { isa: self });
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

impl FromStr for Isa {
    type Err = IsaUnknown;

    fn from_str(name: &str) -> Result<Self, IsaUnknown> {
        let found = Self::ALL.iter().copied().find(|isa| isa.name() == name);
        found.ok_or_else(|| IsaUnknown { name: name.into() })
    }
}

/// A path whose instructions the processor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsaMissing {
    /// The path.
    pub isa: Isa,
}

impl fmt::Display for IsaMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let available = Isa::ALL.iter().filter(|isa| isa.available());
        let names: Vec<_> = available.map(|isa| isa.name()).collect();
        let (isa, names) = (self.isa, names.join(", "));
        write!(f, "this processor has no {isa}; it has {names}")
    }
}

impl std::error::Error for IsaMissing {}

/// A name that no path has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsaUnknown {
    /// The name as it was given.
    pub name: String,
}

impl fmt::Display for IsaUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Isa::ALL.iter().map(|isa| isa.name()).collect();
        write!(f, "`{}` is none of {}", self.name, names.join(", "))
    }
}

impl std::error::Error for IsaUnknown {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(*isa));
        }
        let unknown = "mmx".parse::<Isa>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "`mmx` is none of portable, sse, neon, avx2, avx512"
        );
    }

    #[test]
    fn what_the_processor_lacks_is_refused_by_name() {
        let foreign = if cfg!(target_arch = "x86_64") {
            Isa::Neon
        } else {
            Isa::Avx2
        };
        let error = foreign.install().unwrap_err();
        assert!(error.to_string().contains("portable"), "{error}");
        assert!(Isa::current().available());
    }
}
