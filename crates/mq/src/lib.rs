//! The message layer of Slackwater: commands and requests between peers that are identified by keys, over ZMTP with
//! NULL or CURVE, with the wire conventions of OxenMQ.
//!
//! A [`Builder`] fixes categories, commands and aliases; [`Builder::start`] starts the event loops; an [`Mq`] sends,
//! requests and listens from any thread. Handlers run on workers under the limits of their category, or inline on a
//! loop where they are declared never to block. What a message costs does not depend on how many links there are.
#![forbid(unsafe_code)]

mod access;
mod address;
mod batch;
mod call;
mod connect;
mod context;
mod deliver;
mod frames;
mod jobs;
mod link_config;
mod metrics;
mod mq;
mod options;
mod registry;
mod request;
mod resolve;
mod shard;
mod start;
mod stream;
mod subscription;
mod tagged;
mod timer;
pub mod tool;

use slackwater_wait::Site;

pub use access::{Access, Admission, Applicant, Decide};
pub use address::{Address, AddressError, Place};
pub use batch::{Batch, BatchError, JobOutcome, RunOn};
pub use call::{Call, Deferred, NotARequest};
pub use connect::{
    Attempt, ConnectError, ConnectFailure, ConnectOptions, ListenError, ListenOptions, NodeError,
};
pub use context::{ConnectionId, LinkEvent, LinkId};
pub use deliver::{Route, SendError, SendOptions};
pub use frames::Refusal;
pub use jobs::{Queueing, Workers};
pub use metrics::Metrics;
pub use mq::Mq;
pub use options::{Options, StartError};
pub use registry::{Builder, Category, Handler, RegistryError, Run};
pub use request::{Answer, BegunRequest, RequestError, RequestOptions};
pub use slackwater_keys::{
    AllowList, AllowListError, Allowed, KeyFileError, Level, load_key, new_keys, write_key,
};
pub use start::Running;
pub use stream::{Gap, Published, Publisher, StreamHandler, StreamOptions};
pub use subscription::{Change, Subscriptions};
pub use tagged::{TaggedFull, TaggedThread};
pub use timer::{Timer, TimerOptions};

/// Where the threads of the message layer wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 2] {
    [&jobs::REST, &jobs::DRAIN]
}
