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
    /// One storage node: the owner of memory segments and at most one SSD log.
    NodeId(u32)
}
id! {
    /// One client of the master, chosen at connection.
    ClientId(u64)
}
id! {
    /// Which call of a client a reply answers.
    CallId(u64)
}
id! {
    /// One life of a node's process; orders processes where generations order extents.
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
