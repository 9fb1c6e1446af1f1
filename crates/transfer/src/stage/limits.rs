use std::io;
use std::time::Duration;

use thiserror::Error;

use super::device::DeviceError;

/// Bounds of a [`Stager`](super::Stager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageLimits {
    /// The bytes of one copy between device and host, a few MiB: long beside its start, short beside the whole. At least a
    /// page.
    pub chunk_bytes: usize,
    /// The most pinned memory; at least two chunks each for this process and for its peers, so that one is with the
    /// device while the other is on the wire.
    pub pinned_bytes_max: usize,
    /// How the ends of copies are found.
    pub watch: Watch,
}

/// How the end of a device copy is found: its events are no file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The device calls back behind every copy.
    Callback,
    /// The thread looks this often while copies are under way.
    Poll(Duration),
}

impl Default for StageLimits {
    fn default() -> Self {
        Self {
            chunk_bytes: 2 << 20,
            pinned_bytes_max: 256 << 20,
            watch: Watch::Callback,
        }
    }
}

/// Why device memory cannot be staged.
#[derive(Debug, Error)]
pub enum StagingError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The thread did not start.
    #[error("staging: {0}")]
    System(#[from] io::Error),
    /// The bytes are not, or not all, memory of the device.
    #[error("{bytes} bytes at {address:#x} are no memory of {device}")]
    Foreign {
        /// Which device.
        device: String,
        /// First byte.
        address: u64,
        /// Length.
        bytes: usize,
    },
}
