use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use slackwater_wire::TraceId;

use super::{Latencies, Latency, Phases, StoreError, Stored, Tier};
use crate::disk::RecordRead;
use crate::prometheus::BOUNDS;

/// What the shell itself counts: times, and what only it sees.
#[derive(Default)]
pub(super) struct Meters {
    memory: Meter,
    ssd: Meter,
    put: Meter,
    /// What reads are made of.
    pub(super) phases: PhaseMeters,
    /// Reads from memory whose bytes were not those that were put; those from SSD are counted by the agent.
    pub(super) corrupt_memory: AtomicU64,
    /// Reads by where they ended, values and bytes.
    pub(super) memory_hits: Volume,
    pub(super) ssd_hits: Volume,
    pub(super) misses: AtomicU64,
    /// Puts by how they ended.
    pub(super) stored: Volume,
    pub(super) existed: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// How often something happened, and bytes of it.
#[derive(Default)]
pub(super) struct Volume {
    pub(super) count: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Volume {
    pub(super) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A distribution as the text form wants it.
pub(crate) struct Distribution {
    /// How many were at most as long as each of the bounds.
    pub(crate) below: Vec<u64>,
    pub(crate) count: u64,
    /// The sum of all.
    pub(crate) seconds: f64,
    /// Of each bucket the last that was a part of a trace.
    pub(crate) exemplars: Exemplars,
}

/// A time that was a part of a trace.
#[derive(Clone, Copy)]
pub(crate) struct Exemplar {
    pub(crate) trace: TraceId,
    pub(crate) seconds: f64,
    /// When it was added.
    pub(crate) at: SystemTime,
}

/// The parts of reads that a process sees.
#[derive(Default)]
pub(crate) struct PhaseMeters {
    /// Look-ups of a call: the wait for the master's lock is a part of them.
    pub(crate) look_up: Meter,
    /// Reads from SSD before they began: behind the others of their call.
    queue: Meter,
    /// Reads from SSD from then on.
    ssd: Meter,
    /// From when a client was told where its bytes are until it had fetched them.
    pub(super) wire: Meter,
}

impl PhaseMeters {
    /// A record was read from SSD, or could not be.
    pub(super) fn read(&self, record: &RecordRead<'_>) {
        if let Some(Ok(_)) = record.result {
            self.queue.add(record.waited);
            self.ssd.add(record.took);
        }
    }

    pub(crate) fn times(&self) -> Phases {
        Phases {
            look_up: self.look_up.latency(),
            queue: self.queue.latency(),
            ssd: self.ssd.latency(),
            wire: self.wire.latency(),
        }
    }

    /// The distributions with their labels, for the text form.
    pub(crate) fn distributions(&self) -> [(&'static str, Distribution); 4] {
        [
            ("phase=\"look_up\"", self.look_up.buckets()),
            ("phase=\"queue\"", self.queue.buckets()),
            ("phase=\"ssd\"", self.ssd.buckets()),
            ("phase=\"wire\"", self.wire.buckets()),
        ]
    }
}

/// A distribution of times; the lock is held for one entry.
pub(crate) struct Meter(Mutex<Times>);

struct Times {
    histogram: Histogram<u64>,
    /// The last time of each bucket that was a part of a trace; none before the first.
    exemplars: Option<Box<Exemplars>>,
}

/// One place for each of the [`BOUNDS`], and one for what is beyond.
type Exemplars = [Option<Exemplar>; BOUNDS.len() + 1];

impl Default for Meter {
    fn default() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NANOS, 2).expect("the bounds are in order");
        Self(Mutex::new(Times {
            histogram,
            exemplars: None,
        }))
    }
}

impl Meter {
    /// Adds a time, as that of the trace that this thread is within, if it is within one.
    pub(crate) fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let exemplar = slackwater_trace::current().map(|context| Exemplar {
            trace: context.trace,
            seconds: took.as_secs_f64(),
            at: SystemTime::now(),
        });
        let mut times = self.times();
        times.histogram.saturating_record(nanos);
        if let Some(exemplar) = exemplar {
            let exemplars = times.exemplars.get_or_insert_default();
            let ends = BOUNDS.iter();
            let bucket = ends.take_while(|end| exemplar.seconds > **end).count();
            exemplars[bucket] = Some(exemplar);
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latency(&self) -> Latency {
        let times = self.times();
        let histogram = &times.histogram;
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency {
            count: histogram.len(),
            p50_us: at(0.50),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }

    fn buckets(&self) -> Distribution {
        let times = self.times();
        let histogram = &times.histogram;
        Distribution {
            below: BOUNDS
                .iter()
                .map(|seconds| histogram.count_between(0, (seconds * 1e9) as u64))
                .collect(),
            count: histogram.len(),
            seconds: histogram.mean() * histogram.len() as f64 / 1e9,
            exemplars: times.exemplars.as_deref().copied().unwrap_or_default(),
        }
    }
}

impl Meters {
    /// One value read.
    pub(super) fn read(&self, tier: Tier, bytes: usize, took: Duration) {
        let (tally, meter) = match tier {
            Tier::Memory => (&self.memory_hits, &self.memory),
            Tier::Disk => (&self.ssd_hits, &self.ssd),
        };
        tally.add(bytes);
        meter.add(took);
    }

    /// One value of a put, however it ended.
    pub(super) fn put(&self, outcome: &Result<Stored, StoreError>, bytes: usize, took: Duration) {
        match outcome {
            Ok(Stored::New) => {
                self.stored.add(bytes);
                self.put.add(took);
            }
            Ok(Stored::Existed) => _ = self.existed.fetch_add(1, Ordering::Relaxed),
            Err(_) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(super) fn latencies(&self) -> Latencies {
        Latencies {
            memory: self.memory.latency(),
            ssd: self.ssd.latency(),
            put: self.put.latency(),
        }
    }

    /// The distributions with their labels, for the text form.
    pub(super) fn distributions(&self) -> [(&'static str, Distribution); 3] {
        [
            ("op=\"get\",tier=\"memory\"", self.memory.buckets()),
            ("op=\"get\",tier=\"ssd\"", self.ssd.buckets()),
            ("op=\"put\",tier=\"memory\"", self.put.buckets()),
        ]
    }
}

/// Longer times are counted as this long: a minute and a half.
const LONGEST_NANOS: u64 = 90_000_000_000;
