use slackwater_base::Set;
use slackwater_wire::{NodeId, ReplicaAt, SegmentId};

/// Which replica a reader tries first.
pub trait Pick: Send {
    /// Puts the replicas of one object, which are in the master's order, in the order in which they are tried.
    fn order(&self, replicas: &mut [ReplicaAt]);
}

/// How far the memory of a node is from a reader; the nearer ones come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// In the process of the reader.
    Process,
    /// In another process of its host.
    Host,
    /// On another host, or on one that is not known.
    #[default]
    Network,
}

/// Memory before SSD, and replicas of this process before others.
#[derive(Clone, Debug, Default)]
pub struct LocalFirst {
    /// Memory segments of this process.
    pub segments: Set<SegmentId>,
    /// The node in this process.
    pub node: Option<NodeId>,
}

impl Pick for LocalFirst {
    fn order(&self, replicas: &mut [ReplicaAt]) {
        replicas.sort_by_key(|replica| match replica {
            ReplicaAt::Memory(extent) if self.segments.contains(&extent.segment) => 0,
            ReplicaAt::Memory(_) => 1,
            ReplicaAt::Disk { node, .. } if self.node == Some(*node) => 2,
            ReplicaAt::Disk { .. } => 3,
        });
    }
}

/// The replicas in the order in which they are tried.
pub(crate) fn order(pick: &dyn Pick, replicas: &[ReplicaAt]) -> Vec<ReplicaAt> {
    let mut replicas = replicas.to_vec();
    pick.order(&mut replicas);
    replicas
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{ExtentRef, Incarnation};

    use super::*;

    #[test]
    fn own_memory_then_memory_then_own_disk_then_disk() {
        let memory = |segment| {
            let (segment, incarnation) = (SegmentId(segment), Incarnation(1));
            ReplicaAt::Memory(ExtentRef {
                segment,
                incarnation,
                offset: 0,
                bytes: 4096,
                generation: 1,
            })
        };
        let disk = |node| ReplicaAt::Disk {
            node: NodeId(node),
            segment: SegmentId(100 + node),
        };
        let mut pick = LocalFirst {
            node: Some(NodeId(2)),
            ..LocalFirst::default()
        };
        pick.segments.insert(SegmentId(7));
        let ordered = order(&pick, &[disk(1), disk(2), memory(3), memory(7), memory(4)]);
        assert_eq!(ordered, [memory(7), memory(3), memory(4), disk(2), disk(1)]);
    }
}
