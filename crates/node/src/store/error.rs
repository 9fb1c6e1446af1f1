use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::{ByteSize, format_duration};
use slackwater_wire::{ErrorCode, Key, KeyError};
use thiserror::Error;

use crate::config::ConfigProblem;
use crate::disk::DirectoryError;

/// Why a call did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The key is empty or too long.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A value of no bytes.
    #[error("the value of {key} is empty")]
    EmptyValue {
        /// Its key.
        key: Key,
    },
    /// A value that no segment could hold even when empty.
    #[error("the value of {key} has {}, the largest that fits has {}", ByteSize(*bytes), ByteSize(*limit))]
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
    /// More keys than one call takes.
    #[error("{keys} keys in one call, the limit is {limit}")]
    TooManyKeys {
        /// Keys in the call.
        keys: usize,
        /// Most there may be.
        limit: usize,
    },
    /// There are more keys than a list without a limit returns.
    #[error("more than {limit} keys: name a limit, and go on after the last key of each list")]
    ListTooLong {
        /// Most there may be.
        limit: usize,
    },
    /// As many buffers as keys are needed.
    #[error("{keys} keys but {buffers} buffers")]
    BufferCount {
        /// Keys in the call.
        keys: usize,
        /// Buffers in the call.
        buffers: usize,
    },
    /// As many views are open as may be.
    #[error("{open} views are open, of {limit} at most (`views.limit`): end some first")]
    TooManyViews {
        /// Views that are open.
        open: usize,
        /// Most there may be.
        limit: usize,
    },
    /// A view has been open for longer than it may be: there is no further one until it ends.
    #[error("no further view: one of {key} has been open for {}, and {} is the limit (`views.time`)",
            format_duration(*held), format_duration(*limit))]
    LateView {
        /// The key of the oldest view.
        key: Key,
        /// How long it has been open.
        held: Duration,
        /// How long a view may be open.
        limit: Duration,
    },
    /// Views of values on SSD hold the memory that there is for them.
    #[error("no memory to view {} of {key} from SSD: views hold what `views.buffers` allows; end some, or read it into a buffer",
            ByteSize(*bytes))]
    NoViewBuffer {
        /// The key.
        key: Key,
        /// Length of the value.
        bytes: u64,
    },
    /// No room, and none came free within the time allowed.
    #[error("no room for {} of {key}, and none came free within {}", ByteSize(*bytes), format_duration(*waited))]
    NoSpace {
        /// The key.
        key: Key,
        /// Length of its value.
        bytes: u64,
        /// How long the call waited.
        waited: Duration,
    },
    /// The store refused the operation for this key.
    #[error("{key}: {code}")]
    Refused {
        /// The key.
        key: Key,
        /// The code of the refusal.
        code: ErrorCode,
    },
    /// The store refused the call as a whole.
    #[error("{0}")]
    RefusedCall(ErrorCode),
    /// The call asks for what the configuration does not give.
    #[error("{what} needs the SSD tier: set `ssd` and `dir`")]
    NeedsSsd {
        /// What was asked for.
        what: &'static str,
    },
    /// The deadline passed first; whether the operation took effect is not known.
    #[error("{what} did not end within {}", format_duration(*after))]
    Deadline {
        /// The call.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The store was closed while the SSD did not take records that callers were promised.
    #[error("closed, but the SSD did not take {records} {} promised to be durable",
            if *records == 1 { "value that was" } else { "values that were" })]
    NotDurable {
        /// How many.
        records: usize,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// A thread of the store died; nothing it does can be trusted any more.
    #[error("the store is broken: {why}")]
    Broken {
        /// What the thread said last.
        why: String,
    },
}

impl StoreError {
    /// The code that stands for it across languages and processes.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            StoreError::Key(KeyError::TooLong { .. }) => ErrorCode::InvalidKey,
            StoreError::Key(KeyError::Empty)
            | StoreError::EmptyValue { .. }
            | StoreError::ValueTooLarge { .. }
            | StoreError::BufferTooSmall { .. }
            | StoreError::TooManyKeys { .. }
            | StoreError::ListTooLong { .. }
            | StoreError::BufferCount { .. } => ErrorCode::InvalidParams,
            StoreError::NoSpace { .. } | StoreError::NoViewBuffer { .. } => {
                ErrorCode::NoAvailableHandle
            }
            StoreError::TooManyViews { .. } | StoreError::LateView { .. } => {
                ErrorCode::TaskPendingLimitExceeded
            }
            StoreError::Refused { code, .. } | StoreError::RefusedCall(code) => *code,
            StoreError::NeedsSsd { .. } => ErrorCode::UnavailableInCurrentMode,
            StoreError::Deadline { .. } => ErrorCode::DeadlinePassed,
            StoreError::NotDurable { .. } => ErrorCode::PersistentFail,
            StoreError::Closed => ErrorCode::ShuttingDown,
            StoreError::Broken { .. } => ErrorCode::InternalError,
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("{}", list(.0))]
    Config(Vec<ConfigProblem>),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The device that the configuration insists on is not there.
    #[error("no device: {why}")]
    Device {
        /// The reason that the operating system gives.
        why: String,
    },
    /// The operating system gives no memory for values.
    #[error("no {bytes} of memory: {why}")]
    Memory {
        /// How much was asked for.
        bytes: ByteSize,
        /// What the operating system said.
        why: std::io::Error,
    },
    /// The log of the SSD tier cannot be read.
    #[error("the log in {}: {why}", directory.display())]
    Log {
        /// The directory of the log.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The store that runs in a directory was asked and did not answer.
    #[error("the store that runs in {}: {why}", directory.display())]
    RunningStore {
        /// The directory that the store holds.
        directory: PathBuf,
        /// The store's own error, or that of the operating system.
        why: String,
    },
    /// The operating system gives no thread, ring or other handle.
    #[error("{what}: {why}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the operating system said.
        why: std::io::Error,
    },
}

fn list(problems: &[ConfigProblem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
