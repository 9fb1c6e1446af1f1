//! The client of a store that another process serves.
//!
//! A [`Client`] asks the master on a link of the message layer and moves bytes by the transfer engine, straight between
//! the caller's buffer and the arena, under the capabilities that come with the answers. What to do next is decided by the
//! flows of `slackwater-client`; this crate carries out their actions, on the caller's thread, or for a task that awaits them:
//! every call is written once, as a future, and waits where its maker says, see [`Waits`].
//!
//! Every call has a deadline, and ends only when nothing touches the caller's buffer any more. While the server is away,
//! a call waits for it to come back until then.
#![deny(unsafe_code)]

mod at_hand;
mod calls;
mod cancel;
mod carry;
mod client;
mod connect;
mod drive;
mod error;
mod get;
mod jobs;
mod link;
mod locations;
mod lone;
mod options;
mod pick;
mod put;
mod quotas;
mod session;
mod tells;
mod view;
mod waits;

pub use calls::Calls;
pub use cancel::Cancel;
pub use client::Client;
pub use connect::ConnectOptions;
pub use error::{ClientError, ConnectError};
pub use get::Part;
pub use options::{CallOptions, GetOptions, PutOptions, RemoveOptions, Stored};
pub use session::ReadSession;
pub use slackwater_transfer::PeerStats;
pub use view::View;
pub use waits::{Waits, here};
