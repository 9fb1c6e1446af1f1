use std::sync::atomic::{AtomicU64, Ordering};

/// What a loop has done since it began. Every system call of the loop is counted where it is made.
#[derive(Debug, Default)]
pub struct Counters {
    /// Waits for events.
    pub polls: Counter,
    /// Wake-ups written by other threads.
    pub wakes: Counter,
    /// Reads from connections.
    pub reads: Counter,
    /// Writes to connections.
    pub writes: Counter,
    /// Accepts, the failed ones too.
    pub accepts: Counter,
    /// Connections begun.
    pub connects: Counter,
    /// Sockets set up or closed: options, registration, bind, listen, close.
    pub socket_calls: Counter,
    /// Bytes read.
    pub bytes_in: Counter,
    /// Bytes written.
    pub bytes_out: Counter,
    /// Events handed out by the kernel.
    pub events: Counter,
    /// Connections closed because their source had too many unproven ones.
    pub refused_source_full: Counter,
    /// Connections closed because their source opened them too fast.
    pub refused_source_rate: Counter,
    /// Times that accepting paused, for slots or descriptors.
    pub accept_paused: Counter,
    /// Connections closed because the peer did not read.
    pub stalled: Counter,
}

/// A counter that anybody reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Raises it by `n`, from any thread.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises it by `n` where only one thread at a time does, the one that holds the loop's core: a locked instruction would
    /// first wait for every cache line that was written to before it.
    pub(crate) fn add_alone(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// All system calls the loop has made for events and bytes: what a message costs once links stand.
    #[must_use]
    pub fn hot_system_calls(&self) -> u64 {
        self.polls.get() + self.wakes.get() + self.reads.get() + self.writes.get()
    }
}
