use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::Timespec;
use slab::Slab;
use slackwater_base::{Planted, planted};
use slackwater_tier::io::DiskError;

use super::job::{Call, Job};
use super::transfer::Progress;

/// One io_uring and the jobs in flight on it. Used by one thread at a time.
pub(super) struct Ring {
    io: IoUring,
    flights: Slab<Flight>,
    depth: usize,
    sequence: u32,
    /// Entries put into the submission queue since the start.
    pushed: u64,
    /// What the next turns are to meet instead of the kernel's answer.
    #[cfg(test)]
    failure: Option<Failure>,
}

/// An answer of `io_uring_enter` that a test asks for.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) errno: i32,
    /// How many turns meet it.
    pub(super) turns: u32,
    /// Whether the kernel takes what was started all the same.
    pub(super) submits: bool,
}

#[derive(Debug)]
struct Flight {
    job: Job,
    tag: u64,
    /// Part of the completion's name, so that one that does not belong to the flight is recognised.
    sequence: u32,
    /// The number of its latest entry in the submission queue.
    entry: u64,
}

/// A job that came to its end; what it gave is asked of it.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) tag: u64,
    pub(super) job: Job,
    pub(super) result: Result<(), DiskError>,
}

/// The name of the poll that a waker ends; no flight has it.
const WAKE: u64 = u64::MAX;

const NEEDED: [u8; 6] = [
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::UnlinkAt::CODE,
];

impl Ring {
    /// A ring for `depth` jobs at once.
    ///
    /// # Errors
    /// When the kernel has no io_uring, forbids it, or lacks an operation.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        // One more than the jobs: the poll of the waker.
        let entries = (depth as u32 + 1).next_power_of_two();
        let io = IoUring::builder()
            .setup_coop_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        let mut probe = Probe::new();
        io.submitter().register_probe(&mut probe)?;
        if let Some(missing) = NEEDED.iter().find(|code| !probe.is_supported(**code)) {
            return Err(io::Error::other(format!(
                "the kernel's io_uring lacks operation {missing}"
            )));
        }
        Ok(Self {
            io,
            flights: Slab::with_capacity(depth),
            depth,
            sequence: 0,
            pushed: 0,
            #[cfg(test)]
            failure: None,
        })
    }

    /// Lets the next turns fail.
    #[cfg(test)]
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// How many more jobs fit.
    pub(super) fn room(&self) -> usize {
        self.depth - self.flights.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Starts a job, with the next [`Ring::turn`].
    ///
    /// # Panics
    /// When there is no room for it.
    pub(super) fn start(&mut self, tag: u64, job: Job) {
        assert!(
            self.room() > 0,
            "{} jobs in a ring of {}",
            self.flights.len(),
            self.depth
        );
        self.sequence = self.sequence.wrapping_add(1);
        let index = self.flights.insert(Flight {
            job,
            tag,
            sequence: self.sequence,
            entry: 0,
        });
        self.push(index);
    }

    /// Arms the waker: a [`Ring::turn`] ends when `event` becomes readable, and says so.
    pub(super) fn watch(&mut self, event: RawFd) {
        let poll = opcode::PollAdd::new(types::Fd(event), libc::POLLIN as u32)
            .build()
            .user_data(WAKE);
        self.push_entry(&poll);
    }

    /// Hands what was started to the kernel, waits until something is over, and goes on with what is not done yet.
    /// True when it was the waker.
    ///
    /// # Errors
    /// When the ring does not work, and will not. What may pass is waited for: an interruption, completions that have to
    /// be taken first, and want of memory in the kernel (`io_uring_enter(2)`), which a failed call takes nothing for: what
    /// it did not submit is still in the queue.
    pub(super) fn turn(&mut self, landed: &mut Vec<Landed>) -> io::Result<bool> {
        let failure = match self.enter() {
            Ok(()) => return Ok(self.reap(landed)),
            Err(error) => error,
        };
        let ended = landed.len();
        match failure.raw_os_error() {
            Some(libc::ENOMEM) if planted(Planted::ShortageEndsDevice) => return Err(failure),
            Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {}
            _ => return Err(failure),
        }
        let woken = self.reap(landed);
        if !woken && landed.len() == ended && failure.raw_os_error() != Some(libc::EINTR) {
            self.await_completion(SHORTAGE_PAUSE);
            return Ok(self.reap(landed));
        }
        Ok(woken)
    }

    /// Hands over what is in the submission queue and waits for one completion.
    fn enter(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(failure) = &mut self.failure
            && failure.turns > 0
        {
            failure.turns -= 1;
            let (errno, submits) = (failure.errno, failure.submits);
            if submits {
                self.io.submit()?;
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.io.submit_and_wait(1).map(drop)
    }

    /// Jobs that the kernel has and has not given back. The others are still in the submission queue, which it reads in
    /// `io_uring_enter` alone.
    fn jobs_in_kernel(&mut self) -> usize {
        let unsubmitted = self.io.submission().len() as u64;
        let taken = self.pushed - unsubmitted;
        let in_kernel = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.entry < taken);
        in_kernel.count()
    }

    /// Takes what is over. True when the waker was among it.
    fn reap(&mut self, landed: &mut Vec<Landed>) -> bool {
        let mut woken = false;
        let completions: Vec<cqueue::Entry> = self.io.completion().collect();
        for completion in completions {
            if completion.user_data() == WAKE {
                woken = true;
            } else {
                self.land(&completion, landed);
            }
        }
        woken
    }

    /// Waits for a completion without asking the ring for one, at most `longest`.
    fn await_completion(&self, longest: Duration) {
        // SAFETY: the ring keeps its descriptor open, and is borrowed for as long as this one.
        let ring = unsafe { BorrowedFd::borrow_raw(self.io.as_raw_fd()) };
        let longest = Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Woken for whatever reason, the caller looks again.
        let _ = poll(&mut [PollFd::new(&ring, PollFlags::IN)], Some(&longest));
    }

    fn land(&mut self, completion: &cqueue::Entry, landed: &mut Vec<Landed>) {
        let name = completion.user_data();
        let (index, sequence) = (name as u32 as usize, (name >> 32) as u32);
        let Some(flight) = self
            .flights
            .get_mut(index)
            .filter(|flight| flight.sequence == sequence)
        else {
            tracing::error!(
                index,
                sequence,
                "a completion of io_uring names no operation in flight"
            );
            return;
        };
        let result = completion.result();
        match flight
            .job
            .after(usize::try_from(result).map_err(|_| -result))
        {
            Progress::Again => self.push(index),
            done => {
                let Flight { job, tag, .. } = self.flights.remove(index);
                let result = match done {
                    Progress::Failed(error) => Err(error),
                    _ => Ok(()),
                };
                landed.push(Landed { tag, job, result });
            }
        }
    }

    fn push(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        flight.entry = self.pushed;
        let name = u64::from(flight.sequence) << 32 | index as u64;
        let entry = entry(&flight.job.call()).user_data(name);
        self.push_entry(&entry);
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory and files that an entry names belong to its flight, which stays in `flights` until the
        // completion; `Drop` waits for those still there. An eventfd to be polled outlives the ring that watches it.
        let full = unsafe { self.io.submission().push(entry) }.is_err();
        assert!(
            !full,
            "the queue has an entry for every job and one for the waker"
        );
        self.pushed += 1;
    }
}

impl Drop for Ring {
    /// The kernel may write to the memory of a job until it gives the job back, and that memory is a caller's buffer, or
    /// an extent that is given to somebody else next. So this returns only when the kernel has no job any more, which
    /// takes as long as the device takes: a blocking read of the same device would not return either.
    fn drop(&mut self) {
        let (mut landed, begun, mut told) = (Vec::new(), Instant::now(), false);
        while self.jobs_in_kernel() > 0 {
            let Err(error) = self.turn(&mut landed) else {
                continue;
            };
            if begun.elapsed() > DRAIN_SILENT && !std::mem::replace(&mut told, true) {
                tracing::error!(%error, "io_uring has failed; waiting for the operations that the device still has");
            }
            self.await_completion(DRAIN_PAUSE);
            self.reap(&mut landed);
        }
    }
}

/// How long a ring that was dropped waits for its operations before it says so.
const DRAIN_SILENT: Duration = Duration::from_secs(1);
/// Longest wait for a completion until a ring that does not work is asked again.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for a completion until a kernel that was short of memory is asked again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

fn entry(call: &Call) -> squeue::Entry {
    match *call {
        Call::Move(window) => {
            let (file, offset) = (types::Fd(window.file), window.offset);
            if window.write {
                opcode::Writev::new(file, window.pieces, window.count)
                    .offset(offset)
                    .build()
            } else {
                opcode::Readv::new(file, window.pieces, window.count)
                    .offset(offset)
                    .build()
            }
        }
        Call::Allocate { file, bytes } => opcode::Fallocate::new(types::Fd(file), bytes).build(),
        Call::SyncData { file } => opcode::Fsync::new(types::Fd(file))
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
        Call::SyncAll { file } => opcode::Fsync::new(types::Fd(file)).build(),
        Call::Unlink { directory, name } => {
            opcode::UnlinkAt::new(types::Fd(directory), name).build()
        }
    }
}
