//! The number of a master's life.

use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use slackwater_wire::{Epoch, Version};

/// Name of the file in the directory of a store.
const NAME: &str = "epoch";
/// Versions of one epoch: more than a master can give between two starts of it.
const VERSIONS: u32 = 20;

/// Begins the next epoch: later than the one in `directory`, where it is kept before this returns, and than the time in
/// milliseconds, which orders the lives of a master that keeps nothing.
///
/// # Errors
/// When the file cannot be read or replaced, or holds no number.
pub(crate) fn begin(directory: Option<&Path>) -> io::Result<Epoch> {
    let Epoch(time) = now();
    let Some(directory) = directory else {
        return Ok(Epoch(time));
    };
    let path = directory.join(NAME);
    let last = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let what = format!("`{}` is not the number of an epoch", text.trim());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let epoch = time.max(u64::saturating_add(last, 1));
    let fresh = directory.join(format!("{NAME}.new"));
    let mut file = std::fs::File::create(&fresh)?;
    writeln!(file, "{epoch}")?;
    file.sync_all()?;
    std::fs::rename(&fresh, &path)?;
    std::fs::File::open(directory)?.sync_all()?;
    Ok(Epoch(epoch))
}

/// The epoch of a master that keeps nothing: the time in milliseconds.
pub(crate) fn now() -> Epoch {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Epoch(since.map_or(0, |since| since.as_millis() as u64))
}

/// Puts of an epoch have versions above this one: the end of a put that an earlier master granted names none of this
/// one's.
pub(crate) fn versions_above(epoch: Epoch) -> Version {
    Version(epoch.0 << VERSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_is_later_than_the_last_one_whatever_the_clock_says() {
        let folder = tempfile::tempdir().unwrap();
        let first = begin(Some(folder.path())).unwrap();
        let second = begin(Some(folder.path())).unwrap();
        assert!(second > first);
        let ahead = Epoch(1 << 41);
        std::fs::write(folder.path().join(NAME), format!("{}\n", ahead.0)).unwrap();
        assert_eq!(begin(Some(folder.path())).unwrap(), Epoch(ahead.0 + 1));
        assert!(begin(None).unwrap() >= first, "ordered by time");
        assert!(versions_above(second) > versions_above(first));
        assert!(versions_above(ahead) < Version(1 << 62));
    }

    #[test]
    fn a_file_without_a_number_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), "seven").unwrap();
        let error = begin(Some(folder.path())).unwrap_err().to_string();
        assert_eq!(error, "`seven` is not the number of an epoch");
    }
}
