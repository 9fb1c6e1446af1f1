//! How anything in Slackwater waits.
