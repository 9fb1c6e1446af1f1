//! What clients and the master of a pool say to each other: requests and replies with the epoch, the operation, and the
//! capabilities under which bytes are moved.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_base::Checksum;

use crate::data::{Capability, Rights, Segment};
use crate::{
    ClientId, DiskEntry, Epoch, ErrorCode, ExtentRef, Lookup, NodeId, OperationId, PutStarted,
    ReplicaAt, Reply, Request, TraceContext, checksum_serde,
};

/// The first message of a client on a link. Answered by [`Welcome`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The latest epoch that the client has seen.
    pub epoch: Epoch,
    /// The life of the client's process, the same on all its links.
    pub client: ClientId,
    /// The boot id of the client's host, where it shares memory with processes of that: what it reads often is brought to a
    /// node there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// What a client needs to know of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// How to reach the memory of each node.
    pub nodes: Vec<Segment>,
    /// Length of the longest value that the pool takes, in bytes.
    pub value_bytes_max: u64,
}

/// A request of a client. Answered by [`Answered`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The latest epoch that the client has seen.
    pub epoch: Epoch,
    /// The life of the client's process.
    pub client: ClientId,
    /// The client's number for the request, the same in every repetition.
    pub operation: OperationId,
    /// The request.
    pub request: Request,
    /// The latest format of [`crate::body`] that the client reads, which an answer may be written in. Earlier releases read
    /// the first one.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub reads: u8,
    /// The trace that it belongs to, if that is recorded. Earlier releases pass over it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::trace::optional"
    )]
    pub trace: Option<TraceContext>,
}

pub(crate) fn first() -> u8 {
    crate::body::FORMAT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_first(reads: &u8) -> bool {
    *reads == first()
}

/// The master's answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// The answer.
    pub reply: Reply,
    /// The right to read or write each of the reply's extents, in the order of [`Reply::extents`].
    #[serde(default, with = "capabilities")]
    pub capabilities: Vec<Capability>,
}

/// Asks for a record of an SSD log as bytes in memory, for which there is no replica in memory. Answered by
/// [`RecordStaged`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadRecord {
    /// The latest epoch that the client has seen.
    pub epoch: Epoch,
    /// The life of the client's process.
    pub client: ClientId,
    /// The object and version in the record.
    pub entry: DiskEntry,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum that its bytes must have.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// The trace that the read belongs to, if that is recorded. Earlier releases pass over it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::trace::optional"
    )]
    pub trace: Option<TraceContext>,
}

/// A record in memory, or why it is not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordStaged {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// The place of its bytes, or the reason for a refusal.
    pub result: Result<StagedRecord, ErrorCode>,
}

/// Where the bytes of a record are, for as long as a lease lasts or until they are released.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagedRecord {
    /// Names the place, to be released.
    pub generation: u64,
    /// The node whose memory it is; zero for that of the master's own process.
    #[serde(default)]
    pub node: NodeId,
    /// First byte, from the start of the region that the capability names.
    pub offset: u64,
    /// The right to read it.
    #[serde(with = "capability")]
    pub capability: Capability,
}

/// The client is done with a staged record. Not answered: the end of the lease releases it too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The life of the client's process.
    pub client: ClientId,
    /// The name of the place, as staged.
    pub generation: u64,
    /// The node, as staged.
    #[serde(default)]
    pub node: NodeId,
    /// Whether its bytes came: the time until now is that of their way.
    #[serde(default)]
    pub fetched: bool,
}

/// An extent that a reply names, and what the receiver may do there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentUse {
    /// The extent.
    pub extent: ExtentRef,
    /// Read a replica, or write a granted one.
    pub rights: Rights,
    /// Bytes from the start of the extent that are meant: what lies behind an object's end is not its reader's.
    pub bytes: u64,
    /// How long it may be read; none for a put, which has the master's time.
    pub lease: Option<Duration>,
}

impl Reply {
    /// The extents of memory that the reply names, in its order.
    #[must_use]
    pub fn extents(&self) -> Vec<ExtentUse> {
        let mut all = Vec::new();
        self.each_extent(|named| all.push(named));
        all
    }

    /// Calls `each` with them, one after another.
    pub fn each_extent(&self, mut each: impl FnMut(ExtentUse)) {
        match self {
            Self::Get(lookups) => lookups.iter().for_each(|lookup| reads(lookup, &mut each)),
            Self::PutStart(started) => started.iter().flat_map(writes).for_each(each),
            _ => {}
        }
    }
}

fn reads(lookup: &Lookup, each: &mut impl FnMut(ExtentUse)) {
    let Lookup::Found(object) = lookup else {
        return;
    };
    for at in &object.replicas {
        if let ReplicaAt::Memory(extent) = at {
            each(ExtentUse {
                extent: *extent,
                rights: Rights::READ,
                bytes: object.bytes,
                lease: Some(object.lease),
            });
        }
    }
}

fn writes(started: &PutStarted) -> impl Iterator<Item = ExtentUse> {
    let extents = match started {
        PutStarted::Granted { extents, .. } => extents.as_slice(),
        PutStarted::Exists | PutStarted::Failed(_) => &[],
    };
    extents.iter().map(|extent| ExtentUse {
        extent: *extent,
        rights: Rights::WRITE,
        bytes: extent.bytes,
        lease: None,
    })
}

/// A capability as bytes of fixed length.
pub(crate) mod capability {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use crate::data::Capability;

    pub(crate) fn serialize<S: Serializer>(
        capability: &Capability,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&capability.to_bytes())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Capability, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Capability;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the {} bytes of a capability", Capability::BYTES)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Capability, E> {
            let bytes = bytes
                .try_into()
                .map_err(|_| E::invalid_length(bytes.len(), &self))?;
            Ok(Capability::from_bytes(bytes))
        }
    }
}

/// Capabilities as one run of bytes.
mod capabilities {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use crate::data::Capability;

    pub(super) fn serialize<S: Serializer>(
        capabilities: &[Capability],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = capabilities.iter().flat_map(Capability::to_bytes).collect();
        serializer.serialize_bytes(&bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Capability>, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<Capability>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "capabilities of {} bytes each", Capability::BYTES)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<Capability>, E> {
            let (whole, rest) = bytes.as_chunks::<{ Capability::BYTES }>();
            if !rest.is_empty() {
                return Err(E::invalid_length(bytes.len(), &self));
            }
            Ok(whole.iter().map(Capability::from_bytes).collect())
        }
    }
}
