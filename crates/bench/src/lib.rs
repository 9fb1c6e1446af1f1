//! Scenario benchmarks of Slackwater, each beside the limits and peers of the same run.
//!
//! Every benchmark is a function `run(options) -> Report`; a report gives JSON, a text table and an HTML page.

pub mod copy;
pub mod machine;
pub mod page;
pub mod pool;
pub mod usage;
pub mod wait;
