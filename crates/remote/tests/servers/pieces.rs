//! Questions about so many keys that they are asked in pieces, the next one ahead: each piece ends by itself.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_mq::{Call, Deferred};
use slackwater_net::Endpoint;
use slackwater_remote::{CallOptions, Cancel, Client, ClientError};
use slackwater_trace::{FinishedSpan, Sink, export_to, within};
use slackwater_wire::limits::KEY_BYTES_MAX;
use slackwater_wire::{
    Answered, Asked, Epoch, ErrorCode, KeyList, OperationId, Reply, Request, Tenant, TraceContext,
    Traceparent, body,
};

use super::{LONG, builder_of, connect, listen_at, reply, server, within as within_time};

/// Keys of one piece.
const PIECE: usize = 2_048;

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("k{number}")).collect()
}

fn bytes(keys: &[String]) -> Vec<&[u8]> {
    keys.iter().map(String::as_bytes).collect()
}

/// What is there: the keys of every other piece, so that no piece has the answer of its neighbour.
fn is_there(number: usize) -> bool {
    (number / PIECE).is_multiple_of(2)
}

fn found(keys: &KeyList) -> Reply {
    let number = |key: &[u8]| std::str::from_utf8(&key[1..]).unwrap().parse();
    let is_there = |key: &[u8]| number(key).is_ok_and(is_there);
    Reply::Exists(keys.iter().map(is_there).collect())
}

fn expected(count: usize) -> Vec<bool> {
    (0..count).map(is_there).collect()
}

fn asked_for(asked: Asked) -> (OperationId, Tenant, KeyList) {
    match asked.request {
        Request::Exists(exists) => (asked.operation, exists.tenant, exists.keys),
        other => panic!("another request: {other:?}"),
    }
}

/// A piece whose answer is owed.
struct Owed {
    operation: OperationId,
    keys: KeyList,
    call: Deferred,
}

impl Owed {
    fn answer(self, reply: Reply) {
        let answered = Answered {
            epoch: Epoch(5),
            reply,
            capabilities: Vec::new(),
        };
        self.call.reply([body::encode(&answered).unwrap()]);
    }
}

/// Keeps the answers back, and says what was asked.
fn owing(told: Sender<Owed>) -> impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static {
    move |call, asked, _| {
        let (operation, _, keys) = asked_for(asked);
        let call = call.defer().unwrap();
        // The test may have seen enough.
        let _ = told.send(Owed {
            operation,
            keys,
            call,
        });
    }
}

fn next(heard: &Receiver<Owed>) -> Owed {
    heard.recv_timeout(LONG).expect("a piece is asked for")
}

type Exists = Result<Vec<bool>, ClientError>;

/// Asks for so many keys on a thread.
fn asking(client: &Client, count: usize, options: CallOptions) -> JoinHandle<Exists> {
    let client = client.clone();
    std::thread::spawn(move || client.exists(&bytes(&keys(count)), &options))
}

fn cancelled_by(cancel: &Cancel) -> CallOptions {
    CallOptions {
        cancel: Some(cancel.clone()),
        ..within_time(LONG)
    }
}

const CANCELLED: Exists = Err(ClientError::Cancelled { what: "exists" });

/// A name of this test that no other test process has. A server may listen there again.
fn named(test: &str) -> Endpoint {
    Endpoint::Unix(format!("@slackwater-test-{test}-{}", std::process::id()).into())
}

/// The pieces before that of a bad key had been asked for.
#[test]
fn a_key_that_is_none_is_found_before_anything_is_asked() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let (_, _, keys) = asked_for(asked);
        reply(call, 5, found(&keys));
        told.send(keys).unwrap();
    });
    let client = connect(address).unwrap();
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let many = keys(3 * PIECE);
    for wrong in [&b""[..], &long] {
        for at in [0, PIECE, 3 * PIECE - 1] {
            let mut keys = bytes(&many);
            keys[at] = wrong;
            let refused = client.exists(&keys, &within_time(LONG));
            assert!(matches!(refused, Err(ClientError::Key(_))), "{at}");
        }
    }
    // What was sent is heard before this.
    assert_eq!(client.exists(&[b"k0"], &within_time(LONG)), Ok(vec![true]));
    assert_eq!(heard.try_iter().count(), 1);
}

#[test]
fn answers_that_come_out_of_order_go_to_their_own_keys() {
    const COUNT: usize = 4 * PIECE;
    let (told, heard) = channel();
    let (_server, address) = server(owing(told));
    let client = connect(address).unwrap();
    let asking = asking(&client, COUNT, within_time(LONG));
    for _ in 0..2 {
        let pair = [next(&heard), next(&heard)];
        for owed in pair.into_iter().rev() {
            let reply = found(&owed.keys);
            owed.answer(reply);
        }
    }
    assert_eq!(asking.join().unwrap(), Ok(expected(COUNT)));
}

#[test]
fn pieces_under_way_on_a_lost_link_are_asked_again_under_their_numbers() {
    const PIECES: usize = 4;
    let endpoint = named("pieces-again");
    let (told, heard) = channel();
    let (first, address) = listen_at(builder_of(Vec::new(), owing(told)), &endpoint);
    let client = connect(address).unwrap();
    let asking = asking(&client, PIECES * PIECE, within_time(LONG));
    let lost = [next(&heard), next(&heard)];
    first.stop();
    let (told, heard) = channel();
    let answer = move |call: &Call<'_>, asked: Asked, _| {
        let (operation, _, keys) = asked_for(asked);
        told.send(operation).unwrap();
        reply(call, 5, found(&keys));
    };
    let _second = listen_at(builder_of(Vec::new(), answer), &endpoint);
    assert_eq!(asking.join().unwrap(), Ok(expected(PIECES * PIECE)));
    let asked: BTreeSet<OperationId> = heard.try_iter().collect();
    assert_eq!(asked.len(), PIECES, "{asked:?}");
    for owed in lost {
        assert!(asked.contains(&owed.operation), "{asked:?}");
    }
}

/// What waited for a lost link was sent when the link was back, though its call had been cancelled.
#[test]
fn pieces_of_a_cancelled_call_are_not_asked_when_a_lost_link_is_back() {
    let endpoint = named("pieces-cancelled");
    let (told, heard) = channel();
    let (first, address) = listen_at(builder_of(Vec::new(), owing(told)), &endpoint);
    let client = connect(address).unwrap();
    let cancel = Cancel::new();
    let asking = asking(&client, 2 * PIECE, cancelled_by(&cancel));
    let lost = [next(&heard), next(&heard)];
    first.stop();
    // The pieces wait for the link by then, as this does.
    let late = client.exists(&[b"late"], &within_time(Duration::from_millis(300)));
    assert!(matches!(late, Err(ClientError::Deadline { .. })));
    cancel.cancel();
    assert_eq!(asking.join().unwrap(), CANCELLED);
    let (told, heard) = channel();
    let answer = move |call: &Call<'_>, asked: Asked, _| {
        let (_, _, keys) = asked_for(asked);
        told.send(keys.len()).unwrap();
        reply(call, 5, found(&keys));
    };
    let _second = listen_at(builder_of(Vec::new(), answer), &endpoint);
    assert_eq!(client.exists(&[b"k0"], &within_time(LONG)), Ok(vec![true]));
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1]);
    drop(lost);
}

#[test]
fn the_last_piece_alone_may_be_refused_late_or_cancelled() {
    const COUNT: usize = 2 * PIECE + 1;
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let (_, tenant, keys) = asked_for(asked);
        match (keys.len(), tenant.name()) {
            (PIECE, _) => reply(call, 5, found(&keys)),
            (_, "refused") => reply(call, 5, Reply::Failed(ErrorCode::TenantNotPermitted)),
            _ => told.send(call.defer().unwrap()).unwrap(),
        }
    });
    let client = connect(address).unwrap();
    let options = CallOptions {
        tenant: Tenant::new("refused").unwrap(),
        ..within_time(LONG)
    };
    let refused = asking(&client, COUNT, options).join().unwrap();
    assert_eq!(refused.unwrap_err().code(), ErrorCode::TenantNotPermitted);
    let mut deadline = Duration::from_millis(50);
    let unanswered = loop {
        let options = within_time(deadline);
        let late = asking(&client, COUNT, options).join().unwrap();
        assert!(matches!(late, Err(ClientError::Deadline { .. })));
        match heard.try_recv() {
            Ok(unanswered) => break unanswered,
            // The pieces before took all the time.
            Err(_) => deadline *= 2,
        }
    };
    let _late: Vec<Deferred> = heard.try_iter().collect();
    let cancel = Cancel::new();
    let asking = asking(&client, COUNT, cancelled_by(&cancel));
    let waiting = heard.recv_timeout(LONG).unwrap();
    cancel.cancel();
    assert_eq!(asking.join().unwrap(), CANCELLED);
    drop((unanswered, waiting));
}

struct Spans(Sender<FinishedSpan>);

impl Sink for Spans {
    fn export(&mut self, spans: Vec<FinishedSpan>) -> Result<(), String> {
        for span in spans {
            self.0.send(span).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// A piece that was asked for ahead and whose answer nobody waited for any more was a success in traces.
#[test]
fn the_span_of_a_piece_says_why_its_answer_was_not_heard() {
    let (told, heard) = channel();
    let (_server, address) = server(owing(told));
    let client = connect(address).unwrap();
    let (sender, spans) = channel();
    // No call of another test begins a trace.
    let exporter = export_to(Spans(sender), 0.0).unwrap();
    let traced = |trace: u128, options: CallOptions| {
        let client = client.clone();
        let parent = Traceparent(TraceContext::new(trace, 1));
        std::thread::spawn(move || {
            let many = keys(2 * PIECE);
            within(parent, || client.exists(&bytes(&many), &options))
        })
    };
    let good = traced(1, within_time(LONG));
    for _ in 0..2 {
        let owed = next(&heard);
        let reply = found(&owed.keys);
        owed.answer(reply);
    }
    assert_eq!(good.join().unwrap(), Ok(expected(2 * PIECE)));
    let refused = traced(2, within_time(LONG));
    let [first, second] = [next(&heard), next(&heard)];
    first.answer(Reply::Failed(ErrorCode::TenantNotPermitted));
    let code = refused.join().unwrap().unwrap_err().code();
    assert_eq!(code, ErrorCode::TenantNotPermitted);
    let cancel = Cancel::new();
    let cancelled = traced(3, cancelled_by(&cancel));
    let waiting = [next(&heard), next(&heard)];
    cancel.cancel();
    assert_eq!(cancelled.join().unwrap(), CANCELLED);
    drop((second, waiting, exporter));
    let spans: Vec<FinishedSpan> = spans.try_iter().collect();
    let failures = |trace: u128| {
        let of = TraceContext::new(trace, 1).unwrap().trace;
        let of_piece =
            |span: &&FinishedSpan| span.name == "slackwater.request" && span.context.trace == of;
        let pieces = spans.iter().filter(of_piece);
        let failures = pieces.map(|span| span.failure.as_deref());
        failures.collect::<Vec<_>>()
    };
    let unheard = Some("the call ended before the answer");
    assert_eq!(failures(1), [None, None]);
    assert_eq!(failures(2), [None, unheard]);
    assert_eq!(failures(3), [Some("cancelled"); 2]);
}
