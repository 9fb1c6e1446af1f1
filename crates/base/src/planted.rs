//! Bugs planted on purpose, so that the simulator proves that it finds them.
//!
//! Code asks [`planted`] at the one place where the bug would be. Without the feature `planted`, which only the
//! simulator and tests turn on, the answer is a constant and the call compiles to nothing.

/// A bug that is easy to make, each in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Planted {
    /// The arena permits an access without checking its generation.
    AccessWithoutGeneration,
    /// An extent is allocated again without waiting for its owner's fence.
    FreeWithoutQuarantine,
    /// A fence is reported while an access under the dead generation is still under way.
    FenceDuringAccess,
    /// A record is reported as durable when it is written, before the sync.
    DurableBeforeSync,
    /// A dropped record gets no tombstone.
    DropWithoutTombstone,
    /// After a crash the older of two records of a key wins.
    OldestWinsAtRecovery,
    /// A file is trusted again after a sync of it failed.
    TrustAfterFailedSync,
    /// A remove is acknowledged before its record is dropped.
    RemoveBeforeDropped,
    /// A remove is acknowledged before the node has forgotten the memory of its object.
    RemoveBeforeForgotten,
    /// A put that needs several hosts is acknowledged before their nodes have heard that they hold it.
    AcknowledgedBeforeNoted,
    /// A node announces memory that was fenced.
    FencedIsAnnounced,
    /// What is left of an announcement to one master is said to the next.
    AnnouncementGoesOn,
    /// What was announced ahead of its turn is taken for a mistake of its node in its turn.
    AheadIsForgotten,
    /// Memory is given out before its node has announced what it holds.
    PlacedBeforeAnnounced,
    /// A master gives generations that its nodes know from earlier ones.
    GenerationsBeginAgain,
    /// What was sent on an earlier link and not taken is not sent again.
    UntakenNotSentAgain,
    /// A node whose link goes on stays away for its master.
    BackStaysAway,
    /// A failed promotion keeps its hold on the source.
    PromotionKeepsSource,
    /// A promotion that expires on its way keeps its node's slot.
    ExpiredPromotionKeepsSlot,
    /// A put that waits for room is not tried again when other values can be evicted.
    CompletedMakesNoRoom,
    /// A member of a group that is no longer referenced still holds its group.
    MemberHoldsGroup,
    /// A put that ends without a value keeps its quota.
    EndedPutKeepsQuota,
    /// A promotion is published without comparing the checksum.
    PromoteWithoutVerify,
    /// A removal is not kept for a node that is away.
    ForgetOwedRemoval,
    /// What is kept to be forgotten by a node that is away counts as removed, also when its version lives on.
    KeptCountsAsRemoved,
    /// A copy that only made room counts as removed when its node is lost.
    LostCountsAsRemoved,
    /// What one node has lost counts as removed at all nodes that are away.
    LostCountsForAll,
    /// The offloads of a lost node are ended one segment after the other, and what was to be written counts as removed.
    LostOffloadsAreDropped,
    /// A copy is published although its object was replaced on the way.
    ReplacedCopyIsPublished,
    /// A replica that a job carries goes although its copy failed.
    FailedCopyLetsSourceGo,
    /// A drain takes a replica on the segment that it empties for one elsewhere.
    DrainedIsElsewhere,
    /// A value of a drain is forgotten when its node is away.
    AwayUnitForgotten,
    /// The beginning of a job is not noted.
    JobNotNoted,
    /// The room of a copy that failed is not given back.
    FailedCopyKeepsRoom,
    /// A drain does not wait for puts that are under way.
    DrainForgetsPuts,
    /// A drain takes for kept on SSD what is only queued for it.
    QueuedCountsAsKept,
    /// What was lost with a node in the middle of its drain does not count as failed.
    LossInDrainForgotten,
    /// A drain does not look again at a segment that was lost and is back.
    ReturnedNotSwept,
    /// A drain succeeds although a node of it is gone and may come back.
    MissingCountsAsDrained,
    /// A segment that is mounted again after its drain passes for drained, whatever came back with it.
    ReturnedCountsAsDrained,
    /// The first drain of a segment decides what becomes of it, not the last.
    FirstDrainDecides,
    /// Two tenants that use the same key share one object.
    TenantsShareKeys,
    /// The reader takes bytes without comparing their checksum.
    ReadWithoutChecksum,
    /// A new master does not begin above the versions that the logs remember.
    VersionsBeginAgain,
    /// Reclaim leaves behind a tombstone that is still needed.
    TombstoneDroppedEarly,
    /// Recovery announces what it found without making it durable first.
    RecoveryWithoutSync,
    /// Recovery treats what it read of an unverified batch as durable.
    RecoveryTrustsCache,
    /// A record that the device could not read once is given up.
    ErrorTakenForRot,
    /// A log whose device failed does not wake to try it again.
    OutageNeverEnds,
    /// A cancelled promotion frees its extent while the device still writes to it.
    CancelledPromotionLetsGo,
    /// The tombstone of a removal counts when it is written, before the sync.
    TombstoneBeforeSync,
    /// The memory of a record is given up before the device has the record.
    MemoryGoesBeforeRecord,
    /// In the node's shell: a kernel that is short of memory for a moment ends the device.
    ShortageEndsDevice,
    /// In the node's shell: a file with a failed write may be closed, and with it the error that the next sync would report.
    FailedWriteSettles,
    /// The master executes an operation again when its request arrives a second time.
    RepeatedOperationExecutedTwice,
    /// The master forgets that an operation was revoked before it arrived.
    UnknownRevokeForgotten,
    /// A client that has no answer repeats the request under another number.
    RetryIsAnotherOperation,
    /// A client that gives up does not give back what a late answer grants.
    LostGrantNotRevoked,
    /// A client that has no answer to the end of a put leaves the put open.
    UnansweredEndNotRevoked,
    /// A read at its deadline gives its guards back while bytes still move to its buffer.
    GuardsEndWhileReading,
    /// Records that rot took from reclaim leave no tombstones, and their older copies are forgotten.
    GiveUpForgetsCopies,
    /// Reclaim copies a record without comparing its checksum.
    CopyWithoutChecksum,
    /// A removed file name counts as durably gone although the directory could not be synced.
    UnlinkCountsAsDurable,
    /// The file of a dropped record is deleted before the record's tombstone is durable.
    DeleteBeforeTombstone,
    /// Reclaim subtracts records that the opening did not count.
    UncountedRecordsCountedOff,
    /// A drop is answered because of a newer record, whose bytes may rot.
    NewerRecordIsEnough,
    /// A device reports a deletion as done although the sync of the directory failed.
    UnlinkWithoutSync,
    /// A device reports a file as created before its name is durable.
    CreateWithoutDirectorySync,
    /// A device reports a write as done when the kernel has written a part of it.
    ShortWriteCountsAsWhole,
    /// A device reports a call that a signal interrupted as done.
    InterruptedCountsAsDone,
    /// Headers that a deleted file left in the one that was made out of it are taken for this file's.
    StaleHeadersCount,
    /// A file that was made out of a deleted one has old bytes behind its last batch, without zeros between.
    ReusedFileNotEnded,
    /// A device makes a file out of a deleted one without clearing its first block.
    ReusedFileKeepsHeader,
}

impl Planted {
    /// Bugs of the SSD log that scenarios of the tier crate look for: few seeds of the simulator, or none, meet them.
    pub const LOG: &[Planted] = &[
        Self::GiveUpForgetsCopies,
        Self::UnlinkCountsAsDurable,
        Self::DeleteBeforeTombstone,
        Self::UncountedRecordsCountedOff,
        Self::NewerRecordIsEnough,
        Self::StaleHeadersCount,
        Self::ReusedFileNotEnded,
    ];

    /// Bugs of the shell's disk jobs, which the tests of the node crate look for.
    pub const DISK_JOBS: &[Planted] = &[
        Self::UnlinkWithoutSync,
        Self::CreateWithoutDirectorySync,
        Self::ShortWriteCountsAsWhole,
        Self::InterruptedCountsAsDone,
        Self::ReusedFileKeepsHeader,
    ];

    /// Every planted bug that the simulator must find.
    pub const ALL: &[Planted] = &[
        Self::AccessWithoutGeneration,
        Self::FreeWithoutQuarantine,
        Self::FenceDuringAccess,
        Self::DurableBeforeSync,
        Self::DropWithoutTombstone,
        Self::OldestWinsAtRecovery,
        Self::TrustAfterFailedSync,
        Self::RemoveBeforeDropped,
        Self::PromotionKeepsSource,
        Self::ExpiredPromotionKeepsSlot,
        Self::CompletedMakesNoRoom,
        Self::MemberHoldsGroup,
        Self::EndedPutKeepsQuota,
        Self::PromoteWithoutVerify,
        Self::ForgetOwedRemoval,
        Self::KeptCountsAsRemoved,
        Self::LostCountsAsRemoved,
        Self::LostCountsForAll,
        Self::LostOffloadsAreDropped,
        Self::TenantsShareKeys,
        Self::ReadWithoutChecksum,
        Self::VersionsBeginAgain,
        Self::TombstoneDroppedEarly,
        Self::RecoveryWithoutSync,
        Self::RecoveryTrustsCache,
        Self::ErrorTakenForRot,
        Self::OutageNeverEnds,
        Self::CancelledPromotionLetsGo,
        Self::RepeatedOperationExecutedTwice,
        Self::UnknownRevokeForgotten,
        Self::RetryIsAnotherOperation,
        Self::LostGrantNotRevoked,
        Self::UnansweredEndNotRevoked,
        Self::GuardsEndWhileReading,
        Self::CopyWithoutChecksum,
        Self::GiveUpForgetsCopies,
        Self::TombstoneBeforeSync,
        Self::MemoryGoesBeforeRecord,
        Self::QueuedCountsAsKept,
        Self::RemoveBeforeForgotten,
        Self::AcknowledgedBeforeNoted,
        Self::FencedIsAnnounced,
        Self::AheadIsForgotten,
        Self::PlacedBeforeAnnounced,
        Self::GenerationsBeginAgain,
        Self::UntakenNotSentAgain,
        Self::BackStaysAway,
    ];

    /// Bugs of nodes that outlive their master, which the simulator's smaller pool must catch.
    pub const POOL: &[Planted] = &[
        Self::RemoveBeforeForgotten,
        Self::FencedIsAnnounced,
        Self::AnnouncementGoesOn,
        Self::AheadIsForgotten,
        Self::PlacedBeforeAnnounced,
        Self::ForgetOwedRemoval,
        Self::AccessWithoutGeneration,
        Self::FreeWithoutQuarantine,
    ];

    /// Bugs of jobs, which the simulator's smaller pool must catch.
    pub const JOBS: &[Planted] = &[
        Self::ReplacedCopyIsPublished,
        Self::FailedCopyLetsSourceGo,
        Self::DrainedIsElsewhere,
        Self::AwayUnitForgotten,
        Self::JobNotNoted,
        Self::FailedCopyKeepsRoom,
        Self::DrainForgetsPuts,
        Self::LossInDrainForgotten,
        Self::ReturnedNotSwept,
        Self::MissingCountsAsDrained,
        Self::ReturnedCountsAsDrained,
        Self::FirstDrainDecides,
    ];

    /// Other bugs of the node's shell, which the simulator does not run: its own tests must catch them.
    pub const SHELL: &[Planted] = &[Self::ShortageEndsDevice, Self::FailedWriteSettles];
}

/// Whether `bug` is planted in the run on this thread.
#[cfg(feature = "planted")]
#[must_use]
pub fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether `bug` is planted: never, in a build that is not the simulator's.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn planted(_bug: Planted) -> bool {
    false
}

/// Plants `bug`, or none, in everything that this thread runs from now on.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}
