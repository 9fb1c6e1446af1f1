//! What operators see of a server while it works.

use std::net::TcpListener;

use serde_json::Value;

use super::admin::Administered;
use super::pool::{Node, put};
use super::*;
use crate::place::stderr;

#[test]
fn snapshots_tell_what_happened_in_between() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "64MiB"]);
    let master = Administered::spawn(&place, &["master"]);
    let _node = Node::start(&place, &master.served.address, &["--memory", "64MiB"]);
    for (server, clients) in [(&store, false), (&master, true)] {
        let client = server.served.connect();
        let top = ["top", "--address", &server.admin, "--interval", "500ms"];
        let top = place
            .command(&[&top[..], &["--count", "3", "--json"]].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut top = top;
        for name in 0.. {
            // It ends after three snapshots, however late the first one was.
            if top.try_wait().unwrap().is_some() {
                break;
            }
            put(&client, name);
            client
                .get(format!("k{name}").as_bytes(), &Default::default())
                .unwrap();
        }
        let output = top.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let all: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(all.len(), 3);
        let puts = all.iter().map(|it| it["puts_per_s"].as_f64().unwrap());
        assert!(puts.sum::<f64>() > 1.0, "{text}");
        let reads = all
            .iter()
            .map(|it| it["reads_per_s"]["memory"].as_f64().unwrap());
        assert!(reads.sum::<f64>() > 1.0, "{text}");
        assert_eq!(all[2]["segments"][0]["tier"], "memory");
        assert_eq!(all[2]["clients"].is_null(), !clients);
        let pages = place.run(&["top", "--address", &server.admin, "--count", "1"]);
        let page = String::from_utf8(pages.stdout).unwrap();
        assert!(
            page.contains("SEGMENT") && page.contains("memory"),
            "{page}"
        );
        assert!(!page.contains('\x1b'), "no terminal, no escape sequences");
    }
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let none = place.run(&["top", "--address", &free, "--count", "1"]);
    assert!(
        none.status.code() == Some(1) && stderr(&none).contains(&free),
        "{}",
        stderr(&none)
    );
}

/// A terminal is drawn on, ends at its key, and is left as it was. `script` lends one.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_terminal_is_left_as_it_was() {
    if !std::path::Path::new("/usr/bin/script").exists() {
        eprintln!("skipped: /usr/bin/script, which lends a terminal, is not installed");
        return;
    }
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    let command = env!("CARGO_BIN_EXE_slackwater");
    for key in ["q", "\x03"] {
        let shell = format!(
            "stty size cols 90 rows 20; stty -a > before; {command} top --address {} --interval 200ms; echo code $? > code; stty -a > after",
            store.admin
        );
        let mut script = Command::new("/usr/bin/script");
        script
            .args(["-q", "-c", &shell, "/dev/null"])
            .current_dir(place.path(""))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let mut keys = child.stdin.take().unwrap();
        let mut shown = BufReader::new(child.stdout.take().unwrap());
        let mut page = Vec::new();
        while !String::from_utf8_lossy(&page).contains("SEGMENT") {
            let mut some = Vec::new();
            assert_ne!(shown.read_until(b'\n', &mut some).unwrap(), 0, "{page:?}");
            page.append(&mut some);
        }
        keys.write_all(key.as_bytes()).unwrap();
        keys.flush().unwrap();
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut shown, &mut rest).unwrap();
        child.wait().unwrap();
        assert!(
            String::from_utf8_lossy(&rest).contains("\x1b[?1049l"),
            "another screen stays"
        );
        let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
        assert_eq!(read("code"), "code 0\n");
        assert_eq!(read("before"), read("after"));
    }
}
