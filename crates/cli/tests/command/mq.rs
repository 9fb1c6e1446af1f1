//! `slackwater mq`: tools that run until they are stopped, and the lines of its guide.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_bench::process::switches;

use crate::place::{PATIENCE, Place, object, output, stderr};
use crate::served::{stop, until};

/// How long an idle tool is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// A server that runs until the test has ended, and what it prints.
struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (told, heard) = channel();
        // Ends with the child, whose pipe it reads.
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(told.send(line)))
        });
        Self {
            child,
            lines: heard,
        }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    fn address(&self) -> String {
        let line = self.line();
        line.strip_prefix("listening at ").expect(&line).to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An echo server, at a socket that no other test has.
fn echo(place: &Place) -> Server {
    Server::start(&mut place.command(&["mq", "echo", &socket(place)]))
}

fn socket(place: &Place) -> String {
    format!("ipc://{}", place.path("echo").display())
}

/// The echo server looked five times a second whether it should end. Watched from outside, as a user's `top` does.
#[test]
fn an_idle_echo_server_wakes_nobody() {
    let place = Place::new();
    let server = echo(&place);
    assert_eq!(server.address(), socket(&place));
    // The first looks let the start come to its end.
    let woken = || {
        let before = switches(server.child.id());
        std::thread::sleep(WATCHED);
        switches(server.child.id()) - before
    };
    let woken: Vec<u64> = (0..8).map(|_| woken()).take_while(|it| *it > 2).collect();
    assert!(woken.len() < 8, "switches in {WATCHED:?}: {woken:?}");
}

/// The guide's lines, run as they stand there but for the address: an echo server with an allow-list, and a client that is on
/// it.
#[test]
fn the_lines_of_the_guide_work() {
    let guide = include_str!("../../../../docs/guide/messages.md");
    let lines: Vec<Vec<&str>> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("slackwater "))
        .map(|line| line.split('#').next().unwrap().split_whitespace().collect())
        .collect();
    let place = Place::new();
    let said = |words: &[String]| -> String {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = place.run(&words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let (mut keys, mut address, mut server) = (Vec::new(), String::new(), None);
    let mut answers = Vec::new();
    for line in &lines {
        let filled: Vec<String> = line
            .iter()
            .map(|word| match *word {
                "CLIENT_PUBLIC_KEY" => String::clone(&keys[1]),
                "tcp://127.0.0.1:5000" => socket(&place),
                "curve://127.0.0.1:5000/SERVER_PUBLIC_KEY" => address.clone(),
                word => word.to_owned(),
            })
            .collect();
        match line[..2] {
            ["keys", "new"] => {
                let said = said(&filled);
                keys.push(said.split_whitespace().nth(1).unwrap().to_owned());
            }
            ["mq", "echo"] => {
                let words: Vec<&str> = filled.iter().map(String::as_str).collect();
                let begun = Server::start(&mut place.command(&words));
                address = begun.address();
                assert!(address.ends_with(&keys[0]), "{address}");
                server = Some(begun);
            }
            _ => answers.push(said(&filled)),
        }
    }
    assert_eq!(answers.len(), 4, "allow, request, send, load: {lines:?}");
    assert!(answers[1].starts_with("hello\n"), "{}", answers[1]);
    let heard = server.as_ref().unwrap().line();
    assert!(heard.ends_with(": hello"), "{heard}");
    assert!(
        answers[3].contains("2000 of 2000 requests answered") && answers[3].contains("failed   0"),
        "{}",
        answers[3]
    );
    let unlisted = place.run(&["mq", "request", &address, "echo.echo"]);
    assert_eq!(unlisted.status.code(), Some(1));
    assert!(
        stderr(&unlisted).contains("refused by the peer: 400"),
        "{}",
        stderr(&unlisted)
    );
    help_has_the_same_lines(&place, &lines);
}

fn help_has_the_same_lines(place: &Place, guide: &[Vec<&str>]) {
    let help = place.run(&["mq", "echo", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let example: Vec<Vec<&str>> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("slackwater "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(example.len(), 5, "{help}");
    for line in &example {
        assert!(
            guide.iter().any(|of_guide| of_guide.starts_with(line)),
            "not in the guide: {line:?}"
        );
    }
}

fn load(place: &Place, address: &str, more: &[&str]) -> Output {
    place.run(&[&["mq", "load", address, "--json"][..], more].concat())
}

#[test]
fn a_load_counts_every_request_as_answered_or_failed() {
    let place = Place::new();
    let server = echo(&place);
    let address = server.address();
    let done = load(
        &place,
        &address,
        &[
            "--requests",
            "500",
            "--connections",
            "3",
            "--message",
            "2KiB",
        ],
    );
    let report = object(&done);
    assert!(done.status.success(), "{report}");
    assert_eq!(report["answered"], 500);
    assert_eq!(report["message_bytes"], 2048);
    let micros = |name: &str| report[name].as_f64().unwrap();
    assert!(micros("p50_us") > 0.0 && micros("p50_us") <= micros("p99_us"));
    assert!(micros("p99_us") <= micros("max_us") && micros("per_second") > 0.0);

    let refused = load(&place, &address, &["no.such", "--requests", "5"]);
    let report = object(&refused);
    assert_eq!(refused.status.code(), Some(1), "{report}");
    assert_eq!(report["answered"], 0);
    assert_eq!(report["failed"]["UNKNOWNCOMMAND"], 5);
    assert!(report["p50_us"].is_null());
}

#[test]
fn a_load_keeps_its_rate() {
    let place = Place::new();
    let server = echo(&place);
    let address = server.address();
    let done = load(&place, &address, &["--requests", "101", "--rate", "200"]);
    let report = object(&done);
    // The last of them is due after half a second.
    assert!(report["seconds"].as_f64().unwrap() >= 0.5, "{report}");
    assert_eq!(report["answered"], 101);
}

/// A peer that no longer answers must not keep a user who wants to stop, nor take the report away.
#[test]
fn ctrl_c_ends_a_load_at_once_and_its_report_is_printed() {
    let place = Place::new();
    let server = echo(&place);
    let address = server.address();
    let arguments = ["--json", "--requests", "1000000", "--timeout", "1h"];
    let mut command = place.command(&[&["mq", "load", &address][..], &arguments].concat());
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = Pid::from_child(&child);
    // Some requests are answered, and then one is not.
    let began = std::time::Instant::now();
    while switches(child.id()) < 200 {
        assert!(began.elapsed() < PATIENCE, "it asks nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(&server.child);
    // It waits for an answer when it wakes no more.
    let mut seen = 0;
    until("it waits", || {
        std::mem::replace(&mut seen, switches(child.id())) == seen
    });
    kill_process(id, Signal::INT).unwrap();
    let output = output(child);
    let report = object(&output);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let answered = report["answered"].as_u64().unwrap();
    assert!(answered > 0 && answered < 1_000_000, "{report}");
    assert_eq!(report["failed"].as_object().unwrap().len(), 0, "{report}");
}
