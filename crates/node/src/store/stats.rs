use serde::Serialize;
use slackwater_meta::{OffloadMetrics, PromotionMetrics, ReplicationMetrics};

use crate::selection::Selection;

/// Everything a store counts, at one moment. Counters begin at zero when the store is opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Objects there are, on any tier.
    pub objects: u64,
    /// Memory of values.
    pub memory: TierStats,
    /// The SSD tier; `None` without one.
    pub ssd: Option<SsdStats>,
    /// Reads by where they ended.
    pub reads: ReadStats,
    /// Views of values.
    pub views: ViewStats,
    /// Records read from SSD on behalf of a reader: the proof of where a read came from.
    pub ssd_reads: u64,
    /// Records read from SSD to be promoted, because no reader brought their bytes.
    pub promotion_reads: u64,
    /// Records that were promoted with the bytes of the read that earned it.
    pub promotion_copies: u64,
    /// Puts by how they ended.
    pub puts: PutStats,
    /// The funnel of promotion.
    pub promotions: PromotionMetrics,
    /// Further replicas of what is read much.
    pub replication: ReplicationMetrics,
    /// Values that a node brought from another one, and that are readable there.
    pub copies: Flow,
    /// Memory replicas that were evicted.
    pub evictions: Flow,
    /// SSD replicas that were evicted.
    pub ssd_evictions: Flow,
    /// Those of them that an SSD would have had to write again, because it emptied the file that they were in.
    pub ssd_evictions_at_reclaim: u64,
    /// The rules that evictions follow, for each segment whose policy has several.
    pub eviction_rules: Vec<EvictionRules>,
    /// The funnel of offload.
    pub offloads: OffloadMetrics,
    /// Replicas whose bytes were not those that were put; none of them was returned.
    pub corrupt: u64,
    /// How long calls took.
    pub latency: Latencies,
    /// How long parts of reads took.
    pub phases: Phases,
    /// How the store's threads and callers waited, by what for, and those of the process that move its values and messages.
    pub waits: Vec<WaitStats>,
    /// How SSD reads and writes are done.
    pub io: Selection,
    /// The kind of pages of the memory of values.
    pub pages: Selection,
    /// Settings that are allowed and have no effect or another one than their words say.
    pub warnings: Vec<String>,
}

/// The rules of one segment's eviction policy, and which of them it follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EvictionRules {
    /// The number of the segment.
    pub segment: u32,
    /// `memory` or `ssd`.
    pub tier: &'static str,
    /// The rule that is followed.
    pub followed: &'static str,
    /// Its hit rate less that of the best other rule: below zero where another one is ahead, but not clearly.
    pub lead: f64,
    /// How often another rule began to be followed.
    pub changes: u64,
    /// Each rule with its hits as a share of the block references that the simulated caches saw lately, from 0 to 1.
    pub hit_rates: Vec<(&'static str, f64)>,
}

/// How full a tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierStats {
    /// Its size.
    pub capacity_bytes: u64,
    /// Bytes that replicas occupy.
    pub used_bytes: u64,
}

/// How the SSD tier is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SsdStats {
    /// Its size.
    pub capacity_bytes: u64,
    /// Bytes that records occupy.
    pub used_bytes: u64,
    /// Records there are.
    pub records: u64,
    /// Whether it takes new records: false while the disk is full or failing.
    pub accepting: bool,
    /// Bytes written to the device, headers and padding included.
    pub written_bytes: u64,
    /// Bytes read from the device, headers and padding included.
    pub read_bytes: u64,
    /// Records found when the store was opened.
    pub recovered: u64,
    /// Syncs of its files for records, copies and tombstones.
    pub syncs: u64,
    /// Pieces of writes that may be under way while somebody reads; below one, a share of the time.
    pub write_window: f64,
    /// How many times as long as without writes the last reads took.
    pub read_slowdown: f64,
    /// Time that readers waited longer for the device than without writes, in microseconds, in sum.
    pub reads_delayed_us: u64,
    /// Records and removals that it did not take when the store was closed; zero until then.
    pub unwritten_at_close: u64,
}

/// Reads by where they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadStats {
    /// Served from memory.
    pub memory_hits: u64,
    /// Served from SSD.
    pub ssd_hits: u64,
    /// Not there.
    pub misses: u64,
    /// Bytes served from memory.
    pub memory_bytes: u64,
    /// Bytes served from SSD.
    pub ssd_bytes: u64,
}

/// Views of values: those that are open, and those there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ViewStats {
    /// Open now.
    pub open: u64,
    /// Bytes of them.
    pub open_bytes: u64,
    /// Open now for longer than they may be.
    pub late: u64,
    /// Opened since the start.
    pub opened: u64,
    /// Became late since the start.
    pub became_late: u64,
    /// Calls refused because of the views that were open.
    pub refused: u64,
}

/// Puts by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PutStats {
    /// Stored.
    pub stored: u64,
    /// Found a value of that key.
    pub existed: u64,
    /// Refused or failed.
    pub refused: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// Puts that had to wait for space.
    pub waited: u64,
}

/// Things that happened and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// How many.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// How long calls took, by what they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// Reads from memory, a value each.
    pub memory: Latency,
    /// Reads from SSD, a value each.
    pub ssd: Latency,
    /// Puts, a value each.
    pub put: Latency,
}

/// How long the parts of reads took that a process sees: of a read for another process the rest is that process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// The look-up of a call, with its wait for the lock of the master. At a master with nodes, look-ups of single keys that came
    /// together are answered together: each took as long as all of them.
    pub look_up: Latency,
    /// A read from SSD before it began: behind the others of its call.
    pub queue: Latency,
    /// A read from SSD from then on, checksum included.
    pub ssd: Latency,
    /// A value that was read from SSD for another process, from when that process was told where the bytes are until it
    /// had fetched them.
    pub wire: Latency,
}

/// A distribution of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Half are shorter, in microseconds.
    pub p50_us: f64,
    /// 95 % are shorter, in microseconds.
    pub p95_us: f64,
    /// 99 % are shorter, in microseconds.
    pub p99_us: f64,
    /// 99.9 % are shorter, in microseconds.
    pub p999_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

/// What the waits of one kind did: `waits` is how many did not find at once what they waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitStats {
    /// What was waited for.
    pub site: &'static str,
    /// Waits that did not find it there already.
    pub waits: u64,
    /// Waits that ended while they still looked.
    pub spun: u64,
    /// Looks at what was waited for, before sleep.
    pub looks: u64,
    /// Times a waiter slept in the kernel.
    pub parked: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Time spent looking, in microseconds.
    pub spun_us: u64,
    /// Time spent asleep, in microseconds.
    pub parked_us: u64,
}
