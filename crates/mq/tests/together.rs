//! Requests that are carried out together with what else has come.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::*;
use slackwater_mq::*;
use slackwater_net::Endpoint;

/// A server whose `quick.together` notes the bodies that it got at once, and answers each, and whose `quick.alone` notes its own.
/// `quick.hold` holds the loop until it is released.
struct Server {
    mq: Running,
    notes: Receiver<Vec<String>>,
    begun: Receiver<()>,
    release: Sender<()>,
}

type Answered = Result<Vec<u8>, RequestError>;

fn server() -> Server {
    let mut builder = server_builder(options(1));
    let ((note, notes), (began, begun), (release, held)) = (channel(), channel(), channel());
    let held = Mutex::new(held);
    let said = |call: &Call<'_>| {
        let body = call.part(0).unwrap_or_default();
        String::from_utf8_lossy(&body[..body.len().min(8)]).into_owned()
    };
    let (together, alone, down) = (note.clone(), note.clone(), note);
    builder
        .request_command_together("quick.together", move |calls| {
            let ended = calls[0].mq().metrics().links_down.get();
            let ended = (ended > 0).then(|| "after the end".to_owned());
            let said = calls.iter().map(said).chain(ended);
            together.send(said.collect()).expect("the test listens");
            let panics = calls.iter().any(|call| call.part(0) == Some(b"panic"));
            assert!(!panics, "on purpose");
            for call in calls {
                call.reply(call.parts()).expect("a request");
            }
        })
        .expect("a name")
        .request_command("quick.alone", move |call| {
            alone
                .send(vec![said(call), "alone".to_owned()])
                .expect("the test listens");
            call.reply(call.parts()).expect("a request");
        })
        .expect("a name")
        .request_command("quick.hold", move |call| {
            began.send(()).expect("the other side listens");
            held.lock()
                .expect("no test panics with it")
                .recv()
                .expect("the test releases it");
            call.reply(call.parts()).expect("a request");
        })
        .expect("a name")
        .on_link(move |event| {
            if let LinkEvent::Down { .. } = event {
                // The test may have ended.
                let _ = down.send(vec!["down".to_owned()]);
            }
        });
    Server {
        mq: builder.start().expect("a message layer"),
        notes,
        begun,
        release,
    }
}

/// Returns when a client has written all that it was given.
fn written(client: &Mq) {
    // Its loop looks at its books behind what it was given before, and the second time behind what it has written of that.
    for _ in 0..2 {
        let _ = client.books();
    }
}

/// What `server` carries out together of `requests`, which come while it holds its loop, and how each of them ends.
fn carried_out(server: &Server, requests: &[(&str, Vec<u8>)]) -> (Vec<Vec<String>>, Vec<Answered>) {
    let client = client(2);
    let to = connect(&client, &listen(&server.mq, &everybody(false)));
    let (told, outcomes) = channel();
    let ask = |at: usize, command: &str, body: &[u8]| {
        let told = told.clone();
        let options = RequestOptions {
            timeout: Some(LONG),
            ..RequestOptions::default()
        };
        client.request(to, command, [body], &options, move |outcome| {
            let body = outcome.map(|answer| answer.part(0).unwrap_or_default().to_vec());
            told.send((at, body)).expect("the test listens");
        });
    };
    ask(requests.len(), "quick.hold", b"");
    next(&server.begun, "the loop is held");
    for (at, (command, body)) in requests.iter().enumerate() {
        ask(at, command, body);
    }
    written(&client);
    server.release.send(()).expect("the other side listens");
    let mut ends: Vec<_> = (0..=requests.len())
        .map(|_| next(&outcomes, "an answer"))
        .collect();
    ends.sort_by_key(|(at, _)| *at);
    ends.pop();
    let notes = server.notes.try_iter().collect();
    (notes, ends.into_iter().map(|(_, end)| end).collect())
}

#[test]
fn what_came_together_is_carried_out_together_in_its_order() {
    let together = |body: &str| ("quick.together", body.as_bytes().to_vec());
    let long = || ("quick.together", vec![b'x'; 20 << 10]);
    let alone = |body: &str| ("quick.alone", body.as_bytes().to_vec());
    let check = |requests: Vec<(&str, Vec<u8>)>, expected: &[&[&str]]| {
        let (groups, ends) = carried_out(&server(), &requests);
        assert_eq!(groups, expected);
        let bodies: Vec<_> = requests.into_iter().map(|(_, body)| Ok(body)).collect();
        assert!(ends == bodies, "{expected:?}");
    };
    check(vec![together("a")], &[&["a"]]);
    check(vec![together("a"), together("b")], &[&["a", "b"]]);
    let numbers: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    check(
        numbers.iter().map(|number| together(number)).collect(),
        &[&numbers[..16], &numbers[16..32], &numbers[32..]],
    );
    // What comes later on a link is carried out later.
    check(
        vec![together("a"), together("b"), alone("c"), together("d")],
        &[&["a", "b"], &["c", "alone"], &["d"]],
    );
    // A long one is not kept beside others.
    check(
        vec![together("a"), long(), together("b"), together("c")],
        &[&["a", "xxxxxxxx"], &["b", "c"]],
    );
    // One alone waits for nothing, and not for the next tick of its link.
    let server = server();
    let client = client(2);
    let to = connect(&client, &listen(&server.mq, &everybody(false)));
    let options = RequestOptions {
        timeout: Some(LONG / 4),
        ..RequestOptions::default()
    };
    let answer = client.request_wait(to, "quick.together", ["a"], &options);
    assert_eq!(answer.unwrap().part(0), Some(&b"a"[..]));
}

#[test]
fn what_came_on_several_links_is_carried_out_together() {
    let server = server();
    let address = listen(&server.mq, &everybody(false));
    let clients = [2, 3].map(client);
    let links = clients.each_ref().map(|client| connect(client, &address));
    let (told, outcomes) = channel();
    let ask = |at: usize, command: &str, body: &'static str| {
        let told = told.clone();
        let options = RequestOptions::default();
        clients[at].request(links[at], command, [body], &options, move |end| {
            let answer = end.map(|answer| answer.part(0).map(<[u8]>::to_vec));
            // The test may have failed.
            let _ = told.send((body, answer));
        });
        written(&clients[at]);
    };
    ask(0, "quick.hold", "hold");
    next(&server.begun, "the loop is held");
    ask(0, "quick.together", "a");
    ask(1, "quick.together", "b");
    server.release.send(()).unwrap();
    for _ in 0..3 {
        let (body, answer) = next(&outcomes, "an answer");
        assert_eq!(answer, Ok(Some(body.as_bytes().to_vec())));
    }
    let mut group = next(&server.notes, "a note");
    group.sort();
    assert_eq!(group, ["a", "b"]);
}

#[test]
fn a_handler_that_panics_fails_what_it_had_together_and_nothing_after() {
    let server = server();
    let together = |body: &str| ("quick.together", body.as_bytes().to_vec());
    let alone = ("quick.alone", b"b".to_vec());
    let requests = [together("a"), together("panic"), alone, together("c")];
    let (groups, ends) = carried_out(&server, &requests);
    let failed = || Err(RequestError::Refused(Refusal::Failed));
    assert_eq!(groups.len(), 3);
    let well = |body: &[u8]| Ok(body.to_vec());
    assert_eq!(ends, [failed(), failed(), well(b"b"), well(b"c")]);
    assert_eq!(server.mq.metrics().handlers_failed.get(), 2);
}

/// A client whose last message ends its link has asked before: a master that heard of the end first took the link for a new one
/// when it carried the request out, and kept what it holds for it for ever.
#[test]
fn the_end_of_a_link_is_told_after_what_it_asked_for() {
    let server = server();
    let address = listen(&server.mq, &everybody(false));
    let Endpoint::Tcp(socket) = address.endpoint().unwrap() else {
        panic!("it listens over TCP");
    };
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = [
        &b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"[..],
        b"\x08Identity\x00\x00\x00\x00",
    ]
    .concat();
    let frame = |flags: u8, bytes: &[u8]| [&[flags, bytes.len() as u8], bytes].concat();
    let request = |body: &[u8]| {
        let parts = [frame(1, b"quick.together"), frame(1, &[7; 15])];
        [parts.concat(), frame(0, body)].concat()
    };
    let bytes = [
        greeting.to_vec(),
        frame(4, &ready),
        request(b"a"),
        request(b"b"),
        // No frame has these flags.
        frame(0xff, b""),
    ]
    .concat();
    let mut stream = TcpStream::connect(socket).unwrap();
    stream.write_all(&bytes).unwrap();
    let noted: Vec<String> = std::iter::from_fn(|| Some(next(&server.notes, "the end")))
        .flatten()
        .take(3)
        .collect();
    assert_eq!(noted, ["a", "b", "down"]);
}

#[test]
fn only_what_a_loop_carries_out_itself_comes_together() {
    let mut builder = server_builder(options(1));
    let refused = builder.request_command_together("test.together", |_| {});
    assert_eq!(
        refused.err(),
        Some(RegistryError::NotInline("test.together".into()))
    );
}
