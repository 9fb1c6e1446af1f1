//! Which C library a binary needs.

use std::fmt;
use std::path::Path;

use anyhow::Result;

use super::text;
use crate::workspace::run;

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Glibc {
    major: u32,
    minor: u32,
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Glibc {
    /// The oldest one that the binary runs with.
    pub(super) fn needed_by(binary: &Path) -> Result<Option<Self>> {
        let versions = run("readelf", &["--wide", "--version-info", text(binary)?])?;
        Ok(Self::newest(&versions))
    }

    /// The one that a wheel's name promises to run with: `manylinux_2_28_x86_64` is 2.28.
    pub(super) fn promised_by(wheel: &str) -> Option<Self> {
        let (_, rest) = wheel.split_once("manylinux_")?;
        let mut parts = rest.split('_');
        Some(Self {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
        })
    }

    fn newest(versions: &str) -> Option<Self> {
        let named = versions.split_whitespace().filter_map(|word| {
            let (major, rest) = word.strip_prefix("GLIBC_")?.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        named.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_and_numbers_are_not_texts() {
        let check = |versions: &str, newest: Option<(u32, u32)>| {
            let newest = newest.map(|(major, minor)| Glibc { major, minor });
            assert_eq!(Glibc::newest(versions), newest, "{versions}");
        };
        check(
            "Name: GLIBC_2.9  Flags: none\nName: GLIBC_2.28  Name: GLIBC_2.2.5",
            Some((2, 28)),
        );
        check("Name: GLIBC_PRIVATE", None);
        check("", None);
        assert!(
            Glibc { major: 2, minor: 9 }
                < Glibc {
                    major: 2,
                    minor: 28
                }
        );
    }

    #[test]
    fn a_wheel_promises_by_its_name() {
        let check = |name: &str, promised: Option<&str>| {
            let found = Glibc::promised_by(name).map(|glibc| glibc.to_string());
            assert_eq!(found.as_deref(), promised, "{name}");
        };
        check(
            "slackwater-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl",
            Some("2.28"),
        );
        check("slackwater-0.1.0-cp311-abi3-linux_x86_64.whl", None);
    }
}
