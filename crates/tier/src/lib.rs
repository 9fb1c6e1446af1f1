//! One node's tiers: the state of its DRAM arena, its SSD log, and the agent that carries out the
//! master's orders.
//!
//! Pure: what must happen on the device leaves as [`io::DiskOp`] and comes back as
//! [`io::DiskDone`]. The node crate performs them on real files, the simulator on a disk that tears
//! and loses writes. The README beside this crate describes the format of the log, its states,
//! recovery, and why a removed value never comes back.
#![forbid(unsafe_code)]

mod agent;
pub mod arena;
mod config;
mod format;
pub mod io;
mod log;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use agent::{Agent, AgentInput, AgentOutput, Opened, ReadEnd, ReadId, RecordRead, TierStats};
pub use config::{AgentConfig, LogConfig, PaceConfig};
pub use format::{FORMAT_VERSION, FormatError};
