//! HTTP for operators and their tools, beside the links that clients use: health, metrics, keys, segments, quotas; and a
//! page that shows them.
//!
//! It is the only part of the workspace that runs on tokio: a runtime on one thread of its own, which sleeps until somebody
//! asks. What it tells comes from a [`Source`], so that a store, a master and a test are asked alike.
//!
//! Nobody is asked for a token at a loopback address unless one is configured; any other address needs one. Bounds hold
//! before anything is proven: connections, the time that a request may take to arrive, and its length.
#![forbid(unsafe_code)]

mod accept;
mod arguments;
mod drop_in;
mod failure;
mod guard;
mod jobs;
mod json;
mod page;
mod paths;
mod sample;
mod server;
mod source;
mod viewers;
mod warnings;

pub use failure::Failure;
pub use guard::{Token, TokenError, TokenInForce};
pub use jobs::job_described;
pub use server::{Admin, AdminError, AdminOptions};
pub use source::{Segment, Source};
