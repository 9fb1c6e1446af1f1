//! Machines of a test: network namespaces behind one bridge, whose links lose packets one way, or both, or are slow.
//!
//! A host loses what it sends to another by a neighbour entry with an address that nobody has: the frames reach the
//! bridge and no host, the sender hears nothing of it, and the other way stays as it was. Where namespaces are not
//! allowed, everything is on the loopback, and what is dialled to the master goes through proxies that hold bytes back.

#![expect(clippy::print_stdout, reason = "what cannot be tried here")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A machine, by its number.
pub(super) type Host = usize;

/// See the module.
pub(super) struct Network {
    hosts: usize,
    /// The beginning of the names of the namespaces; none on the loopback.
    spaces: Option<String>,
    /// Whether what a host sends can be slowed.
    shapes: bool,
    proxies: Mutex<BTreeMap<(Host, Host), Arc<Proxy>>>,
}

/// Bytes a second of a slow host.
const SLOW_RATE: u64 = 64 << 10;

impl Network {
    /// Makes so many hosts.
    pub(super) fn new(hosts: usize) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        remove_dead();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("slackwater-{}-{number}", std::process::id());
        let mut network = Self {
            hosts,
            spaces: Some(name),
            shapes: true,
            proxies: Mutex::default(),
        };
        if let Err(why) = network.make() {
            network.remove();
            network.spaces = None;
            println!(
                "no network namespaces ({why}): links between clients and nodes are not cut or slowed, those to the master \
                 are by a proxy"
            );
        }
        if network.has_spaces() && hosts > 1 {
            let shaped = (network.shape(0, true)).and_then(|()| network.shape(0, false));
            if let Err(why) = shaped {
                network.shapes = false;
                println!("no shaper of packets ({why}): no host is slowed");
            }
        }
        network
    }

    /// Whether packets between any two hosts can be lost.
    pub(super) fn has_spaces(&self) -> bool {
        self.spaces.is_some()
    }

    fn make(&self) -> Result<(), String> {
        let hub = self.space("hub");
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
        for host in 0..self.hosts {
            let (space, port) = (self.space(host), format!("port{host}"));
            let wire = [
                "-n",
                &hub,
                "link",
                "add",
                &port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "address",
                &mac(host),
                "netns",
                &space,
            ];
            ip(&["netns", "add", &space])?;
            ip(&wire)?;
            ip(&["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
            let address = format!("{}/24", self.address(host));
            ip(&["-n", &space, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn remove(&self) {
        if self.spaces.is_some() {
            for host in 0..self.hosts {
                let _ = ip(&["netns", "del", &self.space(host)]);
            }
            let _ = ip(&["netns", "del", &self.space("hub")]);
        }
    }

    fn space(&self, of: impl std::fmt::Display) -> String {
        format!("{}-{of}", self.spaces.as_deref().unwrap_or_default())
    }

    /// Where a host listens.
    pub(super) fn address(&self, host: Host) -> IpAddr {
        match self.spaces {
            Some(_) => Ipv4Addr::new(10, 77, 0, 1 + host as u8).into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Does something on a host: sockets and processes that it makes are there.
    pub(super) fn on<T: Send>(&self, host: Host, act: impl FnOnce() -> T + Send) -> T {
        if self.spaces.is_none() {
            return act();
        }
        let path = format!("/run/netns/{}", self.space(host));
        let enter = || {
            let space = std::fs::File::open(path).unwrap();
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        std::thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// What `from` dials to reach this address of `to`.
    pub(super) fn route(&self, from: Host, to: Host, address: SocketAddr) -> SocketAddr {
        if self.spaces.is_some() {
            return address;
        }
        let mut proxies = self.proxies.lock().unwrap();
        let proxy = proxies
            .entry((from, to))
            .or_insert_with(|| Proxy::to(address));
        proxy.address
    }

    /// From now on nothing that `from` sends reaches `to`; nobody is told.
    pub(super) fn cut(&self, from: Host, to: Host) {
        self.set(from, to, true);
    }

    /// The end of [`Self::cut`].
    pub(super) fn mend(&self, from: Host, to: Host) {
        self.set(from, to, false);
    }

    fn set(&self, from: Host, to: Host, cut: bool) {
        if self.spaces.is_some() {
            let nobody = "02:00:00:00:ff:ff".to_owned();
            let mac = if cut { nobody } else { mac(to) };
            let (space, to) = (self.space(from), self.address(to).to_string());
            let entry = ["-n", &space, "neigh", "replace", &to, "lladdr", &mac];
            ip(&[&entry[..], &["nud", "permanent", "dev", "eth0"]].concat()).unwrap();
            return;
        }
        let proxies = self.proxies.lock().unwrap();
        for ((dials, listens), way) in [((from, to), 0), ((to, from), 1)] {
            if let Some(proxy) = proxies.get(&(dials, listens)) {
                proxy.ways[way].hold(cut);
            }
        }
    }

    /// What this host sends goes at 64 KiB a second from now on, or as fast as before.
    pub(super) fn slow(&self, host: Host, slow: bool) {
        if self.spaces.is_some() {
            if self.shapes {
                self.shape(host, slow).unwrap();
            }
            return;
        }
        for ((dials, listens), proxy) in &*self.proxies.lock().unwrap() {
            if *dials == host {
                proxy.ways[0].slow.store(slow, Ordering::Relaxed);
            }
            if *listens == host {
                proxy.ways[1].slow.store(slow, Ordering::Relaxed);
            }
        }
    }

    fn shape(&self, host: Host, slow: bool) -> Result<(), String> {
        let space = self.space(host);
        let change = if slow { "replace" } else { "del" };
        let device = ["-n", &space, "qdisc", change, "dev", "eth0", "root"];
        let rate = (8 * SLOW_RATE).to_string();
        let shape = ["tbf", "rate", &rate, "burst", "16kb", "latency", "400ms"];
        let shape = if slow { &shape[..] } else { &[] };
        tool("tc", &[&device[..], shape].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes what tests left that were killed.
fn remove_dead() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten();
    for name in names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let process = name.strip_prefix("slackwater-");
        let process = process.and_then(|rest| rest.split('-').next());
        let alive = |process| std::path::Path::new("/proc").join(process).exists();
        if process.is_some_and(|process| process.parse::<u32>().is_ok() && !alive(process)) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn mac(host: Host) -> String {
    format!("02:00:00:00:00:{:02x}", 1 + host)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    tool("ip", arguments)
}

fn tool(name: &str, arguments: &[&str]) -> Result<(), String> {
    let said = |what: &str| format!("{name} {}: {}", arguments.join(" "), what.trim());
    let output = Command::new(name).args(arguments).output();
    let output = output.map_err(|error| said(&error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(said(&String::from_utf8_lossy(&output.stderr)))
}

/// Carries bytes to one address, and holds back or slows those of either way.
struct Proxy {
    address: SocketAddr,
    /// From who dials, and to them.
    ways: [Way; 2],
}

#[derive(Default)]
struct Way {
    held: Mutex<bool>,
    changed: Condvar,
    slow: AtomicBool,
}

impl Way {
    fn hold(&self, hold: bool) {
        *self.held.lock().unwrap() = hold;
        self.changed.notify_all();
    }

    fn pass(&self, bytes: usize) {
        let held = self.held.lock().unwrap();
        drop(self.changed.wait_while(held, |held| *held).unwrap());
        if self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs_f64(bytes as f64 / SLOW_RATE as f64));
        }
    }
}

impl Proxy {
    fn to(target: SocketAddr) -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Self {
            address,
            ways: [Way::default(), Way::default()],
        });
        let carrier = Arc::clone(&proxy);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else {
                    continue;
                };
                for (way, from, to) in [(0, &near, &far), (1, &far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let proxy = Arc::clone(&carrier);
                    std::thread::spawn(move || carry(&proxy.ways[way], from, to));
                }
            }
        });
        proxy
    }
}

fn carry(way: &Way, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        way.pass(read);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // A peer that has gone is not heard of while its way is held.
    way.pass(0);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
