//! What clients do: scripts of operations, drawn by seed before the run begins so that a shrinker can reduce them.

use std::time::Duration;

use slackwater_base::Rng;
use slackwater_wire::{Chain, Durability, Expectation, Hold, Key, Pin, PutConfig, PutMode, Tenant};

use crate::fault::span;
use crate::value::HEADER_BYTES;

/// The proportions and limits of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Operations of all clients together.
    pub operations: u32,
    /// Keys of each tenant.
    pub keys: u64,
    /// Blocks of a chain: keys that are put and read together, in order.
    pub chain: u64,
    /// Names of the tenants; the empty name is the default tenant.
    pub tenants: Vec<&'static str>,
    /// Largest value in bytes.
    pub bytes_max: u64,
    /// Share of operations that read.
    pub reads: f64,
    /// Share of the operations that do not read that remove keys.
    pub removes: f64,
    /// Share of puts that replace.
    pub upserts: f64,
    /// Share of puts that are acknowledged once they are on SSD.
    pub durable: f64,
    /// Share of the other puts that are acknowledged once several hosts have them.
    pub replicated: f64,
    /// Most memory replicas that a put asks for.
    pub replicas_max: u32,
    /// Share of puts that pin.
    pub pins: f64,
    /// Share of puts in groups.
    pub groups: f64,
    /// Whether reads hold by guard; otherwise by lease.
    pub hold: Hold,
    /// Longest pause between two operations of a client.
    pub think: Duration,
}

/// One operation, after a pause.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Pause before the operation.
    pub think: Duration,
    /// The operation.
    pub operation: Operation,
}

/// One operation of a client's script.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Puts values of these lengths.
    Put {
        /// The tenant.
        tenant: Tenant,
        /// Key and length of each.
        entries: Vec<(Key, usize)>,
        /// The place of the keys in their chain.
        chain: Chain,
        /// Options of the put.
        config: PutConfig,
    },
    /// Reads.
    Get {
        /// The tenant.
        tenant: Tenant,
        /// The keys.
        keys: Vec<Key>,
        /// The place of the keys in their chain.
        chain: Chain,
        /// Whether the replicas are held by lease or by guard.
        hold: Hold,
        /// Whether the read ends at the first miss.
        prefix_only: bool,
    },
    /// Asks whether keys are there.
    Exists {
        /// The tenant.
        tenant: Tenant,
        /// The keys.
        keys: Vec<Key>,
    },
    /// Removes.
    Remove {
        /// The tenant.
        tenant: Tenant,
        /// The keys.
        keys: Vec<Key>,
        /// Also while they are leased.
        force: bool,
    },
    /// Removes by pattern.
    RemoveMatching {
        /// The tenant.
        tenant: Tenant,
        /// The pattern that keys are matched with.
        pattern: String,
        /// Also while they are leased.
        force: bool,
    },
    /// Removes everything of a tenant.
    RemoveAll {
        /// The tenant.
        tenant: Tenant,
        /// Also while they are leased.
        force: bool,
    },
    /// Lists keys.
    List {
        /// The tenant.
        tenant: Tenant,
        /// At most this many.
        limit: u32,
    },
    /// Asks for the state of one object, which does not count as a read.
    Describe {
        /// The tenant.
        tenant: Tenant,
        /// The key.
        key: Key,
    },
}

impl LoadOptions {
    /// The script of one client.
    pub fn script(&self, rng: &mut Rng, steps: u32) -> Vec<Step> {
        (0..steps)
            .map(|_| {
                let operation = self.operation(rng);
                Step {
                    think: span(rng, Duration::ZERO, self.think),
                    operation,
                }
            })
            .collect()
    }

    fn operation(&self, rng: &mut Rng) -> Operation {
        let tenant = self.tenant(rng);
        if rng.chance(self.reads) {
            let (keys, chain) = self.walk(rng);
            return match rng.below(12) {
                0 => Operation::Exists { tenant, keys },
                1 => Operation::List {
                    tenant,
                    limit: 1 + rng.below(50) as u32,
                },
                2 => Operation::Describe {
                    tenant,
                    key: keys[0].clone(),
                },
                _ => Operation::Get {
                    tenant,
                    keys,
                    chain,
                    hold: self.hold,
                    prefix_only: rng.chance(0.3),
                },
            };
        }
        let force = rng.chance(0.5);
        if self.removes > 0.0 && rng.chance(self.removes) {
            return Operation::Remove {
                tenant,
                keys: self.walk(rng).0,
                force: true,
            };
        }
        match rng.below(100) {
            0 => Operation::RemoveAll { tenant, force },
            1..4 => {
                let pattern = format!("^c{}/", rng.below(self.keys / self.chain + 1));
                Operation::RemoveMatching {
                    tenant,
                    pattern,
                    force,
                }
            }
            4..20 => Operation::Remove {
                tenant,
                keys: self.walk(rng).0,
                force,
            },
            _ => self.put(rng, tenant),
        }
    }

    fn put(&self, rng: &mut Rng, tenant: Tenant) -> Operation {
        let (keys, chain) = self.walk(rng);
        let mut entries: Vec<(Key, usize)> =
            keys.into_iter().map(|key| (key, self.bytes(rng))).collect();
        let pin = match rng.chance(self.pins) {
            true if rng.chance(0.1) => Pin::Hard,
            true => Pin::Soft(Some(span(
                rng,
                Duration::from_millis(1),
                Duration::from_secs(1),
            ))),
            false => Pin::None,
        };
        if pin == Pin::Hard {
            // Memory full of hard-pinned values refuses all puts, as it must: such runs would find nothing, so pinned
            // values are short.
            entries.truncate(1);
            entries[0].1 = entries[0].1.min(HARD_PINNED_BYTES_MAX);
        }
        let mode = match rng.chance(self.upserts) {
            true => PutMode::Upsert,
            false => PutMode::Create,
        };
        let mut replicas = 1 + rng.below(u64::from(self.replicas_max)) as u32;
        let group = rng.chance(self.groups).then(|| rng.below(4));
        let mut durability = match rng.chance(self.durable) {
            true => Durability::Disk,
            false => Durability::Memory,
        };
        // Nothing is drawn where there is none, so that what follows does not change.
        let may_replicate = durability == Durability::Memory && self.replicated > 0.0;
        if may_replicate && rng.chance(self.replicated) {
            durability = Durability::Replicated;
            replicas = 2 + u32::from(rng.chance(0.2));
        }
        let config = PutConfig {
            mode,
            replicas,
            preferred: Vec::new(),
            pin,
            group,
            durability,
            wait: rng
                .chance(0.5)
                .then(|| span(rng, Duration::ZERO, Duration::from_millis(200))),
        };
        Operation::Put {
            tenant,
            entries,
            chain,
            config,
        }
    }

    /// Some keys of one chain, in order. Some chains are used more often: a quarter of the draws fall on an eighth of
    /// them.
    fn walk(&self, rng: &mut Rng) -> (Vec<Key>, Chain) {
        let chains = self.keys.div_ceil(self.chain);
        let mut chain = rng.below(chains);
        if rng.chance(0.5) {
            chain = rng.below(chain + 1);
        }
        let first = if rng.chance(0.7) {
            0
        } else {
            rng.below(self.chain)
        };
        let count = 1 + rng.below((self.chain - first).min(6));
        let keys: Vec<Key> = (first..first + count)
            .map(|position| key(chain, position))
            .collect();
        let parent = (first > 0).then(|| key(chain, first - 1));
        let hint = rng.chance(0.2).then(|| rng.below(4) as u32);
        (
            keys,
            Chain {
                parent,
                position: first as u32,
                hint,
                expect: match hint {
                    Some(1) => Some(Expectation::Continues),
                    Some(2) => Some(Expectation::Ends),
                    _ => None,
                },
                output_tokens: None,
            },
        )
    }

    fn tenant(&self, rng: &mut Rng) -> Tenant {
        let name = self.tenants[rng.below(self.tenants.len() as u64) as usize];
        Tenant::new(name).expect("the names of the load are well-formed")
    }

    /// Lengths around multiples of a block, and others.
    fn bytes(&self, rng: &mut Rng) -> usize {
        let bytes = match rng.below(4) {
            0 => rng.below(200),
            1 => 4096 * (1 + rng.below(self.bytes_max / 4096 + 1)) + rng.below(3) - 1,
            _ => rng.below(self.bytes_max),
        };
        (bytes as usize).clamp(HEADER_BYTES, self.bytes_max as usize)
    }
}

/// Longest value that is hard-pinned.
const HARD_PINNED_BYTES_MAX: usize = 4000;

fn key(chain: u64, position: u64) -> Key {
    Key::new(format!("c{chain}/{position}").as_bytes()).expect("a few bytes make a key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_every_kind_of_operation_and_follows_its_seed() {
        let load = LoadOptions {
            operations: 0,
            keys: 60,
            chain: 7,
            tenants: vec!["", "acme"],
            bytes_max: 9000,
            reads: 0.5,
            removes: 0.0,
            upserts: 0.5,
            durable: 0.5,
            replicated: 0.5,
            replicas_max: 2,
            pins: 0.1,
            groups: 0.1,
            hold: Hold::Lease,
            think: Duration::from_millis(1),
        };
        let script = load.script(&mut Rng::new(5), 3000);
        assert_eq!(script, load.script(&mut Rng::new(5), 3000));
        let mut kinds = [0; 8];
        for step in &script {
            let kind = match &step.operation {
                Operation::Put { entries, .. } => {
                    assert!(
                        entries
                            .iter()
                            .all(|(_, bytes)| (HEADER_BYTES..=9000).contains(bytes))
                    );
                    0
                }
                Operation::Get { .. } => 1,
                Operation::Exists { .. } => 2,
                Operation::Remove { .. } => 3,
                Operation::RemoveMatching { .. } => 4,
                Operation::RemoveAll { .. } => 5,
                Operation::List { .. } => 6,
                Operation::Describe { .. } => 7,
            };
            kinds[kind] += 1;
        }
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }
}
