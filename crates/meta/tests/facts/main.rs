//! Facts about a master, each a test named for it.

mod put;
mod world;
