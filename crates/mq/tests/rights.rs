//! Which peers are admitted, what they may do, and changes of that on open links.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::*;
use slackwater_mq::*;

#[test]
fn the_list_decides_and_its_changes_reach_open_links() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allowed");
    let write = |lines: &[(u8, &str)]| {
        let text: String = lines
            .iter()
            .map(|(seed, level)| format!("{} {level}\n", keys(*seed).public()))
            .collect();
        std::fs::write(&path, text).unwrap();
    };
    write(&[(2, "basic"), (3, "admin")]);
    let list = AllowList::load(&path).unwrap();
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(
        &server,
        &listen_options(Admission::Listed(list.clone()), true),
    );

    let (basic, admin, unlisted) = (client(2), client(3), client(4));
    let (to_basic, to_admin) = (connect(&basic, &address), connect(&admin, &address));
    assert_eq!(ask(&admin, to_admin, "admin.echo", &[]), Ok(vec![]));
    assert_eq!(
        ask(&basic, to_basic, "admin.echo", &[]),
        Err(RequestError::Refused(Refusal::Forbidden))
    );
    let refused = unlisted
        .connect_wait(&address, &ConnectOptions::default())
        .unwrap_err();
    assert!(
        refused.to_string().ends_with("refused by the peer: 400"),
        "{refused}"
    );
    assert_eq!(server.metrics().refused.get(), 1);

    write(&[(2, "admin")]);
    list.reload().unwrap();
    server.rights_changed();
    assert_eq!(ask(&basic, to_basic, "admin.echo", &[]), Ok(vec![]));
    until(&server, "the removed key's link is closed", |server| {
        server.metrics().caused("link", "right_removed") == 1
    });
    until(&server, "and its next attempt is refused", |server| {
        server.metrics().refused.get() >= 2
    });
}

#[test]
fn a_slow_decision_holds_up_nobody_else() {
    let server = server_builder(options(1)).start().unwrap();
    let (release, held) = channel::<()>();
    let held = std::sync::Mutex::new(held);
    let slow = keys(2).public();
    let (began, begun) = channel();
    let decide: Decide = Arc::new(move |applicant: &Applicant| {
        if applicant.key == Some(slow) {
            began.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
            return None;
        }
        assert_eq!(applicant.remote, "127.0.0.1");
        Some(Level::Admin)
    });
    let address = listen(&server, &listen_options(Admission::Ask(decide), true));
    let (waiting, quick) = (client(2), client(3));
    let (told, outcome) = channel();
    waiting.connect(&address, &ConnectOptions::default(), move |result| {
        told.send(result).unwrap()
    });
    next(&begun, "the slow one is being decided on");
    let to = connect(&quick, &address);
    assert_eq!(
        ask(&quick, to, "admin.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    drop(release);
    let failure = next(&outcome, "the decision").unwrap_err();
    assert_eq!(failure.to_string(), "refused by the peer: 400");
}

#[test]
fn a_wrong_server_key_is_no_link() {
    let server = server_builder(options(1)).start().unwrap();
    let mut address = listen(&server, &everybody(true));
    address.key = Some(keys(9).public());
    let client = client(2);
    let short = ConnectOptions {
        timeout: Some(Duration::from_millis(300)),
        ..ConnectOptions::default()
    };
    let check = |address: &Address, cause: &str| {
        // A busy machine may give up before the server has heard of it.
        let met = (0..60).any(|_| {
            assert!(client.connect_wait(address, &short).is_err());
            server.metrics().caused("link", cause) >= 1
        });
        assert!(met, "{cause}: {:?}", server.metrics().causes());
    };
    check(&address, "box_closed");
    address.key = None;
    check(&address, "mechanism");
    until(&client, "the client has no link left", |client| {
        client.books() == [0; 5]
    });
    until(&server, "nor has the server", |server| {
        server.books() == [0; 5]
    });
}

#[test]
fn a_newer_link_of_the_same_key_takes_the_id_over_and_a_plain_one_does_not() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(true));
    let (first, second) = (client(2), client(2));
    let old = connect(&first, &address);
    connect(&second, &address);
    until(&server, "the older one is gone", |server| {
        server.metrics().caused("link", "handed_over") >= 1
    });
    first.disconnect(old);
    let unlisted = client(3);
    let to = connect(&unlisted, &address);
    assert_eq!(ask(&unlisted, to, "test.echo", &[]), Ok(vec![]));
}

#[test]
fn nodes_are_reached_by_key_over_any_of_their_links() {
    let (one, two) = (keys(1).public(), keys(2).public());
    let mut builder = server_builder(Options {
        is_node: true,
        ..options(1)
    });
    builder
        .category(
            "node",
            Category {
                access: Access {
                    remote_node: true,
                    local_node: true,
                    ..Access::default()
                },
                ..Category::default()
            },
        )
        .unwrap();
    builder
        .request_command("node.echo", |call| call.reply(call.parts()).unwrap())
        .unwrap();
    let server = builder.start().unwrap();
    let address = listen(&server, &everybody(true));
    let mut builder = server_builder(Options {
        is_node: true,
        keep_alive_implicit: Duration::from_secs(2),
        ..options(2)
    });
    builder.node_lookup(move |key| (*key == one).then(|| address.clone()));
    let client = builder.start().unwrap();

    // Unknown as a node: no link is opened.
    assert_eq!(
        ask(&client, ConnectionId::Node(one), "node.echo", &[]),
        Err(RequestError::Gone)
    );
    client.set_nodes([one]);
    assert_eq!(
        ask(&client, ConnectionId::Node(one), "node.echo", &[]),
        Err(RequestError::Refused(Refusal::ForbiddenNode))
    );
    server.set_nodes([two]);
    assert_eq!(
        ask(&client, ConnectionId::Node(one), "node.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    // The server reaches the client on the link that the client opened; it knows no way to open one.
    let inbound = RequestOptions {
        route: Route::OnlyInbound,
        ..RequestOptions::default()
    };
    let answer = server
        .request_wait(ConnectionId::Node(two), "test.echo", ["y"], &inbound)
        .unwrap();
    assert_eq!(answer.part(0), Some(&b"y"[..]));
    let outbound = RequestOptions {
        route: Route::OnlyOutbound,
        ..RequestOptions::default()
    };
    let none = server.request_wait(ConnectionId::Node(two), "test.echo", ["y"], &outbound);
    assert_eq!(none, Err(RequestError::Gone));
    // Idle, the link goes away, and the next send opens it again.
    until(&client, "the idle link is closed", |client| {
        client.metrics().caused("link", "idle") >= 1
    });
    until(&server, "on the other side too", |server| {
        server.links_up() == 0
    });
    assert_eq!(
        ask(&client, ConnectionId::Node(one), "node.echo", &[b"z"]),
        Ok(vec![b"z".to_vec()])
    );
    server.update_nodes(&[], &[two]);
    until(&server, "a removed node's link is dropped", |server| {
        server.metrics().caused("link", "node_removed") == 1
    });
}

/// A request whose link ended while it was on its way to the loop failed, where a later one had a new link opened for it.
#[test]
fn a_request_that_finds_its_link_ended_has_another_opened() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(true));
    let node = keys(1).public();
    let mut builder = Builder::new(Options {
        is_node: true,
        ..options(2)
    });
    builder.node_lookup(move |_| Some(address.clone()));
    let client = builder.start().unwrap();
    client.set_nodes([node]);
    let to = ConnectionId::Node(node);
    // The loop of the link is held in a callback, so that it comes to what follows in its order.
    let ((began, begun), (release, held)) = (channel(), channel::<()>());
    let inline = RequestOptions {
        inline: true,
        ..RequestOptions::default()
    };
    client.request(to, "test.echo", ["held"], &inline, move |_| {
        began.send(()).unwrap();
        // Released, or the test has ended.
        let _ = held.recv();
    });
    next(&begun, "the loop is held");
    client.disconnect(to);
    let (told, outcomes) = channel();
    for route in [Route::OnlyConnected, Route::Any] {
        let (told, options) = (
            told.clone(),
            RequestOptions {
                route,
                ..RequestOptions::default()
            },
        );
        client.request(to, "test.echo", ["x"], &options, move |outcome| {
            let outcome = outcome.map(|answer| answer.part(0).map(<[u8]>::to_vec));
            told.send((route, outcome)).unwrap();
        });
    }
    release.send(()).unwrap();
    let mut outcomes = [(); 2].map(|()| next(&outcomes, "an outcome"));
    outcomes.sort_by_key(|(route, _)| *route == Route::Any);
    assert_eq!(
        outcomes,
        [
            (Route::OnlyConnected, Err(RequestError::Gone)),
            (Route::Any, Ok(Some(b"x".to_vec()))),
        ]
    );
}

#[test]
fn a_node_needs_keys() {
    let options = Options {
        is_node: true,
        keys: None,
        ..Options::default()
    };
    assert!(matches!(
        Builder::new(options).start(),
        Err(StartError::NodeWithoutKeys)
    ));
}

/// A listener at `0.0.0.0` without keys opened a port to which the whole network could send commands.
#[test]
fn nobody_listens_beyond_this_machine_without_keys() {
    let server = server_builder(options(1)).start().unwrap();
    let everywhere = slackwater_net::Endpoint::Tcp((std::net::Ipv4Addr::UNSPECIFIED, 0).into());
    let refused = server.listen(&everywhere, &everybody(false));
    assert!(
        matches!(refused, Err(ListenError::NeedsKeys(_))),
        "{refused:?}"
    );
    server.listen(&everywhere, &everybody(true)).unwrap();
}
