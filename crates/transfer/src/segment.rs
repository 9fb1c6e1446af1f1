pub use slackwater_wire::data::{HostContact, Segment};
