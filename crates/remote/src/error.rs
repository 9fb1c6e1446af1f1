use std::time::Duration;

use slackwater_base::format_duration;
use slackwater_mq::{Address, KeyFileError, StartError};
use slackwater_transfer::StartError as TransferError;
use slackwater_wire::{ErrorCode, Key, KeyError};
use thiserror::Error;

/// Why there is no connection to a server.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The file with the secret key cannot be used.
    #[error("the key file: {0}")]
    KeyFile(#[from] KeyFileError),
    /// The server proves a key, and so must its clients.
    #[error("{address} needs a key of ours: name its file, which `slackwater keys new` makes")]
    NeedsKey {
        /// The address of the server.
        address: Address,
    },
    /// A key of ours was named, and nothing would be encrypted with it.
    #[error(
        "{address} has no key of the server, so nothing would be encrypted: name the curve:// address that \
         `slackwater serve` prints, or leave the key file out"
    )]
    NeedsServerKey {
        /// The address of the server.
        address: Address,
    },
    /// There is no link to a server that proves a key.
    #[error(
        "no link to {address}: {reason}; a server must run there, the key in the address must be its own, and ours \
         in its allow-list"
    )]
    NoLink {
        /// The address of the server.
        address: Address,
        /// What was found instead.
        reason: String,
    },
    /// Nobody answers as a server without keys does.
    #[error(
        "no server at {address}: {reason}; `slackwater serve` starts one, and one with keys is reached by the \
         curve:// address that it prints"
    )]
    NoServer {
        /// Where it was looked for.
        address: Address,
        /// What was found instead.
        reason: String,
    },
    /// The server does not let this client in.
    #[error("the server at {address} refuses this client: {code}")]
    Refused {
        /// The address of the server.
        address: Address,
        /// The reason.
        code: ErrorCode,
    },
    /// Something answers that is no server of this version.
    #[error("{address} is no server that this release understands: {reason}")]
    Foreign {
        /// The address that was asked.
        address: Address,
        /// What was wrong with the answer.
        reason: String,
    },
    /// The message layer could not be started.
    #[error("the message layer: {0}")]
    Messages(#[from] StartError),
    /// The transfer engine could not be started.
    #[error("the transfer engine: {0}")]
    Transfers(#[from] TransferError),
    /// The operating system gives no randomness or thread.
    #[error("the operating system: {0}")]
    System(#[from] std::io::Error),
}

impl ConnectError {
    /// The code that stands for it across languages and processes.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoServer { .. } | Self::NoLink { .. } => ErrorCode::RpcFail,
            Self::Refused { code, .. } => *code,
            Self::KeyFile(_) | Self::NeedsKey { .. } | Self::NeedsServerKey { .. } => {
                ErrorCode::InvalidParams
            }
            Self::Foreign { .. } => ErrorCode::NotSupported,
            Self::Messages(_) | Self::Transfers(_) | Self::System(_) => {
                ErrorCode::UnavailableInCurrentMode
            }
        }
    }
}

/// Why a call did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClientError {
    /// The key is empty or too long.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A value of no bytes.
    #[error("the value of {key} is empty")]
    EmptyValue {
        /// Its key.
        key: Key,
    },
    /// A value that the server could not hold even when empty.
    #[error("the value of {key} has {bytes} bytes, the largest that fits has {limit}")]
    ValueTooLarge {
        /// Its key.
        key: Key,
        /// Its length in bytes.
        bytes: u64,
        /// The longest there may be.
        limit: u64,
    },
    /// The caller's buffer is shorter than the value.
    #[error("the value of {key} has {need} bytes, the buffer {have}")]
    BufferTooSmall {
        /// The key.
        key: Key,
        /// Length of the value.
        need: u64,
        /// Length of the buffer.
        have: usize,
    },
    /// As many buffers as keys are needed.
    #[error("{keys} keys but {buffers} buffers")]
    BufferCount {
        /// Keys in the call.
        keys: usize,
        /// Buffers in the call.
        buffers: usize,
    },
    /// The server refused the operation for this key.
    #[error("{key}: {code}")]
    Refused {
        /// The key.
        key: Key,
        /// The code of the refusal.
        code: ErrorCode,
    },
    /// The server refused the call as a whole.
    #[error("{0}")]
    RefusedCall(ErrorCode),
    /// The deadline passed first, or would have before anything could be tried again. Whether the operation took effect is not known.
    #[error("{what} was not answered within {}: {reason}", format_duration(*after))]
    Deadline {
        /// The call.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
        /// The last that went wrong with a message to the server since it began, or that none did.
        reason: String,
    },
    /// The caller cancelled it. Whether a put or a removal took effect is not known.
    #[error("{what} was cancelled")]
    Cancelled {
        /// The call.
        what: &'static str,
    },
}

impl ClientError {
    /// The code that stands for it across languages and processes.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Key(KeyError::Empty | KeyError::TooLong { .. }) => ErrorCode::InvalidKey,
            Self::EmptyValue { .. } | Self::ValueTooLarge { .. } | Self::BufferCount { .. } => {
                ErrorCode::InvalidParams
            }
            Self::BufferTooSmall { .. } => ErrorCode::BufferOverflow,
            Self::Refused { code, .. } | Self::RefusedCall(code) => *code,
            Self::Deadline { .. } => ErrorCode::DeadlinePassed,
            Self::Cancelled { .. } => ErrorCode::Cancelled,
        }
    }
}
