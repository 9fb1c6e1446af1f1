//! The processes of the trials: many engines with nothing to do, one that holds connections to all of them, and one
//! that sends transfers to addresses where no process answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slackwater_transfer::{
    Engine, GrantSpec, LocalRange, Memory, Op, Priority, Region, RegionSpec, Request, Rights,
    Segment, Submit, Target, TcpConfig,
};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::Incarnation;

use super::ends::{Contact, causes, engine, number};
use super::{BenchError, Carrier};
use crate::process::{descriptor_limit, orders, resident_bytes, tell};

/// Bytes of a region, and of a transfer, in these trials.
const REGION: usize = 64 << 10;
const TRANSFER: u64 = 4096;

/// Connections to one engine.
pub(super) const LANES: usize = 16;

/// How long opening all connections may take.
const CONNECTING: Duration = Duration::from_secs(30);

static SITE: Site = Site::new("bench transfer trials");

/// Engines that only answer, each with one thread.
pub(super) fn serve(count: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let mut engines = Vec::new();
    let mut contacts = Vec::new();
    for _ in 0..number(count)? {
        let engine = engine(Carrier::Tcp, |config| TcpConfig {
            io_threads: 1,
            ..config
        })?;
        let region = region(&engine)?;
        contacts.push(Contact::of(&engine, &region)?);
        engines.push((engine, region));
    }
    tell(&format!(
        "serving {}",
        serde_json::to_string(&contacts).expect("plain fields are always JSON")
    ))?;
    orders().for_each(drop);
    Ok(())
}

/// Opens as many connections as are wanted, by using them, and then does nothing.
pub(super) fn hold() -> Result<(), BenchError> {
    descriptor_limit();
    let many = |config| TcpConfig {
        bind: Vec::new(),
        lanes_per_peer: LANES,
        max_transfers: 4096,
        ..config
    };
    let engine = engine(Carrier::Tcp, many)?;
    let region = region(&engine)?;
    let own = sockets();
    tell("ready")?;
    for order in orders() {
        let [word, contacts, wanted] = &order[..] else {
            return Err(BenchError::Arguments(order));
        };
        if word != "connect" {
            return Err(BenchError::Arguments(order));
        }
        let contacts: Vec<Contact> = serde_json::from_str(contacts)
            .map_err(|error| BenchError::Transfer(error.to_string()))?;
        let targets: Vec<Target> = contacts
            .into_iter()
            .map(|contact| contact.open(&engine))
            .collect::<Result<_, _>>()?;
        let wanted = number(wanted)? as u64;
        let until = now() + CONNECTING;
        while sockets() - own < wanted && now() < until {
            for target in &targets {
                let requests = (0..4 * LANES).map(|_| request(&region, *target)).collect();
                let moved = engine.transfer(
                    requests,
                    &Submit {
                        timeout: CONNECTING,
                        ..Submit::default()
                    },
                );
                moved.map_err(|error| BenchError::Transfer(error.to_string()))?;
            }
        }
        tell(&format!("connected {}", sockets() - own))?;
    }
    Ok(())
}

/// Sends transfers to an address where no process answers, and prints their outcomes and what they cost.
pub(super) fn despair(address: &str, count: &str, timeout_ms: &str) -> Result<(), BenchError> {
    descriptor_limit();
    let engine = engine(Carrier::Tcp, |config| TcpConfig {
        bind: Vec::new(),
        ..config
    })?;
    let region = region(&engine)?;
    let address: SocketAddr = address
        .parse()
        .map_err(|_| BenchError::Arguments(vec![address.to_owned()]))?;
    let nobody = Segment {
        name: "nobody".into(),
        incarnation: Incarnation(1),
        addresses: vec![address],
        ..own(&engine)
    };
    let timeout = Duration::from_millis(number(timeout_ms)? as u64);
    // Nobody will ever look at it.
    let capability = engine.grant(region.id(), &GrantSpec::whole(&region, Rights::BOTH))?;
    let target = Target {
        peer: engine.open(nobody),
        offset: 0,
        capability,
        key: None,
    };
    let requests: Vec<Request> = (0..number(count)?)
        .map(|_| request(&region, target))
        .collect();
    let (open, resident) = (sockets(), resident_bytes());
    let watch = Arc::new(Watch::default());
    let watching = std::thread::spawn({
        let watch = Arc::clone(&watch);
        move || watch.run()
    });
    let began = now();
    let batch = engine.submit(
        requests,
        &Submit {
            timeout,
            ..Submit::default()
        },
    );
    let over = batch.watch(&Waiting::at(&SITE).until(began + 10 * timeout));
    let seconds = now().since(began).as_secs_f64();
    watch.over.store(true, Ordering::Release);
    watching.join().expect("it only looks");
    if !over {
        let left = batch.remaining();
        return Err(BenchError::Transfer(format!(
            "{left} transfers were not over after {seconds:.0} s"
        )));
    }
    let growth = watch
        .resident
        .load(Ordering::Acquire)
        .saturating_sub(resident);
    let most = watch.sockets.load(Ordering::Acquire).saturating_sub(open);
    let causes = serde_json::to_string(&causes(&batch)).expect("texts and numbers are always JSON");
    Ok(tell(&format!(
        "despaired {seconds} {growth} {most} {causes}"
    ))?)
}

/// The most that was in use while it looked.
#[derive(Default)]
struct Watch {
    over: AtomicBool,
    resident: AtomicU64,
    sockets: AtomicU64,
}

impl Watch {
    fn run(&self) {
        while !self.over.load(Ordering::Acquire) {
            self.resident.fetch_max(resident_bytes(), Ordering::AcqRel);
            self.sockets.fetch_max(sockets(), Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn own(engine: &Engine) -> Segment {
    engine.segment().clone()
}

fn region(engine: &Engine) -> Result<Arc<Region>, BenchError> {
    let memory = Memory::anonymous(REGION).map_err(BenchError::io("take memory"))?;
    let region = engine.register(RegionSpec {
        memory,
        rights: Rights::BOTH,
        gate: None,
    });
    region.map_err(|error| BenchError::Engine(error.into()))
}

fn request(region: &Region, target: Target) -> Request {
    let local = vec![LocalRange {
        region: region.id(),
        offset: 0,
        bytes: TRANSFER,
    }];
    Request {
        op: Op::Read,
        local,
        target,
        timeout: None,
        priority: Priority::Normal,
    }
}

/// Sockets that this process has open.
fn sockets() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    names
        .filter(|name| name.to_string_lossy().starts_with("socket:"))
        .count() as u64
}
