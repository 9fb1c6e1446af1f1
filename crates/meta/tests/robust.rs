//! The learning policy on workloads that could mislead it: never more than 2 % below lru, whatever happens.

use std::time::Duration;

use slackwater_base::{Instant, Rng};
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::{Request, Trace};

const BLOCK_TOKENS: u32 = 512;

/// A stream of traffic: sessions that begin at random, each a chain that grows turn by turn.
struct Chat {
    sessions: u64,
    /// Sessions begin over this time.
    span_seconds: f64,
    /// Chance that a turn is followed by another, by turn; the last holds for all later ones.
    continues: &'static [f64],
    /// Median pause between turns; pauses are log-normal, a third of them more than double or less than half.
    pause_seconds: f64,
    /// Mean blocks of the first turn, and of each later one.
    first_blocks: f64,
    turn_blocks: f64,
}

/// Users who mostly leave after one turn; the longer one has stayed, the likelier the next turn is. This is the shape
/// of published chat traces.
const CONVERSATION: Chat = Chat {
    sessions: 3000,
    span_seconds: 3000.0,
    continues: &[0.34, 0.44, 0.55, 0.64, 0.70, 0.75, 0.80, 0.85, 0.89],
    pause_seconds: 60.0,
    first_blocks: 14.0,
    turn_blocks: 3.0,
};

const AGENTS: Chat = Chat {
    sessions: 24,
    span_seconds: 2000.0,
    continues: &[0.985],
    pause_seconds: 8.0,
    first_blocks: 30.0,
    turn_blocks: 2.0,
};

impl Chat {
    /// The stream's requests from `begin`; `family` keeps its blocks apart from those of other streams.
    fn requests(&self, rng: &mut Rng, family: u64, begin: f64) -> Vec<Request> {
        let mut requests = Vec::new();
        for session in 0..self.sessions {
            let mut at = begin + rng.unit() * self.span_seconds;
            let mut blocks = vec![family << 48];
            grow(
                &mut blocks,
                family << 48 | (session + 1) << 20,
                exponential(rng, self.first_blocks),
            );
            for turn in 0.. {
                let output = exponential(rng, 300.0);
                requests.push(request(at, &blocks, output as u32));
                if !rng.chance(self.continues[turn.min(self.continues.len() - 1)]) {
                    break;
                }
                at += self.pause_seconds * normal(rng).exp2();
                grow(
                    &mut blocks,
                    family << 48 | (session + 1) << 20,
                    exponential(rng, self.turn_blocks),
                );
            }
        }
        requests
    }
}

fn grow(blocks: &mut Vec<u64>, base: u64, by: f64) {
    for _ in 0..1 + by as u64 {
        blocks.push(base + blocks.len() as u64);
    }
}

/// Approximately normal: the sum of twelve uniform numbers less their mean.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.unit()).ln()
}

fn request(at: f64, blocks: &[u64], output_tokens: u32) -> Request {
    Request {
        now: Instant::ZERO + Duration::from_secs_f64(at),
        blocks: blocks.to_vec(),
        input_tokens: blocks.len() as u64 * u64::from(BLOCK_TOKENS),
        output_tokens: Some(output_tokens),
        hint: None,
        expect: None,
    }
}

/// Replays `streams`, merged by time, with both policies at each size.
fn check(story: &str, streams: Vec<Vec<Request>>, sizes: &[usize]) {
    let mut requests: Vec<Request> = streams.into_iter().flatten().collect();
    requests.sort_by_key(|request| request.now);
    let trace = Trace::new(requests, BLOCK_TOKENS);
    for &size in sizes {
        let rate = |kind: PolicyKind| {
            trace
                .replay(&mut *kind.build(0), size, |_, _| ())
                .hit_rate()
        };
        let (lru, gittins) = (rate(PolicyKind::Lru), rate(PolicyKind::Gittins));
        assert!(
            gittins >= 0.98 * lru,
            "{story}, {size} blocks: gittins {gittins:.4}, lru {lru:.4}"
        );
    }
}

#[test]
fn scan_bursts_pass_through() {
    let mut rng = Rng::new(1);
    let chat = CONVERSATION.requests(&mut rng, 1, 0.0);
    let scan = (0..300u64).map(|at| {
        let mut blocks = Vec::new();
        grow(&mut blocks, (2 << 48) + (at << 20), 40.0);
        // A minute of scanning in every ten.
        request((at / 60) as f64 * 600.0 + (at % 60) as f64, &blocks, 10)
    });
    check(
        "scan bursts",
        vec![chat, scan.collect()],
        &[500, 2_000, 8_000],
    );
}

#[test]
fn two_tenants_share() {
    let mut rng = Rng::new(2);
    let streams = vec![
        CONVERSATION.requests(&mut rng, 1, 0.0),
        AGENTS.requests(&mut rng, 2, 0.0),
    ];
    check("two tenants", streams, &[500, 2_000, 8_000]);
}

#[test]
fn a_loop_is_no_trap() {
    let mut rng = Rng::new(3);
    let chat = CONVERSATION.requests(&mut rng, 1, 0.0);
    let turn = |at: u64| {
        let mut blocks = Vec::new();
        grow(&mut blocks, (2 << 48) + (at % 40) * 1000, 25.0);
        request(at as f64 * 6.0, &blocks, 100)
    };
    check(
        "loop",
        vec![chat, (0..500).map(turn).collect()],
        &[500, 2_000, 4_000],
    );
}

#[test]
fn a_new_phase_is_learned() {
    let mut rng = Rng::new(4);
    let streams = vec![
        CONVERSATION.requests(&mut rng, 1, 0.0),
        AGENTS.requests(&mut rng, 2, 3_000.0),
        CONVERSATION.requests(&mut rng, 3, 6_000.0),
    ];
    check("phase change", streams, &[500, 2_000, 8_000]);
}

#[test]
fn the_clock_may_run_at_any_speed() {
    for speed in [0.1, 1.0, 10.0] {
        let mut requests = CONVERSATION.requests(&mut Rng::new(5), 1, 0.0);
        for request in &mut requests {
            request.now = Instant::from_nanos((request.now.as_nanos() as f64 * speed) as u64);
        }
        check(
            &format!("clock x{speed}"),
            vec![requests],
            &[500, 2_000, 8_000],
        );
    }
}

/// Every key on its own, some far more popular than others, and what is popular changes.
#[test]
fn requests_without_chains_are_served_as_well() {
    let mut rng = Rng::new(6);
    let lone = (0..20_000u64).map(|at| {
        let rank = (exponential(&mut rng, 1.0).exp() * 30.0) as u64;
        request(at as f64 * 0.15, &[1 + rank + at / 4_000 * 50], 0)
    });
    check("no chains", vec![lone.collect()], &[100, 500, 2_000]);
}

/// The policy knows of a hint only what it learns: here one value marks the chains that return.
#[test]
fn a_hint_that_tells_is_learned() {
    let mut rng = Rng::new(7);
    let mut requests = Vec::new();
    for session in 0..2_500u64 {
        let at = rng.unit() * 3_000.0;
        let mut blocks = Vec::new();
        grow(&mut blocks, (session + 1) << 20, 12.0);
        let returns = rng.chance(0.3);
        let hint = Some(if returns { 7 } else { 3 });
        requests.push(Request {
            hint,
            ..request(at, &blocks, 200)
        });
        if returns {
            requests.push(Request {
                hint: Some(3),
                ..request(at + exponential(&mut rng, 60.0), &blocks, 200)
            });
        }
    }
    requests.sort_by_key(|request| request.now);
    let rate = |requests: Vec<Request>| {
        let trace = Trace::new(requests, BLOCK_TOKENS);
        trace
            .replay(&mut *PolicyKind::Gittins.build(0), 400, |_, _| ())
            .hit_rate()
    };
    let told = rate(requests.clone());
    let untold = rate(
        requests
            .into_iter()
            .map(|request| Request {
                hint: None,
                expect: None,
                ..request
            })
            .collect(),
    );
    assert!(told > 1.2 * untold, "told {told:.4}, untold {untold:.4}");
}

/// What a caller expects of a chain has a meaning from the first request on; a caller that is always wrong is understood, and
/// one that says anything at random costs next to nothing.
#[test]
fn an_expectation_is_worth_what_it_tells() {
    use slackwater_wire::Expectation::{Continues, Ends};
    let mut rng = Rng::new(8);
    let requests = CONVERSATION.requests(&mut rng, 1, 0.0);
    let mut requests: Vec<Request> = requests.into_iter().take(6_000).collect();
    requests.sort_by_key(|request| request.now);
    let follows = |at: usize| {
        let (last, until) = (
            requests[at].blocks.last(),
            requests[at].now + Duration::from_secs(600),
        );
        let later = requests[at + 1..].iter();
        let mut soon = later.take_while(|request| request.now <= until);
        soon.any(|request| last.is_some_and(|last| request.blocks.contains(last)))
    };
    let follows: Vec<bool> = (0..requests.len()).map(follows).collect();
    let mut rate = |right: Option<f64>| {
        let with = requests.iter().zip(&follows).map(|(request, &follows)| {
            let expect = right.map(|right| match follows == rng.chance(right) {
                true => Continues,
                false => Ends,
            });
            Request {
                expect,
                ..request.clone()
            }
        });
        Trace::new(with, BLOCK_TOKENS)
            .replay(&mut *PolicyKind::Gittins.build(0), 1_000, |_, _| ())
            .hit_rate()
    };
    let untold = rate(None);
    for (story, right, least) in [
        ("mostly right", 0.8, 1.05),
        ("always wrong", 0.0, 1.1),
        ("at random", 0.5, 0.97),
    ] {
        let told = rate(Some(right));
        assert!(
            told > least * untold,
            "{story}: {told:.4}, untold {untold:.4}"
        );
    }
}
