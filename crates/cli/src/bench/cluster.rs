//! What `slackwater bench master`, `idle`, `page` and `restart` measure.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use slackwater_base::parse_duration;
use slackwater_bench::cluster::{Programs, idle, master, page, restart};

use super::args::{Output, given, one_or_more};

/// See [`super::Bench::Master`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Master {
    /// Where the master's directory is made and removed again
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Objects in the catalog, one after another; each takes 4 KiB of the nodes' memory [default: 1000000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    objects: Vec<usize>,

    /// Processes that lend memory [default: 64]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    nodes: Option<usize>,

    /// What clients ask: lookup, exists, put [default: all]
    #[arg(long, value_name = "OP,…", value_delimiter = ',', value_parser = op)]
    ops: Vec<master::Op>,

    /// Keys of one call, a row each [default: 1,1024]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    batch: Vec<usize>,

    /// Look-ups of one key that each client has under way at once, rows beside those of one [default: 16]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    in_flight: Vec<usize>,

    /// Clients that ask at once, a row each [default: 1,16,64]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    clients: Vec<usize>,

    /// How long a cell is measured in a round [default: 500ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,

    /// Rounds, whose medians count [default: 3]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    rounds: Option<usize>,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`super::Bench::Idle`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Idle {
    /// Where directories are made and removed again
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Processes that lend memory and an SSD [default: 3]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    nodes: Option<usize>,

    /// Clients, a process each [default: 100]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    clients: Option<usize>,

    /// Links whose memory at the master is measured [default: 1000]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    links: Option<usize>,

    /// How long nobody asks for anything before that counts [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    settle: Option<Duration>,

    /// How long CPU time is counted [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`super::Bench::Restart`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Restart {
    /// Where directories are made and removed again: on the device to be measured
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Objects, every second one on SSD too; each takes 4 KiB of the nodes' memory [default: 1000000]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    objects: Option<usize>,

    /// Processes that lend memory and an SSD [default: 4]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    nodes: Option<usize>,

    /// How often the master is killed; the medians count [default: 3]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    rounds: Option<usize>,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`super::Bench::Page`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Page {
    /// Where the master's directory is made and removed again
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Objects in the catalog; each takes 4 KiB of the nodes' memory [default: 1000000]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    objects: Option<usize>,

    /// Processes that lend memory [default: 10]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    nodes: Option<usize>,

    /// Pages that are open, a row each beside none, of up to 16; a row of 0 is what the machine does by itself [default: 0,1,10]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = viewers)]
    viewers: Vec<usize>,

    /// Clients that read at once [default: 4]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    clients: Option<usize>,

    /// From one get of a client to its next one; 0 leaves no pause [default: 2ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    every: Option<Duration>,

    /// How long gets are measured with so many viewers in a round, and without; a viewer is told a sample a second [default: 4s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,

    /// Rounds, whose medians count [default: 7]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    rounds: Option<usize>,

    #[command(flatten)]
    pub(super) output: Output,
}

fn viewers(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.parse().ok();
    let number = number.filter(|number| *number <= 16);
    number.ok_or_else(|| format!("`{text}` is no number of pages from 0 to 16"))
}

fn op(name: &str) -> Result<master::Op, String> {
    let names = || master::Op::ALL.map(master::Op::name).join(", ");
    master::Op::parse(name)
        .ok_or_else(|| format!("`{name}` is nothing to be asked: one of {}", names()))
}

impl Master {
    pub(super) fn options(&self, directory: &Path, programs: Programs) -> master::Options {
        let mut options = master::Options {
            programs,
            ..master::Options::new(directory.to_owned())
        };
        given(&mut options.objects, &self.objects);
        given(&mut options.ops, &self.ops);
        given(&mut options.batches, &self.batch);
        given(&mut options.in_flight, &self.in_flight);
        given(&mut options.clients, &self.clients);
        options.nodes = self.nodes.unwrap_or(options.nodes);
        options.window = self.window.unwrap_or(options.window);
        options.rounds = self.rounds.unwrap_or(options.rounds);
        options
    }
}

impl Idle {
    pub(super) fn options(&self, directory: &Path, programs: Programs) -> idle::Options {
        let defaults = idle::Options::new(directory.to_owned());
        idle::Options {
            nodes: self.nodes.unwrap_or(defaults.nodes),
            clients: self.clients.unwrap_or(defaults.clients),
            links: self.links.unwrap_or(defaults.links),
            settle: self.settle.unwrap_or(defaults.settle),
            window: self.window.unwrap_or(defaults.window),
            programs,
            ..defaults
        }
    }
}

impl Page {
    pub(super) fn options(&self, directory: &Path, programs: Programs) -> page::Options {
        let defaults = page::Options::new(directory.to_owned());
        let mut options = page::Options {
            objects: self.objects.unwrap_or(defaults.objects),
            nodes: self.nodes.unwrap_or(defaults.nodes),
            clients: self.clients.unwrap_or(defaults.clients),
            every: self.every.unwrap_or(defaults.every),
            window: self.window.unwrap_or(defaults.window),
            rounds: self.rounds.unwrap_or(defaults.rounds),
            programs,
            ..defaults
        };
        given(&mut options.viewers, &self.viewers);
        options
    }
}

impl Restart {
    pub(super) fn options(&self, directory: &Path, programs: Programs) -> restart::Options {
        let defaults = restart::Options::new(directory.to_owned());
        restart::Options {
            objects: self.objects.unwrap_or(defaults.objects),
            nodes: self.nodes.unwrap_or(defaults.nodes),
            rounds: self.rounds.unwrap_or(defaults.rounds),
            programs,
            ..defaults
        }
    }
}
