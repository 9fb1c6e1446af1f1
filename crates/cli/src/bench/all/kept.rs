//! Runs that are over, each in a file of its own, and what they are of.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackwater_base::hash64;
use slackwater_bench::machine::Machine;

/// A run that is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// The command that it is of: another plan measures anew.
    pub(super) command: String,
    pub(super) origin: Origin,
    /// How long it took.
    pub(super) seconds: f64,
    pub(super) report: Value,
}

/// What a run is of: figures of different ones are not to be laid together unseen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) version: String,
    /// A hash of the program's file.
    pub(super) binary: String,
    pub(super) machine: String,
}

impl Origin {
    /// Of this program, which is the file `program`, on this machine.
    pub(super) fn of(program: &OsStr) -> Result<Self> {
        let path = Path::new(program);
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            binary: format!("{:016x}", hash64(&bytes)),
            machine: Machine::detect().line(),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            binary,
            machine,
        } = self;
        write!(f, "version {version}, binary {binary}, on {machine}")
    }
}

/// A run that is there already, of the same command.
pub(super) fn read(path: &Path, command: &str) -> Result<Option<Run>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let run: Run = serde_json::from_slice(&text).with_context(|| {
        let path = path.display();
        format!("{path} is no run of a benchmark: remove it to have it measured again")
    })?;
    Ok((run.command == command).then_some(run))
}

/// Whole or not at all, also when the machine loses its power: a run may have taken an hour.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        path.parent()
            .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_taken_for_its_own_command_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wait-1.json");
        assert!(read(&path, "a").unwrap().is_none());
        let origin = Origin::of(std::env::current_exe().unwrap().as_os_str()).unwrap();
        let run = Run {
            command: "a".to_owned(),
            origin: origin.clone(),
            seconds: 1.5,
            report: serde_json::json!({ "us": 1 }),
        };
        write(&path, &serde_json::to_vec(&run).unwrap()).unwrap();
        let kept = read(&path, "a").unwrap().unwrap();
        assert_eq!((&kept.report["us"], kept.origin), (&1.into(), origin));
        assert!(read(&path, "b").unwrap().is_none());
        assert!(!path.with_extension("part").exists());
        fs::write(&path, "{").unwrap();
        let error = read(&path, "a").unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }

    #[test]
    fn another_file_is_another_program() {
        let directory = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let path = directory.path().join("program");
            fs::write(&path, text).unwrap();
            Origin::of(path.as_os_str()).unwrap()
        };
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
        assert!(Origin::of(OsStr::new("/none")).is_err());
    }
}
