//! Scenario benchmarks of Slackwater, and the reports that show them.

pub mod report;
