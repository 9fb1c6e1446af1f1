//! The TCP mover between engines, with real sockets on loopback.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod direct;
mod peer;
mod sealed;
mod stale;
mod support;
mod transfer;
