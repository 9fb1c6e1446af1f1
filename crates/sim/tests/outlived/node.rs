//! A node: its agent, its gate, its memory, and its side of the link.

use super::*;

/// What goes down a link to a node.
pub(super) enum Down {
    Welcome(Attached),
    AnnounceFirst(Vec<ObjectName>),
    Orders(u64, u64, Vec<Order>),
}

/// What comes up from one.
pub(super) enum Up {
    /// Life, whether a master has welcomed it, the last order taken, the highest generation.
    Hello(u64, bool, u64, u64),
    Reports(u64, u64, Vec<Report>),
}

/// The messages under way on the link of a node.
#[derive(Default)]
pub(super) struct Link {
    /// The master has greeted the node, and the node has heard it.
    pub(super) greeted: bool,
    pub(super) heard: bool,
    pub(super) down: VecDeque<Down>,
    pub(super) up: VecDeque<Up>,
}

pub(super) struct Node {
    pub(super) agent: Agent,
    pub(super) process: u64,
    pub(super) life: u64,
    pub(super) welcomed: bool,
    pub(super) reports: NumberedSender<Report>,
    pub(super) orders: NumberedReceiver,
    /// Generations below are dead, except published ones.
    pub(super) floor: u64,
    pub(super) published: BTreeSet<(u64, u64)>,
    /// By the first byte of extents: generations below may be read only.
    pub(super) sealed: BTreeMap<u64, u64>,
    /// Writes whose bytes have not landed.
    pub(super) writes: Vec<(AccessId, ExtentRef, u64)>,
    pub(super) stamps: Vec<u64>,
    pub(super) link: Option<Link>,
}

impl Node {
    pub(super) fn start(node: u32, number: u64, life: u64) -> Self {
        Self {
            agent: process(node, number),
            process: number,
            life,
            welcomed: false,
            reports: NumberedSender::new(),
            orders: NumberedReceiver::default(),
            floor: 0,
            published: BTreeSet::new(),
            sealed: BTreeMap::new(),
            writes: Vec::new(),
            stamps: vec![0; GRANULES as usize],
            link: None,
        }
    }

    /// What the gate of a node decides.
    pub(super) fn admits(&self, extent: &ExtentRef, access: Access) -> bool {
        let place = (extent.offset, extent.generation);
        let alive = extent.generation >= self.floor || self.published.contains(&place);
        let sealed = self.sealed.get(&extent.offset).copied().unwrap_or(0);
        alive && (access == Access::Read || extent.generation >= sealed.max(self.floor))
    }

    pub(super) fn begin(&mut self, extent: &ExtentRef, access: Access) -> Option<AccessId> {
        let admitted = self.admits(extent, access);
        admitted.then(|| self.agent.begin_access(*extent, access).ok())?
    }

    pub(super) fn take(&mut self, out: Vec<AgentOutput>) {
        for output in out {
            if let AgentOutput::Report(report) = output {
                self.reports.push(report);
            }
        }
    }

    /// Says what there is to be said, while there is a link on which it was welcomed.
    pub(super) fn speak(&mut self, now: Instant) {
        // Writes that are under way to what nobody published keep memory from being given out.
        let quiet = self.writes.is_empty();
        let mut out = Vec::new();
        while self.reports.has_room() && self.agent.announce(now, quiet, &mut out) {}
        self.take(out);
        if let Some(link) = self.link.as_mut().filter(|link| link.heard) {
            while let Some((first, reports)) = self.reports.take() {
                let taken = self.orders.taken();
                link.up.push_back(Up::Reports(taken, first, reports));
            }
        }
    }

    /// The bytes of a write are there.
    pub(super) fn land(&mut self, write: usize) {
        let (access, extent, stamp) = self.writes.remove(write);
        let first = (extent.offset / GRANULE) as usize;
        let count = (extent.bytes / GRANULE) as usize;
        self.stamps[first..first + count].fill(stamp);
        self.end_access(access);
    }

    pub(super) fn end_access(&mut self, access: AccessId) -> bool {
        let mut out = Vec::new();
        let live = self.agent.end_access(access, &mut out);
        self.take(out);
        live
    }
}

fn process(node: u32, process: u64) -> Agent {
    let mut agent = Agent::new(AgentConfig {
        outlives: true,
        announce_extents_max: 3,
        ..AgentConfig::new(NodeId(node))
    });
    agent.add_segment(MemorySegment {
        segment: memory(node),
        incarnation: Incarnation(process),
        bytes: GRANULES * GRANULE,
        granule: GRANULE,
    });
    agent
}
