use std::io;
use std::time::Duration;

use thiserror::Error;

use super::device::DeviceError;

/// Bounds of a [`Stager`](super::Stager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageLimits {
    /// The bytes of one copy between device and host, at least a page: a few MiB, so that a copy is long compared with
    /// its start and short compared with a request.
    pub chunk_bytes: usize,
    /// The most pinned memory; at least two chunks each for this process and for its peers, so that one is with the
    /// device while the other is on the wire.
    pub pinned_bytes_max: usize,
    /// How the ends of copies are found.
    pub watch: Watch,
}

/// How the end of a device copy is found: device events are not file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The device calls back after every copy.
    Callback,
    /// The staging thread polls this often while copies are under way.
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
        /// The name of the device.
        device: String,
        /// First byte.
        address: u64,
        /// Length.
        bytes: usize,
    },
}
