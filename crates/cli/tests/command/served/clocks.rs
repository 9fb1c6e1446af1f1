//! The clock on the wall may jump by hours: someone sets it, or a machine wakes up with a wrong one. Leases and deadlines do
//! not follow it. The jumps are made by libfaketime, which stands between a process and its clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use slackwater_remote::{CallOptions, PutOptions, Stored};

use super::pool::{Node, get, put};
use super::{Served, until};
use crate::place::{Place, end, lasting_address};

const HOUR: &str = "-1h";

/// What has processes see another time of day than it is.
struct Clock {
    library: PathBuf,
    says: PathBuf,
}

impl Clock {
    /// `None`, and the reason is printed, where the library is not installed.
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn new(place: &Place) -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").ok()?.flatten();
        let library = folders
            .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
            .find(|library| library.exists());
        let Some(library) = library else {
            eprintln!("skipped: clocks that jump (apt-get install libfaketime)");
            return None;
        };
        let says = place.path("clock");
        fs::write(&says, "+0").unwrap();
        Some(Self { library, says })
    }

    /// From now on all processes with this clock are as far from the time of day.
    fn jump(&self, by: &str) {
        let fresh = self.says.with_extension("new");
        fs::write(&fresh, by).unwrap();
        fs::rename(fresh, &self.says).unwrap();
    }

    /// A process with this clock; only the clock on the wall is another one.
    fn give(&self, mut command: Command) -> Command {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.says)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    fn master(&self, place: &Place, listen: &str, more: &[&str]) -> Served {
        let arguments = ["master", "--listen", listen, "--log", "info"];
        let mut command = self.give(place.command(&[&arguments[..], more].concat()));
        let mut log = fs::File::options();
        let log = log.create(true).append(true).open(place.path("log"));
        command.stderr(Stdio::from(log.unwrap()));
        Served::spawn(command)
    }
}

/// The months, as `2026-01`, in which a master's clock said that nodes came.
fn months(place: &Place) -> Vec<String> {
    let log = fs::read_to_string(place.path("log")).unwrap();
    let came = log.lines().filter(|line| line.contains(" a node "));
    came.map(|line| line[..7].to_owned()).collect()
}

fn epoch(directory: &Path) -> u64 {
    let text = fs::read_to_string(directory.join("epoch")).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn a_pool_goes_on_when_its_clocks_jump() {
    let place = Place::new();
    let Some(clock) = Clock::new(&place) else {
        return;
    };
    let keep = ["--directory", "master"];
    let listen = lasting_address();
    let mut served = clock.master(&place, &listen, &keep);
    let lends = ["node", "--master", &served.address, "--memory", "32MiB"];
    let more = ["--ssd", "128MiB", "--dir", "kv", "--log", "error"];
    let mut node = Node::launch(clock.give(place.command(&[&lends[..], &more].concat())));
    let client = served.connect();
    (0..20).for_each(|name| put(&client, name));
    assert!((0..20).all(|name| get(&client, name).is_some()));
    for (jump, by) in ["+1h", "-2h", "+300d"].into_iter().enumerate() {
        clock.jump(by);
        let fresh = 100 + jump as u64;
        put(&client, fresh);
        assert!(get(&client, fresh).is_some(), "{by}");
        assert!((0..20).all(|name| get(&client, name).is_some()), "{by}");
    }
    let other = Node::start(&place, &served.address, &["--memory", "8MiB"]);
    until("the clock of the master has jumped", || {
        let months = months(&place);
        months.len() == 2 && months[1] > months[0]
    });
    drop(other);
    // The next life of the master is the next one, though its clock says that it was before.
    let first = epoch(&place.path("master"));
    clock.jump(HOUR);
    served.child.kill().unwrap();
    end(&mut served.child);
    let served = clock.master(&place, &listen, &keep);
    assert_eq!(epoch(&place.path("master")), first + 1);
    node.joined();
    until("everything is announced", || {
        (0..20).all(|name| get(&client, name).is_some())
    });
    put(&client, 200);
    assert!(get(&client, 200).is_some());
    drop((node, served));
}

/// A master that keeps nothing takes its number from its clock alone. Its nodes refused it with the name of a code, and nobody
/// knew what to do.
#[test]
fn a_master_without_a_directory_whose_clock_went_back_is_told_of() {
    let place = Place::new();
    let Some(clock) = Clock::new(&place) else {
        return;
    };
    let listen = lasting_address();
    let mut served = clock.master(&place, &listen, &[]);
    let lends = ["node", "--master", &served.address, "--memory", "8MiB"];
    let mut command = place.command(&[&lends[..], &["--log", "error"]].concat());
    command.stderr(Stdio::from(fs::File::create(place.path("said")).unwrap()));
    let node = Node::launch(command);
    clock.jump(HOUR);
    served.child.kill().unwrap();
    end(&mut served.child);
    let served = clock.master(&place, &listen, &[]);
    until("the node says what to do", || {
        let said = fs::read_to_string(place.path("said")).unwrap();
        said.contains("STALE_EPOCH") && said.contains("--directory")
    });
    let soon = PutOptions {
        call: CallOptions {
            deadline: Some(Duration::from_millis(200)),
            ..CallOptions::default()
        },
        ..PutOptions::default()
    };
    let refused = served.connect().put(b"k", b"value", &soon);
    assert!(refused.is_err(), "no node follows it: {refused:?}");
    // A node that has seen nothing takes the master as it is.
    drop(node);
    let node = Node::start(&place, &served.address, &["--memory", "8MiB"]);
    let client = served.connect();
    let stored = client.put(b"k", b"value", &PutOptions::default());
    assert_eq!(stored, Ok(Stored::New));
    drop(node);
}
