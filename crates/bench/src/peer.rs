//! Peers: other systems that a benchmark runs beside Slackwater where they are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

/// A peer that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// The peer's name as the report's rows write it.
    pub peer: &'static str,
    /// What was missing or failed.
    pub reason: String,
}

/// Where a Python keeps a program that its package wraps.
const FIND: &str = "import importlib.util as u, os, sys; s = u.find_spec('mooncake'); \
                    print(os.path.join(s.submodule_search_locations[0], sys.argv[1]) if s else '')";

/// A program of the incumbent's package, or why there is none.
pub(crate) fn incumbent_program(python: &Path, name: &str) -> Result<PathBuf, String> {
    let output = Command::new(python)
        .args(["-c", FIND, name])
        .stderr(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{}: {error}", python.display()))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let missing = || format!("{} has no mooncake package with {name}", python.display());
    path.is_file().then_some(path).ok_or_else(missing)
}
