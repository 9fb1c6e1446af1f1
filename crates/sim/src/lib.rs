//! The whole cluster on one thread, by seed: master, nodes and clients over a network, disks and clocks that fail.
//!
//! The cores are the real ones; only the four edges (clock, randomness, network, disk) are stood in for. One seed
//! fixes everything that happens, so a failure is one number, and the same seed gives the same trace twice.
#![forbid(unsafe_code)]

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
pub mod run;
pub mod value;
pub mod world;
