//! What `slackwater bench copy` measures.

use clap::Args;
use slackwater_base::ByteSize;
use slackwater_bench::copy;
use slackwater_pool::copy::{Isa, IsaChoice};

use super::args::{Output, one_or_more};
use crate::args::block_bytes;

/// See [`super::Bench::Copy`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Copy {
    /// Length of an object
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = block_bytes)]
    object_bytes: ByteSize,

    /// Memory that the objects lie in: many times the last-level cache
    #[arg(long, default_value = "512MiB", value_name = "SIZE", value_parser = block_bytes)]
    source_bytes: ByteSize,

    /// Passes of each form, in turns; the medians count
    #[arg(long, default_value = "7", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// Paths: portable, sse, neon, avx2, avx512, the first of which everything but the buffers takes
    /// [default: all that the processor has, the widest first]
    #[arg(long, env = IsaChoice::ENV, hide_env_values = true, value_name = "PATH,…", value_delimiter = ',')]
    isa: Vec<IsaChoice>,

    #[command(flatten)]
    pub(super) output: Output,
}

impl Copy {
    pub(super) fn options(&self) -> copy::Options {
        copy::Options {
            object_bytes: self.object_bytes.0 as usize,
            source_bytes: self.source_bytes.0 as usize,
            rounds: self.rounds,
            paths: self.isa.iter().flat_map(|choice| paths(*choice)).collect(),
        }
    }
}

/// The paths of a choice, the widest first.
fn paths(choice: IsaChoice) -> Vec<Isa> {
    match choice {
        IsaChoice::Auto => {
            let available = Isa::ALL.iter().rev().copied().filter(|isa| isa.available());
            available.collect()
        }
        IsaChoice::Forced(isa) => vec![isa],
    }
}
