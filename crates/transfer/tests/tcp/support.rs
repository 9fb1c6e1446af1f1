use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater_transfer::{
    BatchError, Capability, Engine, GrantSpec, Home, LocalRange, Memory, Mover, Op, PeerId,
    Priority, Region, RegionSpec, Request, Rights, Segment, Submit, Target, Tcp, TcpConfig,
};

use slackwater_wait::{Site, Waiting};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A configuration for many small engines in one process.
pub(crate) fn config() -> TcpConfig {
    TcpConfig {
        io_threads: 2,
        ..TcpConfig::default()
    }
}

/// An engine that has TCP alone, so that nothing goes by another mover.
pub(crate) fn engine(name: &str, config: TcpConfig) -> Engine {
    engine_and_mover(name, config).0
}

/// The same, with its mover, whose counters a test reads.
pub(crate) fn engine_and_mover(name: &str, config: TcpConfig) -> (Engine, Arc<Tcp>) {
    let life = Home::open().unwrap();
    let public_key = config
        .seal
        .as_ref()
        .map(|seal| *seal.keys.public().as_bytes());
    let tcp = Arc::new(Tcp::start(&life, config).unwrap());
    let segment = Segment {
        name: name.to_owned(),
        incarnation: life.incarnation(),
        addresses: tcp.addresses().to_vec(),
        public_key,
        host: None,
    };
    let movers: Vec<Arc<dyn Mover>> = vec![tcp.clone()];
    (Engine::assemble(life, segment, movers), tcp)
}

pub(crate) fn counted(tcp: &Tcp, name: &str) -> u64 {
    tcp.metrics()
        .into_iter()
        .find(|(known, _)| *known == name)
        .unwrap()
        .1
}

pub(crate) fn region(engine: &Engine, bytes: usize) -> Arc<Region> {
    engine
        .register(RegionSpec {
            memory: Memory::anonymous(bytes).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap()
}

pub(crate) fn grant(engine: &Engine, region: &Region) -> Capability {
    engine
        .grant(region.id(), &GrantSpec::whole(region, Rights::BOTH))
        .unwrap()
}

pub(crate) fn fill(region: &Arc<Region>, seed: u64) {
    region
        .access(0, region.bytes())
        .unwrap()
        .copy_in(0, &pattern(seed, region.bytes() as usize));
}

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    slackwater_base::Rng::new(seed).fill(&mut out);
    out
}

pub(crate) fn bytes_of(region: &Arc<Region>, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region
        .access(offset, bytes as u64)
        .unwrap()
        .copy_out(0, &mut out);
    out
}

pub(crate) fn range(region: &Region, offset: u64, bytes: u64) -> LocalRange {
    LocalRange {
        region: region.id(),
        offset,
        bytes,
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

pub(crate) fn target(peer: PeerId, capability: Capability, offset: u64) -> Target {
    Target {
        peer,
        offset,
        capability,
        key: None,
    }
}

pub(crate) fn within(timeout: Duration) -> Submit {
    Submit {
        timeout,
        ..Submit::default()
    }
}

/// Waits for a fact, up to 20 seconds.
pub(crate) fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < 20 * SECOND, "not within 20 s: {what}");
        std::thread::yield_now();
    }
}

/// Carries one request twice: driven by this thread, and as a batch by the loops.
pub(crate) fn both_ways(
    engine: &Engine,
    request: &Request,
    timeout: Duration,
) -> [Result<(), BatchError>; 2] {
    static SITE: Site = Site::new("test");
    let alone = engine.transfer(vec![request.clone()], &within(timeout));
    let batch = engine.submit(vec![request.clone()], &within(timeout));
    [alone, batch.wait(&Waiting::at(&SITE))]
}
