//! `slackwater mq`: tools that run until they are stopped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use slackwater_bench::process::switches;

/// How long an idle tool is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// The echo server looked five times a second whether it should end. Watched from outside, as a user's `top` does.
#[test]
fn an_idle_echo_server_wakes_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("ipc://{}", folder.path().join("echo").display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args(["mq", "echo", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let (told, heard) = channel();
    // Ends with the child, whose pipe it reads.
    std::thread::spawn(move || lines.for_each(|line| drop(told.send(line))));
    let first = heard.recv_timeout(Duration::from_secs(20));
    // The first look lets the start come to its end.
    let woken = [Duration::from_millis(200), WATCHED].map(|watched| {
        let before = switches(child.id());
        std::thread::sleep(watched);
        switches(child.id()) - before
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(first.unwrap(), format!("listening at {address}"));
    assert!(woken[1] <= 5, "{} switches in {WATCHED:?}", woken[1]);
}
