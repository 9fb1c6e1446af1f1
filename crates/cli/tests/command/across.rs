//! `slackwater bench transfer` between two machines, which processes and networks of this one stand for.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Output, Stdio};
use std::sync::mpsc::channel;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use slackwater_transfer::AesLibrary;

use crate::place::{PATIENCE, Place, end, object, output, stderr};

/// A far end in a process of its own; killed when dropped.
struct Far {
    child: Child,
    address: String,
    told: BufReader<ChildStderr>,
}

impl Far {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let words = ["bench", "transfer", "--serve", "--listen", "127.0.0.1:0"];
        let mut command = place.command(&[&words[..], arguments].concat());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        let address = said.trim().strip_prefix("serving at ").unwrap().to_owned();
        let told = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            address,
            told,
        }
    }

    /// The next line of what it tells people.
    fn told(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run of few short rows against a far end.
const ROWS: [&str; 14] = [
    "--blocks",
    "64KiB",
    "--concurrency",
    "1,3",
    "--batch",
    "1,4",
    "--window",
    "50ms",
    "--rounds",
    "1",
    "--loops",
    "1,2",
    "--op",
    "read,write",
];

fn run(place: &Place, far: &Far, arguments: &[&str]) -> Output {
    place.run(
        &[
            &["bench", "transfer", "--target", &far.address],
            &ROWS[..],
            arguments,
        ]
        .concat(),
    )
}

/// What a report of [`ROWS`] has, whatever the link; the throughput of each row.
fn check(report: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().filter(|it| *it > 0.0);
    let rows = report["rows"].as_array().unwrap();
    let named = |row: &Value| {
        (
            row["op"].clone(),
            row["concurrency"].clone(),
            row["batch"].clone(),
        )
    };
    let names: Vec<_> = rows.iter().map(named).collect();
    let mut expected = Vec::new();
    for op in ["read", "write"] {
        for (concurrency, batch) in [(1, 1), (1, 4), (3, 1), (3, 4)] {
            expected.push((op.into(), concurrency.into(), batch.into()));
        }
    }
    assert_eq!(names, expected, "{report}");
    for field in [
        "gbps",
        "p50_us",
        "p99_us",
        "gbps_over_limit",
        "cpu_s_per_gb",
    ] {
        assert!(
            rows.iter().all(|row| number(&row[field]).is_some()),
            "{field}: {report}"
        );
    }
    let loops = report["loops"].as_array().unwrap();
    let loops_of: Vec<_> = loops
        .iter()
        .map(|row| (row["loops"].as_u64(), row["op"].as_str()))
        .collect();
    let (one, two) = (Some(1), Some(2));
    let (read, write) = (Some("read"), Some("write"));
    assert_eq!(
        loops_of,
        [(one, read), (two, read), (one, write), (two, write)]
    );
    assert!(
        loops
            .iter()
            .all(|row| number(&row["gbps_over_limit"]).is_some()),
        "{report}"
    );
    for limit in ["blocking_socket_gbps", "blocking_socket_write_gbps"] {
        assert!(
            number(&report["limits"][limit]).is_some(),
            "{limit}: {report}"
        );
    }
    assert_eq!(report["latency"].as_array().unwrap().len(), 2, "{report}");
    let notes = report["notes"].to_string();
    for limit in ["iperf3_gbps", "iperf3_write_gbps"] {
        // Never left out without a word.
        assert_eq!(
            number(&report["limits"][limit]).is_none(),
            notes.contains("no iperf3: "),
            "{limit}: {report}"
        );
    }
    assert!(
        report["across"]["far_machine"]["cores"].is_number(),
        "{report}"
    );
    rows.iter()
        .chain(loops)
        .map(|row| row["gbps"].as_f64().unwrap())
        .collect()
}

/// Makes a key and returns its public half.
fn key(place: &Place, name: &str) -> String {
    let made = place.run(&["keys", "new", name]);
    let text = String::from_utf8(made.stdout).unwrap();
    text.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn a_keyed_far_end_serves_one_run_after_another_and_ends_when_told() {
    let place = Place::new();
    key(&place, "far");
    key(&place, "other");
    let near = key(&place, "near");
    assert!(
        place
            .run(&["keys", "allow", "list", &near])
            .status
            .success()
    );
    // Each end has its own AES, and their bytes are the same.
    let (first, last) = (AesLibrary::ALL[0], AesLibrary::ALL.last().unwrap());
    let keyed = ["--key-file", "far", "--allow", "list"];
    let mut far = Far::start(&place, &[&keyed[..], &["--aes", last.name()]].concat());
    assert!(
        far.address.starts_with("curve://127.0.0.1:"),
        "{}",
        far.address
    );
    let ours = ["--key-file", "near"];
    let made = run(
        &place,
        &far,
        &[
            &ours[..],
            &["--json", "--link", "a cable", "--aes", first.name()],
        ]
        .concat(),
    );
    assert!(made.status.success(), "{}", stderr(&made));
    let report = object(&made);
    check(&report);
    assert_eq!(
        (&report["across"]["sealed"], &report["across"]["link"]),
        (&true.into(), &"a cable".into())
    );
    let aes = |end: &str| report.pointer(end).and_then(Value::as_str);
    assert_eq!(aes("/machine/aes"), Some(first.name()));
    assert_eq!(aes("/across/far_machine/aes"), Some(last.name()));
    let key = far.address.rsplit('/').next().unwrap();
    assert!(
        !report.to_string().contains(key),
        "a report is for everybody"
    );
    let again = run(&place, &far, &[&ours[..], &["--report", "page"]].concat());
    let text = String::from_utf8_lossy(&again.stdout).into_owned();
    let (here, there) = (AesLibrary::fastest(), last);
    let sealed = format!("yes; AES-256-GCM by {here} here, by {there} there");
    for word in [
        &sealed,
        "Between two machines",
        "blocking socket to the far end",
        "over the limit",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let page = std::fs::read_to_string(place.path("page/transfer.html")).unwrap();
    assert!(page.contains("Transfers between two machines"));
    let unknown = run(&place, &far, &[&ours[..], &["--aes", "openssl"]].concat());
    assert_eq!(unknown.status.code(), Some(2));
    let said = stderr(&unknown);
    assert!(
        said.contains("`openssl` is no AES of this build; it has aws-lc"),
        "{said}"
    );
    let unlisted = run(&place, &far, &["--key-file", "other"]);
    assert_eq!(unlisted.status.code(), Some(1));
    assert!(
        stderr(&unlisted).contains("no far end: "),
        "{}",
        stderr(&unlisted)
    );
    let told: Vec<String> = (0..4).map(|_| far.told()).collect();
    for (line, word) in told.iter().zip(["begins", "is over", "begins", "is over"]) {
        assert!(
            line.contains("run from 127.0.0.1") && line.contains(word),
            "{told:?}"
        );
    }
    far.signal(Signal::TERM);
    assert_eq!(end(&mut far.child).code(), Some(0));
    let mut pressed = Far::start(&place, &[]);
    pressed.signal(Signal::INT);
    assert_eq!(end(&mut pressed.child).code(), Some(130));
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
}

/// A far end that was killed in the middle was reported as a path on which no byte moves.
#[test]
fn a_far_end_that_is_killed_in_the_middle_is_named() {
    let place = Place::new();
    let mut far = Far::start(&place, &[]);
    let words = [
        "bench",
        "transfer",
        "--target",
        &far.address,
        "--window",
        "10s",
    ];
    let mut command = place.command(&words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let near = command.spawn().unwrap();
    assert!(far.told().contains("begins"));
    far.signal(Signal::KILL);
    let ended = output(near);
    let told = stderr(&ended);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let named = format!("the far end at {} was lost during ", far.address);
    assert!(
        told.contains(&named) && told.contains("start it again"),
        "{told}"
    );
}

/// The report of a run over a shaped link, and what it told people.
fn shaped(place: &Place, rate: &str, path: &OsStr) -> (Value, String) {
    let words = ["bench", "transfer", "--shaped", rate, "--json"];
    let mut command = place.command(&[&words[..], &ROWS[..]].concat());
    command.env("PATH", path);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let made = output(command.spawn().unwrap());
    assert!(made.status.success(), "{}", stderr(&made));
    (object(&made), stderr(&made))
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that measures less says so")]
fn rates_stay_below_that_of_a_shaped_link_between_two_networks() {
    /// 10^9 bytes a second of the link, and how much the first bytes of a short row may add: what the shaper lets through at once.
    const LINK: f64 = 0.1;
    const BURST: f64 = 1.5;
    let place = Place::new();
    let (report, told) = shaped(&place, "800mbit", &std::env::var_os("PATH").unwrap());
    let rates = check(&report);
    let link = report["across"]["link"].as_str().unwrap();
    if link.starts_with("loopback, not shaped: this machine gives no networks of one's own: ") {
        assert!(told.contains(link), "{told}");
        eprintln!("over loopback only: {link}");
        return;
    }
    assert_eq!(
        link,
        "two networks of one machine, shaped to 800mbit by tbf"
    );
    assert_eq!(
        report["across"]["sealed"], true,
        "an address that others could reach needs keys"
    );
    assert!(rates.iter().all(|rate| *rate < LINK * BURST), "{rates:?}");
    for limit in ["blocking_socket_gbps", "blocking_socket_write_gbps"] {
        let rate = report["limits"][limit].as_f64().unwrap();
        assert!(rate < LINK * BURST, "{limit}: {rate}");
    }
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
}

/// Also where the run is killed, which drops nothing.
#[test]
fn a_far_end_on_loopback_ends_with_the_run_that_started_it() {
    let place = Place::new();
    let words = ["bench", "transfer", "--shaped", "4gbit", "--window", "10s"];
    let mut command = place.command(&words);
    // No network can be made.
    command.env("PATH", "nowhere");
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // All that it starts has the same pipe for its errors.
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let begins = |line: io::Result<String>| line.unwrap().contains("begins");
    assert!(told.by_ref().any(begins), "the far end has a run");
    child.kill().unwrap();
    let (ended, heard) = channel();
    std::thread::spawn(move || {
        told.by_ref().for_each(drop);
        ended.send(())
    });
    let silent = heard.recv_timeout(PATIENCE);
    if silent.is_err() {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    child.wait().unwrap();
    silent.expect("it serves on");
}

#[test]
fn where_no_network_can_be_made_the_run_is_over_loopback_and_says_why() {
    let place = Place::new();
    // Neither setpriv nor iperf3 is found.
    let (report, told) = shaped(&place, "4gbit", OsStr::new("nowhere"));
    check(&report);
    let link = report["across"]["link"].as_str().unwrap();
    assert!(
        link.starts_with("loopback, not shaped: ") && link.contains("setpriv: "),
        "{link}"
    );
    assert!(told.contains(link), "{told}");
    assert_eq!(report["across"]["sealed"], false);
    let notes = report["notes"].to_string();
    assert!(notes.contains("no iperf3: at the far end: "), "{notes}");
}
