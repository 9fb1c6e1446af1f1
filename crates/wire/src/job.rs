//! Jobs of the master: copies and moves of single objects, and drains of segments.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_base::Checksum;
use thiserror::Error;

use crate::{
    DiskEntry, ErrorCode, ExtentRef, JobId, Key, NodeId, ReplicaAt, Tenant, TicketId,
    checksum_serde,
};

/// What a job does, and how fast it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The values that are carried, and to which places.
    pub work: JobWork,
    /// Values that are carried at a time; zero means the configured number.
    #[serde(default)]
    pub concurrency: u32,
    /// Bytes that are carried in a second, on average; none for as many as there can be.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// How long it may take; none for as long as it takes.
    #[serde(default)]
    pub time: Option<Duration>,
}

/// What a job does. A place is the number of a node, or the name of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobWork {
    /// One more replica of an object in memory, at each of the targets.
    Copy {
        /// The tenant of the object.
        #[serde(default)]
        tenant: Tenant,
        /// Its key.
        key: Key,
        /// Where replicas are made.
        #[serde(deserialize_with = "crate::body::list")]
        targets: Vec<String>,
    },
    /// A replica of an object in memory goes to another place.
    Move {
        /// The tenant of the object.
        #[serde(default)]
        tenant: Tenant,
        /// Its key.
        key: Key,
        /// Where the replica is; none for the only one, or any.
        #[serde(default)]
        source: Option<String>,
        /// The place that gets the replica.
        target: String,
    },
    /// Everything that only these places hold goes elsewhere, and nothing new comes to them.
    Drain {
        /// The places that are emptied.
        #[serde(deserialize_with = "crate::body::list")]
        places: Vec<String>,
        /// Where it goes; empty for any other memory.
        #[serde(default, deserialize_with = "crate::body::list")]
        targets: Vec<String>,
        /// Whether what is on SSDs goes too. It stays where it is while their node is away, and is there again after.
        #[serde(default)]
        disks: bool,
    },
}

/// A job names more places than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{places} places in one list of a job, which names {} at most: begin several jobs",
    JobWork::PLACES_MAX
)]
pub struct TooManyPlaces {
    /// Places in the list.
    pub places: usize,
}

impl JobWork {
    /// Most places in a list of them.
    pub const PLACES_MAX: usize = 1024;

    /// Whether no list of places is too long.
    ///
    /// # Errors
    /// The longest list, where it is.
    pub fn check(&self) -> Result<(), TooManyPlaces> {
        let places = match self {
            Self::Copy { targets, .. } => targets.len(),
            Self::Move { .. } => 0,
            Self::Drain {
                places, targets, ..
            } => places.len().max(targets.len()),
        };
        match places <= Self::PLACES_MAX {
            true => Ok(()),
            false => Err(TooManyPlaces { places }),
        }
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobStatus {
    /// It is under way.
    Running,
    /// It did what it was to do.
    Succeeded,
    /// It has ended, and not everything was done.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// A job as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobState {
    /// Its number.
    pub job: JobId,
    /// What it was asked to do.
    pub spec: JobSpec,
    /// How far it is.
    pub status: JobStatus,
    /// Time since it began.
    pub age: Duration,
    /// Time since its status is what it is.
    #[serde(default)]
    pub unchanged: Duration,
    /// Values that are carried now.
    pub active: u64,
    /// Values that were carried.
    pub done: u64,
    /// Bytes of them.
    pub done_bytes: u64,
    /// Values that could not be carried.
    pub failed: u64,
    /// Bytes in memory at the places of a drain, that are still to go or were left.
    pub left_bytes: u64,
    /// The last errors, with their keys.
    #[serde(deserialize_with = "crate::body::list")]
    pub errors: Vec<(Key, ErrorCode)>,
}

/// One value to be carried into an extent, which nobody else may write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyTask {
    /// Names the copy in its end.
    pub ticket: TicketId,
    /// The object and version.
    pub entry: DiskEntry,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum that its bytes must have.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// The node that has it.
    pub from: NodeId,
    /// Where it is there.
    pub source: ReplicaAt,
    /// The extent at the target that its bytes go to.
    pub target: ExtentRef,
}

impl JobStatus {
    /// Whether nothing more is done.
    #[must_use]
    pub fn is_over(self) -> bool {
        self != Self::Running
    }

    /// Its name, for people and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELED",
        }
    }
}
