//! A run before it begins: options, scripts and faults, all from the seed and all open to the shrinker.

use crate::engine::Seed;
use crate::fault::{Extent, Planned};
use crate::load::Step;
use crate::options::{Options, Profile};

/// Everything that a run will meet, except what its random streams decide on the way.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where all streams come from.
    pub seed: Seed,
    /// What the cluster is like.
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

    /// The plan of a seed for a cluster that is like `options`.
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
        let cluster = Extent {
            nodes: options.nodes,
            clients: options.clients,
            lasts,
        };
        let faults = options
            .atlas
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
