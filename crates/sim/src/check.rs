//! The invariants that a run checks, and the report of a violation.

use std::fmt;

/// The invariants that a run checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// A read gives exactly the bytes of one put of that key.
    NoWrongBytes,
    /// No data of one tenant reaches another.
    TenantWall,
    /// An acknowledgement means what its level says.
    Acknowledgement,
    /// What was removed or replaced never comes back.
    NoResurrection,
    /// Extents never overlap, and a dead extent is fenced before its bytes are allocated again.
    Extents,
    /// Once the faults are over, a put and a get succeed within the bound, and no call is left without an answer. No put
    /// waits for room that nobody makes.
    Liveness,
    /// Queues and memory stay within their limits.
    BoundedResources,
    /// The state of the master, of the nodes and of the logs agrees at rest.
    BooksBalance,
    /// A core keeps the contract of its interfaces: alignment, ids used once, answers to known requests.
    Contract,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoWrongBytes => "I1 no wrong bytes",
            Self::TenantWall => "I2 tenant wall",
            Self::Acknowledgement => "I3 acknowledgement",
            Self::NoResurrection => "I4 no resurrection",
            Self::Extents => "I6 extents",
            Self::Liveness => "I7 liveness",
            Self::BoundedResources => "I8 bounded resources",
            Self::BooksBalance => "I11 books balance",
            Self::Contract => "contract of an interface",
        })
    }
}

/// An invariant that did not hold, and the observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant that does not hold.
    pub invariant: Invariant,
    /// The observation that contradicts it.
    pub what: String,
}

impl Violation {
    /// A violation of `invariant`.
    pub fn new(invariant: Invariant, what: impl Into<String>) -> Self {
        Self {
            invariant,
            what: what.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

impl std::error::Error for Violation {}

/// `Ok`, or the violation.
pub type Checked<T = ()> = Result<T, Violation>;
