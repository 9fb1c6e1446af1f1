//! ZMTP 3.1, the wire protocol of ZeroMQ, with the NULL and CURVE mechanisms: bytes in, messages out.
//!
//! A [`Link`] is one connection. It is fed bytes, decisions and the time, and answers with bytes for the peer and
//! [`Event`]s for its owner; it holds no socket, no thread, no clock and no source of randomness. Around it are
//! the books of the socket roles: [`Rotation`] (DEALER), [`Routes`] (ROUTER), [`Subscriptions`] (PUB) and
//! [`Interests`] (SUB).
//!
//! Sources: ZMTP 3.1 (rfc.zeromq.org/spec/37), CurveZMQ (spec/26), and the observed behaviour of libzmq 4.3 where it
//! is stricter or laxer than either.
#![forbid(unsafe_code)]

mod cause;
mod command;
mod config;
mod crypto;
mod curve;
mod greeting;
mod key;
mod link;
mod message;
mod metadata;
mod reader;
mod roles;
mod send;
mod socket;

pub use cause::Cause;
pub use config::{Entropy, Heartbeat, Limits, LinkConfig, Mechanism, Side};
pub use key::{KeyLine, KeyPair, KeyTextError, PublicKey, SecretKey, key_lines};
pub use link::{Event, Input, Link, Out, Verdict};
pub use message::Message;
pub use metadata::Peer;
pub use roles::{Entry, Interests, Rotation, Routes, Subscriptions, TooManyTopics};
pub use send::SendError;
pub use socket::SocketType;
