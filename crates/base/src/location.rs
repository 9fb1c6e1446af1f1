use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The place of memory: the host, or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// Host memory of no known NUMA node.
    #[default]
    Host,
    /// Host memory of a NUMA node.
    Cpu(u32),
    /// Memory of a CUDA device: its pointers mean nothing to the CPU.
    Cuda(u32),
    /// Bytes of files, which are only read.
    Files,
    /// Memory of the software device, which stands for a GPU in tests.
    Software(u32),
}

impl Location {
    /// Whether the CPU can load and store there.
    #[must_use]
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Cpu(_))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cpu(node) => write!(f, "cpu:{node}"),
            Self::Files => f.write_str("files"),
            Self::Cuda(device) => write!(f, "cuda:{device}"),
            Self::Software(device) => write!(f, "software:{device}"),
        }
    }
}

/// A text names no location.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{0}` is no location of memory: write `cpu`, `cpu:N` for a NUMA node or `cuda:N` for a GPU"
)]
pub struct NoLocation(pub String);

impl FromStr for Location {
    type Err = NoLocation;

    /// Reads what [`Location`] writes for memory of the host and of CUDA devices, and no other form of a number.
    fn from_str(text: &str) -> Result<Self, NoLocation> {
        let location = match text.split_once(':') {
            None => Some(Self::Host),
            Some(("cpu", node)) => node.parse().ok().map(Self::Cpu),
            Some(("cuda", device)) => device.parse().ok().map(Self::Cuda),
            Some(_) => None,
        };
        location
            .filter(|location| location.to_string() == text)
            .ok_or_else(|| NoLocation(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_read_as_they_are_written() {
        for location in [
            Location::Host,
            Location::Cpu(0),
            Location::Cpu(7),
            Location::Cuda(3),
        ] {
            assert_eq!(location.to_string().parse(), Ok(location));
        }
        for text in [
            "",
            "*",
            "cpu:",
            "cpu:-1",
            "cpu:01",
            "cuda:+1",
            "cpu:x",
            "gpu:0",
            "cuda",
            "software:0",
            "files",
            "cpu:0:1",
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no location")),
                "{error}"
            );
        }
    }
}
