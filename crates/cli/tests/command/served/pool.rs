//! A master and its nodes as processes of their own: what clients see of it, and what happens when one of them dies or
//! loses its link.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_remote::{
    CallOptions, Cancel, Client, GetOptions, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{Durability, ReplicaAt, Tenant};

use super::admin::Administered;
use super::{KEYED, Served, connect_with_key, make_key, until, value};
use crate::place::{PATIENCE, Place, end, lasting_address, stderr};

pub(crate) const BYTES: usize = 256 << 10;

pub(crate) fn master(place: &Place, listen: &str, more: &[&str]) -> Served {
    let arguments = ["master", "--listen", listen, "--log", "warn"];
    Served::spawn(place.command(&[&arguments[..], more].concat()))
}

/// A node, ended with the test.
pub(crate) struct Node {
    pub(crate) child: Child,
    /// What it says, a line each time that it has joined.
    lines: BufReader<std::process::ChildStdout>,
}

impl Node {
    /// Starts a node and returns when the master has taken it.
    pub(crate) fn start(place: &Place, master: &str, more: &[&str]) -> Self {
        let arguments = ["node", "--master", master, "--log", "warn"];
        Self::launch(place.command(&[&arguments[..], more].concat()))
    }

    /// Starts this node and returns when the master has taken it.
    pub(crate) fn launch(command: std::process::Command) -> Self {
        let mut node = Self::spawn(command);
        node.joined();
        node
    }

    /// Starts this node.
    pub(crate) fn spawn(mut command: std::process::Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until it has joined, once more.
    pub(crate) fn joined(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(
            line.starts_with("node ") && line.contains(" lends to "),
            "{line:?}"
        );
        line
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        end(&mut self.child);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended, as the test wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn put(client: &Client, name: u64) {
    let stored = client.put(
        format!("k{name}").as_bytes(),
        &value(name, BYTES),
        &PutOptions::default(),
    );
    assert_eq!(stored, Ok(Stored::New), "k{name}");
}

pub(crate) fn get(client: &Client, name: u64) -> Option<Vec<u8>> {
    let got = client.get(format!("k{name}").as_bytes(), &GetOptions::default());
    let got = got.unwrap();
    assert!(
        got.as_ref().is_none_or(|got| *got == value(name, BYTES)),
        "wrong bytes of k{name}"
    );
    got
}

/// How many nodes hold a replica in memory of one of these.
fn spread(client: &Client, names: std::ops::Range<u64>) -> usize {
    let nodes = names.filter_map(|name| {
        let found = client.stat(format!("k{name}").as_bytes(), &CallOptions::default());
        found
            .unwrap()?
            .replicas
            .iter()
            .find_map(|(at, ..)| match at {
                ReplicaAt::Memory(extent) => Some(extent.segment),
                ReplicaAt::Disk { .. } => None,
            })
    });
    nodes.collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn a_pool_of_several_nodes_is_used_like_a_served_store() {
    let place = Place::new();
    let served = master(&place, "127.0.0.1:0", &[]);
    let run = |arguments: &[&str], input: &[u8]| served.run(&place, arguments, input);
    let early = run(&["put", "k", "-", "--timeout", "300ms"], b"hello");
    assert!(!early.status.success(), "nobody lends memory yet");
    let nodes: Vec<Node> = (0..3)
        .map(|_| Node::start(&place, &served.address, &["--memory", "8MiB"]))
        .collect();
    assert!(run(&["put", "k", "-"], b"hello").status.success());
    let got = run(&["get", "k"], b"");
    assert!(got.status.success());
    assert_eq!(got.stdout, b"hello");
    let stat = run(&["stat", "k"], b"");
    assert!(String::from_utf8_lossy(&stat.stdout).contains("5 bytes"));
    let client = served.connect();
    // More than one node has.
    (0..60).for_each(|name| put(&client, name));
    assert!((0..60).all(|name| get(&client, name).is_some()));
    assert_eq!(spread(&client, 0..60), 3);
    let listed = run(&["ls", "^k1."], b"");
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 10);
    let removed = run(&["rm", "k", "k1", "--force"], b"");
    assert!(removed.status.success());
    assert!(get(&client, 1).is_none() && !run(&["get", "k"], b"").status.success());
    drop(nodes);
}

/// A caller that holds a lock others wait for reads like this: it must not wait, nor be given what is not so.
#[test]
fn what_is_at_hand_is_short_known_and_on_this_host() {
    let place = Place::new();
    let served = master(&place, "127.0.0.1:0", &[]);
    let node = Node::start(&place, &served.address, &["--memory", "8MiB"]);
    let (client, other) = (served.connect(), served.connect());
    let short = value(1, 64 << 10);
    for (key, value) in [("short", short.clone()), ("long", value(2, (64 << 10) + 1))] {
        let stored = other.put(key.as_bytes(), &value, &PutOptions::default());
        assert_eq!(stored, Ok(Stored::New), "{key}");
    }
    let mut buffer = vec![0; 128 << 10];
    let options = GetOptions::default();
    let mut at_hand = |key: &str, room: usize| {
        client.get_into_at_hand(key.as_bytes(), &mut buffer[..room], &options)
    };
    assert_eq!(at_hand("short", 128 << 10), None, "not looked up yet");
    for key in ["short", "long"] {
        assert!(client.get(key.as_bytes(), &options).unwrap().is_some());
    }
    assert_eq!(at_hand("long", 128 << 10), None);
    assert_eq!(at_hand("short", (64 << 10) - 1), None, "it has no room");
    assert_eq!(at_hand("absent", 128 << 10), None);
    assert_eq!(at_hand("", 128 << 10), None, "no key");
    assert_eq!(at_hand("short", 64 << 10), Some(64 << 10));
    assert_eq!(buffer[..64 << 10], short);
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = GetOptions {
        call: CallOptions {
            cancel: Some(cancel),
            ..CallOptions::default()
        },
        ..GetOptions::default()
    };
    let mut at_hand = |key: &str, options: &GetOptions| {
        client.get_into_at_hand(key.as_bytes(), &mut buffer, options)
    };
    assert_eq!(at_hand("short", &cancelled), None);
    let tenant = Tenant::new("another").unwrap();
    let foreign = GetOptions {
        call: CallOptions {
            tenant,
            ..CallOptions::default()
        },
        ..GetOptions::default()
    };
    assert_eq!(at_hand("short", &foreign), None);
    assert_eq!(at_hand("short", &options), Some(64 << 10));
    // Another one takes it away, and puts another value in its place: what was granted ends when its memory does.
    let forced = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    assert_eq!(other.remove(&[b"short"], &forced), [Ok(())]);
    // Its node is told of that by the master, in its time.
    until("what was removed is at hand no more", || {
        at_hand("short", &options).is_none()
    });
    let again = value(3, 32 << 10);
    let stored = other.put(b"short", &again, &PutOptions::default());
    assert_eq!(stored, Ok(Stored::New));
    assert_eq!(client.get(b"short", &options), Ok(Some(again.clone())));
    assert_eq!(at_hand("short", &options), Some(32 << 10));
    node.kill();
    // The kernel ends a process before it hangs up its links: until that is told, what is mapped here still has the value.
    until("a place whose owner has ended is at hand no more", || {
        let read = client.get_into_at_hand(b"short", &mut buffer, &options);
        assert!(read.is_none() || buffer[..32 << 10] == again);
        read.is_none()
    });
}

#[test]
fn what_comes_by_a_wire_is_not_at_hand() {
    let place = Place::new();
    let served = master(&place, "127.0.0.1:0", &[]);
    let more = ["--memory", "8MiB", "--force-tcp"];
    let _node = Node::start(&place, &served.address, &more);
    let (client, options) = (served.connect(), GetOptions::default());
    let stored = client.put(b"k", b"value", &PutOptions::default());
    assert_eq!(stored, Ok(Stored::New));
    let mut buffer = [0; 8];
    assert_eq!(client.get_into(b"k", &mut buffer, &options), Ok(Some(5)));
    assert_eq!(client.get_into_at_hand(b"k", &mut buffer, &options), None);
}

#[test]
fn operators_see_the_nodes_of_a_pool() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let ready = || server.ask("GET", "/readyz", "");
    let (status, why) = ready();
    assert_eq!(status, 503);
    assert!(why.contains("no node lends memory"), "{why}");
    let master = &server.served.address;
    let sizes = ["--memory", "16MiB", "--ssd", "32MiB", "--dir", "kv"];
    let one = Node::start(&place, master, &sizes);
    let other = Node::start(&place, master, &["--memory", "8MiB"]);
    assert_eq!(ready(), (200, "ok\n".to_owned()));
    let client = server.served.connect();
    (0..20).for_each(|name| put(&client, name));
    assert!((0..20).all(|name| get(&client, name).is_some()));
    assert!(get(&client, 99).is_none());
    let segments = server.json("/api/v1/segments");
    let segments = segments["segments"].as_array().unwrap().clone();
    assert_eq!(segments.len(), 3, "{segments:?}");
    let names: std::collections::BTreeSet<_> =
        segments.iter().map(|it| it["name"].to_string()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(segments.iter().all(|it| it["presence"] == "here"));
    assert!(segments.iter().all(|it| it["endpoint"] != ""));
    let used = segments.iter().map(|it| it["used_bytes"].as_u64().unwrap());
    assert!(used.sum::<u64>() >= 20 * BYTES as u64);
    let stats = server.json("/api/v1/stats");
    assert_eq!(stats["objects"], 20);
    assert_eq!(stats["memory"]["capacity_bytes"], 24 << 20);
    assert_eq!(stats["reads"]["memory_hits"], 20);
    assert_eq!(stats["reads"]["misses"], 1);
    assert_eq!(stats["puts"]["stored"], 20);
    assert_eq!(stats["nodes"]["clients"], 1);
    assert_eq!(stats["nodes"]["partial"], false);
    assert_eq!(stats["nodes"]["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(server.json("/debug/books")["objects"], 20);
    assert_eq!(server.json("/api/v1/explain?key=k3")[0]["tier"], "memory");
    let metrics = server.ask("GET", "/metrics", "").1;
    for line in [
        "slackwater_objects 20",
        "slackwater_clients 1",
        "slackwater_nodes{presence=\"here\"} 2",
        "slackwater_hits_total{tier=\"memory\"} 20",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    one.kill();
    other.kill();
    until("both nodes are away", || {
        let segments = server.json("/api/v1/segments");
        let segments = segments["segments"].as_array().unwrap().clone();
        segments.iter().all(|it| it["presence"] == "away")
    });
    let (status, why) = ready();
    assert_eq!(status, 503);
    assert!(why.contains("has a link"), "{why}");
    let gone = server.ask("POST", "/api/v1/remove_all?force=true", "");
    assert!(gone.0 == 200 || gone.1.contains("error_code"), "{}", gone.1);
}

/// What is on the SSDs of nodes is read from there, also after all of them were killed.
#[test]
fn records_are_read_from_the_node_that_has_them() {
    let place = Place::new();
    let served = master(&place, "127.0.0.1:0", &["--promotion-enabled", "false"]);
    let start = |number: u32| {
        let directory = format!("kv{number}");
        let sizes = [
            "--memory",
            "4MiB",
            "--ssd",
            "64MiB",
            "--file-bytes",
            "4MiB",
            "--dir",
        ];
        Node::start(
            &place,
            &served.address,
            &[&sizes[..], &[&directory]].concat(),
        )
    };
    let nodes: Vec<Node> = (0..2).map(start).collect();
    let client = served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for name in 0..40 {
        let put = client.put(format!("k{name}").as_bytes(), &value(name, BYTES), &durable);
        assert_eq!(put, Ok(Stored::New));
    }
    assert!((0..40).all(|name| get(&client, name).is_some()));
    nodes.into_iter().for_each(Node::kill);
    let _nodes: Vec<Node> = (0..2).map(start).collect();
    until("everything is announced", || {
        (0..40).all(|name| get(&client, name).is_some())
    });
    let removed = client.remove(&[b"k3"], &RemoveOptions::default());
    assert!(
        removed[0].is_ok()
            || removed[0]
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("lease")
    );
}

/// A node dies. Its values are misses, in time; no put waits for it or is lost with it, and no byte is wrong.
#[test]
fn puts_go_elsewhere_when_a_node_is_killed() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let start = || Node::start(&place, &server.served.address, &["--memory", "64MiB"]);
    let one = start();
    let client = server.served.connect();
    (0..10).for_each(|name| put(&client, name));
    let _other = start();
    one.kill();
    // The first may have been granted room at the dead node before the master noticed.
    until("a put goes elsewhere", || {
        client.put(b"k100", &value(100, BYTES), &PutOptions::default()) == Ok(Stored::New)
    });
    until("the master has noticed", || {
        let segments = server.json("/api/v1/segments");
        let mut segments = segments["segments"].as_array().unwrap().iter();
        segments.any(|it| it["presence"] != "here")
    });
    (101..110).for_each(|name| put(&client, name));
    assert!((100..110).all(|name| get(&client, name).is_some()));
    let short = GetOptions {
        call: CallOptions {
            deadline: Some(Duration::from_millis(500)),
            ..CallOptions::default()
        },
        ..GetOptions::default()
    };
    until("the values of the dead node are misses", || {
        client.get(b"k3", &short) == Ok(None)
    });
    (0..10).for_each(|name| put(&client, name));
    assert!((0..10).all(|name| get(&client, name).is_some()));
}

/// Carries the bytes of TCP connections, until it cuts them.
struct Proxy {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn to(address: &str) -> Self {
        let target = address.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let carried = Arc::clone(&open);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&target)) else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                carried.lock().unwrap().extend([near, far]);
            }
        });
        Self { address, open }
    }

    /// Ends every connection; says how many there were.
    fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        for stream in &open {
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.len() / 2
    }
}

/// Replicas that nodes have announced to a master, in memory and on SSD.
fn announced(server: &Administered) -> [u64; 2] {
    let metrics = server.ask("GET", "/metrics", "").1;
    ["memory", "ssd"].map(|tier| {
        let name = format!("slackwater_announced_total{{tier=\"{tier}\"}} ");
        let counted = metrics.lines().find_map(|line| line.strip_prefix(&name));
        counted.unwrap().parse().unwrap()
    })
}

/// A node that lost its link for a moment was taken for a lost one: everything in its memory was gone. A node that begins anew
/// announces its records; a link that does, announces nothing.
#[test]
fn a_link_that_breaks_loses_and_announces_nothing() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let served = &server.served;
    let proxy = Proxy::to(&served.address);
    let sizes = ["--memory", "16MiB", "--ssd", "64MiB", "--dir", "kv"];
    let node = Node::start(&place, &proxy.address, &sizes);
    let client = served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    let stored = client.put(b"durable", &value(8, BYTES), &durable);
    assert_eq!(stored, Ok(Stored::New));
    let mut cuts = 0;
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicUsize::new(0));
    let writer = {
        let (client, stop, written) = (client.clone(), Arc::clone(&stop), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut stored = Vec::new();
            for name in 1000.. {
                if stop.load(Ordering::Relaxed) {
                    return stored;
                }
                let put = client.put(
                    format!("k{name}").as_bytes(),
                    &value(name, 50_000),
                    &PutOptions::default(),
                );
                if put.is_ok() {
                    stored.push(name);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
            stored
        })
    };
    (0..10).for_each(|name| put(&client, name));
    for _ in 0..6 {
        let before = written.load(Ordering::Relaxed);
        cuts += proxy.cut();
        assert!((0..10).all(|name| get(&client, name).is_some()));
        until("values are put beside the new links", || {
            written.load(Ordering::Relaxed) > before + 2
        });
    }
    stop.store(true, Ordering::Relaxed);
    let stored = writer.join().unwrap();
    assert!(
        cuts >= 3 && stored.len() > 3,
        "{cuts} cuts, {} puts",
        stored.len()
    );
    for name in stored {
        let got = client.get(format!("k{name}").as_bytes(), &GetOptions::default());
        assert!(got.unwrap() == Some(value(name, 50_000)), "k{name}");
    }
    assert_eq!(announced(&server), [0; 2]);
    let removed = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    // Their records are dropped, which needs orders and reports on the last of the links.
    for name in 0..10 {
        let key = format!("k{name}");
        assert_eq!(client.remove(&[key.as_bytes()], &removed), [Ok(())]);
    }
    // All room comes back: the fences arrived too.
    let large = value(7, 10 << 20);
    until("there is room", || {
        client.put(b"large", &large, &PutOptions::default()) == Ok(Stored::New)
    });
    assert!(client.get(b"large", &GetOptions::default()).unwrap() == Some(large));
    assert_eq!(announced(&server), [0; 2]);
    node.kill();
    let _node = Node::start(&place, &proxy.address, &sizes);
    until("its records are announced", || announced(&server)[1] > 0);
}

/// The master is killed under load, three times. What was in memory is there afterwards with its bytes, what was removed
/// stays removed, and no room is lost.
#[test]
fn memory_outlives_a_master_that_is_killed_under_load() {
    let place = Place::new();
    let keep = ["--directory", "master"];
    let listen = lasting_address();
    let mut served = master(&place, &listen, &keep);
    let sizes = [
        &["--memory", "48MiB"][..],
        &["--memory", "48MiB", "--ssd", "64MiB", "--dir", "kv"][..],
    ];
    let mut nodes = sizes.map(|sizes| Node::start(&place, &served.address, sizes));
    let client = served.connect();
    (0..40).for_each(|name| put(&client, name));
    let stop = Arc::new(AtomicBool::new(false));
    let gone = Arc::new(AtomicUsize::new(0));
    // Puts values and removes each; which were removed for sure.
    let writer = {
        let (client, stop, count) = (client.clone(), Arc::clone(&stop), Arc::clone(&gone));
        std::thread::spawn(move || {
            let force = RemoveOptions {
                force: true,
                ..RemoveOptions::default()
            };
            let mut removed = Vec::new();
            for name in 1000.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("k{name}");
                let bytes = value(name, 20_000);
                let stored = client.put(key.as_bytes(), &bytes, &PutOptions::default());
                let got = client.get(key.as_bytes(), &GetOptions::default());
                if let Ok(Some(got)) = got {
                    assert!(got == bytes, "wrong bytes of {key}");
                }
                let gone = client.remove(&[key.as_bytes()], &force);
                if stored.is_ok() && gone[0].is_ok() {
                    removed.push(name);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            removed
        })
    };
    for (round, more) in (0..3).zip([10, 20, 30]) {
        let before = gone.load(Ordering::Relaxed);
        until("values are removed", || {
            gone.load(Ordering::Relaxed) > before + more
        });
        served.child.kill().unwrap();
        end(&mut served.child);
        served = master(&place, &listen, &keep);
        // What nodes have yet to announce is waited for, and not missed.
        assert!((0..40 + round).all(|name| get(&client, name).is_some()));
        nodes.iter_mut().for_each(|node| _ = node.joined());
        put(&client, 40 + round);
    }
    stop.store(true, Ordering::Relaxed);
    let removed = writer.join().unwrap();
    assert!(removed.len() > 10, "{} were removed", removed.len());
    served.child.kill().unwrap();
    end(&mut served.child);
    served = master(&place, &listen, &keep);
    nodes.iter_mut().for_each(|node| _ = node.joined());
    until("everything is announced", || {
        (0..43).all(|name| get(&client, name).is_some())
    });
    for name in removed {
        let got = client.get(format!("k{name}").as_bytes(), &GetOptions::default());
        assert_eq!(got.map(|got| got.is_some()), Ok(false), "k{name} came back");
    }
    // The writes of the old masters' clients are over, and their room is free.
    let large = value(7, 30 << 20);
    until("there is room", || {
        client.put(b"large", &large, &PutOptions::default()) == Ok(Stored::New)
    });
    assert!(client.get(b"large", &GetOptions::default()).unwrap() == Some(large));
    drop(served);
}

/// A removal was answered while the node with the record was not there. The master was killed, and its successor took the
/// record for one that nobody had removed.
#[test]
fn a_removal_outlives_the_master_and_the_absence_of_the_node_that_has_the_record() {
    let place = Place::new();
    let keep = ["--directory", "master"];
    let sizes = ["--memory", "16MiB", "--ssd", "64MiB", "--dir", "kv"];
    let listen = lasting_address();
    let mut served = master(&place, &listen, &keep);
    let again = |served: &mut Served| {
        served.child.kill().unwrap();
        end(&mut served.child);
        *served = master(&place, &listen, &keep);
    };
    let node = Node::start(&place, &served.address, &sizes);
    let client = served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for name in 0..2 {
        let put = client.put(format!("k{name}").as_bytes(), &value(name, BYTES), &durable);
        assert_eq!(put, Ok(Stored::New));
    }
    node.kill();
    again(&mut served);
    let gone = client.remove(&[b"k0"], &RemoveOptions::default());
    assert!(gone[0].is_err(), "nobody holds it now: {gone:?}");
    again(&mut served);
    let _node = Node::start(&place, &served.address, &sizes);
    until("the other record is announced", || {
        get(&client, 1).is_some()
    });
    assert!(get(&client, 0).is_none(), "it came back");
}

/// The master is killed and started again. Its nodes come back by themselves with what they hold, and clients go on.
#[test]
fn nodes_and_clients_find_a_master_that_comes_back() {
    let place = Place::new();
    let keep = ["--directory", "master"];
    let listen = lasting_address();
    let mut served = master(&place, &listen, &keep);
    let mut nodes: Vec<Node> = (0..2)
        .map(|number| {
            let directory = format!("kv{number}");
            let sizes = ["--memory", "32MiB", "--ssd", "128MiB", "--dir", &directory];
            Node::start(&place, &served.address, &sizes)
        })
        .collect();
    let client = served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for name in 0..20 {
        let put = client.put(format!("k{name}").as_bytes(), &value(name, BYTES), &durable);
        assert_eq!(put, Ok(Stored::New));
    }
    (50..70).for_each(|name| put(&client, name));
    for round in 0..2 {
        served.child.kill().unwrap();
        end(&mut served.child);
        served = master(&place, &listen, &keep);
        nodes.iter_mut().for_each(|node| _ = node.joined());
        until("everything is announced", || {
            (0..20)
                .chain(50..70)
                .all(|name| get(&client, name).is_some())
        });
        put(&client, 100 + round);
        assert!(get(&client, 100 + round).is_some());
    }
    for mut node in nodes {
        kill_process(Pid::from_child(&node.child), Signal::TERM).unwrap();
        assert_eq!(end(&mut node.child).code(), Some(0));
    }
    served.signal(Signal::TERM);
    assert_eq!(end(&mut served.child).code(), Some(0));
}

/// With keys only nodes lend, and only clients read and write.
#[test]
fn with_keys_everybody_has_the_role_of_its_key() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "other", "");
    // Entered by the command that people use: a line of the list names its level or is a client's.
    for (name, level) in [("node", &["--level", "node"][..]), ("client", &[])] {
        let key = make_key(&place, name, "");
        let allow = place.run(&[&["keys", "allow", "list", &key], level].concat());
        assert!(allow.status.success(), "{}", stderr(&allow));
    }
    let served = master(&place, "127.0.0.1:0", &KEYED);
    assert!(served.address.starts_with("curve://"));
    let lends = ["--memory", "16MiB", "--allow", "list", "--key-file"];
    let _node = Node::start(&place, &served.address, &[&lends[..], &["node"]].concat());
    let connect = |key| connect_with_key(&served.address, place.path(key), PATIENCE);
    let reader = connect("client").unwrap();
    put(&reader, 1);
    assert!(get(&reader, 1).is_some());
    assert!(connect("node").is_err(), "a node reads nothing");
    assert!(connect("other").is_err(), "its key is in no list");
    // A client's key lends nothing: its node is never taken.
    let mut liar = place
        .command(&["node", "--master", &served.address, "--log", "error"])
        .args(lends)
        .arg("client")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(liar.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    liar.kill().unwrap();
    end(&mut liar);
    assert!(line.contains("with the level `node`"), "{line}");
    let mut rest = Vec::new();
    let _ = said.read_to_end(&mut rest);
    let _ = io::sink().write_all(&rest);
}
