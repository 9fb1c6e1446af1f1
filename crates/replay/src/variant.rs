use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use slackwater_base::Rng;
use thiserror::Error;

use crate::{AgentGenerator, AgentTraffic, Generator, Request, Traffic};

/// One traffic of the robustness set: a change of a given trace, or generated traffic that has nothing to do with it.
///
/// A policy that was tuned on one trace is judged on all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The trace as it is.
    Trace,
    /// The second half of the trace, then the first.
    HalvesSwapped,
    /// Its time runs at a quarter of the speed.
    Stretched,
    /// Its time runs at four times the speed.
    Shrunk,
    /// Two copies with ids of their own, the second half a minute behind the first.
    TwoCopies,
    /// The first half of the trace, then generated agents.
    PhaseChange,
    /// The trace, and 3 of 10 block references are to chains that are read once.
    Scan,
    /// Generated chat, with the seed and the median time to think in seconds.
    Chat {
        /// The seed of all random choices.
        seed: u8,
        /// [`Traffic::think_seconds`].
        think_seconds: u32,
    },
    /// Generated agents.
    Agents,
}

impl Variant {
    /// The whole set, in the order of reports: what is made of the trace, agents, and chat of five seeds at three times
    /// to think.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Trace,
            Self::HalvesSwapped,
            Self::Stretched,
            Self::Shrunk,
            Self::TwoCopies,
            Self::PhaseChange,
            Self::Scan,
            Self::Agents,
        ];
        for think_seconds in THINK_SECONDS {
            all.extend((1..=CHAT_SEEDS).map(|seed| Self::Chat {
                seed,
                think_seconds,
            }));
        }
        all
    }

    /// Whether the traffic is made of the trace that is given, rather than generated alone.
    #[must_use]
    pub const fn uses_trace(self) -> bool {
        !matches!(self, Self::Chat { .. } | Self::Agents)
    }

    /// The requests of this traffic, made of `trace` where it uses one.
    #[must_use]
    pub fn requests(self, trace: &[Request]) -> Vec<Request> {
        let half = trace.len() / 2;
        match self {
            Self::Trace => trace.to_vec(),
            Self::HalvesSwapped => follow(&trace[half..], &trace[..half]),
            Self::Stretched => paced(trace, |at| at * 4),
            Self::Shrunk => paced(trace, |at| at / 4),
            Self::TwoCopies => {
                let late = paced(trace, |at| at + COPY_DELAY);
                merge(trace.to_vec(), with_ids_apart(late))
            }
            Self::PhaseChange => {
                let agents = AgentGenerator::new(AgentTraffic {
                    requests: half.max(1) as u64,
                    ..AGENTS
                });
                follow(&trace[..half], &with_ids_apart(agents.collect()))
            }
            Self::Scan => merge(trace.to_vec(), with_ids_apart(scan(trace))),
            Self::Chat {
                seed,
                think_seconds,
            } => {
                let traffic = Traffic {
                    seed: seed.into(),
                    think_seconds,
                    ..CHAT
                };
                Generator::new(traffic).collect()
            }
            Self::Agents => AgentGenerator::new(AGENTS).collect(),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Trace => "trace",
            Self::HalvesSwapped => "halves-swapped",
            Self::Stretched => "stretched",
            Self::Shrunk => "shrunk",
            Self::TwoCopies => "two-copies",
            Self::PhaseChange => "phase-change",
            Self::Scan => "scan",
            Self::Agents => "agents",
            Self::Chat {
                seed,
                think_seconds,
            } => return f.pad(&format!("chat-{think_seconds}s-{seed}")),
        };
        f.pad(name)
    }
}

/// The name is not that of a traffic of the set.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown traffic `{text}` (known: {}; `all` for every one)", known())]
pub struct UnknownVariant {
    /// The name that was given.
    pub text: String,
}

fn known() -> String {
    let names: Vec<String> = Variant::all().iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl FromStr for Variant {
    type Err = UnknownVariant;

    fn from_str(text: &str) -> Result<Self, UnknownVariant> {
        let found = Self::all()
            .into_iter()
            .find(|variant| variant.to_string() == text.trim());
        found.ok_or_else(|| UnknownVariant {
            text: text.to_owned(),
        })
    }
}

const THINK_SECONDS: [u32; 3] = [10, 35, 120];
const CHAT_SEEDS: u8 = 5;
const CHAT: Traffic = Traffic {
    requests: 12_000,
    sessions: 400,
    seed: 1,
    think_seconds: 35,
};
const AGENTS: AgentTraffic = AgentTraffic {
    requests: 12_000,
    agents: 60,
    seed: 1,
};
const COPY_DELAY: Duration = Duration::from_secs(30);
/// Added to the ids of a second traffic, so that they are not those of the first.
const IDS_APART: u64 = 1 << 40;
const SCAN_SHARE: f64 = 0.3;
/// Blocks of each chain that is read once.
const SCAN_BLOCKS: u64 = 24;
const SCAN_SEED: u64 = 30;

fn paced(requests: &[Request], pace: impl Fn(Duration) -> Duration) -> Vec<Request> {
    let changed = requests.iter().map(|request| Request {
        at: pace(request.at),
        ..request.clone()
    });
    changed.collect()
}

fn with_ids_apart(mut requests: Vec<Request>) -> Vec<Request> {
    for block in requests.iter_mut().flat_map(|request| &mut request.blocks) {
        *block = block.wrapping_add(IDS_APART);
    }
    requests
}

/// The `later` requests after the `earlier` ones, both with their own pace.
fn follow(earlier: &[Request], later: &[Request]) -> Vec<Request> {
    let first = |requests: &[Request]| requests.first().map_or(Duration::ZERO, |first| first.at);
    let (begin, resume) = (first(earlier), first(later));
    let length = earlier
        .last()
        .map_or(Duration::ZERO, |last| last.at - begin);
    let mut requests = paced(earlier, |at| at - begin);
    requests.extend(paced(later, |at| at - resume + length));
    requests
}

fn merge(mut one: Vec<Request>, other: Vec<Request>) -> Vec<Request> {
    one.extend(other);
    // Stable, so that requests of one time keep their order.
    one.sort_by_key(|request| request.at);
    one
}

/// Chains that are read once, evenly over the time of the trace.
fn scan(trace: &[Request]) -> Vec<Request> {
    let references: usize = trace.iter().map(|request| request.blocks.len()).sum();
    let blocks = references as f64 * SCAN_SHARE / (1.0 - SCAN_SHARE);
    let chains = (blocks / SCAN_BLOCKS as f64).round() as u64;
    let length = trace.last().map_or(Duration::ZERO, |last| last.at);
    let mut rng = Rng::new(SCAN_SEED);
    let mut requests: Vec<Request> = (0..chains)
        .map(|chain| Request {
            at: length.mul_f64(rng.unit()),
            input_tokens: SCAN_BLOCKS * crate::BLOCK_TOKENS,
            // As a chat's answer: the scan cannot be told by its output.
            output_tokens: 50 + rng.below(500),
            blocks: (chain * SCAN_BLOCKS..(chain + 1) * SCAN_BLOCKS).collect(),
            hint: None,
            expect: None,
        })
        .collect();
    requests.sort_by_key(|request| request.at);
    requests
}

#[cfg(test)]
mod tests {
    use slackwater_base::{Map, Set};

    use super::*;

    fn trace() -> Vec<Request> {
        let traffic = Traffic {
            requests: 1_000,
            sessions: 50,
            ..Traffic::default()
        };
        Generator::new(traffic).collect()
    }

    #[test]
    fn names_are_read_back_and_the_error_for_an_unknown_one_lists_them() {
        let all = Variant::all();
        assert_eq!(all.len(), 8 + 15);
        for variant in all {
            assert_eq!(variant.to_string().parse(), Ok(variant));
        }
        let message = "chat".parse::<Variant>().unwrap_err().to_string();
        assert!(
            message.starts_with("unknown traffic `chat` (known: trace, halves-swapped,"),
            "{message}"
        );
    }

    #[test]
    fn every_traffic_is_in_order_and_chained() {
        let trace = trace();
        for variant in Variant::all() {
            let requests = variant.requests(&trace);
            assert!(requests.len() >= trace.len(), "{variant}");
            assert!(
                requests.windows(2).all(|pair| pair[0].at <= pair[1].at),
                "{variant}"
            );
            let mut parents: Map<u64, Option<u64>> = Map::default();
            for request in &requests {
                let mut parent = None;
                for &block in &request.blocks {
                    let known = *parents.entry(block).or_insert(parent);
                    assert_eq!(known, parent, "{variant}, block {block}");
                    parent = Some(block);
                }
            }
            assert_eq!(requests, variant.requests(&trace), "{variant}");
        }
    }

    #[test]
    fn changes_of_the_trace_are_what_their_names_say() {
        let trace = trace();
        let (half, last) = (trace.len() / 2, trace.len() - 1);
        let blocks = |requests: &[Request]| -> Vec<Vec<u64>> {
            requests
                .iter()
                .map(|request| request.blocks.clone())
                .collect()
        };
        let swapped = Variant::HalvesSwapped.requests(&trace);
        assert_eq!(blocks(&swapped[..half]), blocks(&trace[half..]));
        assert_eq!(blocks(&swapped[half..]), blocks(&trace[..half]));
        assert_eq!(
            Variant::Stretched.requests(&trace)[last].at,
            trace[last].at * 4
        );
        assert_eq!(
            Variant::Shrunk.requests(&trace)[last].at,
            trace[last].at / 4
        );

        let distinct = |requests: &[Request]| {
            let all: Set<u64> = requests.iter().flat_map(|it| it.blocks.clone()).collect();
            all.len()
        };
        let copies = Variant::TwoCopies.requests(&trace);
        assert_eq!(distinct(&copies), 2 * distinct(&trace));

        let phases = Variant::PhaseChange.requests(&trace);
        let ids: Set<u64> = trace.iter().flat_map(|it| it.blocks.clone()).collect();
        assert!(
            phases[half..]
                .iter()
                .all(|it| it.blocks.iter().all(|id| !ids.contains(id)))
        );
        assert_eq!(blocks(&phases[..half]), blocks(&trace[..half]));
    }

    #[test]
    fn three_of_ten_references_are_to_chains_read_once() {
        let trace = trace();
        let requests = Variant::Scan.requests(&trace);
        let mut reads: Map<u64, u32> = Map::default();
        for &block in requests.iter().flat_map(|request| &request.blocks) {
            *reads.entry(block).or_default() += 1;
        }
        let added = reads.iter().filter(|(block, _)| **block >= IDS_APART);
        let (mut scanned, mut most) = (0, 0);
        for (_, &count) in added {
            scanned += count;
            most = most.max(count);
        }
        let all: u32 = reads.values().sum();
        let share = f64::from(scanned) / f64::from(all);
        assert!((0.29..0.31).contains(&share), "{share}");
        assert_eq!(most, 1);
    }

    /// Ids of published traces are small, but the format allows any number.
    #[test]
    fn the_largest_ids_and_the_latest_time_are_changed_too() {
        let request = Request {
            at: Duration::from_millis(3_155_760_000_000),
            input_tokens: 1024,
            output_tokens: 1,
            blocks: vec![u64::MAX - 1, u64::MAX],
            hint: None,
            expect: None,
        };
        for variant in Variant::all().into_iter().filter(|it| it.uses_trace()) {
            let requests = variant.requests(&[request.clone(), request.clone()]);
            assert!(requests.len() >= 2, "{variant}");
        }
        let copies = Variant::TwoCopies.requests(&[request]);
        assert_ne!(copies[0].blocks, copies[1].blocks);
    }

    #[test]
    fn an_empty_trace_makes_empty_changes() {
        for variant in [
            Variant::Trace,
            Variant::HalvesSwapped,
            Variant::TwoCopies,
            Variant::Scan,
        ] {
            assert!(variant.requests(&[]).is_empty(), "{variant}");
        }
    }
}
