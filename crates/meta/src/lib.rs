//! The master's decisions: which objects there are, where their replicas are, what holds them in place, what is evicted
//! when space is short, what is written to SSD and what is promoted back to memory.
//!
//! Pure: it never sees a socket, a disk or a clock. It has three verbs, `handle`, `on_deadline` and `next_deadline`,
//! and returns what is to be done as a list of outputs.
#![forbid(unsafe_code)]

pub mod evict;
pub mod replay;
mod replicate;

mod ahead;
mod answers;
mod asking;
mod books;
mod budget;
mod catalog;
mod config;
mod decisions;
mod disk;
mod drops;
mod due;
mod explain;
mod feed;
mod get;
mod hottest;
mod index;
mod inventory;
mod jobs;
mod journal;
mod lease;
mod lookup;
mod master;
mod metrics;
mod mount;
mod numbers;
mod offload;
mod outbox;
mod owed;
mod permissions;
mod placement;
mod pressure;
mod promote;
mod prospect;
mod publish;
mod put;
mod quota;
mod release;
mod remove;
mod restarted;
mod scan;
mod segment;
mod settle;
mod slab;
mod spared;
mod suspect;
mod tenant;
mod untaken;

pub use ahead::single_key;
pub use books::{Books, Imbalance, SegmentBooks};
pub use config::{
    Absence, ConfigWarning, Eviction, Limits, MasterConfig, Offload, OffloadMode, OnHit, Placement,
    Promotion, PromotionAdmission, PutPolicy, Replication, ReplicationMode, SoftPinned, Tenancy,
};
pub use decisions::{
    Choice, Decision, EvictionCause, OffloadRefusal, PromotionCause, PromotionRefusal,
};
pub use explain::{Held, Opinion};
pub use hottest::HotChain;
pub use journal::{Dead, Debt, Journaled, KeptJob, Note};
pub use master::{Input, Master, Output};
pub use metrics::{Metrics, OffloadMetrics, PromotionMetrics, ReplicationMetrics};
pub use offload::Cause as OffloadCause;
