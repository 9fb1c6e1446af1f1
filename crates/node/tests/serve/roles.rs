//! Every request and every message with every role, over links as peers have them.

mod held;
mod messages;

use slackwater_mq::{RequestError, new_keys, write_key};
use slackwater_node::serve::ServeKeys;
use slackwater_wire::{
    Chain, Exists, GetEnd, JobId, JobSpec, JobWork, List, ReadCall, Reads, RemoveAll,
    RemoveMatching, ReplicaAt, ReplicaClear,
};
use slackwater_zmtp::KeyPair;

use self::held::Held;
use super::*;

/// Who may make a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The keys of its tenant, and operators.
    Tenant,
    /// Every client: it is about what the client itself holds.
    Client,
    /// Operators.
    Operator,
    /// No client at all: nodes say so on links of their own.
    Nobody,
}

/// Who may make this request, and its number among the kinds of requests. A new kind needs a row here, and one in
/// [`requests`].
fn row(request: &Request) -> (usize, By) {
    match request {
        Request::Get(_) => (0, By::Tenant),
        Request::GetEnd(_) => (1, By::Client),
        Request::Exists(_) => (2, By::Tenant),
        Request::PutStart(_) => (3, By::Tenant),
        Request::PutEnd(_) => (4, By::Tenant),
        Request::PutRevoke { .. } => (5, By::Tenant),
        Request::Revoke { .. } => (6, By::Client),
        Request::Remove(_) => (7, By::Tenant),
        Request::RemoveMatching(_) => (8, By::Tenant),
        Request::RemoveAll(RemoveAll { tenant: None, .. }) => (9, By::Operator),
        Request::RemoveAll(_) => (10, By::Tenant),
        Request::ReplicaClear(_) => (11, By::Tenant),
        Request::Suspect { .. } => (12, By::Tenant),
        Request::List(_) => (13, By::Tenant),
        Request::Describe { .. } => (14, By::Tenant),
        Request::Mount(_) => (15, By::Nobody),
        Request::SetQuota { .. } => (16, By::Operator),
        Request::DeleteQuota { .. } => (17, By::Operator),
        Request::Quotas => (18, By::Operator),
        Request::StartJob(_) => (19, By::Operator),
        Request::QueryJob { .. } => (20, By::Operator),
        Request::AwaitJob { .. } => (21, By::Operator),
        Request::CancelJob { .. } => (22, By::Operator),
        Request::Jobs => (23, By::Operator),
        Request::Reads(_) => (24, By::Tenant),
    }
}

/// One request of each row, about an object of tenant `a`.
fn requests() -> Vec<Request> {
    let tenant = || Tenant::new("a").unwrap();
    let (keys, version) = (vec![named("k")], Version(1));
    let at = ReplicaAt::Disk {
        node: NodeId(300),
        segment: SegmentId(601),
    };
    let mount = Mount {
        segment: SegmentId(602),
        name: "mine".into(),
        node: NodeId(301),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: 1 << 20,
        host: String::new(),
        generations: None,
        watermarks: None,
    };
    let job = JobId(1);
    vec![
        Request::Get(Get {
            tenant: tenant(),
            keys: keys.clone(),
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        }),
        Request::GetEnd(GetEnd { guards: vec![] }),
        Request::Exists(Exists {
            tenant: tenant(),
            keys: keys.clone().into(),
        }),
        Request::PutStart(PutStart {
            tenant: tenant(),
            entries: vec![PutEntry {
                key: named("k"),
                bytes: 100,
            }],
            chain: Chain::default(),
            config: PutConfig::default(),
        }),
        Request::PutEnd(PutEnd {
            tenant: tenant(),
            puts: vec![PutDone {
                key: named("k"),
                version,
                checksum: Checksum(1),
            }],
            hosts: None,
        }),
        Request::PutRevoke {
            tenant: tenant(),
            puts: vec![(named("k"), version)],
        },
        Request::Revoke {
            operation: OperationId(1),
        },
        Request::Remove(Remove {
            tenant: tenant(),
            keys: keys.clone(),
            force: true,
        }),
        Request::RemoveMatching(RemoveMatching {
            tenant: tenant(),
            pattern: "k".into(),
            force: true,
        }),
        Request::RemoveAll(RemoveAll {
            tenant: None,
            force: true,
        }),
        Request::RemoveAll(RemoveAll {
            tenant: Some(tenant()),
            force: true,
        }),
        Request::ReplicaClear(ReplicaClear {
            tenant: tenant(),
            keys,
            segment: None,
        }),
        Request::Suspect {
            tenant: tenant(),
            key: named("k"),
            version,
            at,
        },
        Request::List(List {
            tenant: tenant(),
            pattern: None,
            after: None,
            limit: 10,
        }),
        Request::Describe {
            tenant: tenant(),
            key: named("k"),
        },
        Request::Mount(mount),
        Request::SetQuota {
            tenant: tenant(),
            memory_bytes: 1 << 20,
            disk_bytes: 0,
        },
        Request::DeleteQuota { tenant: tenant() },
        Request::Quotas,
        Request::StartJob(JobSpec {
            work: JobWork::Copy {
                tenant: tenant(),
                key: named("k"),
                targets: vec!["300".into()],
            },
            concurrency: 0,
            bytes_per_second: None,
            time: None,
        }),
        Request::QueryJob { job },
        Request::AwaitJob { job },
        Request::CancelJob { job },
        Request::Jobs,
        Request::Reads(Reads {
            tenant: tenant(),
            calls: vec![ReadCall {
                keys: vec![named("k")],
                versions: Vec::new(),
                chain: Chain::default(),
            }],
        }),
    ]
}

/// A pool with keys, and the keys that its lists have.
struct Keyed {
    master: MasterServer,
    _node: NodeServer,
    _folder: tempfile::TempDir,
    /// A key of a node that lends nothing: a second link with the key of one that does would take the place of its first.
    node: KeyPair,
    operator: KeyPair,
    of_a: KeyPair,
    of_b: KeyPair,
}

impl Keyed {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let key = |name: &str| {
            let keys = new_keys().unwrap();
            write_key(&path(name), &keys).unwrap();
            keys
        };
        let (own, lender) = (key("master"), key("lender"));
        let (node, operator) = (key("node"), key("operator"));
        let (of_a, of_b) = (key("a"), key("b"));
        let clients = format!(
            "{} basic tenants=a a\n{} basic tenants=b b\n{} admin operator\n",
            of_a.public(),
            of_b.public(),
            operator.public()
        );
        std::fs::write(path("clients"), &clients).unwrap();
        let nodes = [&lender, &node].map(|key| format!("{} node node\n", key.public()));
        let all = format!("{clients}{}", nodes.concat());
        std::fs::write(path("allowed"), all).unwrap();
        let keys = |name: &str, allowed: &str| {
            Some(ServeKeys {
                key_file: path(name),
                allowed: path(allowed),
            })
        };
        let config = Config {
            memory: ByteSize(MEMORY),
            ssd: ByteSize::mib(64),
            // What is lent to one is looked at after all the others have tried.
            lease_ttl: Duration::from_secs(600),
            dir: Some(path("kv")),
            tenants: true,
            ..Config::default()
        };
        let options = MasterOptions {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            keys: keys("master", "allowed"),
            ..MasterOptions::default()
        };
        let master = MasterServer::start(&config, &options).unwrap();
        let options = NodeOptions {
            master: Address {
                key: Some(own.public()),
                ..Address::tcp(master.address())
            },
            keys: keys("lender", "clients"),
            ..NodeOptions::default()
        };
        let (joined, waits) = channel();
        let joined = move |node, taken| joined.send((node, taken)).unwrap();
        let lends = NodeServer::start(config, options, joined).unwrap();
        assert_eq!(waits.recv_timeout(LONG), Ok((lends.node(), Ok(()))));
        let pool = Self {
            master,
            _node: lends,
            _folder: folder,
            node,
            operator,
            of_a,
            of_b,
        };
        let operator = pool.link(&pool.operator).unwrap();
        for name in ["a", "b"] {
            assert_eq!(operator.ask(&quota(name)), Answer::Reply(Reply::Done));
        }
        pool
    }

    fn link(&self, keys: &KeyPair) -> Result<Link, slackwater_mq::ConnectError> {
        let options = Options {
            keys: Some(keys.clone()),
            ..Options::default()
        };
        let address = Address {
            key: self.master.public_key(),
            ..Address::tcp(self.master.address())
        };
        Link::of(options, &address)
    }
}

/// One link of a peer.
struct Link {
    mq: Running,
    to: ConnectionId,
    client: ClientId,
    operation: std::cell::Cell<u64>,
}

/// The names of clients: each belongs to the key that used it first.
static CLIENTS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1 << 40);

/// What came of a message.
#[derive(Debug, PartialEq)]
enum Answer {
    /// The message layer did not pass it on.
    Forbidden,
    Reply(Reply),
}

impl Link {
    fn of(options: Options, address: &Address) -> Result<Self, slackwater_mq::ConnectError> {
        let mq = Builder::new(options).start().unwrap();
        let to = mq.connect_wait(address, &ConnectOptions::default())?;
        let operation = std::cell::Cell::new(0);
        let client = CLIENTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Self {
            mq,
            to,
            client: ClientId(client),
            operation,
        })
    }

    fn ask(&self, request: &Request) -> Answer {
        let answered = self.ask_as(self.client, request);
        answered.map_or(Answer::Forbidden, |answered| Answer::Reply(answered.reply))
    }

    /// Asks in the name of a client, which may be another one.
    fn ask_as(&self, client: ClientId, request: &Request) -> Option<Answered> {
        let number = self.operation.get() + 1;
        self.operation.set(number);
        let asked = Asked {
            epoch: Epoch(0),
            client,
            operation: OperationId(number),
            request: request.clone(),
            reads: body::LOOK_UPS,
            trace: None,
        };
        let command = match request {
            Request::PutEnd(_) => "records.put_end",
            _ => "pool.request",
        };
        self.send(command, &asked)
    }

    /// The answer to a message; none when the message layer refuses it.
    fn send<M: Message>(&self, command: &str, message: &impl Message) -> Option<M> {
        let options = RequestOptions {
            timeout: Some(LONG),
            ..RequestOptions::default()
        };
        let body = body::encode(message).unwrap();
        match self.mq.request_wait(self.to, command, [&body], &options) {
            Ok(answer) => Some(body::decode(answer.part(0).unwrap()).unwrap()),
            Err(RequestError::Refused(slackwater_mq::Refusal::Forbidden)) => None,
            Err(other) => panic!("{command}: {other}"),
        }
    }
}

fn is_refused(answer: &Answer, code: ErrorCode) -> bool {
    *answer == Answer::Reply(Reply::Failed(code))
}

fn quota(tenant: &str) -> Request {
    Request::SetQuota {
        tenant: Tenant::new(tenant).unwrap(),
        memory_bytes: 1 << 20,
        disk_bytes: 8 << 20,
    }
}

#[test]
fn every_kind_of_request_has_its_row() {
    let rows: Vec<usize> = requests().iter().map(|request| row(request).0).collect();
    assert_eq!(rows, (0..25).collect::<Vec<_>>());
}

#[test]
fn every_request_is_answered_by_the_role_of_its_link() {
    let pool = Keyed::start();
    let (role, tenant) = (ErrorCode::RoleNotPermitted, ErrorCode::TenantNotPermitted);
    let operator = pool.link(&pool.operator).unwrap();
    let (of_a, of_b) = (
        pool.link(&pool.of_a).unwrap(),
        pool.link(&pool.of_b).unwrap(),
    );
    let node = pool.link(&pool.node).unwrap();
    for request in requests() {
        let (_, by) = row(&request);
        let check = |link: &Link, name: &str, expected: Option<ErrorCode>| {
            let answer = link.ask(&request);
            let told = format!("{name}: {request:?}: {answer:?}");
            match expected {
                Some(code) => assert!(is_refused(&answer, code), "{told}"),
                None => {
                    let refused = is_refused(&answer, role) || is_refused(&answer, tenant);
                    assert!(!refused && answer != Answer::Forbidden, "{told}");
                }
            }
        };
        assert_eq!(node.ask(&request), Answer::Forbidden, "{request:?}");
        let (for_a, for_b, for_operator) = match by {
            By::Tenant => (None, Some(tenant), None),
            By::Client => (None, None, None),
            By::Operator => (Some(role), Some(role), None),
            By::Nobody => (Some(role), Some(role), Some(role)),
        };
        check(&of_b, "b", for_b);
        check(&of_a, "a", for_a);
        check(&operator, "operator", for_operator);
        if matches!(request, Request::DeleteQuota { .. }) {
            operator.ask(&quota("a"));
        }
    }
    let unknown = new_keys().unwrap();
    assert!(pool.link(&unknown).is_err(), "its key is in no list");
}

#[test]
fn without_keys_a_link_of_this_machine_has_every_role_of_a_client() {
    both(|pool| {
        let link = Link::of(Options::default(), &Address::tcp(pool.address())).unwrap();
        for request in requests() {
            let answer = link.ask(&request);
            let refused = is_refused(&answer, ErrorCode::RoleNotPermitted);
            assert_eq!(
                refused,
                row(&request).1 == By::Nobody,
                "{request:?}: {answer:?}"
            );
        }
    });
}

/// Whatever B asks for, the answer is the same whether A has such an object or not, and A still has it.
#[test]
fn nobody_learns_of_the_objects_of_other_tenants() {
    let pool = Keyed::start();
    let of_b = pool.link(&pool.of_b).unwrap();
    // The same as its own tenant's, where the key stands for another object.
    let own = |mut request: Request| {
        match &mut request {
            Request::Get(it) => it.tenant = b(),
            Request::Exists(it) => it.tenant = b(),
            Request::PutEnd(it) => it.tenant = b(),
            Request::PutRevoke { tenant, .. }
            | Request::Suspect { tenant, .. }
            | Request::Describe { tenant, .. } => *tenant = b(),
            Request::Remove(it) => it.tenant = b(),
            Request::RemoveMatching(it) => it.tenant = b(),
            Request::RemoveAll(it) => it.tenant = Some(b()),
            Request::ReplicaClear(it) => it.tenant = b(),
            Request::List(it) => it.tenant = b(),
            Request::Reads(it) => it.tenant = b(),
            _ => return None,
        }
        Some(request)
    };
    let asked: Vec<Request> = requests()
        .into_iter()
        .flat_map(|request| [own(request.clone()), Some(request)])
        .flatten()
        .collect();
    let ask = || -> Vec<Answer> { asked.iter().map(|request| of_b.ask(request)).collect() };
    let before = ask();
    let held = Held::publish(&pool);
    assert_eq!(before, ask());
    let read = |tenant| {
        let record = ReadRecord {
            client: of_b.client,
            entry: DiskEntry {
                tenant,
                ..held.entry()
            },
            ..held.record()
        };
        let staged: RecordStaged = of_b.send("records.read", &record).unwrap();
        staged.result.unwrap_err()
    };
    assert_eq!(read(a()), ErrorCode::TenantNotPermitted);
    assert_eq!(read(b()), ErrorCode::ReplicaIsGone);
    held.check();
}

fn a() -> Tenant {
    Tenant::new("a").unwrap()
}

fn b() -> Tenant {
    Tenant::new("b").unwrap()
}
