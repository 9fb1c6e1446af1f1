//! The fork-join pool of Slackwater, and the copies and checksums that run on it.

pub mod copy;
