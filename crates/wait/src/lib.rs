//! How threads in Slackwater wait: a waiter reads one word, spins on it only when that is expected to be worth it, and
//! otherwise sleeps in the kernel until a completer wakes it.
//!
//! - [`Completion`] carries one value once, [`Countdown`] ends a batch with a single wake, [`Event`] is reusable.
//! - [`Waiting`] says how one wait is done: at which [`Site`], until when, by which strategy ([`Wait`]).
//! - [`Site`] learns how long waits of one kind last and counts what they did.
//!
//! The protocols, and the races they close, are explained in the README beside this crate.

mod arrival;
mod clock;
mod completion;
mod countdown;
mod cpus;
mod credentials;
mod event;
#[cfg(feature = "failpoints")]
mod failpoint;
mod futex;
mod nodes;
mod pace;
mod rhythm;
mod routine;
#[cfg(not(loom))]
mod shared;
mod site;
mod spinners;
mod strategy;
mod sync;
mod word;

#[cfg(all(test, loom))]
mod models;

pub use arrival::{Arrival, wait_for};
pub use clock::now;
pub use completion::{Abandoned, Completer, Completion};
pub use countdown::{AlreadyHooked, Countdown, Hook};
pub use cpus::{Cpus, cpu_list, current_cpu};
pub use credentials::PeerCredentials;
pub use event::{Event, Seen};
#[cfg(feature = "failpoints")]
pub use failpoint::{FAILPOINT_ENV, failpoint};
pub use nodes::{NodeCpus, NumaId, SysfsError, numa_nodes, run_on, sysfs_list, sysfs_text};
pub use pace::Costs;
pub use routine::{Ended, Sleeper, Stopped, Waiting};
#[cfg(not(loom))]
pub use shared::SharedWord;
pub use site::{GAP_BUCKETS, Site, SiteCounts};
pub use spinners::{Working, forked, free_cpus, working};
pub use strategy::{
    Adaptive, Choice, ChoiceError, Park, Plan, Sleep, Spin, Then, Wait, current, install,
};
pub use word::Word;

/// Without the feature `failpoints`: no environment variable names a place.
#[cfg(not(feature = "failpoints"))]
pub const FAILPOINT_ENV: Option<&str> = None;

/// Without the feature `failpoints`: nothing happens at any place.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn failpoint(_place: &str) {}

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
