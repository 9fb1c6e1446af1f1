//! Movers and their queue: the shape of a transfer engine, with memory copies for the network.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_wait::{Choice, Countdown, Event, Site, Wait, Waiting, working};

/// One copy to be made.
struct Request {
    object: usize,
    /// The waiter's buffer. The waiter stays in [`Engine::get`] until `done`.
    buffer: *mut u8,
    bytes: usize,
    done: Arc<Countdown>,
}

// SAFETY: the buffer belongs to a waiter that does not touch it before `done`; only one thread takes the request.
unsafe impl Send for Request {}

/// The most ends that are told together.
const BATCH_MAX: usize = 4;

pub(super) struct Engine<'a> {
    source: &'a [u8],
    strategy: Box<dyn Wait>,
    queue: Mutex<VecDeque<Request>>,
    /// Something was queued.
    queued: Event,
    /// Threads that copy, and the most that may.
    copying: AtomicUsize,
    copying_max: usize,
    served: AtomicU64,
    waits: Site,
    idle: Site,
}

impl<'a> Engine<'a> {
    pub(super) fn new(source: &'a [u8], choice: Choice, movers: usize) -> Self {
        Self {
            source,
            strategy: choice.strategy(),
            queue: Mutex::new(VecDeque::new()),
            queued: Event::new(),
            copying: AtomicUsize::new(0),
            copying_max: movers,
            served: AtomicU64::new(0),
            waits: Site::new("get"),
            idle: Site::new("mover"),
        }
    }

    /// Copies delivered so far.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// How often waiters looked for the end of their copies so far: while they spun, and after each time asleep.
    pub(super) fn looks(&self) -> u64 {
        let counts = self.waits.counts();
        counts.looks + counts.parks
    }

    /// Fills `buffer` with an object and returns when it is there.
    pub(super) fn get(&self, object: usize, buffer: &mut [u8]) {
        let waiting = Waiting::at(&self.waits).by(&*self.strategy);
        let done = Arc::new(Countdown::new(1));
        let (bytes, buffer) = (buffer.len(), buffer.as_mut_ptr());
        let request = Request {
            object,
            buffer,
            bytes,
            done: Arc::clone(&done),
        };
        if waiting.helps() && self.enter() {
            self.copy(&request);
            self.leave();
            return;
        }
        self.lock().push_back(request);
        self.queued.notify(1);
        done.wait(&waiting)
            .expect("no deadline, no cancel, and a copy does not fail");
    }

    /// What a mover does.
    pub(super) fn move_until_closed(&self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let seen = self.queued.seen();
            if self.queued.is_closed() {
                return;
            }
            if self.enter() {
                let mut moved = false;
                while self.pop(&mut batch) {
                    batch.iter().for_each(|request| self.copy(request));
                    batch.drain(..).for_each(|request| request.done.complete());
                    moved = true;
                }
                self.leave();
                if moved {
                    continue;
                }
            }
            let _ = self
                .queued
                .wait(seen, &Waiting::at(&self.idle).by(&*self.strategy));
        }
    }

    pub(super) fn close(&self) {
        self.queued.close();
    }

    /// Takes one of the places for copying.
    fn enter(&self) -> bool {
        let more = |copying| (copying < self.copying_max).then_some(copying + 1);
        self.copying
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Gives the place back, to a mover if something was queued meanwhile.
    fn leave(&self) {
        self.copying.fetch_sub(1, Ordering::AcqRel);
        if !self.lock().is_empty() {
            self.queued.notify(1);
        }
    }

    fn copy(&self, request: &Request) {
        let _working = working();
        let objects = self.source.len() / request.bytes;
        let from = &self.source[request.object % objects * request.bytes..][..request.bytes];
        // SAFETY: the buffer has that many bytes, and the waiter that owns it stays in `get` until the end is told.
        unsafe { slackwater_pool::copy::copy(request.buffer, from.as_ptr(), request.bytes) };
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the oldest request, and some more where many wait: their ends are told together, as a network card
    /// coalesces its interrupts, because the first wake of an idle CPU is the dear one.
    fn pop(&self, batch: &mut Vec<Request>) -> bool {
        let mut queue = self.lock();
        let count = (queue.len() / 4).clamp(1, BATCH_MAX).min(queue.len());
        batch.extend(queue.drain(..count));
        count > 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Request>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
