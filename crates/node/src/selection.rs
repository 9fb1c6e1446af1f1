//! What a part selected at start among the ways that it knows.

use serde::Serialize;

/// The way that was selected at start, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// Its name.
    pub chosen: String,
    /// Why this one: it was asked for, or what the machine lacks for the others.
    pub reason: String,
}

impl Selection {
    /// A selection from its texts.
    pub(crate) fn new(chosen: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            chosen: chosen.into(),
            reason: reason.into(),
        }
    }
}
