//! Commands, requests, replies and refusals between two of ours, on every kind of link.

mod common;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use common::*;
use slackwater_mq::*;
use slackwater_net::Endpoint;

#[test]
fn requests_are_answered_on_every_kind_of_link() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_builder(options(1)).start().unwrap();
    let path = folder.path().join("socket");
    let mut addresses = vec![
        listen(&server, &everybody(false)),
        listen(&server, &everybody(true)),
    ];
    for (name, encrypted) in [("plain", false), ("curve", true)] {
        let endpoint = server
            .listen(
                &Endpoint::Unix(path.with_extension(name)),
                &everybody(encrypted),
            )
            .unwrap();
        addresses.push(Address::of(
            &endpoint,
            encrypted.then(|| server.public_key()),
        ));
    }
    // With one key and one id the second encrypted link would take the place of the first.
    let client = Builder::new(Options {
        ephemeral_ids: true,
        ..options(2)
    })
    .start()
    .unwrap();
    let large = vec![7u8; 900_000];
    for address in &addresses {
        let to = connect(&client, address);
        for command in ["test.echo", "quick.echo"] {
            for body in [&[][..], &[&b""[..]], &[b"a", b"", &large]] {
                let want: Vec<Vec<u8>> = body.iter().map(|part| part.to_vec()).collect();
                assert!(
                    ask(&client, to, command, body) == Ok(want),
                    "{address} {command}"
                );
            }
        }
    }
    let own = server.connect_inproc();
    assert_eq!(
        ask(&server, own, "admin.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
}

#[test]
fn refusals_come_at_once_and_say_why() {
    let mut builder = server_builder(options(1));
    let access = |remote_node, local_node| Access {
        level: Level::None,
        remote_node,
        local_node,
    };
    builder
        .category(
            "remote",
            Category {
                access: access(true, false),
                ..Category::default()
            },
        )
        .unwrap();
    builder
        .category(
            "local",
            Category {
                access: access(false, true),
                ..Category::default()
            },
        )
        .unwrap();
    builder
        .request_command("remote.x", |_| {})
        .unwrap()
        .request_command("local.x", |_| {})
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(true)));
    let check = |command: &str, refusal| {
        assert_eq!(
            ask(&client, to, command, &[]),
            Err(RequestError::Refused(refusal)),
            "{command}"
        );
        assert_eq!(server.metrics().caused("refusal", refusal.text()), 1);
    };
    check("nobody.knows", Refusal::UnknownCommand);
    check("admin.echo", Refusal::Forbidden);
    check("local.x", Refusal::NotAServiceNode);
    check("remote.x", Refusal::ForbiddenNode);
    check("test.panic", Refusal::Failed);
    assert_eq!(server.metrics().handlers_failed.get(), 1);
}

#[test]
fn a_full_queue_answers_busy() {
    let (server, begun, release) = slow_server();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let (told, outcomes) = channel();
    let request = || {
        let told = told.clone();
        client.request(
            to,
            "slow.work",
            [""; 0],
            &RequestOptions::default(),
            move |outcome| {
                told.send(outcome.map(|answer| answer.part(0).map(<[u8]>::to_vec)))
                    .unwrap();
            },
        );
    };
    request();
    next(&begun, "the first is at work");
    request();
    until(&server, "the second waits", |server| {
        server.waiting_commands() == [1, 0]
    });
    request();
    assert_eq!(
        next(&outcomes, "the third is refused"),
        Err(RequestError::Refused(Refusal::Busy))
    );
    drop(release);
    assert_eq!(next(&outcomes, "the first"), Ok(Some(b"done".to_vec())));
    assert_eq!(next(&outcomes, "the second"), Ok(Some(b"done".to_vec())));
}

/// A handler on a loop left its answer to the workers of a category whose queue was full. The caller was told that the request
/// had failed, and nothing counted that the server was busy.
#[test]
fn an_answer_that_is_left_to_a_full_queue_is_refused_as_busy() {
    let (server, begun, release) = slow_server();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let work = || client.request(to, "slow.work", [""; 0], &RequestOptions::default(), |_| ());
    work();
    next(&begun, "the first is at work");
    work();
    until(&server, "the second waits", |server| {
        server.waiting_commands() == [1, 0]
    });
    let refused = |refusal| Err(RequestError::Refused(refusal));
    assert_eq!(ask(&client, to, "inline.left", &[]), refused(Refusal::Busy));
    let told = |refusal: Refusal| server.metrics().caused("refusal", refusal.text());
    let counted = (told(Refusal::Busy), told(Refusal::Failed));
    assert_eq!((server.metrics().busy.get(), counted), (1, (1, 0)));
    drop(release);
    next(&begun, "the second is at work");
    let later = || Ok(vec![b"later".to_vec()]);
    let answered = std::iter::repeat_with(|| ask(&client, to, "inline.left", &[]));
    let mut answered = answered.skip_while(|answer| *answer == refused(Refusal::Busy));
    assert_eq!(answered.next(), Some(later()));
    assert_eq!(
        ask(&client, to, "inline.lost", &[]),
        refused(Refusal::Failed)
    );
}

/// A caller in a burst of requests runs the loop itself. It slept in the kernel until the next event or timer while a worker of its
/// own process had answered long ago.
#[test]
fn a_caller_that_runs_the_loop_sees_what_other_threads_answer() {
    let server = server_builder(options(1)).start().unwrap();
    let own = server.connect_inproc();
    let began = Instant::now();
    for _ in 0..200 {
        let answer = ask(&server, own, "admin.echo", &[b"x"]);
        assert_eq!(answer, Ok(vec![b"x".to_vec()]));
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }
}

#[test]
fn replies_may_come_later_from_another_thread_or_never() {
    let mut builder = server_builder(options(1));
    let (kept, deferred) = channel::<Deferred>();
    builder
        .request_command("test.later", move |call| {
            kept.send(call.defer().unwrap()).unwrap()
        })
        .unwrap();
    builder
        .command("test.plain", |call| {
            assert_eq!(call.reply(["x"]), Err(NotARequest))
        })
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(true)));
    let answering = std::thread::spawn(move || {
        next(&deferred, "the first").reply(["late"]);
        drop(next(&deferred, "the second"));
        deferred
    });
    assert_eq!(
        ask(&client, to, "test.later", &[]),
        Ok(vec![b"late".to_vec()])
    );
    assert_eq!(
        ask(&client, to, "test.later", &[]),
        Err(RequestError::Refused(Refusal::Failed))
    );
    drop(answering.join().unwrap());
    client.send(to, "test.plain", ["x"]);
    assert_eq!(
        ask(&client, to, "test.echo", &[b"after"]),
        Ok(vec![b"after".to_vec()])
    );
    assert_eq!(server.metrics().handlers_failed.get(), 0);
}

#[test]
fn requests_end_by_their_timeout_and_a_late_reply_is_dropped() {
    let mut builder = server_builder(options(1));
    let (kept, deferred) = channel::<Deferred>();
    builder
        .request_command("test.later", move |call| {
            kept.send(call.defer().unwrap()).unwrap()
        })
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let short = RequestOptions {
        timeout: Some(Duration::from_millis(500)),
        ..RequestOptions::default()
    };
    let outcome = client.request_wait(to, "test.later", [""; 0], &short);
    assert_eq!(outcome, Err(RequestError::Timeout));
    next(&deferred, "the request came").reply(["late"]);
    until(&client, "the late reply is counted", |client| {
        client.metrics().late_replies.get() == 1
    });
    assert_eq!(client.metrics().timeouts.get(), 1);
}

#[test]
fn a_lost_link_ends_its_requests_at_once() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(true));
    let (heard, events) = channel();
    let mut builder = Builder::new(options(2));
    builder.on_link(move |event| heard.send(event).unwrap());
    let client = builder.start().unwrap();
    let to = connect(&client, &address);
    assert!(matches!(next(&events, "up"), LinkEvent::Up { .. }));
    let (told, outcome) = channel();
    client.request(
        to,
        "test.silent",
        [""; 0],
        &RequestOptions::default(),
        move |o| told.send(o).unwrap(),
    );
    assert_eq!(ask(&client, to, "test.echo", &[]), Ok(vec![]));
    server.stop();
    assert_eq!(next(&outcome, "the request ends"), Err(RequestError::Gone));
    assert!(matches!(next(&events, "down"), LinkEvent::Down { .. }));
    assert_eq!(client.books()[1], 0);
}

/// A server that was told to end said goodbye to everybody, so that nobody came back to the one that was started in its
/// place: after an orderly restart of a master its nodes were gone for good, and the calls of its clients never answered.
#[test]
fn peers_come_back_to_a_server_that_was_restarted_in_order() {
    for encrypted in [false, true] {
        let server = server_builder(options(1)).start().unwrap();
        let address = listen(&server, &everybody(encrypted));
        let client = client(2);
        let to = connect(&client, &address);
        server.stop();
        let again = server_builder(options(1)).start().unwrap();
        let endpoint = address.endpoint().unwrap();
        again.listen(&endpoint, &everybody(encrypted)).unwrap();
        until(&client, "the link is up again", |client| {
            client.metrics().links_up.get() == 2
        });
        let said = ask(&client, to, "test.echo", &[b"x"]);
        assert_eq!(said, Ok(vec![b"x".to_vec()]), "{address}");
    }
}

/// A client of a server that is not there yet, and where that will listen.
fn early_client(folder: &tempfile::TempDir) -> (Running, ConnectionId, Endpoint) {
    let endpoint = Endpoint::Unix(folder.path().join("late"));
    let client = client(2);
    let to = client.connect(
        &Address::of(&endpoint, None),
        &ConnectOptions::default(),
        |_| {},
    );
    (client, to, endpoint)
}

/// A request that waited in the queue of a link was told that the link is gone when an attempt to open it failed, and
/// was sent all the same when a later attempt succeeded: the peer carried out what its caller had given up.
#[test]
fn a_queued_request_outlives_failed_attempts_to_open_its_link() {
    let folder = tempfile::tempdir().unwrap();
    let (client, to, endpoint) = early_client(&folder);
    let (told, outcome) = channel();
    client.request(
        to,
        "test.echo",
        ["x"],
        &RequestOptions::default(),
        move |o| told.send(o).unwrap(),
    );
    until(&client, "two attempts have failed", |client| {
        client.metrics().caused("link", "connect_failed") >= 2
    });
    let server = server_builder(options(1)).start().unwrap();
    server.listen(&endpoint, &everybody(false)).unwrap();
    let answer = next(&outcome, "an answer").expect("the peer is there now");
    assert_eq!(answer.part(0), Some(&b"x"[..]));
}

/// A server that notes, in order, the first part of every request `quick.note`.
fn noting_server(notes: Sender<Vec<u8>>) -> Running {
    let mut builder = server_builder(options(1));
    builder
        .request_command("quick.note", move |call| {
            notes
                .send(call.part(0).unwrap_or_default().to_vec())
                .expect("the test waits");
            call.reply([""; 0]).expect("the test waits");
        })
        .expect("the test waits");
    builder.start().expect("a message layer")
}

/// A request that waited in the queue of a link ended with a timeout, but its message stayed in the queue: after the
/// reconnect the peer ran a command whose caller had been told that the time was over and had perhaps tried again.
#[test]
fn a_request_that_timed_out_in_a_queue_is_never_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (client, to, endpoint) = early_client(&folder);
    let (told, outcomes) = channel();
    let request = |name: &'static str, timeout| {
        let told = told.clone();
        let options = RequestOptions {
            timeout: Some(timeout),
            ..RequestOptions::default()
        };
        client.request(to, "quick.note", [name], &options, move |outcome| {
            told.send((name, outcome.map(drop))).unwrap();
        });
    };
    request("kept first", LONG);
    request("withdrawn", Duration::from_millis(20));
    request("kept second", LONG);
    assert_eq!(
        next(&outcomes, "the timeout"),
        ("withdrawn", Err(RequestError::Timeout))
    );
    let (notes, noted) = channel();
    let server = noting_server(notes);
    server.listen(&endpoint, &everybody(false)).unwrap();
    for name in ["kept first", "kept second"] {
        assert_eq!(next(&noted, "a note"), name.as_bytes());
        assert_eq!(next(&outcomes, "an answer"), (name, Ok(())));
    }
    assert!(noted.try_recv().is_err(), "the withdrawn request ran");
    assert_eq!(client.books()[1], 0, "requests that wait");
}

/// A request that waited in the queue of a lost link was sent when the link was back, though its caller had given it up meanwhile.
#[test]
fn a_request_that_is_given_up_in_a_queue_is_never_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (client, to, endpoint) = early_client(&folder);
    let options = RequestOptions {
        timeout: Some(LONG),
        ..RequestOptions::default()
    };
    let begin = |name| client.begin_request(to, "quick.note", [name], &options);
    let deadline = slackwater_wait::now() + LONG;
    let [mut cancelled, mut looked_late] = ["cancelled"; 2].map(begin);
    let [mut first, dropped, mut second] = ["kept first", "dropped", "kept second"].map(begin);
    assert_eq!(client.books()[3], 5, "messages that wait");
    assert!(cancelled.canceller()() && looked_late.canceller()());
    assert_eq!(cancelled.wait(deadline), None);
    drop(dropped);
    let (notes, noted) = channel();
    let server = noting_server(notes);
    server.listen(&endpoint, &everybody(false)).unwrap();
    for kept in [&mut first, &mut second] {
        assert!(matches!(kept.wait(deadline), Some(Ok(_))));
    }
    assert_eq!(looked_late.wait(deadline), Some(Err(RequestError::Gone)));
    let noted: Vec<_> = noted.try_iter().collect();
    assert_eq!(noted, [b"kept first".to_vec(), b"kept second".to_vec()]);
    let [_, pending, _, queued, _] = client.books();
    assert_eq!((pending, queued), (0, 0));
}

/// A loop that is busy looks at a request later, when its caller may have given it up.
#[test]
fn a_request_that_is_given_up_before_its_loop_looks_at_it_is_not_sent() {
    let (notes, noted) = channel();
    let server = noting_server(notes);
    let ((began, begun), (release, held)) = (channel(), channel::<()>());
    let held = std::sync::Mutex::new(held);
    let mut builder = server_builder(options(2));
    builder
        .command("quick.hold", move |_| {
            began.send(()).unwrap();
            // Released, or the test has ended.
            let _ = held.lock().unwrap().recv();
        })
        .unwrap();
    let client = builder.start().unwrap();
    let to = connect(&client, &listen(&server, &everybody(false)));
    let own = client.connect_inproc();
    std::thread::scope(|scope| {
        // A panic in here releases it too.
        let release = release;
        scope.spawn(|| client.send(own, "quick.hold", [""; 0]));
        next(&begun, "the loop is busy");
        drop(client.begin_request(to, "quick.note", ["dropped"], &RequestOptions::default()));
        release.send(()).unwrap();
    });
    assert_eq!(ask(&client, to, "quick.note", &[b"kept"]), Ok(vec![]));
    assert_eq!(noted.try_iter().collect::<Vec<_>>(), [b"kept".to_vec()]);
    assert_eq!(client.books()[1], 0, "requests that wait");
}

/// The caller was told that the link was gone, though the answer had come before the stop.
#[test]
fn an_answer_from_before_the_stop_is_taken_after_it() {
    let server = server_builder(options(1)).start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let begin = |command| client.begin_request(to, command, ["x"], &RequestOptions::default());
    let mut answered = begin("quick.echo");
    let mut silent = begin("test.silent");
    // The link keeps the order of answers.
    assert_eq!(ask(&client, to, "quick.echo", &[]), Ok(vec![]));
    client.stop();
    let deadline = slackwater_wait::now() + LONG;
    assert!(matches!(answered.wait(deadline), Some(Ok(_))));
    assert_eq!(silent.wait(deadline), Some(Err(RequestError::Gone)));
}

/// A caller that had something to do between its request and its wait was woken by the loop's thread, and beside callers that ran
/// the loop itself it waited up to a millisecond longer: the loop was not told that it parks.
#[test]
fn a_caller_that_waits_later_runs_the_loop_too() {
    let server = server_builder(options(1)).start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let options = RequestOptions {
        inline: true,
        ..RequestOptions::default()
    };
    let deadline = slackwater_wait::now() + LONG;
    let (told, on) = channel();
    loop {
        let told = told.clone();
        // Its answer comes before the other one.
        client.request(to, "quick.echo", ["x"], &options, move |_| {
            told.send(std::thread::current().id()).unwrap();
        });
        let mut begun = client.begin_request(to, "quick.echo", ["x"], &options);
        assert!(matches!(begun.wait(deadline), Some(Ok(_))));
        if next(&on, "an answer") == std::thread::current().id() {
            return;
        }
        assert!(slackwater_wait::now() < deadline, "it never runs the loop");
    }
}

/// A caller that runs the loop sleeps in the kernel, where what gave its request up must reach it.
#[test]
fn a_request_is_given_up_while_its_caller_runs_the_loop() {
    let mut builder = server_builder(options(1));
    let (kept, asked) = channel::<Deferred>();
    builder
        .request_command("quick.later", move |call| {
            kept.send(call.defer().unwrap()).unwrap();
        })
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let options = RequestOptions {
        timeout: Some(LONG),
        ..RequestOptions::default()
    };
    let deadline = slackwater_wait::now() + LONG;
    const TIMES: usize = 50;
    let (handed, cancellers) = channel::<Box<dyn Fn() -> bool + Send>>();
    let giving_up = std::thread::spawn(move || {
        let give_up = |_| {
            let request = next(&asked, "the request came");
            assert!(next(&cancellers, "what cancels it")());
            request
        };
        (0..TIMES).map(give_up).collect::<Vec<_>>()
    });
    for _ in 0..TIMES {
        // The second call of a burst runs the loop.
        assert_eq!(
            ask(&client, to, "quick.echo", &[b"x"]),
            Ok(vec![b"x".to_vec()])
        );
        let mut begun = client.begin_request(to, "quick.later", [""; 0], &options);
        handed.send(Box::new(begun.canceller())).unwrap();
        assert_eq!(begun.wait(deadline), None);
        assert!(slackwater_wait::now() < deadline, "nothing woke the caller");
    }
    drop(giving_up.join().unwrap());
}

/// A request whose time had passed before its link's loop looked at it (the loop was busy, or the caller gave it no
/// time) was sent, and its timeout told only afterwards. A command that had waited in the loop's inbox was judged by the
/// time at which the loop had begun its turn, so that it happened even then, now and then.
#[test]
fn a_request_whose_time_has_passed_is_not_sent() {
    let (notes, noted) = channel();
    let server = noting_server(notes);
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    let none = RequestOptions {
        timeout: Some(Duration::ZERO),
        ..RequestOptions::default()
    };
    for _ in 0..200 {
        assert_eq!(
            client.request_wait(to, "quick.note", ["late"], &none),
            Err(RequestError::Timeout)
        );
    }
    assert_eq!(ask(&client, to, "quick.note", &[b"in time"]), Ok(vec![]));
    assert_eq!(next(&noted, "a note"), b"in time");
    assert_eq!(client.metrics().timeouts.get(), 200);
}

#[test]
fn handlers_talk_back_on_the_link_they_were_called_on() {
    let mut builder = server_builder(options(1));
    builder
        .command("test.hello", |call| {
            call.send_back("client.note", ["noted"]);
            let from = call.from();
            let mq = call.mq();
            call.request_back(
                "client.who",
                [""; 0],
                &RequestOptions::default(),
                move |answer| {
                    mq.send(from, "client.note", answer.unwrap().parts());
                },
            );
        })
        .unwrap();
    let server = builder.start().unwrap();
    let (noted, notes) = channel();
    let mut builder = Builder::new(options(2));
    builder.category("client", Category::default()).unwrap();
    builder
        .command("client.note", move |call| {
            noted.send(call.part(0).unwrap().to_vec()).unwrap()
        })
        .unwrap();
    builder
        .request_command("client.who", |call| call.reply(["me"]).unwrap())
        .unwrap();
    let client = builder.start().unwrap();
    let to = connect(&client, &listen(&server, &everybody(true)));
    client.send(to, "test.hello", [""; 0]);
    assert_eq!(next(&notes, "the command back"), b"noted");
    assert_eq!(next(&notes, "the answer to the request back"), b"me");
}

#[test]
fn aliases_apply_before_rights() {
    let mut builder = server_builder(options(1));
    builder
        .alias("old.echo", "test.echo")
        .unwrap()
        .alias("old.admin", "admin.echo")
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    assert_eq!(
        ask(&client, to, "old.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    assert_eq!(
        ask(&client, to, "old.admin", &[]),
        Err(RequestError::Refused(Refusal::Forbidden))
    );
}

#[test]
fn messages_of_one_sender_arrive_in_order() {
    let (heard, numbers) = channel();
    let mut builder = Builder::new(options(1));
    builder
        .category(
            "in",
            Category {
                run: Run::Inline,
                ..Category::default()
            },
        )
        .unwrap();
    builder
        .command("in.number", move |call| {
            heard.send(call.part(0).unwrap().to_vec()).unwrap()
        })
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = client.connect(
        &listen(&server, &everybody(true)),
        &ConnectOptions::default(),
        |_| {},
    );
    // The first are queued before the link stands, and none overtakes another.
    for number in 0..900u32 {
        client.send(to, "in.number", [number.to_le_bytes()]);
    }
    for number in 0..900u32 {
        assert_eq!(next(&numbers, "a number"), number.to_le_bytes());
    }
}

#[test]
fn a_link_that_is_full_says_so() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(false));
    server.stop();
    let client = Builder::new(Options {
        queue_messages: 3,
        ..options(2)
    })
    .start()
    .unwrap();
    let to = client.connect(&address, &ConnectOptions::default(), |_| {});
    let (told, failures) = channel();
    for _ in 0..5 {
        let told = told.clone();
        let on_failure: Box<dyn FnOnce(SendError) + Send> =
            Box::new(move |error| told.send(error).unwrap());
        let options = SendOptions {
            on_failure: Some(on_failure),
            ..SendOptions::default()
        };
        client.send_with(to, "x.y", [""; 0], options);
    }
    assert_eq!(
        [next(&failures, "fourth"), next(&failures, "fifth")],
        [SendError::Full; 2]
    );
    let (told, gone) = channel();
    client.disconnect(to);
    client.request(
        to,
        "x.y",
        [""; 0],
        &RequestOptions::default(),
        move |outcome| told.send(outcome).unwrap(),
    );
    assert_eq!(next(&gone, "nobody there"), Err(RequestError::Gone));
}

#[test]
fn an_inline_handler_cannot_wait_for_itself() {
    let mut builder = server_builder(options(1));
    let (told, outcome) = channel();
    builder
        .command("quick.wait", move |call| {
            let waited =
                call.mq()
                    .request_wait(call.from(), "x.y", [""; 0], &RequestOptions::default());
            told.send(waited.unwrap_err()).unwrap();
        })
        .unwrap();
    let server = builder.start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(false)));
    client.send(to, "quick.wait", [""; 0]);
    assert_eq!(next(&outcome, "a refusal"), RequestError::InsideLoop);
}

#[test]
fn nothing_is_left_when_everybody_has_gone() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(true));
    for round in 0..3 {
        let client = Arc::new(
            Builder::new(Options {
                ephemeral_ids: true,
                ..options(2)
            })
            .start()
            .unwrap(),
        );
        let links: Vec<ConnectionId> = (0..20).map(|_| connect(&client, &address)).collect();
        assert_eq!(server.links_up(), 20, "round {round}");
        for link in &links {
            assert_eq!(
                ask(&client, *link, "test.echo", &[b"x"]),
                Ok(vec![b"x".to_vec()])
            );
        }
        links.iter().for_each(|link| client.disconnect(*link));
        until(&client, "the client's books are empty", |client| {
            client.books() == [0; 5]
        });
        until(&server, "the server's books are empty", |server| {
            server.books() == [0; 5]
        });
    }
}

#[test]
fn several_loops_share_a_port() {
    let server = server_builder(Options {
        loops: 2,
        ..options(1)
    })
    .start()
    .unwrap();
    let address = listen(&server, &everybody(false));
    let client = Builder::new(Options {
        loops: 2,
        ..options(2)
    })
    .start()
    .unwrap();
    let links: Vec<ConnectionId> = (0..16).map(|_| connect(&client, &address)).collect();
    for link in links {
        assert_eq!(
            ask(&client, link, "test.echo", &[b"x"]),
            Ok(vec![b"x".to_vec()])
        );
    }
    let mut busy = 0;
    server.loop_counters(|counters| busy += u64::from(counters.bytes_in.get() > 0));
    assert_eq!(busy, 2, "the kernel spreads connections over the listeners");
    let other = server_builder(options(3)).start().unwrap();
    let Place::Tcp { port, .. } = address.place else {
        panic!("a TCP address")
    };
    let taken = Endpoint::Tcp(([127, 0, 0, 1], port).into());
    assert!(other.listen(&taken, &everybody(false)).is_err());
}
