//! What the commands do, and what they say when they cannot.

use std::process::Output;

use rustix::process::Signal;
use slackwater_remote::{GetOptions, PutOptions, RemoveOptions, Stored};

use super::{Served, exit_code, feed, value};
use crate::place::{Place, object, stderr};

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn a_value_that_one_process_puts_is_read_by_others() {
    let place = Place::new();
    // The lease of a reader lasts for longer than the test.
    let served = Served::start(&place, &["--memory", "64MiB", "--lease-ttl", "10m"]);
    let run = |arguments: &[&str], input: &[u8]| served.run(&place, arguments, input);
    let put = run(&["put", "k", "-"], b"hello");
    assert_eq!((code(&put), stderr(&put)), (Some(0), String::new()));
    assert_eq!(run(&["get", "k"], b"").stdout, b"hello");
    let again = run(&["put", "k", "-", "--json"], b"other");
    assert_eq!(object(&again)["stored"], false, "it was there");
    assert_eq!(run(&["get", "k"], b"").stdout, b"hello");
    let upsert = run(&["put", "k", "-", "--upsert", "--json"], b"other");
    assert_eq!(object(&upsert)["stored"], true);
    assert_eq!(run(&["get", "k"], b"").stdout, b"other");
    std::fs::write(place.path("big"), value(1, 9_000_001)).unwrap();
    assert_eq!(code(&run(&["put", "big", "big"], b"")), Some(0));
    let big = run(&["get", "big", "--output", "back", "--json"], b"");
    assert_eq!(object(&big)["bytes"], 9_000_001);
    assert!(std::fs::read(place.path("back")).unwrap() == value(1, 9_000_001));
    assert_eq!(run(&["ls"], b"").stdout, b"big\nk\n");
    let listed = object(&run(&["ls", "^b", "--json"], b""));
    assert_eq!(listed, serde_json::json!({"keys": ["big"], "more": false}));
    assert_eq!(
        object(&run(&["ls", "--limit", "1", "--json"], b""))["more"],
        true
    );
    let stat = object(&run(&["stat", "k", "--json"], b""));
    assert_eq!(
        (&stat["bytes"], &stat["replicas"][0]["tier"]),
        (&5.into(), &"memory".into())
    );
    let told = String::from_utf8(run(&["stat", "k"], b"").stdout).unwrap();
    assert!(told.starts_with("k\n  5 bytes (5B) in memory\n"), "{told}");
    let held = run(&["rm", "k"], b"");
    assert_eq!(code(&held), Some(1), "a reader's lease lasts");
    assert!(
        stderr(&held).contains("--force removes it"),
        "{}",
        stderr(&held)
    );
    assert_eq!(code(&run(&["rm", "k", "big", "--force"], b"")), Some(0));
    let gone = run(&["get", "k"], b"");
    assert_eq!((code(&gone), gone.stdout.len()), (Some(1), 0));
    assert_eq!(
        stderr(&gone),
        "slackwater: there is no object with the key k\n"
    );
    assert_eq!(run(&["ls"], b"").stdout, b"");
}

#[test]
fn a_library_client_does_what_the_embedded_store_does() {
    let place = Place::new();
    let served = Served::start(&place, &["--memory", "64MiB"]);
    let client = served.connect();
    let values: Vec<Vec<u8>> = (0..40)
        .map(|name| value(name, 1 + 5_000 * name as usize))
        .collect();
    let keys: Vec<String> = (0..40).map(|name| format!("block-{name:02}")).collect();
    let named: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let entries: Vec<(&[u8], &[u8])> = named
        .iter()
        .zip(&values)
        .map(|(key, value)| (*key, value.as_slice()))
        .collect();
    let stored = client.put_batch(&entries, &PutOptions::default());
    assert!(stored.iter().all(|stored| *stored == Ok(Stored::New)));
    let other = served.connect();
    let got = other.get_batch(&named, &GetOptions::default());
    for (got, value) in got.into_iter().zip(&values) {
        assert!(got.unwrap().as_ref() == Some(value));
    }
    let asked = [named[0], b"none", named[1]];
    let prefix = GetOptions {
        prefix_only: true,
        ..GetOptions::default()
    };
    let ends: Vec<bool> = other
        .get_batch(&asked, &prefix)
        .into_iter()
        .map(|got| got.unwrap().is_some())
        .collect();
    assert_eq!(ends, [true, false, false]);
    assert_eq!(
        other.exists(&asked, &Default::default()),
        Ok(vec![true, false, true])
    );
    let mut buffer = vec![0; 5_000];
    let short = other.get_into(named[1], &mut buffer, &GetOptions::default());
    assert_eq!(
        short.unwrap_err().to_string(),
        "the value of block-01 has 5001 bytes, the buffer 5000"
    );
    buffer.resize(6_000, 0);
    let length = other.get_into(named[1], &mut buffer, &GetOptions::default());
    assert_eq!(length, Ok(Some(5_001)));
    assert!(buffer[..5_001] == values[1]);
    let refused = client.put(b"k", &[], &PutOptions::default());
    assert_eq!(refused.unwrap_err().to_string(), "the value of k is empty");
    let huge = client.put(b"k", &vec![0; (64 << 20) + 1], &PutOptions::default());
    assert!(
        huge.unwrap_err()
            .to_string()
            .contains("the largest that fits")
    );
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    let removed = other.remove(&[named[2], b"none"], &force);
    assert_eq!(removed[0], Ok(()));
    assert!(
        removed[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("OBJECT_NOT_FOUND")
    );
}

/// Values that have left memory are read from the SSD into memory that is lent for the time of a lease.
#[test]
fn what_is_only_on_ssd_is_read_too() {
    let place = Place::new();
    let sizes = [
        "--memory",
        "8MiB",
        "--ssd",
        "128MiB",
        "--file-bytes",
        "4MiB",
        "--dir",
        "kv",
    ];
    let more = [
        "--staging",
        "2MiB",
        "--promotion-enabled",
        "false",
        "--lease-ttl",
        "500ms",
    ];
    let served = Served::start(&place, &[&sizes[..], &more[..]].concat());
    let client = served.connect();
    for name in 0..60 {
        let key = format!("k{name}");
        let put = client.put(
            key.as_bytes(),
            &value(name, 512 << 10),
            &PutOptions::default(),
        );
        assert_eq!(put, Ok(Stored::New), "{key}");
    }
    let mut on_ssd = 0;
    for name in 0..60 {
        let key = format!("k{name}");
        let Some(found) = client.stat(key.as_bytes(), &Default::default()).unwrap() else {
            continue;
        };
        let got = client.get(key.as_bytes(), &GetOptions::default()).unwrap();
        assert!(got.is_none_or(|got| got == value(name, 512 << 10)), "{key}");
        let in_memory = |(at, ..): &(slackwater_wire::ReplicaAt, _, _)| {
            matches!(at, slackwater_wire::ReplicaAt::Memory(_))
        };
        on_ssd += u64::from(!found.replicas.iter().any(in_memory));
    }
    assert!(on_ssd > 20, "{on_ssd} of them had left memory");
    let long = client.put(b"long", &value(99, 3 << 20), &PutOptions::default());
    assert_eq!(long, Ok(Stored::New));
    for name in 100..140 {
        let key = format!("k{name}");
        let _ = client.put(
            key.as_bytes(),
            &value(name, 512 << 10),
            &PutOptions::default(),
        );
    }
    let got = client.get(b"long", &GetOptions::default());
    let told = got.unwrap_err().to_string();
    assert!(told.contains("VALUE_TOO_LONG"), "{told}");
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do() {
    let place = Place::new();
    let nobody = feed(
        place.command(&["get", "k", "--connect", "tcp://127.0.0.1:9"]),
        b"",
    );
    let told = stderr(&nobody);
    assert_eq!(code(&nobody), Some(1));
    assert!(
        told.contains("no server at tcp://127.0.0.1:9") && told.contains("refused"),
        "{told}"
    );
    assert!(told.contains("`slackwater serve` starts one"), "{told}");
    let served = Served::start(&place, &["--memory", "64MiB"]);
    let port = served.address.strip_prefix("tcp://").unwrap();
    let check = |arguments: &[&str], expected: &str| {
        let output = place.run(&[&["serve", "--memory", "64MiB"], arguments].concat());
        let told = stderr(&output);
        assert!(
            code(&output) == Some(1) && told.contains(expected),
            "{told}"
        );
    };
    check(&["--listen", port], "name another address with --listen");
    check(&["--listen", "192.0.2.1:0"], "give --key-file and --allow");
    check(
        &["--listen", "127.0.0.1:0", "--data", "0.0.0.0:0"],
        "give --key-file and --allow",
    );
    let wrong = place.run(&["serve", "--memory", "lots"]);
    assert!(stderr(&wrong).contains("--memory"), "{}", stderr(&wrong));
    let missing = place.run(&["serve", "--key-file", "key", "--allow", "list"]);
    assert!(
        stderr(&missing).contains("the key file: key:"),
        "{}",
        stderr(&missing)
    );
}

#[test]
fn a_server_ends_as_it_is_told() {
    let place = Place::new();
    for (signal, expected) in [(Signal::TERM, 0), (Signal::INT, 130)] {
        let arguments = ["--memory", "64MiB", "--ssd", "64MiB", "--dir", "kv"];
        let mut served = Served::start(&place, &arguments);
        let put = served.run(
            &place,
            &["put", "k", "-", "--upsert", "--durable"],
            b"hello",
        );
        assert_eq!(code(&put), Some(0), "{}", stderr(&put));
        served.signal(signal);
        assert_eq!(exit_code(&mut served), Some(expected));
    }
    let served = Served::start(
        &place,
        &["--memory", "64MiB", "--ssd", "64MiB", "--dir", "kv"],
    );
    assert_eq!(served.run(&place, &["get", "k"], b"").stdout, b"hello");
}
