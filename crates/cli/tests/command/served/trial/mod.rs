//! The pool under faults: a master, three nodes and processes of a load, each on a host of its own, while one of them
//! after the other dies, stops, is cut off, slow, full or damaged. What every client was told is checked afterwards.

#![expect(
    clippy::print_stdout,
    reason = "what was skipped, and which fault a seed has reached"
)]

mod cluster;
mod disks;
mod faults;
mod history;
mod history_tests;
mod load;
mod settle;
mod value;
