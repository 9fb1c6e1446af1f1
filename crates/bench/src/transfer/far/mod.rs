//! `bench transfer` between two machines: a far end that waits for runs, and a run against it.
//!
//! Orders and answers go over the message layer, with its keys. Measured bytes have connections of their own: those of the
//! engines, sealed with the same keys, and a bare socket, the limit, which a token of the run opens.

mod bare;
mod link;
mod measure;
mod report;
mod serve;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use slackwater_mq::{Address, AddressError, AllowListError, ConnectError, KeyFileError};
use thiserror::Error;

pub use self::measure::{Across, run_across};
pub use self::report::FarReport;
pub use self::serve::{FarEnd, ServeOptions};
use super::ends::Contact;

/// What both ends must be alike in besides their version: the asks, and the bytes of the bare socket.
const PROTOCOL: u32 = 1;

/// This program, as the other end is told.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const CATEGORY: &str = "bench";
const COMMAND: &str = "bench.far";

/// What a run asks of its far end, as JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// To be its far end from now on. No version changes these fields.
    Begin { version: String, protocol: u32 },
    /// An engine and memory behind it; with the event loops of a user if none are named.
    Target { bytes: usize, loops: Option<usize> },
    /// To close all engines.
    Close,
    /// How much CPU time it has used.
    Cpu,
    /// A server of iperf3 for one test.
    Iperf3,
    /// No more.
    End,
}

/// What a far end answers, as JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Begun(Begun),
    Target(Box<Contact>),
    CpuSeconds(f64),
    Iperf3Port(u16),
    Done,
    Refused(String),
    /// As [`Ask::Begin`] has it: no version changes these fields.
    OtherVersion {
        version: String,
        protocol: u32,
    },
}

/// A far end that is ours for a run.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    version: String,
    machine: serde_json::Value,
    /// Where its bare sockets are, and what opens them.
    bare_port: u16,
    bare_token: [u8; 16],
}

/// Why there is no far end, or no longer one.
#[derive(Debug, Error)]
pub enum FarError {
    /// The secret key cannot be used.
    #[error("the key file: {0}")]
    KeyFile(#[from] KeyFileError),
    /// The list of those who may connect cannot be used.
    #[error("the allow-list: {0}")]
    AllowList(#[from] AllowListError),
    /// Other machines could reach it, and any of them could have it move bytes.
    #[error(
        "{address} can be reached from other machines: give --key-file and --allow, or listen on a loopback address"
    )]
    NeedsKeys {
        /// Where it should have listened.
        address: SocketAddr,
    },
    /// Keys that nobody may use.
    #[error("--key-file without --allow lets nobody connect: name the list of keys that may")]
    NeedsList,
    /// An address that names no interface cannot be told to the other machine.
    #[error("{address} names no interface: listen on an address of this machine, such as 10.0.0.5:{port}", port = address.port())]
    Unspecified {
        /// Where it should have listened.
        address: SocketAddr,
    },
    /// It cannot listen.
    #[error("cannot listen on {address}: {why}; name another address or port with --listen")]
    Listen {
        /// Where it should have listened.
        address: SocketAddr,
        /// The cause.
        why: String,
    },
    /// A far end on another machine proves a key, and so do we.
    #[error(
        "{address} is not on this machine: give the curve:// address that its far end printed, and --key-file"
    )]
    NeedsCurve {
        /// The far end.
        address: Address,
    },
    /// It proves a key and expects one.
    #[error(
        "{address} expects a key: give --key-file, and enter its public half into the list of the far end"
    )]
    NeedsKey {
        /// The far end.
        address: Address,
    },
    /// A key for a far end that proves none.
    #[error(
        "--key-file is of no use with {address}: give the curve:// address that its far end printed"
    )]
    KeyUnused {
        /// The far end.
        address: Address,
    },
    /// The name of its host leads nowhere.
    #[error("the far end at {address}: {why}; give the name or number of its machine")]
    Resolve {
        /// The far end.
        address: Address,
        /// The cause.
        why: AddressError,
    },
    /// Something else answers there.
    #[error(
        "what answers at {address} is no far end ({why}): give the address that `slackwater bench transfer --serve` printed"
    )]
    NotFar {
        /// Where it should be.
        address: Address,
        /// Its refusal.
        why: String,
    },
    /// Nothing that is a far end answers there.
    #[error(
        "no far end: {0}; start `slackwater bench transfer --serve` there, and give the address that it prints"
    )]
    Connect(#[from] Box<ConnectError>),
    /// Figures of two versions say little, and the two may not understand each other.
    #[error(
        "the far end at {address} is slackwater {theirs}, this is {ours}: run the same version on both machines"
    )]
    Version {
        /// The far end.
        address: Address,
        /// Its version and protocol.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// It is busy, or was asked for more than it gives.
    #[error("the far end at {address} refuses {during}: {why}")]
    Refused {
        /// The far end.
        address: Address,
        /// What it was asked for.
        during: String,
        /// Its words.
        why: String,
    },
    /// It answered, and not to what it was asked.
    #[error(
        "the far end at {address} answered {during} with `{answer}`, which is no answer to that"
    )]
    Answer {
        /// The far end.
        address: Address,
        /// What it was asked for.
        during: String,
        /// Its answer.
        answer: String,
    },
    /// It ended, or the way to it did.
    #[error(
        "the far end at {address} was lost during {during}: {why}; see what it printed, start it again and repeat the run"
    )]
    Lost {
        /// The far end.
        address: Address,
        /// What was being measured.
        during: String,
        /// The cause, as far as it is known.
        why: String,
    },
    /// The message layer could not be started.
    #[error("the message layer: {0}")]
    Messages(String),
}

/// A version with its protocol, for people.
fn named(version: &str, protocol: u32) -> String {
    format!("{version} (protocol {protocol})")
}
