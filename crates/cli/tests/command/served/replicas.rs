//! Replicas that a master makes because a value is read much.

use serde_json::Value;
use slackwater_node::Config;
use slackwater_node::pool::{NodeOptions, NodeServer};
use slackwater_remote::{
    CallOptions, Cancel, Client, ClientError, ConnectOptions, GetOptions, PutOptions, Stored,
};
use slackwater_wire::{Durability, ErrorCode, ReplicaAt};

use super::admin::Administered;
use super::pool::{BYTES, Node, get, put};
use super::*;

fn holders(client: &Client, name: u64) -> Vec<u64> {
    let found = client.stat(format!("k{name}").as_bytes(), &CallOptions::default());
    let replicas = found.unwrap().unwrap().replicas;
    let memory = replicas.iter().filter_map(|(at, ..)| match at {
        ReplicaAt::Memory(extent) => Some(u64::from(extent.segment.0 >> 1)),
        ReplicaAt::Disk { .. } => None,
    });
    memory.collect()
}

/// A pool with one node lost lost what was read most with it.
#[test]
fn what_is_read_much_outlives_its_node() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master", "--replication-mode", "enforce"]);
    let sizes = ["--memory", "64MiB"];
    let first = Node::start(&place, &server.served.address, &sizes);
    let client = server.served.connect();
    put(&client, 1);
    put(&client, 2);
    assert_eq!(holders(&client, 1).len(), 1);
    let _second = Node::start(&place, &server.served.address, &sizes);
    let readers: Vec<Client> = (0..8).map(|_| server.served.connect()).collect();
    assert!(readers.iter().all(|reader| get(reader, 1).is_some()));
    until("there is a second replica", || {
        holders(&client, 1).len() == 2
    });
    let replication = || -> Value { server.json("/api/v1/stats")["replication"].clone() };
    until("it is counted", || replication()["extras"] == 1);
    assert_eq!(replication()["completed"], 1);
    assert_eq!(holders(&client, 2).len(), 1, "nobody reads it");
    let (status, metrics) = server.ask("GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(metrics.contains("slackwater_extra_replicas 1"), "{metrics}");

    first.kill();
    assert!(readers.iter().all(|reader| get(reader, 1).is_some()));
    let fresh = server.served.connect();
    assert!(get(&fresh, 1).is_some());
}

/// What was read on one machine was promoted on another, which had its record: every later read took the network.
#[test]
fn what_is_read_often_comes_to_a_node_of_its_readers_host() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let address = &server.served.address;
    let sizes = [
        "--memory",
        "16MiB",
        "--ssd",
        "64MiB",
        "--file-bytes",
        "4MiB",
    ];
    // It stands for a node of another host.
    let start = || {
        Node::start(
            &place,
            address,
            &[&sizes[..], &["--dir", "kv", "--force-tcp"]].concat(),
        )
    };
    let far = start();
    let client = server.served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for name in 0..8 {
        let put = client.put(
            format!("k{name}").as_bytes(),
            &value(name, 1 << 18),
            &durable,
        );
        assert_eq!(put, Ok(Stored::New));
    }
    far.kill();
    let _far = start();
    let _near = Node::start(&place, address, &["--memory", "16MiB"]);
    let known = |name: u64| client.stat(format!("k{name}").as_bytes(), &CallOptions::default());
    until("all records are announced", || {
        (0..8).all(|name| {
            known(name)
                .unwrap()
                .is_some_and(|found| !found.replicas.is_empty())
        })
    });
    let read = |reader: &Client, names: std::ops::Range<u64>| {
        for name in names {
            assert!((0..2).all(|_| get(reader, name).is_some()));
            until("it is promoted", || holders(&client, name).len() == 1);
        }
    };
    let to_reader = || server.json("/api/v1/stats")["promotions"]["to_reader"].clone();
    read(&client, 0..4);
    assert_eq!(to_reader(), 4);
    let elsewhere = server.served.connect_as(ConnectOptions {
        force_tcp: true,
        ..ConnectOptions::default()
    });
    read(&elsewhere, 4..8);
    assert_eq!(to_reader(), 4, "its reader is on no host that is known");
    let [near, far] = [0, 4].map(|name| holders(&client, name));
    assert!(near != far && (0..4).all(|name| holders(&client, name) == near));
    assert!((0..8).all(|name| get(&client, name).is_some()));
}

/// Bytes that were read by each way that has brought any.
fn read_by(client: &Client) -> Vec<(&'static str, u64)> {
    let ways = client.moved().into_iter();
    let ways = ways.map(|(way, stats)| (way, stats.bytes_read));
    ways.filter(|(_, bytes)| *bytes > 0).collect()
}

/// Replicas of the reader's process and of its host were read no sooner than those of others: half of all reads took the network
/// until it had shown to be slower, and again ten seconds later.
#[test]
fn the_nearest_replica_is_read() {
    const NAMES: u64 = 24;
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let address = &server.served.address;
    let sizes = ["--memory", "64MiB"];
    // They stand for nodes of other hosts.
    let far = |_| Node::start(&place, address, &[&sizes[..], &["--force-tcp"]].concat());
    let _far: Vec<Node> = (0..2).map(far).collect();
    let of_host = Node::start(&place, address, &sizes);
    let (told, joined) = std::sync::mpsc::channel();
    let config = Config {
        memory: slackwater_base::ByteSize::mib(64),
        ..Config::default()
    };
    let options = NodeOptions {
        master: address.parse().unwrap(),
        ..NodeOptions::default()
    };
    let of_process =
        NodeServer::start(config, options, move |_, taken| _ = told.send(taken)).unwrap();
    joined.recv().unwrap().unwrap();

    let writer = server.served.connect();
    let everywhere = PutOptions {
        replicas: 4,
        ..PutOptions::default()
    };
    for name in 0..NAMES {
        let put = writer.put(
            format!("k{name}").as_bytes(),
            &value(name, BYTES),
            &everywhere,
        );
        assert_eq!(put, Ok(Stored::New));
        assert_eq!(holders(&writer, name).len(), 4);
    }
    let read = |options: ConnectOptions| {
        let reader = server.served.connect_as(options);
        // Each is looked up first, and then read where it is known to be.
        for name in (0..NAMES).chain(0..NAMES) {
            assert!(get(&reader, name).is_some());
        }
        read_by(&reader)
    };
    let all = 2 * NAMES * BYTES as u64;
    assert_eq!(read(ConnectOptions::default()), [("local", all)]);
    // Who takes nothing but TCP has none that is nearer.
    let by_tcp = ConnectOptions {
        force_tcp: true,
        ..ConnectOptions::default()
    };
    assert_eq!(read(by_tcp), [("tcp", all)]);
    of_process.close().unwrap();
    assert_eq!(read(ConnectOptions::default()), [("host", all)]);
    of_host.kill();
    assert_eq!(read(ConnectOptions::default()), [("tcp", all)]);
}

/// A put of two replicas was acknowledged that only one node had, or two of one machine: what it was to survive took it.
#[test]
fn a_replicated_put_survives_all_but_one_of_its_nodes() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let address = &server.served.address;
    let sizes = ["--memory", "64MiB"];
    let mut nodes = vec![
        Node::start(&place, address, &sizes),
        Node::start(&place, address, &sizes),
    ];
    let client = server.served.connect();
    let on = |replicas, seconds| PutOptions {
        replicas,
        durability: Durability::Replicated,
        call: CallOptions {
            deadline: Some(Duration::from_secs(seconds)),
            ..CallOptions::default()
        },
        ..PutOptions::default()
    };
    let put = |name: u64, options: &PutOptions| {
        let key = format!("k{name}");
        client.put(key.as_bytes(), &value(name, BYTES), options)
    };
    // Two nodes, and one machine.
    let begun = std::time::Instant::now();
    let refused = put(1, &on(2, 60)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooFewHosts, "{refused}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "it waits for nothing"
    );
    assert_eq!(get(&client, 1), None);
    let file = place.path("value");
    std::fs::write(&file, value(1, BYTES)).unwrap();
    let by_hand = |more: &[&str]| {
        let line = [&["put", "k1", "value"], more].concat();
        server.served.run(&place, &line, b"")
    };
    let said = by_hand(&["--replicas", "2", "--replicated"]);
    assert!(
        said.status.code() == Some(1) && stderr(&said).contains("TOO_FEW_HOSTS"),
        "{}",
        stderr(&said)
    );
    let both = by_hand(&["--replicas", "2", "--replicated", "--durable"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));

    // They stand for nodes of other hosts.
    for _ in 0..2 {
        nodes.push(Node::start(
            &place,
            address,
            &[&sizes[..], &["--force-tcp"]].concat(),
        ));
    }
    let done = by_hand(&["--replicas", "3", "--replicated"]);
    assert!(done.status.success(), "{}", stderr(&done));
    for name in 2..=12 {
        assert_eq!(put(name, &on(3, 60)), Ok(Stored::New));
    }
    assert!((1..=12).all(|name| holders(&client, name).len() == 3));
    assert_eq!(
        put(13, &on(4, 60)).unwrap_err().code(),
        ErrorCode::TooFewHosts
    );

    // What one of the nodes cannot confirm is not acknowledged.
    stop(&nodes[3].child);
    let unconfirmed = put(14, &on(3, 3));
    assert!(unconfirmed.is_err(), "{unconfirmed:?}");
    kill_process(Pid::from_child(&nodes[3].child), Signal::CONT).unwrap();

    // One of three is left of each, on either node of this host.
    nodes.drain(2..).for_each(Node::kill);
    assert!((1..=12).all(|name| get(&client, name).is_some()));
}

/// A reader waited for a stopped node until its deadline, though another node had the value.
#[test]
fn a_stopped_node_is_not_waited_for_while_another_has_the_value() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let start = |_| Node::start(&place, &server.served.address, &["--memory", "64MiB"]);
    let nodes: Vec<Node> = (0..2).map(start).collect();
    let client = server.served.connect();
    let both = PutOptions {
        replicas: 2,
        ..PutOptions::default()
    };
    for name in 1..=4 {
        let key = format!("k{name}");
        client
            .put(key.as_bytes(), &value(name, 100_000), &both)
            .unwrap();
    }
    let within = |seconds| GetOptions {
        call: CallOptions {
            deadline: Some(Duration::from_secs(seconds)),
            ..CallOptions::default()
        },
        ..GetOptions::default()
    };
    let brief = within(20);
    // Only one node has these; each is more than is asked for together of a node that nothing is known of.
    let put_large = |name: u64| {
        let key = format!("k{name}");
        let large = value(name, 1 << 20);
        client
            .put(key.as_bytes(), &large, &PutOptions::default())
            .unwrap();
    };
    (11..=30).for_each(put_large);
    stop(&nodes[0].child);
    // Both nodes are the first choice of some.
    for name in (1..=4).chain(1..=4) {
        let reader = server.served.connect();
        let key = format!("k{name}");
        let begun = std::time::Instant::now();
        let got = reader.get(key.as_bytes(), &brief).unwrap();
        assert!(got == Some(value(name, 100_000)), "{key}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{key}");
    }
    // What only the stopped node has takes nothing from the others of a batch.
    let reader = server.served.connect();
    let keys: Vec<String> = (11..=30)
        .chain(1..=4)
        .map(|name| format!("k{name}"))
        .collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let got = reader.get_batch(&keys, &within(8));
    let alone = got[..20]
        .iter()
        .filter(|outcome| matches!(outcome, Ok(Some(_))))
        .count();
    assert!(
        (1..20).contains(&alone),
        "{alone} of 20 are on the other node"
    );
    for (name, outcome) in (1..=4).zip(&got[20..]) {
        assert_eq!(outcome, &Ok(Some(value(name, 100_000))), "k{name}");
    }
    kill_process(Pid::from_child(&nodes[0].child), Signal::CONT).unwrap();
}

/// A call that was cancelled went on waiting for a stopped node, for half of the time that its deadline left.
#[test]
fn a_cancelled_call_does_not_wait_for_a_stopped_node() {
    let place = Place::new();
    let server = Administered::spawn(&place, &["master"]);
    let node = Node::start(&place, &server.served.address, &["--memory", "64MiB"]);
    let client = server.served.connect();
    put(&client, 1);
    put(&client, 2);
    stop(&node.child);
    let get_one = |client: &Client, options: &GetOptions| {
        let got = client.get(b"k1", options);
        got.map(|value| value.is_some())
    };
    let get_both = |client: &Client, options: &GetOptions| {
        let mut got = client.get_batch(&[b"k1", b"k2"], options);
        got.pop().unwrap().map(|value| value.is_some())
    };
    let put_one = |client: &Client, options: &GetOptions| {
        let options = PutOptions {
            call: options.call.clone(),
            ..PutOptions::default()
        };
        client
            .put(b"k3", &value(3, 100_000), &options)
            .map(|_| true)
    };
    type Call<'a> = &'a (dyn Fn(&Client, &GetOptions) -> Result<bool, ClientError> + Sync);
    let calls: [(&str, Call<'_>); 3] = [("get", &get_one), ("batch", &get_both), ("put", &put_one)];
    for (name, call) in calls {
        let cancel = Cancel::new();
        let options = GetOptions {
            call: CallOptions {
                deadline: Some(Duration::from_secs(600)),
                cancel: Some(cancel.clone()),
                ..CallOptions::default()
            },
            ..GetOptions::default()
        };
        let reader = server.served.connect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| call(&reader, &options));
            // By then it waits for the node alone, and would for minutes.
            std::thread::sleep(Duration::from_millis(2500));
            let begun = std::time::Instant::now();
            cancel.cancel();
            let ended = waiting.join().unwrap();
            assert!(
                matches!(ended, Err(ClientError::Cancelled { .. })),
                "{name}: {ended:?}"
            );
            assert!(begun.elapsed() < Duration::from_secs(60), "{name}");
        });
    }
    kill_process(Pid::from_child(&node.child), Signal::CONT).unwrap();
}
