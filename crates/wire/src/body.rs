//! Control messages as bytes: one byte that names the format, then MessagePack with named fields; answers to look-ups, of
//! which there are most, and reports of what nodes hold, which are the longest, in fixed layouts for those who say that they
//! read them.
//!
//! Fields that a peer does not know are skipped, and fields that it does not send have defaults, so that releases on
//! both sides of a change understand each other. A kind of message that a peer does not know is refused as malformed.
//! What is read allocates no more than a fixed multiple of its length, and lists in what clients and nodes send are
//! bounded in number.

use std::fmt;
use std::io::ErrorKind;
use std::marker::PhantomData;

use rmp_serde::decode::Error;
use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::limits::{BATCH_KEYS_MAX, BODY_BYTES_MAX, REQUEST_BYTES_MAX, SMALL_BYTES_MAX};
use crate::{
    AnnounceFirst, Answered, Asked, BytesCopied, CheckWritten, CopyBytes, Hello, NodeHello,
    NodeLeave, NodeLeft, NodeWelcome, Order, Orders, ReadRecord, RecordStaged, Release, Reply,
    Report, Reports, Request, StageRecord, Welcome, WrittenChecked,
};

/// The format of all messages: what this release writes, except as [`encode_for`] and [`encode_reports`] say.
pub const FORMAT: u8 = 1;

/// The format of answers to look-ups, for those who read it.
pub const LOOK_UPS: u8 = 2;

/// The format of reports of what nodes hold, for masters that read it.
pub const HELD: u8 = 3;

/// What masters say that they read who take [`Report::Emptying`] too: no format, but one step beyond [`HELD`]. The next format has the
/// number after it.
pub const EMPTYING: u8 = 4;

/// Deepest nesting of maps and lists that is read.
const DEPTH_MAX: usize = 32;

/// Why bytes are not a control message, or a message has no bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    /// The body is longer than a message may be; nothing of it was read.
    #[error("a control message of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the body.
        bytes: usize,
        /// Longest body of this kind.
        limit: usize,
    },
    /// The body has no format byte.
    #[error("a control message without bytes")]
    Empty,
    /// A release that is too new, or something else altogether, wrote the body.
    #[error(
        "a control message of format {found}: this release reads format {FORMAT}, {LOOK_UPS} of answers, and {HELD} of reports"
    )]
    Format {
        /// The first byte.
        found: u8,
    },
    /// The body is not a message of the kind that is expected here.
    #[error("a malformed control message: {what}")]
    Malformed {
        /// The reader's description of the fault.
        what: String,
    },
    /// The message ends before the body does.
    #[error("something follows a control message in its body")]
    Trailing,
}

/// A message that has bytes.
pub trait Message: Serialize + DeserializeOwned + sealed::Sealed {
    /// Longest body, in bytes.
    const BYTES_MAX: usize;

    /// The message of bytes that follow the number of another format than [`FORMAT`].
    ///
    /// # Errors
    /// Why they are none; mostly that there is no such format of this kind of message.
    fn of_format(format: u8, _bytes: &[u8]) -> Result<Self, BodyError> {
        Err(BodyError::Format { found: format })
    }
}

impl Message for Request {
    const BYTES_MAX: usize = REQUEST_BYTES_MAX;
}

impl Message for Reply {
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl Message for Order {
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl Message for Report {
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl Message for Asked {
    // What is beside the request needs less than this.
    const BYTES_MAX: usize = REQUEST_BYTES_MAX + 1024;
}

impl Message for Answered {
    const BYTES_MAX: usize = BODY_BYTES_MAX;

    fn of_format(format: u8, bytes: &[u8]) -> Result<Self, BodyError> {
        match format {
            LOOK_UPS => look_ups::decode(bytes),
            found => Err(BodyError::Format { found }),
        }
    }
}

impl Message for Hello {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for Welcome {
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl Message for ReadRecord {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for RecordStaged {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for Release {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for NodeHello {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for NodeWelcome {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for Orders {
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl Message for Reports {
    const BYTES_MAX: usize = BODY_BYTES_MAX;

    fn of_format(format: u8, bytes: &[u8]) -> Result<Self, BodyError> {
        match format {
            HELD => held::decode(bytes),
            found => Err(BodyError::Format { found }),
        }
    }
}

impl Message for AnnounceFirst {
    const BYTES_MAX: usize = REQUEST_BYTES_MAX;
}

impl Message for CheckWritten {
    const BYTES_MAX: usize = REQUEST_BYTES_MAX;
}

impl Message for WrittenChecked {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for StageRecord {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for CopyBytes {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for BytesCopied {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for NodeLeave {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

impl Message for NodeLeft {
    const BYTES_MAX: usize = SMALL_BYTES_MAX;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::NodeHello {}
    impl Sealed for crate::NodeWelcome {}
    impl Sealed for crate::Orders {}
    impl Sealed for crate::Reports {}
    impl Sealed for crate::AnnounceFirst {}
    impl Sealed for crate::CheckWritten {}
    impl Sealed for crate::WrittenChecked {}
    impl Sealed for crate::CopyBytes {}
    impl Sealed for crate::BytesCopied {}
    impl Sealed for crate::NodeLeave {}
    impl Sealed for crate::NodeLeft {}
    impl Sealed for crate::StageRecord {}
    impl Sealed for crate::Request {}
    impl Sealed for crate::Reply {}
    impl Sealed for crate::Order {}
    impl Sealed for crate::Report {}
    impl Sealed for crate::Asked {}
    impl Sealed for crate::Answered {}
    impl Sealed for crate::Hello {}
    impl Sealed for crate::Welcome {}
    impl Sealed for crate::ReadRecord {}
    impl Sealed for crate::RecordStaged {}
    impl Sealed for crate::Release {}
}

/// The bytes of a message.
///
/// # Errors
/// [`BodyError::TooLong`], for a message that no peer would read.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, BodyError> {
    let mut body = vec![FORMAT];
    pack(message, &mut body)?;
    within::<M>(&body)?;
    Ok(body)
}

fn pack<M: Message>(message: &M, body: &mut Vec<u8>) -> Result<(), BodyError> {
    let packed = message.serialize(&mut rmp_serde::Serializer::new(body).with_struct_map());
    packed.map_err(|error| BodyError::Malformed {
        what: error.to_string(),
    })
}

/// The bytes of an answer to a client whose request says up to which format it reads: an answer to a look-up in the
/// shortest of these.
///
/// # Errors
/// [`BodyError::TooLong`], for an answer that no client would read.
pub fn encode_for(reads: u8, answered: &Answered) -> Result<Vec<u8>, BodyError> {
    let compact = match &answered.reply {
        Reply::Get(lookups) if reads >= LOOK_UPS => {
            look_ups::encode(answered.epoch, lookups, &answered.capabilities)
        }
        _ => None,
    };
    match compact {
        Some(body) => within::<Answered>(&body).map(|()| body),
        None => encode(answered),
    }
}

/// The bytes of reports to a master that says up to which format it reads: those of what a node holds in the shortest of
/// these. In place of a question that it does not know is a report of nothing, so that the others keep their numbers.
///
/// # Errors
/// [`BodyError::TooLong`], for reports that no master would read.
pub fn encode_reports(reads: u8, reports: &Reports) -> Result<Vec<u8>, BodyError> {
    let asks = |report: &Report| matches!(report, Report::Emptying(_));
    if reads < EMPTYING && reports.reports.iter().any(asks) {
        let mut known = reports.clone();
        let asking = known.reports.iter_mut().filter(|report| asks(report));
        asking.for_each(|report| *report = Report::Dropped(Vec::new()));
        return encode_reports(reads, &known);
    }
    match (reads >= HELD).then(|| held::encode(reports)).flatten() {
        Some(body) => within::<Reports>(&body).map(|()| body),
        None => encode(reports),
    }
}

/// The message of these bytes, all of them.
///
/// # Errors
/// Why the bytes are not a message of this kind.
pub fn decode<M: Message>(body: &[u8]) -> Result<M, BodyError> {
    within::<M>(body)?;
    let (format, rest) = body.split_first().ok_or(BodyError::Empty)?;
    if *format != FORMAT {
        return M::of_format(*format, rest);
    }
    unpack(rest)
}

fn unpack<M: Message>(bytes: &[u8]) -> Result<M, BodyError> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEPTH_MAX);
    let message = M::deserialize(&mut reader).map_err(|error| BodyError::Malformed {
        what: error.to_string(),
    })?;
    match IgnoredAny::deserialize(&mut reader) {
        Err(Error::InvalidMarkerRead(end)) if end.kind() == ErrorKind::UnexpectedEof => Ok(message),
        _ => Err(BodyError::Trailing),
    }
}

fn within<M: Message>(body: &[u8]) -> Result<(), BodyError> {
    let (bytes, limit) = (body.len(), M::BYTES_MAX);
    if bytes > limit {
        return Err(BodyError::TooLong { bytes, limit });
    }
    Ok(())
}

/// Reads a list of at most [`BATCH_KEYS_MAX`] items; a longer one is refused at the first item beyond.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(ListVisitor(PhantomData))
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {BATCH_KEYS_MAX} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        // The length that the body announces is its sender's claim.
        let expected = items.size_hint().unwrap_or(0).min(BATCH_KEYS_MAX);
        let mut list = Vec::with_capacity(expected.min(64));
        while let Some(item) = items.next_element()? {
            if list.len() == BATCH_KEYS_MAX {
                return Err(serde::de::Error::invalid_length(list.len() + 1, &self));
            }
            list.push(item);
        }
        Ok(list)
    }
}

mod fixed;
mod held;
mod look_ups;
#[cfg(test)]
mod tests;
