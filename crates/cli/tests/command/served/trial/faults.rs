//! Faults in the order that a seed draws.

use slackwater_base::Rng;

use super::cluster::{Cluster, LEASE, LOADS, MASTER, NODES, loader, node};
use super::network::Host;

/// Something that happens to a pool, and ends.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A process is killed, and started again.
    Killed(Host),
    /// A process is told to end, and started again.
    Restarted(Host),
    /// A process is killed where it passes this place.
    Fails(Host, &'static str),
    /// A process runs no more, for longer than a lease.
    Stopped(Host),
    /// Nothing that the first sends reaches the second.
    OneWay(Host, Host),
    /// Neither hears of the other.
    Apart(Host, Host),
    /// All that a host sends is slow.
    Slow(Host),
}

/// Failpoints of the load, of nodes, and of a master that has something to note.
const LOAD_PLACES: [&str; 3] = [
    "put.granted=kill:5",
    "put.written=kill:5",
    "get.located=kill:5",
];
const NODE_PLACES: [&str; 3] = [
    "node.checked=kill:9",
    "node.ordered=kill:9",
    "node.obeyed=kill:9",
];
const MASTER_PLACES: [&str; 2] = ["journal.committing=kill:5", "journal.committed=kill:5"];

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
        Fault::Fails(loader(any(LOADS)), LOAD_PLACES[any(3)]),
        Fault::Fails(node(any(NODES)), NODE_PLACES[any(3)]),
        Fault::Fails(MASTER, MASTER_PLACES[any(2)]),
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
            Fault::Fails(host, place) => {
                self.kill(host);
                self.begin_failing(host, place);
                // While all nodes are there, a master has nothing to note.
                let away = (host == MASTER).then_some(node(0));
                away.into_iter().for_each(|node| self.kill(node));
                self.dies(host);
                self.begin(host);
                away.into_iter().for_each(|node| self.begin(node));
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
                self.calls_of_each(4);
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
        cluster.suffer(*fault);
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
