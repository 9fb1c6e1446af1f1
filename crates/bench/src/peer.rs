//! Peers: other systems that a benchmark runs beside Slackwater where they are installed.

use serde::Serialize;

/// A peer that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// The peer's name as the report's rows write it.
    pub peer: &'static str,
    /// What was missing or failed.
    pub reason: String,
}
