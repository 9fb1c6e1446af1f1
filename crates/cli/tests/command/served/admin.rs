//! The admin address of a server.

use std::io::{Lines, Read};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::ChildStdout;

use serde_json::Value;

use super::*;

/// A server with an admin address.
pub(crate) struct Administered {
    pub(crate) served: Served,
    pub(crate) admin: String,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Administered {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::spawn(
            place,
            &[&["serve", "--memory", "64MiB"], arguments].concat(),
        )
    }

    /// Starts a process that serves, at free ports where nothing else is said.
    pub(crate) fn spawn(place: &Place, arguments: &[&str]) -> Self {
        let mut free = vec!["--log", "warn"];
        if !arguments.contains(&"--admin") {
            free.extend(["--admin", "127.0.0.1:0"]);
        }
        if !arguments.contains(&"--listen") {
            free.extend(["--listen", "127.0.0.1:0"]);
        }
        Self::launch(place.command(&[arguments, &free].concat()))
    }

    /// Starts this process, which says two lines when it serves.
    pub(crate) fn launch(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = String::new();
        let mut administered = Self {
            served: Served { child, address },
            admin: String::new(),
            lines,
        };
        administered.served.address = administered.told("serving at ");
        administered.admin = administered.told("admin at http://");
        administered
    }

    /// The rest of the next line that it says when it starts, which begins with these words.
    pub(crate) fn told(&mut self, words: &str) -> String {
        let line = self.lines.next().unwrap().unwrap();
        let rest = line.strip_prefix(words);
        rest.unwrap_or_else(|| panic!("the server said `{line}`"))
            .to_owned()
    }

    /// Sends a request without a body: the status and the body of its answer.
    pub(crate) fn ask(&self, method: &str, path: &str, header: &str) -> (u16, String) {
        self.send(method, path, header, "")
    }

    pub(crate) fn post(&self, path: &str, header: &str, body: &str) -> (u16, String) {
        self.send("POST", path, header, body)
    }

    fn send(&self, method: &str, path: &str, header: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{header}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

#[test]
fn operators_see_what_clients_have_put_and_remove_it() {
    let place = Place::new();
    let server = Administered::start(&place, &[]);
    let client = server.served.connect();
    for key in ["a/1", "a/2", "b"] {
        client
            .put(key.as_bytes(), &[7; 5000], &Default::default())
            .unwrap();
    }
    assert_eq!(server.ask("GET", "/readyz", ""), (200, "ok\n".to_owned()));
    assert_eq!(server.ask("GET", "/get_all_keys", "").1, "a/1\na/2\nb\n");
    let keys = server.json("/api/v1/keys?pattern=%5Ea/");
    assert_eq!(keys["keys"], serde_json::json!(["a/1", "a/2"]));
    assert_eq!(server.json("/api/v1/object?key=a/1")["bytes"], 5000);
    assert_eq!(server.json("/api/v1/explain?key=b")[0]["tier"], "memory");
    assert_eq!(server.json("/api/v1/stats")["objects"], 3);
    assert_eq!(server.json("/debug/books")["objects"], 3);
    let segments = server.json("/get_segments_detail");
    assert_eq!(segments["total_segments"], 1);
    let used = segments["segments"][0]["allocator_used_bytes"].as_u64();
    assert!(used >= Some(15_000), "{segments}");
    let leader = server.json("/leader");
    assert_eq!(leader["leader_address"], server.served.address);
    let metrics = server.ask("GET", "/metrics", "").1;
    assert!(
        metrics.lines().any(|line| line == "slackwater_objects 3"),
        "{metrics}"
    );
    let quotas = server.ask("DELETE", "/api/v1/tenant_quotas?tenant_id=t", "");
    assert_eq!(quotas.0, 409, "tenants are not told apart: {}", quotas.1);
    let removed = server.ask("POST", "/api/v1/remove_all?force=true", "");
    assert_eq!(removed.0, 200, "{}", removed.1);
    assert!(removed.1.contains("\"removed\":3"), "{}", removed.1);
    assert_eq!(server.ask("GET", "/get_all_keys", "").1, "");
    assert_eq!(client.get(b"b", &Default::default()).unwrap(), None);
}

#[test]
fn the_admin_address_keeps_its_token_and_goes_with_the_server() {
    let place = Place::new();
    let file = place.path("token");
    std::fs::write(&file, "not-to-be-guessed-9\n").unwrap();
    let token = ["--admin-token-file", file.to_str().unwrap()];
    let refused = place.run(&[&["serve", "--listen", "127.0.0.1:0"], &token[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("chmod 600"),
        "{}",
        stderr(&refused)
    );
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let mut server = Administered::start(&place, &token);
    assert_eq!(server.ask("GET", "/metrics", "").0, 401);
    let right = "Authorization: Bearer not-to-be-guessed-9\r\n";
    assert_eq!(server.ask("GET", "/metrics", right).0, 200);
    let taken = place.run(&["serve", "--listen", "127.0.0.1:0", "--admin", &server.admin]);
    let told = stderr(&taken);
    assert_eq!(taken.status.code(), Some(1));
    assert!(
        told.contains(&server.admin) && told.contains("--admin none"),
        "{told}"
    );
    let open = place.run(&["serve", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"]);
    assert!(stderr(&open).contains("needs a token"), "{}", stderr(&open));
    server.served.signal(Signal::TERM);
    assert_eq!(exit_code(&mut server.served), Some(0));
    assert!(TcpStream::connect(&server.admin).is_err());
}
