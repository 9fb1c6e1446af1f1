//! What the project promises of transfers, held against a report.

use super::{
    Carrier, DeadPeer, Direction, Handshakes, Latency, ObjectsRow, Place, Report, Row, Torture, raw,
};
use slackwater_report::Bound;

impl Report {
    /// Sets the promises beside the figures of this run, and names those it has no figures for.
    pub(super) fn judge(&mut self) {
        let mut bounds = Vec::new();
        for op in [Direction::Read, Direction::Write] {
            let promised =
                |row: &&Row| row.op == op && row.block == raw::MESSAGE && row.device == Place::Cpu;
            for row in self.rows.iter().filter(promised) {
                self.judge_row(row, &mut bounds);
            }
        }
        bounds.extend(self.latency.iter().filter_map(Latency::bound));
        bounds.extend(self.objects.iter().map(ObjectsRow::bound));
        for row in self.peers.mooncake_transfer_engine.iter().flatten() {
            let what = format!(
                "tcp {} 1 MiB {}x{}: over the incumbent",
                row.op.name(),
                row.threads,
                row.batch
            );
            bounds.push(Bound::at_least(
                what,
                row.ours_over_peer,
                if row.threads == 1 { 1.3 } else { 4.0 },
            ));
        }
        if let Some(idle) = &self.idle {
            let what = format!("idle engine, {} connections: % of a core", idle.connections);
            bounds.push(Bound::at_most(what, idle.engine_cpu_percent(), 0.1));
        }
        bounds.extend(self.dead_peers.iter().flat_map(DeadPeer::bounds));
        bounds.extend(self.handshakes.iter().map(Handshakes::bound));
        bounds.extend(self.torture.iter().flat_map(Torture::bounds));
        self.bounds = bounds;
        let missing = [
            ("rows", self.rows.is_empty()),
            (
                "the incumbent",
                self.peers.mooncake_transfer_engine.is_none(),
            ),
            (
                "idle connections, peers that are down and handshakes (--trials)",
                self.idle.is_none(),
            ),
            ("killed processes (--torture)", self.torture.is_empty()),
        ];
        let missing: Vec<&str> = missing
            .iter()
            .filter(|(_, missing)| *missing)
            .map(|(what, _)| *what)
            .collect();
        if !missing.is_empty() {
            self.notes.push(format!(
                "bounds without a figure in this run: {}",
                missing.join("; ")
            ));
        }
    }

    /// What a row of 1 MiB is promised to reach.
    fn judge_row(&self, row: &Row, bounds: &mut Vec<Bound>) {
        let (mover, op) = (row.mover.name(), row.op.name());
        let name = format!("{mover} {op} 1 MiB {}x{}", row.concurrency, row.batch);
        let least = match row.mover {
            Carrier::Tcp => 0.95,
            Carrier::Shm | Carrier::Attach => 0.85,
            Carrier::Gpu => return,
        };
        if let Some(ratio) = row.gbps_over_limit {
            bounds.push(Bound::at_least(
                format!("{name}: GB/s over the limit"),
                ratio,
                least,
            ));
        }
        if let Some(ratio) = row.cpu_over_limit.filter(|_| row.mover == Carrier::Tcp) {
            bounds.push(Bound::at_most(
                format!("{name}: CPU a byte over the limit"),
                ratio,
                1.10,
            ));
        }
        let like = |mover: Carrier, concurrency: usize| {
            self.rows.iter().find(|other| {
                (other.mover, other.concurrency) == (mover, concurrency)
                    && (other.op, other.block, other.batch) == (row.op, row.block, row.batch)
            })
        };
        if let Some(one) =
            like(Carrier::Tcp, 1).filter(|_| row.mover == Carrier::Tcp && row.concurrency > 1)
        {
            bounds.push(Bound::at_least(
                format!("{name}: GB/s over one thread"),
                row.gbps / one.gbps,
                0.95,
            ));
        }
        if let Some(tcp) = like(Carrier::Tcp, row.concurrency).filter(|_| row.mover == Carrier::Shm)
        {
            let ceiling = self.limits.nt_memcpy_gbps.unwrap_or(f64::NAN) / tcp.gbps;
            let what = format!("{name}: GB/s over our TCP (a copy past the cache: {ceiling:.1})");
            bounds.push(Bound::at_least(what, row.gbps / tcp.gbps, 4.0));
        }
    }
}

impl Latency {
    /// Where the scheduler chooses, the two sides may not run alike, and nothing is promised.
    fn bound(&self) -> Option<Bound> {
        let what = format!(
            "tcp {} 4 KiB 1x1 on {}: p50 over a ping-pong",
            self.op.name(),
            self.placement
        );
        let promised = self.op == Direction::Read && self.placement != super::latency::FREE;
        promised.then(|| Bound::at_most(what, self.ratio, 1.5))
    }
}

impl DeadPeer {
    fn bounds(&self) -> [Bound; 3] {
        let name = format!("{} transfers to a {} peer", self.transfers, self.peer);
        [
            Bound::at_most(
                format!("{name}: last end over the deadline"),
                self.seconds / self.timeout_seconds,
                1.5,
            ),
            Bound::at_most(
                format!("{name}: MiB more memory"),
                self.growth_bytes as f64 / f64::from(1 << 20),
                64.0,
            ),
            Bound::at_most(
                format!("{name}: sockets and ports in use"),
                (self.sockets_max + self.ports_left) as f64,
                64.0,
            ),
        ]
    }
}

impl Torture {
    fn bounds(&self) -> Vec<Bound> {
        let name = format!(
            "{} killed {} times over {}",
            self.killed,
            self.kills,
            self.mover.name()
        );
        let more = |what: fn(&super::trials::State) -> u64| {
            what(&self.after) as f64 - what(&self.before) as f64
        };
        let leaked =
            more(|state| state.files) + more(|state| state.mappings) + more(|state| state.accesses);
        let kept = format!("{name}: files, mappings and accesses that the other kept");
        let mut bounds = vec![Bound::at_most(kept, leaked, 0.0)];
        // A target that survives has no requests of its own.
        if self.requests > 0 {
            let last = format!("{name}: last end of a request after it, s");
            bounds.push(Bound::at_most(last, self.slowest_end_seconds, 2.0));
        }
        bounds
    }
}
