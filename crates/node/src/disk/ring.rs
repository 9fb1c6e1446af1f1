use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::Timespec;
use slab::Slab;
use slackwater_tier::io::{DiskError, DiskOutcome};

use super::job::{Call, Job};
use super::transfer::Progress;

/// One io_uring and the jobs in flight on it. Used by one thread at a time.
pub(super) struct Ring {
    io: IoUring,
    flights: Slab<Flight>,
    depth: usize,
    sequence: u32,
    /// Turns that are to fail once they have handed over what was started.
    #[cfg(test)]
    failing: u32,
}

#[derive(Debug)]
struct Flight {
    job: Job,
    tag: u64,
    /// Part of the completion's name, so that one that does not belong to the flight is recognised.
    sequence: u32,
}

/// A job that came to its end.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) tag: u64,
    pub(super) result: Result<DiskOutcome, DiskError>,
}

/// The name of the poll that a waker ends; no flight has it.
const WAKE: u64 = u64::MAX;

const NEEDED: [u8; 5] = [
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
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
            #[cfg(test)]
            failing: 0,
        })
    }

    /// Lets the next `turns` turns fail after they have handed over what was started.
    #[cfg(test)]
    pub(super) fn fail(&mut self, turns: u32) {
        self.failing = turns;
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
    pub(super) fn turn(&mut self, landed: &mut Vec<Landed>) -> io::Result<bool> {
        #[cfg(test)]
        if self.failing > 0 {
            self.failing -= 1;
            self.io.submit()?;
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        match self.io.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, or the completions must be taken first: both are cured by taking them.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(self.reap(landed))
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
                let Flight { mut job, tag, .. } = self.flights.remove(index);
                let result = match done {
                    Progress::Failed(error) => Err(error),
                    _ => Ok(job.outcome()),
                };
                landed.push(Landed { tag, result });
            }
        }
    }

    fn push(&mut self, index: usize) {
        let flight = &self.flights[index];
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
    }
}

impl Drop for Ring {
    /// The kernel may write to the memory of a flight until it has landed, and that memory is a caller's buffer, or an
    /// extent that somebody else is given next. No process goes on over operations that do not come back.
    fn drop(&mut self) {
        let (mut landed, begun) = (Vec::new(), Instant::now());
        while !self.flights.is_empty() {
            let Err(error) = self.turn(&mut landed) else {
                continue;
            };
            if begun.elapsed() > DRAIN_LONGEST {
                tracing::error!(%error, "io_uring does not give its operations back: the process ends");
                std::process::abort();
            }
            self.await_completion(DRAIN_PAUSE);
            self.reap(&mut landed);
        }
    }
}

/// How long a ring that fails is asked for the operations it has, and how long for those alone that it was given.
const DRAIN_LONGEST: Duration = Duration::from_secs(1);
const DRAIN_PAUSE: Duration = Duration::from_millis(10);

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
    }
}
