//! Which trace a message belongs to, after W3C Trace Context: the sender's span is the parent of what the receiver does.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use thiserror::Error;

/// The id of a trace, the same in every process that it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub NonZeroU128);

/// The id of one span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub NonZeroU64);

/// A trace that is being recorded, and the span in it that asks. One that its caller does not record is none: nothing in a
/// pool begins to record for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span that asks.
    pub span: SpanId,
}

/// The flag of a trace that is being recorded; others are not passed on.
const SAMPLED: u8 = 1;

/// What a `traceparent` says, which may be that its trace is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceparent(pub Option<TraceContext>);

/// Why a text is no `traceparent`.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a traceparent is 00-TRACE-SPAN-FLAGS: 32, 16 and 2 lower-case hexadecimal digits, the ids not zero"
)]
pub struct TraceparentError;

impl TraceContext {
    /// Its length in messages: trace id, span id and flags, the ids with their first digits first.
    pub const BYTES: usize = 25;

    /// The context of these ids; none if one of them is zero, which stands for no id.
    #[must_use]
    pub fn new(trace: u128, span: u64) -> Option<Self> {
        Some(Self {
            trace: TraceId(NonZeroU128::new(trace)?),
            span: SpanId(NonZeroU64::new(span)?),
        })
    }

    /// The bytes that travel.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [SAMPLED; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace.0.get().to_be_bytes());
        bytes[16..24].copy_from_slice(&self.span.0.get().to_be_bytes());
        bytes
    }

    /// The context of these bytes; none for any other length, a zero id, or a trace that is not recorded. The message that
    /// they came with counts all the same, as W3C Trace Context asks of contexts that cannot be read.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (trace, rest) = bytes.split_first_chunk()?;
        let (span, flags) = rest.split_first_chunk()?;
        match flags {
            [flags] if flags & SAMPLED != 0 => {
                Self::new(u128::from_be_bytes(*trace), u64::from_be_bytes(*span))
            }
            _ => None,
        }
    }
}

impl FromStr for Traceparent {
    type Err = TraceparentError;

    fn from_str(text: &str) -> Result<Self, TraceparentError> {
        let mut fields = text.split('-');
        let mut next = |length| digits(fields.next().unwrap_or_default(), length);
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        // Versions to come add fields behind these.
        let is_longer = fields.next().is_some();
        if version == 0xff || (version == 0 && is_longer) {
            return Err(TraceparentError);
        }
        let context = TraceContext::new(trace, span as u64).ok_or(TraceparentError)?;
        Ok(Self((flags & u128::from(SAMPLED) != 0).then_some(context)))
    }
}

fn digits(text: &str, length: usize) -> Result<u128, TraceparentError> {
    let are_digits = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if text.len() != length || !are_digits(text) {
        return Err(TraceparentError);
    }
    u128::from_str_radix(text, 16).map_err(|_| TraceparentError)
}

impl fmt::Display for TraceId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    /// 16 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for TraceContext {
    /// As a `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{SAMPLED:02x}", self.trace, self.span)
    }
}

/// A context in a control message: no field at all where there is none.
pub(crate) mod optional {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use super::TraceContext;

    #[expect(clippy::ref_option, reason = "serde hands fields over by reference")]
    pub(crate) fn serialize<S: Serializer>(
        context: &Option<TraceContext>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match context {
            Some(context) => serializer.serialize_bytes(&context.to_bytes()),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TraceContext>, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Option<TraceContext>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the {} bytes of a trace context", TraceContext::BYTES)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(TraceContext::from_bytes(bytes))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn context() -> TraceContext {
        TraceContext::new(
            0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
            0xb7ad_6b71_6920_3331,
        )
        .unwrap()
    }

    #[test]
    fn a_context_is_its_bytes_and_its_traceparent() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(context().to_string(), text);
        assert_eq!(text.parse(), Ok(Traceparent(Some(context()))));
        let bytes = context().to_bytes();
        assert_eq!(bytes[..4], [0x0a, 0xf7, 0x65, 0x19]);
        assert_eq!((bytes[16], bytes[24]), (0xb7, 1));
        assert_eq!(TraceContext::from_bytes(&bytes), Some(context()));
    }

    #[test]
    fn what_cannot_be_read_or_is_not_recorded_is_no_context() {
        let bytes = context().to_bytes();
        let changed = |range: std::ops::Range<usize>, to: u8| {
            let mut bytes = bytes;
            bytes[range].fill(to);
            TraceContext::from_bytes(&bytes)
        };
        assert_eq!(changed(0..16, 0), None, "no trace");
        assert_eq!(changed(16..24, 0), None, "no span");
        assert_eq!(changed(24..25, 0xfe), None, "not recorded");
        assert_eq!(changed(24..25, 0xff), Some(context()), "flags to come");
        for length in 0..TraceContext::BYTES {
            assert_eq!(TraceContext::from_bytes(&bytes[..length]), None);
        }
        assert_eq!(TraceContext::from_bytes(&[1; 1 << 16]), None);
    }

    #[test]
    fn texts_that_are_no_traceparent_are_refused() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let check = |text: String, expected| assert_eq!(text.parse(), expected, "{text}");
        let recorded = Ok(Traceparent(Some(context())));
        check(format!("00-{trace}-{span}-00"), Ok(Traceparent(None)));
        check(format!("00-{trace}-{span}-03"), recorded);
        check(format!("cc-{trace}-{span}-01-more"), recorded);
        let refused = Err(TraceparentError);
        check(format!("00-{trace}-{span}-01-more"), refused);
        check(format!("ff-{trace}-{span}-01"), refused);
        check(format!("00-{trace}-{span}"), refused);
        check(format!("00-{trace}-{span}-1"), refused);
        check(format!("00-{}-{span}-01", "0".repeat(32)), refused);
        check(format!("00-{trace}-{}-01", "0".repeat(16)), refused);
        check(format!("00-{}-{span}-01", trace.to_uppercase()), refused);
        check(format!("00-+{}-{span}-01", &trace[1..]), refused);
        check(String::new(), refused);
    }

    proptest! {
        #[test]
        fn no_bytes_and_no_text_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            text in ".{0,80}",
        ) {
            if let Some(context) = TraceContext::from_bytes(&bytes) {
                prop_assert_eq!(&context.to_bytes()[..24], &bytes[..24]);
            }
            let _ = text.parse::<Traceparent>();
        }
    }
}
