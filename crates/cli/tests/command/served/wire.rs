//! What is on the wire between the processes of a pool, and where they listen.

#![expect(clippy::print_stdout, reason = "what cannot be tried here")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, eth, socket};
use slackwater_remote::{CallOptions, GetOptions, PutOptions, RemoveOptions, Stored};

use super::network::Network;
use super::pool::{Node, master};
use super::*;

/// A name and bytes that nothing else on the wire has.
const KEY: &[u8] = b"a-name-that-is-nowhere-else-7f3a";
const PATTERN: &[u8; 16] = b"plain-to-be-seen";
const BYTES: usize = 256 << 10;

/// All packets that a host sends to itself.
struct Recorder {
    over: Arc<AtomicBool>,
    heard: JoinHandle<Vec<u8>>,
}

impl Recorder {
    /// None where this process may not record packets.
    fn start(network: &Network) -> Option<Self> {
        let packets = network.on(0, || {
            socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL))
        });
        let packets = packets.ok()?;
        set_socket_recv_buffer_size_force(&packets, 64 << 20).ok()?;
        let pause = Some(Duration::from_millis(20));
        set_socket_timeout(&packets, Timeout::Recv, pause).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let heard = std::thread::spawn(move || {
            let (mut heard, mut packet) = (Vec::new(), vec![0; 1 << 17]);
            loop {
                // Looked at first: what was sent before the end is still to be read.
                let over = ends.load(Ordering::Relaxed);
                match rustix::io::read(&packets, &mut packet) {
                    Ok(bytes) => heard.extend_from_slice(&packet[..bytes]),
                    Err(Errno::AGAIN) if over => return heard,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        Some(Self { over, heard })
    }

    fn end(self) -> Vec<u8> {
        self.over.store(true, Ordering::Relaxed);
        self.heard.join().unwrap()
    }
}

/// What was on the wire while a pool with these keys was used.
fn recorded(network: &Network, keyed: bool) -> Option<Vec<u8>> {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    make_key(&place, "one", "node");
    let recorder = Recorder::start(network)?;
    network.on(0, || {
        let (keys, of_node, key_file) = match keyed {
            true => (
                &KEYED[..],
                &["--key-file", "one", "--allow", "list"][..],
                Some(place.path("anna")),
            ),
            false => (&[][..], &[][..], None),
        };
        let served = master(&place, "127.0.0.1:0", keys);
        let sizes = ["--memory", "8MiB", "--force-tcp"];
        let _node = Node::start(&place, &served.address, &[&sizes[..], of_node].concat());
        let client = served.connect_as(ConnectOptions {
            key_file,
            force_tcp: true,
            ..ConnectOptions::default()
        });
        let value = PATTERN.repeat(BYTES / PATTERN.len());
        let stored = client.put(KEY, &value, &PutOptions::default());
        assert_eq!(stored, Ok(Stored::New));
        assert!(client.get(KEY, &GetOptions::default()).unwrap() == Some(value));
        let call = CallOptions::default();
        assert_eq!(client.exists(&[KEY], &call), Ok(vec![true]));
        assert!(client.stat(KEY, &call).unwrap().is_some());
        let force = RemoveOptions {
            force: true,
            ..RemoveOptions::default()
        };
        assert_eq!(client.remove(&[KEY], &force), [Ok(())]);
    });
    Some(recorder.end())
}

#[test]
fn with_keys_neither_names_nor_values_are_on_the_wire() {
    let network = Network::new(1);
    if !network.has_spaces() {
        println!("packets cannot be recorded here: what is on the wire was not looked at");
        return;
    }
    for keyed in [false, true] {
        let Some(heard) = recorded(&network, keyed) else {
            println!("packets may not be recorded here: what is on the wire was not looked at");
            return;
        };
        let seen = |bytes: &[u8]| heard.windows(bytes.len()).any(|window| window == bytes);
        // It went there and back, and each packet is heard as it goes and as it comes.
        assert!(heard.len() > 4 * BYTES, "{} bytes", heard.len());
        assert_eq!([seen(KEY), seen(PATTERN)], [!keyed; 2], "keyed: {keyed}");
    }
}

#[test]
fn without_keys_an_address_that_others_reach_is_refused() {
    let place = Place::new();
    for outside in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let check = |arguments: &[&str]| {
            let output = place.run(arguments);
            let told = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
            let named = told.contains(outside) && told.contains("--key-file");
            assert!(named, "{arguments:?}: {told}");
        };
        check(&["serve", "--listen", outside]);
        check(&["serve", "--listen", "127.0.0.1:0", "--data", outside]);
        check(&["master", "--listen", outside]);
        check(&["node", "--data", outside]);
        let events = format!("--kv-events={outside}");
        for server in ["serve", "master"] {
            check(&[server, "--listen", "127.0.0.1:0", &events]);
        }
    }
}

/// The addresses that a process listens on by TCP.
fn listened(child: &Child) -> BTreeSet<IpAddr> {
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let open = std::fs::read_dir(process.join("fd")).unwrap();
    let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let open: BTreeSet<String> = open
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let mut addresses = BTreeSet::new();
    for table in ["net/tcp", "net/tcp6"] {
        let text = std::fs::read_to_string(process.join(table)).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (state, socket) = (words[3], format!("socket:[{}]", words[9]));
            if state == "0A" && open.contains(&socket) {
                addresses.insert(address(words[1]));
            }
        }
    }
    addresses
}

/// The address of a word of such a table: words of 32 bits as this machine holds them, in hexadecimal digits.
fn address(word: &str) -> IpAddr {
    let (digits, _port) = word.split_once(':').unwrap();
    let bytes = (0..digits.len()).step_by(8).flat_map(|at| {
        let word = u32::from_str_radix(&digits[at..at + 8], 16).unwrap();
        word.to_ne_bytes()
    });
    let bytes: Vec<u8> = bytes.collect();
    match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => Ipv4Addr::from(four).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).into(),
    }
}

#[test]
fn without_keys_processes_listen_on_the_loopback_alone() {
    let place = Place::new();
    let store = Served::start(&place, &["--memory", "8MiB"]);
    let served = master(&place, "127.0.0.1:0", &[]);
    let node = Node::start(&place, &served.address, &["--memory", "8MiB"]);
    for child in [&store.child, &served.child, &node.child] {
        let addresses = listened(child);
        assert_eq!(addresses, BTreeSet::from([Ipv4Addr::LOCALHOST.into()]));
    }
}
