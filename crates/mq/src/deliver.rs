use slackwater_zmtp::{Message, PublicKey};
use thiserror::Error;

use crate::Address;
use crate::request::Waiter;

/// Why a message was not delivered.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SendError {
    /// There is no such link, and none may or can be opened.
    #[error("no link to the peer")]
    Gone,
    /// The link's queue is full: the peer reads too slowly.
    #[error("the link's queue is full")]
    Full,
}

/// Which links of a node a message may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Any link, or a new one.
    #[default]
    Any,
    /// Any link there is.
    OnlyConnected,
    /// Only a link that the node opened.
    OnlyInbound,
    /// Only a link that this side opened, or a new one.
    OnlyOutbound,
}

/// How to send.
#[derive(Default)]
pub struct SendOptions {
    /// Which links may be taken.
    pub route: Route,
    /// Where the node is, asked before the look-up.
    pub hint: Option<Address>,
    /// Keep-alive of a link that is opened for this.
    pub keep_alive: Option<std::time::Duration>,
    /// Called, on a worker, when the message is not delivered to the link's queue.
    pub on_failure: Option<Box<dyn FnOnce(SendError) + Send>>,
}

/// A message on its way to a link.
pub(crate) struct Sending {
    pub(crate) message: Message,
    /// For a request: its caller and its deadline.
    pub(crate) waiter: Option<(Waiter, slackwater_base::Instant)>,
    pub(crate) on_failure: Option<Box<dyn FnOnce(SendError) + Send>>,
    /// The destination when it is a node: another of its links is tried when this one is gone, or opened.
    pub(crate) node: Option<Destination>,
}

/// A node that a message goes to.
pub(crate) struct Destination {
    pub(crate) key: PublicKey,
    pub(crate) route: Route,
    pub(crate) hint: Option<Address>,
    pub(crate) keep_alive: Option<std::time::Duration>,
    /// Whether a link was opened for this message: no second one is.
    pub(crate) opened: bool,
}

impl Destination {
    /// Whether a link may be opened where there is none.
    pub(crate) fn may_open(&self) -> bool {
        match self.route {
            Route::OnlyConnected | Route::OnlyInbound => false,
            Route::Any | Route::OnlyOutbound => !self.opened,
        }
    }
}

impl Sending {
    pub(crate) fn plain(message: Message) -> Self {
        Self {
            message,
            waiter: None,
            on_failure: None,
            node: None,
        }
    }
}
