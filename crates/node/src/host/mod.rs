//! The hosts of the pure cores: what carries their inputs and outputs, without a lock, a thread or a clock of its own.
//!
//! A store has one of each, and carries messages between them under one lock. A master and a node that are processes of
//! their own have one, and a link to the other.

mod master;
mod node;

pub(crate) use master::{Asked, MasterHost};
pub(crate) use node::{NodeHost, Stopped};
