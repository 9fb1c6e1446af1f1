use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use slackwater_engine::Location;
use thiserror::Error;

/// Memory that the host's processor cannot reach by address, and copies in and out of it.
///
/// Nothing here blocks: a copy is queued, and its end is polled for or called back.
pub trait Device: Send + Sync + fmt::Debug {
    /// Its name, such as `cuda:0`.
    fn name(&self) -> &str;

    /// Where its memory is, as regions name it.
    fn location(&self) -> Location;

    /// Whether all of these bytes are memory of this device. Asked once, when they are registered.
    ///
    /// # Errors
    /// The device cannot tell.
    fn owns(&self, address: u64, len: u64) -> Result<bool, DeviceError>;

    /// Takes `len` bytes of host memory that copies of this device go through fastest.
    ///
    /// # Errors
    /// The device has none.
    fn pin(&self, len: usize) -> Result<Pinned, DeviceError>;

    /// A new queue of copies. Those of different queues run at the same time.
    ///
    /// # Errors
    /// The device has none.
    fn queue(&self) -> Result<Arc<dyn CopyQueue>, DeviceError>;
}

/// Copies that run concurrently with the host, one after the other where [`CopyQueue::is_ordered`].
pub trait CopyQueue: Send + Sync {
    /// Begins a copy.
    ///
    /// # Errors
    /// It was not begun; nothing will touch the memory.
    ///
    /// # Safety
    /// Until [`CopyQueue::poll`] has reported its end: the device's range is valid, the host's range is pinned memory
    /// of the same device, and nothing else writes what the copy reads, or touches what it writes.
    unsafe fn begin(&self, copy: DeviceCopy) -> Result<CopyId, DeviceError>;

    /// Whether a copy has ended. Its end is reported once; afterwards the id is unknown.
    fn poll(&self, ticket: CopyId) -> Poll<Result<(), DeviceError>>;

    /// Runs `wake` soon after the copies begun so far have ended, on a thread of the device, where it must not block or
    /// call the device. It may run early or, if the device is lost, late: the caller polls then.
    ///
    /// # Errors
    /// It will not run: the caller has to poll.
    fn wake_after(&self, wake: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError>;

    /// Whether copies end in the order in which they were begun.
    fn is_ordered(&self) -> bool {
        true
    }
}

/// One copy between a device and pinned memory.
#[derive(Clone, Copy, Debug)]
pub enum DeviceCopy {
    /// Out of the device.
    ToHost {
        /// Destination address.
        host: *mut u8,
        /// Source address.
        device: u64,
        /// How many bytes.
        len: usize,
    },
    /// Into the device.
    ToDevice {
        /// Destination address.
        device: u64,
        /// Source address.
        host: *const u8,
        /// How many bytes.
        len: usize,
    },
}

// SAFETY: it names memory and touches none; the caller that begins it answers for the memory.
unsafe impl Send for DeviceCopy {}

/// A copy under way, as its queue counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Why a device call failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such device here.
    #[error("{device}: {reason}")]
    Unavailable {
        /// The name of the device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// It refused, or failed at it.
    #[error("{device}: {operation}: {cause}")]
    Failed {
        /// The name of the device.
        device: String,
        /// The operation that failed.
        operation: &'static str,
        /// The device's error.
        cause: String,
    },
}

/// Host memory that a device copies through. Freed when dropped.
pub struct Pinned {
    at: *mut u8,
    len: usize,
    _release: Box<dyn Send>,
}

// SAFETY: it is memory like any other; the holder of the value decides which thread touches it.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference gives the address away, and touching what is there is up to unsafe code.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Memory at `at`, given back when `release` is dropped.
    ///
    /// # Safety
    /// `len` bytes from `at` are readable, writable and in nobody else's use until `release` is dropped.
    #[must_use]
    pub unsafe fn new(at: *mut u8, len: usize, release: Box<dyn Send>) -> Self {
        Self {
            at,
            len,
            _release: release,
        }
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
