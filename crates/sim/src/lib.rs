//! The whole cluster on one thread, by seed: master, nodes and clients over a network, disks and clocks that fail.
//!
//! The cores are the real ones; only clock, randomness, network and disk are simulated. One seed determines everything
//! that happens: a failure is reproduced from its seed, and the same seed gives the same trace.
#![forbid(unsafe_code)]

pub mod announced;
pub mod check;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod history;
pub mod ledger;
pub mod load;
pub mod memory;
pub mod net;
pub mod options;
pub mod plan;
pub mod promised;
pub mod refusals;
pub mod run;
#[cfg(test)]
mod samples;
pub mod value;
pub mod world;
