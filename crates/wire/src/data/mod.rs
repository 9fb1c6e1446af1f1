//! The bytes of the data plane: fixed little-endian headers in front of payloads, and the capability that each request
//! carries. Control messages are MessagePack; these are read a million times a second, so they are plain layouts.

mod capability;
mod frame;
mod greeting;
mod segment;

pub use capability::{Capability, CapabilityKey, Grant, MacKind, Refusal, Rights};
pub use frame::{
    ACK_BYTES, Ack, DATA_BYTES, Data, Frame, FrameError, Notify, Op, PREFIX_BYTES, Request,
};
pub use greeting::{
    Features, GREETING_BYTES, Greeting, GreetingError, HANDSHAKE_BYTES, TERMS_BYTES, VERSION,
};
pub use segment::{HostContact, Segment};
