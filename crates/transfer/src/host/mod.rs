//! host
mod grants;
mod link;
mod memory;
mod message;
mod packets;
mod page;
mod process;
mod service;
pub use grants::{At, Authority, NO_SLOT, Window};
pub use link::{NoLink, NoWindow};
pub use memory::{RefusedMemory, SharedMemory};
pub use service::{Identity, ServiceLimits, StillCopying};
