//! What links may ask for: every request with every role.

use slackwater_meta::{MasterConfig, Tenancy};
use slackwater_wire::*;

use crate::world::*;

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a valid name")
}

/// Who may make a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Links that may name its tenant.
    Client,
    /// Operators.
    Admin,
    /// The node that it is about.
    Node,
}

/// Every kind of request about tenant `a` and node 7, and who may make it.
fn requests() -> Vec<(By, Request)> {
    let tenant = tenant("a");
    let (keys, version) = (vec![key("k")], Version(1));
    let at = ReplicaAt::Disk {
        node: NodeId(7),
        segment: SegmentId(7),
    };
    let get = Get {
        tenant: tenant.clone(),
        keys: keys.clone(),
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only: false,
    };
    let exists = Exists {
        tenant: tenant.clone(),
        keys: keys.clone().into(),
    };
    let start = PutStart {
        tenant: tenant.clone(),
        entries: vec![PutEntry {
            key: key("k"),
            bytes: 1,
        }],
        chain: Chain::default(),
        config: PutConfig::default(),
    };
    let done = PutDone {
        key: key("k"),
        version,
        checksum: slackwater_base::Checksum(1),
    };
    let end = PutEnd {
        tenant: tenant.clone(),
        puts: vec![done],
        hosts: None,
    };
    let remove = Remove {
        tenant: tenant.clone(),
        keys: keys.clone(),
        force: false,
    };
    let matching = RemoveMatching {
        tenant: tenant.clone(),
        pattern: "k".into(),
        force: false,
    };
    let all = |of: Option<Tenant>| RemoveAll {
        tenant: of,
        force: false,
    };
    let clear = ReplicaClear {
        tenant: tenant.clone(),
        keys,
        segment: None,
    };
    let list = List {
        tenant: tenant.clone(),
        pattern: None,
        after: None,
        limit: 10,
    };
    let mount = Mount {
        segment: SegmentId(8),
        name: "eight".into(),
        node: NodeId(7),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: "host".into(),
        generations: None,
        watermarks: None,
    };
    let job = JobSpec {
        work: JobWork::Copy {
            tenant: tenant.clone(),
            key: key("k"),
            targets: vec!["8".into()],
        },
        concurrency: 0,
        bytes_per_second: None,
        time: None,
    };
    let of = || tenant.clone();
    let operation = OperationId(1 << 30);
    vec![
        (By::Client, Request::Get(get)),
        (
            By::Client,
            Request::Reads(Reads {
                tenant: of(),
                calls: vec![],
            }),
        ),
        (By::Client, Request::GetEnd(GetEnd { guards: vec![] })),
        (By::Client, Request::Exists(exists)),
        (By::Client, Request::PutStart(start)),
        (By::Client, Request::PutEnd(end)),
        (
            By::Client,
            Request::PutRevoke {
                tenant: of(),
                puts: vec![(key("k"), version)],
            },
        ),
        (By::Client, Request::Revoke { operation }),
        (By::Client, Request::Remove(remove)),
        (By::Client, Request::RemoveMatching(matching)),
        (By::Client, Request::RemoveAll(all(Some(of())))),
        (By::Client, Request::ReplicaClear(clear)),
        (
            By::Client,
            Request::Suspect {
                tenant: of(),
                key: key("k"),
                version,
                at,
            },
        ),
        (By::Client, Request::List(list)),
        (
            By::Client,
            Request::Describe {
                tenant: of(),
                key: key("k"),
            },
        ),
        (By::Admin, Request::RemoveAll(all(None))),
        (
            By::Admin,
            Request::SetQuota {
                tenant: of(),
                memory_bytes: 1,
                disk_bytes: 1,
            },
        ),
        (By::Admin, Request::DeleteQuota { tenant: of() }),
        (By::Admin, Request::Quotas),
        (By::Admin, Request::StartJob(job)),
        (By::Admin, Request::QueryJob { job: JobId(1) }),
        (By::Admin, Request::AwaitJob { job: JobId(1) }),
        (By::Admin, Request::CancelJob { job: JobId(1) }),
        (By::Admin, Request::Jobs),
        (By::Node, Request::Mount(mount)),
    ]
}

/// A master with a segment of node 7 and a quota of tenant `a`.
fn world() -> World {
    let config = MasterConfig {
        tenancy: Tenancy::On,
        ..plain()
    };
    let mut world = World::new(config);
    world.mount(NodeId(7), SegmentId(7), SegmentKind::Memory, MIB);
    let quota = Request::SetQuota {
        tenant: tenant("a"),
        memory_bytes: MIB,
        disk_bytes: MIB,
    };
    assert_eq!(world.ask(quota), Reply::Done);
    world
}

#[test]
fn every_request_needs_its_role_and_tenant() {
    let role = Some(ErrorCode::RoleNotPermitted);
    let other = Some(ErrorCode::TenantNotPermitted);
    let none = Permissions {
        client: false,
        ..Permissions::client([])
    };
    let limited = Permissions {
        tenants: TenantPermission::Only(std::sync::Arc::new([tenant("b")].into())),
        ..Permissions::admin()
    };
    // The refusals of requests for clients, operators, and the node.
    let table = [
        ("all", Permissions::FULL, [None, None, None]),
        (
            "of a",
            Permissions::client([tenant("a")]),
            [None, role, role],
        ),
        (
            "of b",
            Permissions::client([tenant("b")]),
            [other, role, role],
        ),
        ("of none", Permissions::client([]), [other, role, role]),
        ("admin", Permissions::admin(), [None, None, role]),
        ("admin of b", limited, [other, other, role]),
        ("node 7", Permissions::node(NodeId(7)), [role, role, None]),
        ("node 8", Permissions::node(NodeId(8)), [role, role, role]),
        ("nothing", none, [role, role, role]),
    ];
    for (name, permissions, refusals) in table {
        for (by, request) in requests() {
            let expect = refusals[by as usize];
            let names_nobody = matches!(request, Request::GetEnd(_) | Request::Revoke { .. });
            let expect = expect.filter(|code| Some(*code) != other || !names_nobody);
            let reply = world().ask_with(permissions.clone(), request.clone());
            let refused = match reply {
                Reply::Failed(
                    code @ (ErrorCode::RoleNotPermitted | ErrorCode::TenantNotPermitted),
                ) => Some(code),
                _ => None,
            };
            assert_eq!(refused, expect, "{name}: {request:?}");
        }
    }
}

#[test]
fn a_refused_request_does_nothing_and_says_nothing() {
    let mut world = world();
    let put = requests()
        .into_iter()
        .find_map(|(_, request)| match request {
            Request::PutStart(start) => Some(Request::PutStart(start)),
            _ => None,
        });
    let Reply::PutStart(started) = world.ask(put.expect("it is in the list")) else {
        panic!("a put of one's own tenant is started");
    };
    assert!(matches!(started[0], PutStarted::Granted { .. }));
    let before = world.master.books();
    for (_, request) in requests() {
        let first = world.ask_with(Permissions::client([tenant("b")]), request.clone());
        let absent = self::world().ask_with(Permissions::client([tenant("b")]), request);
        assert_eq!(
            first, absent,
            "the same answer whether the object is there or not"
        );
    }
    assert_eq!(world.master.books(), before);
}

#[test]
fn what_was_refused_is_executed_when_the_right_is_given() {
    let mut world = world();
    let operation = OperationId(1 << 20);
    let of = |permissions: Permissions| slackwater_meta::Input::Request {
        client: ME,
        host: None,
        permissions,
        operation,
        request: Request::SetQuota {
            tenant: tenant("a"),
            memory_bytes: 1,
            disk_bytes: 1,
        },
    };
    world.input(of(Permissions::client([tenant("a")])));
    let refused = Reply::Failed(ErrorCode::RoleNotPermitted);
    assert_eq!(world.reply(operation), Some(refused));
    world.input(of(Permissions::admin()));
    assert_eq!(world.reply(operation), Some(Reply::Done));
}
