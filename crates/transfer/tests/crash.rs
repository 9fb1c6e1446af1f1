//! Two processes, one of them killed in the middle of a large batch, again and again: the survivor learns which requests
//! failed, nothing hangs, and no descriptor, mapping or byte of memory is left behind.
//!
//! Has its own main because it is both processes. `SLACKWATER_CRASH_ROUNDS` sets the number of rounds, 10 without it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program of its own"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use slackwater_base::Backoff;
use slackwater_transfer::{
    Capability, Cause, Engine, GrantSpec, Home, LocalRange, Memory, Mover, Op, PeerId, Priority,
    Region, RegionSpec, Request, Rights, Segment, Status, Submit, Target, Tcp, TcpConfig,
};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, GREETING_BYTES, Greeting, HANDSHAKE_BYTES, VERSION};

const SECOND: Duration = Duration::from_secs(1);
/// A batch is this many requests of this many bytes, over the same memory: 1 GiB in all.
const REQUESTS: usize = 256;
const REQUEST_BYTES: usize = 4 << 20;
const REGION_BYTES: usize = 32 << 20;

static SITE: Site = Site::new("crash test");

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("target") => target(),
        _ => {
            let rounds = std::env::var("SLACKWATER_CRASH_ROUNDS")
                .map_or(10, |rounds| rounds.parse().unwrap());
            kills(rounds);
            println!("crash: {rounds} rounds passed");
            late_writer();
            println!("crash: late writer passed");
            calm();
            println!("crash: a thousand idle connections passed");
        }
    }
}

fn engine(name: &str) -> Engine {
    engine_with(name, TcpConfig::default())
}

fn engine_with(name: &str, config: TcpConfig) -> Engine {
    let life = Home::open().unwrap();
    let retry = Backoff::doubling(SECOND / 50, SECOND / 10);
    let tcp = Tcp::start(
        &life,
        TcpConfig {
            io_threads: 2,
            retry,
            ..config
        },
    )
    .unwrap();
    let segment = Segment {
        name: name.to_owned(),
        incarnation: life.incarnation(),
        addresses: tcp.addresses().to_vec(),
        public_key: None,
        host: None,
    };
    let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(tcp)];
    Engine::assemble(life, segment, movers)
}

fn region(engine: &Engine) -> Arc<Region> {
    engine
        .register(RegionSpec {
            memory: Memory::anonymous(REGION_BYTES).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap()
}

/// The other process: prints how to reach it, then obeys lines. `reuse` gives its region another use and says so;
/// `check` says whether the bytes are still those of that use.
fn target() {
    let engine = engine("target");
    let region = region(&engine);
    let capability = engine
        .grant(region.id(), &GrantSpec::whole(&region, Rights::BOTH))
        .unwrap();
    let numbers: Vec<String> = capability.to_bytes().iter().map(u8::to_string).collect();
    println!(
        "{} {} {}",
        numbers.join(","),
        engine.segment().incarnation,
        engine.segment().addresses[0]
    );
    let marks = vec![0xa5; REGION_BYTES];
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "reuse" => {
                engine.invalidate(region.id(), 20 * SECOND).unwrap();
                region.access(0, region.bytes()).unwrap().copy_in(0, &marks);
                println!("reused");
            }
            "check" => {
                let mut bytes = vec![0; REGION_BYTES];
                region
                    .access(0, region.bytes())
                    .unwrap()
                    .copy_out(0, &mut bytes);
                println!("{}", if bytes == marks { "intact" } else { "changed" });
            }
            other => panic!("{other}"),
        }
    }
}

struct Peer {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
    capability: Capability,
    segment: Segment,
}

impl Peer {
    fn spawn() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("target")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let hello: String = lines.recv_timeout(20 * SECOND).unwrap();
        let words: Vec<&str> = hello.split(' ').collect();
        let bytes: Vec<u8> = words[0]
            .split(',')
            .map(|number| number.parse().unwrap())
            .collect();
        let segment = Segment {
            name: "target".to_owned(),
            incarnation: Incarnation(words[1].parse().unwrap()),
            addresses: vec![words[2].parse().unwrap()],
            public_key: None,
            host: None,
        };
        Self {
            child,
            orders,
            lines,
            capability: Capability::from_bytes(bytes.as_slice().try_into().unwrap()),
            segment,
        }
    }

    fn ask(&mut self, order: &str) -> String {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .unwrap();
        self.lines.recv_timeout(30 * SECOND).unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn requests(op: Op, local: &Region, peer: PeerId, capability: Capability) -> Vec<Request> {
    let one = |index: usize| {
        let offset = (index * REQUEST_BYTES % REGION_BYTES) as u64;
        Request {
            op,
            local: vec![LocalRange {
                region: local.id(),
                offset,
                bytes: REQUEST_BYTES as u64,
            }],
            target: Target {
                peer,
                offset,
                capability,
                key: None,
            },
            timeout: None,
            priority: Priority::Normal,
        }
    };
    (0..REQUESTS).map(one).collect()
}

fn kills(rounds: usize) {
    let engine = engine("survivor");
    let here = region(&engine);
    let mut baseline = (0, 0, 0);
    for round in 0..rounds {
        let peer = Peer::spawn();
        let id = engine.open(peer.segment.clone());
        let op = if round % 2 == 0 { Op::Write } else { Op::Read };
        let batch = engine.submit(
            requests(op, &here, id, peer.capability),
            &Submit {
                timeout: SECOND,
                ..Submit::default()
            },
        );
        // At another place in the batch each round.
        let enough = (REQUESTS - 1 - round * 23 % (REQUESTS / 2)) as u32;
        let start = Instant::now();
        while batch.remaining() > enough {
            assert!(
                start.elapsed() < 20 * SECOND,
                "round {round}: the batch does not move"
            );
            std::thread::yield_now();
        }
        peer.kill();
        let over = batch.watch(&Waiting::at(&SITE).until(now() + 20 * SECOND));
        assert!(
            over,
            "round {round}: the batch hangs with {} requests",
            batch.remaining()
        );
        let failed = (0..REQUESTS)
            .filter(|request| batch.status(*request) != Some(Status::Completed))
            .count();
        assert!(failed > 0, "round {round}: a dead peer completed a batch");
        for request in 0..REQUESTS {
            let outcome = batch.outcome(request).unwrap();
            let fit = match outcome.cause {
                None => outcome.bytes == REQUEST_BYTES as u64,
                // Full until its deadline: on a busy machine the batch does not get into the queue in time.
                Some(
                    Cause::Lost(_)
                    | Cause::Unreachable(_)
                    | Cause::TimedOut(_)
                    | Cause::Full { .. },
                ) => true,
                Some(_) => false,
            };
            assert!(
                fit,
                "round {round}: request {request} ended with {outcome:?}"
            );
        }
        engine.forget(id);
        assert_eq!(here.in_flight(), 0);
        match round {
            0 | 1 => baseline = (descriptors(), mappings(), resident()),
            _ => {
                // The loops close connections when it is their turn.
                let start = Instant::now();
                while descriptors() > baseline.0 && start.elapsed() < 20 * SECOND {
                    std::thread::yield_now();
                }
                assert!(
                    descriptors() <= baseline.0,
                    "round {round}: {} descriptors of {}",
                    descriptors(),
                    baseline.0
                );
                assert!(
                    resident() <= baseline.2 + 64,
                    "round {round}: {} MiB of {}",
                    resident(),
                    baseline.2
                );
                assert!(
                    mappings() <= baseline.1 + 8,
                    "round {round}: {} mappings of {}",
                    mappings(),
                    baseline.1
                );
            }
        }
    }
}

/// A writer that goes on after the memory got another use, from a process of its own.
fn late_writer() {
    let engine = engine("writer");
    let here = region(&engine);
    here.access(0, here.bytes())
        .unwrap()
        .copy_in(0, &vec![0x11; REGION_BYTES]);
    let mut peer = Peer::spawn();
    let id = engine.open(peer.segment.clone());
    let batch = engine.submit(
        requests(Op::Write, &here, id, peer.capability),
        &Submit {
            timeout: 20 * SECOND,
            ..Submit::default()
        },
    );
    let start = Instant::now();
    while batch.remaining() as usize > REQUESTS - 8 {
        assert!(start.elapsed() < 20 * SECOND, "the batch does not move");
        std::thread::yield_now();
    }
    assert_eq!(peer.ask("reuse"), "reused");
    let replay = engine.submit(
        requests(Op::Write, &here, id, peer.capability),
        &Submit {
            timeout: 20 * SECOND,
            ..Submit::default()
        },
    );
    for batch in [&batch, &replay] {
        assert!(
            batch.watch(&Waiting::at(&SITE).until(now() + 30 * SECOND)),
            "the batch hangs"
        );
    }
    assert!((0..REQUESTS).all(|request| replay.status(request) == Some(Status::Failed)));
    assert_eq!(peer.ask("check"), "intact");
    peer.kill();
}

/// A thousand connections that nobody uses cost nothing: no thread of the engine runs.
fn calm() {
    // Long enough for a thousand greetings on a busy machine.
    let clock = SECOND;
    let engine = engine_with(
        "calm",
        TcpConfig {
            greeting_timeout: clock,
            gc_interval: clock,
            ..TcpConfig::default()
        },
    );
    let hello = Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: Incarnation(1),
        expects: engine.home().incarnation(),
        frame_bytes_max: 1 << 20,
        requests_max: 1,
        in_flight_bytes_max: 1 << 20,
        handshake: [0; HANDSHAKE_BYTES],
    };
    let connect = |_| {
        let mut stream = TcpStream::connect(engine.segment().addresses[0]).unwrap();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        stream.write_all(&hello.to_bytes()).unwrap();
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        stream
    };
    let connections: Vec<TcpStream> = (0..1000).map(connect).collect();
    // The clocks of the greetings run out first. Then there is nothing left to wake up for, and a loop that had a clock all
    // the same would be seen to run in a span that is longer than each of them.
    let calm = |_| {
        let before = switches();
        std::thread::sleep(clock + clock / 4);
        switches() - before <= 2
    };
    assert!(
        (0..8).any(calm),
        "the loops of an idle engine wake again and again"
    );
    drop(connections);
}

/// Context switches of the engine's loops.
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("status")).unwrap_or_default()
    };
    let of_loop = |status: &String| {
        status
            .lines()
            .next()
            .is_some_and(|name| name.contains("transfer-"))
    };
    let count = |status: String| -> u64 {
        let lines = status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:"));
        lines
            .map(|(_, count)| count.trim().parse::<u64>().unwrap())
            .sum()
    };
    tasks
        .map(|task| status(task.unwrap()))
        .filter(of_loop)
        .map(count)
        .sum()
}

/// Resident memory, in MiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        / 1024
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}
