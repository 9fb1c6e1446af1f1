//! A client and the servers that it may meet: those that are too old, silent for a while, or none at all.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod nodes;
mod pieces;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use slackwater_mq::{
    Access, Address, Admission, Builder, Call, Category, Deferred, Level, ListenOptions, Options,
    Refusal, Run, Running,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_remote::{
    CallOptions, Cancel, Client, ClientError, ConnectError, ConnectOptions, GetOptions, PutOptions,
};
use slackwater_transfer::{Capability, Segment};
use slackwater_wire::body;
use slackwater_wire::{
    Answered, Asked, Epoch, ErrorCode, ExtentRef, Incarnation, Key, KeyList, OperationId,
    PutStarted, QuotaState, Reply, Request, SegmentId, Tenant, Version, Welcome,
};

const LONG: Duration = Duration::from_secs(20);

/// A server of epoch 5 whose requests `answer` gets, with how many came before.
fn server(answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static) -> (Running, Address) {
    server_of(Vec::new(), answer)
}

fn server_of(
    nodes: Vec<Segment>,
    answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static,
) -> (Running, Address) {
    listen(builder_of(nodes, answer))
}

fn builder_of(
    nodes: Vec<Segment>,
    answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static,
) -> Builder {
    limited_by([64 << 20].into(), nodes, answer)
}

/// The same with the longest values that each hello is told of, the last for good.
fn limited_by(
    limits: Vec<u64>,
    nodes: Vec<Segment>,
    answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static,
) -> Builder {
    let hellos = AtomicU64::new(0);
    let mut builder = Builder::new(Options::default());
    let category = Category {
        access: Access {
            level: Level::Basic,
            ..Access::default()
        },
        // As at a master, so that the requests of a client are answered in the order in which they were sent.
        run: Run::Inline,
        ..Category::default()
    };
    let count = AtomicU64::new(0);
    builder.category("pool", category).unwrap();
    builder
        .request_command("pool.hello", move |call| {
            let before = hellos.fetch_add(1, Ordering::SeqCst) as usize;
            let welcome = Welcome {
                epoch: Epoch(5),
                nodes: nodes.clone(),
                value_bytes_max: limits[before.min(limits.len() - 1)],
            };
            call.reply([body::encode(&welcome).unwrap()]).unwrap();
        })
        .unwrap();
    builder
        .request_command("pool.request", move |call| {
            let asked = body::decode(call.part(0).unwrap()).unwrap();
            answer(call, asked, count.fetch_add(1, Ordering::SeqCst));
        })
        .unwrap();
    builder
}

fn listen(builder: Builder) -> (Running, Address) {
    listen_at(builder, &Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
}

fn listen_at(builder: Builder, endpoint: &Endpoint) -> (Running, Address) {
    let running = builder.start().unwrap();
    let options = ListenOptions {
        admission: Admission::Everybody(Level::Admin),
        encrypted: false,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    };
    let endpoint = running.listen(endpoint, &options).unwrap();
    (running, Address::of(&endpoint, None))
}

fn connect(address: Address) -> Result<Client, ConnectError> {
    connect_by(false, address)
}

fn connect_by(force_tcp: bool, address: Address) -> Result<Client, ConnectError> {
    Client::connect(&ConnectOptions {
        address,
        force_tcp,
        connect_timeout: LONG,
        deadline: LONG,
        ..ConnectOptions::default()
    })
}

fn reply(call: &Call<'_>, epoch: u64, reply: Reply) {
    reply_with(call, epoch, reply, Vec::new());
}

fn reply_with(call: &Call<'_>, epoch: u64, reply: Reply, capabilities: Vec<Capability>) {
    let answered = Answered {
        epoch: Epoch(epoch),
        reply,
        capabilities,
    };
    call.reply([body::encode(&answered).unwrap()]).unwrap();
}

fn within(deadline: Duration) -> CallOptions {
    CallOptions {
        deadline: Some(deadline),
        ..CallOptions::default()
    }
}

#[test]
fn an_answer_of_an_earlier_master_does_not_count() {
    let (_server, address) = server(|call, _, before| {
        let epoch = if before < 2 { 4 } else { 5 };
        reply(call, epoch, Reply::Exists(vec![epoch == 5]));
    });
    let client = connect(address).unwrap();
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    let (_stale, address) = server(|call, _, _| reply(call, 4, Reply::Exists(vec![true])));
    let client = connect(address).unwrap();
    // A repeat that is under way at the end has no answer yet, which is the later reason.
    let told = || {
        let late = client.exists(&[b"k"], &within(Duration::from_millis(200)));
        late.unwrap_err().to_string()
    };
    assert!((0..50).any(|_| told().contains("earlier epoch")));
}

#[test]
fn an_operation_that_was_not_answered_is_repeated_under_its_number() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, before| {
        told.send((asked.client, asked.operation)).unwrap();
        match before {
            // The handler fails, and the next one is too busy.
            0 => call.refuse(Refusal::Failed).unwrap(),
            1 => call.refuse(Refusal::Busy).unwrap(),
            _ => reply(call, 5, Reply::Exists(vec![true])),
        }
    });
    let client = connect(address).unwrap();
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    let asked: Vec<_> = heard.try_iter().collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|one| *one == asked[0]), "{asked:?}");
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    assert_ne!(heard.recv().unwrap(), asked[0], "another operation");
}

fn first(keys: &KeyList) -> &[u8] {
    keys.iter().next().expect("nobody asks about no keys")
}

fn is_even(key: &[u8]) -> bool {
    key.last().is_some_and(|byte| byte % 2 == 0)
}

/// Ten thousand keys took as long as the client needs for all questions and the master for all answers, one after the other.
#[test]
fn a_piece_of_many_keys_is_asked_while_the_one_before_is_looked_at() {
    asked_one_ahead(5_000, Duration::ZERO);
}

/// Each piece had until two seconds after the call began for its answer: those after that were asked one by one.
#[test]
fn a_piece_that_is_sent_late_is_sent_ahead_too() {
    asked_one_ahead(14_000, Duration::from_millis(400));
}

/// Asks a server that keeps each answer back for so long, and until the next question is there.
fn asked_one_ahead(count: usize, pause: Duration) {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let Request::Exists(exists) = asked.request else {
            panic!("another request");
        };
        told.send((call.defer().unwrap(), exists.keys)).unwrap();
    });
    let client = connect(address).unwrap();
    let keys: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let answering = std::thread::spawn(move || {
        let (mut before, mut seen) = (None, 0);
        while seen < count {
            let (call, keys): (Deferred, KeyList) = heard.recv_timeout(LONG).unwrap();
            seen += keys.len();
            if let Some((call, keys)) = before.replace((call, keys)) {
                std::thread::sleep(pause);
                answer_later(call, &keys);
            }
        }
        let (last, keys) = before.unwrap();
        answer_later(last, &keys);
        assert_eq!(seen, count, "nothing is asked twice");
    });
    let found = client.exists(&keys, &within(LONG));
    let expected = (0..count).map(|number| number % 2 == 0).collect();
    assert_eq!(found, Ok(expected));
    answering.join().unwrap();
}

fn answer_later(call: Deferred, keys: &KeyList) {
    let answered = Answered {
        epoch: Epoch(5),
        reply: Reply::Exists(keys.iter().map(is_even).collect()),
        capabilities: Vec::new(),
    };
    call.reply([body::encode(&answered).unwrap()]);
}

/// Each piece is a call of its own, which is repeated, refused, late or cancelled by itself.
#[test]
fn a_piece_of_many_keys_that_is_not_answered_is_asked_again() {
    let keys: Vec<String> = (0..9_000).map(|number| format!("k{number}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, before| {
        let Request::Exists(exists) = asked.request else {
            panic!("another request");
        };
        told.send((asked.operation, first(&exists.keys).to_vec()))
            .unwrap();
        match before {
            1 => call.refuse(Refusal::Busy).unwrap(),
            2 => reply(call, 5, Reply::Failed(ErrorCode::ReplicaIsNotReady)),
            _ => reply(
                call,
                5,
                Reply::Exists(exists.keys.iter().map(is_even).collect()),
            ),
        }
    });
    let client = connect(address).unwrap();
    let expected = (0..9_000).map(|number| number % 2 == 0).collect();
    assert_eq!(client.exists(&keys, &within(LONG)), Ok(expected));
    let mut asked: Vec<_> = heard.try_iter().collect();
    let pieces = 9_000usize.div_ceil(2_048);
    assert_eq!(asked.len(), pieces + 2);
    asked.sort_by(|one, other| one.1.cmp(&other.1));
    let numbers = |piece: usize| {
        let first = keys[piece * 2_048];
        let of_piece = asked.iter().filter(|(_, key)| key == first);
        of_piece.map(|(number, _)| *number).collect::<Vec<_>>()
    };
    let [first, busy, refused] = [0, 1, 2].map(numbers);
    assert_eq!(first.len(), 1);
    assert!(
        busy.len() == 2 && busy[0] == busy[1],
        "repeated under its number: {busy:?}"
    );
    assert!(
        refused.len() == 2 && refused[0] != refused[1],
        "another operation: {refused:?}"
    );
    let wrong = [&keys[..3_000], &[b""]].concat();
    assert!(matches!(
        client.exists(&wrong, &within(LONG)),
        Err(ClientError::Key(_))
    ));
}

/// A list of another length than that of the keys was returned as it came, and told each key what was true of another one.
#[test]
fn an_answer_of_another_length_is_refused() {
    for (keys, answered) in [(1, 0), (2, 3), (5_000, 2_047), (5_000, 2_049)] {
        let (_server, address) = server(move |call, _, _| {
            reply(call, 5, Reply::Exists(vec![true; answered]));
        });
        let client = connect(address).unwrap();
        let found = client.exists(&vec![b"k".as_slice(); keys], &within(LONG));
        let code = found.unwrap_err().code();
        assert_eq!(code, ErrorCode::InternalError, "{keys} keys");
    }
}

/// A call of no keys asked the master.
#[test]
fn nothing_is_asked_of_no_keys() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, _, _| {
        told.send(()).unwrap();
        reply(call, 5, Reply::Exists(Vec::new()));
    });
    let client = connect(address).unwrap();
    assert_eq!(client.exists(&[], &within(LONG)), Ok(Vec::new()));
    assert_eq!(heard.try_iter().count(), 0);
}

/// Answers that came while the next question was written down let a cancelled call go on to its end.
#[test]
fn a_cancellation_ends_many_questions_though_each_is_answered_at_once() {
    let cancel = Cancel::new();
    let (told, heard) = channel();
    let (cancelled, piece) = (cancel.clone(), 2_048);
    let (_server, address) = server(move |call, asked, before| {
        let Request::Exists(exists) = asked.request else {
            panic!("another request");
        };
        // Before the answer, so that the caller who has it knows of the cancellation.
        if before == 2 {
            cancelled.cancel();
        }
        told.send(first(&exists.keys).to_vec()).unwrap();
        reply(call, 5, Reply::Exists(vec![true; exists.keys.len()]));
    });
    let client = connect(address).unwrap();
    let options = CallOptions {
        cancel: Some(cancel),
        ..within(LONG)
    };
    let what = "exists";
    for (key, most) in [("first", 4), ("later", 0)] {
        let keys = vec![key.as_bytes(); 50 * piece];
        let is_cancelled = Err(ClientError::Cancelled { what });
        assert_eq!(client.exists(&keys, &options), is_cancelled);
        // What was sent is heard before this.
        assert_eq!(client.exists(&[b"last"], &within(LONG)), Ok(vec![true]));
        // The third one cancelled; the fourth may have been sent before.
        let sent = heard.try_iter().filter(|asked| asked == key.as_bytes());
        let sent = sent.count();
        assert!(sent <= most, "{key}: {sent}");
    }
}

#[test]
fn many_keys_end_with_their_deadline_a_refusal_and_a_cancellation() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let Request::Exists(exists) = asked.request else {
            panic!("another request");
        };
        match exists.tenant.name() {
            "refused" => reply(call, 5, Reply::Failed(ErrorCode::TenantNotPermitted)),
            _ => told.send(call.defer().unwrap()).unwrap(),
        }
    });
    let client = connect(address).unwrap();
    let keys = vec![b"k".as_slice(); 5_000];
    let late = client
        .exists(&keys, &within(Duration::from_millis(60)))
        .unwrap_err();
    assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    let options = CallOptions {
        tenant: Tenant::new("refused").unwrap(),
        ..within(LONG)
    };
    let refused = client.exists(&keys, &options).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TenantNotPermitted);
    let kept: Vec<Deferred> = heard.try_iter().collect();
    assert!(!kept.is_empty());
    let cancel = Cancel::new();
    let options = CallOptions {
        cancel: Some(cancel.clone()),
        ..within(LONG)
    };
    let asking = std::thread::spawn(move || client.exists(&keys, &options));
    let waiting = heard.recv_timeout(LONG).unwrap();
    let cancelled = Instant::now();
    cancel.cancel();
    let what = "exists";
    assert_eq!(asking.join().unwrap(), Err(ClientError::Cancelled { what }));
    let took = cancelled.elapsed();
    assert!(
        took < Duration::from_millis(1_500),
        "after {took:?}, as without an answer"
    );
    drop((kept, waiting));
}

fn granted() -> Reply {
    let extent = ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(2),
        offset: 0,
        bytes: 4096,
        generation: 3,
    };
    Reply::PutStart(vec![PutStarted::Granted {
        version: Version(7),
        extents: vec![extent],
    }])
}

fn next_revocation(heard: &Receiver<Request>) -> Request {
    let is_revocation =
        |request: &Request| matches!(request, Request::PutRevoke { .. } | Request::Revoke { .. });
    loop {
        let request = heard.recv_timeout(LONG).unwrap();
        if is_revocation(&request) {
            return request;
        }
    }
}

/// A grant without the right to write is none: the put fails, and its room is given back until the server has said that
/// it has it.
#[test]
fn what_is_not_used_is_given_back_until_the_server_has_it() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, before| {
        told.send(asked.request.clone()).unwrap();
        match asked.request {
            Request::PutStart(_) => reply(call, 5, granted()),
            _ if before < 3 => call.refuse(Refusal::Busy).unwrap(),
            _ => reply(call, 5, Reply::Done),
        }
    });
    let client = connect(address).unwrap();
    let put = client.put(b"k", b"value", &PutOptions::default());
    assert_eq!(put.unwrap_err().code(), ErrorCode::InvalidWrite);
    let revoked = Request::PutRevoke {
        tenant: Default::default(),
        puts: vec![(Key::try_from("k").unwrap(), Version(7))],
    };
    for _ in 0..3 {
        assert_eq!(next_revocation(&heard), revoked);
    }
}

/// Its answer may come after the end of the call, and grants nothing then.
#[test]
fn an_unanswered_put_is_revoked_when_its_caller_gives_up() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let silent = matches!(asked.request, Request::PutStart(_));
        told.send((asked.operation, asked.request)).unwrap();
        if !silent {
            reply(call, 5, Reply::Done);
        }
    });
    let client = connect(address).unwrap();
    let cancel = Cancel::new();
    let options = PutOptions {
        call: CallOptions {
            cancel: Some(cancel.clone()),
            ..CallOptions::default()
        },
        ..PutOptions::default()
    };
    let writer = std::thread::spawn(move || client.put(b"k", b"value", &options));
    let (operation, _) = heard.recv_timeout(LONG).unwrap();
    cancel.cancel();
    let ended = writer.join().unwrap();
    assert_eq!(ended, Err(ClientError::Cancelled { what: "a put" }));
    let (other, revoked) = heard.recv_timeout(LONG).unwrap();
    assert_eq!(revoked, Request::Revoke { operation });
    assert!(other > operation && other < OperationId(1 << 62));
}

/// The reason of an earlier call was given for a later one.
#[test]
fn a_call_that_is_late_says_what_it_waited_for_itself() {
    let (unanswered, kept) = channel();
    let (_server, address) = server(move |call, asked, _| match asked.request {
        Request::Exists(exists) if first(&exists.keys) == b"busy" => {
            reply(call, 5, Reply::Failed(ErrorCode::ReplicaIsNotReady));
        }
        _ => unanswered.send(call.defer().unwrap()).unwrap(),
    });
    let client = connect(address).unwrap();
    let reason = |key: &[u8]| {
        let late = client.exists(&[key], &within(Duration::from_millis(60)));
        match late.unwrap_err() {
            ClientError::Deadline { after, reason, .. } => {
                assert!(after <= Duration::from_millis(60), "{after:?}");
                reason
            }
            other => other.to_string(),
        }
    };
    assert_eq!(reason(b"slow"), "no answer came");
    // A repeat that is under way at the end has no answer yet, which is the later reason.
    let busy = ErrorCode::ReplicaIsNotReady.to_string();
    assert!((0..50).any(|_| reason(b"busy") == busy));
    assert_eq!(reason(b"slow"), "no answer came");
    drop(kept);
}

#[test]
fn a_refusal_of_the_server_is_the_error_of_the_call() {
    let (_server, address) = server(|call, _, _| {
        reply(call, 5, Reply::Failed(ErrorCode::TenantNotPermitted));
    });
    let client = connect(address).unwrap();
    let check = |error: ClientError| assert_eq!(error.code(), ErrorCode::TenantNotPermitted);
    check(client.exists(&[b"k"], &within(LONG)).unwrap_err());
    check(client.get(b"k", &GetOptions::default()).unwrap_err());
    check(client.put(b"k", b"v", &PutOptions::default()).unwrap_err());
    check(client.stat(b"k", &within(LONG)).unwrap_err());
    check(client.view(b"k", &GetOptions::default()).unwrap_err());
    check(client.set_quota(1, 1, &within(LONG)).unwrap_err());
    check(client.delete_quota(&within(LONG)).unwrap_err());
    check(client.quotas(&within(LONG)).unwrap_err());
    let removed = client.remove(&[b"k"], &Default::default()).remove(0);
    check(removed.unwrap_err());
    let empty = client.get(b"", &GetOptions::default()).unwrap_err();
    assert_eq!(empty.code(), ErrorCode::InvalidKey);
}

#[test]
fn quotas_are_of_the_tenant_that_the_options_name() {
    let (told, heard) = channel();
    let state = || QuotaState {
        tenant: Tenant::new("acme").unwrap(),
        memory_quota: Some(7),
        disk_quota: Some(8),
        memory_bytes: 1,
        disk_bytes: 2,
        objects: 3,
    };
    let (_server, address) = server(move |call, asked, _| {
        let answer = match &asked.request {
            Request::Quotas => Reply::Quotas(vec![state()]),
            _ => Reply::Done,
        };
        told.send(asked.request).unwrap();
        reply(call, 5, answer);
    });
    let client = connect(address).unwrap();
    let tenant = Tenant::new("acme").unwrap();
    let of = CallOptions {
        tenant: tenant.clone(),
        ..within(LONG)
    };
    assert_eq!(client.set_quota(7, 8, &of), Ok(()));
    assert_eq!(client.quotas(&of), Ok(vec![state()]));
    assert_eq!(client.delete_quota(&of), Ok(()));
    let asked: Vec<Request> = heard.try_iter().collect();
    let set = Request::SetQuota {
        tenant: tenant.clone(),
        memory_bytes: 7,
        disk_bytes: 8,
    };
    let expected = [set, Request::Quotas, Request::DeleteQuota { tenant }];
    assert_eq!(asked, expected);
}

#[test]
fn what_answers_and_is_no_server_is_named() {
    let (_other, address) = listen(Builder::new(Options::default()));
    let told = connect(address.clone()).unwrap_err().to_string();
    assert!(
        told.contains("is no server that this release understands"),
        "{told}"
    );
    let mut builder = Builder::new(Options::default());
    builder.category("pool", Category::default()).unwrap();
    let garbled = |call: &Call<'_>| call.reply([[9u8, 9]]).unwrap();
    builder.request_command("pool.hello", garbled).unwrap();
    let (_later, address) = listen(builder);
    let told = connect(address).unwrap_err().to_string();
    assert!(told.contains("format 9"), "{told}");
}
