//! The binary as its users run it: processes, exit codes, output, and what is left behind.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod across;
mod bench;
mod bench_all;
mod compare;
mod explain;
mod kill;
mod mq;
mod place;
mod policy;
mod replay;
mod served;
mod size;
mod topology;
mod trouble;
