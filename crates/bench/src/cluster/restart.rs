//! How soon a killed master serves again what the memory and the SSDs of its nodes hold.

use std::path::PathBuf;

use serde::Serialize;
use slackwater_base::{BLOCK_BYTES, ByteSize};
use slackwater_mq::Address;
use slackwater_remote::{CallOptions, Client, ConnectOptions};
use slackwater_report::Bound;
use slackwater_wait::now;

use super::{
    Cluster, ClusterError, NOBODY, Programs, Shape, failed, memory_for, start_load, start_master,
};
use crate::usage::median;

/// The sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Objects, of which every second one is on SSD too. Each takes a block of the nodes' memory.
    pub objects: usize,
    /// Processes that lend memory and an SSD.
    pub nodes: usize,
    /// How often the master is killed; the medians count, of what is lost the sum.
    pub rounds: usize,
    /// Where the directories of master and nodes are made: on the device to be measured.
    pub directory: PathBuf,
    /// How the processes are started.
    pub programs: Programs,
}

impl Options {
    /// A million objects on four nodes, with their SSDs in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            objects: 1_000_000,
            nodes: 4,
            rounds: 3,
            directory,
            programs: Programs::default(),
        }
    }
}

/// The figures of a run. Times are counted from the start of the new master's process, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Objects before each kill.
    pub objects: usize,
    /// Nodes.
    pub nodes: usize,
    /// Kills.
    pub rounds: usize,
    /// Until the master says where it listens.
    pub listening_ms: f64,
    /// Until a client that was connected before has read a value.
    pub first_hit_ms: f64,
    /// Until that client has found every object.
    pub all_ms: f64,
    /// CPU seconds that the new master used until then.
    pub master_cpu_s: f64,
    /// Objects that were not there any more, over all rounds.
    pub lost: f64,
    /// Values that were not those that were put, over all rounds.
    pub wrong: f64,
    /// What would be there without a catalog.
    pub limits: Limits,
    /// Until the first hit, over the start of a master with nothing.
    pub first_hit_ratio: f64,
    /// Until all, over that start and the time that asking for all takes.
    pub all_ratio: f64,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// What a restart cannot be faster than.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// From the start of a master without nodes and files until it has answered a client.
    pub empty_start_ms: f64,
    /// What asking for every object takes while the master has them all.
    pub asking_ms: f64,
}

/// One kill.
struct Sample {
    listening_ms: f64,
    first_hit_ms: f64,
    all_ms: f64,
    master_cpu_s: f64,
    lost: f64,
    wrong: f64,
    empty_start_ms: f64,
    asking_ms: f64,
}

/// Measures.
///
/// # Errors
/// When a process cannot be started, fails or falls silent.
pub fn run(options: &Options) -> Result<Report, ClusterError> {
    let Options { objects, nodes, .. } = *options;
    let mut cluster = Cluster::start(&Shape {
        program: &options.programs.program,
        nodes,
        memory: memory_for(objects, nodes),
        ssd: Some(ssd_for(objects, nodes)),
        directory: options.directory.clone(),
        is_administered: false,
    })?;
    let mut load = start_load(&options.programs, &cluster.address)?;
    load.say(&format!("fill {objects} 256 2"))?;
    load.hear("filled")?;
    let mut samples = Vec::with_capacity(options.rounds);
    for _ in 0..options.rounds {
        let empty_start_ms = empty_start(&options.programs)?;
        load.say(&format!("walk {objects}"))?;
        let [asking, missing] = load.numbers("walked")?;
        if missing > 0.0 {
            return Err(failed(format!(
                "{missing} objects went before the master was killed"
            )));
        }
        cluster.kill_master()?;
        load.say(&format!("follow {objects}"))?;
        let begun = now();
        let since = || now().since(begun).as_secs_f64() * 1e3;
        cluster.restart_master()?;
        let listening_ms = since();
        load.hear("hit")?;
        let first_hit_ms = since();
        load.hear("all")?;
        let (all_ms, [master_cpu_s, _]) = (since(), cluster.cpu_seconds());
        let [lost, wrong] = load.numbers("compared")?;
        samples.push(Sample {
            listening_ms,
            first_hit_ms,
            all_ms,
            master_cpu_s,
            lost,
            wrong,
            empty_start_ms,
            asking_ms: asking * 1e3,
        });
    }
    Ok(report(options, &samples))
}

fn report(options: &Options, samples: &[Sample]) -> Report {
    let middle =
        |value: fn(&Sample) -> f64| median(&mut samples.iter().map(value).collect::<Vec<_>>());
    let limits = Limits {
        empty_start_ms: middle(|sample| sample.empty_start_ms),
        asking_ms: middle(|sample| sample.asking_ms),
    };
    let first_hit_ms = middle(|sample| sample.first_hit_ms);
    let all_ms = middle(|sample| sample.all_ms);
    let lost = samples.iter().map(|sample| sample.lost).sum();
    let wrong = samples.iter().map(|sample| sample.wrong).sum();
    Report {
        objects: options.objects,
        nodes: options.nodes,
        rounds: samples.len(),
        listening_ms: middle(|sample| sample.listening_ms),
        first_hit_ms,
        all_ms,
        master_cpu_s: middle(|sample| sample.master_cpu_s),
        lost,
        wrong,
        first_hit_ratio: first_hit_ms / limits.empty_start_ms,
        all_ratio: all_ms / (limits.empty_start_ms + limits.asking_ms),
        limits,
        bounds: vec![
            Bound::at_most("until the first hit, in ms", first_hit_ms, 1000.0),
            Bound::at_most("until all objects are there, in ms", all_ms, 5000.0),
            Bound::at_most("objects lost", lost, 0.0),
            Bound::at_most("wrong values", wrong, 0.0),
        ],
    }
}

/// Milliseconds until a master with nothing has answered a client.
fn empty_start(programs: &Programs) -> Result<f64, ClusterError> {
    let begun = now();
    let (_master, address) = start_master(&programs.program, ["127.0.0.1:0", NOBODY], None)?;
    let address: Address = address
        .parse()
        .map_err(|_| failed("the address of a master"))?;
    let client = Client::connect(&ConnectOptions {
        address,
        ..ConnectOptions::default()
    })?;
    let there = client
        .exists(&[b"k"], &CallOptions::default())
        .map_err(failed)?;
    match there[..] {
        [false] => Ok(now().since(begun).as_secs_f64() * 1e3),
        _ => Err(failed("a master without nodes has an object")),
    }
}

/// Space that each node's SSD needs for its share of every second object: a block for the value, another for what is said of it.
fn ssd_for(objects: usize, nodes: usize) -> ByteSize {
    let each = objects.div_ceil(2 * nodes) as u64 * 2 * BLOCK_BYTES;
    ByteSize((2 * each).next_multiple_of(64 << 20).max(256 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_and_losses_are_sums() {
        let sample = |all_ms: f64, lost| Sample {
            listening_ms: 10.0,
            first_hit_ms: all_ms / 10.0,
            all_ms,
            master_cpu_s: 1.0,
            lost,
            wrong: 0.0,
            empty_start_ms: 20.0,
            asking_ms: 180.0,
        };
        let options = Options::new(PathBuf::new());
        let samples = [
            sample(3000.0, 0.0),
            sample(9000.0, 0.0),
            sample(4000.0, 1.0),
        ];
        let report = report(&options, &samples);
        assert_eq!((report.all_ms, report.lost), (4000.0, 1.0));
        assert_eq!((report.first_hit_ratio, report.all_ratio), (20.0, 20.0));
        let holds: Vec<bool> = report.bounds.iter().map(Bound::holds).collect();
        assert_eq!(holds, [true, true, false, true]);
    }
}
