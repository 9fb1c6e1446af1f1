use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One mounted segment: a run of memory, or the SSD log of one node.
    SegmentId(u32)
}
id! {
    /// One job of a master: a copy, a move or a drain.
    JobId(u64)
}
id! {
    /// One storage node: the owner of memory segments and at most one SSD log.
    NodeId(u32)
}
id! {
    /// One life of a client's process, the same on all its links to the master: chosen by the process at random.
    ClientId(u64)
}
id! {
    /// One operation of a client: unique among the operations of that [`ClientId`], and the same over all its retries.
    /// The master executes an operation once and gives each repetition the first answer, as long as it keeps that
    /// answer (Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015).
    ///
    /// Numbers with the highest bit are of operations that cannot be repeated: see [`OperationId::unrepeated`].
    OperationId(u64)
}

impl OperationId {
    /// The number of an operation that nothing can lose or repeat between its caller and the master, because both are
    /// in one process. The master keeps no answer for it. `number` is below 2^63.
    #[must_use]
    pub const fn unrepeated(number: u64) -> Self {
        Self(UNREPEATED | number)
    }

    /// Whether the operation can reach the master more than once.
    #[must_use]
    pub const fn may_repeat(self) -> bool {
        self.0 & UNREPEATED == 0
    }
}

const UNREPEATED: u64 = 1 << 63;

id! {
    /// One life of a segment's memory, compared for equality only: extents of another one are gone.
    Incarnation(u64)
}
id! {
    /// One offload, promotion or drop under way.
    TicketId(u64)
}
id! {
    /// One read that keeps its replica in place until it ends.
    GuardId(u64)
}
id! {
    /// Which put wrote the bytes of a key. Larger is newer, across restarts too; zero names no put.
    Version(u64)
}
id! {
    /// One life of the master. Larger is later; it is in every message both ways, and a process that has seen a larger one
    /// refuses a smaller one. Zero is before every master.
    Epoch(u64)
}
