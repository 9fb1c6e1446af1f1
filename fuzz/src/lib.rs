//! What the fuzz targets do with their bytes. The same functions replay the corpora in the plain test suite.

pub mod zmtp;

pub use slackwater_transfer::fuzz as transfer;
