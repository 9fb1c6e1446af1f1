//! A fork-join pool for short bursts of CPU work, aware of NUMA nodes, whose idle threads cost nothing; and its first
//! users, the copies and checksums of large objects.
//!
//! The protocol of jobs, claims and sleep is explained in the README beside this crate.

mod affinity;
mod affinity_guard;
mod claim;
mod config;
pub mod copy;
mod crew;
mod door;
mod job;
mod lane;
mod member;
mod permits;
mod placement;
mod pool;
mod queue;
mod record;
mod scope;
mod slot;
mod spread;
mod sync;
mod task;
mod topology;

#[cfg(all(test, loom))]
mod models;

pub use config::{Config, Pin, PoolError};
pub use job::{Cancel, Class, JobError, Kind, Panic};
pub use member::Member;
pub use pool::{Job, Pool};
pub use queue::Queue;
pub use record::{PoolCounts, ThreadCounts};
pub use scope::Scope;
pub use slackwater_wait::NumaId;
pub use task::{Handle, SubmitError};
pub use topology::{CpuTopology, CpuTopologyError, Node};

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
