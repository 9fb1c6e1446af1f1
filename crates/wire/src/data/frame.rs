use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::capability::{Capability, Refusal, Rights};
use crate::TraceContext;

/// What a request does, seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// From the target's region into local memory.
    Read,
    /// From local memory into the target's region.
    Write,
}

impl Op {
    /// The right that it needs.
    #[must_use]
    pub const fn right(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
        }
    }
}

/// Asks for bytes, or announces them. A write's data frames follow on the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The initiator's number for it, unique on the connection.
    pub id: u64,
    /// The direction of the bytes.
    pub op: Op,
    /// To be served before others of the same connection.
    pub urgent: bool,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// How long the initiator still waits; `u64::MAX` for ever.
    pub time_left_nanos: u64,
    /// The right to do it.
    pub capability: Capability,
    /// The trace that it belongs to, for targets with [`Features::TRACED`](super::Features::TRACED).
    pub trace: Option<TraceContext>,
}

/// Goes before payload, of a read or of a write alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Of which request.
    pub id: u64,
    /// Payload bytes that follow.
    pub bytes: u32,
    /// Nothing of the request comes after this frame.
    pub last: bool,
    /// Where the payload belongs, from the start of the request.
    pub offset: u64,
}

/// Ends a request, one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Of which request.
    pub id: u64,
    /// Why it was not done; none when it was.
    pub refusal: Option<Refusal>,
    /// Bytes that are where they belong.
    pub bytes: u64,
}

/// A message that follows a batch; name and bytes come after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify {
    /// The initiator's number for it.
    pub id: u64,
    /// Length of the name.
    pub name_bytes: u32,
    /// Length of the message behind the name.
    pub bytes: u32,
}

/// One header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Asks.
    Request(Request),
    /// Payload follows.
    Data(Data),
    /// Ends a request.
    Ack(Ack),
    /// The initiator gives a request up: no more data of it, and an acknowledgement soon.
    Cancel {
        /// Number of the request.
        id: u64,
    },
    /// A message follows.
    Notify(Notify),
    /// Asks the peer for a sign of life.
    Ping {
        /// To be sent back.
        token: u64,
    },
    /// Answers a ping.
    Pong {
        /// The token of the ping.
        token: u64,
    },
    /// The sender takes no new requests on this connection, and closes it when the others are over.
    Goaway,
}

/// Why bytes are not a header; the connection cannot be used any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// A kind of frame that this version does not have.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A field has a value that this version does not have.
    #[error("unknown value {value} in a frame of kind {kind}")]
    Value {
        /// Of which kind of frame.
        kind: u8,
        /// The value.
        value: u16,
    },
    /// A flag is set that this version does not have: what it asks for would not be done.
    #[error("unknown flags {flags:#x} in a frame of kind {kind}")]
    Flags {
        /// In which kind of frame.
        kind: u8,
        /// All of them.
        flags: u8,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Prefix {
    kind: u8,
    flags: u8,
    code: U16,
    bytes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    prefix: Prefix,
    id: U64,
    offset: U64,
    bytes: U64,
    time_left_nanos: U64,
    capability: Capability,
}

/// Follows a request with [`FLAG_TRACED`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TraceLayout {
    context: [u8; TraceContext::BYTES],
    padding: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DataLayout {
    prefix: Prefix,
    id: U64,
    offset: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AckLayout {
    prefix: Prefix,
    id: U64,
    bytes: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NotifyLayout {
    prefix: Prefix,
    id: U64,
    name_bytes: U32,
    padding: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NumberLayout {
    prefix: Prefix,
    number: U64,
}

const REQUEST: u8 = 1;
const DATA: u8 = 2;
const ACK: u8 = 3;
const CANCEL: u8 = 4;
const NOTIFY: u8 = 5;
const PING: u8 = 6;
const PONG: u8 = 7;
const GOAWAY: u8 = 8;

/// A write rather than a read.
const FLAG_WRITE: u8 = 1;
const FLAG_URGENT: u8 = 2;
/// The context of a trace follows the request.
const FLAG_TRACED: u8 = 4;
/// The last data frame of its request.
const FLAG_LAST: u8 = 1;

/// The beginning of every header: enough to know its length.
pub const PREFIX_BYTES: usize = size_of::<Prefix>();
/// Length of a [`Data`] header.
pub const DATA_BYTES: usize = size_of::<DataLayout>();
/// Length of an [`Ack`] header.
pub const ACK_BYTES: usize = size_of::<AckLayout>();

impl Frame {
    /// The longest header, in bytes.
    pub const BYTES_MAX: usize = size_of::<RequestLayout>() + size_of::<TraceLayout>();

    /// The header at the start of `bytes` and its length; none while it is not all there.
    ///
    /// # Errors
    /// The bytes are not a header of this version.
    pub fn read(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        let Ok((prefix, _)) = Prefix::ref_from_prefix(bytes) else {
            return Ok(None);
        };
        let (kind, code) = (prefix.kind, prefix.code.get());
        let known = match kind {
            REQUEST => FLAG_WRITE | FLAG_URGENT | FLAG_TRACED,
            DATA => FLAG_LAST,
            ACK | CANCEL | NOTIFY | PING | PONG | GOAWAY => 0,
            _ => return Err(FrameError::Kind(kind)),
        };
        // From the prefix alone: of two faults the same one is told of, however the bytes arrive.
        if code != 0 && (kind != ACK || Refusal::from_number(code).is_none()) {
            return Err(FrameError::Value { kind, value: code });
        }
        if prefix.flags & !known != 0 {
            return Err(FrameError::Flags {
                kind,
                flags: prefix.flags,
            });
        }
        Ok(match kind {
            REQUEST => RequestLayout::read(bytes),
            DATA => DataLayout::ref_from_prefix(bytes)
                .ok()
                .map(|(layout, _)| (layout.frame(), size_of_val(layout))),
            ACK => AckLayout::ref_from_prefix(bytes)
                .ok()
                .map(|(layout, _)| (layout.frame(), size_of_val(layout))),
            NOTIFY => NotifyLayout::ref_from_prefix(bytes)
                .ok()
                .map(|(layout, _)| (layout.frame(), size_of_val(layout))),
            _ => NumberLayout::ref_from_prefix(bytes)
                .ok()
                .map(|(layout, _)| {
                    let number = layout.number.get();
                    let frame = match kind {
                        CANCEL => Frame::Cancel { id: number },
                        PING => Frame::Ping { token: number },
                        PONG => Frame::Pong { token: number },
                        _ => Frame::Goaway,
                    };
                    (frame, size_of_val(layout))
                }),
        })
    }

    /// Appends the header to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Request(request) => {
                out.extend_from_slice(RequestLayout::of(request).as_bytes());
                if let Some(trace) = request.trace {
                    out.extend_from_slice(TraceLayout::of(trace).as_bytes());
                }
            }
            Frame::Data(data) => out.extend_from_slice(&data.to_bytes()),
            Frame::Ack(ack) => out.extend_from_slice(AckLayout::of(ack).as_bytes()),
            Frame::Notify(notify) => out.extend_from_slice(NotifyLayout::of(notify).as_bytes()),
            Frame::Cancel { id } => number(CANCEL, *id, out),
            Frame::Ping { token } => number(PING, *token, out),
            Frame::Pong { token } => number(PONG, *token, out),
            Frame::Goaway => number(GOAWAY, 0, out),
        }
    }
}

fn number(kind: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(
        NumberLayout {
            prefix: prefix(kind, 0, 0, 0),
            number: number.into(),
        }
        .as_bytes(),
    );
}

fn prefix(kind: u8, flags: u8, code: u16, bytes: u32) -> Prefix {
    Prefix {
        kind,
        flags,
        code: code.into(),
        bytes: bytes.into(),
    }
}

impl Data {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_BYTES] {
        let flags = if self.last { FLAG_LAST } else { 0 };
        let layout = DataLayout {
            prefix: prefix(DATA, flags, 0, self.bytes),
            id: self.id.into(),
            offset: self.offset.into(),
        };
        let mut bytes = [0; DATA_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }
}

impl RequestLayout {
    /// The request at the start of `bytes`, and its length with what follows it.
    fn read(bytes: &[u8]) -> Option<(Frame, usize)> {
        let (layout, rest) = Self::ref_from_prefix(bytes).ok()?;
        if layout.prefix.flags & FLAG_TRACED == 0 {
            return Some((layout.frame(None), size_of_val(layout)));
        }
        let (trace, _) = TraceLayout::ref_from_prefix(rest).ok()?;
        // One that cannot be read is none: the bytes are wanted all the same.
        let context = TraceContext::from_bytes(&trace.context);
        Some((
            layout.frame(context),
            size_of_val(layout) + size_of_val(trace),
        ))
    }

    fn of(request: &Request) -> Self {
        let op = match request.op {
            Op::Read => 0,
            Op::Write => FLAG_WRITE,
        };
        let urgent = if request.urgent { FLAG_URGENT } else { 0 };
        let traced = request.trace.map_or(0, |_| FLAG_TRACED);
        Self {
            prefix: prefix(REQUEST, op | urgent | traced, 0, 0),
            id: request.id.into(),
            offset: request.offset.into(),
            bytes: request.bytes.into(),
            time_left_nanos: request.time_left_nanos.into(),
            capability: request.capability,
        }
    }

    fn frame(&self, trace: Option<TraceContext>) -> Frame {
        Frame::Request(Request {
            id: self.id.get(),
            op: if self.prefix.flags & FLAG_WRITE == 0 {
                Op::Read
            } else {
                Op::Write
            },
            urgent: self.prefix.flags & FLAG_URGENT != 0,
            offset: self.offset.get(),
            bytes: self.bytes.get(),
            time_left_nanos: self.time_left_nanos.get(),
            capability: self.capability,
            trace,
        })
    }
}

impl TraceLayout {
    fn of(trace: TraceContext) -> Self {
        Self {
            context: trace.to_bytes(),
            padding: [0; 7],
        }
    }
}

impl DataLayout {
    fn frame(&self) -> Frame {
        Frame::Data(Data {
            id: self.id.get(),
            bytes: self.prefix.bytes.get(),
            last: self.prefix.flags & FLAG_LAST != 0,
            offset: self.offset.get(),
        })
    }
}

impl AckLayout {
    fn of(ack: &Ack) -> Self {
        Self {
            prefix: prefix(ACK, 0, ack.refusal.map_or(0, Refusal::number), 0),
            id: ack.id.into(),
            bytes: ack.bytes.into(),
        }
    }

    fn frame(&self) -> Frame {
        Frame::Ack(Ack {
            id: self.id.get(),
            refusal: Refusal::from_number(self.prefix.code.get()),
            bytes: self.bytes.get(),
        })
    }
}

impl NotifyLayout {
    fn of(notify: &Notify) -> Self {
        Self {
            prefix: prefix(NOTIFY, 0, 0, notify.bytes),
            id: notify.id.into(),
            name_bytes: notify.name_bytes.into(),
            padding: 0.into(),
        }
    }

    fn frame(&self) -> Frame {
        Frame::Notify(Notify {
            id: self.id.get(),
            name_bytes: self.name_bytes.get(),
            bytes: self.prefix.bytes.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CapabilityKey, Features, Grant, Greeting, MacKind, Rights, VERSION};
    use super::*;
    use crate::Incarnation;

    /// Version 3 of the data plane, byte for byte: a difference is a new version, never a change of this one.
    const GOLDEN: &[u8] = include_bytes!("../../golden/data-v3.bin");

    fn frames() -> Vec<Frame> {
        let grant = Grant {
            incarnation: Incarnation(0x0102_0304_0506_0708),
            region: 3,
            generation: 0x21,
            offset: 0x1000,
            bytes: 0x10_0000,
            rights: Rights::BOTH,
            tenant: 0x31,
            holder: Incarnation(0x41),
            expires_nanos: u64::MAX,
            nonce: 0x51,
        };
        let key = CapabilityKey::new(&[7; 32]).making(MacKind::HmacSha256);
        let capability = key.mint(&grant);
        let request = Request {
            id: 0x61,
            op: Op::Write,
            urgent: true,
            offset: 0x2000,
            bytes: 0x8000,
            time_left_nanos: 0x7100_0000,
            capability,
            trace: None,
        };
        vec![
            Frame::Request(request),
            Frame::Request(Request {
                op: Op::Read,
                urgent: false,
                ..request
            }),
            Frame::Data(Data {
                id: 0x61,
                bytes: 0x8000,
                last: true,
                offset: 0x9000,
            }),
            Frame::Ack(Ack {
                id: 0x61,
                refusal: None,
                bytes: 0x8000,
            }),
            Frame::Ack(Ack {
                id: 0x62,
                refusal: Some(Refusal::Generation),
                bytes: 0,
            }),
            Frame::Cancel { id: 0x62 },
            Frame::Notify(Notify {
                id: 0xc1,
                name_bytes: 4,
                bytes: 9,
            }),
            Frame::Ping { token: 0xd1 },
            Frame::Pong { token: 0xd1 },
            Frame::Goaway,
        ]
    }

    fn greeting() -> Greeting {
        Greeting {
            version_min: VERSION,
            version_max: VERSION,
            features: Features::SEALED,
            incarnation: Incarnation(0x11),
            expects: Incarnation(0x12),
            frame_bytes_max: 1 << 20,
            requests_max: 1024,
            in_flight_bytes_max: 256 << 20,
            handshake: std::array::from_fn(|at| at as u8),
        }
    }

    fn all_bytes() -> Vec<u8> {
        let mut bytes = greeting().to_bytes().to_vec();
        frames().iter().for_each(|frame| frame.write(&mut bytes));
        bytes
    }

    #[test]
    fn version_three_keeps_its_bytes() {
        assert_eq!(all_bytes(), GOLDEN, "other bytes are another version");
    }

    #[test]
    fn golden_bytes_read_back_as_the_frames() {
        let (head, mut rest) = GOLDEN.split_at(super::super::GREETING_BYTES);
        assert_eq!(
            Greeting::from_bytes(head.try_into().unwrap()),
            Ok(greeting())
        );
        for expected in frames() {
            for cut in 0..rest.len().min(PREFIX_BYTES) {
                assert_eq!(Frame::read(&rest[..cut]), Ok(None));
            }
            let (frame, length) = Frame::read(rest).unwrap().unwrap();
            assert_eq!(frame, expected);
            assert_eq!(Frame::read(&rest[..length - 1]), Ok(None));
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }

    /// A trace is behind its request, which is otherwise as it would be without: targets that do not ask for traces get none.
    #[test]
    fn a_trace_follows_its_request_and_one_that_cannot_be_read_is_none() {
        let Some(Frame::Request(plain)) = frames().into_iter().next() else {
            panic!("the first frame is a request");
        };
        let trace = TraceContext::new(0xa1, 0xb2);
        let request = Request { trace, ..plain };
        let (mut bytes, mut known) = (Vec::new(), Vec::new());
        Frame::Request(request).write(&mut bytes);
        Frame::Request(plain).write(&mut known);
        assert_eq!(bytes.len(), Frame::BYTES_MAX);
        assert_eq!(bytes[1], known[1] | FLAG_TRACED);
        let (head, context) = bytes.split_at(known.len());
        assert_eq!(head[2..], known[2..]);
        assert_eq!(context[..25], trace.unwrap().to_bytes());
        assert_eq!(context[25..], [0; 7]);
        for cut in 0..bytes.len() {
            assert_eq!(Frame::read(&bytes[..cut]), Ok(None), "{cut}");
        }
        let read = Frame::read(&bytes).unwrap();
        assert_eq!(read, Some((Frame::Request(request), bytes.len())));
        bytes[known.len()..].fill(0);
        let read = Frame::read(&bytes).unwrap();
        assert_eq!(read, Some((Frame::Request(plain), bytes.len())));
    }

    #[test]
    fn other_versions_and_other_protocols_are_refused() {
        use super::super::GreetingError;
        let mut bytes = greeting().to_bytes();
        bytes[8] = 4;
        bytes[10] = 5;
        let other = Err(GreetingError::Version { min: 4, max: 5 });
        assert_eq!(Greeting::from_bytes(&bytes).map(|_| ()), other);
        for cut in 0..bytes.len() {
            let found = Greeting::check(&bytes[..cut]);
            assert_eq!(found, if cut < 12 { Ok(()) } else { other }, "{cut} bytes");
        }
        bytes[0] = b'G';
        assert_eq!(Greeting::from_bytes(&bytes), Err(GreetingError::NotOurs));
        assert_eq!(Greeting::check(&bytes[..12]), Err(GreetingError::NotOurs));
        assert_eq!(
            Frame::read(&[99, 0, 0, 0, 0, 0, 0, 0]),
            Err(FrameError::Kind(99))
        );
    }

    /// A frame with a flag of a later version was read as if it were not set, and half of what it asked for was done.
    #[test]
    fn flags_of_another_version_are_refused() {
        let known = [
            (REQUEST, 7),
            (DATA, 1),
            (ACK, 0),
            (CANCEL, 0),
            (NOTIFY, 0),
            (PING, 0),
            (PONG, 0),
            (GOAWAY, 0),
        ];
        for (kind, known) in known {
            let mut bytes = [0; Frame::BYTES_MAX];
            for flags in 0..=u8::MAX {
                (bytes[0], bytes[1]) = (kind, flags);
                let read = Frame::read(&bytes).map(|_| ());
                let expected = if flags & !known == 0 {
                    Ok(())
                } else {
                    Err(FrameError::Flags { kind, flags })
                };
                assert_eq!(read, expected);
            }
        }
    }

    /// Of a header with two faults the flags were named when it came in pieces, and the value when it came whole.
    #[test]
    fn the_same_fault_is_found_however_a_header_arrives() {
        let mut bytes = [0; ACK_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (ACK, 8, 99);
        let fault = FrameError::Value {
            kind: ACK,
            value: 99,
        };
        for cut in PREFIX_BYTES..=bytes.len() {
            assert_eq!(Frame::read(&bytes[..cut]), Err(fault), "{cut} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..10) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(Some((_, length))) = Frame::read(&bytes) {
                prop_assert!(length <= bytes.len() && length <= Frame::BYTES_MAX);
            }
        }
    }
}
