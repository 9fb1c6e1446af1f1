//! Two processes of one host, with keys and without: how fast one reads the memory of the other, in turns.
//!
//! `cargo run --release -p slackwater-transfer --example same_host -- [rounds]`
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a tool for work on the mover"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackwater_transfer::{
    AllowList, Capability, Engine, EngineConfig, GrantSpec, Level, Memory, PeerId, RegionSpec,
    Rights, SealConfig, Segment, Target,
};
use slackwater_zmtp::{KeyPair, SecretKey};

/// Far more than a cache holds.
const REGION: u64 = 256 << 20;
const BLOCK: usize = 1 << 20;
const SMALL: usize = 4 << 10;
const ROW: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

/// What the two processes have of each other.
const WAYS: [(&str, Option<Level>); 3] = [
    ("no keys, shared memory", None),
    ("keys that map, shared memory", Some(Level::Admin)),
    ("keys that do not, sealed TCP", Some(Level::Basic)),
];

fn engine(own: u8, other: u8, level: Option<Level>) -> Engine {
    let pair = |byte| KeyPair::of(SecretKey::from_bytes([byte; 32]));
    let mut config = EngineConfig::new("same host");
    config.tcp.seal = level.map(|level| SealConfig {
        keys: pair(own),
        clients: AllowList::of([(pair(other).public(), level)]),
    });
    config.start().unwrap()
}

/// Lends its memory until it is killed.
fn owner(level: Option<Level>) {
    let engine = engine(1, 2, level);
    let spec = RegionSpec {
        memory: Memory::shared(REGION as usize).unwrap(),
        rights: Rights::READ,
        gate: None,
    };
    let region = engine.register(spec).unwrap();
    let bytes = vec![7; REGION as usize];
    region.access(0, REGION).unwrap().copy_in(0, &bytes);
    let spec = GrantSpec::whole(&region, Rights::READ);
    let capability = engine.grant(region.id(), &spec).unwrap();
    let hex = |byte: &u8| format!("{byte:02x}");
    println!("{}", serde_json::to_string(engine.segment()).unwrap());
    println!(
        "{}",
        capability.to_bytes().iter().map(hex).collect::<String>()
    );
    let _ = std::io::stdin().lines().next();
}

struct Row {
    way: &'static str,
    child: Child,
    engine: Engine,
    peer: PeerId,
    capability: Capability,
    rates: Vec<f64>,
    costs: Vec<f64>,
    smalls: Vec<f64>,
}

impl Row {
    fn start(index: usize) -> Self {
        let (way, level) = WAYS[index];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["owner", &index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let segment: Segment = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let hex = lines.next().unwrap();
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
        let engine = engine(2, 1, level);
        let peer = engine.open(segment);
        Self {
            way,
            child,
            engine,
            peer,
            capability: Capability::from_bytes(&bytes.try_into().unwrap()),
            rates: Vec::new(),
            costs: Vec::new(),
            smalls: Vec::new(),
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let target = Target {
            peer: self.peer,
            offset: at % REGION,
            capability: self.capability,
            key: None,
        };
        self.engine.read_now(&target, into, PATIENCE).unwrap();
    }

    fn round(&mut self, into: &mut [u8]) {
        self.read(0, into);
        let spent = || cpu(self.child.id()) + cpu(std::process::id());
        let (begun, before, mut moved) = (Instant::now(), spent(), 0);
        while begun.elapsed() < ROW {
            self.read(moved, into);
            moved += BLOCK as u64;
        }
        let (seconds, gigabytes) = (begun.elapsed().as_secs_f64(), moved as f64 / 1e9);
        let cost = (spent() - before) / gigabytes;
        let mut times: Vec<f64> = (0..2000)
            .map(|index| {
                let begun = Instant::now();
                self.read(index * BLOCK as u64, &mut into[..SMALL]);
                begun.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        self.rates.push(gigabytes / seconds);
        self.costs.push(cost);
        self.smalls.push(median(&mut times));
    }
}

/// CPU-seconds of a process.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, index] = &arguments[..]
        && role == "owner"
    {
        return owner(WAYS[index.parse::<usize>().unwrap()].1);
    }
    let rounds: usize = arguments
        .first()
        .map_or(9, |rounds| rounds.parse().unwrap());
    let mut rows: Vec<Row> = (0..WAYS.len()).map(Row::start).collect();
    let mut into = vec![0; BLOCK];
    for _ in 0..rounds {
        rows.iter_mut().for_each(|row| row.round(&mut into));
    }
    for mut row in rows {
        let (rate, cost) = (median(&mut row.rates), median(&mut row.costs));
        let small = median(&mut row.smalls);
        println!(
            "{:30} 1 MiB {rate:6.2} GB/s, {cost:.3} CPU-s/GB; 4 KiB p50 {small:5.1} us",
            row.way
        );
        row.child.kill().unwrap();
        row.child.wait().unwrap();
    }
}
