//! Movers between real processes, of which one is killed, stopped or late.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod child;
mod deaths;
mod late;
mod relay;
#[path = "../conformance/world.rs"]
#[expect(dead_code, reason = "the conformance suite uses the rest")]
mod world;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// These tests count descriptors and mappings of the process, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the process holds: descriptors, shared mappings, threads.
fn holdings() -> (usize, usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let threads = fs::read_dir("/proc/self/task").unwrap().count();
    (
        descriptors,
        maps.lines()
            .filter(|line| line.contains("memfd:slackwater"))
            .count(),
        threads,
    )
}

/// Waits for a state that comes by itself; the deadline is that of a failed test.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + world::PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "{what} did not come");
        std::thread::yield_now();
    }
}
