//! Two engines and the memory between them, over one kind of mover.

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Rng;
use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::{
    Batch, Engine, GrantSpec, Home, HomeGuard, HostContact, LocalRange, Memory, Mover, Op, PeerId,
    Priority, Region, RegionSpec, Request, Rights, Segment, Submit, Target,
};
use slackwater_wait::{Site, Waiting, now};

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

static SITE: Site = Site::new("conformance");

/// One end of a mover under test.
pub(crate) struct End {
    pub(crate) engine: Engine,
    pub(crate) make: fn(usize) -> StagingTurn,
}

/// Two ends: the near one initiates.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) near: End,
    pub(crate) far: End,
    pub(crate) peer: PeerId,
}

/// Memory of one end, and how to look at it.
pub(crate) struct StagingTurn {
    memory: Memory,
    look: Option<Box<dyn Look>>,
}

/// Memory that the processor does not reach.
pub(crate) trait Look: Send + Sync {
    fn load(&self) -> Vec<u8>;
    fn store(&self, bytes: &[u8]);
}

impl StagingTurn {
    pub(crate) fn looked_at(memory: Memory, look: Box<dyn Look>) -> Self {
        Self {
            memory,
            look: Some(look),
        }
    }
}

/// A registered place.
pub(crate) struct Field {
    pub(crate) region: Arc<Region>,
    look: Option<Box<dyn Look>>,
}

pub(crate) fn anonymous(bytes: usize) -> StagingTurn {
    StagingTurn {
        memory: Memory::anonymous(bytes).unwrap(),
        look: None,
    }
}

pub(crate) fn shared(bytes: usize) -> StagingTurn {
    StagingTurn {
        memory: Memory::shared(bytes).unwrap(),
        look: None,
    }
}

pub(crate) fn segment(name: &str, life: &HomeGuard, host: Option<HostContact>) -> Segment {
    Segment {
        name: name.to_owned(),
        incarnation: life.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host,
    }
}

pub(crate) fn host_engine(name: &str, limits: HostLimits) -> (Engine, Arc<HostMover>) {
    let life = Home::open().unwrap();
    let mover = Arc::new(HostMover::start(&life, limits, None).unwrap());
    let segment = segment(name, &life, Some(mover.contact()));
    (
        Engine::assemble(life, segment, vec![Arc::clone(&mover) as Arc<dyn Mover>]),
        mover,
    )
}

pub(crate) fn host_end(name: &str, make: fn(usize) -> StagingTurn) -> End {
    // Copies of every size take the same way as in production: some on the caller's thread, some handed over.
    End {
        engine: host_engine(
            name,
            HostLimits {
                inline_bytes_max: 4096,
                ..HostLimits::default()
            },
        )
        .0,
        make,
    }
}

impl World {
    pub(crate) fn new(name: &'static str, near: End, far: End) -> Self {
        let peer = near.engine.open(far.engine.segment().clone());
        Self {
            name,
            near,
            far,
            peer,
        }
    }

    /// Everything of a far region, for anyone.
    pub(crate) fn target(&self, field: &Field) -> Target {
        self.target_with(field, Rights::BOTH)
    }

    pub(crate) fn target_with(&self, field: &Field, rights: Rights) -> Target {
        let capability = self
            .far
            .engine
            .grant(field.region.id(), &GrantSpec::whole(&field.region, rights))
            .unwrap();
        let keys = self.far.engine.region_keys(field.region.id());
        Target {
            peer: self.peer,
            offset: 0,
            capability,
            key: keys.first().map(|(_, key)| *key),
        }
    }
}

impl End {
    pub(crate) fn field(&self, bytes: usize) -> Field {
        let StagingTurn { memory, look } = (self.make)(bytes);
        Field {
            region: self
                .engine
                .register(RegionSpec {
                    memory,
                    rights: Rights::BOTH,
                    gate: None,
                })
                .unwrap(),
            look,
        }
    }

    pub(crate) fn filled(&self, bytes: &[u8]) -> Field {
        let field = self.field(bytes.len());
        field.store(bytes);
        field
    }
}

impl Field {
    pub(crate) fn store(&self, bytes: &[u8]) {
        match &self.look {
            Some(look) => look.store(bytes),
            None => self
                .region
                .access(0, bytes.len() as u64)
                .unwrap()
                .copy_in(0, bytes),
        }
    }

    pub(crate) fn load(&self) -> Vec<u8> {
        if let Some(look) = &self.look {
            return look.load();
        }
        let mut bytes = vec![0; self.region.bytes() as usize];
        self.region
            .access(0, self.region.bytes())
            .unwrap()
            .copy_out(0, &mut bytes);
        bytes
    }

    pub(crate) fn range(&self, offset: usize, bytes: usize) -> LocalRange {
        LocalRange {
            region: self.region.id(),
            offset: offset as u64,
            bytes: bytes as u64,
        }
    }
}

pub(crate) fn request(op: Op, local: Vec<LocalRange>, target: Target) -> Request {
    Request {
        op,
        local,
        target,
        timeout: None,
        priority: Priority::Normal,
    }
}

pub(crate) fn at(target: Target, offset: usize) -> Target {
    Target {
        offset: offset as u64,
        ..target
    }
}

pub(crate) fn submit() -> Submit {
    Submit {
        timeout: PATIENCE,
        ..Submit::default()
    }
}

/// Waits for a batch; a test that has to wait longer has found a hang.
pub(crate) fn over(world: &str, batch: &Batch) {
    assert!(
        batch.watch(&Waiting::at(&SITE).until(now() + PATIENCE)),
        "{world}: a batch did not end"
    );
}

pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        noise.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}
