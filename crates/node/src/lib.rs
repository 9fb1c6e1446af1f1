//! The shell around the pure cores: typed configuration, disk devices, the memory of the arena, and the embedded store.
//!
//! [`Store`] opens a directory inside the calling process: one lock around the master and the node's agent, the
//! bytes copied outside it by the caller, one thread that drives the device and one that sleeps until the next deadline.

mod clock;
pub mod config;
mod decisions;
pub mod disk;
mod fork;
mod host;
mod hottest;
mod kv_events;
pub mod logging;
mod operated;
pub mod pool;
mod prometheus;
pub mod region;
mod selection;
pub mod serve;
pub mod store;
mod waits;

pub use config::Config;
pub use decisions::{LatestDecisions, ToldDecision};
pub use hottest::{HottestChains, ToldChain};
pub use kv_events::{KvEventsOptions, KvEventsPlaces};
pub use operated::Operated;
pub use selection::Selection;
pub use store::{
    GetOptions, Got, OpenError, PutOptions, RemoveOptions, Stats, Store, StoreError, Stored, Tier,
    Verify, View, ViewOptions,
};
