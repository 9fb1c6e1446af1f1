//! Processes that die, stop and come back.

use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_base::Rng;
use slackwater_remote::{
    CallOptions, Cancel, Client, GetOptions, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{Durability, PutMode, ReplicaState};

use super::{Served, stopped, until, value};
use crate::place::{Place, end};

const MEMORY: [&str; 4] = ["--memory", "32MiB", "--lease-ttl", "500ms"];
/// More than half of the memory: two of them do not fit.
const LARGE: usize = 20 << 20;

fn spawn(served: &Served, place: &Place, arguments: &[&str], output: Stdio) -> Child {
    served
        .client(place, arguments)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn upsert() -> PutOptions {
    PutOptions {
        mode: PutMode::Upsert,
        ..PutOptions::default()
    }
}

fn force() -> RemoveOptions {
    RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    }
}

/// A writer is killed at any moment of its put. Readers find the value before it or all of the new one, and the room of
/// what it left comes back: the next large value finds it.
#[test]
fn a_writer_that_is_killed_leaves_nothing_half_published() {
    let place = Place::new();
    let served = Served::start(&place, &MEMORY);
    let client = served.connect();
    std::fs::write(place.path("large"), value(1, LARGE)).unwrap();
    let mut rng = Rng::new(5);
    let mut halfway = 0;
    for round in 0..12 {
        let put = ["put", "k", "large"];
        let mut writer = spawn(&served, &place, &put, Stdio::null());
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(5 + rng.below(120)));
        } else {
            let begun = || client.stat(b"k", &CallOptions::default()).unwrap();
            let is_written =
                |(_, state, _): &(_, ReplicaState, _)| *state == ReplicaState::Processing;
            let writing = || begun().is_some_and(|found| found.replicas.iter().any(is_written));
            while writer.try_wait().unwrap().is_none() && !writing() {}
        }
        writer.kill().unwrap();
        end(&mut writer);
        let got = client.get(b"k", &GetOptions::default()).unwrap();
        halfway += u64::from(round % 2 == 1 && got.is_none());
        assert!(got.is_none_or(|got| got == value(1, LARGE)), "half of it");
        let removal = || {
            let _ = client.remove(&[b"k"], &force());
            client.exists(&[b"k"], &CallOptions::default()) == Ok(vec![false])
        };
        until("the value is gone", removal);
        // There is room for this one only when that of the killed writer came back.
        assert_eq!(
            client.put(b"next", &value(2, LARGE), &PutOptions::default()),
            Ok(Stored::New)
        );
        let got = client.get(b"next", &GetOptions::default()).unwrap();
        assert!(got == Some(value(2, LARGE)));
        assert_eq!(client.remove(&[b"next"], &force()), [Ok(())]);
    }
    assert!(halfway > 0, "none was killed in the middle of its put");
}

/// A reader is stopped in the middle of a read for longer than its lease, while its extent is given to other objects.
#[test]
fn a_reader_that_was_stopped_past_its_lease_gets_no_other_bytes() {
    let place = Place::new();
    let served = Served::start(&place, &MEMORY);
    let client = served.connect();
    let mut rng = Rng::new(6);
    for round in 0..4 {
        let name = 100 + round;
        assert_eq!(
            client.put(b"k", &value(name, LARGE), &upsert()),
            Ok(Stored::New)
        );
        let back = std::fs::File::create(place.path("back")).unwrap();
        let mut reader = spawn(&served, &place, &["get", "k"], back.into());
        std::thread::sleep(Duration::from_millis(5 + rng.below(60)));
        kill_process(Pid::from_child(&reader), Signal::STOP).unwrap();
        stopped(&reader);
        std::thread::sleep(Duration::from_millis(700));
        let removed = || {
            let _ = client.remove(&[b"k"], &Default::default());
            client.exists(&[b"k"], &CallOptions::default()) == Ok(vec![false])
        };
        until("the lease is over", removed);
        for other in 0..3 {
            // The room of the old value is fenced once its reader cannot touch it any more.
            let hurried = PutOptions {
                wait: Some(Duration::from_millis(100)),
                ..upsert()
            };
            let put = client.put(b"other", &value(other, LARGE), &hurried);
            let patient = matches!(&put, Err(error) if error.code() == slackwater_wire::ErrorCode::NoAvailableHandle);
            assert!(put == Ok(Stored::New) || patient, "{put:?}");
        }
        kill_process(Pid::from_child(&reader), Signal::CONT).unwrap();
        let ended = end(&mut reader);
        let bytes = std::fs::read(place.path("back")).unwrap();
        if ended.success() {
            assert!(bytes == value(name, LARGE), "bytes of another object");
        } else {
            assert!(bytes.is_empty());
        }
        let _ = client.remove(&[b"other"], &force());
    }
    assert_eq!(
        client.put(b"last", &value(9, LARGE), &upsert()),
        Ok(Stored::New)
    );
}

fn restarted(place: &Place, address: &str) -> Served {
    let listen = address.strip_prefix("tcp://").unwrap();
    let sizes = [
        "--memory",
        "32MiB",
        "--ssd",
        "128MiB",
        "--file-bytes",
        "4MiB",
        "--dir",
        "kv",
    ];
    let serve = ["serve", "--listen", listen, "--log", "warn"];
    Served::spawn(place.command(&[&serve[..], &sizes[..]].concat()))
}

/// The server is killed and started again under clients that stay: their calls wait for it within their deadlines, what
/// was durable is there, and nothing that is read is wrong.
#[test]
fn clients_go_on_when_the_server_comes_back() {
    let place = Place::new();
    let mut served = restarted(&place, "tcp://127.0.0.1:0");
    let client = served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..upsert()
    };
    let check = |client: &Client, round: u64, names: std::ops::Range<u64>| {
        for name in names {
            let got = client.get(format!("k{name}").as_bytes(), &GetOptions::default());
            assert!(
                got.unwrap() == Some(value(name + round * 100, 300_000)),
                "k{name}"
            );
        }
    };
    for round in 0..3 {
        for name in 0..20 {
            let value = value(name + round * 100, 300_000);
            let put = client.put(format!("k{name}").as_bytes(), &value, &durable);
            assert_eq!(put, Ok(Stored::New), "k{name}");
        }
        check(&client, round, 0..5);
        served.child.kill().unwrap();
        end(&mut served.child);
        let address = served.address.clone();
        let reader = client.clone();
        // Asked while there is no server.
        let waiting = std::thread::spawn(move || reader.get(b"k7", &GetOptions::default()));
        std::thread::sleep(Duration::from_millis(200));
        served = restarted(&place, &address);
        assert!(waiting.join().unwrap().unwrap() == Some(value(7 + round * 100, 300_000)));
        check(&client, round, 0..20);
    }
}

#[test]
fn a_call_ends_at_its_deadline_and_when_it_is_cancelled() {
    let place = Place::new();
    let mut served = Served::start(&place, &MEMORY);
    let client = served.connect();
    assert_eq!(
        client.put(b"k", b"hello", &PutOptions::default()),
        Ok(Stored::New)
    );
    served.signal(Signal::STOP);
    let begun = std::time::Instant::now();
    let short = CallOptions {
        deadline: Some(Duration::from_millis(300)),
        ..CallOptions::default()
    };
    let late = client.exists(&[b"k"], &short).unwrap_err();
    assert!(
        late.to_string().contains("was not answered within 300ms"),
        "{late}"
    );
    let cancel = Cancel::new();
    let call = CallOptions {
        cancel: Some(cancel.clone()),
        ..CallOptions::default()
    };
    let reader = client.clone();
    let get = GetOptions {
        call,
        ..GetOptions::default()
    };
    let waiting = std::thread::spawn(move || reader.get(b"k", &get));
    std::thread::sleep(Duration::from_millis(100));
    cancel.cancel();
    assert_eq!(
        waiting.join().unwrap().unwrap_err().to_string(),
        "a get was cancelled"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    served.signal(Signal::CONT);
    assert_eq!(
        client.get(b"k", &GetOptions::default()).unwrap().as_deref(),
        Some(&b"hello"[..])
    );
    served.child.kill().unwrap();
    end(&mut served.child);
    let dead = client.exists(&[b"k"], &short).unwrap_err();
    assert!(
        dead.to_string().contains("was not answered within 300ms"),
        "{dead}"
    );
}
