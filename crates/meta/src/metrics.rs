use serde::Serialize;

/// Counters and gauges of a master; the shell names and exports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each field counts what its name says, in bytes where the name says bytes"
)]
pub struct Metrics {
    pub gets: u64,
    pub get_memory_hits: u64,
    pub get_disk_hits: u64,
    pub get_misses: u64,
    pub get_not_ready: u64,
    pub get_memory_bytes: u64,
    pub get_disk_bytes: u64,
    pub probes: u64,
    pub puts_granted: u64,
    pub puts_existed: u64,
    pub puts_refused: u64,
    pub puts_partial: u64,
    pub puts_waited: u64,
    pub puts_timed_out: u64,
    pub puts_published: u64,
    pub puts_published_bytes: u64,
    pub puts_revoked: u64,
    pub puts_preempted: u64,
    pub puts_reclaimed: u64,
    pub late_ends_refused: u64,
    pub removes: u64,
    pub objects_removed: u64,
    pub evictions: u64,
    pub eviction_bytes: u64,
    pub evictions_clean: u64,
    pub quota_evictions: u64,
    pub disk_evictions: u64,
    /// Those of them that an SSD would have had to write again.
    pub disk_evictions_at_reclaim: u64,
    pub disk_eviction_bytes: u64,
    pub victims_excluded: u64,
    pub offload: OffloadMetrics,
    pub promotion: PromotionMetrics,
    pub replication: ReplicationMetrics,
    /// Values that a node brought from another one: for jobs, for readers, and because they are read much.
    pub values_copied: u64,
    pub copied_bytes: u64,
    pub records_announced: u64,
    pub extents_announced: u64,
    pub extents_stale: u64,
    pub records_stale: u64,
    pub records_lost: u64,
    pub records_dropped: u64,
    pub replicas_suspected: u64,
    pub extents_fenced: u64,
    pub operations_repeated: u64,
    /// Look-ups that waited for nodes after a restart of the master.
    pub look_ups_held: u64,
    pub nodes_hidden: u64,
    pub nodes_given_up: u64,
}

/// The funnel of offload: `started` is the sum of the four ends and `in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OffloadMetrics {
    /// Started since the master started.
    pub started: u64,
    /// Ended with the value on SSD.
    pub completed: u64,
    /// Bytes of the completed ones.
    pub completed_bytes: u64,
    /// Ended by an error.
    pub failed: u64,
    /// Ended by their deadline.
    pub expired: u64,
    /// Ended because the object went away.
    pub cancelled: u64,
    /// In flight now.
    pub in_flight: u64,
    /// Not begun: too many under way, or an older record is still being dropped.
    pub skipped_full: u64,
    /// Not begun: no SSD that accepts it, because there is none or it has no room.
    pub skipped_no_disk: u64,
    /// Not begun: the device of the SSD answers writes with errors.
    pub skipped_failing: u64,
    /// Not begun: the SSD would have evicted it first.
    pub skipped_not_worth: u64,
}

/// The funnel of replication: `admitted` is the sum of the two ends and `in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicationMetrics {
    /// Objects that were read often enough within a window.
    pub hot: u64,
    /// Those of which a replica would have been made, while it is only observed.
    pub observed: u64,
    /// Copies begun since the master started.
    pub admitted: u64,
    /// Ended with another replica.
    pub completed: u64,
    /// Bytes of the completed ones.
    pub completed_bytes: u64,
    /// Ended by an error, or because the object went away.
    pub failed: u64,
    /// In flight now.
    pub in_flight: u64,
    /// Not begun: the object has as many replicas as it may have.
    pub rejected_enough: u64,
    /// Not begun: no other node has memory to spare.
    pub rejected_room: u64,
    /// Not begun: the tenant's quota is used up.
    pub rejected_quota: u64,
    /// Not begun: the object went away, was being replaced, or its node had no link.
    pub rejected_unready: u64,
    /// Not begun: too many waited.
    pub rejected_queue: u64,
    /// Reads that were not counted: too many objects were.
    pub untracked: u64,
    /// Objects whose reads are counted now.
    pub tracked: u64,
    /// Replicas that exist now because their objects are read much.
    pub extras: u64,
    /// Such replicas that went when memory was short.
    pub extras_evicted: u64,
}

/// The funnel of promotion: `admitted` is the sum of the four ends and `in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromotionMetrics {
    /// Started since the master started.
    pub admitted: u64,
    /// Ended with the value in memory.
    pub completed: u64,
    /// Bytes of the completed ones.
    pub completed_bytes: u64,
    /// Of the completed ones, those to a node of the reader's host, from a record on another.
    pub to_reader: u64,
    /// Ended by an error.
    pub failed: u64,
    /// Ended by their deadline.
    pub expired: u64,
    /// Ended because the object went away.
    pub cancelled: u64,
    /// In flight now.
    pub in_flight: u64,
    /// Not begun: read too rarely.
    pub rejected_frequency: u64,
    /// Not begun: worth less than what memory holds.
    pub rejected_index: u64,
    /// Not begun: memory too full.
    pub rejected_watermark: u64,
    /// Not begun: too many under way.
    pub rejected_cap: u64,
    /// Refused for lack of room or slots and kept for a retry.
    pub candidate_recorded: u64,
    /// Begun by a retry.
    pub candidate_admitted: u64,
    /// Tried again without success.
    pub candidate_admission_rejected: u64,
    /// Dropped after at least one retry.
    pub candidate_expired_evaluated: u64,
    /// Dropped without a retry.
    pub candidate_expired_unevaluated: u64,
    /// Not kept for a retry: the table is full.
    pub candidate_dropped_limit: u64,
    /// Keys kept for a retry now.
    pub candidates: u64,
}
