use std::path::PathBuf;

use thiserror::Error;

/// Why a directory cannot hold the SSD tier.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Another process holds it.
    #[error("{} is held by another process{}", path.display(), holder(*pid))]
    Held {
        /// The directory.
        path: PathBuf,
        /// The process, as far as it said so.
        pid: Option<u32>,
    },
    /// It cannot be made, opened or written.
    #[error("{}: cannot {action}: {why}", path.display())]
    Unusable {
        /// The directory or file.
        path: PathBuf,
        /// The action, as it follows the word "cannot".
        action: &'static str,
        /// What the operating system said.
        why: std::io::Error,
    },
    /// It is something else.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}
