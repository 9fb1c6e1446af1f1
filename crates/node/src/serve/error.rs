use std::net::SocketAddr;

use slackwater_base::ByteSize;
use slackwater_mq::{
    AllowListError, KeyFileError, ListenError, RegistryError, StartError as MessagesError,
};
use slackwater_transfer::{RegisterError, StartError as TransferError};
use thiserror::Error;

use crate::OpenError;

/// Why a store is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The journal of a master cannot be used.
    #[error(transparent)]
    Journal(#[from] crate::pool::JournalError),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file with the secret key cannot be used.
    #[error("the key file: {0}")]
    KeyFile(#[from] KeyFileError),
    /// The list of those who may connect cannot be used.
    #[error("the allow-list: {0}")]
    AllowList(#[from] AllowListError),
    /// Other machines could reach it, and without keys no peer would be authenticated.
    #[error(
        "{address} can be reached from other machines: give --key-file and --allow, or listen on a loopback address"
    )]
    NeedsKeys {
        /// Where it should have listened.
        address: SocketAddr,
    },
    /// Other machines could read the keys of values in KV events.
    #[error(
        "KV events at {address} can be read from other machines: give --key-file and --allow, or a loopback address, or \
         --kv-events-open (SLACKWATER_KV_EVENTS_OPEN=true) to tell everybody who reaches it, unencrypted"
    )]
    KvEventsNeedKeys {
        /// Where they should have been told.
        address: SocketAddr,
    },
    /// It cannot listen for those who want KV events.
    #[error(
        "cannot tell KV events: {0}; name other addresses with --kv-events and --kv-events-replay"
    )]
    KvEvents(ListenError),
    /// An address that names no interface cannot be told to clients.
    #[error("clients cannot connect to {address}: name an address of this machine with --data")]
    Unspecified {
        /// Where the data plane should have listened.
        address: SocketAddr,
    },
    /// Too little or too much memory for records of the SSD.
    #[error("--staging {bytes} is out of range: give 8KiB to 1TiB")]
    Staging {
        /// What was asked for.
        bytes: ByteSize,
    },
    /// It cannot listen for requests.
    #[error(
        "cannot listen on {address}: {why}; name another address with --listen if another server runs there"
    )]
    Listen {
        /// Where it should have listened.
        address: SocketAddr,
        /// The cause.
        why: ListenError,
    },
    /// The data plane could not be started.
    #[error("cannot serve bytes on {address}: {why}")]
    Data {
        /// Where it should have listened.
        address: SocketAddr,
        /// The cause.
        why: TransferError,
    },
    /// The store's memory could not be registered for transfers.
    #[error("cannot lend memory: {0}")]
    Memory(#[from] RegisterError),
    /// The message layer could not be started.
    #[error("the message layer: {0}")]
    Messages(#[from] MessagesError),
    /// The commands of the message layer are wrong.
    #[error("the message layer: {0}")]
    Commands(#[from] RegistryError),
}
