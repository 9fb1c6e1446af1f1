//! What a process manager hears of a service, and what SIGHUP has it read again.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::admin::Administered;
use super::pool::{Node, put};
use super::*;

/// The next that a process manager is told.
fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 512];
    let read = manager.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..read].to_vec()).unwrap()
}

/// A process manager that listens at `name`, as `NOTIFY_SOCKET` has it.
fn manager(name: &str) -> UnixDatagram {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let manager = UnixDatagram::bind_addr(&address.unwrap()).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    manager
}

#[test]
fn a_process_manager_hears_of_the_life_of_a_service() {
    let place = Place::new();
    let path = place.path("notify").to_str().unwrap().to_owned();
    let other = format!("@slackwater-test-{}", std::process::id());
    for (name, command) in [(path, "serve"), (other, "master")] {
        let manager = manager(&name);
        let mut arguments = vec![command, "--listen", "127.0.0.1:0", "--log", "error"];
        if command == "serve" {
            arguments.extend(["--memory", "16MiB"]);
        }
        let mut process = place.command(&arguments);
        process.env("NOTIFY_SOCKET", &name);
        let mut served = Served::spawn(process);
        let serving = format!("STATUS=serving at {}", served.address);
        assert_eq!(
            (told(&manager), told(&manager)),
            (serving, "READY=1".to_owned())
        );
        served.signal(Signal::HUP);
        let reloading = told(&manager);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let micros: u64 = micros.unwrap().parse().unwrap();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // Another clock would be elsewhere by hours or years, mostly.
        assert!(
            (micros as f64 / 1e6 - uptime).abs() < 60.0,
            "{micros}, {uptime}"
        );
        assert_eq!(told(&manager), "READY=1");
        served.signal(Signal::TERM);
        assert_eq!(told(&manager), "STOPPING=1");
        assert_eq!(exit_code(&mut served), Some(0));
    }
}

#[test]
fn a_process_manager_hears_whether_a_node_has_its_master() {
    let place = Place::new();
    let name = place.path("notify").to_str().unwrap().to_owned();
    let manager = manager(&name);
    // No other test takes a port of this host before the master has it.
    let listen = std::net::TcpListener::bind("127.0.0.71:0").unwrap();
    let address = listen.local_addr().unwrap().to_string();
    drop(listen);
    let master = format!("tcp://{address}");
    let node = [
        "node", "--master", &master, "--memory", "16MiB", "--log", "error",
    ];
    let mut node = place.command(&node);
    node.env("NOTIFY_SOCKET", &name).stdout(Stdio::null());
    let mut node = node.spawn().unwrap();
    assert_eq!(told(&manager), format!("STATUS=looking for {master}"));
    assert_eq!(told(&manager), "READY=1");
    let served = super::pool::master(&place, &address, &[]);
    let lends = told(&manager);
    assert!(
        lends.starts_with("STATUS=node ") && lends.contains(" lends to "),
        "{lends}"
    );
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    assert_eq!(told(&manager), "STOPPING=1");
    assert_eq!(end(&mut node).code(), Some(0));
    drop(served);
}

/// The keys that master and nodes take are read again, and what was begun with a withdrawn one ends.
#[test]
fn a_withdrawn_key_ends_its_links_at_master_and_node() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    std::fs::copy(place.path("list"), place.path("clients")).unwrap();
    make_key(&place, "node", "node");
    let served = Administered::spawn(&place, &[&["master"], &KEYED[..]].concat());
    let sizes = [
        "--memory",
        "16MiB",
        "--key-file",
        "node",
        "--allow",
        "clients",
    ];
    let node = Node::start(&place, &served.served.address, &sizes);
    let (address, deadline) = (&served.served.address, Duration::from_secs(2));
    let client = connect_with_key(address, place.path("anna"), deadline).unwrap();
    let patient = connect_with_key(address, place.path("anna"), PATIENCE).unwrap();
    put(&patient, 1);
    // The key of the list is the one that the link of the node has proved.
    let shown = served.json("/api/v1/stats")["nodes"]["nodes"][0]["public_key"].clone();
    let list = std::fs::read_to_string(place.path("list")).unwrap();
    let line = list.lines().find(|line| line.contains(" node")).unwrap();
    assert_eq!(shown.as_str(), line.split(' ').next());
    // So is what people compare: the page has what the command prints.
    let print = served.json("/api/v1/stats")["nodes"]["nodes"][0]["fingerprint"].clone();
    let told = place.run(&["keys", "show", "node"]);
    let told = String::from_utf8(told.stdout).unwrap();
    let last = told.lines().last().unwrap();
    assert_eq!(last.strip_prefix("print    "), print.as_str(), "{told}");
    let clients = std::fs::read_to_string(place.path("clients")).unwrap();
    std::fs::write(place.path("clients"), "").unwrap();
    kill_process(Pid::from_child(&node.child), Signal::HUP).unwrap();
    let get = || client.get(b"k1", &Default::default());
    until("the node takes no transfers of the key", || {
        !matches!(get(), Ok(Some(_)))
    });
    std::fs::write(place.path("clients"), clients).unwrap();
    kill_process(Pid::from_child(&node.child), Signal::HUP).unwrap();
    until("the node takes them again", || matches!(get(), Ok(Some(_))));
    let without: String = list
        .lines()
        .filter(|line| !line.contains(" node"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_ne!(without.lines().count(), list.lines().count());
    std::fs::write(place.path("list"), without).unwrap();
    served.served.signal(Signal::HUP);
    until("the link of the node has ended", || {
        served.json("/api/v1/segments")["segments"][0]["presence"] == "away"
    });
    std::fs::write(place.path("list"), list).unwrap();
    // An operator has it read as the signal does.
    assert_eq!(served.ask("POST", "/api/v1/reload", "").0, 200);
    until("the node is back with what it held", || {
        matches!(get(), Ok(Some(_)))
    });
}

#[test]
fn the_token_of_operators_is_read_again() {
    let place = Place::new();
    let file = place.path("token");
    let write = |token: &str, mode| {
        // At no moment is the file one that may be used with the wrong token.
        let mode: std::fs::Permissions = PermissionsExt::from_mode(mode);
        let _ = std::fs::set_permissions(&file, mode.clone());
        std::fs::write(&file, format!("{token}\n")).unwrap();
        std::fs::set_permissions(&file, mode).unwrap();
    };
    let (first, second) = ("not-to-be-guessed-1", "not-to-be-guessed-2");
    write(first, 0o600);
    let name = place.path("notify").to_str().unwrap().to_owned();
    let manager = manager(&name);
    let mut serve = place.command(&["serve", "--memory", "16MiB", "--admin-token-file", "token"]);
    serve
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--log", "warn"])
        .env("NOTIFY_SOCKET", &name);
    let server = Administered::launch(serve);
    assert!(told(&manager).starts_with("STATUS=serving at "));
    assert_eq!(told(&manager), "READY=1");
    // Until then it may have read the file, or may read it yet.
    let hang_up = || {
        server.served.signal(Signal::HUP);
        assert!(told(&manager).starts_with("RELOADING=1"));
        assert_eq!(told(&manager), "READY=1");
    };
    let status = |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        server.ask("GET", "/metrics", &header).0
    };
    assert_eq!((status(first), status(second)), (200, 401));
    write(second, 0o600);
    hang_up();
    assert_eq!((status(first), status(second)), (401, 200));
    // A file that cannot be used changes nothing.
    for (token, mode) in [("short", 0o600), (first, 0o644)] {
        write(token, mode);
        hang_up();
        assert_eq!((status(first), status(second)), (401, 200));
    }
    // An operator has it read too, and is told why it cannot be used.
    let reload = |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        server.ask("POST", "/api/v1/reload", &header)
    };
    let (refused, why) = reload(second);
    assert!(refused == 500 && why.contains("stays in force"), "{why}");
    write(first, 0o600);
    assert_eq!(reload("not-to-be-guessed-3").0, 401);
    assert_eq!(reload(second).0, 200);
    assert_eq!((status(first), status(second)), (200, 401));
}

/// With a list that was good and a token that was not, keys were withdrawn, and the answer was that nothing had changed.
#[test]
fn files_are_read_again_all_or_none() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    let file = place.path("token");
    let mode = |mode| {
        let mode: std::fs::Permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    let token = "not-to-be-guessed-1";
    std::fs::write(&file, token).unwrap();
    mode(0o600);
    let serve = ["serve", "--memory", "16MiB", "--admin-token-file", "token"];
    let served = Administered::spawn(&place, &[&serve[..], &KEYED].concat());
    let (address, deadline) = (&served.served.address, Duration::from_secs(2));
    let client = connect_with_key(address, place.path("anna"), deadline).unwrap();
    let patient = connect_with_key(address, place.path("anna"), PATIENCE).unwrap();
    put(&patient, 1);
    let reload = || {
        let header = format!("Authorization: Bearer {token}\r\n");
        served.ask("POST", "/api/v1/reload", &header).0
    };
    std::fs::write(place.path("list"), "").unwrap();
    mode(0o644);
    assert_eq!(reload(), 500);
    put(&patient, 2);
    mode(0o600);
    assert_eq!(reload(), 200);
    until("the key is withdrawn", || {
        client.get(b"k1", &Default::default()).is_err()
    });
}
