use std::time::Duration;

use slackwater_engine::{
    Deadline, Engine, GrantSpec, Home, Local as Within, LocalRange, Memory, PeerId, Priority,
    Region, RegionSpec, Request, Staged, Submit, Target,
};
use slackwater_wait::{Site, Waiting};
use slackwater_wire::data::Rights;

use super::*;
use crate::{SoftwareDevice, StageLimits, Stager, Watch};

const CHUNK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

static SITE: Site = Site::new("staged test");

/// An engine with device memory and one with host memory, in one process.
struct Rig {
    near: Engine,
    stager: Arc<Stager>,
    region: Arc<Region>,
    target: Target,
    _far: Engine,
}

fn engine(movers: impl FnOnce(&Home) -> Vec<Arc<dyn Mover>>) -> Engine {
    let life = Home::open().unwrap();
    let segment = Segment {
        name: "test".to_owned(),
        incarnation: life.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host: None,
    };
    let movers = movers(&life);
    Engine::assemble(life, segment, movers)
}

fn rig() -> Rig {
    let far = engine(|home| vec![Arc::new(Within::new(home))]);
    let near = engine(|home| {
        vec![Arc::new(StagedMover::over(vec![Arc::new(Within::new(
            home,
        ))]))]
    });
    let device = Arc::new(SoftwareDevice::start(0).unwrap());
    let limits = StageLimits {
        chunk_bytes: CHUNK,
        pinned_bytes_max: 4 * CHUNK,
        watch: Watch::Callback,
    };
    let memory = device.allocate(16 * CHUNK).unwrap();
    let stager = Stager::start(device, limits).unwrap();
    // SAFETY: the region keeps the allocation.
    let staged = unsafe { stager.memory(memory.address(), 16 * CHUNK) }
        .unwrap()
        .kept_by(memory);
    let region = near
        .register(RegionSpec {
            memory: staged,
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    let there = Memory::anonymous(16 * CHUNK).unwrap();
    let there = far
        .register(RegionSpec {
            memory: there,
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    let capability = far
        .grant(there.id(), &GrantSpec::whole(&there, Rights::BOTH))
        .unwrap();
    let peer: PeerId = near.open(far.segment().clone());
    Rig {
        near,
        stager,
        region,
        target: Target {
            peer,
            offset: 0,
            capability,
            key: None,
        },
        _far: far,
    }
}

impl Rig {
    /// Borrows all host memory for requests of this process.
    fn hold(&self) -> Vec<Staged> {
        let access = self.region.access(0, CHUNK as u64).unwrap();
        let mut held = Vec::new();
        while held.len() < 2 {
            let (tell, told) = std::sync::mpsc::channel();
            let free = Box::new(move |_| tell.send(()).unwrap_or_default());
            match self
                .stager
                .lend(&access, CHUNK, slackwater_base::Instant::NEVER, free)
            {
                Some(staged) => held.push(staged),
                None => told.recv_timeout(PATIENCE).unwrap(),
            }
        }
        held
    }

    fn requests(&self, op: Op) -> Vec<Request> {
        let local = vec![LocalRange {
            region: self.region.id(),
            offset: 0,
            bytes: self.region.bytes(),
        }];
        vec![Request {
            op,
            local,
            target: self.target,
            timeout: None,
            priority: Priority::Normal,
        }]
    }

    fn over(&self, batch: &Batch) -> Option<Cause> {
        assert!(
            batch.watch(&Waiting::at(&SITE).until(now() + PATIENCE)),
            "a batch did not end"
        );
        assert_eq!(self.region.in_flight(), 0, "nothing of it holds the memory");
        batch.outcome(0).unwrap().cause
    }
}

/// Requests that waited for host memory, all of which a slow peer held, ended neither at their deadline nor when they
/// were cancelled, but when that peer was done.
#[test]
fn what_waits_for_host_memory_ends_when_it_is_late_or_cancelled() {
    let rig = rig();
    for op in [Op::Write, Op::Read] {
        let held = rig.hold();
        let late = Submit {
            timeout: Duration::from_millis(10),
            ..Submit::default()
        };
        let batch = rig.near.submit(rig.requests(op), &late);
        assert_eq!(
            rig.over(&batch),
            Some(Cause::TimedOut(Deadline::Total)),
            "{op:?}"
        );
        let batch = rig.near.submit(rig.requests(op), &Submit::default());
        batch.cancel();
        assert_eq!(rig.over(&batch), Some(Cause::Cancelled), "{op:?}");
        drop(held);
        let batch = rig.near.submit(rig.requests(op), &Submit::default());
        assert_eq!(rig.over(&batch), None, "{op:?}");
    }
}

#[test]
fn what_waits_for_host_memory_ends_with_the_engine() {
    let rig = rig();
    let _held = rig.hold();
    let batch = rig.near.submit(rig.requests(Op::Write), &Submit::default());
    rig.near.close();
    assert_eq!(rig.over(&batch), Some(Cause::Closed));
}
