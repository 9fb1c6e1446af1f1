use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use slackwater_tier::io::{DiskDone, DiskOp, OpId};

use super::directory::Directory;
use super::job::Job;
use super::ring::{Landed, Ring};
use super::scratch::{BUFFER_BYTES, Buffers};
use super::transfer::Segment;
use super::{Device, Footprint};

/// The device on io_uring: any thread submits, one thread drives the ring and sleeps in it.
pub(super) struct UringDevice {
    directory: Arc<Directory>,
    segment: Segment,
    /// For what is not read straight into an extent.
    buffers: Arc<Buffers>,
    inbox: Mutex<Vec<(OpId, DiskOp)>>,
    driver: Mutex<Driver>,
    /// Dropped after the driver, whose ring watches it.
    event: OwnedFd,
    footprint: Footprint,
}

struct Driver {
    ring: Ring,
    backlog: VecDeque<(OpId, DiskOp)>,
    landed: Vec<Landed>,
    watching: bool,
}

impl UringDevice {
    pub(super) fn new(
        directory: Arc<Directory>,
        segment: Segment,
        depth: usize,
    ) -> io::Result<Self> {
        let ring = Ring::new(depth)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let driver = Driver {
            ring,
            backlog: VecDeque::new(),
            landed: Vec::new(),
            watching: false,
        };
        let driver = Mutex::new(driver);
        Ok(Self {
            directory,
            segment,
            buffers: Buffers::new(BUFFER_BYTES),
            inbox: Mutex::default(),
            driver,
            event,
            footprint: Footprint::default(),
        })
    }
}

#[cfg(test)]
impl UringDevice {
    /// Lets the next turns of the ring fail.
    pub(super) fn fail(&self, failure: super::ring::Failure) {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.ring.fail(failure);
    }
}

impl Device for UringDevice {
    fn submit(&self, ops: &mut Vec<(OpId, DiskOp)>) {
        if ops.is_empty() {
            return;
        }
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = inbox.is_empty();
        inbox.append(ops);
        drop(inbox);
        // The thread that fills an empty inbox wakes the driver, which empties it before it sleeps.
        if was_empty {
            self.wake();
        }
    }

    fn complete(&self, done: &mut Vec<DiskDone>) -> io::Result<()> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let Driver {
            ring,
            backlog,
            landed,
            watching,
        } = &mut *driver;
        let before = done.len();
        loop {
            backlog.extend(
                self.inbox
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .drain(..),
            );
            while ring.room() > 0
                && let Some((op, what)) = backlog.pop_front()
            {
                self.footprint.count(&what);
                // SAFETY: the agent that made the operation keeps its extents from others until the completion.
                match unsafe { Job::begin(what, &self.directory, &self.segment, &self.buffers) } {
                    Ok(job) => ring.start(op.0, job),
                    Err(error) => done.push(DiskDone {
                        op,
                        result: Err(error),
                    }),
                }
            }
            if done.len() > before {
                return Ok(());
            }
            if !*watching {
                ring.watch(self.event.as_raw_fd());
                *watching = true;
            }
            let woken = ring.turn(landed)?;
            let ended = landed.drain(..).map(|landed| {
                let Landed {
                    tag,
                    mut job,
                    result,
                } = landed;
                DiskDone {
                    op: OpId(tag),
                    result: result.map(|()| job.outcome()),
                }
            });
            done.extend(ended);
            if woken {
                *watching = false;
                let mut count = [0; 8];
                // The count does not matter; an empty event is as good as one just emptied.
                let _ = rustix::io::read(&self.event, &mut count);
                return Ok(());
            }
        }
    }

    fn wake(&self) {
        // Fails only when the count is at its end, and then the driver is being woken already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn footprint(&self) -> &Footprint {
        &self.footprint
    }
}
