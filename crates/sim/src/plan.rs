//! The plan of a run: options, scripts and faults, all drawn from the seed and all reducible by the shrinker.

use crate::engine::Seed;
use crate::fault::{ClusterSize, Planned};
use crate::load::Step;
use crate::options::{Options, Profile};

/// The inputs of a run, except what its random streams decide while it runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random streams.
    pub seed: Seed,
    /// The options of the run.
    pub options: Options,
    /// The steps of each client, in order.
    pub scripts: Vec<Vec<Step>>,
    /// The faults, in the order of their times.
    pub faults: Vec<Planned>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(profile: Profile, seed: Seed) -> Self {
        Self::with(seed, profile.options(seed))
    }

    /// The plan of a seed for a cluster with `options`.
    #[must_use]
    pub fn with(seed: Seed, options: Options) -> Self {
        let steps = options.load.operations / options.clients;
        let scripts = (0..options.clients)
            .map(|client| {
                options
                    .load
                    .script(&mut seed.stream("script", u64::from(client)), steps)
            })
            .collect();
        let lasts = options.load.think * steps;
        let cluster = ClusterSize {
            nodes: options.nodes,
            clients: options.clients,
            lasts,
        };
        let faults =
            options
                .fault_kinds
                .plan(&mut seed.stream("faults", 0), cluster, options.faults);
        Self {
            seed,
            options,
            scripts,
            faults,
        }
    }

    /// Operations in all scripts.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.scripts.iter().map(Vec::len).sum()
    }
}
