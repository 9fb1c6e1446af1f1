//! Event loops on mio: listeners, connections, timers, gathered writes, limits on unauthenticated peers.
//!
//! A [`Loop`] owns connections and one [`Protocol`], a state machine that takes [`Event`]s and acts through [`Net`].
//! Any thread may hand a command to a loop: it runs at once on that thread when the loop is at rest, otherwise on
//! whichever thread is inside. A caller that waits for an answer may turn the loop itself. `DRIVE.md` argues why no
//! command and no event is ever left without a thread that runs it.
#![forbid(unsafe_code)]

mod bucket;
mod counters;
mod drive;
mod endpoint;
mod limiter;
mod net;
mod outbox;
mod ports;
mod protocol;
mod raw;
mod role;
mod socket;
mod topology;
mod wheel;

use slackwater_wait::Site;

pub use bucket::TokenBucket;
pub use counters::{Counter, Counters};
pub use drive::{Loop, StartError, WeakLoop, is_inside_a_loop};
pub use endpoint::{Endpoint, NoEndpoint, Origin, Source};
pub use limiter::PreAuthLimits;
pub use net::Net;
pub use ports::{LocalPorts, NoPorts};
pub use protocol::{ConnId, Connect, End, Event, Limits, Listen, ListenerId, NetError, Protocol};
pub use raw::Readiness;
pub use socket::{TcpLiveness, UnixAccess};
pub use topology::{Gpu, Interface, Machine, Ranked, RdmaDevice, Topology, TopologyError};
pub use wheel::{TimerId, Wheel};

/// Where the threads of event loops and of their callers wait, with how: counted for the whole process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 4] {
    [
        &drive::ANSWER,
        &drive::EXPECTED,
        &role::BACKGROUND,
        &role::CALLER,
    ]
}
