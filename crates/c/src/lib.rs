//! The C interface of Slackwater: a client of a served store, transfers between processes, completions, the worker pool,
//! and messages. `include/slackwater.h` is generated from this crate; a test keeps it current.
//!
//! Every function that can fail returns a status: `SW_OK`, or the negative number of an error code, with its text in
//! [`sw_last_error`]. A panic below ends as `INTERNAL_ERROR`, never in the caller.
#![expect(
    non_camel_case_types,
    reason = "the types carry their names of the C interface"
)]

mod completion;
mod messages;
mod status;
mod store;
mod transfer;
mod values;
mod workers;

pub use completion::*;
pub use messages::*;
pub use status::*;
pub use store::*;
pub use transfer::*;
pub use values::*;
pub use workers::*;
