//! Memory that the processor cannot reach: devices, and the staging of their bytes through pinned host memory.
//!
//! A [`Device`] begins copies and reports their ends; it never blocks. The [`Stager`] makes of it the
//! [`Stage`](slackwater_engine::Stage) by which movers bring bytes in and out, and the [`StagedMover`] carries requests on device
//! memory over any other mover. Files are a device that is only read ([`Files`]). [`SoftwareDevice`] is a device for
//! machines without one, `CudaDevice` a GPU through the driver that is found at run time.

mod chunks;
#[cfg(feature = "gpu")]
mod cuda;
mod device;
mod file;
mod limits;
mod mover;
mod software;
mod stager;

use slackwater_wait::Site;

#[cfg(feature = "gpu")]
pub use cuda::{CudaDevice, CudaMemory};
pub use device::{CopyId, CopyQueue, Device, DeviceCopy, DeviceError, Pinned};
pub use file::{FileLimits, FileRange, Files, memory_of_files};
pub use limits::{StageLimits, StagingError, Watch};
pub use mover::StagedMover;
pub use software::{Faults, SoftwareDevice, SoftwareMemory};
pub use stager::Stager;

/// Where threads wait for devices and for files, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 2] {
    [&stager::SITE, &file::SITE]
}
