//! Two processes on one machine: how fast requests move, beside a plain copy between two blocking sockets.
//!
//! `cargo run --release -p slackwater-transfer --example drive -- [bytes] [concurrency] [read|write] [seconds]`
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a tool for work on the mover"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater_transfer::{
    Capability, Engine, GrantSpec, Home, LocalRange, Memory, Mover, Op, RegionSpec, Request,
    Rights, SealConfig, Segment, Submit, Target, Tcp, TcpConfig,
};
use slackwater_zmtp::{KeyPair, SecretKey};

/// As large as the memory of the raw copy, so that caches and page tables treat both alike.
const REGION: usize = 64 << 20;

fn engine(name: &str, listens: bool) -> Engine {
    let life = Home::open().unwrap();
    let mut config = TcpConfig::default();
    if let Ok(lanes) = std::env::var("LANES") {
        config.lanes_per_peer = lanes.parse().unwrap();
    }
    if let Ok(threads) = std::env::var("THREADS") {
        config.io_threads = threads.parse().unwrap();
    }
    if std::env::var_os("SEALED").is_some() {
        let (keys, other) = if listens {
            (pair(1), pair(2))
        } else {
            (pair(2), pair(1))
        };
        config.seal = Some(SealConfig {
            keys,
            clients: [other.public()].into(),
        });
    }
    if !listens {
        config.bind.clear();
    }
    let public_key = config
        .seal
        .as_ref()
        .map(|seal| *seal.keys.public().as_bytes());
    let tcp = Tcp::start(&life, config).unwrap();
    let segment = Segment {
        name: name.to_owned(),
        incarnation: life.incarnation(),
        addresses: tcp.addresses().to_vec(),
        public_key,
        host: None,
    };
    let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(tcp)];
    Engine::assemble(life, segment, movers)
}

fn pair(byte: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([byte; 32]))
}

fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    (rest[11].parse::<f64>().unwrap() + rest[12].parse::<f64>().unwrap()) / 100.0
}

fn target() {
    let engine = engine("target", true);
    let region = engine
        .register(RegionSpec {
            memory: Memory::anonymous(REGION).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    region
        .access(0, REGION as u64)
        .unwrap()
        .copy_in(0, &vec![7; REGION]);
    let capability = engine
        .grant(region.id(), &GrantSpec::whole(&region, Rights::BOTH))
        .unwrap();
    let raw = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{:?}", capability.to_bytes());
    println!("{}", engine.segment().incarnation);
    println!("{}", engine.segment().addresses[0]);
    println!("{}", raw.local_addr().unwrap());
    std::thread::spawn(move || {
        let data = vec![7u8; 64 << 20];
        for stream in raw.incoming() {
            let mut stream = stream.unwrap();
            let socket = socket2::SockRef::from(&stream);
            socket.set_send_buffer_size(4 << 20).unwrap();
            socket.set_recv_buffer_size(4 << 20).unwrap();
            stream.set_nodelay(true).unwrap();
            let mut head = [0; 8];
            stream.read_exact(&mut head).unwrap();
            let size = u64::from_le_bytes(head) as usize;
            if size == 4096 {
                let mut ask = [0; 128];
                while stream.read_exact(&mut ask).is_ok() && stream.write_all(&data[..4096]).is_ok()
                {
                }
            } else {
                let mut at = 0;
                while stream.write_all(&data[at..at + size]).is_ok() {
                    at = (at + size) % (64 << 20);
                }
            }
        }
    });
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn percentile(sorted: &[f64], p: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * p) as usize]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "target") {
        return target();
    }
    let bytes: usize = args.first().map_or(1 << 20, |arg| arg.parse().unwrap());
    let concurrency: usize = args.get(1).map_or(1, |arg| arg.parse().unwrap());
    let op = if args.get(2).is_some_and(|arg| arg == "write") {
        Op::Write
    } else {
        Op::Read
    };
    let seconds: f64 = args.get(3).map_or(2.0, |arg| arg.parse().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("target")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let numbers = lines.next().unwrap();
    let parsed: Vec<u8> = numbers
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|n| n.parse().unwrap())
        .collect();
    let capability = Capability::from_bytes(parsed.as_slice().try_into().unwrap());
    let incarnation = slackwater_wire::Incarnation(lines.next().unwrap().parse().unwrap());
    let address: std::net::SocketAddr = lines.next().unwrap().parse().unwrap();
    let raw_address = lines.next().unwrap();

    // The limit: a blocking copy, or a ping-pong of 4 KiB.
    let mut raw = TcpStream::connect(raw_address).unwrap();
    let socket = socket2::SockRef::from(&raw);
    socket.set_send_buffer_size(4 << 20).unwrap();
    socket.set_recv_buffer_size(4 << 20).unwrap();
    raw.set_nodelay(true).unwrap();
    let mut buffer = vec![0u8; 64 << 20];
    raw.write_all(&(bytes as u64).to_le_bytes()).unwrap();
    let (cpu_before, start) = (cpu(std::process::id()) + cpu(child.id()), Instant::now());
    let (mut moved, mut times, mut at) = (0u64, Vec::new(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        let one = Instant::now();
        if bytes == 4096 {
            raw.write_all(&[1; 128]).unwrap();
        }
        raw.read_exact(&mut buffer[at..at + bytes]).unwrap();
        at = (at + bytes) % (64 << 20);
        moved += bytes as u64;
        times.push(one.elapsed().as_secs_f64() * 1e6);
    }
    let raw_rate = moved as f64 / start.elapsed().as_secs_f64() / 1e9;
    let raw_cpu = (cpu(std::process::id()) + cpu(child.id()) - cpu_before) / (moved as f64 / 1e9);
    times.sort_by(f64::total_cmp);
    println!(
        "raw     {raw_rate:6.2} GB/s  {raw_cpu:.3} cpu-s/GB  p50 {:.1} us p99 {:.1}",
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
    drop(raw);

    let engine = engine("initiator", false);
    let region = engine
        .register(RegionSpec {
            memory: Memory::anonymous(REGION).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    region
        .access(0, REGION as u64)
        .unwrap()
        .copy_in(0, &vec![9; REGION]);
    let public_key = std::env::var_os("SEALED").map(|_| *pair(1).public().as_bytes());
    let segment = Segment {
        name: "target".into(),
        incarnation,
        addresses: vec![address],
        public_key,
        host: None,
    };
    let peer = engine.open(segment);
    engine.probe(peer, Duration::from_secs(5)).unwrap();
    let batches: usize = std::env::var("BATCH").map_or(1, |batch| batch.parse().unwrap());
    let slots = REGION / bytes;
    let run = |seconds: f64| {
        let (cpu_before, start) = (cpu(std::process::id()) + cpu(child.id()), Instant::now());
        let mut times = Vec::new();
        let mut threads = Vec::new();
        for thread in 0..concurrency {
            let (engine, id) = (engine.clone(), region.id());
            threads.push(std::thread::spawn(move || {
                let mut times = Vec::new();
                let mut turn = thread * batches;
                while start.elapsed().as_secs_f64() < seconds {
                    let one = Instant::now();
                    let requests: Vec<Request> = (0..batches)
                        .map(|index| {
                            let offset = ((turn + index) % slots * bytes) as u64;
                            Request {
                                op,
                                local: vec![LocalRange {
                                    region: id,
                                    offset,
                                    bytes: bytes as u64,
                                }],
                                target: Target {
                                    peer,
                                    offset,
                                    capability,
                                    key: None,
                                },
                                timeout: None,
                                priority: slackwater_transfer::Priority::Normal,
                            }
                        })
                        .collect();
                    turn += concurrency * batches;
                    engine.transfer(requests, &Submit::default()).unwrap();
                    times.push(one.elapsed().as_secs_f64() * 1e6);
                }
                times
            }));
        }
        for thread in threads {
            times.extend(thread.join().unwrap());
        }
        let elapsed = start.elapsed().as_secs_f64();
        let moved = (times.len() * batches * bytes) as f64 / 1e9;
        let cpu = cpu(std::process::id()) + cpu(child.id()) - cpu_before;
        times.sort_by(f64::total_cmp);
        (moved / elapsed, cpu / moved, times)
    };
    run(0.3);
    let (rate, cost, times) = run(seconds);
    println!(
        "engine  {rate:6.2} GB/s  {cost:.3} cpu-s/GB  p50 {:.1} us p99 {:.1}   rate {:.2} of raw, cpu {:.2} of raw",
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        rate / raw_rate,
        cost / raw_cpu
    );
    println!("{:?}", engine.stats(peer));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}
