//! Values that go between the nodes of a pool: copies, moves, drains, and nodes that leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use slackwater_remote::{CallOptions, GetOptions, PutOptions, Stored};
use slackwater_wire::{Durability, ReplicaAt};

use super::admin::Administered;
use super::pool::{Node, get, put};
use super::*;

/// A pool of so many nodes, and their numbers.
struct Pool {
    place: Place,
    server: Administered,
    nodes: Vec<Node>,
}

impl Pool {
    fn start(nodes: usize, sizes: &[&str]) -> Self {
        let place = Place::new();
        let server = Administered::spawn(&place, &["master"]);
        let start = |_| Node::start(&place, &server.served.address, sizes);
        let nodes = (0..nodes).map(start).collect();
        Self {
            place,
            server,
            nodes,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.server.served.run(&self.place, arguments, b"")
    }

    /// Runs a command that ends with this code, for its object.
    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn segments(&self) -> Vec<Value> {
        let segments = self.server.json("/api/v1/segments");
        segments["segments"].as_array().unwrap().clone()
    }

    /// The segment, by its number, in whose memory a value is; one of them.
    fn holders(&self, client: &Client, name: u64) -> BTreeSet<u64> {
        let found = client.stat(format!("k{name}").as_bytes(), &CallOptions::default());
        let replicas = found.unwrap().unwrap().replicas;
        let memory = replicas.iter().filter_map(|(at, ..)| match at {
            ReplicaAt::Memory(extent) => Some(u64::from(extent.segment.0 >> 1)),
            ReplicaAt::Disk { .. } => None,
        });
        memory.collect()
    }

    fn node_numbers(&self) -> BTreeSet<u64> {
        let segments = self.segments();
        let numbers = segments.iter().map(|it| it["node"].as_u64().unwrap());
        numbers.collect()
    }

    fn used(&self, node: u64) -> u64 {
        let segments = self.segments();
        let mut of_node = segments.iter().filter(|it| it["node"] == node);
        let memory = of_node.find(|it| it["tier"] == "memory").unwrap();
        memory["used_bytes"].as_u64().unwrap()
    }
}

fn terminate(node: &mut Node) -> Option<i32> {
    kill_process(Pid::from_child(&node.child), Signal::TERM).unwrap();
    end(&mut node.child).code()
}

#[test]
fn values_are_copied_moved_and_drained() {
    let pool = Pool::start(3, &["--memory", "32MiB"]);
    let client = pool.server.served.connect();
    (0..30).for_each(|name| put(&client, name));
    let all: Vec<u64> = pool.node_numbers().into_iter().collect();
    let first = *pool.holders(&client, 0).first().unwrap();
    let mut others = all.iter().copied().filter(|node| *node != first);
    let (second, third) = (others.next().unwrap(), others.next().unwrap());
    let copied = pool.json(&["cp", "k0", &second.to_string()], 0);
    assert_eq!(copied["status"], "SUCCEEDED");
    assert_eq!(copied["migrated_bytes"], 256 << 10);
    assert_eq!(pool.holders(&client, 0), BTreeSet::from([first, second]));
    let moved = [
        "mv",
        "k0",
        &format!("memory-{third}"),
        "--from",
        &first.to_string(),
    ];
    pool.json(&moved, 0);
    assert_eq!(pool.holders(&client, 0), BTreeSet::from([second, third]));
    assert!(get(&client, 0).is_some());
    let again = pool.json(&["cp", "k0", &second.to_string()], 1);
    assert_eq!(again["errors"][0]["error_name"], "REPLICA_ALREADY_EXISTS");
    let missing = pool.run(&["cp", "nothing", &second.to_string()]);
    assert!(
        stderr(&missing).contains("OBJECT_NOT_FOUND"),
        "{}",
        stderr(&missing)
    );
    let nowhere = pool.run(&["drain", "7"]);
    assert!(
        stderr(&nowhere).contains("SEGMENT_NOT_FOUND"),
        "{}",
        stderr(&nowhere)
    );
    assert!(pool.used(first) > 0);
    let drained = pool.run(&["drain", &first.to_string()]);
    let told = String::from_utf8_lossy(&drained.stdout).into_owned();
    assert!(
        drained.status.success() && told.contains("is done"),
        "{told}"
    );
    assert_eq!(pool.used(first), 0);
    let status = format!("/api/v1/segments/status?segment=memory-{first}");
    assert_eq!(pool.server.json(&status)["status_name"], "DRAINED");
    (30..50).for_each(|name| put(&client, name));
    assert_eq!(pool.used(first), 0, "it takes nothing new");
    assert!((0..50).all(|name| get(&client, name).is_some()));
    let jobs = pool.json(&["jobs"], 0);
    let jobs = jobs["jobs"].as_array().unwrap().clone();
    let drain = jobs.last().unwrap();
    assert_eq!((jobs.len(), &drain["work"]["type"]), (4, &"drain".into()));
    let undone = pool.json(&["jobs", "--cancel", drain["job_id"].as_str().unwrap()], 0);
    assert_eq!(undone["status"], "SUCCEEDED");
    assert_eq!(pool.server.json(&status)["status_name"], "OK");
    assert_eq!(pool.server.json("/debug/books")["objects"], 50);
}

#[test]
fn operators_drain_by_http() {
    let pool = Pool::start(2, &["--memory", "32MiB"]);
    let client = pool.server.served.connect();
    (0..20).for_each(|name| put(&client, name));
    let first = *pool.node_numbers().first().unwrap();
    let body = format!("{{\"segments\": [\"memory-{first}\"], \"max_concurrency\": 8}}");
    let header = format!("Content-Length: {}\r\n", body.len());
    let (status, begun) = pool.server.post("/api/v1/drain_jobs", &header, &body);
    assert_eq!(status, 200, "{begun}");
    let begun: Value = serde_json::from_str(&begun).unwrap();
    assert_eq!(begun["status"], "CREATED");
    let job = begun["job_id"].as_str().unwrap().to_owned();
    let query = format!("/api/v1/drain_jobs/query?job_id={job}");
    until("the drain is done", || {
        pool.server.json(&query)["status"] == "SUCCEEDED"
    });
    assert_eq!(pool.used(first), 0);
    let unknown = pool
        .server
        .ask("GET", "/api/v1/drain_jobs/query?job_id=1", "");
    assert!(
        unknown.0 == 404 && unknown.1.contains("-1402"),
        "{}",
        unknown.1
    );
    let cancel = format!("/api/v1/drain_jobs/cancel?job_id={job}");
    assert_eq!(pool.server.ask("POST", &cancel, "").0, 200);
    let (status, again) = pool.server.ask("POST", &cancel, "");
    assert!(status == 409 && again.contains("-1010"), "{again}");
    let unknown = "/api/v1/drain_jobs/cancel?job_id=1";
    let (status, unknown) = pool.server.ask("POST", unknown, "");
    assert!(status == 404 && unknown.contains("-1402"), "{unknown}");
    assert!((0..20).all(|name| get(&client, name).is_some()));
}

/// A node that was told to end took what only its memory held with it.
#[test]
fn a_node_that_is_told_to_end_leaves_nothing_behind() {
    let mut pool = Pool::start(3, &["--memory", "64MiB"]);
    let client = pool.server.served.connect();
    (0..60).for_each(|name| put(&client, name));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut stored = Vec::new();
            // A write to a node that has just ended may take as long as its call.
            let options = PutOptions {
                call: CallOptions {
                    deadline: Some(Duration::from_secs(2)),
                    ..CallOptions::default()
                },
                ..PutOptions::default()
            };
            // Fewer than would have anything evicted.
            for name in 1000..1800 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("k{name}");
                let put = client.put(key.as_bytes(), &value(name, 20_000), &options);
                if put == Ok(Stored::New) {
                    stored.push(name);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            stored
        })
    };
    for _ in 0..2 {
        let mut node = pool.nodes.pop().unwrap();
        assert_eq!(terminate(&mut node), Some(0));
        let begun = std::time::Instant::now();
        // Knows no earlier place of theirs.
        let reader = pool.server.served.connect();
        assert!((0..60).all(|name| get(&reader, name).is_some()));
        assert!(begun.elapsed() < PATIENCE / 4, "nothing waits for it");
    }
    stop.store(true, Ordering::Relaxed);
    let stored = writer.join().unwrap();
    assert!(stored.len() > 10, "{} puts", stored.len());
    let reader = pool.server.served.connect();
    for name in stored {
        let got = reader.get(format!("k{name}").as_bytes(), &GetOptions::default());
        assert!(got.unwrap() == Some(value(name, 20_000)), "k{name}");
    }
    until("the master knows that they left", || {
        pool.segments().len() == 1
    });
}

/// A node that was told to end while an operator drained it was refused, and ended with what had not gone yet.
#[test]
fn a_node_that_is_being_drained_ends_when_the_drain_does() {
    let sizes = ["--memory", "64MiB"];
    let mut pool = Pool::start(1, &sizes);
    let client = pool.server.served.connect();
    (0..60).for_each(|name| put(&client, name));
    let first = pool.node_numbers().first().unwrap().to_string();
    let address = pool.server.served.address.clone();
    pool.nodes.push(Node::start(&pool.place, &address, &sizes));
    let drain = pool.json(&["drain", &first, "--rate", "4MiB", "--no-wait"], 0);
    assert_eq!(drain["status"], "RUNNING");
    assert_eq!(terminate(&mut pool.nodes[0]), Some(0));
    assert!((0..60).all(|name| get(&client, name).is_some()));
}

#[test]
fn a_node_leaves_in_its_time_where_there_is_no_room() {
    let mut pool = Pool::start(1, &["--memory", "32MiB", "--leave-time", "2s"]);
    let client = pool.server.served.connect();
    (0..10).for_each(|name| put(&client, name));
    let begun = std::time::Instant::now();
    assert_eq!(terminate(&mut pool.nodes[0]), Some(0));
    // It would have half a minute by default.
    assert!(begun.elapsed() < Duration::from_secs(25));
}

/// What the only node with an SSD holds in memory goes there when no other memory has room, and is there when it is back.
#[test]
fn a_node_without_others_keeps_its_values_on_its_ssd() {
    let mut pool = Pool::start(0, &[]);
    let sizes = ["--memory", "32MiB", "--ssd", "64MiB", "--dir", "kv"];
    let address = pool.server.served.address.clone();
    pool.nodes.push(Node::start(&pool.place, &address, &sizes));
    let client = pool.server.served.connect();
    (0..20).for_each(|name| put(&client, name));
    assert_eq!(terminate(&mut pool.nodes[0]), Some(0));
    pool.nodes[0] = Node::start(&pool.place, &address, &sizes);
    until("everything is announced", || {
        (0..20).all(|name| get(&client, name).is_some())
    });
}

#[test]
fn what_is_only_on_ssd_is_drained_into_the_memory_of_others() {
    let mut pool = Pool::start(0, &[]);
    let address = pool.server.served.address.clone();
    let small = [
        "--memory",
        "2MiB",
        "--ssd",
        "64MiB",
        "--file-bytes",
        "4MiB",
        "--dir",
        "kv",
    ];
    pool.nodes.push(Node::start(&pool.place, &address, &small));
    let client = pool.server.served.connect();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for name in 0..30 {
        let key = format!("k{name}");
        let put = client.put(key.as_bytes(), &value(name, 256 << 10), &durable);
        assert_eq!(put, Ok(Stored::New));
    }
    let first = *pool.node_numbers().first().unwrap();
    pool.nodes
        .push(Node::start(&pool.place, &address, &["--memory", "64MiB"]));
    let drained = pool.json(&["drain", &first.to_string()], 0);
    assert_eq!(drained["failed_units"], 0, "{drained}");
    pool.nodes.remove(0).kill();
    let all = || (0..30).all(|name| get(&client, name).is_some());
    assert!(all(), "the node is not needed any more");
}

/// Between nodes with keys bytes go to the node that was named alone, and only operators start jobs.
#[test]
fn with_keys_nodes_take_transfers_of_nodes_in_their_list() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    make_key(&place, "bert", "basic");
    make_key(&place, "root", "admin");
    std::fs::copy(place.path("list"), place.path("clients")).unwrap();
    make_key(&place, "one", "node");
    make_key(&place, "two", "node");
    let server = Administered::spawn(&place, &[&["master"], &KEYED[..]].concat());
    let start = |key: &str| {
        let sizes = ["--memory", "32MiB", "--key-file", key, "--allow", "clients"];
        Node::start(&place, &server.served.address, &sizes)
    };
    let mut nodes = [start("one"), start("two")];
    let anna = connect_with_key(&server.served.address, place.path("anna"), PATIENCE).unwrap();
    (0..12).for_each(|name| put(&anna, name));
    let segments = server.json("/api/v1/segments");
    let names: Vec<String> = segments["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["node"].to_string())
        .collect();
    let run = |key: &str| {
        let drain = ["drain", &names[0], "--json", "--key-file", key];
        let output = server.served.run(&place, &drain, b"");
        (output.status.code(), stderr(&output), output.stdout)
    };
    let (code, told, _) = run("bert");
    assert_eq!(code, Some(1));
    assert!(told.contains("ROLE_NOT_PERMITTED"), "{told}");
    let (code, _, refused) = run("root");
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(code, Some(1));
    assert_eq!(
        refused["errors"][0]["error_name"], "TRANSFER_FAIL",
        "{refused}"
    );
    assert!((0..12).all(|name| get(&anna, name).is_some()));
    std::fs::copy(place.path("list"), place.path("clients")).unwrap();
    for node in &mut nodes {
        kill_process(Pid::from_child(&node.child), Signal::HUP).unwrap();
    }
    until("the drain is done", || run("root").0 == Some(0));
    assert!((0..12).all(|name| get(&anna, name).is_some()));
}

#[test]
fn nodes_are_known_by_the_names_that_they_are_given() {
    let mut pool = Pool::start(1, &["--memory", "8MiB", "--name", "left:7"]);
    let more = ["--memory", "8MiB", "--ssd", "64MiB", "--dir"];
    let directory = pool.place.path("right");
    let more = [&more[..], &[directory.to_str().unwrap()]].concat();
    let right = Node::start(
        &pool.place,
        &pool.server.served.address,
        &[&more[..], &["--name", "right"]].concat(),
    );
    pool.nodes.push(right);
    let segments = pool.segments();
    let mut names: Vec<&str> = segments
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["left:7", "right", "right/ssd"]);
    let client = pool.server.served.connect();
    let wish = PutOptions {
        preferred: vec!["left:7".to_owned()],
        ..PutOptions::default()
    };
    assert_eq!(client.put(b"k0", b"hello", &wish), Ok(Stored::New));
    let places = |pool: &Pool| {
        let found = pool.json(&["stat", "k0"], 0);
        let replicas = found["replicas"].as_array().unwrap().clone();
        let memory = replicas.into_iter().filter(|it| it["tier"] == "memory");
        let names = memory.map(|it| it["segment"].as_str().unwrap().to_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    };
    assert_eq!(places(&pool), ["left:7"]);
    let moved = pool.json(&["mv", "k0", "right", "--from", "left:7"], 0);
    assert_eq!(
        (&moved["status"], &moved["work"]["target"]),
        (&"SUCCEEDED".into(), &"right".into())
    );
    assert_eq!(places(&pool), ["right"]);
    let told = pool.run(&["stat", "k0"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("memory of right"), "{told}");
    // Nodes of one name are one place: a value that one of them has is there.
    let again = Node::start(
        &pool.place,
        &pool.server.served.address,
        &["--memory", "8MiB", "--name", "right"],
    );
    pool.nodes.push(again);
    pool.json(&["mv", "k0", "left:7"], 0);
    pool.json(&["cp", "k0", "right"], 0);
    let again = pool.json(&["cp", "k0", "right"], 1);
    assert_eq!(again["errors"][0]["error_name"], "REPLICA_ALREADY_EXISTS");
    assert_eq!(places(&pool), ["left:7", "right"]);
    for (name, reason) in [
        ("300", "names the node of that number"),
        ("", "must not be empty"),
        ("a b", "' '"),
    ] {
        let refused = pool
            .place
            .command(&["node", "--name", name])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{name:?}");
        assert!(
            stderr(&refused).contains(reason),
            "{name:?}: {}",
            stderr(&refused)
        );
    }
}
