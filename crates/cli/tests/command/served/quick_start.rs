//! The commands of the README, as they are written there.

#![expect(clippy::print_stdout, reason = "what cannot be tried here")]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use super::network::Network;
use super::*;

/// The commands of the README that make a store for other processes and use it: those that begin with ours.
fn commands() -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let (_, part) = text
        .split_once("\n## A store for other processes\n")
        .unwrap();
    let (_, part) = part.split_once("```text\n").unwrap();
    let (part, _) = part.split_once("\n```").unwrap();
    let commands = part.lines().map(|line| {
        let command = line.split_once(" #").map_or(line, |(command, _)| command);
        command.trim().to_owned()
    });
    commands
        .filter(|line| line.contains("slackwater"))
        .collect()
}

/// The default ports of requests and operators.
const PORTS: [u16; 2] = [50_051, 9003];

#[test]
fn the_commands_of_the_readme_find_one_another() {
    let network = Network::new(1);
    let taken = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err();
    if !network.has_spaces()
        && let Some(port) = PORTS.iter().find(|port| taken(port))
    {
        println!("port {port} is taken here: the commands of the README were not run");
        return;
    }
    let commands = commands();
    let [serve, put, get] = &commands[..] else {
        panic!("the README has three commands: {commands:?}");
    };
    let place = Place::new();
    let folder = Path::new(env!("CARGO_BIN_EXE_slackwater"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    // Nothing but what is written: no flag, no variable.
    let shell = |command: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .current_dir(place.path(""))
            .env_clear()
            .env("PATH", &path);
        shell
    };
    network.on(0, || {
        let mut server = admin::Administered::launch(shell(&format!("exec {serve}")));
        let [requests, operators] = PORTS.map(|port| format!("127.0.0.1:{port}"));
        assert_eq!(server.served.address, format!("tcp://{requests}"));
        assert!(server.admin.starts_with(&operators), "{}", server.admin);
        let stored = feed(shell(put), b"");
        assert!(stored.status.success(), "{}", stderr(&stored));
        let got = feed(shell(get), b"");
        assert!(got.status.success(), "{}", stderr(&got));
        assert_eq!(got.stdout, b"hello");
        server.served.signal(Signal::TERM);
        assert_eq!(exit_code(&mut server.served), Some(0));
    });
}
