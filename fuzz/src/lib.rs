//! What the fuzz targets do with their bytes. The same functions replay the corpora in the plain test suite.

pub mod zmtp;

/// The targets of the data plane.
pub mod transfer {
    pub use slackwater_data_plane::seal::fuzz::records;
    pub use slackwater_same_host::fuzz::packets;
    pub use slackwater_tcp::fuzz::{initiator, responder};
}
