use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use super::raw::MESSAGE;
use super::{BenchError, Direction, Options, Report};
use crate::process::{Process, ProcessError};
use crate::usage::median;

/// Two processes without an engine, and what they reached so far.
pub(crate) struct Bed {
    server: Process,
    client: Process,
    /// The buffers with which a stream was fastest at the start; 0 is the kernel's own choice.
    socket_bytes: usize,
    window: Duration,
    streams: Vec<Rate>,
    requests: Vec<Rate>,
    memcpys: Vec<Rate>,
    streaming: Vec<Rate>,
    attaches: Vec<Rate>,
    iperf3: Vec<f64>,
    notes: Vec<String>,
}

/// One run of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) gbps: f64,
    pub(super) cpu_s_per_gb: f64,
    pub(crate) p50_us: f64,
}

/// Sizes of socket buffers that are tried.
pub(super) const SOCKET_BYTES: [usize; 3] = [0, 1 << 20, 4 << 20];

/// The payload of a ping and of its answer.
pub(super) const PING: usize = 4 << 10;

impl Bed {
    pub(crate) fn start(options: &Options) -> Result<Self, BenchError> {
        let bytes = options.memory_bytes.to_string();
        let mut server = Process::start(
            &options.child,
            &["limit-server", &bytes],
            options.patience(),
        )?;
        let listening = server.hear("listening")?;
        let mut words = vec!["limit-client", &bytes];
        words.extend(listening.split_whitespace());
        let mut client = Process::start(&options.child, &words, options.patience())?;
        client.hear("ready")?;
        let mut bed = Self {
            server,
            client,
            socket_bytes: 0,
            window: options.window / 2,
            streams: Vec::new(),
            requests: Vec::new(),
            memcpys: Vec::new(),
            streaming: Vec::new(),
            attaches: Vec::new(),
            iperf3: Vec::new(),
            notes: Vec::new(),
        };
        bed.tune()?;
        Ok(bed)
    }

    /// Takes the socket buffers with which this machine is fastest, in two turns.
    fn tune(&mut self) -> Result<(), BenchError> {
        let mut best = [0.0; SOCKET_BYTES.len()];
        for _ in 0..2 {
            for (best, socket_bytes) in best.iter_mut().zip(SOCKET_BYTES) {
                self.socket_bytes = socket_bytes;
                *best = f64::max(*best, self.socket(0, MESSAGE)?.gbps);
            }
        }
        let fastest = best
            .iter()
            .zip(SOCKET_BYTES)
            .max_by(|a, b| a.0.total_cmp(b.0));
        self.socket_bytes = fastest.map_or(0, |(_, socket_bytes)| socket_bytes);
        Ok(())
    }

    /// A stream of 1 MiB messages over one blocking socket.
    pub(crate) fn stream(&mut self) -> Result<Rate, BenchError> {
        let rate = self.socket(0, MESSAGE)?;
        self.streams.push(rate);
        Ok(rate)
    }

    /// 1 MiB messages that are asked for one by one.
    pub(super) fn request(&mut self) -> Result<Rate, BenchError> {
        let rate = self.socket(64, MESSAGE)?;
        self.requests.push(rate);
        Ok(rate)
    }

    /// 4 KiB there and back.
    pub(crate) fn ping(&mut self) -> Result<Rate, BenchError> {
        self.socket(PING, PING)
    }

    /// Holds all threads of each process to a CPU, or lets them go anywhere again.
    pub(super) fn pin(
        &mut self,
        client: Option<usize>,
        server: Option<usize>,
    ) -> Result<(), BenchError> {
        self.client.pin(client)?;
        Ok(self.server.pin(server)?)
    }

    /// The better of a copy past the cache and a cross-memory attach is what a same-host path can reach.
    pub(crate) fn copies(&mut self) -> Result<(Rate, Option<Rate>), BenchError> {
        let millis = self.window.as_millis();
        let memcpy = self.measured(&format!("copy cached {millis}"))?;
        self.memcpys.push(memcpy);
        let streaming = self.measured(&format!("copy streaming {millis}"))?;
        self.streaming.push(streaming);
        let attach = self.attach()?;
        self.attaches.extend(attach);
        Ok((streaming, attach))
    }

    fn attach(&mut self) -> Result<Option<Rate>, BenchError> {
        let cpu = self.cpu();
        self.client
            .say(&format!("attach {}", self.window.as_millis()))?;
        self.client.hear("begun")?;
        let said = self.client.hear("")?;
        match said.strip_prefix("refused") {
            Some(why) => {
                let note = format!("no cross-memory attach: {}", why.trim());
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
                Ok(None)
            }
            None => self.rate(said.trim_start_matches("ran"), cpu).map(Some),
        }
    }

    fn socket(&mut self, asked: usize, answered: usize) -> Result<Rate, BenchError> {
        let (socket_bytes, millis) = (self.socket_bytes, self.window.as_millis());
        self.measured(&format!(
            "socket {asked} {answered} {socket_bytes} {millis}"
        ))
    }

    fn measured(&mut self, order: &str) -> Result<Rate, BenchError> {
        self.client.say(order)?;
        self.client.hear("begun")?;
        let cpu = self.cpu();
        let ran = self.client.hear("ran")?;
        self.rate(&ran, cpu)
    }

    fn rate(&self, ran: &str, cpu_before: f64) -> Result<Rate, BenchError> {
        let cpu = self.cpu() - cpu_before;
        let numbers: Vec<f64> = ran
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [bytes, seconds, p50_us] = numbers[..] else {
            return Err(BenchError::Transfer(format!("a limit said `{ran}`")));
        };
        Ok(Rate {
            gbps: bytes / seconds / 1e9,
            cpu_s_per_gb: cpu / (bytes / 1e9),
            p50_us,
        })
    }

    fn cpu(&self) -> f64 {
        self.server.cpu_seconds() + self.client.cpu_seconds()
    }

    /// One second of iperf3 with one stream, where it is installed.
    pub(super) fn iperf3(&mut self) {
        match iperf3() {
            Ok(gbps) => self.iperf3.push(gbps),
            Err(why) => {
                let note = format!("no iperf3: {why}");
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
        }
    }

    pub(super) fn finish(self, report: &mut Report) {
        let limits = &mut report.limits;
        let of = |rates: &[Rate], value: fn(&Rate) -> f64| {
            (!rates.is_empty()).then(|| median(&mut rates.iter().map(value).collect::<Vec<_>>()))
        };
        limits.blocking_socket_gbps = of(&self.streams, |rate| rate.gbps);
        limits.blocking_socket_cpu_s_per_gb = of(&self.streams, |rate| rate.cpu_s_per_gb);
        limits.blocking_socket_buffer_bytes = self.socket_bytes;
        limits.blocking_request_gbps = of(&self.requests, |rate| rate.gbps);
        limits.blocking_request_cpu_s_per_gb = of(&self.requests, |rate| rate.cpu_s_per_gb);
        limits.memcpy_gbps = of(&self.memcpys, |rate| rate.gbps);
        limits.nt_memcpy_gbps = of(&self.streaming, |rate| rate.gbps);
        limits.cma_gbps = of(&self.attaches, |rate| rate.gbps);
        limits.cma_cpu_s_per_gb = of(&self.attaches, |rate| rate.cpu_s_per_gb);
        limits.iperf3_gbps = (!self.iperf3.is_empty()).then(|| median(&mut self.iperf3.clone()));
        report.notes.extend(self.notes);
    }
}

/// Received gigabytes a second of one stream over loopback.
fn iperf3() -> Result<f64, String> {
    let (_server, port) = iperf3_server(Ipv4Addr::LOCALHOST.into())?;
    iperf3_client((Ipv4Addr::LOCALHOST, port).into(), Direction::Write)
}

/// A server for one test, and its port.
pub(super) fn iperf3_server(ip: IpAddr) -> Result<(Process, u16), String> {
    let text = |error: ProcessError| error.to_string();
    // A port that was free a moment ago: it takes no 0.
    let probe = TcpListener::bind((ip, 0)).and_then(|probe| probe.local_addr());
    let port = probe.map_err(|error| error.to_string())?.port();
    let mut server = Command::new("iperf3");
    server
        .args(["--server", "--one-off", "--forceflush", "--bind"])
        .arg(ip.to_string())
        .args(["--port", &port.to_string()]);
    let mut server = Process::spawn(server, "iperf3 server", IPERF3_PATIENCE).map_err(text)?;
    server.hear_of("listening").map_err(text)?;
    Ok((server, port))
}

/// Received gigabytes a second of one stream to a server, or from it.
pub(super) fn iperf3_client(server: SocketAddr, direction: Direction) -> Result<f64, String> {
    let text = |error: ProcessError| error.to_string();
    let mut client = Command::new("iperf3");
    client
        .arg("--client")
        .arg(server.ip().to_string())
        .args(["--port", &server.port().to_string()])
        .args(["--time", "1", "--length", "1M", "--json"]);
    if direction == Direction::Read {
        client.arg("--reverse");
    }
    let mut client = Process::spawn(client, "iperf3 client", IPERF3_PATIENCE).map_err(text)?;
    let said = client.hear_out("its end").map_err(text)?;
    let json: serde_json::Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
    let bits = json
        .pointer("/end/sum_received/bits_per_second")
        .and_then(serde_json::Value::as_f64);
    bits.map(|bits| bits / 8e9).ok_or_else(|| {
        json["error"]
            .as_str()
            .unwrap_or("it gave no figure")
            .to_owned()
    })
}

const IPERF3_PATIENCE: Duration = Duration::from_secs(10);
