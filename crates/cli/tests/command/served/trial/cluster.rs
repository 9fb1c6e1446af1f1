//! The processes of a trial, each on a host of its own: a master, three nodes with memory and SSD, and processes of a
//! load.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use slackwater_remote::{CallOptions, GetOptions, PutOptions, Stored};
use slackwater_wire::{Durability, ErrorCode};

use super::super::admin::Administered;
use super::super::network::{Host, Network};
use super::super::pool::Node;
use super::super::{KEYED, make_key, stop, until};
use super::history::{Act, Lines};
use super::load::{self, Told, nanos};
use super::value;
use crate::place::{Place, end};

pub(super) const NODES: usize = 3;
pub(super) const LOADS: usize = 2;
pub(super) const MASTER: Host = 0;
pub(super) const PROBE: Host = 1 + NODES + LOADS;
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// What one call may take beyond its deadline, on a machine with more to do than it has cores for.
pub(super) const SLACK: Duration = Duration::from_secs(4);
pub(super) const QUOTA: (u64, u64) = (4 << 20, 8 << 20);

/// The host of a node.
pub(super) fn node(number: usize) -> Host {
    1 + number
}

/// The host of a process of the load.
pub(super) fn loader(number: usize) -> Host {
    1 + NODES + number
}

/// A process of the load.
struct Load {
    child: Child,
    process: u64,
    lines: Arc<Mutex<Lines>>,
    heard: Option<std::thread::JoinHandle<()>>,
}

/// See the module.
pub(super) struct Cluster {
    pub(super) seed: u64,
    listen: SocketAddr,
    address: String,
    master: Option<Administered>,
    /// A master that is to end at its failpoint.
    dying: Option<Child>,
    nodes: Vec<Option<Node>>,
    loads: Vec<Option<Load>>,
    pub(super) processes: u64,
    probes: u64,
    pub(super) acts: Vec<Act>,
    /// Where the next process of a host ends by itself.
    failpoint: Option<(Host, &'static str)>,
    /// Keys whose durable values a test has damaged.
    pub(super) damaged: BTreeSet<u64>,
    /// Descriptors that the master and the nodes had open before anybody called.
    pub(super) descriptors: Vec<usize>,
    pub(super) network: Network,
    pub(super) place: Place,
}

impl Cluster {
    /// Starts the master and the nodes.
    pub(super) fn start(seed: u64) -> Self {
        Self::start_at(seed, Place::new())
    }

    /// Starts them in this place.
    pub(super) fn start_at(seed: u64, place: Place) -> Self {
        let network = Network::new(PROBE + 1);
        let key = make_key(&place, "server", "");
        make_key(&place, "root", "admin");
        make_key(&place, "load", "basic");
        make_key(&place, "rival", "basic tenants=acme");
        (0..NODES).for_each(|number| _ = make_key(&place, &format!("node{number}"), "node"));
        let port = if network.has_spaces() { 50_051 } else { 0 };
        let listen = SocketAddr::new(network.address(MASTER), port);
        let mut cluster = Self {
            seed,
            listen,
            address: key,
            master: None,
            dying: None,
            nodes: (0..NODES).map(|_| None).collect(),
            loads: (0..LOADS).map(|_| None).collect(),
            processes: 0,
            probes: 0,
            acts: Vec::new(),
            failpoint: None,
            damaged: BTreeSet::new(),
            descriptors: Vec::new(),
            network,
            place,
        };
        cluster.start_master();
        (0..NODES).for_each(|number| cluster.start_node(number));
        let operator = cluster.told(PROBE, "root");
        let client = cluster.network.on(PROBE, || operator.connect());
        let acme = CallOptions {
            tenant: load::tenant_of(value::RIVAL),
            ..CallOptions::default()
        };
        let set = cluster
            .network
            .on(PROBE, || client.set_quota(QUOTA.0, QUOTA.1, &acme));
        assert_eq!(set, Ok(()));
        drop(client);
        cluster.descriptors = cluster.open_descriptors();
        cluster
    }

    /// Descriptors that the master and the nodes have open, but for files of logs: there are as many as what was put needs.
    pub(super) fn open_descriptors(&self) -> Vec<usize> {
        let logs = self.place.path("kv");
        let is_of_log = |path: &Path| {
            let (path, logs) = (path.as_os_str().as_bytes(), logs.as_os_str().as_bytes());
            path.starts_with(logs)
        };
        let open = |host| {
            let listed = std::fs::read_dir(format!("/proc/{}/fd", self.child(host).id()));
            let paths = listed
                .unwrap()
                .map(|it| std::fs::read_link(it.unwrap().path()));
            // One that is being closed has no path any more.
            let paths = paths.filter_map(Result::ok);
            paths.filter(|path| !is_of_log(path)).count()
        };
        (MASTER..=NODES).map(open).collect()
    }

    /// The most memory that each of them had at once, in bytes.
    pub(super) fn memory_peaks(&self) -> Vec<u64> {
        let peak = |host| {
            let path = format!("/proc/{}/status", self.child(host).id());
            let status = std::fs::read_to_string(path).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmHWM:"));
            let kib = line.unwrap().split_whitespace().nth(1).unwrap();
            kib.parse::<u64>().unwrap() << 10
        };
        (MASTER..=NODES).map(peak).collect()
    }

    /// A command whose log goes to a file that is shown when the trial has failed.
    fn logged(&mut self, host: Host, arguments: &[&str]) -> Command {
        let log = self.place.path(&format!("log{host}"));
        let log = std::fs::File::options().create(true).append(true).open(log);
        let mut command = self.place.command(arguments);
        command.stderr(log.unwrap());
        if let Some((_, at)) = self.failpoint.take_if(|(of, _)| *of == host) {
            command.env("SLACKWATER_FAILPOINT", at);
        }
        command
    }

    pub(super) fn start_master(&mut self) {
        let listen = self.listen.to_string();
        let arguments = [
            "master",
            "--listen",
            &listen,
            "--directory",
            "journal",
            "--tenants",
            "true",
            "--lease-ttl",
            "3s",
            "--admin",
            "127.0.0.1:0",
            "--log",
            "info",
        ];
        let fails = self.failpoint.is_some_and(|(of, _)| of == MASTER);
        let mut command = self.logged(MASTER, &[&arguments[..], &KEYED].concat());
        if fails {
            // It may end before it has said where it serves.
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let dying = self.network.on(MASTER, || command.spawn().unwrap());
            self.dying = Some(dying);
            return;
        }
        let master = self.network.on(MASTER, || Administered::launch(command));
        let at = master.served.address.strip_prefix("curve://").unwrap();
        self.listen = at.split('/').next().unwrap().parse().unwrap();
        self.master = Some(master);
    }

    /// What `from` dials to reach the master.
    fn master_from(&self, from: Host) -> String {
        let at = self.network.route(from, MASTER, self.listen);
        format!("curve://{at}/{}", self.address)
    }

    pub(super) fn start_node(&mut self, number: usize) {
        let host = node(number);
        let master = self.master_from(host);
        let port = if self.network.has_spaces() { 9000 } else { 0 };
        let data = SocketAddr::new(self.network.address(host), port).to_string();
        let (directory, key) = (format!("kv{number}"), format!("node{number}"));
        let arguments = [
            "node",
            "--master",
            &master,
            "--data",
            &data,
            "--memory",
            "4MiB",
            "--ssd",
            "64MiB",
            "--file-bytes",
            "4MiB",
            "--dir",
            &directory,
            "--key-file",
            &key,
            "--allow",
            "list",
            "--log",
            "info",
        ];
        // One that ends by itself may do so before it has said anything.
        let fails = self.failpoint.is_some_and(|(of, _)| of == host);
        let command = self.logged(host, &arguments);
        let start = || match fails {
            true => Node::spawn(command),
            false => Node::launch(command),
        };
        self.nodes[number] = Some(self.network.on(host, start));
    }

    pub(super) fn told(&self, host: Host, key: &str) -> Told {
        Told {
            address: self.master_from(host),
            key_file: self.place.path(key),
            rival_key_file: self.place.path("rival"),
            host: host as u64,
            process: self.processes,
            seed: self.seed,
        }
    }

    /// Starts a process of the load.
    pub(super) fn start_load(&mut self, number: usize) {
        self.processes += 1;
        let told = self.told(loader(number), "load");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", load::NAME, "--include-ignored", "--nocapture"])
            .env_clear()
            .env("TMPDIR", self.place.temporary())
            .env(load::ENV, told.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        if let Some((_, at)) = self.failpoint.take_if(|(of, _)| *of == loader(number)) {
            command.env("SLACKWATER_FAILPOINT", at);
        }
        let mut child = self.network.on(loader(number), || command.spawn().unwrap());
        let lines: Arc<Mutex<Lines>> = Arc::default();
        let (out, kept) = (child.stdout.take().unwrap(), Arc::clone(&lines));
        let heard = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                kept.lock().unwrap().0.push(line);
            }
        });
        self.loads[number] = Some(Load {
            child,
            process: told.process,
            lines,
            heard: Some(heard),
        });
    }

    /// Takes what a process of the load has said, now that it is dead.
    fn take_load(&mut self, mut load: Load) -> ExitStatus {
        let status = end(&mut load.child);
        let dead = nanos();
        load.heard.take().unwrap().join().unwrap();
        let lines = load.lines.lock().unwrap();
        self.acts.extend(lines.acts(load.process, dead));
        status
    }

    /// Has every process of the load finish what it does.
    pub(super) fn end_load(&mut self) {
        for number in 0..LOADS {
            let Some(mut load) = self.loads[number].take() else {
                continue;
            };
            drop(load.child.stdin.take());
            let lines = Arc::clone(&load.lines);
            self.take_load(load);
            let finished = lines
                .lock()
                .unwrap()
                .0
                .iter()
                .any(|line| line.starts_with("f "));
            assert!(
                finished,
                "a process of the load failed: {:?}",
                lines.lock().unwrap()
            );
        }
    }

    fn child(&self, host: Host) -> &Child {
        match host {
            MASTER => &self.master.as_ref().unwrap().served.child,
            1..=NODES => &self.nodes[host - 1].as_ref().unwrap().child,
            _ => &self.loads[host - 1 - NODES].as_ref().unwrap().child,
        }
    }

    fn signal(&self, host: Host, signal: Signal) {
        kill_process(Pid::from_child(self.child(host)), signal).unwrap();
    }

    /// Stops the process of a host.
    pub(super) fn stop(&self, host: Host) {
        stop(self.child(host));
    }

    /// The end of [`Self::stop`].
    pub(super) fn go_on(&self, host: Host) {
        self.signal(host, Signal::CONT);
    }

    /// Kills the process of a host, and returns when it has ended.
    pub(super) fn kill(&mut self, host: Host) {
        self.signal(host, Signal::KILL);
        self.dies(host);
    }

    /// Tells the process of a host to end, and returns when it has.
    pub(super) fn end(&mut self, host: Host) {
        self.signal(host, Signal::TERM);
        let status = self.ended_as(host);
        assert!(status.success(), "host {host} ended by {status}");
    }

    /// Starts what [`Self::kill`] has ended, to end by itself at a failpoint.
    pub(super) fn begin_failing(&mut self, host: Host, at: &'static str) {
        self.failpoint = Some((host, at));
        self.begin(host);
    }

    /// Waits for the end of a process that is killed, as at its failpoint. One that ended otherwise did not get there.
    pub(super) fn dies(&mut self, host: Host) {
        let status = self.ended_as(host);
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(killed, "host {host} ended by {status}\n{}", self.logs());
    }

    fn ended_as(&mut self, host: Host) -> ExitStatus {
        match host {
            MASTER => match self.dying.take() {
                Some(mut dying) => end(&mut dying),
                None => end(&mut self.master.take().unwrap().served.child),
            },
            1..=NODES => end(&mut self.nodes[host - 1].take().unwrap().child),
            _ => {
                let load = self.loads[host - 1 - NODES].take().unwrap();
                self.take_load(load)
            }
        }
    }

    /// Starts what has ended, and returns when it is in the pool again.
    pub(super) fn begin(&mut self, host: Host) {
        match host {
            MASTER => self.start_master(),
            1..=NODES => self.start_node(host - 1),
            _ => self.start_load(host - 1 - NODES),
        }
    }

    fn ended(&self) -> usize {
        let loads = self.loads.iter().flatten();
        loads.map(|load| load.lines.lock().unwrap().ended()).sum()
    }

    /// Returns when so many more calls of the load have ended, however.
    pub(super) fn calls(&self, more: usize) {
        let before = self.ended();
        until("calls end", || self.ended() >= before + more);
    }

    /// Returns when so many more calls of each process of the load have ended.
    pub(super) fn calls_of_each(&self, more: usize) {
        let ended = |load: &Load| load.lines.lock().unwrap().ended();
        let all = || self.loads.iter().flatten();
        let before: Vec<usize> = all().map(ended).collect();
        until("calls of each end", || {
            all()
                .map(ended)
                .zip(&before)
                .all(|(now, before)| now >= before + more)
        });
    }

    /// A put and a get succeed within three leases, and every process of the load is served in that time and what the machine may
    /// add.
    pub(super) fn heals(&mut self, what: &str) {
        let begun = Instant::now();
        let since = nanos();
        let bound = 3 * LEASE;
        self.probes += 1;
        self.processes += 1;
        let (told, number) = (self.told(PROBE, "load"), self.probes);
        let probe = || {
            let client = told.connect();
            let name = format!("probe/{number}");
            let call = CallOptions {
                deadline: Some(bound),
                ..CallOptions::default()
            };
            let put = PutOptions {
                call: call.clone(),
                wait: Some(bound),
                ..PutOptions::default()
            };
            let get = GetOptions {
                call,
                ..GetOptions::default()
            };
            let bytes = value::make(number, number, 5000);
            let stored = client.put(name.as_bytes(), &bytes, &put);
            if stored != Ok(Stored::New) {
                return Err(format!("the put of the probe: {stored:?}"));
            }
            match client.get(name.as_bytes(), &get) {
                Ok(Some(got)) if got == bytes => Ok(()),
                got => Err(format!("the get of the probe: {got:?}")),
            }
        };
        let probed = self.network.on(PROBE, probe);
        let took = begun.elapsed();
        let right = probed.is_ok() && took < bound;
        assert!(
            right,
            "{what}: {probed:?} after {took:?}: {:#}\n{}",
            self.json("/debug/books"),
            self.logs()
        );
        let served = |load: &Load| {
            let lines = load.lines.lock().unwrap();
            let acts = lines.acts(load.process, nanos());
            let good = |act: &Act| {
                let stored = act.told == super::history::Told::Stored;
                stored && act.began >= since
            };
            acts.iter().any(good)
        };
        until("every process of the load is served", || {
            self.loads.iter().flatten().all(served)
        });
        let took = begun.elapsed();
        assert!(
            took < bound + SLACK,
            "{what}: the load was served after {took:?}"
        );
    }

    /// Puts durable values until an SSD has no room for one, which is refused and not promised.
    pub(super) fn fill_a_disk(&mut self) {
        self.processes += 1;
        let told = self.told(PROBE, "load");
        let bytes = value::make(0, 0, 200_000);
        let options = PutOptions {
            durability: Durability::Disk,
            ..PutOptions::default()
        };
        let fill = || {
            let client = told.connect();
            let put =
                |number: u64| client.put(format!("filler/{number}").as_bytes(), &bytes, &options);
            // On a busy machine a put may also end by its deadline, which says nothing of the disk.
            let mut refused = (0..300).filter_map(|number| put(number).err().map(|why| why.code()));
            refused.any(|code| code == ErrorCode::UnableOffloading)
        };
        assert!(self.network.on(PROBE, fill), "no disk was full");
    }

    pub(super) fn json(&self, path: &str) -> Value {
        let master = self.master.as_ref().unwrap();
        self.network.on(MASTER, || master.json(path))
    }

    /// The last lines of what the processes logged.
    pub(super) fn logs(&self) -> String {
        let log = |host: Host| {
            let text = std::fs::read_to_string(self.place.path(&format!("log{host}")));
            let text = text.unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(25)..].join("\n");
            format!("host {host}:\n{last}\n")
        };
        (0..=NODES).map(log).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(dying) = &mut self.dying {
            let _ = dying.kill();
            let _ = dying.wait();
        }
        for mut load in self.loads.iter_mut().filter_map(Option::take) {
            let _ = load.child.kill();
            let _ = load.child.wait();
        }
    }
}
