//! The transfer engine: bytes from a region of one process to a region of another, one-sided, at the speed of the wire.
//!
//! - A [`Region`] is registered memory; [`Regions`] checks every access to it and waits for the last one before its
//!   bytes get another use. A peer reaches it only with a capability that its [`Home`] granted.
//! - A [`Batch`] is a group of [`Request`]s with one completion word and one typed [`Outcome`] each.
//! - A [`Mover`] carries requests: [`Local`] by `memcpy`, others over TCP, shared memory or device copies.
//!
//! The contract between these and the rules every mover keeps are those of `slackwater-engine`; each mover is a crate of
//! its own. This one puts them together, and names what its users need of all of them.

mod start;

use slackwater_wait::Site;

pub use slackwater_engine::{
    Abilities, Access, AccessError, AesLibrary, AllowList, AnsweredQuestions, Batch, BatchError,
    BatchId, Buffers, Capability, CapabilityKey, Carried, Cause, Cipher, Deadline, Engine,
    EngineError, Extent, Gate, GateAccess, GenerationTable, Grant, GrantSpec, Home, HomeGuard,
    HostContact, Job, KeysOfPeers, Level, Local, LocalRange, Location, Lookup, Memory, Mover,
    Notice, Op, Outcome, Part, PeerId, PeerStats, Priority, Question, Refusal, Region, RegionId,
    RegionKey, RegionSpec, Regions, RegisterError, Remote, ReopenError, Request, Revocation,
    Rights, SealConfig, SealError, Segment, SharedFile, SingleRequest, Span, Stage, StageError,
    Staged, StagingTurn, Status, StillBusy, Submission, Submit, Target, UnknownAes, WhenFull,
    holder_of,
};
pub use slackwater_same_host as host;
pub use slackwater_stage as stage;
pub use slackwater_tcp::{
    IGNORED, LaneCounters, OPTIONS, OptionError, Tcp, TcpConfig, TcpError, TcpOption,
};
pub use start::{EngineConfig, StartError};

/// Where the threads of transfers and of their callers wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 12] {
    let [batches, room, notices, closing] = slackwater_engine::wait_sites();
    let [control, draining, settling, turn] = slackwater_same_host::wait_sites();
    let [full, payload] = slackwater_tcp::wait_sites();
    let [staging, files] = slackwater_stage::wait_sites();
    [
        batches, full, payload, control, turn, draining, settling, room, notices, closing, staging,
        files,
    ]
}
