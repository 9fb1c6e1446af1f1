//! Which extents of a node's memory other processes may access, where the node outlives its master: of what an earlier master
//! granted only what was published is left, and may be read.
//!
//! What the present master fences, the arena of the agent knows. That of extents which nobody has written it does not know of
//! is why production has a gate before it.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::{Agent, AgentOutput};
use slackwater_wire::{ExtentRef, SegmentId};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Generations below are those of earlier masters.
    floor: u64,
    /// Those of them that were published when the present master took the node: segment, first byte and generation.
    published: BTreeSet<(SegmentId, u64, u64)>,
    under_way: BTreeMap<AccessId, (ExtentRef, Access)>,
}

impl Gate {
    /// Begins an access; none when the extent is dead.
    pub(super) fn begin(
        &mut self,
        agent: &mut Agent,
        extent: ExtentRef,
        access: Access,
    ) -> Option<AccessId> {
        let admitted = self.admits(&extent, access);
        let begun = admitted.then(|| agent.begin_access(extent, access).ok())??;
        self.under_way.insert(begun, (extent, access));
        Some(begun)
    }

    /// Ends an access; true when the extent was alive until now, so that the bytes count.
    pub(super) fn end(
        &mut self,
        agent: &mut Agent,
        access: AccessId,
        out: &mut Vec<AgentOutput>,
    ) -> bool {
        let ended = self.under_way.remove(&access);
        let admitted = ended.is_some_and(|(extent, access)| self.admits(&extent, access));
        agent.end_access(access, out) && admitted
    }

    /// Another master has taken the node. Generations below `floor` are dead, except those that are published.
    pub(super) fn outlive<'a>(
        &mut self,
        floor: u64,
        published: impl Iterator<Item = &'a ExtentRef>,
    ) {
        self.floor = floor;
        self.published = published.map(place).collect();
    }

    /// Whether nothing is accessed any more that an earlier master granted and nobody published.
    pub(super) fn is_quiet(&self) -> bool {
        let mut extents = self.under_way.values().map(|(extent, _)| extent);
        extents.all(|extent| self.admits(extent, Access::Read))
    }

    fn admits(&self, extent: &ExtentRef, access: Access) -> bool {
        let is_new = extent.generation >= self.floor;
        is_new || (access == Access::Read && self.published.contains(&place(extent)))
    }
}

fn place(extent: &ExtentRef) -> (SegmentId, u64, u64) {
    (extent.segment, extent.offset, extent.generation)
}
