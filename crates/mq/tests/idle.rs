//! A message layer with nothing to do wakes no thread.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use slackwater_mq::*;

const PART: &str = "SLACKWATER_TEST_IDLE";
const LINKS: usize = 50;
/// How long the others are watched: one thread that looked every millisecond would be switched a thousand times.
const WATCHED: Duration = Duration::from_secs(1);

/// Not a test of its own: the process that the next test watches. A server and a client with links that stand, after
/// requests, a timer far away and an event stream.
#[test]
fn idle_process() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    let server = server_builder(Options {
        ephemeral_ids: true,
        ..options(1)
    })
    .start()
    .unwrap();
    let address = listen(&server, &everybody(true));
    let client = Builder::new(Options {
        ephemeral_ids: true,
        ..options(2)
    })
    .start()
    .unwrap();
    let links: Vec<ConnectionId> = (0..LINKS).map(|_| connect(&client, &address)).collect();
    for link in &links {
        assert_eq!(
            ask(&client, *link, "test.echo", &[b"x"]),
            Ok(vec![b"x".to_vec()])
        );
    }
    let publisher = server
        .publish(
            &any_port(),
            None,
            &everybody(false),
            &StreamOptions::default(),
        )
        .unwrap();
    let (said, heard) = std::sync::mpsc::channel();
    let stream = Address::of(publisher.endpoint(), None);
    client.subscribe(&stream, &[b"t"], &ConnectOptions::default(), move |m| {
        said.send(m.sequence).unwrap()
    });
    until(&server, "the subscription has arrived", |server| {
        server.metrics().subscriptions.get() == 1
    });
    publisher.publish(b"t", b"x");
    next(&heard, "a message of the stream");
    let far = TimerOptions {
        interval: Duration::from_secs(3600),
        squelch: true,
        on: RunOn::Pool,
    };
    let _timer = client.add_timer(far, || {});
    let mut out = std::io::stdout();
    writeln!(out, "\nidle").unwrap();
    out.flush().unwrap();
    // Ends when the parent closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Tools of the message layer looked five times a second whether they should end, and a waiting caller's loop a thousand
/// times whether it was called again; nothing noticed when such a thing came back.
#[test]
fn an_idle_message_layer_wakes_nobody() {
    let mut child = Command::new(std::env::current_exe().expect("this test is a program"))
        .args(["--exact", "idle_process", "--nocapture"])
        .env(PART, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test starts itself");
    let lines = BufReader::new(child.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok);
    let (told, idle) = std::sync::mpsc::channel();
    // Ends with the child, whose pipe it reads.
    std::thread::spawn(move || {
        lines
            .filter(|line| line == "idle")
            .try_for_each(|_| told.send(()))
    });
    next(&idle, "it is idle");
    // The first looks let the last turns of its loops end.
    let woken = || {
        let before = switches(child.id());
        std::thread::sleep(WATCHED);
        switches(child.id()) - before
    };
    let woken: Vec<u64> = (0..8).map(|_| woken()).take_while(|it| *it > 3).collect();
    drop(child.stdin.take());
    let end = child.wait().expect("it can be waited for");
    assert!(end.success());
    assert!(woken.len() < 8, "switches in {WATCHED:?}: {woken:?}");
}

/// Context switches of all threads of a process.
fn switches(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let statuses = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let counts = |status: String| -> u64 {
        let lines = status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:"));
        lines
            .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
            .sum()
    };
    statuses.map(counts).sum()
}
