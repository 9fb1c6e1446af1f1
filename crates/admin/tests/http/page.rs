//! The page, and the stream that it follows.

use std::io::{BufRead, BufReader};

use super::*;

/// The first event of the stream, with the token of a header.
fn first_event(to: SocketAddr, header: &str) -> (String, Value) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(head[0].contains("200"), "{head:?}");
    // A second stream on the same connection had been cut off with it, in the middle of an event.
    for line in ["content-type: text/event-stream", "connection: close"] {
        assert!(head.contains(&line.to_owned()), "{head:?}");
    }
    let name = lines
        .find_map(|line| line.strip_prefix("event: ").map(str::to_owned))
        .unwrap();
    let data = lines
        .find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
        .unwrap();
    (name, serde_json::from_str(&data).unwrap())
}

#[test]
fn a_sample_holds_what_the_paths_tell() {
    let admin = start(fake(2), None);
    let (name, sample) = first_event(admin.address(), "");
    assert_eq!(name, "sample");
    let told = |path: &str| -> Value {
        let (status, body) = ask(admin.address(), "GET", path, "");
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    };
    assert_eq!(sample["stats"], told("/api/v1/stats"));
    assert_eq!(sample["segments"], told("/api/v1/segments")["segments"]);
    assert_eq!(sample["quotas"], told("/api/v1/tenant_quotas")["quotas"]);
    assert_eq!(sample["decisions"], told("/api/v1/decisions"));
    assert_eq!(sample["hottest"], told("/api/v1/hottest"));
    assert_eq!(sample["jobs"], told("/api/v1/jobs")["jobs"]);
    assert_eq!(
        (&sample["epoch"], &sample["ready"]),
        (&json!(7), &json!(true))
    );
    assert_eq!(sample["segments"][0]["high_watermark"], 0.95);
    // A sample without a stream is the same, or on a slow machine the next one.
    let (mut first, mut asked) = (sample, told("/api/v1/sample"));
    for sample in [&mut first, &mut asked] {
        assert!(sample["time_s"].take().as_f64() >= Some(0.0));
    }
    assert_eq!(first, asked);
    let (status, _) = ask(admin.address(), "GET", "/api/v1/sample?now=1", "");
    assert_eq!(status, 400);
    let source = Arc::new(Fake {
        keys: 0,
        ready: false,
        changes: Mutex::default(),
    });
    let admin = start(source, None);
    let (_, sample) = first_event(admin.address(), "");
    assert_eq!(sample["not_ready"], "it is opening");
    assert_eq!(sample["warnings"][0]["severity"], "critical");
}

#[test]
fn the_page_is_for_everybody_and_what_it_shows_is_not() {
    let directory = std::env::temp_dir().join(format!("page-{}", std::process::id()));
    let admin = start(fake(2), Some(token_in(&directory)));
    let get = |path: &str, header: &str| {
        let request = format!("GET {path} HTTP/1.0\r\nHost: pool.example\r\n{header}\r\n");
        exchange(admin.address(), &request)
    };
    for path in [
        "/",
        "/page/main.js",
        "/page/page.css",
        "/page/uplot/uPlot.esm.js",
        "/page/uplot/LICENSE",
    ] {
        let (status, head, body) = get(path, "");
        assert_eq!(status, 200, "{path}");
        assert!(!body.is_empty());
        let policy = head
            .lines()
            .find_map(|line| line.strip_prefix("content-security-policy: "));
        let policy = policy.unwrap_or_else(|| panic!("{path} has no policy: {head}"));
        let parts: Vec<&str> = policy.split("; ").map(str::trim).collect();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(parts.contains(&part), "{path}: {policy}");
        }
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    }
    assert_eq!(get("/page/none.js", "").0, 401);
    assert_eq!(get("/api/v1/events", "").0, 401);
    // A token in an address would be in logs and histories.
    let (status, _, body) = get("/api/v1/events?token=0123456789abcdef", "");
    assert_eq!(status, 401, "{body}");
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    let (status, _, body) = get("/api/v1/events?token=0123456789abcdef", right);
    assert_eq!(status, 400, "{body}");
    assert_eq!(first_event(admin.address(), right).0, "sample");
}

#[test]
fn a_page_of_another_origin_follows_nothing_and_changes_nothing() {
    let source = fake(0);
    let admin = start(Arc::clone(&source), None);
    // Pictures of a foreign page had been asked for in a loop, each of which took the books.
    for (method, path) in [
        ("GET", "/api/v1/events"),
        ("GET", "/debug/books"),
        ("POST", "/api/v1/remove_all"),
        ("POST", "/api/v1/reload"),
    ] {
        for header in [
            "Host: localhost\r\nOrigin: http://evil.example",
            "Host: localhost\r\nSec-Fetch-Site: cross-site",
            "Host: evil.example",
        ] {
            let request = format!("{method} {path} HTTP/1.0\r\n{header}\r\n\r\n");
            assert_eq!(
                exchange(admin.address(), &request).0,
                403,
                "{method} {path} {header}"
            );
        }
    }
    assert!(source.changes.lock().unwrap().is_empty());
    // A link elsewhere leads to the page, which holds no data.
    let link = "GET / HTTP/1.0\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\r\n";
    assert_eq!(exchange(admin.address(), link).0, 200);
}

/// The seventeenth page is told so, and tools are answered all the same.
#[test]
fn viewers_leave_connections_for_others() {
    let admin = start(fake(2), None);
    let open = || {
        let mut stream = TcpStream::connect(admin.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8(status.to_vec()).unwrap())
    };
    let viewers: Vec<_> = (0..16).map(|_| open()).collect();
    assert!(viewers.iter().all(|(_, status)| status.ends_with("200")));
    assert!(open().1.ends_with("503"));
    assert_eq!(ask(admin.address(), "GET", "/metrics", "").0, 200);
    // The end does not wait for them.
    drop(admin);
}
