//! The master's mind: which objects there are, where their replicas lie, who holds them, what goes when space is
//! short, what is written to SSD and what is brought back.
//!
//! Pure: it never sees a socket, a disk or a clock. It speaks three verbs, `handle`, `on_deadline` and
//! `next_deadline`, and says what it wants done in a list of outputs.
#![forbid(unsafe_code)]

pub mod evict;
pub mod replay;
