//! The two ends of a measured engine, each in a process of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use slackwater_base::Instant;
use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::stage::{Device, SoftwareDevice, StageLimits, Stager};
use slackwater_transfer::{
    Batch, Capability, Engine, EngineConfig, Gate, GrantSpec, Home, LocalRange, Memory, Mover, Op,
    Priority, Region, RegionKey, RegionSpec, Request, Rights, Segment, Submit, Target, TcpConfig,
};
use slackwater_wait::{Choice, Site, Waiting, now};
use zerocopy::{FromBytes, IntoBytes};

use super::objects::{self, Aim, AllLive, Grants, Objects};
use super::{BenchError, Carrier, Direction, Place, latencies, raw, wrapped};
use crate::process::{descriptor_limit, orders, pin, resident_bytes, tell};

/// An engine and one region of it; the engine closes when this is dropped.
pub(super) struct End {
    engine: Engine,
    region: Arc<Region>,
}

/// What a target sends to its initiator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Contact {
    segment: Segment,
    capability: Vec<u8>,
    key: Option<u64>,
}

/// What an end is made of, as words of a child: what carries the bytes, where the memory is, how much of it, and the event loops, or
/// `any` for what a user has.
pub(super) struct Words<'a>(
    pub(super) &'a str,
    pub(super) &'a str,
    pub(super) &'a str,
    pub(super) &'a str,
);

/// One kind of load.
#[derive(Clone, Copy)]
struct Load {
    op: Op,
    block: usize,
    concurrency: usize,
    batch: usize,
}

/// No request of a measurement takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the requests of a batch are given whose peer will be killed, and how late the last may be over.
const FLOOD_TIMEOUT: Duration = Duration::from_secs(1);
const FLOOD_GRACE: Duration = Duration::from_secs(10);

/// Blocks of the batch in the middle of which a process is killed: 1 GiB.
const FLOOD: usize = 1024;

#[cfg(not(feature = "gpu"))]
const NO_GPU: &str = "cuda: this program was built without the feature `gpu`";

static SITE: Site = Site::new("bench transfer");

impl End {
    fn new(&Words(carrier, place, bytes, loops): &Words<'_>) -> Result<Self, BenchError> {
        descriptor_limit();
        let bytes = number(bytes)?;
        let loops = (loops != "any").then(|| number(loops)).transpose()?;
        let arguments = |_| BenchError::Arguments(vec![carrier.to_owned(), place.to_owned()]);
        let (carrier, place): (Carrier, Place) = (
            carrier.parse().map_err(arguments)?,
            place.parse().map_err(arguments)?,
        );
        let engine = engine(carrier, |config| with_loops(config, loops))?;
        Self::over(engine, memory(carrier, place, bytes)?, None)
    }

    /// Of host memory that is lent object by object.
    fn lending(&Words(carrier, _, bytes, _): &Words<'_>) -> Result<Self, BenchError> {
        descriptor_limit();
        let bytes = number(bytes)?;
        let carrier = carrier.parse().map_err(BenchError::Options)?;
        let memory = memory(carrier, Place::Cpu, bytes)?;
        let gate = AllLive::over(bytes)?;
        Self::over(engine(carrier, |config| config)?, memory, Some(gate))
    }

    /// With this memory, every page of it touched if it is the host's.
    pub(super) fn over(
        engine: Engine,
        memory: Memory,
        gate: Option<Arc<dyn Gate>>,
    ) -> Result<Self, BenchError> {
        let is_host = memory.location().is_host();
        let region = engine.register(RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate,
        });
        let region = region.map_err(|error| BenchError::Engine(error.into()))?;
        if is_host {
            touch(&region, 1)?;
        }
        Ok(Self { engine, region })
    }

    /// What an initiator needs of it.
    pub(super) fn contact(&self) -> Result<Contact, BenchError> {
        Contact::of(&self.engine, &self.region)
    }

    /// This many blocks of local memory from `at` of an endless row of them, and those that they are aimed at.
    fn requests(&self, load: Load, at: usize, aim: Aim<'_>) -> Vec<Request> {
        let bytes = self.region.bytes() as usize;
        let request = |index: usize| {
            let offset = wrapped((at + index) * load.block, load.block, bytes) as u64;
            let target = aim.target(at + index, load.block, bytes);
            Request {
                op: load.op,
                local: vec![LocalRange {
                    region: self.region.id(),
                    offset,
                    bytes: load.block as u64,
                }],
                target,
                timeout: None,
                priority: Priority::Normal,
            }
        };
        (0..load.batch).map(request).collect()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.engine.close();
    }
}

/// So many event loops, and a connection for each, instead of what a user has.
pub(super) fn with_loops(config: TcpConfig, loops: Option<usize>) -> TcpConfig {
    TcpConfig {
        io_threads: loops.unwrap_or(config.io_threads),
        lanes_per_peer: config.lanes_per_peer.max(loops.unwrap_or(0)),
        ..config
    }
}

/// An engine with the one mover that is measured; of TCP, the environment may set what a user's may.
pub(super) fn engine(
    carrier: Carrier,
    tuned: impl Fn(TcpConfig) -> TcpConfig,
) -> Result<Engine, BenchError> {
    let system = |error: &dyn std::fmt::Display| BenchError::Transfer(error.to_string());
    let name = format!("bench-{}", std::process::id());
    if matches!(carrier, Carrier::Tcp | Carrier::Gpu) {
        let vars = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let config = EngineConfig::from_env(&name, vars).map_err(|wrong| {
            let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            BenchError::Options(wrong.join("; "))
        })?;
        return Ok(EngineConfig {
            tcp: tuned(config.tcp),
            force_tcp: true,
            ..config
        }
        .start()?);
    }
    let life = Home::open().map_err(|error| system(&error))?;
    let host =
        HostMover::start(&life, HostLimits::default(), None).map_err(|error| system(&error))?;
    let segment = Segment {
        name,
        incarnation: life.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host: Some(host.contact()),
    };
    // Without any other mover: what it cannot carry is an error here, not a slower row.
    let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(host)];
    Ok(Engine::assemble(life, segment, movers))
}

pub(super) fn memory(carrier: Carrier, place: Place, bytes: usize) -> Result<Memory, BenchError> {
    let system = BenchError::io("take memory");
    match place {
        Place::Cpu if carrier == Carrier::Shm => Ok(Memory::shared(bytes).map_err(system)?),
        Place::Cpu => Memory::anonymous(bytes).map_err(system),
        Place::Software => {
            let device = Arc::new(SoftwareDevice::start(0).map_err(|error| no_device(&error))?);
            let memory = device.allocate(bytes).map_err(|error| no_device(&error))?;
            staged(device, memory.address(), bytes).map(|staged| staged.kept_by(memory))
        }
        Place::Cuda => cuda(bytes),
    }
}

/// Whether this machine and this program have a CUDA device; if not, why.
pub(super) fn cuda_is_there() -> Result<(), BenchError> {
    #[cfg(feature = "gpu")]
    let found = slackwater_transfer::stage::CudaDevice::open(0)
        .map(drop)
        .map_err(|error| error.to_string());
    #[cfg(not(feature = "gpu"))]
    let found = Err(NO_GPU.to_owned());
    found.map_err(|error| {
        BenchError::Device(format!(
            "{error}; --device software stands for one, to see that it works and not how fast"
        ))
    })
}

#[cfg(feature = "gpu")]
fn cuda(bytes: usize) -> Result<Memory, BenchError> {
    let device = Arc::new(
        slackwater_transfer::stage::CudaDevice::open(0).map_err(|error| no_device(&error))?,
    );
    let memory = device.allocate(bytes).map_err(|error| no_device(&error))?;
    staged(device, memory.address(), bytes).map(|staged| staged.kept_by(memory))
}

#[cfg(not(feature = "gpu"))]
fn cuda(_: usize) -> Result<Memory, BenchError> {
    Err(no_device(&NO_GPU))
}

/// The caller keeps the memory allocated as long as what this gives.
fn staged(device: Arc<dyn Device>, address: u64, bytes: usize) -> Result<Memory, BenchError> {
    let stager =
        Stager::start(device, StageLimits::default()).map_err(|error| no_device(&error))?;
    // SAFETY: the region will keep the memory, and only measured transfers touch it.
    unsafe { stager.memory(address, bytes) }.map_err(|error| no_device(&error))
}

fn no_device(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::Device(error.to_string())
}

/// Writes every page, each with other bytes.
fn touch(region: &Arc<Region>, seed: usize) -> Result<(), BenchError> {
    const PAGE: usize = 4096;
    let access = region
        .access(0, region.bytes())
        .map_err(|error| BenchError::Transfer(error.to_string()))?;
    let bytes = region.bytes() as usize;
    let mut page = [0; PAGE];
    for at in (0..bytes).step_by(PAGE) {
        let number = (at / PAGE * 31 + seed) as u64;
        page[..8].copy_from_slice(&number.to_le_bytes());
        access.copy_in(at as u64, &page[..PAGE.min(bytes - at)]);
    }
    Ok(())
}

/// The target: memory that other processes may reach. It prints its state when asked.
pub(super) fn serve(words: &Words<'_>, lends: bool) -> Result<(), BenchError> {
    let end = match lends {
        true => End::lending(words)?,
        false => End::new(words)?,
    };
    let contact = end.contact()?;
    tell(&format!(
        "serving {}",
        serde_json::to_string(&contact).expect("plain fields are always JSON")
    ))?;
    for order in orders() {
        match order.first().map(String::as_str) {
            Some("state") => tell_state(&end)?,
            Some("grant") => {
                let block = order.get(1).map_or("", String::as_str);
                let granted = objects::grant(&end.engine, &end.region, number(block)?);
                tell(&format!("granted {granted}"))?;
            }
            _ if pin(&order)?.is_some() => {}
            _ => return Err(BenchError::Arguments(order)),
        }
    }
    Ok(())
}

/// The initiator: opens a target, then moves blocks as it is told.
pub(super) fn initiate(words: &Words<'_>, wait: &str) -> Result<(), BenchError> {
    let choice: Choice = wait.parse()?;
    slackwater_wait::install(choice.strategy(), None);
    let end = End::new(words)?;
    let mut open: Option<Target> = None;
    let mut named: Option<Objects> = None;
    tell("ready")?;
    let mut orders = orders();
    while let Some(order) = orders.next() {
        let said: Vec<&str> = order.iter().map(String::as_str).collect();
        match (&said[..], open) {
            (["open", contact], previous) => {
                if let Some(previous) = previous {
                    end.engine.forget(previous.peer);
                }
                let contact: Contact = serde_json::from_str(contact)
                    .map_err(|error| BenchError::Transfer(error.to_string()))?;
                let target = contact.open(&end.engine)?;
                check(&end, target, words.1 == Place::Cpu.name())?;
                open = Some(target);
                tell("opened")?;
            }
            (["objects", stride, capabilities], Some(target)) => {
                named = Some(Objects::of(target, stride, capabilities)?);
                tell("named")?;
            }
            (["run", what, op, block, concurrency, batch, millis], Some(target)) => {
                let aim = match (*what, &named) {
                    ("memory", _) => Aim::Memory(target),
                    ("one", Some(objects)) => Aim::Objects(objects, Grants::One),
                    ("each", Some(objects)) => Aim::Objects(objects, Grants::Each),
                    _ => return Err(BenchError::Arguments(order)),
                };
                let load = Load {
                    op: op
                        .parse::<Direction>()
                        .map_err(|_| BenchError::Arguments(order.clone()))?
                        .op(),
                    block: number(block)?,
                    concurrency: number(concurrency)?,
                    batch: number(batch)?,
                };
                let length = Duration::from_millis(number(millis)? as u64);
                // What is learned, connected and mapped on first use is not of the run.
                drive(&end, aim, load, length / 4)?;
                tell("begun")?;
                // The parent looks at the clocks of both processes meanwhile.
                orders.next();
                drive(&end, aim, load, length)?.tell()?;
            }
            (["flood", op], Some(target)) => {
                let op = op
                    .parse::<Direction>()
                    .map_err(|_| BenchError::Arguments(order.clone()))?
                    .op();
                flood(&end, target, op)?;
            }
            (["state"], _) => tell_state(&end)?,
            _ if pin(&order)?.is_some() => {}
            _ => return Err(BenchError::Arguments(order)),
        }
    }
    Ok(())
}

impl Contact {
    /// All of a region, for anyone.
    pub(super) fn of(engine: &Engine, region: &Region) -> Result<Self, BenchError> {
        let capability = match region.is_gated() {
            true => objects::mint(engine.home(), region, (0, region.bytes()), Rights::BOTH),
            false => engine.grant(region.id(), &GrantSpec::whole(region, Rights::BOTH))?,
        };
        Ok(Self {
            segment: engine.segment().clone(),
            capability: capability.as_bytes().to_vec(),
            key: engine
                .region_keys(region.id())
                .first()
                .map(|(_, key)| key.0),
        })
    }

    /// Where the target that said this listens.
    pub(super) fn address(said: &str) -> Result<SocketAddr, BenchError> {
        let contact: Result<Self, _> = serde_json::from_str(said);
        let contact = contact.map_err(|error| BenchError::Transfer(error.to_string()))?;
        let none = || BenchError::Transfer("a target that listens nowhere".into());
        contact.segment.addresses.first().copied().ok_or_else(none)
    }

    pub(super) fn open(self, engine: &Engine) -> Result<Target, BenchError> {
        let capability = Capability::read_from_bytes(&self.capability);
        let capability = capability.map_err(|error| BenchError::Transfer(error.to_string()))?;
        Ok(Target {
            peer: engine.open(self.segment),
            offset: 0,
            capability,
            key: self.key.map(RegionKey),
        })
    }
}

/// A fast copy of other bytes would look good: what was written has to come back.
fn check(end: &End, target: Target, host: bool) -> Result<(), BenchError> {
    let block = raw::MESSAGE.min(end.region.bytes() as usize / 2);
    let load = Load {
        op: Op::Write,
        block,
        concurrency: 1,
        batch: 1,
    };
    let move_one = |op, local: u64| {
        let mut requests = end.requests(Load { op, ..load }, 0, Aim::Memory(target));
        requests[0].local[0].offset = local;
        let moved = end.engine.transfer(
            requests,
            &Submit {
                timeout: TIMEOUT,
                ..Submit::default()
            },
        );
        moved.map_err(|error| BenchError::Transfer(error.to_string()))
    };
    move_one(Op::Write, 0)?;
    move_one(Op::Read, block as u64)?;
    if !host {
        return Ok(());
    }
    let whole = end
        .region
        .access(0, 2 * block as u64)
        .map_err(|error| BenchError::Transfer(error.to_string()))?;
    let (mut sent, mut received) = (vec![0; block], vec![0; block]);
    whole.copy_out(0, &mut sent);
    whole.copy_out(block as u64, &mut received);
    if sent != received {
        return Err(BenchError::Transfer(
            "what was written did not come back".into(),
        ));
    }
    // Its own bytes again, so that the next check sees a difference.
    whole.copy_in(block as u64, &vec![0xA5; block]);
    Ok(())
}

/// What a run moved.
struct Moved {
    bytes: u64,
    seconds: f64,
    times: Histogram<u64>,
}

impl Moved {
    fn tell(&self) -> Result<(), BenchError> {
        let at = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        let Self {
            bytes,
            seconds,
            times,
        } = self;
        Ok(tell(&format!(
            "ran {bytes} {seconds} {} {} {}",
            at(0.5),
            at(0.99),
            times.mean() / 1e3
        ))?)
    }
}

/// Every thread has one batch under way, for `length`; the last ones count in full.
fn drive(end: &End, aim: Aim<'_>, load: Load, length: Duration) -> Result<Moved, BenchError> {
    let (together, failed) = (Barrier::new(load.concurrency), AtomicBool::new(false));
    let worker = |worker| {
        together.wait();
        let moved = work(end, aim, load, worker, (length, &failed));
        if moved.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        moved
    };
    let (mut bytes, mut times) = (0, latencies());
    // By the workers' own clocks: this thread may get a CPU long after they did.
    let (mut first, mut last) = (Instant::NEVER, Instant::ZERO);
    std::thread::scope(|scope| {
        let worker = &worker;
        let workers: Vec<_> = (0..load.concurrency)
            .map(|number| scope.spawn(move || worker(number)))
            .collect();
        for worker in workers {
            let worked = worker.join().expect("a worker only moves and counts")?;
            bytes += worked.batches * (load.batch * load.block) as u64;
            times.add(worked.times).expect("all have the same bounds");
            (first, last) = (first.min(worked.began), last.max(worked.ended));
        }
        Ok::<(), BenchError>(())
    })?;
    Ok(Moved {
        bytes,
        seconds: last.since(first).as_secs_f64(),
        times,
    })
}

/// What one thread moved.
struct Worked {
    batches: u64,
    times: Histogram<u64>,
    began: Instant,
    ended: Instant,
}

fn work(
    end: &End,
    aim: Aim<'_>,
    load: Load,
    worker: usize,
    (length, failed): (Duration, &AtomicBool),
) -> Result<Worked, BenchError> {
    let began = now();
    let submit = Submit {
        timeout: TIMEOUT,
        ..Submit::default()
    };
    let (mut times, mut batches, mut at) = (latencies(), 0, worker * 7919 * load.batch);
    loop {
        let asked = now();
        let requests = end.requests(load, at, aim);
        end.engine
            .transfer(requests, &submit)
            .map_err(|error| BenchError::Transfer(error.to_string()))?;
        let ended = now();
        times.saturating_record(ended.since(asked).as_nanos() as u64);
        batches += 1;
        // Every thread walks through all of the memory, so that none finds its own blocks in a cache.
        at += load.batch;
        if ended.since(began) >= length || failed.load(Ordering::Relaxed) {
            return Ok(Worked {
                batches,
                times,
                began,
                ended,
            });
        }
    }
}

/// Submits 1 GiB, says so, and prints the outcomes of the requests by cause.
fn flood(end: &End, target: Target, op: Op) -> Result<(), BenchError> {
    let load = Load {
        op,
        block: raw::MESSAGE,
        concurrency: 1,
        batch: FLOOD,
    };
    let began = now();
    let requests = end.requests(load, 0, Aim::Memory(target));
    let batch = std::thread::scope(|scope| {
        // It may wait for room in a queue.
        let submitted = scope.spawn(|| {
            end.engine.submit(
                requests,
                &Submit {
                    timeout: FLOOD_TIMEOUT,
                    ..Submit::default()
                },
            )
        });
        tell("flooding")?;
        Ok::<Batch, BenchError>(submitted.join().expect("submitting does not panic"))
    })?;
    if !batch.watch(&Waiting::at(&SITE).until(began + FLOOD_TIMEOUT + FLOOD_GRACE)) {
        let left = batch.remaining();
        return Err(BenchError::Transfer(format!(
            "{left} of {FLOOD} requests were not over {FLOOD_GRACE:?} after their deadline"
        )));
    }
    let causes = causes(&batch);
    let completed = batch.len() as u32 - causes.values().sum::<u32>();
    let causes = serde_json::to_string(&causes).expect("texts and numbers are always JSON");
    Ok(tell(&format!(
        "flooded {completed} {} {causes}",
        now().since(began).as_secs_f64()
    ))?)
}

/// How many requests of a batch that is over ended by which kind of cause; complete ones by none.
pub(super) fn causes(batch: &Batch) -> BTreeMap<String, u32> {
    let mut causes = BTreeMap::new();
    for cause in (0..batch.len()).filter_map(|request| batch.outcome(request)?.cause) {
        // The name of the variant.
        let text = format!("{cause:?}");
        let kind = text
            .split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or_default();
        *causes.entry(kind.to_owned()).or_default() += 1;
    }
    causes
}

/// What a leak would show in: descriptors, mappings, resident memory, threads, accesses under way.
fn tell_state(end: &End) -> Result<(), BenchError> {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps")
        .unwrap_or_default()
        .lines()
        .count();
    let (files, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    Ok(tell(&format!(
        "state {files} {maps} {} {threads} {}",
        resident_bytes(),
        end.region.in_flight()
    ))?)
}

impl Direction {
    const fn op(self) -> Op {
        match self {
            Self::Read => Op::Read,
            Self::Write => Op::Write,
        }
    }
}

pub(super) fn number(text: &str) -> Result<usize, BenchError> {
    text.parse()
        .map_err(|_| BenchError::Arguments(vec![text.to_owned()]))
}
