//! A child of a fork has the pool's memory and none of its threads.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};

use slackwater_pool::{Config, Pool, SubmitError};
use slackwater_wait::{Cpus, free_cpus, working};

#[test]
fn a_forked_child_runs_jobs_alone_and_refuses_to_queue() {
    let pool = Pool::start(&Config::threads(2)).unwrap();
    pool.run(10, |_| ());
    let cpus = Cpus::current().usable;
    let _busy: Vec<_> = (0..cpus).map(|_| working()).collect();
    // SAFETY: the child allocates only through the system allocator, which fork leaves usable, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ran = AtomicUsize::new(0);
        pool.run(100, |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        let refused = matches!(pool.spawn(|| ()), Err(SubmitError::Forked));
        // Once the parent's busy threads counted in the child for ever: no waiter of the child spun, no worker was woken.
        let crowded = free_cpus() != cpus;
        let code =
            i32::from(ran.into_inner() != 100) + 2 * i32::from(!refused) + 4 * i32::from(crowded);
        // SAFETY: ends the child at once, without the handlers of the parent's test runner.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "fork");
    let mut status = 0;
    // SAFETY: `status` is ours, and no other thread waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended by itself");
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "1: tasks were lost, 2: a task was queued, 4: CPUs count as taken"
    );
    assert_eq!(
        pool.spawn(|| 3).unwrap().wait().unwrap(),
        3,
        "the parent goes on"
    );
}
