//! A borrow that others use never ends by unwinding.
#![cfg(all(not(loom), not(miri)))]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use slackwater_pool::{Config, Pool};
use slackwater_wait::{Cpus, Event, Park, Plan, Site, Wait, Waiting};

const CHILD: &str = "SLACKWATER_TEST_ABORTS";

/// A strategy of the user's own, with a bug where submitters wait.
#[derive(Debug)]
struct Broken;

impl Wait for Broken {
    fn plan(&self, site: &Site) -> Plan {
        assert!(site.name() != "pool submitter", "a bug in a strategy");
        Park.plan(site)
    }
}

/// A job whose worker is still inside when the submitter, done with its own share, waits for it.
fn wait_for_a_busy_worker() {
    let pool = Pool::start(&Config::threads(2)).unwrap();
    slackwater_wait::install(Box::new(Broken), None);
    let (both_inside, event, borrowed) = (Barrier::new(2), Event::new(), [0u8; 64]);
    let submitter = thread::current().id();
    pool.run(2, |_| {
        both_inside.wait();
        if thread::current().id() != submitter {
            let site = Site::new("for ever");
            let _ = event.wait(event.seen(), &Waiting::at(&site).by(&Park));
        }
        assert_eq!(borrowed, [0; 64]);
    });
}

/// The wait of a submitter runs the strategy of the process, which a user may have written. Its panic ended the borrow
/// of a job while a worker used it.
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn a_panic_in_the_wait_for_a_worker_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let _ = std::panic::catch_unwind(wait_for_a_busy_worker);
        return;
    }
    if Cpus::current().usable < 2 {
        eprintln!("skipped: on one CPU the submitter works alone");
        return;
    }
    let name = "a_panic_in_the_wait_for_a_worker_ends_the_process";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = child.id();
    let (tell, told) = std::sync::mpsc::channel();
    let waiter = thread::spawn(move || tell.send(child.wait()));
    let status = told.recv_timeout(Duration::from_secs(60));
    if status.is_err() {
        let id = i32::try_from(id).unwrap();
        // SAFETY: the child has not been waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(id, libc::SIGKILL) }, 0);
    }
    waiter.join().unwrap().unwrap();
    let status = status.expect("the child ended within a minute").unwrap();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}
