//! Processes that die, stop and come back.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_remote::{
    CallOptions, Cancel, Client, ClientError, GetOptions, Part, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{Durability, ErrorCode, PutMode};

use super::{Served, stopped, until, value};
use crate::place::{Place, end, lasting_address};

const MEMORY: [&str; 4] = ["--memory", "32MiB", "--lease-ttl", "500ms"];
/// More than half of the memory: two of them do not fit.
const LARGE: usize = 20 << 20;

/// Where a writer is killed.
pub(super) const PLACES: [&str; 3] = ["put.granted", "host.copying", "put.written"];

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

/// A client that stops, or is killed, where it passes this place.
fn failing(served: &Served, place: &Place, arguments: &[&str], at: &str, output: Stdio) -> Child {
    let mut command = served.client(place, arguments);
    command.env("SLACKWATER_FAILPOINT", at);
    let command = command.stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(output).spawn().unwrap()
}

fn remove_all(client: &Client, keys: &[&[u8]]) {
    let removed = || {
        let _ = client.remove(keys, &force());
        client.exists(keys, &CallOptions::default()) == Ok(vec![false; keys.len()])
    };
    until("everything is removed", removed);
}

/// Whether a put finds room within a moment.
fn has_room(client: &Client, key: &[u8], value: &[u8]) -> bool {
    let hurried = PutOptions {
        wait: Some(Duration::from_millis(50)),
        ..upsert()
    };
    match client.put(key, value, &hurried) {
        Ok(stored) => stored == Stored::New,
        Err(error) if error.code() == ErrorCode::NoAvailableHandle => false,
        Err(error) => panic!("{error}"),
    }
}

/// A writer is killed in the middle of its put. Nothing of it is ever read, and the room of what it left comes back: the
/// next large value finds it.
#[test]
fn a_writer_that_is_killed_leaves_nothing_half_published() {
    let place = Place::new();
    let served = Served::start(&place, &MEMORY);
    let client = served.connect();
    std::fs::write(place.path("large"), value(1, LARGE)).unwrap();
    for at in PLACES {
        let put = ["put", "k", "large"];
        let point = format!("{at}=kill");
        let mut writer = failing(&served, &place, &put, &point, Stdio::null());
        let ended = end(&mut writer);
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{at}");
        let got = client.get(b"k", &GetOptions::default());
        assert_eq!(got, Ok(None), "{at}");
        // There is room for this one only when that of the killed writer came back.
        let put = client.put(b"next", &value(2, LARGE), &PutOptions::default());
        assert_eq!(put, Ok(Stored::New), "{at}");
        let got = client.get(b"next", &GetOptions::default()).unwrap();
        assert!(got == Some(value(2, LARGE)), "{at}");
        remove_all(&client, &[b"next"]);
    }
}

/// A reader is stopped in the middle of its copy for longer than its lease. Its extent is given to another object meanwhile,
/// as a reader of this host sees that by itself: when it goes on it gets no bytes of that object.
#[test]
fn a_reader_that_was_stopped_past_its_lease_gets_no_other_bytes() {
    let place = Place::new();
    let served = Served::start(&place, &MEMORY);
    let client = served.connect();
    let (old, new) = (value(1, LARGE), value(2, LARGE));
    assert_eq!(client.put(b"k", &old, &upsert()), Ok(Stored::New));
    let back = std::fs::File::create(place.path("back")).unwrap();
    let get = ["get", "k"];
    let mut reader = failing(&served, &place, &get, "host.copying=stop", back.into());
    stopped(&reader);
    let removed = || {
        let _ = client.remove(&[b"k"], &Default::default());
        client.exists(&[b"k"], &CallOptions::default()) == Ok(vec![false])
    };
    until("the lease is over", removed);
    until("its room comes back", || has_room(&client, b"next", &new));
    kill_process(Pid::from_child(&reader), Signal::CONT).unwrap();
    let ended = end(&mut reader);
    let bytes = std::fs::read(place.path("back")).unwrap();
    assert!(
        !ended.success() && bytes.is_empty(),
        "what it read was gone"
    );
    assert!(client.get(b"next", &GetOptions::default()).unwrap() == Some(new));
}

/// A writer is stopped in the middle of its copy, and its put is replaced. Its extent is not given to another object before
/// it has gone on, as the rest of its bytes would land there.
#[test]
fn a_writer_that_was_stopped_changes_no_other_object() {
    let place = Place::new();
    let served = Served::start(&place, &MEMORY);
    let client = served.connect();
    std::fs::write(place.path("large"), value(1, LARGE)).unwrap();
    let put = ["put", "k", "large"];
    let at = "host.copying=stop";
    let mut writer = failing(&served, &place, &put, at, Stdio::null());
    stopped(&writer);
    // An upsert ends the put that is under way, and finds room beside it.
    assert_eq!(
        client.put(b"k", &value(2, 4096), &upsert()),
        Ok(Stored::New)
    );
    let other = value(3, LARGE);
    assert!(
        !has_room(&client, b"other", &other),
        "its room is given out"
    );
    kill_process(Pid::from_child(&writer), Signal::CONT).unwrap();
    assert!(!end(&mut writer).success());
    until("its room comes back", || {
        has_room(&client, b"other", &other)
    });
    assert!(client.get(b"other", &GetOptions::default()).unwrap() == Some(other));
    let got = client.get(b"k", &GetOptions::default()).unwrap();
    assert!(got == Some(value(2, 4096)));
}

fn restarted(place: &Place, address: &str) -> Served {
    let listen = address.trim_start_matches("tcp://");
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

/// Who wanted a few rows of a table had all of it sent.
#[test]
fn parts_of_a_value_are_read_alone_from_memory_and_from_ssd() {
    const BYTES: usize = 3_000_001;
    let place = Place::new();
    let mut served = restarted(&place, &lasting_address());
    let bytes = value(5, BYTES);
    let read_bytes = |client: &Client| -> u64 {
        let moved = client.moved().into_iter();
        moved.map(|(_, stats)| stats.bytes_read).sum()
    };
    let check = |client: &Client| {
        let before = read_bytes(client);
        let (mut first, mut last, mut beyond) = ([0; 10], [0; 7], [1; 4]);
        let parts: [(u64, &mut [u8]); 4] = [
            (BYTES as u64 - 7, &mut last),
            (0, &mut first),
            (BYTES as u64 - 3, &mut beyond),
            (u64::MAX, &mut []),
        ];
        let parts = parts.map(|(from, into)| Part { from, into });
        let wanted = vec![parts.into(), Vec::new(), Vec::new()];
        let keys: [&[u8]; 3] = [b"k", b"none", b"k"];
        let read = client.get_parts(&keys, wanted, &GetOptions::default());
        assert_eq!(read, [Ok(Some(BYTES)), Ok(None), Ok(Some(BYTES))]);
        assert!(first == bytes[..10] && last == bytes[BYTES - 7..]);
        assert_eq!(beyond, [1; 4], "it is not in the value");
        assert_eq!(read_bytes(client) - before, 17);
        let mut whole = vec![0; BYTES];
        let all = vec![vec![Part {
            from: 0,
            into: &mut whole,
        }]];
        let read = client.get_parts(&[b"k"], all, &GetOptions::default());
        assert_eq!(read, [Ok(Some(BYTES))]);
        assert!(whole == bytes);
        let read = client.get_parts(&[b"k"], Vec::new(), &GetOptions::default());
        assert!(matches!(read[..], [Err(ClientError::BufferCount { .. })]));
    };
    let durable = PutOptions {
        durability: Durability::Disk,
        ..upsert()
    };
    let client = served.connect();
    assert_eq!(client.put(b"k", &bytes, &durable), Ok(Stored::New));
    check(&client);
    served.child.kill().unwrap();
    end(&mut served.child);
    let served = restarted(&place, &served.address);
    let client = served.connect();
    check(&client);
    assert!(client.record_reads() > 0, "it was on SSD alone");
}

/// The server is killed and started again under clients that stay: their calls wait for it within their deadlines, what
/// was durable is there, and nothing that is read is wrong.
#[test]
fn clients_go_on_when_the_server_comes_back() {
    let place = Place::new();
    let mut served = restarted(&place, &lasting_address());
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
            // What was read from SSD a moment ago may be on its way to memory.
            let stored = client.put(format!("k{name}").as_bytes(), &value, &durable);
            assert_eq!(stored, Ok(Stored::New), "k{name}");
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
        dead.to_string().contains("was not answered within"),
        "{dead}"
    );
}
