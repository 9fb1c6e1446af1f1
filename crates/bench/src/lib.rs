//! Scenario benchmarks of Slackwater, each beside the limits and peers of the same run.
//!
//! Every benchmark is a function `run(options) -> Report`; a report serialises to JSON and gives a text table and an HTML page.

pub mod cluster;
pub mod copy;
pub mod machine;
pub mod meta;
pub mod mq;
pub mod peer;
pub mod policy;
pub mod pool;
pub mod process;
pub mod promotion;
pub mod removal;
pub mod served;
pub mod store;
pub mod tied;
pub mod tiers;
pub mod transfer;
mod turns;
pub mod usage;
pub mod wait;
