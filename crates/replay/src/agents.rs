use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::draw::{Draws, LogNormal, nanos};
use crate::{BLOCK_TOKENS, CONTEXT_TOKENS_MAX, Request};

/// Which traffic of agents to generate. The same value gives the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentTraffic {
    /// How many requests.
    pub requests: u64,
    /// Agents at a time: where one ends its task, it begins the next after a pause.
    pub agents: u32,
    /// The seed of all random choices.
    pub seed: u64,
}

impl AgentTraffic {
    /// The distributions of the traffic, as text for documents and `--help`.
    pub const STATISTICS: &str = "\
agents: a task opens with one of 4 system prompts with tools (Zipf by rank, 4,096 to 12,288 tokens) and a log-normal \
amount of material (median 6,000 tokens, sigma 0.8), has a geometric number of steps (mean 80), and each prompt holds \
everything before. A step appends the answer (log-normal, median 150 tokens, sigma 0.9, at 60 tokens a second) and \
what a tool returned (log-normal, median 500 tokens, sigma 1.3). A tool takes a log-normal time (median 5 s, sigma \
1.0); after 1 step in 20 a person has to answer (log-normal, median 10 minutes, sigma 1.3), so tasks last for hours. A \
task ends early when its prompt reaches 131,072 tokens; the next begins after an exponential pause (mean 5 minutes).";
}

/// Generated traffic of agents, in order of arrival. [`AgentTraffic::STATISTICS`] says what it is drawn from.
///
/// Long chains that grow by a little and return soon, over and over, with rare long pauses: the shape of coding
/// sessions in published traces.
#[derive(Clone, Debug)]
pub struct AgentGenerator {
    left: u64,
    draws: Draws,
    prompts: Vec<(u64, Vec<u64>)>,
    tasks: Vec<Task>,
    /// Time of each agent's next step in nanoseconds, and the agent's index.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    next_block: u64,
}

#[derive(Clone, Debug, Default)]
struct Task {
    steps_left: u64,
    context_tokens: u64,
    /// The whole blocks of the context so far.
    blocks: Vec<u64>,
}

impl AgentGenerator {
    /// The traffic from its first request.
    #[must_use]
    pub fn new(traffic: AgentTraffic) -> Self {
        let agents = traffic.agents.max(1);
        let mut generator = Self {
            left: traffic.requests,
            draws: Draws::new(traffic.seed),
            prompts: Vec::new(),
            tasks: vec![Task::default(); agents as usize],
            due: BinaryHeap::new(),
            next_block: 0,
        };
        for _ in 0..SYSTEM_PROMPTS {
            let (least, most) = SYSTEM_TOKENS;
            let tokens = least + generator.draws.below(most - least + 1);
            let blocks = generator.fresh_blocks(tokens / BLOCK_TOKENS);
            generator.prompts.push((tokens, blocks));
        }
        for agent in 0..agents {
            let start = generator.draws.exponential(PAUSE_MEAN_S);
            generator.due.push(Reverse((nanos(start), agent)));
        }
        generator
    }

    /// One step of an agent: its request, and the time until the next.
    fn step(&mut self, index: u32, at: u64) -> (Request, u64) {
        let mut task = std::mem::take(&mut self.tasks[index as usize]);
        if task.steps_left == 0 {
            task = self.open();
        } else {
            task.context_tokens += self.draws.log_normal(TOOL_TOKENS);
        }
        task.context_tokens = task.context_tokens.min(CONTEXT_TOKENS_MAX);
        let whole = task.context_tokens / BLOCK_TOKENS;
        let grown = self.fresh_blocks(whole.saturating_sub(task.blocks.len() as u64));
        task.blocks.extend(grown);
        let mut blocks = task.blocks.clone();
        if !task.context_tokens.is_multiple_of(BLOCK_TOKENS) {
            blocks.extend(self.fresh_blocks(1));
        }
        let output_tokens = self.draws.log_normal(ANSWER_TOKENS);
        let request = Request {
            at: Duration::from_nanos(at),
            input_tokens: task.context_tokens,
            output_tokens,
            blocks,
            hint: None,
            expect: None,
        };
        task.context_tokens += output_tokens;
        task.steps_left -= 1;
        if task.context_tokens >= CONTEXT_TOKENS_MAX {
            task.steps_left = 0;
        }
        let answering = output_tokens as f64 / ANSWER_TOKENS_PER_S;
        let waiting = if task.steps_left == 0 {
            self.draws.exponential(PAUSE_MEAN_S)
        } else if self.draws.chance(PERSON_SHARE) {
            self.draws.log_normal_f64(PERSON_S)
        } else {
            self.draws.log_normal_f64(TOOL_S)
        };
        self.tasks[index as usize] = task;
        (request, nanos(answering + waiting))
    }

    fn open(&mut self) -> Task {
        let rank = self.draws.zipf(self.prompts.len());
        let material = self.draws.log_normal(MATERIAL_TOKENS);
        let (tokens, blocks) = &self.prompts[rank];
        Task {
            steps_left: self.draws.geometric(STEPS_MEAN),
            context_tokens: tokens + material,
            blocks: blocks.clone(),
        }
    }

    fn fresh_blocks(&mut self, count: u64) -> Vec<u64> {
        let first = self.next_block;
        self.next_block += count;
        (first..self.next_block).collect()
    }
}

impl Iterator for AgentGenerator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.left = self.left.checked_sub(1)?;
        let Reverse((at, agent)) = self.due.pop()?;
        let (request, gap) = self.step(agent, at);
        self.due.push(Reverse((at.saturating_add(gap), agent)));
        Some(request)
    }
}

const SYSTEM_PROMPTS: usize = 4;
const SYSTEM_TOKENS: (u64, u64) = (4_096, 12_288);
const MATERIAL_TOKENS: LogNormal = LogNormal {
    median: 6_000.0,
    sigma: 0.8,
};
const STEPS_MEAN: f64 = 80.0;
const TOOL_TOKENS: LogNormal = LogNormal {
    median: 500.0,
    sigma: 1.3,
};
const ANSWER_TOKENS: LogNormal = LogNormal {
    median: 150.0,
    sigma: 0.9,
};
const ANSWER_TOKENS_PER_S: f64 = 60.0;
const TOOL_S: LogNormal = LogNormal {
    median: 5.0,
    sigma: 1.0,
};
const PERSON_SHARE: f64 = 0.05;
const PERSON_S: LogNormal = LogNormal {
    median: 600.0,
    sigma: 1.3,
};
const PAUSE_MEAN_S: f64 = 300.0;

#[cfg(test)]
mod tests {
    use slackwater_base::{Map, Set};

    use super::*;

    const TRAFFIC: AgentTraffic = AgentTraffic {
        requests: 20_000,
        agents: 60,
        seed: 3,
    };

    #[test]
    fn the_same_seed_gives_the_same_requests_in_order_and_another_others() {
        let all = |traffic| AgentGenerator::new(traffic).collect::<Vec<_>>();
        let first = all(TRAFFIC);
        assert_eq!(first.len(), 20_000);
        assert!(first.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert_eq!(first, all(TRAFFIC));
        assert_ne!(first, all(AgentTraffic { seed: 4, ..TRAFFIC }));
    }

    /// Ids are chained by prefix: whatever stands before an id stands before it always.
    #[test]
    fn equal_ids_follow_equal_prefixes_and_chains_cover_their_prompts() {
        let mut parents: Map<u64, Option<u64>> = Map::default();
        for request in AgentGenerator::new(TRAFFIC) {
            let blocks = request.input_tokens.div_ceil(BLOCK_TOKENS);
            assert_eq!(request.blocks.len() as u64, blocks);
            assert!(request.input_tokens <= CONTEXT_TOKENS_MAX);
            let mut parent = None;
            for block in request.blocks {
                assert_eq!(*parents.entry(block).or_insert(parent), parent, "{block}");
                parent = Some(block);
            }
        }
    }

    #[test]
    fn the_statistics_are_the_documented_ones() {
        let mut generator = AgentGenerator::new(TRAFFIC);
        let tasks: Vec<Task> = (0..20_000).map(|_| generator.open()).collect();
        let mean = |value: &dyn Fn(&Task) -> f64| {
            tasks.iter().map(value).sum::<f64>() / tasks.len() as f64
        };
        let steps = mean(&|task| task.steps_left as f64);
        assert!((78.0..=82.0).contains(&steps), "{steps} steps a task");
        let least = SYSTEM_TOKENS.0 as f64;
        let opened = mean(&|task| task.context_tokens as f64);
        assert!(
            (least + 6_000.0..=25_000.0).contains(&opened),
            "{opened} tokens"
        );

        // Tasks last for hours: half of the requests come more than half an hour after the first.
        let requests: Vec<Request> = AgentGenerator::new(TRAFFIC).collect();
        let median = requests[requests.len() / 2].at;
        assert!(median > Duration::from_secs(1800), "{median:?}");
        let mut seen: Set<u64> = Set::default();
        let (mut references, mut hits) = (0u64, 0u64);
        for request in &requests {
            let known = request
                .blocks
                .iter()
                .take_while(|block| seen.contains(*block));
            hits += known.count() as u64;
            references += request.blocks.len() as u64;
            seen.extend(&request.blocks);
        }
        let rate = hits as f64 / references as f64;
        assert!(
            (0.95..=0.99).contains(&rate),
            "an endless cache would hit {rate}"
        );
    }
}
