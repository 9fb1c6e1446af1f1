//! The books of the arena are the gate of the region that the transfer engine serves.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use slackwater_memory::Mapping;
use slackwater_tier::arena::{Access, AccessId, Arena, MemorySegment, Stale};
use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::{
    Capability, CapabilityKey, Cause, Engine, EngineConfig, Extent, Gate, GateAccess, Grant, Home,
    Memory, PeerId, Refusal, Region, RegionSpec, Rights, Segment, Target,
};
use slackwater_wait::now;
use slackwater_wire::{ExtentRef, Incarnation, SegmentId};

const PATIENCE: Duration = Duration::from_secs(20);
const GRANULE: u64 = 4096;
const SEGMENT: SegmentId = SegmentId(3);

/// The books of one memory segment, for the peers of its node.
#[derive(Debug)]
struct ArenaGate {
    arena: Mutex<Arena>,
    incarnation: Incarnation,
    /// Extents whose fence waited for an access.
    fenced: Sender<ExtentRef>,
}

impl ArenaGate {
    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap()
    }

    fn extent_ref(&self, extent: Extent) -> ExtentRef {
        ExtentRef {
            segment: SEGMENT,
            incarnation: self.incarnation,
            offset: extent.offset,
            bytes: extent.bytes,
            generation: extent.generation,
        }
    }
}

impl Gate for ArenaGate {
    fn begin(&self, extent: Extent, _rights: Rights) -> Result<GateAccess, Refusal> {
        // Peers are counted as readers, of which there may be many: a write comes in several requests at a time, and a
        // process of the same host keeps its window behind it. That one peer alone writes an extent, and before all
        // reads, is the master's to see to, who grants it; a copy of this process's own into the extent excludes them.
        let begun = self.arena().begin(self.extent_ref(extent), Access::Read);
        begun
            .map(|AccessId(id)| GateAccess(id))
            .map_err(|stale| match stale {
                Stale::Segment { .. } => Refusal::Region,
                Stale::Incarnation { .. } => Refusal::Incarnation,
                Stale::Range { .. } => Refusal::Range,
                Stale::Generation { .. } => Refusal::Generation,
                Stale::Busy { .. } => Refusal::Limit,
            })
    }

    fn is_live(&self, access: GateAccess) -> bool {
        self.arena().is_live(AccessId(access.0))
    }

    fn end(&self, access: GateAccess) {
        let end = self.arena().end(AccessId(access.0));
        if let Some(extent) = end.fenced {
            let _ = self.fenced.send(extent);
        }
    }
}

/// What a node has: an engine with its arena registered.
struct Node {
    engine: Engine,
    region: Arc<Region>,
    gate: Arc<ArenaGate>,
    fenced: Receiver<ExtentRef>,
}

fn node() -> Node {
    let engine = EngineConfig::new("node").start().unwrap();
    let mapping = Arc::new(Mapping::shared(64 * GRANULE as usize).unwrap());
    let incarnation = engine.home().incarnation();
    let mut arena = Arena::new();
    arena.add(MemorySegment {
        segment: SEGMENT,
        incarnation,
        bytes: mapping.bytes() as u64,
        granule: GRANULE,
    });
    let (sender, fenced) = channel();
    let gate = Arc::new(ArenaGate {
        arena: Mutex::new(arena),
        incarnation,
        fenced: sender,
    });
    let spec = RegionSpec {
        memory: Memory::mapped(mapping),
        rights: Rights::BOTH,
        gate: Some(Arc::clone(&gate) as Arc<dyn Gate>),
    };
    let region = engine.register(spec).unwrap();
    Node {
        engine,
        region,
        gate,
        fenced,
    }
}

impl Node {
    /// What the master mints, who has been given the secret.
    fn mint(&self, extent: Extent, rights: Rights) -> Capability {
        CapabilityKey::new(&self.engine.home().capability_secret()).mint(&Grant {
            incarnation: self.engine.home().incarnation(),
            region: self.region.id().index(),
            generation: extent.generation,
            offset: extent.offset,
            bytes: extent.bytes,
            rights,
            tenant: 1,
            holder: Incarnation(0),
            expires_nanos: (now() + PATIENCE).as_nanos(),
            nonce: 0,
        })
    }

    fn fence(&self, extent: Extent) -> bool {
        let idle = self.gate.arena().fence(self.gate.extent_ref(extent));
        if !idle {
            self.engine.release_extent(self.region.id(), extent);
        }
        idle
    }
}

/// A client, which listens nowhere.
struct Client {
    engine: Engine,
    peer: PeerId,
}

impl Client {
    fn over_tcp(node: &Node) -> Self {
        let mut config = EngineConfig::new("client");
        (config.tcp.bind, config.force_tcp) = (Vec::new(), true);
        let engine = config.start().unwrap();
        assert!(engine.segment().addresses.is_empty());
        let peer = engine.open(node.engine.segment().clone());
        Self { engine, peer }
    }

    /// As from another process of the node's host.
    fn over_shared_memory(node: &Node) -> Self {
        let life = Home::open().unwrap();
        let mover = HostMover::start(&life, HostLimits::default(), None).unwrap();
        let segment = Segment {
            name: "client".to_owned(),
            incarnation: life.incarnation(),
            addresses: Vec::new(),
            public_key: None,
            host: None,
        };
        let engine = Engine::assemble(life, segment, vec![Arc::new(mover)]);
        let peer = engine.open(node.engine.segment().clone());
        Self { engine, peer }
    }

    fn target(&self, extent: Extent, capability: Capability) -> Target {
        Target {
            peer: self.peer,
            offset: extent.offset,
            capability,
            key: None,
        }
    }

    fn put(&self, node: &Node, extent: Extent, bytes: &[u8]) -> Result<(), Cause> {
        let target = self.target(extent, node.mint(extent, Rights::WRITE));
        self.engine.write_now(&target, bytes, PATIENCE)
    }

    fn get(&self, node: &Node, extent: Extent, bytes: usize) -> Result<Vec<u8>, Cause> {
        let target = self.target(extent, node.mint(extent, Rights::READ));
        let mut into = vec![0; bytes];
        self.engine.read_now(&target, &mut into, PATIENCE)?;
        Ok(into)
    }
}

#[test]
fn objects_are_put_and_got_by_capability_until_their_extents_are_fenced() {
    let node = node();
    let stale = |result| assert_eq!(result, Err(Cause::Refused(Refusal::Generation)));
    for (client, first) in [
        (Client::over_tcp(&node), 0),
        (Client::over_shared_memory(&node), 32),
    ] {
        let extent = |granule: u64, granules: u64, generation| Extent {
            offset: (first + granule) * GRANULE,
            bytes: granules * GRANULE,
            generation,
        };
        let (one, next) = (extent(0, 2, 5), extent(2, 1, 6));
        client.put(&node, one, &[1; 5000]).unwrap();
        client.put(&node, next, &[2; 4096]).unwrap();
        assert_eq!(client.get(&node, one, 5000).unwrap(), [1; 5000]);

        // Its end is told once the last access has ended, at once if there is none: a window may be open or not.
        if !node.fence(one) {
            let fenced = node.fenced.recv_timeout(PATIENCE).unwrap();
            assert_eq!(fenced, node.gate.extent_ref(one));
        }
        stale(client.put(&node, one, &[3; 5000]));
        stale(client.get(&node, one, 5000).map(drop));
        assert_eq!(client.get(&node, next, 4096).unwrap(), [2; 4096]);

        let reused = extent(0, 1, 7);
        client.put(&node, reused, &[4; 4096]).unwrap();
        assert_eq!(client.get(&node, reused, 4096).unwrap(), [4; 4096]);
        assert_eq!(client.get(&node, next, 4096).unwrap(), [2; 4096]);
    }
    let range = Extent {
        offset: 1,
        bytes: GRANULE,
        generation: 1,
    };
    let refused = Client::over_tcp(&node).put(&node, range, &[5; 16]);
    assert_eq!(refused, Err(Cause::Refused(Refusal::Range)));
}

#[test]
fn a_copy_of_the_node_s_own_excludes_peers() {
    let node = node();
    let client = Client::over_tcp(&node);
    let extent = Extent {
        offset: 0,
        bytes: GRANULE,
        generation: 1,
    };
    let filling = node
        .gate
        .arena()
        .begin(node.gate.extent_ref(extent), Access::Write)
        .unwrap();
    let busy = client.get(&node, extent, 16).map(drop);
    assert_eq!(busy, Err(Cause::Refused(Refusal::Limit)));
    let _ = node.gate.arena().end(filling);
    client.get(&node, extent, 16).unwrap();
}
