use std::fmt::{Debug, Write};
use std::time::Duration;

use proptest::prelude::*;
use serde::Serialize;
use slackwater_base::Checksum;

use super::*;
use crate::*;

mod attach;
mod held;
mod look_ups;

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

fn extent() -> ExtentRef {
    ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(2),
        offset: 4096,
        bytes: 8192,
        generation: 3,
    }
}

fn entry() -> DiskEntry {
    DiskEntry {
        tenant: Tenant::new("acme").unwrap(),
        key: key("k"),
        version: Version(1 << 40),
    }
}

fn requests() -> Vec<Request> {
    let (tenant, keys) = (Tenant::new("acme").unwrap(), vec![key("a"), key("b")]);
    let of = || tenant.clone();
    let all = || keys.clone();
    let chain = Chain {
        parent: Some(key("p")),
        position: 7,
        hint: Some(1),
        expect: None,
        output_tokens: None,
    };
    let config = PutConfig {
        mode: PutMode::Upsert,
        replicas: 2,
        preferred: vec!["here".into()],
        pin: Pin::Soft(Some(Duration::from_secs(60))),
        group: Some(9),
        durability: Durability::Disk,
        wait: Some(Duration::from_millis(1500)),
    };
    let (version, operation) = (Version(5), OperationId(6));
    let at = ReplicaAt::Memory(extent());
    vec![
        Request::Get(Get {
            tenant: of(),
            keys: all(),
            chain: chain.clone(),
            hold: Hold::Guard,
            prefix_only: true,
        }),
        Request::Reads(Reads {
            tenant: of(),
            calls: vec![
                ReadCall {
                    keys: all(),
                    versions: vec![version; all().len()],
                    chain: chain.clone(),
                },
                ReadCall {
                    keys: vec![key("b")],
                    versions: Vec::new(),
                    chain: Chain::default(),
                },
            ],
        }),
        Request::GetEnd(GetEnd {
            guards: vec![GuardId(1), GuardId(u64::MAX)],
        }),
        Request::Exists(Exists {
            tenant: Tenant::DEFAULT,
            keys: all().into(),
        }),
        Request::PutStart(PutStart {
            tenant: of(),
            entries: vec![PutEntry {
                key: key("a"),
                bytes: 65_536,
            }],
            chain,
            config,
        }),
        Request::PutEnd(PutEnd {
            tenant: of(),
            puts: vec![PutDone {
                key: key("a"),
                version,
                checksum: Checksum(u64::MAX),
            }],
            hosts: None,
        }),
        Request::PutRevoke {
            tenant: of(),
            puts: vec![(key("a"), version)],
        },
        Request::Revoke { operation },
        Request::Remove(Remove {
            tenant: of(),
            keys: all(),
            force: true,
        }),
        Request::RemoveMatching(RemoveMatching {
            tenant: of(),
            pattern: "^a".into(),
            force: false,
        }),
        Request::RemoveAll(RemoveAll {
            tenant: None,
            force: true,
        }),
        Request::RemoveAll(RemoveAll {
            tenant: Some(Tenant::DEFAULT),
            force: false,
        }),
        Request::ReplicaClear(ReplicaClear {
            tenant: of(),
            keys: all(),
            segment: Some("here".into()),
        }),
        Request::Suspect {
            tenant: of(),
            key: key("a"),
            version,
            at,
        },
        Request::List(List {
            tenant: of(),
            pattern: Some("a".into()),
            after: Some(key("a")),
            limit: 10,
        }),
        Request::Describe {
            tenant: of(),
            key: key("a"),
        },
        Request::Mount(Mount {
            segment: SegmentId(1),
            name: "here".into(),
            node: NodeId(2),
            incarnation: Incarnation(3),
            kind: SegmentKind::Disk,
            bytes: 1 << 40,
            host: "host".into(),
            generations: None,
            watermarks: None,
        }),
        Request::SetQuota {
            tenant: of(),
            memory_bytes: 1,
            disk_bytes: u64::MAX,
        },
        Request::DeleteQuota { tenant: of() },
        Request::Quotas,
        Request::StartJob(job(JobWork::Copy {
            tenant: of(),
            key: key("a"),
            targets: vec!["300".into()],
        })),
        Request::StartJob(job(JobWork::Move {
            tenant: of(),
            key: key("a"),
            source: Some("memory-300".into()),
            target: "301".into(),
        })),
        Request::StartJob(job(JobWork::Drain {
            places: vec!["300".into()],
            targets: vec![],
            disks: true,
        })),
        Request::QueryJob { job: JobId(9) },
        Request::AwaitJob { job: JobId(9) },
        Request::CancelJob { job: JobId(9) },
        Request::Jobs,
    ]
}

fn job(work: JobWork) -> JobSpec {
    JobSpec {
        work,
        concurrency: 8,
        bytes_per_second: Some(1 << 20),
        time: Some(Duration::from_secs(30)),
    }
}

fn job_state() -> JobState {
    let work = JobWork::Drain {
        places: vec!["300".into()],
        targets: vec!["301".into()],
        disks: false,
    };
    JobState {
        job: JobId(9),
        spec: job(work),
        status: JobStatus::Running,
        age: Duration::from_millis(1500),
        unchanged: Duration::from_millis(500),
        active: 2,
        done: 3,
        done_bytes: 4096,
        failed: 1,
        left_bytes: 8192,
        errors: vec![(key("b"), ErrorCode::NoAvailableHandle)],
    }
}

fn replies() -> Vec<Reply> {
    let object = Object {
        version: Version(5),
        bytes: 65_536,
        checksum: Checksum(7),
        replicas: vec![
            ReplicaAt::Memory(extent()),
            ReplicaAt::Disk {
                node: NodeId(2),
                segment: SegmentId(3),
            },
        ]
        .into(),
        lease: Duration::from_secs(10),
        guard: Some(GuardId(4)),
    };
    let description = Description {
        key: key("a"),
        tenant: Tenant::DEFAULT,
        version: Version(5),
        bytes: 10,
        checksum: Checksum(7),
        group: None,
        pin: Pin::Hard,
        lease: Duration::ZERO,
        replicas: vec![(ReplicaAt::Memory(extent()), ReplicaState::Complete, 1)],
        names: vec!["memory-300".into()],
    };
    vec![
        Reply::Get(vec![
            Lookup::Found(object),
            Lookup::NotReady,
            Lookup::Missing,
            Lookup::Failed(ErrorCode::InvalidParams),
        ]),
        Reply::Exists(vec![true, false]),
        Reply::PutStart(vec![
            PutStarted::Granted {
                version: Version(5),
                extents: vec![extent()],
            },
            PutStarted::Exists,
            PutStarted::Failed(ErrorCode::NoAvailableHandle),
        ]),
        Reply::Each(vec![Ok(()), Err(ErrorCode::ObjectHasLease)]),
        Reply::Count(3),
        Reply::List(Listed {
            keys: vec![key("a")],
            more: true,
        }),
        Reply::Describe(Box::new(description)),
        Reply::Quotas(vec![QuotaState {
            tenant: Tenant::DEFAULT,
            memory_quota: Some(1),
            disk_quota: None,
            memory_bytes: 2,
            disk_bytes: 3,
            objects: 4,
        }]),
        Reply::Job(Box::new(job_state())),
        Reply::Jobs(vec![job_state()]),
        Reply::Done,
        Reply::Failed(ErrorCode::ShuttingDown),
    ]
}

fn orders() -> Vec<Order> {
    let ticket = TicketId(8);
    vec![
        Order::Offload(vec![OffloadTask {
            ticket,
            entry: entry(),
            bytes: 10,
            checksum: Checksum(7),
            source: extent(),
            promised: true,
        }]),
        Order::Promote(vec![PromoteTask {
            ticket,
            entry: entry(),
            bytes: 10,
            checksum: Checksum(7),
        }]),
        Order::Staged {
            ticket,
            extent: extent(),
        },
        Order::Cancel { ticket },
        Order::Drop(vec![entry()]),
        Order::Fence(vec![extent()]),
        Order::Published(vec![published()]),
    ]
}

fn published() -> Published {
    Published {
        extent: extent(),
        entry: entry(),
        bytes: 10,
        checksum: Checksum(7),
        writer: ClientId(5),
        pin: Pin::Soft(Some(Duration::from_secs(9))),
        durability: Durability::Disk,
        group: Some(u64::MAX),
        chain: ChainPlace {
            parent: Some(u64::MAX),
            position: u32::MAX,
            hint: Some(u32::MAX),
            expect: None,
            output_tokens: Some(u32::MAX),
        },
    }
}

fn reports() -> Vec<Report> {
    let (ticket, segment) = (TicketId(8), SegmentId(3));
    vec![
        Report::Offloaded(vec![(ticket, Ok(())), (ticket, Err(TaskFailure::NoRoom))]),
        Report::Stage { ticket, bytes: 10 },
        Report::Promoted {
            ticket,
            extent: extent(),
        },
        Report::PromotionFailed {
            ticket,
            failure: PromotionFailure::Corrupt,
        },
        Report::Dropped(vec![entry()]),
        Report::Lost(vec![entry()]),
        Report::Fenced(vec![extent()]),
        Report::Retired(vec![extent()]),
        Report::Holds {
            segment,
            entries: vec![published()],
            ahead: false,
        },
        Report::Disk(DiskState {
            node: NodeId(2),
            accepting: false,
            failing: false,
            capacity: 1 << 40,
            pressure: 4096,
        }),
        Report::Announce {
            segment,
            entries: vec![ReportedEntry {
                entry: entry(),
                bytes: 10,
                checksum: Checksum(7),
            }],
        },
        Report::Announced {
            segment,
            highest: Version(1 << 40),
        },
        Report::Holds {
            segment,
            entries: vec![published()],
            ahead: true,
        },
    ]
}

/// What earlier releases do not say, and pass over.
fn later_requests() -> Vec<Request> {
    vec![Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts: vec![PutDone {
            key: key("a"),
            version: Version(5),
            checksum: Checksum(7),
        }],
        hosts: Some(3),
    })]
}

/// What earlier releases do not say; they pass over the field, and are not sent the kind.
fn later_reports() -> Vec<Report> {
    let failing = Report::Disk(DiskState {
        node: NodeId(2),
        accepting: false,
        failing: true,
        capacity: 1 << 40,
        pressure: 4096,
    });
    vec![failing, Report::Emptying(vec![entry()])]
}

/// Each kind of message as hexadecimal digits, with its name.
fn lines<M: Message + Debug>(messages: &[M], out: &mut String) {
    for message in messages {
        let body = encode(message).unwrap();
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        let debug = format!("{message:?}");
        let name: String = debug.chars().take_while(|c| c.is_alphanumeric()).collect();
        let kind = std::any::type_name::<M>().rsplit("::").next().unwrap();
        writeln!(out, "{kind} {name} {hex}").unwrap();
    }
}

/// The default tenant was written as nothing, so that the removal of all its objects was read as the removal of the
/// objects of all tenants.
#[test]
fn the_default_tenant_is_not_all_tenants() {
    let remove = |tenant: Option<Tenant>| {
        let request = Request::RemoveAll(RemoveAll {
            tenant,
            force: true,
        });
        let body = encode(&request).unwrap();
        assert_eq!(decode::<Request>(&body), Ok(request));
        body
    };
    assert_ne!(remove(None), remove(Some(Tenant::DEFAULT)));
}

fn capability(nonce: u64) -> crate::data::Capability {
    use crate::data::{CapabilityKey, Grant, MacKind, Rights};
    let key = CapabilityKey::new(&[3; 32]).making(MacKind::HmacSha256);
    key.mint(&Grant {
        incarnation: Incarnation(2),
        region: 0,
        generation: 3,
        offset: 4096,
        bytes: 8192,
        rights: Rights::READ,
        tenant: 1,
        holder: Incarnation(0),
        expires_nanos: 9,
        nonce,
    })
}

fn asked() -> Vec<Asked> {
    let plain = Asked {
        epoch: Epoch(4),
        client: ClientId(u64::MAX),
        operation: OperationId(6),
        request: Request::Quotas,
        reads: FORMAT,
        trace: None,
    };
    let reads = LOOK_UPS;
    vec![plain.clone(), Asked { reads, ..plain }]
}

fn answered() -> Vec<Answered> {
    let found = replies().swap_remove(0);
    let capabilities = vec![capability(1), capability(2)];
    vec![
        Answered {
            epoch: Epoch(4),
            reply: found,
            capabilities,
        },
        Answered {
            epoch: Epoch(u64::MAX),
            reply: Reply::Failed(ErrorCode::StaleEpoch),
            capabilities: vec![],
        },
    ]
}

fn hellos() -> Vec<Hello> {
    let hello = Hello {
        epoch: Epoch(0),
        client: ClientId(7),
        host: None,
    };
    let host = Some("b".into());
    vec![hello.clone(), Hello { host, ..hello }]
}

fn welcomes() -> Vec<Welcome> {
    vec![Welcome {
        epoch: Epoch(1 << 41),
        nodes: vec![crate::data::Segment {
            name: "here".into(),
            incarnation: Incarnation(2),
            addresses: vec![([127, 0, 0, 1], 9000).into()],
            public_key: Some([5; 32]),
            host: Some(crate::data::HostContact {
                boot_id: "b".into(),
                pid: 7,
                socket: "s".into(),
            }),
        }],
        value_bytes_max: 1 << 30,
    }]
}

fn record_reads() -> Vec<ReadRecord> {
    vec![ReadRecord {
        epoch: Epoch(4),
        client: ClientId(7),
        entry: entry(),
        bytes: 65_536,
        checksum: Checksum(7),
        trace: None,
    }]
}

fn stagings() -> Vec<RecordStaged> {
    let staged = StagedRecord {
        generation: 9,
        offset: 1 << 30,
        node: NodeId(3),
        capability: capability(3),
    };
    [Ok(staged), Err(ErrorCode::TaskPendingLimitExceeded)]
        .map(|result| RecordStaged {
            epoch: Epoch(4),
            result,
        })
        .into()
}

fn releases() -> Vec<Release> {
    vec![Release {
        client: ClientId(7),
        generation: 9,
        node: NodeId(3),
        fetched: true,
    }]
}

/// The extents of a reply are what its capabilities are for, one each: a reader and a writer of the reply must agree on
/// their order.
#[test]
fn the_extents_of_a_reply_are_those_in_memory_in_its_order() {
    let at = |generation| ExtentRef {
        generation,
        ..extent()
    };
    let found = |generations: &[u64]| {
        let memory = generations.iter().map(|g| ReplicaAt::Memory(at(*g)));
        let disk = ReplicaAt::Disk {
            node: NodeId(1),
            segment: SegmentId(2),
        };
        Lookup::Found(Object {
            version: Version(5),
            bytes: 1,
            checksum: Checksum(7),
            replicas: [disk].into_iter().chain(memory).collect(),
            lease: Duration::ZERO,
            guard: None,
        })
    };
    let check = |reply: Reply, generations: &[u64]| {
        let uses = reply.extents();
        let found: Vec<u64> = uses.iter().map(|named| named.extent.generation).collect();
        assert_eq!(found, generations);
    };
    let lookups = vec![found(&[7, 3]), Lookup::Missing, found(&[]), found(&[5])];
    let reads = Reply::Get(lookups);
    let one = reads.extents()[0];
    assert_eq!((one.bytes, one.lease), (1, Some(Duration::ZERO)));
    check(reads, &[7, 3, 5]);
    let granted = |generations: &[u64]| PutStarted::Granted {
        version: Version(1),
        extents: generations.iter().map(|g| at(*g)).collect(),
    };
    let started = vec![granted(&[2, 9]), PutStarted::Exists, granted(&[4])];
    let writes = Reply::PutStart(started);
    assert_eq!(writes.extents()[0].bytes, extent().bytes);
    check(writes, &[2, 9, 4]);
    check(Reply::Done, &[]);
}

/// A master of before there were names answered without them: each replica was left out with its name.
#[test]
fn replicas_without_names_are_replicas() {
    // As such a master wrote it, without the field.
    let older = "0181a844657363726962658\
        9a36b6579c40161a674656e616e74a764656661756c74a776657273696f6e05a562797465730aa8636865636b73756d07a567726f7570c0\
        a370696ea448617264a56c6561736582a47365637300a56e616e6f7300a87265706c69636173919381a64d656d6f727985a77365676d656e\
        7401ab696e6361726e6174696f6e02a66f6666736574cd1000a56279746573cd2000aa67656e65726174696f6e03a8436f6d706c65746501";
    let body: Vec<u8> = (0..older.len() / 2)
        .map(|at| u8::from_str_radix(&older[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let Ok(Reply::Describe(mut found)) = decode::<Reply>(&body) else {
        panic!("no description");
    };
    let named = |found: &Description| -> Vec<(u32, String)> {
        let named = found.named();
        named.map(|(at, name)| (at.2, name.to_owned())).collect()
    };
    assert_eq!(named(&found), [(1, String::new())]);
    found
        .replicas
        .push((ReplicaAt::Memory(extent()), ReplicaState::Complete, 2));
    found.names = vec!["here".into()];
    assert_eq!(
        named(&found),
        [(1, "here".to_owned()), (2, String::new())],
        "the rest has none"
    );
}

/// A capability that lacks a byte, or bytes after the last one, are not taken for capabilities.
#[test]
fn capabilities_come_whole() {
    let mut answers = answered();
    let body = encode(&answers.remove(0)).unwrap();
    let bytes = 2 * crate::data::Capability::BYTES;
    let at = body
        .windows(2)
        .position(|head| head == [0xc4, bytes as u8])
        .unwrap();
    let mut short = body.clone();
    short[at + 1] -= 1;
    short.remove(at + 2);
    let error = decode::<Answered>(&short).unwrap_err().to_string();
    assert!(error.contains("capabilities of 88 bytes"), "{error}");
}

fn round_trips<M: Message + Debug + PartialEq>(messages: &[M]) {
    for message in messages {
        let body = encode(message).unwrap();
        assert_eq!(decode::<M>(&body).as_ref(), Ok(message));
        for end in 0..body.len() {
            assert!(
                decode::<M>(&body[..end]).is_err(),
                "{message:?} cut at {end}"
            );
        }
        let longer = [body.as_slice(), &[0xc0]].concat();
        assert_eq!(decode::<M>(&longer), Err(BodyError::Trailing));
    }
}

#[test]
fn messages_survive_and_nothing_shorter_or_longer_is_one() {
    round_trips(&requests());
    round_trips(&later_requests());
    round_trips(&replies());
    round_trips(&orders());
    round_trips(&reports());
    round_trips(&later_reports());
    round_trips(&asked());
    round_trips(&answered());
    round_trips(&hellos());
    round_trips(&welcomes());
    round_trips(&record_reads());
    round_trips(&stagings());
    round_trips(&releases());
}

/// The bytes of a release are read by the next one: a change here is a change of the format.
#[test]
fn the_bytes_of_every_kind_of_message_stay_as_they_are() {
    let mut found = String::new();
    lines(&requests(), &mut found);
    lines(&later_requests(), &mut found);
    lines(&replies(), &mut found);
    lines(&orders(), &mut found);
    lines(&reports(), &mut found);
    lines(&later_reports(), &mut found);
    lines(&asked(), &mut found);
    lines(&answered(), &mut found);
    lines(&hellos(), &mut found);
    lines(&welcomes(), &mut found);
    lines(&record_reads(), &mut found);
    lines(&stagings(), &mut found);
    lines(&releases(), &mut found);
    let golden = include_str!("golden.txt");
    for (found, golden) in found.lines().zip(golden.lines()) {
        assert_eq!(found, golden);
    }
    assert!(
        found.lines().count() == golden.lines().count(),
        "all kinds:\n{found}"
    );
}

#[derive(Serialize)]
struct LaterRemove {
    keys: Vec<Key>,
    colour: &'static str,
    nested: Vec<Vec<u8>>,
}

#[derive(Serialize)]
enum Later {
    Remove(LaterRemove),
    Paint(u32),
    Get(LaterGet),
}

fn body_of(message: &impl Serialize) -> Vec<u8> {
    [
        &[FORMAT],
        rmp_serde::to_vec_named(message).unwrap().as_slice(),
    ]
    .concat()
}

#[test]
fn other_releases_are_understood_or_refused() {
    let later = Later::Remove(LaterRemove {
        keys: vec![key("a")],
        colour: "blue",
        nested: vec![vec![1], vec![2]],
    });
    let expect = Request::Remove(Remove {
        tenant: Tenant::DEFAULT,
        keys: vec![key("a")],
        force: false,
    });
    assert_eq!(
        decode::<Request>(&body_of(&later)),
        Ok(expect),
        "unknown fields are skipped, and missing ones default"
    );
    let unknown = decode::<Request>(&body_of(&Later::Paint(3)));
    let Err(BodyError::Malformed { what }) = unknown else {
        panic!("{unknown:?}");
    };
    assert!(what.contains("Paint"), "{what}");
    let mut body = encode(&Request::Quotas).unwrap();
    body[0] = FORMAT + 1;
    let found = FORMAT + 1;
    assert_eq!(decode::<Request>(&body), Err(BodyError::Format { found }));
    assert_eq!(decode::<Request>(&[]), Err(BodyError::Empty));
    assert!(decode::<Reply>(&encode(&Request::Quotas).unwrap()).is_err());
}

/// A release without traces, which takes messages of one with them for its own.
#[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
struct EarlierAsked {
    epoch: Epoch,
    client: ClientId,
    operation: OperationId,
    request: Request,
}

#[test]
fn a_trace_travels_behind_what_earlier_releases_know_and_costs_nothing_where_there_is_none() {
    let plain = asked().swap_remove(0);
    let earlier = EarlierAsked {
        epoch: plain.epoch,
        client: plain.client,
        operation: plain.operation,
        request: plain.request.clone(),
    };
    assert_eq!(encode(&plain).unwrap(), body_of(&earlier));
    assert_eq!(decode::<Asked>(&body_of(&earlier)), Ok(plain.clone()));
    let trace = TraceContext::new(0xa1, 0xb2);
    let traced = Asked { trace, ..plain };
    let body = encode(&traced).unwrap();
    let known: EarlierAsked = rmp_serde::from_slice(&body[1..]).unwrap();
    assert_eq!(known, earlier);
    assert_eq!(decode::<Asked>(&body), Ok(traced));
    let field = [b"\xa5trace\xc4\x19".as_slice(), &trace.unwrap().to_bytes()].concat();
    assert!(body.ends_with(&field), "{body:02x?}");
    assert_eq!(body.len(), encode(&asked()[0]).unwrap().len() + field.len());
    let read = ReadRecord {
        trace,
        ..record_reads().swap_remove(0)
    };
    round_trips(&[read]);
}

/// A context comes from afar like all else: what is no context is passed over, and what is no bytes is no message.
#[test]
fn a_hostile_trace_is_none() {
    let of = |trace: &[u8]| {
        let mut body = encode(&asked()[0]).unwrap();
        body[1] += 1;
        body.extend(b"\xa5trace");
        body.extend(trace);
        decode::<Asked>(&body).map(|asked| asked.trace)
    };
    let context = TraceContext::new(1, 2).unwrap();
    assert_eq!(
        of(&[b"\xc4\x19".as_slice(), &context.to_bytes()].concat()),
        Ok(Some(context))
    );
    assert_eq!(of(&[b"\xc4\x19".as_slice(), &[0; 25]].concat()), Ok(None));
    assert_eq!(of(b"\xc4\x00"), Ok(None));
    assert_eq!(of(b"\xc0"), Ok(None));
    let long = [b"\xc6\x00\x01\x00\x00".as_slice(), &[1; 1 << 16]].concat();
    assert_eq!(of(&long), Ok(None));
    assert!(of(b"\xc4\x19short").is_err());
    assert!(of(b"\x07").is_err(), "a number");
    assert!(of(b"\x91\x01").is_err(), "a list");
}

#[derive(Serialize)]
struct LaterGet {
    keys: Vec<Key>,
    chain: LaterChain,
}

#[derive(Serialize)]
struct LaterChain {
    position: u32,
    expect: Option<&'static str>,
}

#[test]
fn an_expectation_is_left_out_where_there_is_none_and_later_words_count_as_none() {
    let get = |expect| {
        Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
            chain: Chain {
                position: 7,
                expect,
                ..Chain::default()
            },
            hold: Hold::default(),
            prefix_only: false,
        })
    };
    for (word, expect) in [
        (None, None),
        (Some("Continues"), Some(Expectation::Continues)),
        (Some("Ends"), Some(Expectation::Ends)),
        (Some("Branches"), None),
    ] {
        let sent = Later::Get(LaterGet {
            keys: vec![key("a")],
            chain: LaterChain {
                position: 7,
                expect: word,
            },
        });
        assert_eq!(decode(&body_of(&sent)), Ok(get(expect)), "{word:?}");
        let body = encode(&get(expect)).unwrap();
        assert_eq!(decode(&body), Ok(get(expect)), "{word:?}");
        let place = ChainPlace {
            expect,
            ..ChainPlace::default()
        };
        let placed = rmp_serde::to_vec_named(&place).unwrap();
        assert_eq!(rmp_serde::from_slice::<ChainPlace>(&placed).unwrap(), place);
        for bytes in [body, placed] {
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(text.contains("expect"), expect.is_some(), "{word:?}");
        }
    }
}

#[test]
fn what_no_honest_peer_sends_is_refused() {
    let check = |body: &[u8], expect: &str| {
        let error = decode::<Request>(body).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    let keys = |count: usize| {
        body_of(&Request::Exists(Exists {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a"); count].into(),
        }))
    };
    assert!(decode::<Request>(&keys(BATCH_KEYS_MAX)).is_ok());
    check(&keys(BATCH_KEYS_MAX + 1), "4096");
    // A list that announces four thousand million keys and has none.
    let mut claim = body_of(&Request::GetEnd(GetEnd { guards: vec![] }));
    assert_eq!(claim.pop(), Some(0x90));
    claim.extend([0xdd, 0xff, 0xff, 0xff, 0xff]);
    check(&claim, "");
    // Lists in lists in an unknown field.
    let mut deep = vec![FORMAT, 0x81, 0xa6];
    deep.extend(b"GetEnd");
    deep.extend([0x81, 0xa1, b'x']);
    deep.extend([0x91; 10_000]);
    check(&deep, "depth");
    let long = vec![FORMAT; REQUEST_BYTES_MAX + 1];
    check(&long, "over the limit");
    let name = "n".repeat(REQUEST_BYTES_MAX);
    let request = Request::RemoveMatching(RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: name,
        force: false,
    });
    assert!(matches!(encode(&request), Err(BodyError::TooLong { .. })));
}

proptest! {
    #[test]
    fn arbitrary_and_altered_bytes_are_harmless(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let _ = decode::<Request>(&noise);
        let _ = decode::<Report>(&noise);
        let alter = |mut body: Vec<u8>| {
            let at = at.index(body.len());
            body[at] = byte;
            body
        };
        // What is read from altered bytes is a message like any other.
        let request = alter(encode(which.get(&requests())).unwrap());
        if let Ok(request) = decode::<Request>(&request) {
            prop_assert_eq!(decode(&encode(&request).unwrap()), Ok(request));
        }
        let report = alter(encode(which.get(&reports())).unwrap());
        if let Ok(report) = decode::<Report>(&report) {
            prop_assert_eq!(decode(&encode(&report).unwrap()), Ok(report));
        }
        let reply = alter(encode(which.get(&replies())).unwrap());
        if let Ok(reply) = decode::<Reply>(&reply) {
            prop_assert_eq!(decode(&encode(&reply).unwrap()), Ok(reply));
        }
        let order = alter(encode(which.get(&orders())).unwrap());
        if let Ok(order) = decode::<Order>(&order) {
            prop_assert_eq!(decode(&encode(&order).unwrap()), Ok(order));
        }
    }
}

/// A master that leaves out what it does not know would acknowledge a put that one node alone has.
#[test]
fn a_put_that_needs_several_hosts_is_no_message_of_earlier_releases() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    enum OldDurability {
        Memory,
        Disk,
    }
    #[derive(Debug, serde::Deserialize)]
    struct OldConfig {
        replicas: u32,
        durability: OldDurability,
    }
    let old = |durability| {
        let config = PutConfig {
            replicas: 2,
            durability,
            ..PutConfig::default()
        };
        let bytes = rmp_serde::to_vec_named(&config).unwrap();
        assert_eq!(rmp_serde::from_slice::<PutConfig>(&bytes).unwrap(), config);
        rmp_serde::from_slice::<OldConfig>(&bytes)
    };
    for (durability, expected) in [
        (Durability::Memory, OldDurability::Memory),
        (Durability::Disk, OldDurability::Disk),
    ] {
        let read = old(durability).unwrap();
        assert_eq!((read.replicas, read.durability), (2, expected));
    }
    assert!(old(Durability::Replicated).is_err());
}

/// The end of a put is known to peers of both releases, whether its hosts are said or not.
#[test]
fn the_hosts_of_a_put_travel_behind_what_earlier_releases_know() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct OldEnd {
        tenant: Tenant,
        puts: Vec<PutDone>,
    }
    let Some(Request::PutEnd(end)) = later_requests().pop() else {
        panic!("it is the end of a put");
    };
    let old: OldEnd = rmp_serde::from_slice(&body_of(&end)[1..]).unwrap();
    assert_eq!((&old.tenant, &old.puts), (&end.tenant, &end.puts));
    let unsaid = PutEnd { hosts: None, ..end };
    assert_eq!(body_of(&unsaid), body_of(&old));
    let read: PutEnd = rmp_serde::from_slice(&body_of(&old)[1..]).unwrap();
    assert_eq!(read, unsaid);
}
