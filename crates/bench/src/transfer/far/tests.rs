//! A far end and runs against it, in one process over loopback.

use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_mq::{Admission, Builder, Category, Level, ListenOptions, Options, Running};
use slackwater_net::{Endpoint, UnixAccess};

use super::link::Link;
use super::*;
use crate::process::Process;

const PATIENCE: Duration = Duration::from_secs(60);

fn options(listen: &str) -> ServeOptions {
    ServeOptions {
        listen: listen.parse().unwrap(),
        key_file: None,
        allow: None,
        memory: ByteSize(96 << 20),
    }
}

fn far() -> (FarEnd, Receiver<String>) {
    let (told, heard) = channel();
    let far = FarEnd::start(options("127.0.0.1:0"), move |line| {
        // The test may be over.
        let _ = told.send(line.to_owned());
    });
    (far.unwrap(), heard)
}

fn refused<T>(result: Result<T, FarError>, expected: &str) {
    let error = result.err().unwrap().to_string();
    assert!(error.contains(expected), "{expected}: {error}");
}

/// A far end must be able to refuse a run of any version, and a run to be told of any far end.
#[test]
fn what_both_ends_say_first_never_changes() {
    let (version, protocol) = ("1.2.3".to_owned(), 7);
    let begin = Ask::Begin {
        version: version.clone(),
        protocol,
    };
    let text = serde_json::to_string(&begin).unwrap();
    assert_eq!(text, r#"{"Begin":{"version":"1.2.3","protocol":7}}"#);
    let other = Reply::OtherVersion { version, protocol };
    let text = serde_json::to_string(&other).unwrap();
    assert_eq!(text, r#"{"OtherVersion":{"version":"1.2.3","protocol":7}}"#);
}

/// A report named the library of AES at each end where a processor without its instructions had the two agree on ChaCha20.
#[test]
fn a_report_names_the_cipher_that_both_ends_agree_on() {
    let check = |sealed: bool, here: Option<&str>, there: Option<&str>, expected: &str| {
        let report = FarReport {
            address: "far".to_owned(),
            link: None,
            sealed,
            far_machine: serde_json::json!({ "aes": there }),
        };
        let text = report.table(here).text();
        let line = text.lines().find(|line| line.contains("sealed"));
        let found = line.and_then(|line| Some(line.split_once("are not")?.1.trim()));
        assert_eq!(found, Some(expected), "{here:?} {there:?}: {text}");
    };
    let (ring, aws) = (Some("ring"), Some("aws-lc"));
    let both = "yes; AES-256-GCM by ring here, by aws-lc there";
    check(true, ring, aws, both);
    check(true, ring, None, "yes; ChaCha20-Poly1305");
    check(true, None, aws, "yes; ChaCha20-Poly1305");
    check(true, None, None, "yes; ChaCha20-Poly1305");
    check(false, ring, aws, "no");
}

#[test]
fn one_run_is_served_after_the_other() {
    let (far, heard) = far();
    let say = || heard.recv_timeout(PATIENCE).unwrap();
    let first = Link::open(far.address(), None).unwrap();
    assert_eq!(say(), "a run from 127.0.0.1 begins");
    refused(
        Link::open(far.address(), None),
        "a run from 127.0.0.1 is under way",
    );
    assert!(
        first.cpu_seconds("it").unwrap() > 0.0,
        "it is not disturbed by the other"
    );
    first.end().unwrap();
    assert_eq!(say(), "the run from 127.0.0.1 is over");
    refused(first.target(1 << 20, None), "has not begun");
    // A run that goes without a word leaves its place as well.
    let second = Link::open(far.address(), None).unwrap();
    assert_eq!(say(), "a run from 127.0.0.1 begins");
    drop(second);
    assert_eq!(say(), "the run from 127.0.0.1 is gone");
    assert!(Link::open(far.address(), None).is_ok());
}

#[test]
fn a_run_gets_no_more_than_the_far_end_gives() {
    let (far, _heard) = far();
    let run = Link::open(far.address(), None).unwrap();
    assert!(run.target(16 << 20, Some(2)).is_ok());
    assert!(run.target(16 << 20, None).is_ok());
    refused(
        run.target(1 << 20, None),
        "97MiB are more than its --memory of 96MiB",
    );
    refused(run.target(usize::MAX, None), "are more than its --memory");
    run.close_targets().unwrap();
    refused(run.target(1 << 20, Some(65)), "64 event loops");
    refused(run.target(1 << 20, Some(0)), "64 event loops");
    assert!(
        run.target(32 << 20, Some(1)).is_ok(),
        "what was closed is there again"
    );
    let small = ServeOptions {
        memory: ByteSize(1 << 20),
        ..options("127.0.0.1:0")
    };
    let far = FarEnd::start(small, |_| {}).unwrap();
    refused(Link::open(far.address(), None), "its --memory is 1MiB");
}

#[test]
fn where_keys_are_needed_and_missing_is_said() {
    let check = |options: ServeOptions, expected: &str| {
        refused(FarEnd::start(options, |_| {}), expected);
    };
    check(options("10.1.2.3:0"), "give --key-file and --allow");
    check(options("0.0.0.0:7"), "such as 10.0.0.5:7");
    let alone = Some("no such file".into());
    check(
        ServeOptions {
            key_file: alone.clone(),
            ..options("127.0.0.1:0")
        },
        "without --allow",
    );
    let both = ServeOptions {
        key_file: alone.clone(),
        allow: alone,
        ..options("127.0.0.1:0")
    };
    check(both, "the key file: ");
    let open = |address: String| Link::open(&address.parse().unwrap(), None);
    refused(open("tcp://10.1.2.3:5".into()), "give the curve:// address");
    refused(
        open(format!("curve://127.0.0.1:5/{}", "5".repeat(64))),
        "give --key-file",
    );
    let plain = "tcp://127.0.0.1:5".parse().unwrap();
    refused(
        Link::open(&plain, Some("key".as_ref())),
        "--key-file is of no use with tcp://127.0.0.1:5",
    );
    refused(
        open("tcp://127.0.0.1:1".into()),
        "start `slackwater bench transfer --serve` there",
    );
}

/// A message layer that is no far end of this version.
fn other(command: &str, answer: &'static str) -> (Running, Address) {
    let mut builder = Builder::new(Options::default());
    builder.category(CATEGORY, Category::default()).unwrap();
    let reply = move |call: &slackwater_mq::Call<'_>| call.reply([answer]).unwrap();
    builder.request_command(command, reply).unwrap();
    let running = builder.start().unwrap();
    let listen = ListenOptions {
        admission: Admission::Everybody(Level::Basic),
        encrypted: false,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    };
    let any = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    let endpoint = running.listen(&any, &listen).unwrap();
    (running, Address::of(&endpoint, None))
}

#[test]
fn what_is_no_far_end_of_this_version_is_named() {
    let check = |command: &str, answer: &'static str, expected: &str| {
        let (_running, address) = other(command, answer);
        refused(Link::open(&address, None), expected);
    };
    let older = r#"{"OtherVersion":{"version":"0.0.9","protocol":0}}"#;
    check(COMMAND, older, "is slackwater 0.0.9 (protocol 0), this is");
    check(
        COMMAND,
        r#"{"Refused":"busy"}"#,
        "refuses the beginning of the run: busy",
    );
    check(COMMAND, r#""Done""#, "which is no answer to that");
    check(COMMAND, "?", "answered the beginning of the run with `?`");
    check("bench.other", "", "is no far end (UNKNOWNCOMMAND)");
}

#[test]
fn a_run_of_another_version_is_told_of_ours() {
    let (far, _heard) = far();
    let mq = Builder::new(Options::default()).start().unwrap();
    let link = mq
        .connect_wait(far.address(), &slackwater_mq::ConnectOptions::default())
        .unwrap();
    let ask = |text: &str| {
        let answer = mq
            .request_wait(link, COMMAND, [text], &Default::default())
            .unwrap();
        String::from_utf8(answer.part(0).unwrap().to_vec()).unwrap()
    };
    for (version, protocol) in [("0.0.9", PROTOCOL), (VERSION, PROTOCOL + 1)] {
        let begin = Ask::Begin {
            version: version.to_owned(),
            protocol,
        };
        let told = ask(&serde_json::to_string(&begin).unwrap());
        assert!(
            told.contains("OtherVersion") && told.contains(VERSION),
            "{told}"
        );
    }
    assert!(ask("{").contains("knows nothing of that"));
    assert!(ask(r#""Iperf3""#).contains("has not begun"));
}

/// The process that moves bytes went on until its own deadline, a minute later, when the far end had died.
#[test]
fn a_lost_far_end_ends_what_moves_bytes_to_it_and_is_named() {
    let (far, _heard) = far();
    let run = Link::open(far.address(), None).unwrap();
    let mut initiator = Command::new("sleep");
    initiator.arg("600");
    let mut initiator = Process::spawn(initiator, "initiator", PATIENCE).unwrap();
    run.guard(Some(initiator.id()));
    drop(far);
    assert!(
        initiator
            .hear("ran")
            .unwrap_err()
            .to_string()
            .contains("ended")
    );
    let lost = run.cpu_seconds("read of 1MiB 1x1").unwrap_err().to_string();
    assert!(
        lost.contains("was lost during read of 1MiB 1x1: "),
        "{lost}"
    );
    // One that is named later is ended as well.
    let mut later = Command::new("sleep");
    later.arg("600");
    let mut later = Process::spawn(later, "initiator", PATIENCE).unwrap();
    run.guard(Some(later.id()));
    assert!(later.hear("ran").unwrap_err().to_string().contains("ended"));
}
