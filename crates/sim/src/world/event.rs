//! The events of the world, and the messages between its processes.

use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_client::{ReadFailure, WriteFailure};
use slackwater_tier::io::DiskDone;
use slackwater_wire::body::{self, Message};
use slackwater_wire::{
    AnnounceFirst, CopyTask, DiskEntry, ErrorCode, ExtentRef, NodeHello, NodeWelcome, OperationId,
    Orders, Reply, Reports, Request, TicketId,
};

use crate::check::{Checked, Invariant, Violation};
use crate::disk::{Caller, Ended};
use crate::net::Process;

/// One connection of a client or a node to the master; a new number for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(crate) u64);

/// One movement of bytes between a client and a node; a new number for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TransferId(pub(crate) u64);

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A control message arrives.
    Control {
        session: SessionId,
        to: Process,
        body: Control,
    },
    /// A datagram arrives.
    Data {
        from: Process,
        to: Process,
        data: Data,
    },
    /// One end of a connection detects that it is broken.
    SessionEnd { session: SessionId, at: Process },
    /// The deadline of a process has come.
    Wake { process: Process, life: u64 },
    /// The device has done an operation.
    Device {
        node: u32,
        life: u64,
        caller: Caller,
    },
    /// The agent is told of an operation that the device has done.
    AgentDisk {
        node: u32,
        life: u64,
        done: DiskDone,
    },
    /// A reader on the node is told of an operation that the device has done.
    ReaderDisk {
        node: u32,
        life: u64,
        reader: u64,
        ended: Ended,
    },
    /// A node does the second half of a read of memory.
    Copy {
        node: u32,
        life: u64,
        transfer: TransferId,
    },
    /// A reader does the second half of copying a record to the extent of its promotion.
    Fill { node: u32, life: u64, reader: u64 },
    /// A node checks whether the bytes have come that it brings.
    BringLate {
        node: u32,
        life: u64,
        transfer: TransferId,
    },
    /// A node writes the second half of what it brings.
    Brought {
        node: u32,
        life: u64,
        transfer: TransferId,
    },
    /// The operator begins a job, or cancels one.
    Operator,
    /// A node that has lost the master connects again.
    Reconnect { node: u32, life: u64 },
    /// A node checks whether pieces of a write still arrive.
    Idle {
        node: u32,
        life: u64,
        transfer: TransferId,
        chunks: usize,
    },
    /// A client checks whether a transfer still makes progress.
    Resend {
        client: u32,
        life: u64,
        transfer: TransferId,
    },
    /// No I/O of a cancelled transfer can touch the client's buffer any more.
    Cancelled {
        client: u32,
        life: u64,
        transfer: TransferId,
    },
    /// The caller of an operation cancels it, if it is still under way.
    CallerCancels { client: u32, life: u64, begun: u64 },
    /// A client continues its script.
    Next { client: u32, life: u64 },
    /// A planned fault happens.
    Fault(usize),
    /// The faults of a node's disk end.
    DiskFaultsEnd { node: u32, window: u64 },
    /// A process that should have ended at some message or disk operation ends now, if it is still
    /// there.
    EndOverdue { process: Process, life: u64 },
    /// A node that was killed and is back loses power.
    PowerCut { node: u32, down: Duration },
    /// A process is started.
    Start { process: Process },
}

impl Event {
    /// The process that handles the event, and cannot while it is paused.
    pub(crate) fn process(&self) -> Option<Process> {
        match self {
            Self::Control { to, .. } | Self::Data { to, .. } => Some(*to),
            Self::Operator => Some(Process::Master),
            Self::SessionEnd { at, .. } => Some(*at),
            Self::Wake { process, .. } => Some(*process),
            Self::AgentDisk { node, .. }
            | Self::ReaderDisk { node, .. }
            | Self::Copy { node, .. }
            | Self::Fill { node, .. }
            | Self::BringLate { node, .. }
            | Self::Brought { node, .. }
            | Self::Reconnect { node, .. }
            | Self::Idle { node, .. } => Some(Process::Node(*node)),
            Self::Resend { client, .. }
            | Self::Cancelled { client, .. }
            | Self::CallerCancels { client, .. }
            | Self::Next { client, .. } => Some(Process::Client(*client)),
            Self::Device { .. }
            | Self::Fault(_)
            | Self::DiskFaultsEnd { .. }
            | Self::EndOverdue { .. }
            | Self::PowerCut { .. }
            | Self::Start { .. } => None,
        }
    }
}

/// What travels on a connection to or from the master.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    /// A node identifies itself: the first message on its connection.
    Hello(Box<NodeHello>),
    /// The master's answer to it.
    Welcome(NodeWelcome),
    /// A request of a client.
    Request {
        operation: OperationId,
        request: Request,
    },
    /// An answer of the master.
    Reply {
        operation: OperationId,
        reply: Reply,
    },
    /// Orders of the master.
    Orders(Orders),
    /// Reports of a node.
    Reports(Reports),
    /// The master asks a node to announce some keys first.
    AnnounceFirst(AnnounceFirst),
    /// The master asks a node to bring a value.
    Copy(Box<CopyTask>),
    /// How that went.
    Copied {
        ticket: TicketId,
        result: Result<(), ErrorCode>,
    },
}

impl Control {
    /// The message as its receiver reads it from its bytes.
    ///
    /// # Errors
    /// When what is read is not what was written.
    pub(crate) fn carried(&self) -> Checked<Self> {
        fn read<M: Message + PartialEq + Debug>(
            message: &M,
            bytes: Result<Vec<u8>, body::BodyError>,
        ) -> Checked<M> {
            match bytes.and_then(|bytes| body::decode(&bytes)) {
                Ok(read) if read == *message => Ok(read),
                other => {
                    let what = format!("{message:?} arrives as {other:?}");
                    Err(Violation::new(Invariant::Contract, what))
                }
            }
        }
        fn carried<M: Message + PartialEq + Debug>(message: &M) -> Checked<M> {
            read(message, body::encode(message))
        }
        Ok(match self {
            Self::Hello(hello) => Self::Hello(Box::new(carried(&**hello)?)),
            Self::Welcome(welcome) => Self::Welcome(carried(welcome)?),
            Self::Request { operation, request } => Self::Request {
                operation: *operation,
                request: carried(request)?,
            },
            Self::Reply { operation, reply } => Self::Reply {
                operation: *operation,
                reply: carried(reply)?,
            },
            Self::Orders(orders) => Self::Orders(carried(orders)?),
            Self::Reports(reports) => {
                let bytes = body::encode_reports(body::EMPTYING, reports);
                Self::Reports(read(reports, bytes)?)
            }
            Self::AnnounceFirst(asked) => Self::AnnounceFirst(carried(asked)?),
            // The shell makes other messages of them.
            Self::Copy(_) | Self::Copied { .. } => self.clone(),
        })
    }

    /// Approximate length on the wire, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Request { .. } | Self::Reply { .. } | Self::Welcome(_) => 256,
            Self::Hello(_)
            | Self::Orders(_)
            | Self::Reports(_)
            | Self::AnnounceFirst(_)
            | Self::Copy(_) => 512,
            Self::Copied { .. } => 64,
        }
    }
}

/// What travels between clients and nodes.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// A piece of a value for an extent.
    Write {
        transfer: TransferId,
        extent: ExtentRef,
        offset: usize,
        bytes: Rc<[u8]>,
        chunks: usize,
    },
    /// The answer to a write: all pieces are in place, or the write failed.
    Written {
        transfer: TransferId,
        result: Result<(), WriteFailure>,
    },
    /// A request for the bytes of an extent.
    ReadMemory {
        transfer: TransferId,
        extent: ExtentRef,
        bytes: u64,
    },
    /// A request for the bytes of a record.
    ReadRecord {
        transfer: TransferId,
        entry: DiskEntry,
    },
    /// The bytes that were asked for.
    Bytes {
        transfer: TransferId,
        result: Result<Rc<[u8]>, ReadFailure>,
    },
}

impl Data {
    /// Approximate length on the wire, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        64 + match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Bytes {
                result: Ok(bytes), ..
            } => bytes.len(),
            _ => 0,
        }
    }

    /// The message as text for the trace: everything but the bytes.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Write {
                transfer,
                extent,
                offset,
                bytes,
                ..
            } => {
                format!(
                    "{transfer:?} write {} at {offset} of {extent:?}",
                    bytes.len()
                )
            }
            Self::Bytes { transfer, result } => {
                format!(
                    "{transfer:?} bytes {:?}",
                    result.as_ref().map(|bytes| Checksum::of(bytes))
                )
            }
            other => format!("{other:?}"),
        }
    }
}
