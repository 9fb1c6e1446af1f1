//! The transfer engine: bytes from a region of one process to a region of another, one-sided, at the speed of the wire.
//!
//! - A [`Region`] is registered memory; [`Regions`] checks every access to it and waits for the last one before its
//!   bytes get another use. A peer reaches it only with a capability that its [`Home`] granted.
//! - A [`Batch`] is a group of [`Request`]s with one completion word and one typed [`Outcome`] each.
//! - A [`Mover`] carries requests: [`Local`] by `memcpy`, others over TCP, shared memory or device copies.
//!
//! The contract between these, and the seven rules every mover keeps, are in the README beside this crate.

// For tests that both kinds of tests share.
#[cfg(test)]
extern crate self as slackwater_transfer;

mod batch;
#[cfg(test)]
#[path = "../../../fuzz/src/corpora.rs"]
mod corpora;
mod engine;
mod flow;
mod home;
pub mod host;
mod job;
#[cfg(test)]
#[path = "../tests/conformance/lender.rs"]
mod lender;
mod local;
mod memory;
mod mover;
mod region;
mod request;
mod sealing;
mod segment;
#[cfg(test)]
mod sim;
pub mod stage;
mod start;
mod tcp;

/// What the fuzz targets call.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz {
    pub use crate::host::fuzz::packets;
    pub use crate::tcp::fuzz::{initiator, responder};
    pub use slackwater_data_plane::seal::fuzz::records;
}

use slackwater_wait::Site;

pub use batch::{Batch, BatchError, BatchId, Outcome, Status};
pub use engine::{Engine, EngineError, Watch};
pub use home::{GrantSpec, Home, HomeGuard};
pub use job::{Buffers, Job, Part, Priority, RegionKey, Remote, Span};
pub use local::Local;
pub use memory::{Location, Memory, SharedFile, Stage, StageError, Staged, StagingTurn};
pub use mover::{
    Abilities, Carried, Mover, Notice, PeerStats, SingleRequest, Submission, WhenFull,
};
pub use region::{
    Access, AccessError, Extent, Gate, GateAccess, GenerationTable, Lookup, Region, RegionId,
    RegionSpec, Regions, RegisterError, ReopenError, Revocation, StillBusy,
};
pub use request::{LocalRange, PeerId, Request, Submit, Target};
pub use sealing::SealConfig;
pub use segment::{HostContact, Segment};
pub use slackwater_data_plane::seal::{SealError, holder_of};
pub use slackwater_data_plane::{Cause, Deadline};
pub use slackwater_wire::data::{Capability, CapabilityKey, Grant, Op, Refusal, Rights};
pub use start::{EngineConfig, StartError};
pub use tcp::{
    AllowList, IGNORED, LaneCounters, Level, OPTIONS, OptionError, Tcp, TcpConfig, TcpError,
    TcpOption,
};

/// Where the threads of transfers and of their callers wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 11] {
    [
        &engine::BATCHES,
        &tcp::FULL,
        &tcp::PAYLOAD,
        &host::CONTROL,
        &host::DRAINING,
        &host::SETTLING,
        &flow::ROOM,
        &home::NOTICES,
        &region::CLOSING,
        &stage::STAGING,
        &stage::FILES,
    ]
}
