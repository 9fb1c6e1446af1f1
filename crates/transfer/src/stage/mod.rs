//! stage
#[cfg(feature = "gpu")]
mod cuda;
mod device;
mod software;
#[cfg(feature = "gpu")]
pub use cuda::CudaDevice;
pub use device::{CopyQueue, Device, DeviceCopy, DeviceError, Pinned, Ticket};
pub use software::{Faults, SoftwareDevice, SoftwareMemory};
