//! The mover between processes of one host.
//!
//! The owner of memory answers requests for windows on one thread ([`service`]): it checks a capability once, opens a
//! window on what the capability grants, and passes the memory itself if it is shared. The initiator then copies by
//! itself ([`carry`]), on the caller's thread or on the copy threads ([`copy_threads`]). A lone caller asks for its window
//! for a moment; other windows are asked for on one control thread per process ([`control`]). One word per window, in a page
//! that both map ([`page`]), keeps late copies from reused memory. Who may connect is decided at the [`doorway`].

mod askers;
mod attached_peer;
mod cache_history;
mod carry;
mod control;
mod copy_threads;
mod core;
#[cfg(test)]
#[path = "../../../fuzz/src/corpora.rs"]
mod corpora;
mod doorway;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(test)]
mod gate_tests;
mod granted;
mod identity;
#[cfg(test)]
#[path = "../../engine/tests/lender/mod.rs"]
mod lender;
mod link;
mod link_seal;
mod membership;
mod message;
mod mover;
mod opening;
mod packets;
mod page;
mod peer;
mod process;
mod service;
#[cfg(test)]
mod tests;
mod watched;
mod window;

use slackwater_wait::Site;

pub use mover::{HostError, HostLimits, HostMover};
pub use service::ServiceLimits;

/// Where the threads of this mover and of its callers wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 4] {
    [
        &control::CONTROL,
        &service::DRAINING,
        &copy_threads::SETTLING,
        &askers::TURN,
    ]
}
