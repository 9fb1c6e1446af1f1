//! What `slackwater bench store --served` measures.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use slackwater_base::{ByteSize, parse_duration};
use slackwater_bench::served;

use super::args::{Store, given, one_or_more};
use crate::args::block_bytes;

/// The cells of the grid.
#[derive(Clone, Debug, Args)]
#[group(id = "grid", requires = "served")]
pub(crate) struct Grid {
    /// Calls: put_from, put_batch, get_into, get_into_asked, get, get_batch_into [default: all]
    #[arg(long, value_name = "OP,…", value_delimiter = ',', value_parser = op)]
    ops: Vec<served::Op>,

    /// Lengths of values [default: 4KiB,64KiB,1MiB,4MiB]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = block_bytes)]
    blocks: Vec<ByteSize>,

    /// Calls under way at once, a row each [default: 1,16,64]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    concurrency: Vec<usize>,

    /// Ways to the store: tcp, same_host [default: both]
    #[arg(long, value_name = "PATH,…", value_delimiter = ',', value_parser = path)]
    paths: Vec<served::Path>,

    /// Have one process be master and node, as `slackwater serve` is: its CPU time counts as the node's
    #[arg(long)]
    fused: bool,

    /// How long a cell is measured in a round [default: 200ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    window: Option<Duration>,

    /// Rounds, whose medians count [default: 3]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    rounds: Option<usize>,

    /// A Python with the incumbent's package [default: $SLACKWATER_PYTHON, else python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

fn op(name: &str) -> Result<served::Op, String> {
    let names = || served::Op::ALL.map(served::Op::name).join(", ");
    served::Op::parse(name).ok_or_else(|| format!("`{name}` is no call: one of {}", names()))
}

fn path(name: &str) -> Result<served::Path, String> {
    served::Path::parse(name).ok_or_else(|| format!("`{name}` is no path: tcp or same_host"))
}

impl Store {
    pub(super) fn served_options(&self, directory: &Path, program: OsString) -> served::Options {
        let mut options = served::Options::new(directory.to_owned());
        let grid = &self.grid;
        let blocks: Vec<usize> = grid.blocks.iter().map(|size| size.0 as usize).collect();
        given(&mut options.ops, &grid.ops);
        given(&mut options.blocks, &blocks);
        given(&mut options.concurrency, &grid.concurrency);
        given(&mut options.paths, &grid.paths);
        options.window = grid.window.unwrap_or(options.window);
        options.rounds = grid.rounds.unwrap_or(options.rounds);
        options.peers = !self.no_peers;
        options.program = (!grid.fused).then(|| vec![program]);
        options.python = grid.python.clone().unwrap_or(options.python);
        options
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        store: Store,
    }

    #[test]
    fn master_and_node_are_processes_of_their_own_unless_they_are_fused() {
        let check = |more: &[&str], program: Option<Vec<OsString>>| {
            let words = [&["store", "--served"], more].concat();
            let line = Line::try_parse_from(words).unwrap();
            let options = line.store.served_options(Path::new("tmp"), "this".into());
            assert_eq!(options.program, program, "{more:?}");
        };
        check(&[], Some(vec!["this".into()]));
        check(&["--fused"], None);
        assert!(Line::try_parse_from(["store", "--fused"]).is_err());
    }
}
