//! What eviction has learned, kept in the directory of the SSD tier over restarts.
//!
//! One file: a header, then for each segment its number, the length of its tables and the tables, then a CRC-64/NVME
//! of all before it. It is replaced whole, so that a crash leaves the old or the new one. Nothing depends on it but
//! how soon eviction is good again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_meta::evict::RestoreError;
use slackwater_wire::SegmentId;
use thiserror::Error;

use super::shared::Shared;

const NAME: &str = "eviction.tables";
const NEW_NAME: &str = "eviction.tables.new";
/// Magic and version.
const HEADER: [u8; 8] = *b"SWLEARN\x01";
/// Above this it is no file of ours.
const BYTES_MAX: u64 = 16 << 20;
/// A crash costs at most what was learned in this time.
const SAVE_EVERY: Duration = Duration::from_secs(300);

/// When the tables were saved last, or the store was opened.
pub(super) struct Saver {
    at: Mutex<Instant>,
}

impl Saver {
    /// Saves for the first time when the store opened at `now` has run for a while: before that there is nothing to
    /// save, and the file may not have been read yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            at: Mutex::new(now),
        }
    }
}

type Tables = Vec<(SegmentId, Vec<u8>)>;

/// Why a file of tables is not taken.
#[derive(Debug, Error)]
enum Refusal {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("it is no file of learned tables of this version")]
    Foreign,
    #[error("its checksum or its length is wrong")]
    Damaged,
    #[error("{0}")]
    Policy(#[from] RestoreError),
}

impl Shared {
    /// Gives the mounted segments what was learned in an earlier life. What cannot be taken is said once, and eviction
    /// starts fresh.
    pub(super) fn restore_learned(&self) {
        let Some(path) = self.tables_path() else {
            return;
        };
        restore(&path, |segment, bytes| {
            let restored = self.with(|core, _| match core.master_mut() {
                Some(master) => master.restore_learned(segment, bytes),
                None => Ok(()),
            });
            restored.unwrap_or(Ok(()))
        });
    }

    /// Saves what was learned, if that was not done lately.
    pub(super) fn save_learned_at_times(&self, now: Instant) {
        let mut at = self.saver.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.until(now) >= SAVE_EVERY {
            *at = now;
            drop(at);
            self.save_learned();
        }
    }

    /// Saves what was learned. Of policies that learn nothing there is nothing to save.
    pub(super) fn save_learned(&self) {
        let Some(path) = self.tables_path() else {
            return;
        };
        let Ok(tables) = self.with(|core, _| core.master().map(|master| master.learned())) else {
            return;
        };
        let Some(tables) = tables.filter(|tables| !tables.is_empty()) else {
            return;
        };
        if let Err(error) = write(&path, &tables) {
            tracing::warn!(file = %path.display(), %error, "learned eviction tables could not be saved");
        }
    }

    fn tables_path(&self) -> Option<PathBuf> {
        self.disk.as_ref().map(|ssd| path_in(ssd.directory.path()))
    }
}

/// Where the tables of a directory are.
pub(super) fn path_in(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Gives `take` each table of the file. What cannot be taken is logged once, and eviction starts fresh.
pub(super) fn restore(
    path: &Path,
    mut take: impl FnMut(SegmentId, &[u8]) -> Result<(), RestoreError>,
) {
    let restored = read(path).and_then(|tables| {
        let mut each = tables.iter();
        Ok(each.try_for_each(|(segment, bytes)| take(*segment, bytes))?)
    });
    if let Err(refusal) = restored {
        tracing::warn!(file = %path.display(), why = %refusal, "learned eviction tables are not taken: eviction starts fresh");
    }
}

/// The tables of a file; none when there is no file.
fn read(path: &Path) -> Result<Tables, Refusal> {
    let length = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found?.len(),
    };
    if length > BYTES_MAX {
        return Err(Refusal::Foreign);
    }
    parse(&fs::read(path)?)
}

fn parse(bytes: &[u8]) -> Result<Tables, Refusal> {
    if !bytes.starts_with(&HEADER) {
        return Err(Refusal::Foreign);
    }
    let (body, checksum) = bytes.split_last_chunk::<8>().ok_or(Refusal::Damaged)?;
    if Checksum::of(body) != Checksum(u64::from_le_bytes(*checksum)) {
        return Err(Refusal::Damaged);
    }
    let mut rest = body.get(HEADER.len()..).ok_or(Refusal::Damaged)?;
    let mut tables = Vec::new();
    while let Some((segment, tail)) = rest.split_first_chunk::<4>() {
        let (length, tail) = tail.split_first_chunk::<4>().ok_or(Refusal::Damaged)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (table, tail) = tail.split_at_checked(length).ok_or(Refusal::Damaged)?;
        tables.push((SegmentId(u32::from_le_bytes(*segment)), table.to_vec()));
        rest = tail;
    }
    if rest.is_empty() {
        Ok(tables)
    } else {
        Err(Refusal::Damaged)
    }
}

/// Puts the tables in place of any that were there.
fn write(path: &Path, tables: &Tables) -> io::Result<()> {
    let mut bytes = HEADER.to_vec();
    for (segment, table) in tables {
        bytes.extend_from_slice(&segment.0.to_le_bytes());
        bytes.extend_from_slice(&(table.len() as u32).to_le_bytes());
        bytes.extend_from_slice(table);
    }
    let checksum = Checksum::of(&bytes);
    bytes.extend_from_slice(&checksum.0.to_le_bytes());
    let new = path.with_file_name(NEW_NAME);
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent()
        .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_back_and_any_damage_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(NAME);
        assert!(read(&path).unwrap().is_empty());
        let tables = vec![(SegmentId(1), vec![1, 2, 3]), (SegmentId(2), Vec::new())];
        write(&path, &tables).unwrap();
        assert_eq!(read(&path).unwrap(), tables);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(parse(&damaged).is_err(), "byte {at}");
            assert!(parse(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_new_file_half_written_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(NAME);
        let tables = vec![(SegmentId(7), vec![9; 100])];
        write(&path, &tables).unwrap();
        fs::write(root.path().join(NEW_NAME), "half").unwrap();
        assert_eq!(read(&path).unwrap(), tables);
    }
}
