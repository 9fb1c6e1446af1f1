//! Faults in the order that a seed draws, and those that are met in any case.

use std::collections::BTreeSet;
use std::path::Path;

use slackwater_base::Rng;

use super::super::network::Host;
use super::cluster::{Cluster, LEASE, LOADS, MASTER, NODES, loader, node};

/// Something that happens to a pool, and ends.
#[derive(Clone, Debug)]
enum Fault {
    /// A process is killed, and started again.
    Killed(Host),
    /// A process is told to end, and started again.
    Restarted(Host),
    /// Processes are killed, each where it passes a place.
    Fails(Vec<(Host, &'static str)>),
    /// A process runs no more, for longer than a lease.
    Stopped(Host),
    /// Nothing that the first sends reaches the second.
    OneWay(Host, Host),
    /// Neither hears of the other.
    Apart(Host, Host),
    /// All that a host sends is slow.
    Slow(Host),
}

/// Processes that pass a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Load,
    Node,
    /// A master that has something to note.
    Master,
    /// A client that maps the memory of its server, as one with a key does not: see [`super::super::faults`].
    SameHost,
}

/// Every failpoint there is, and at which time that it is passed its process is killed there.
const FAILPOINTS: [(&str, &str, Passes); 9] = [
    ("put.granted", "put.granted=kill:5", Passes::Load),
    ("put.written", "put.written=kill:5", Passes::Load),
    ("get.located", "get.located=kill:5", Passes::Load),
    ("node.checked", "node.checked=kill:9", Passes::Node),
    ("node.ordered", "node.ordered=kill:9", Passes::Node),
    ("node.obeyed", "node.obeyed=kill:9", Passes::Node),
    (
        "journal.committing",
        "journal.committing=kill:5",
        Passes::Master,
    ),
    (
        "journal.committed",
        "journal.committed=kill:5",
        Passes::Master,
    ),
    ("host.copying", "host.copying=kill", Passes::SameHost),
];

/// The failpoints that such a process is killed at.
fn places(of: Passes) -> Vec<&'static str> {
    let all = FAILPOINTS.iter().filter(|(.., passes)| *passes == of);
    all.map(|(_, place, _)| *place).collect()
}

/// One fault of each kind, on hosts that the seed draws, in its order.
fn drawn(seed: u64) -> Vec<Fault> {
    let mut rng = Rng::new(seed);
    let mut any = |count: usize| rng.below(count as u64) as usize;
    let (one, other) = (node(any(NODES)), loader(any(LOADS)));
    let ends = |at: usize| [(MASTER, one), (MASTER, other), (one, other)][at];
    let (from, to) = ends(any(3));
    let (to, from) = if any(2) == 0 { (to, from) } else { (from, to) };
    let (near, far) = ends(any(3));
    let anybody = [MASTER, node(any(NODES)), loader(any(LOADS))];
    let mut faults = vec![
        Fault::Killed(MASTER),
        Fault::Killed(node(any(NODES))),
        Fault::Killed(loader(any(LOADS))),
        Fault::Restarted([MASTER, node(any(NODES))][any(2)]),
        Fault::Stopped(anybody[any(3)]),
        Fault::OneWay(from, to),
        Fault::Apart(near, far),
        Fault::Slow([MASTER, node(any(NODES))][any(2)]),
    ];
    for last in (1..faults.len()).rev() {
        faults.swap(last, any(last + 1));
    }
    faults
}

impl Cluster {
    /// Lets a fault begin, and end.
    fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Killed(host) => {
                self.kill(host);
                self.begin(host);
            }
            Fault::Restarted(host) => {
                self.end(host);
                self.begin(host);
            }
            Fault::Fails(processes) => {
                for (host, place) in &processes {
                    self.kill(*host);
                    self.begin_failing(*host, place);
                }
                for (host, _) in processes {
                    // While all nodes are there, a master has nothing to note.
                    let away = (host == MASTER).then_some(node(0));
                    away.into_iter().for_each(|node| self.kill(node));
                    self.dies(host);
                    self.begin(host);
                    away.into_iter().for_each(|node| self.begin(node));
                }
            }
            Fault::Stopped(host) => {
                self.stop(host);
                // Time is what this fault is about.
                std::thread::sleep(LEASE + LEASE / 4);
                self.go_on(host);
            }
            Fault::OneWay(from, to) => {
                self.network.cut(from, to);
                self.calls_of_each(4);
                self.network.mend(from, to);
            }
            Fault::Apart(one, other) => {
                self.network.cut(one, other);
                self.network.cut(other, one);
                // As long as calls take to fail, and more: so that what is cut off is met by some.
                std::thread::sleep(LEASE);
                self.network.mend(one, other);
                self.network.mend(other, one);
            }
            Fault::Slow(host) => {
                self.network.slow(host, true);
                self.calls_of_each(4);
                self.network.slow(host, false);
            }
        }
    }
}

/// A pool under load, that has served once.
pub(super) fn loaded(mut cluster: Cluster) -> Cluster {
    (0..LOADS).for_each(|number| cluster.start_load(number));
    cluster.heals("at the start");
    cluster
}

/// A pool under load meets these faults, one after the other.
fn trial(seed: u64, faults: &[Fault]) {
    let begun = std::time::Instant::now();
    let mut cluster = loaded(Cluster::start(seed));
    for fault in faults {
        cluster.calls(20);
        println!("seed {seed}, after {:?}: {fault:?}", begun.elapsed());
        cluster.suffer(fault.clone());
        cluster.heals(&format!("seed {seed}, after {fault:?}"));
    }
    cluster.settle();
    println!("seed {seed}: {:?}", begun.elapsed());
}

/// The seeds to be tried: `FIRST..END` of the environment, or one.
#[test]
fn nothing_is_wrong_lost_or_left_after_faults() {
    let seeds = std::env::var("SLACKWATER_FAULT_SEEDS").unwrap_or_else(|_| "1..2".into());
    let (first, end) = seeds.split_once("..").expect("write FIRST..END");
    let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
    assert!(first < end, "no seed is in {seeds}");
    (first..end).for_each(|seed| trial(seed, &drawn(seed)));
}

/// An orderly restart of the master left the nodes without one, and clients that stayed were not served again.
#[test]
fn every_process_is_restarted_in_turn_under_load() {
    let servers = std::iter::once(MASTER).chain((0..NODES).map(node));
    let mut faults: Vec<Fault> = servers.map(Fault::Restarted).collect();
    faults.extend((0..LOADS).map(|number| Fault::Killed(loader(number))));
    trial(70_001, &faults);
}

/// What a seed may leave out: each kind of process is killed at each place that can be named to it, a master goes on after all
/// leases that it has granted are over, and clients are cut off from the master, and from a node.
#[test]
fn every_failpoint_a_stopped_master_and_lost_ways_are_survived() {
    let [load, nodes, masters] = [Passes::Load, Passes::Node, Passes::Master].map(places);
    // Those that are killed together need nothing of one another to get to their places.
    let mut rounds: Vec<Vec<(Host, &str)>> = Vec::new();
    for round in 0..load.len().max(nodes.len()) {
        let loads = load.get(round).map(|place| (loader(round % LOADS), *place));
        let nodes = nodes.get(round).map(|place| (node(round % NODES), *place));
        rounds.push(loads.into_iter().chain(nodes).collect());
    }
    rounds.extend(masters.into_iter().map(|place| vec![(MASTER, place)]));
    let mut faults: Vec<Fault> = rounds.into_iter().map(Fault::Fails).collect();
    faults.extend([
        Fault::Stopped(MASTER),
        Fault::Apart(MASTER, loader(0)),
        Fault::Apart(node(0), loader(1)),
    ]);
    trial(70_002, &faults);
}

/// The failpoints that sources name, below a folder.
fn named(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for (at, call) in text.match_indices("failpoint(") {
            if text[..at].ends_with("fn ") {
                continue;
            }
            let place = text[at + call.len()..].strip_prefix('"');
            let name = place.and_then(|place| place.split('"').next());
            let name = name.unwrap_or_else(|| panic!("{path:?} has a failpoint without a name"));
            names.insert(name.to_owned());
        }
    }
}

#[test]
fn every_failpoint_has_its_row() {
    let mut names = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in std::fs::read_dir(crates).unwrap() {
        let sources = entry.unwrap().path().join("src");
        if sources.is_dir() {
            named(&sources, &mut names);
        }
    }
    let rows = FAILPOINTS.iter().map(|(name, ..)| (*name).to_owned());
    assert_eq!(names, rows.collect());
    let writers = super::super::faults::PLACES;
    for place in places(Passes::SameHost) {
        let (name, _) = place.split_once('=').unwrap();
        assert!(writers.contains(&name), "{name}");
    }
    assert!(
        FAILPOINTS
            .iter()
            .all(|(name, place, _)| place.starts_with(name))
    );
}
