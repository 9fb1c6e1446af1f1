//! Request traces of LLM serving: reading them, generating them, and the block contents that prove a replay right.
//!
//! Everything here is a function of its input: a trace comes from any [`std::io::BufRead`], generated traffic from a
//! seed, and the bytes of a block from its key.
#![forbid(unsafe_code)]

mod agents;
mod content;
mod draw;
mod generate;
mod hints;
mod series;
mod trace;
mod variant;

pub use agents::{AgentGenerator, AgentTraffic};
pub use content::{Content, Difference, spoil};
pub use generate::{CONTEXT_TOKENS_MAX, Generator, Traffic};
pub use hints::{Hints, add_hints};
pub use series::Series;
pub use trace::{LINE_BYTES_MAX, Problem, TraceError, TraceReader};
pub use variant::{UnknownVariant, Variant};

use std::time::Duration;

pub use slackwater_wire::Expectation;
use slackwater_wire::{Chain, Key};

/// Tokens of one block in the published traces.
pub const BLOCK_TOKENS: u64 = 512;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, since the start of the trace.
    pub at: Duration,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Tokens that it generated.
    pub output_tokens: u64,
    /// The prefix blocks of its prompt, from the root: equal ids are equal blocks after equal blocks.
    pub blocks: Vec<u64>,
    /// An opaque small number that is expected to distinguish returning requests from others.
    pub hint: Option<u32>,
    /// What the caller expects of the chain, where it says so.
    pub expect: Option<Expectation>,
}

impl Request {
    /// What a cache is told of a read whose first block stands so many blocks from the root, after the block of this key: nothing
    /// that is known only when the answer is there.
    #[must_use]
    pub fn chain(&self, parent: Option<Key>, position: usize) -> Chain {
        Chain {
            parent,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            hint: self.hint,
            expect: self.expect,
            output_tokens: None,
        }
    }

    /// The same of blocks that are put once the answer is there.
    #[must_use]
    pub fn chain_of_put(&self, parent: Option<Key>, position: usize) -> Chain {
        Chain {
            output_tokens: Some(u32::try_from(self.output_tokens).unwrap_or(u32::MAX)),
            ..self.chain(parent, position)
        }
    }
}
