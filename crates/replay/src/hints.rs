use std::time::Duration;

use slackwater_base::{Map, Rng, Set};

use crate::{Expectation, Request};

/// Which hints [`add_hints`] adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hints {
    /// The share of requests that get one.
    pub share: f64,
    /// How often what is expected agrees with what follows.
    pub accuracy: f64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Hints {
    /// What the hints say, as text for `--help` and documents.
    pub const MEANING: &str = "\
whether the request ended so that the conversation is expected to continue within ten minutes, which agrees with what \
follows in 80 % of the cases, and the turn of the conversation as an opaque number (0 to 6, later ones count as 6)";
}

/// A conversation continues when its chain is continued within this time.
const CONTINUES_WITHIN: Duration = Duration::from_secs(600);
const TURNS: u32 = 7;
/// A block that is continued in more ways opens conversations, as a system prompt does, and belongs to none.
const BRANCHES_MAX: usize = 4;

/// Replaces the hints of `requests`, which are in order of arrival, by such as an engine could know:
/// [`Hints::MEANING`].
pub fn add_hints(requests: &mut [Request], hints: Hints) {
    let mut rng = Rng::new(hints.seed);
    let follows = continued(requests);
    let shared = shared(requests);
    // The turn by the last block of what was said before.
    let mut turns: Map<u64, u32> = Map::default();
    for (request, follows) in requests.iter_mut().zip(follows) {
        let known = request
            .blocks
            .iter()
            .rev()
            .take_while(|block| !shared.contains(*block))
            .find_map(|block| turns.get(block).copied());
        let turn = known.map_or(0, |turn| turn + 1).min(TURNS - 1);
        if let Some(&last) = own_blocks(request).last() {
            turns.insert(last, turn);
        }
        let expected = follows == rng.chance(hints.accuracy);
        let hinted = rng.chance(hints.share);
        let says = if expected {
            Expectation::Continues
        } else {
            Expectation::Ends
        };
        request.hint = hinted.then_some(turn);
        request.expect = hinted.then_some(says);
    }
}

/// The blocks that many conversations go through.
fn shared(requests: &[Request]) -> Set<u64> {
    let mut branches: Map<u64, Vec<u64>> = Map::default();
    for pair in requests
        .iter()
        .flat_map(|request| request.blocks.windows(2))
    {
        let next = branches.entry(pair[0]).or_default();
        if next.len() <= BRANCHES_MAX && !next.contains(&pair[1]) {
            next.push(pair[1]);
        }
    }
    let many = branches
        .into_iter()
        .filter(|(_, next)| next.len() > BRANCHES_MAX);
    many.map(|(block, _)| block).collect()
}

/// For each request whether another one continues its chain soon: one that holds its last block and comes later.
fn continued(requests: &[Request]) -> Vec<bool> {
    let mut next_use: Map<u64, Duration> = Map::default();
    let mut follows = vec![false; requests.len()];
    for (request, follows) in requests.iter().zip(&mut follows).rev() {
        let last = own_blocks(request).last();
        let next = last.and_then(|last| next_use.get(last));
        *follows = next.is_some_and(|next| *next - request.at <= CONTINUES_WITHIN);
        for &block in &request.blocks {
            next_use.insert(block, request.at);
        }
    }
    follows
}

/// The blocks that a longer prompt can share: all but a last one that is not full.
fn own_blocks(request: &Request) -> &[u64] {
    let full = usize::try_from(request.input_tokens / crate::BLOCK_TOKENS).unwrap_or(usize::MAX);
    &request.blocks[..full.min(request.blocks.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generator, Traffic};

    fn request(seconds: u64, blocks: &[u64]) -> Request {
        Request {
            at: Duration::from_secs(seconds),
            input_tokens: blocks.len() as u64 * crate::BLOCK_TOKENS,
            output_tokens: 1,
            blocks: blocks.to_vec(),
            hint: None,
            expect: None,
        }
    }

    const EXACT: Hints = Hints {
        share: 1.0,
        accuracy: 1.0,
        seed: 1,
    };

    #[test]
    fn a_hint_tells_turn_and_whether_the_chain_is_continued_in_time() {
        let mut requests = vec![
            request(0, &[1, 2]),
            request(10, &[5]),
            request(20, &[1, 2, 3]),
            request(621, &[1, 2, 3, 4]),
        ];
        add_hints(&mut requests, EXACT);
        let turns: Vec<Option<u32>> = requests.iter().map(|request| request.hint).collect();
        assert_eq!(turns, [Some(0), Some(0), Some(1), Some(2)]);
        use Expectation::{Continues, Ends};
        let expected = requests.iter().map(|request| request.expect);
        assert!(expected.eq([Continues, Ends, Ends, Ends].map(Some)));
    }

    /// The first block of a published trace opens all of its conversations. Some have no other full block, and then
    /// the next conversation passed for their next turn: nearly all requests seemed to be the seventh or later.
    #[test]
    fn a_prompt_that_opens_many_conversations_is_no_turn_of_them() {
        let chat = |at: u64| request(at, &[1, 10 + at]);
        let mut requests = vec![request(0, &[1])];
        requests.extend((1..20).map(chat));
        requests.push(request(20, &[1, 15, 40]));
        requests.push(request(21, &[1]));
        add_hints(&mut requests, EXACT);
        let turns = requests.iter().map(|request| request.hint);
        let expected = (0..22).map(|at| Some(u32::from(at == 20)));
        assert!(
            turns.clone().eq(expected),
            "{:?}",
            turns.collect::<Vec<_>>()
        );
    }

    #[test]
    fn share_and_accuracy_are_kept() {
        let traffic = Traffic {
            requests: 5_000,
            ..Traffic::default()
        };
        let mut requests: Vec<Request> = Generator::new(traffic).collect();
        let hints = Hints {
            share: 0.3,
            accuracy: 0.8,
            seed: 2,
        };
        let follows = continued(&requests);
        add_hints(&mut requests, hints);
        let hinted = requests
            .iter()
            .zip(follows)
            .filter(|it| it.0.expect.is_some());
        let (mut count, mut right) = (0u32, 0u32);
        for (request, follows) in hinted {
            count += 1;
            right += u32::from((request.expect == Some(Expectation::Continues)) == follows);
            assert!(request.hint.is_some());
        }
        assert!((1_350..1_650).contains(&count), "{count} of 5,000");
        let share = f64::from(right) / f64::from(count);
        assert!((0.77..0.83).contains(&share), "{share} agree");
    }
}
