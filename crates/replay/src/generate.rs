use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::draw::{Draws, LogNormal, nanos};
use crate::{BLOCK_TOKENS, Request};

/// Longest prompt: a conversation that would grow past it ends.
pub const CONTEXT_TOKENS_MAX: u64 = 128 * 1024;

/// Which traffic to generate. The same value gives the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// How many requests.
    pub requests: u64,
    /// Conversations at a time: where one ends, the next one begins after a pause.
    pub sessions: u32,
    /// The seed of all random choices.
    pub seed: u64,
    /// Median of the time that people think before they ask again, in seconds.
    pub think_seconds: u32,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: 5_000,
            sessions: 200,
            seed: 1,
            think_seconds: 35,
        }
    }
}

impl Traffic {
    /// The distributions of the traffic, as text for reports and `--help`.
    pub const STATISTICS: &str = "\
multi-turn chat: a conversation opens with one of 12 system prompts (Zipf by rank, 256 to 3,072 tokens) shared by \
all, has a geometric number of turns (mean 5), and each prompt holds everything said before. Questions are \
log-normal (median 90 tokens, sigma 1.1); 3 of 10 conversations bring a document (median 5,000 tokens, sigma 0.9); \
answers are log-normal (median 260 tokens, sigma 0.7) at 40 tokens a second; people think for a log-normal time \
(median 35 s unless said otherwise, sigma 1.1) and start anew after an exponential pause (mean 120 s). Prompts stay below 131,072 tokens; \
a block is 512 tokens and only whole blocks return: a cache without end \
hits about 3 of 4.";
}

/// Generated multi-turn chat traffic, in order of arrival. [`Traffic::STATISTICS`] says what it is drawn from.
///
/// Shapes follow what public traces of chat services show: long-tailed lengths, prompts that grow turn by turn, a few
/// system prompts that everybody shares. Memory follows the number of live sessions, not of requests.
#[derive(Clone, Debug)]
pub struct Generator {
    left: u64,
    draws: Draws,
    think_s: LogNormal,
    prompts: Vec<SystemPrompt>,
    sessions: Vec<Session>,
    /// Time of each session's next turn in nanoseconds, and the session's index.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    next_block: u64,
}

#[derive(Clone, Debug)]
struct SystemPrompt {
    tokens: u64,
    /// The blocks that contain only the system prompt, which all its conversations share.
    blocks: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct Session {
    turns_left: u64,
    context_tokens: u64,
    /// The whole blocks of the context so far.
    blocks: Vec<u64>,
}

impl Generator {
    /// The traffic from its first request.
    #[must_use]
    pub fn new(traffic: Traffic) -> Self {
        let mut generator = Self {
            left: traffic.requests,
            draws: Draws::new(traffic.seed),
            think_s: LogNormal {
                median: traffic.think_seconds.into(),
                sigma: THINK_SIGMA,
            },
            prompts: Vec::new(),
            sessions: vec![Session::default(); traffic.sessions.max(1) as usize],
            due: BinaryHeap::new(),
            next_block: 0,
        };
        for _ in 0..SYSTEM_PROMPTS {
            let tokens =
                SYSTEM_TOKENS.0 + generator.draws.below(SYSTEM_TOKENS.1 - SYSTEM_TOKENS.0 + 1);
            let blocks = generator.fresh_blocks(tokens / BLOCK_TOKENS);
            generator.prompts.push(SystemPrompt { tokens, blocks });
        }
        for session in 0..traffic.sessions.max(1) {
            let start = generator.draws.exponential(PAUSE_MEAN_S);
            generator.due.push(Reverse((nanos(start), session)));
        }
        generator
    }

    /// One turn of a session: its request, and the time until the next.
    fn turn(&mut self, index: u32, at: u64) -> (Request, u64) {
        let mut session = std::mem::take(&mut self.sessions[index as usize]);
        if session.turns_left == 0 {
            session = self.open();
        } else {
            session.context_tokens += self.draws.log_normal(QUESTION_TOKENS);
        }
        session.context_tokens = session.context_tokens.min(CONTEXT_TOKENS_MAX);
        let whole = session.context_tokens / BLOCK_TOKENS;
        let grown = self.fresh_blocks(whole.saturating_sub(session.blocks.len() as u64));
        session.blocks.extend(grown);
        let mut blocks = session.blocks.clone();
        if !session.context_tokens.is_multiple_of(BLOCK_TOKENS) {
            blocks.extend(self.fresh_blocks(1));
        }
        let output_tokens = self.draws.log_normal(ANSWER_TOKENS);
        let request = Request {
            at: Duration::from_nanos(at),
            input_tokens: session.context_tokens,
            output_tokens,
            blocks,
            hint: None,
            expect: None,
        };
        session.context_tokens += output_tokens;
        session.turns_left -= 1;
        if session.context_tokens >= CONTEXT_TOKENS_MAX {
            session.turns_left = 0;
        }
        let speaking = output_tokens as f64 / ANSWER_TOKENS_PER_S;
        let silence = if session.turns_left == 0 {
            self.draws.exponential(PAUSE_MEAN_S)
        } else {
            self.draws.log_normal_f64(self.think_s)
        };
        self.sessions[index as usize] = session;
        (request, nanos(speaking + silence))
    }

    /// A new conversation, with its first question asked.
    fn open(&mut self) -> Session {
        let rank = self.draws.zipf(self.prompts.len());
        let document = if self.draws.chance(DOCUMENT_SHARE) {
            self.draws.log_normal(DOCUMENT_TOKENS)
        } else {
            0
        };
        let question = self.draws.log_normal(QUESTION_TOKENS);
        let turns_left = self.draws.geometric(TURNS_MEAN);
        let prompt = &self.prompts[rank];
        Session {
            turns_left,
            context_tokens: prompt.tokens + document + question,
            blocks: prompt.blocks.clone(),
        }
    }

    fn fresh_blocks(&mut self, count: u64) -> Vec<u64> {
        let first = self.next_block;
        self.next_block += count;
        (first..self.next_block).collect()
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let Reverse((at, session)) = self.due.pop()?;
        let (request, gap) = self.turn(session, at);
        self.due.push(Reverse((at.saturating_add(gap), session)));
        Some(request)
    }
}

const SYSTEM_PROMPTS: usize = 12;
const SYSTEM_TOKENS: (u64, u64) = (256, 3072);
const TURNS_MEAN: f64 = 5.0;
const QUESTION_TOKENS: LogNormal = LogNormal {
    median: 90.0,
    sigma: 1.1,
};
const DOCUMENT_SHARE: f64 = 0.3;
const DOCUMENT_TOKENS: LogNormal = LogNormal {
    median: 5000.0,
    sigma: 0.9,
};
const ANSWER_TOKENS: LogNormal = LogNormal {
    median: 260.0,
    sigma: 0.7,
};
const ANSWER_TOKENS_PER_S: f64 = 40.0;
const THINK_SIGMA: f64 = 1.1;
const PAUSE_MEAN_S: f64 = 120.0;

#[cfg(test)]
mod tests {
    use slackwater_base::{Map, Set};

    use super::*;

    const TRAFFIC: Traffic = Traffic {
        requests: 20_000,
        sessions: 300,
        seed: 7,
        think_seconds: 35,
    };

    #[test]
    fn the_same_seed_gives_the_same_requests_and_another_others() {
        let traffic = Traffic {
            requests: 2_000,
            ..TRAFFIC
        };
        let first: Vec<Request> = Generator::new(traffic).collect();
        assert_eq!(first, Generator::new(traffic).collect::<Vec<_>>());
        assert_ne!(
            first,
            Generator::new(Traffic { seed: 8, ..traffic }).collect::<Vec<_>>()
        );
        assert_eq!(first.len(), 2_000);
    }

    #[test]
    fn requests_come_in_order_with_a_block_for_every_512_tokens() {
        let mut last = Duration::ZERO;
        for request in Generator::new(TRAFFIC) {
            assert!(request.at >= last);
            last = request.at;
            assert_eq!(
                request.blocks.len() as u64,
                request.input_tokens.div_ceil(BLOCK_TOKENS)
            );
            assert!(
                (1..=CONTEXT_TOKENS_MAX).contains(&request.input_tokens)
                    && request.output_tokens > 0
            );
        }
    }

    /// Ids are chained by prefix: whatever stands before an id stands before it always.
    #[test]
    fn equal_ids_follow_equal_prefixes() {
        let mut parents: Map<u64, Option<u64>> = Map::default();
        for request in Generator::new(TRAFFIC) {
            let mut parent = None;
            for block in request.blocks {
                assert_eq!(
                    *parents.entry(block).or_insert(parent),
                    parent,
                    "block {block}"
                );
                parent = Some(block);
            }
        }
    }

    #[test]
    fn the_statistics_are_the_documented_ones() {
        let requests: Vec<Request> = Generator::new(TRAFFIC).collect();
        let mut outputs: Vec<u64> = requests
            .iter()
            .map(|request| request.output_tokens)
            .collect();
        let median = median(&mut outputs);
        assert!(
            (250..=270).contains(&median),
            "median answer of {median} tokens"
        );

        // A request whose last whole block was never seen with its predecessor opened by another one opens a session.
        let mut seen: Set<u64> = Set::default();
        let (mut references, mut hits, mut opened) = (0u64, 0u64, 0u64);
        let roots: Set<u64> = Generator::new(TRAFFIC)
            .prompts
            .iter()
            .flat_map(|prompt| prompt.blocks.clone())
            .collect();
        for request in &requests {
            let known = request
                .blocks
                .iter()
                .take_while(|block| seen.contains(*block))
                .count();
            let beyond_prompt = request.blocks[..known]
                .iter()
                .any(|block| !roots.contains(block));
            opened += u64::from(!beyond_prompt);
            references += request.blocks.len() as u64;
            hits += known as u64;
            seen.extend(&request.blocks);
        }
        // Short conversations keep within one block beyond the prompt and count as opened again at each turn.
        let turns = requests.len() as f64 / opened as f64;
        assert!((2.0..=5.5).contains(&turns), "{turns} turns a conversation");
        let rate = hits as f64 / references as f64;
        assert!(
            (0.70..=0.80).contains(&rate),
            "an endless cache would hit {rate}"
        );
    }

    #[test]
    fn conversations_have_five_turns_in_the_mean_and_share_a_dozen_prompts() {
        let mut generator = Generator::new(TRAFFIC);
        let sessions: Vec<Session> = (0..20_000).map(|_| generator.open()).collect();
        let turns = sessions
            .iter()
            .map(|session| session.turns_left)
            .sum::<u64>() as f64
            / sessions.len() as f64;
        assert!((4.85..=5.15).contains(&turns), "{turns}");
        let documents = sessions
            .iter()
            .filter(|session| session.context_tokens > 6_000)
            .count();
        assert!(
            (2_000..=4_500).contains(&documents),
            "{documents} of 20,000 conversations bring a long document"
        );
        assert_eq!(generator.prompts.len(), 12);
        assert!(
            generator
                .prompts
                .iter()
                .all(|prompt| (256..=3072).contains(&prompt.tokens))
        );
        let mut thinking: Vec<u64> = (0..20_000)
            .map(|_| generator.draws.log_normal(generator.think_s))
            .collect();
        assert!((34..=36).contains(&median(&mut thinking)));
    }

    fn median(values: &mut [u64]) -> u64 {
        values.sort_unstable();
        values[values.len() / 2]
    }
}
