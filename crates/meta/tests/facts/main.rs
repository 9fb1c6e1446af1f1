//! Facts about a master, each a test named for it.

mod absence;
mod answers;
mod decisions;
mod disk;
mod evict;
mod hostile;
mod inventory;
mod jobs;
mod journal;
mod lease;
mod limits;
mod model;
mod names;
mod offload;
mod permissions;
mod promote;
mod put;
mod put_waits;
mod remove;
mod replicate;
mod restarted;
mod stories;
mod suspect;
mod tenant;
mod tiers;
mod world;
