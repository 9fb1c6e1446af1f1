//! Transfers from a region of one process to a region of another, one-sided, whatever carries their bytes.
//!
//! - A [`Region`] is registered memory; [`Regions`] checks every access to it and waits for the last one before its
//!   bytes get another use. A peer reaches it only with a capability that its [`Home`] granted.
//! - A [`Batch`] is a group of [`Request`]s with one completion word and one typed [`Outcome`] each.
//! - A [`Mover`] carries requests. [`Local`] does within a process, by `memcpy`; others are crates of their own.
//! - An [`Engine`] hands each request to the first of its movers that reaches the peer.
//!
//! The contract between these, and the rules every mover keeps, are in the README beside this crate.

mod batch;
mod engine;
mod flow;
mod home;
mod host;
mod job;
mod local;
mod memory;
mod mover;
mod region;
mod request;
mod sealing;

use slackwater_wait::Site;

pub use batch::{Batch, BatchError, BatchId, Follower, Outcome, Part, Status};
pub use engine::{Engine, EngineError};
pub use flow::{Flow, FlowGuard};
pub use home::{GrantSpec, Home, HomeGuard};
pub use host::boot_id;
pub use job::{Buffers, Job, Priority, RegionKey, Remote, Span};
pub use local::Local;
pub use memory::{Memory, SharedFile, Stage, StageError, Staged, StagingTurn};
pub use mover::{Abilities, Carried, Mover, PeerStats, SingleRequest, Submission, WhenFull};
pub use region::{
    Access, AccessError, Extent, Gate, GateAccess, GenerationTable, Lookup, PeerRight, Region,
    RegionId, RegionSpec, Regions, RegisterError, ReopenError, Revocation, StillBusy,
};
pub use request::{LocalRange, PeerId, Request, Submit, Target};
pub use sealing::{KeysOfPeers, SealConfig, entropy};
pub use slackwater_base::{Location, NoLocation};
pub use slackwater_data_plane::seal::{
    AesLibrary, AnsweredQuestions, Cipher, Question, SealError, UnknownAes, holder_of,
};
pub use slackwater_data_plane::{Cause, Deadline, Notice};
pub use slackwater_keys::{AllowList, Level};
pub use slackwater_wire::data::{
    Capability, CapabilityKey, Grant, HostContact, Op, Refusal, Rights, Segment,
};

/// Where the callers of engines and the owners of regions wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 4] {
    [
        &engine::BATCHES,
        &flow::ROOM,
        &home::NOTICES,
        &region::CLOSING,
    ]
}
