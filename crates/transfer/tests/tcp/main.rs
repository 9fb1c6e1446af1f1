//! The TCP mover between engines, with real sockets on loopback.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod clocks;
mod direct;
mod files;
mod gate;
mod hostile;
mod junk;
#[path = "../../../engine/tests/lender/mod.rs"]
mod lender;
mod peer;
mod raw;
mod same_host;
mod sealed;
mod staged;
mod stale;
mod support;
mod together;
mod transfer;
