//! Whether the values of a run fit, before the first one is written.

use std::path::{Path, PathBuf};

use slackwater_base::ByteSize;

use super::{Failure, Options};
use crate::store;
use crate::tiers::raw;

/// What is free where a run is to be.
#[derive(Clone, Debug)]
pub(super) struct Free {
    directory: PathBuf,
    disk: u64,
    /// None where the system does not say.
    memory: Option<u64>,
}

impl Free {
    pub(super) fn look(directory: &Path) -> Result<Self, Failure> {
        let disk = rustix::fs::statvfs(directory).map_err(|why| store::Failure::File {
            what: "looking for free space",
            why: why.into(),
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            disk: disk.f_bavail.saturating_mul(disk.f_frsize),
            memory: slackwater_memory::available_bytes(),
        })
    }
}

/// Space beside that of the values: files of the log are made before they are full.
const LOG_BYTES: u64 = 256 << 20;

pub(super) fn check(options: &Options, free: Free) -> Result<(), Failure> {
    let whole = options.whole();
    let on_disk =
        whole + whole / 16 + LOG_BYTES + raw::SAMPLE_BYTES.max(options.value_bytes as u64);
    let place = format!("space in {}", free.directory.display());
    let wants = [
        (place, on_disk, Some(free.disk)),
        ("memory".to_owned(), options.memory().0, free.memory),
    ];
    for (what, needed, free) in wants {
        if let Some(free) = free.filter(|free| needed > *free) {
            return Err(Failure::Room {
                what,
                samples: options.samples,
                value: ByteSize(options.value_bytes as u64),
                needed: ByteSize(needed),
                free: ByteSize(free),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_would_not_fit_is_refused_with_what_it_needs() {
        let check = |samples, disk, memory, words: Option<&str>| {
            let options = Options {
                samples,
                ..Options::new(PathBuf::new())
            };
            let free = Free {
                directory: "d".into(),
                disk,
                memory,
            };
            let refused = check(&options, free).map_err(|error| error.to_string());
            match words {
                None => assert_eq!(refused, Ok(())),
                Some(words) => {
                    assert!(refused.as_ref().unwrap_err().contains(words), "{refused:?}")
                }
            }
        };
        let gib = 1 << 30;
        check(1000, 3 * gib, Some(2 * gib), None);
        check(1000, 3 * gib, None, None);
        check(
            10_000,
            10 * gib,
            Some(20 * gib),
            Some("10000 values of 1MiB need "),
        );
        check(
            10_000,
            10 * gib,
            Some(20 * gib),
            Some(" of space in d, and 10GiB are free"),
        );
        check(
            10_000,
            20 * gib,
            Some(10 * gib),
            Some(" of memory, and 10GiB are free"),
        );
    }
}
