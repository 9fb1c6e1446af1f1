//! What the two ends of a transfer connection say and do, without the connection.
//!
//! - [`protocol`] is one connection: an [`Initiator`](protocol::Initiator) and a [`Responder`](protocol::Responder).
//! - [`seal`] is how the two agree on keys, and the records that their bytes travel in then.
//! - [`Cause`] is why a transfer did not complete.
//!
//! Pure: nothing here sees a socket, memory that is not its own, a thread or a clock.
#![forbid(unsafe_code)]

mod cause;
#[cfg(test)]
#[path = "../../../fuzz/src/corpora.rs"]
mod corpora;
pub mod protocol;
pub mod seal;

pub use cause::{Cause, Deadline};
pub use protocol::Notice;
