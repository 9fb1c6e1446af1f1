//! One node's tiers: the books of its DRAM arena and its SSD log, and the agent that carries out the master's orders.
//!
//! Pure: what must happen on the device leaves as [`io::DiskOp`] and comes back as [`io::DiskDone`]. The node crate
//! performs them on real files, the simulator on a disk that tears and forgets.
#![forbid(unsafe_code)]

pub mod io;
