use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;

use crate::cpu_list;

/// A NUMA node by the number the kernel gives it: not an index into any list, since nodes may be missing or in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaId(pub u32);

impl fmt::Display for NumaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node and all its CPUs.
pub type NodeCpus = (NumaId, Vec<usize>);

/// A file of sysfs that cannot be used.
#[derive(Debug, Error)]
pub enum SysfsError {
    /// It is missing or unreadable.
    #[error("topology file {path}: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// It does not say what it should.
    #[error("topology file {path} is no CPU list: `{text}`")]
    NoList {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
    },
}

impl SysfsError {
    /// Whether the system has no such file, as opposed to one that is unreadable or wrong.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}

/// The NUMA nodes that are online, each with all its CPUs, in the order of the kernel; none where the system has no node
/// directories. `root` is `/sys` in production.
///
/// # Errors
/// Names the file that cannot be read or understood.
pub fn numa_nodes(root: &Path) -> Result<Option<Vec<NodeCpus>>, SysfsError> {
    let dir = root.join("devices/system/node");
    let online = match sysfs_list(&dir.join("online")) {
        Err(error) if error.is_missing() => return Ok(None),
        other => other?,
    };
    let cpus = |id: usize| sysfs_list(&dir.join(format!("node{id}/cpulist")));
    online
        .into_iter()
        .map(|id| Ok((NumaId(id as u32), cpus(id)?)))
        .collect::<Result<_, _>>()
        .map(Some)
}

/// The numbers in a file of sysfs such as `0-3,8`.
///
/// # Errors
/// It cannot be read, or is no such list.
pub fn sysfs_list(path: &Path) -> Result<Vec<usize>, SysfsError> {
    let text = sysfs_text(path).map_err(|cause| SysfsError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    cpu_list(&text).ok_or_else(|| SysfsError::NoList {
        path: path.to_owned(),
        text: text.trim().to_owned(),
    })
}

/// The text of a file of sysfs.
///
/// # Errors
/// It cannot be read, is no text, or is longer than any such file.
pub fn sysfs_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(TEXT_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if read as u64 > TEXT_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("more than {TEXT_BYTES_MAX} bytes"),
        ));
    }
    Ok(text)
}

/// An attribute of sysfs is a page at most; pages of 64 KiB are the largest.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Lets the calling thread run on `cpus` only.
///
/// # Errors
/// The kernel refuses: none of them may run this thread.
pub fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread of its own, which takes its CPUs with it.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no CPU sets")]
    fn cpus_that_no_set_can_name_are_left_out() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU)
            .find(|cpu| allowed.is_set(*cpu))
            .unwrap();
        let thread = std::thread::spawn(move || {
            run_on(&[first, CpuSet::MAX_CPU, usize::MAX]).unwrap();
            let now = rustix::thread::sched_getaffinity(None).unwrap();
            (now.count(), now.is_set(first))
        });
        assert_eq!(thread.join().unwrap(), (1, true));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files of this directory")]
    fn a_file_is_read_to_a_bound() {
        let path = std::env::temp_dir().join(format!("slackwater-sysfs-{}", std::process::id()));
        let check = |bytes: &[u8], found: Result<&str, io::ErrorKind>| {
            std::fs::write(&path, bytes).unwrap();
            let text = sysfs_text(&path);
            assert_eq!(
                text.as_deref().map_err(io::Error::kind),
                found,
                "{} bytes",
                bytes.len()
            );
        };
        let page = "1".repeat(TEXT_BYTES_MAX as usize);
        check(b"", Ok(""));
        check(page.as_bytes(), Ok(&page));
        check(
            format!("{page}1").as_bytes(),
            Err(io::ErrorKind::InvalidData),
        );
        check(b"\xff\n", Err(io::ErrorKind::InvalidData));
        std::fs::remove_file(&path).unwrap();
        assert!(sysfs_list(&path).unwrap_err().is_missing());
    }
}
