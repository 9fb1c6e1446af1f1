//! Requests over real sockets, answered from a source of known content.

#![expect(
    clippy::unwrap_used,
    reason = "a test: what goes wrong here must stop it, with the place where it did"
)]

mod page;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use slackwater_admin::{Admin, AdminError, AdminOptions, Failure, Segment, Source, Token};
use slackwater_base::Checksum;
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Description, Draining, ErrorCode, ExtentRef, Incarnation, JobId, JobSpec, JobState, JobStatus,
    JobWork, Key, List, Listed, MetricsFormat, NodeId, Pin, Presence, QuotaState, ReplicaAt,
    ReplicaState, SegmentId, SegmentKind, SegmentState, Tenant, Version, Watermarks,
};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store of `keys` keys, `0000`, `0001` and so on, that notes what it was told to change.
struct Fake {
    keys: usize,
    ready: bool,
    changes: Mutex<Vec<String>>,
}

impl Fake {
    fn note(&self, change: String) {
        self.changes.lock().unwrap().push(change);
    }
}

fn drain() -> JobSpec {
    JobSpec {
        work: JobWork::Drain {
            places: vec!["memory".into()],
            targets: vec![],
            disks: true,
        },
        concurrency: 0,
        bytes_per_second: None,
        time: None,
    }
}

fn job(spec: JobSpec, status: JobStatus) -> JobState {
    JobState {
        job: JobId(7),
        spec,
        status,
        age: Duration::from_millis(1500),
        unchanged: Duration::from_millis(500),
        active: 1,
        done: 2,
        done_bytes: 8192,
        failed: 1,
        left_bytes: 4096,
        errors: vec![(Key::new(b"k").unwrap(), ErrorCode::NoAvailableHandle)],
    }
}

impl Source for Fake {
    fn ready(&self) -> Result<(), String> {
        if self.ready {
            Ok(())
        } else {
            Err("it is opening".to_owned())
        }
    }

    fn epoch(&self) -> u64 {
        7
    }

    fn address(&self) -> String {
        "tcp://127.0.0.1:50051".to_owned()
    }

    fn metrics(&self, format: MetricsFormat) -> String {
        match format {
            MetricsFormat::Prometheus => "slackwater_objects 2\n".to_owned(),
            MetricsFormat::OpenMetrics => "slackwater_objects 2\n# EOF\n".to_owned(),
        }
    }

    fn kv_events(&self) -> KvEventCounts {
        KvEventCounts {
            enabled: true,
            published_batches: 2,
            published_events: 3,
            dropped_events: 4,
            skipped_unparsed_keys: 5,
        }
    }

    fn stats(&self) -> Result<Value, Failure> {
        Ok(json!({ "objects": 2 }))
    }

    fn books(&self) -> Result<Value, Failure> {
        Err(Failure {
            code: ErrorCode::InternalError,
            message: "the books do not balance".to_owned(),
        })
    }

    fn segments(&self) -> Result<Vec<Segment>, Failure> {
        let segment = |id, name: &str, kind| Segment {
            state: SegmentState {
                segment: SegmentId(id),
                node: NodeId(1),
                draining: Draining::No,
                presence: match kind {
                    SegmentKind::Memory => Presence::Here,
                    SegmentKind::Disk => Presence::Hidden,
                },
                name: name.to_owned(),
                kind,
                bytes: 1 << 20,
                used_bytes: 1 << 18,
            },
            endpoint: "127.0.0.1:50052".to_owned(),
            protocol: "tcp",
            watermarks: Watermarks {
                low: 0.9,
                high: 0.95,
            },
        };
        Ok(vec![
            segment(1, "memory", SegmentKind::Memory),
            segment(2, "ssd", SegmentKind::Disk),
        ])
    }

    fn list(&self, list: List) -> Result<Listed, Failure> {
        assert!(list.tenant.is_default() && list.pattern.is_none());
        let after = list.after.map(|key| key.to_string());
        let names = (0..self.keys).map(|key| format!("{key:04}"));
        let mut rest = names.filter(|name| after.as_ref().is_none_or(|after| name > after));
        let keys = rest.by_ref().take(list.limit.min(10) as usize);
        let keys = keys
            .map(|name| Key::new(name.as_bytes()).unwrap())
            .collect();
        Ok(Listed {
            keys,
            more: rest.next().is_some(),
        })
    }

    fn describe(&self, tenant: &Tenant, key: &Key) -> Result<Option<Description>, Failure> {
        if key.as_bytes() != b"a/b" || !tenant.is_default() {
            return Ok(None);
        }
        let extent = ExtentRef {
            incarnation: Incarnation(1),
            segment: SegmentId(1),
            offset: 4096,
            bytes: 4096,
            generation: 3,
        };
        let disk = ReplicaAt::Disk {
            node: NodeId(1),
            segment: SegmentId(2),
        };
        Ok(Some(Description {
            key: key.clone(),
            tenant: tenant.clone(),
            version: Version(5),
            bytes: 100,
            checksum: Checksum(0xab),
            group: None,
            pin: Pin::Hard,
            lease: Duration::from_millis(9),
            replicas: vec![
                (ReplicaAt::Memory(extent), ReplicaState::Complete, 1),
                (ReplicaAt::Memory(extent), ReplicaState::Processing, 0),
                (disk, ReplicaState::Complete, 0),
            ],
            names: ["memory", "memory", "ssd"].map(String::from).to_vec(),
        }))
    }

    fn explain(&self, _: &Tenant, key: &Key) -> Result<Option<Value>, Failure> {
        Ok((key.as_bytes() == b"a/b").then(|| json!([{ "tier": "memory" }])))
    }

    fn decisions(&self) -> Result<Value, Failure> {
        Ok(json!({ "made": 3, "latest": [{ "number": 3, "key": "k" }] }))
    }

    fn hottest(&self) -> Result<Value, Failure> {
        Ok(json!({ "reads": 2.5, "chains": [{ "key": "k", "reads": 2.5 }] }))
    }

    fn quotas(&self) -> Result<Vec<QuotaState>, Failure> {
        Ok(vec![QuotaState {
            tenant: Tenant::new("t").unwrap(),
            memory_quota: Some(10),
            disk_quota: None,
            memory_bytes: 1,
            disk_bytes: 2,
            objects: 3,
        }])
    }

    fn set_quota(&self, tenant: &Tenant, memory: u64, disk: u64) -> Result<(), Failure> {
        self.note(format!("{} {memory} {disk}", tenant.name()));
        Ok(())
    }

    fn delete_quota(&self, tenant: &Tenant) -> Result<(), Failure> {
        self.note(format!("-{}", tenant.name()));
        Err(ErrorCode::TenantNotEmpty.into())
    }

    fn start_job(&self, spec: JobSpec) -> Result<JobState, Failure> {
        self.note(format!("{:?} {}", spec.work, spec.concurrency));
        Ok(job(spec, JobStatus::Running))
    }

    fn query_job(&self, id: JobId) -> Result<JobState, Failure> {
        match id {
            JobId(7) => Ok(job(drain(), JobStatus::Running)),
            _ => Err(ErrorCode::JobNotFound.into()),
        }
    }

    fn cancel_job(&self, id: JobId) -> Result<JobState, Failure> {
        self.note(format!("cancel {id}"));
        Ok(job(drain(), JobStatus::Cancelled))
    }

    fn jobs(&self) -> Result<Vec<JobState>, Failure> {
        Ok(vec![job(drain(), JobStatus::Succeeded)])
    }

    fn reload(&self) -> Result<(), Failure> {
        self.note("reload".to_owned());
        Ok(())
    }

    fn remove(&self, tenant: &Tenant, key: &Key, force: bool) -> Result<(), Failure> {
        self.note(format!("remove {} {key} {force}", tenant.name()));
        match force {
            true => Ok(()),
            false => Err(ErrorCode::ObjectHasLease.into()),
        }
    }

    fn remove_all(&self, tenant: Option<&Tenant>, force: bool) -> Result<u64, Failure> {
        self.note(format!("remove {:?} {force}", tenant.map(Tenant::name)));
        Ok(2)
    }
}

fn fake(keys: usize) -> Arc<Fake> {
    Arc::new(Fake {
        keys,
        ready: true,
        changes: Mutex::default(),
    })
}

/// The token `0123456789abcdef`, from a file in a directory that is there no longer.
fn token_in(directory: &Path) -> Token {
    std::fs::create_dir_all(directory).unwrap();
    let file = directory.join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).unwrap();
    let token = Token::load(&file).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    token
}

fn start(source: Arc<Fake>, token: Option<Token>) -> Admin {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Admin::start(AdminOptions { listen, token }, source).unwrap()
}

/// Sends this and reads to the end of the connection: the status, the head and the body.
fn exchange(to: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

fn ask(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let (status, _, body) = exchange(to, &request);
    (status, body)
}

#[test]
fn metrics_come_in_the_form_that_is_asked_for() {
    let admin = start(fake(2), None);
    let check = |accept: &str, kind: &str, expected: &str| {
        for path in ["/metrics", "/metrics/summary"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{accept}\r\n"
            );
            let (status, head, body) = exchange(admin.address(), &request);
            assert_eq!((status, body.as_str()), (200, expected), "{accept}");
            let kind = format!("content-type: {kind}; charset=utf-8");
            assert!(head.to_lowercase().contains(&kind), "{head}");
            assert!(head.to_lowercase().contains("vary: accept"), "{head}");
        }
    };
    let plain = "text/plain; version=0.0.4";
    check("", plain, "slackwater_objects 2\n");
    check("Accept: */*\r\n", plain, "slackwater_objects 2\n");
    check(
        "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4\r\n",
        "application/openmetrics-text; version=1.0.0",
        "slackwater_objects 2\n# EOF\n",
    );
}

#[test]
fn each_path_answers_in_its_form() {
    let admin = start(fake(2), None);
    let check = |path: &str, status: u16, expected: Value| {
        let (got, body) = ask(admin.address(), "GET", path, "");
        assert_eq!(got, status, "{path}: {body}");
        let body: Value = serde_json::from_str(&body).unwrap_or(Value::String(body));
        match &expected {
            Value::Object(fields) => {
                for (name, value) in fields {
                    assert_eq!(&body[name], value, "{path}: {name} of {body}");
                }
            }
            whole => assert_eq!(&body, whole, "{path}"),
        }
    };
    check("/healthz", 200, json!("ok\n"));
    check("/readyz", 200, json!("ok\n"));
    check("/metrics", 200, json!("slackwater_objects 2\n"));
    check("/metrics/summary", 200, json!("slackwater_objects 2\n"));
    check("/role", 200, json!("leader\n"));
    check("/ha_status", 200, json!("serving\n"));
    let leader = json!({ "leader_address": "tcp://127.0.0.1:50051", "view_version": 7 });
    check("/leader", 200, leader);
    check(
        "/health",
        200,
        json!({ "status": "ok", "service_ready": true, "role": "leader" }),
    );
    let job = json!({
        "job_id": "7", "status": "RUNNING", "succeeded_units": 2, "migrated_bytes": 8192,
        "errors": [{ "key": "k", "error_code": -200, "error_name": "NO_AVAILABLE_HANDLE" }],
    });
    check("/api/v1/drain_jobs/query?job_id=7", 200, job);
    let unknown = json!({ "error_code": -1402 });
    check("/api/v1/drain_jobs/query?job_id=8", 404, unknown);
    let wrong = json!({ "error_code": -600 });
    check("/api/v1/drain_jobs/query", 400, wrong.clone());
    check("/api/v1/drain_jobs/query?job_id=x", 400, wrong);
    let (_, listed) = ask(admin.address(), "GET", "/api/v1/jobs", "");
    assert!(listed.contains("SUCCEEDED"), "{listed}");
    check("/get_all_segments", 200, json!("memory\nssd\n"));
    check("/get_segments_detail", 200, json!({ "total_segments": 2 }));
    for (name, number, status) in [("memory", 1, "OK"), ("ssd", 0, "UNDEFINED")] {
        let body = json!({ "segment": name, "status": number, "status_name": status });
        let path = format!("/api/v1/segments/status?segment={name}");
        check(&path, 200, body);
    }
    let unknown = json!({ "success": false, "error_code": -101 });
    check("/api/v1/segments/status?segment=x", 404, unknown);
    let used = "memory\nUsed(bytes): 262144\nCapacity(bytes) : 1048576\n";
    check("/query_segment?segment=memory", 200, json!(used));
    check(
        "/query_segment?segment=x",
        500,
        json!("no segment is named x\n"),
    );
    let memory = json!([{
        "size_": 100, "buffer_address_": 4096, "protocol_": "tcp",
        "transport_endpoint_": "127.0.0.1:50052",
    }]);
    check(
        "/query_key?key=a%2Fb",
        200,
        json!({ "success": true, "data": memory }),
    );
    check(
        "/query_key?key=b",
        404,
        json!({ "success": false, "error_code": -704 }),
    );
    check(
        "/query_key?key=a/b&tenant=other",
        404,
        json!({ "error_code": -704 }),
    );
    check("/query_key", 400, json!({ "error_code": -600 }));
    let disk = json!([{ "size_": 100, "transport_endpoint_": "127.0.0.1:50052" }]);
    let found = json!({
        "ok": true, "error": "", "values": memory, "disk_values": [], "local_disk_values": disk,
        "nof_values": [],
    });
    let absent = json!({ "ok": false, "error": "no such object" });
    let both = json!({ "data": { "a/b": found, "x": absent } });
    check("/batch_query_keys?keys=a/b,x", 200, both);
    check("/batch_query_keys", 400, json!({ "error_code": -600 }));
    check(
        "/batch_query_keys?keys=",
        400,
        json!({ "error_code": -600 }),
    );
    check(
        "/kv_events/status",
        200,
        json!({
            "enabled": true,
            "published_batches": 2,
            "published_events": 3,
            "dropped_events": 4,
            "skipped_unparsed_keys": 5,
        }),
    );
    check("/api/v1/stats", 200, json!({ "objects": 2 }));
    check(
        "/api/v1/keys",
        200,
        json!({ "keys": ["0000", "0001"], "more": false }),
    );
    check(
        "/api/v1/keys?limit=1",
        200,
        json!({ "keys": ["0000"], "more": true }),
    );
    check(
        "/api/v1/keys?after=0000",
        200,
        json!({ "keys": ["0001"], "more": false }),
    );
    for wrong in ["limit=0", "limit=65537", "after=", "tenant=%ff", "all=1"] {
        check(
            &format!("/api/v1/keys?{wrong}"),
            400,
            json!({ "error_code": -600 }),
        );
    }
    let object = json!({ "bytes": 100, "version": 5, "pin": "hard", "lease_ms": 9 });
    check("/api/v1/object?key=a/b", 200, object);
    check("/api/v1/object?key=x", 404, json!({ "error_code": -704 }));
    check(
        "/api/v1/explain?key=a/b",
        200,
        json!([{ "tier": "memory" }]),
    );
    check("/api/v1/explain?key=x", 404, json!({ "error_code": -704 }));
    let quota = json!({ "tenant_id": "t", "memory_quota_bytes": 10, "ssd_quota_bytes": null });
    check("/api/v1/tenant_quotas?tenant_id=t", 200, quota);
    check(
        "/api/v1/tenant_quotas?tenant_id=u",
        404,
        json!({ "error_code": -1701 }),
    );
    let books = json!({ "error_code": -1, "error_message": "the books do not balance" });
    check("/debug/books", 500, books);
    check(
        "/nothing",
        404,
        json!({ "error_message": "there is no path /nothing" }),
    );
}

#[test]
fn changes_are_made_by_other_methods_than_get_and_once() {
    let source = fake(0);
    let admin = start(Arc::clone(&source), None);
    let check = |method: &str, path: &str, body: &str, status: u16| {
        let (got, said) = ask(admin.address(), method, path, body);
        assert_eq!(got, status, "{method} {path}: {said}");
    };
    let quota = r#"{"memory_quota_bytes":5,"ssd_quota_bytes":6}"#;
    check("GET", "/api/v1/remove_all", "", 405);
    check("POST", "/api/v1/remove_all?force=1", "", 400);
    check("GET", "/api/v1/remove?key=k", "", 405);
    check("POST", "/api/v1/remove", "", 400);
    check("POST", "/api/v1/remove?key=", "", 400);
    check("POST", "/api/v1/remove?key=k&force=yes", "", 400);
    check("POST", "/api/v1/keys", "", 405);
    check("GET", "/api/v1/reload", "", 405);
    check("POST", "/api/v1/reload?force=true", "", 400);
    check("PUT", "/api/v1/tenant_quotas", quota, 400);
    check("PUT", "/api/v1/tenant_quotas?tenant_id=t", "{", 400);
    check(
        "PUT",
        "/api/v1/tenant_quotas?tenant_id=t",
        r#"{"memory_quota_bytes":5}"#,
        400,
    );
    check(
        "PUT",
        "/api/v1/tenant_quotas?tenant_id=t",
        &" ".repeat(70_000),
        413,
    );
    let drains = "/api/v1/drain_jobs";
    check("POST", drains, "{}", 400);
    check("POST", drains, r#"{"segments":["a"],"all":1}"#, 400);
    check("GET", "/api/v1/drain_jobs/cancel?job_id=7", "", 405);
    check("POST", "/api/v1/drain_jobs/query?job_id=7", "", 405);
    assert!(source.changes.lock().unwrap().is_empty());
    check("PUT", "/api/v1/tenant_quotas?tenant_id=t", quota, 200);
    check("DELETE", "/api/v1/tenant_quotas?tenant_id=t", "", 409);
    check("POST", "/api/v1/remove_all", "", 200);
    check("POST", "/api/v1/remove_all?tenant=t&force=true", "", 200);
    check("POST", "/api/v1/remove?key=a%2Fb", "", 409);
    check("POST", "/api/v1/remove?key=k&tenant=t&force=true", "", 200);
    let drain = r#"{"segments":["a"],"target_segments":["b"],"max_concurrency":9}"#;
    check("POST", drains, drain, 200);
    check("POST", "/api/v1/drain_jobs/cancel?job_id=7", "", 200);
    check("POST", "/api/v1/reload", "", 200);
    let changes = [
        "t 5 6",
        "-t",
        "remove None false",
        "remove Some(\"t\") true",
        "remove default a/b false",
        "remove t k true",
        "Drain { places: [\"a\"], targets: [\"b\"], disks: true } 9",
        "cancel 7",
        "reload",
    ];
    assert_eq!(*source.changes.lock().unwrap(), changes);
}

#[test]
fn a_list_of_all_keys_goes_over_its_pages() {
    for count in [0, 1, 10, 11, 25] {
        let admin = start(fake(count), None);
        let request = "GET /get_all_keys HTTP/1.0\r\nHost: localhost\r\n\r\n";
        let (status, _, body) = exchange(admin.address(), request);
        assert_eq!(status, 200);
        let expected: String = (0..count).map(|key| format!("{key:04}\n")).collect();
        assert_eq!(body, expected);
    }
}

#[test]
fn a_store_that_does_not_serve_is_alive_and_not_ready() {
    let source = Arc::new(Fake {
        keys: 0,
        ready: false,
        changes: Mutex::default(),
    });
    let admin = start(source, None);
    let get = |path| ask(admin.address(), "GET", path, "");
    assert_eq!(get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz"), (503, "it is opening\n".to_owned()));
    let (status, body) = get("/health");
    assert!(
        status == 200 && body.contains("\"service_ready\":false"),
        "{body}"
    );
}

#[test]
fn a_caller_without_the_token_learns_that_the_process_is_there_and_no_more() {
    let directory = std::env::temp_dir().join(format!("admin-{}", std::process::id()));
    let admin = start(fake(2), Some(token_in(&directory)));
    let get = |path: &str, header: &str| {
        let request = format!("GET {path} HTTP/1.0\r\nHost: pool.example\r\n{header}\r\n");
        exchange(admin.address(), &request)
    };
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    for path in [
        "/metrics",
        "/health",
        "/get_all_keys",
        "/api/v1/stats",
        "/nothing",
    ] {
        for wrong in ["", "Authorization: Bearer 0123456789abcdeg\r\n"] {
            let (status, head, body) = get(path, wrong);
            assert_eq!(status, 401, "{path}");
            assert!(
                head.to_lowercase().contains("www-authenticate: bearer"),
                "{head}"
            );
            assert!(body.contains("token"), "{body}");
        }
        assert_ne!(get(path, right).0, 401, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(path, "").0, 200, "{path}");
    }
}

#[test]
fn an_address_that_others_reach_needs_a_token_and_a_taken_one_is_named() {
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let options = AdminOptions {
        listen,
        token: None,
    };
    let refused = Admin::start(options, fake(0));
    assert!(matches!(refused, Err(AdminError::NeedsToken { .. })));
    let first = start(fake(0), None);
    let options = AdminOptions {
        listen: first.address(),
        token: None,
    };
    let refused = Admin::start(options, fake(0)).unwrap_err().to_string();
    assert!(
        refused.starts_with(&first.address().to_string()),
        "{refused}"
    );
}

/// Connections that never send a request hold a place each until their time is over. The others wait, and nobody is lost.
#[test]
fn silent_connections_cost_the_others_time_and_not_their_answer() {
    let admin = start(fake(2), None);
    let silent: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(admin.address()).unwrap())
        .collect();
    assert_eq!(ask(admin.address(), "GET", "/healthz", "").0, 200);
    drop(silent);
}

/// The end waits for answers that are under way, and not for those who keep their connection open.
#[test]
fn the_end_does_not_wait_for_open_connections() {
    let admin = start(fake(2), None);
    let to = admin.address();
    let mut idle = TcpStream::connect(to).unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    drop(admin);
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(TcpStream::connect(to).is_err(), "nothing listens any more");
}
