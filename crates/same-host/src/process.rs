use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Another process of this host whose memory may be read and written (cross-memory attach).
///
/// A process id may come to name another process once its own has ended. So the process is fixed when it is opened: its
/// start time must be the one that it sent over its socket, and from then on its process descriptor is checked before
/// every access. Microseconds lie between that check and the access; for the id to be reused meanwhile, the process
/// would have to end, be reaped, and all other ids be used up.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    handle: OwnedFd,
}

impl Process {
    /// The process with this number, if it is the one that started at `started`.
    pub(crate) fn open(pid: Pid, started: u64) -> io::Result<Self> {
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        let process = Self { pid, handle };
        // Read while the handle is held and the process is then found alive: id, handle and start time belong to one
        // process.
        let found = start_time(&format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
        if found != started {
            let reason = format!(
                "process {} started at {found}, not at {started}",
                pid.as_raw_nonzero()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        }
        process.check()?;
        Ok(process)
    }

    /// When this process started, in the kernel's ticks since boot.
    pub(crate) fn own_start() -> io::Result<u64> {
        start_time("/proc/self/stat")
    }

    /// Fails once the process has ended.
    fn check(&self) -> io::Result<()> {
        // The call does not wait, so it is not interrupted; other errors leave the question open.
        match self.ends_within(Duration::ZERO)? {
            false => Ok(()),
            true => Err(Errno::SRCH.into()),
        }
    }

    /// Whether the process has ended, or does so before `time` is over.
    ///
    /// # Errors
    /// The kernel does not say, or a signal came first.
    pub(crate) fn ends_within(&self, time: Duration) -> io::Result<bool> {
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        let time = Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        Ok(poll(&mut ended, Some(&time))? > 0)
    }

    /// Copies `len` bytes from `remote` of that process; says how many. Fewer than `len` end where its mapping ends.
    ///
    /// # Safety
    /// `local` is valid for writes of `len` bytes, and nothing else reads or writes them meanwhile.
    pub(crate) unsafe fn read(&self, local: *mut u8, remote: u64, len: usize) -> io::Result<usize> {
        self.check()?;
        let (local, remote) = vectors(local, remote, len);
        // SAFETY: the kernel writes only into the local range, which is valid by the contract of this function, and checks both.
        let copied = unsafe {
            libc::process_vm_readv(self.raw(), &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    /// Copies `len` bytes to `remote` of that process; says how many.
    ///
    /// # Safety
    /// - `local` is valid for reads of `len` bytes.
    /// - The other process has given the range at `remote` to be written, and still does.
    pub(crate) unsafe fn write(
        &self,
        local: *const u8,
        remote: u64,
        len: usize,
    ) -> io::Result<usize> {
        self.check()?;
        let (local, remote) = vectors(local.cast_mut(), remote, len);
        // SAFETY: the kernel only reads the local range; what it writes belongs to the other process, as promised.
        let copied = unsafe {
            libc::process_vm_writev(self.raw(), &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    fn raw(&self) -> libc::pid_t {
        self.pid.as_raw_nonzero().get()
    }
}

fn vectors(local: *mut u8, remote: u64, len: usize) -> (libc::iovec, libc::iovec) {
    let remote = std::ptr::without_provenance_mut(remote as usize);
    (
        libc::iovec {
            iov_base: local.cast(),
            iov_len: len,
        },
        libc::iovec {
            iov_base: remote,
            iov_len: len,
        },
    )
}

/// The 22nd field of a `stat` file (proc(5)). The name in the second may hold spaces and brackets.
fn start_time(path: &str) -> io::Result<u64> {
    let stat = fs::read_to_string(path)?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name
        .split_ascii_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok());
    field.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{path} has no start time"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn bytes_of_a_process_are_read_and_written() {
        let process =
            Process::open(rustix::process::getpid(), Process::own_start().unwrap()).unwrap();
        let (mut there, mut here) = (*b"slack water", [0u8; 11]);
        let remote = there.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: two arrays of this frame.
        unsafe {
            assert_eq!(process.read(here.as_mut_ptr(), remote, 11).unwrap(), 11);
            assert_eq!(&here, b"slack water");
            assert_eq!(process.write(b"moves".as_ptr(), remote, 5).unwrap(), 5);
        }
        // SAFETY: reads the bytes anew; the compiler cannot know who wrote them.
        let written = unsafe { std::ptr::read_volatile(&raw const there) };
        assert_eq!(&written, b"moves water");
    }

    #[test]
    fn an_ended_process_is_not_touched() {
        let mut child = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let started = start_time(&format!("/proc/{}/stat", child.id())).unwrap();
        let process = Process::open(pid, started).unwrap();
        assert!(!process.ends_within(Duration::ZERO).unwrap());
        child.kill().unwrap();
        // It need not have been waited for.
        assert!(process.ends_within(Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
        assert!(process.ends_within(Duration::ZERO).unwrap());
        let mut byte = 0u8;
        // SAFETY: one byte of this frame.
        let read = unsafe { process.read(&raw mut byte, 0x1000, 1) };
        assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn another_life_of_the_number_is_refused() {
        let refused = Process::open(rustix::process::getpid(), Process::own_start().unwrap() + 1)
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
    }
}
