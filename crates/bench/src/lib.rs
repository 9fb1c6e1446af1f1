//! Benchmarks as a library: each is a function from options to a report, called by the command line.

pub mod meta;
pub mod policy;
