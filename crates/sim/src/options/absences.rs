//! Runs in which nodes are cut off for so long that they are hidden and given up, and come back with all that they hold.

use std::time::Duration;

use slackwater_meta::{Absence, OffloadMode, Tenancy};

use crate::engine::Seed;
use crate::fault::FaultKinds;
use crate::load::LoadOptions;

use super::{Options, pick};

impl Options {
    /// The options of a seed for [`super::Profile::Absences`]: values on both tiers of several nodes, little quota, and offloads that
    /// expire while a node is away.
    #[must_use]
    pub fn absences(seed: Seed) -> Self {
        let mut options = Self::of(seed);
        let rng = &mut seed.stream("absences", 0);
        let millis = |millis: u64| Duration::from_millis(millis);
        options.embedded = false;
        options.nodes = 3;
        options.clients = options.clients.max(2);
        options.segment_bytes = pick(rng, &[192 << 10, 384 << 10]);
        (options.log_bytes, options.log_file_bytes) = (LOG_BYTES, LOG_BYTES / 16);
        options.link_timeout = millis(100);
        options.master.absence = Absence {
            hidden_after: millis(pick(rng, &[20, 100])),
            given_up_after: millis(pick(rng, &[100, 400, 2_000])),
            restart_wait: millis(100),
        };
        options.master.offload.mode = pick(
            rng,
            &[
                OffloadMode::Eager,
                OffloadMode::OnEvict,
                OffloadMode::OnEvictForced,
            ],
        );
        options.master.offload.timeout = millis(pick(rng, &[150, 300, 2_000]));
        options.master.tenancy = Tenancy::On;
        options.fault_kinds = FaultKinds {
            crashes: rng.chance(0.2),
            absences: true,
            ..FaultKinds::default()
        };
        options.faults = 6 + rng.below(16) as u32;
        options.load = LoadOptions {
            operations: 600 + rng.below(800) as u32,
            keys: pick(rng, &[48, 160]),
            tenants: vec!["", "acme"],
            bytes_max: pick(rng, &[6_000, 20_000]),
            reads: pick(rng, &[0.3, 0.5]),
            removes: pick(rng, &[0.0, 0.1]),
            upserts: pick(rng, &[0.1, 0.3]),
            durable: pick(rng, &[0.0, 0.2]),
            replicas_max: 3,
            think: pick(rng, &[millis(8), millis(25)]),
            ..options.load
        };
        options
    }
}

/// Less than a tenant puts: its quota is this, for all nodes together.
const LOG_BYTES: u64 = 1 << 20;
