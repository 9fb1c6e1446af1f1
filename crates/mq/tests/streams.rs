//! Event streams: topics, slow subscribers, replays, restarts.

mod common;

use std::io::{Read, Write};
use std::sync::mpsc::channel;

use common::*;
use slackwater_mq::*;

fn publish(mq: &Mq, encrypted: bool, options: &StreamOptions) -> (Publisher, Address) {
    let publisher = mq
        .publish(
            &any_port(),
            Some(&any_port()),
            &everybody(encrypted),
            options,
        )
        .expect("loopback");
    let address = Address::of(publisher.endpoint(), encrypted.then(|| mq.public_key()));
    (publisher, address)
}

/// A subscription takes effect when the publisher has it.
fn subscribed(server: &Mq, topics: u64) {
    until(server, "the subscriptions have arrived", |server| {
        server.metrics().subscriptions.get() == topics
    });
}

#[test]
fn subscribers_hear_their_topics_in_order() {
    for encrypted in [false, true] {
        let server = client(1);
        let (publisher, address) = publish(&server, encrypted, &StreamOptions::default());
        let listener = client(2);
        let (said, heard) = channel();
        listener.subscribe(
            &address,
            &[b"kv.", b"x"],
            &ConnectOptions::default(),
            move |message| {
                said.send((
                    message.topic.to_vec(),
                    message.sequence,
                    message.body.to_vec(),
                ))
                .unwrap();
            },
        );
        subscribed(&server, 2);
        publisher.publish(b"other", b"no");
        for number in 0..100u8 {
            publisher.publish(b"kv.a", &[number]);
        }
        let (topic, first, body) = next(&heard, "the first");
        assert_eq!((topic.as_slice(), body), (&b"kv.a"[..], vec![0]));
        for number in 1..100 {
            assert_eq!(
                next(&heard, "the next"),
                (b"kv.a".to_vec(), first + number, vec![number as u8])
            );
        }
    }
}

#[test]
fn a_subscriber_that_reads_nothing_loses_the_oldest_and_sees_the_gap() {
    let server = client(1);
    let options = StreamOptions {
        subscriber_bytes: 1 << 20,
        replay_messages: 10,
        ..StreamOptions::default()
    };
    let (publisher, address) = publish(&server, false, &options);
    let endpoint = address.endpoint().unwrap();
    let slackwater_net::Endpoint::Tcp(socket) = endpoint else {
        panic!("TCP")
    };

    // A subscriber by hand: greeting, READY, one subscription, and then it does not read.
    let mut lazy = std::net::TcpStream::connect(socket).unwrap();
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    lazy.write_all(&greeting).unwrap();
    lazy.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x04\x0a\x09SUBSCRIBE")
        .unwrap();
    let mut opening = [0u8; 64];
    lazy.read_exact(&mut opening).unwrap();
    subscribed(&server, 1);

    let (said, heard) = channel();
    let good = client(2);
    good.subscribe(
        &address,
        &[b"t"],
        &ConnectOptions::default(),
        move |message| said.send(message.gap()).unwrap(),
    );
    subscribed(&server, 2);
    let body = vec![1u8; 64 << 10];
    for _ in 0..400 {
        publisher.publish(b"t", &body);
        assert_eq!(next(&heard, "the good one hears everything"), None);
    }
    assert!(
        server.metrics().stream_dropped.get() > 100,
        "{} dropped",
        server.metrics().stream_dropped.get()
    );
    assert!(server.books()[3] <= 17, "what waits stays below the cap");

    // The slow subscriber now reads: it gets older messages, a gap in the numbers, and the newest messages.
    let mut numbers = Vec::new();
    let mut bytes = Vec::new();
    let mut chunk = vec![0u8; 1 << 20];
    while numbers.last() != Some(&u64::MAX) {
        let count = lazy.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
        numbers = sequence_numbers(&bytes);
        if numbers.len() > 20 && numbers.windows(2).any(|pair| pair[1] > pair[0] + 1) {
            break;
        }
        assert!(count > 0, "the link stays");
    }
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
}

/// The sequence numbers of the messages of topic `t` in a plain byte stream after READY.
fn sequence_numbers(bytes: &[u8]) -> Vec<u64> {
    let mark = b"\x01\x01t\x01\x08";
    let at = |index: usize| bytes.get(index + mark.len()..index + mark.len() + 8);
    let marks = bytes
        .windows(mark.len())
        .enumerate()
        .filter(|(_, window)| *window == mark);
    marks
        .filter_map(|(index, _)| at(index))
        .map(|n| u64::from_be_bytes(n.try_into().expect("8 bytes")))
        .collect()
}

#[test]
fn a_listener_comes_back_after_its_publisher_was_restarted() {
    let server = client(1);
    let (publisher, address) = publish(&server, true, &StreamOptions::default());
    let listener = client(2);
    let (said, heard) = channel();
    listener.subscribe(&address, &[b""], &ConnectOptions::default(), move |m| {
        said.send((m.sequence, m.gap())).unwrap()
    });
    subscribed(&server, 1);
    // The numbers of the next stream must not catch up before the listener is back.
    for _ in 0..20_000 {
        publisher.publish(b"t", b"");
    }
    while next(&heard, "the newest").0 < 19_999 {}
    let endpoint = publisher.endpoint().clone();
    drop(publisher);
    drop(server);
    let server = client(1);
    let publisher = server
        .publish(&endpoint, None, &everybody(true), &StreamOptions::default())
        .unwrap();
    subscribed(&server, 1);
    publisher.publish(b"t", b"x");
    assert_eq!(next(&heard, "the new stream"), (0, Some(Gap::Restarted)));
}

#[test]
fn what_its_source_lost_is_a_gap_and_each_message_is_done_with() {
    let server = client(1);
    let options = StreamOptions {
        first: 1 << 40,
        ..StreamOptions::default()
    };
    let (publisher, address) = publish(&server, false, &options);
    let listener = client(2);
    let (said, heard) = channel();
    listener.subscribe(&address, &[b""], &ConnectOptions::default(), move |m| {
        said.send((m.sequence - (1 << 40), m.gap())).unwrap()
    });
    subscribed(&server, 1);
    let (ended, ends) = channel();
    for lost in [0, 0, 3, 0] {
        let ended = ended.clone();
        let done = move || ended.send(()).unwrap();
        publisher.publish_after(lost, b"t", b"x".to_vec(), done);
    }
    for expected in [(0, None), (1, None), (5, Some(Gap::Missing(3))), (6, None)] {
        assert_eq!(next(&heard, "the next"), expected);
    }
    for _ in 0..4 {
        next(&ends, "a message is done with");
    }
    drop(server);
    publisher.publish_after(0, b"t", Vec::new(), move || ended.send(()).unwrap());
    next(&ends, "a message that nobody can take is done with too");
}

/// A peer that asked for what was not kept any more got the rest, and its source never knew.
#[test]
fn a_source_hears_of_messages_that_are_asked_for_and_not_kept() {
    let server = client(1);
    let options = StreamOptions {
        replay_messages: 3,
        ..StreamOptions::default()
    };
    let (publisher, address) = publish(&server, false, &options);
    let (missed, misses) = channel();
    publisher.when_missed(move || missed.send(()).unwrap());
    let (said, heard) = channel();
    let listener = client(2);
    listener.subscribe(
        &address,
        &[b"t"],
        &ConnectOptions::default(),
        move |message| said.send(message.sequence).unwrap(),
    );
    subscribed(&server, 1);
    for number in 0..5 {
        publisher.publish(b"t", b"body");
        assert_eq!(next(&heard, "every message"), number);
    }
    let mut asks = dealer(&publisher);
    for (from, expected, misses_too) in [
        (0u64, 2..5, true),
        (1, 2..5, true),
        (2, 2..5, false),
        (9, 9..9, false),
    ] {
        ask(&mut asks, from);
        let told = until_the_end(&mut asks, Vec::new());
        assert_eq!(told, expected.collect::<Vec<u64>>());
        assert_eq!(misses.try_recv().is_ok(), misses_too, "from {from}");
    }
}

/// What was dropped while a peer took a replay slowly was missing from it, and its source never knew.
#[test]
fn a_source_hears_of_messages_that_are_dropped_before_a_slow_peer_takes_them() {
    let server = client(1);
    let options = StreamOptions {
        replay_messages: 24,
        ..StreamOptions::default()
    };
    let (publisher, _) = publish(&server, false, &options);
    let (missed, misses) = channel();
    publisher.when_missed(move || missed.send(()).unwrap());
    // More than a link and the sockets below it keep.
    let published = |count: usize| {
        for _ in 0..count {
            let (ended, end) = channel();
            let done = move || ended.send(()).unwrap();
            publisher.publish_after(0, b"t", vec![1; 1 << 20], done);
            next(&end, "it is given to the links");
        }
    };
    published(24);
    let mut asks = dealer(&publisher);
    ask(&mut asks, 0);
    let mut first = vec![0; 100];
    asks.read_exact(&mut first).unwrap();
    published(24);
    let told = until_the_end(&mut asks, first);
    assert_eq!(told.last(), Some(&47));
    assert_eq!(told.first(), Some(&0));
    let gaps = told.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gaps.count(), 1, "{told:?}");
    assert!(misses.try_recv().is_ok());
    assert!(misses.try_recv().is_err(), "of one gap it hears once");
}

/// A peer by hand that asks for replays.
fn dealer(publisher: &Publisher) -> std::net::TcpStream {
    let Some(slackwater_net::Endpoint::Tcp(replays)) = publisher.replay_endpoint() else {
        panic!("TCP")
    };
    let mut asks = std::net::TcpStream::connect(replays).expect("the link stays");
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    asks.write_all(&greeting).expect("the link stays");
    asks.write_all(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER")
        .expect("the link stays");
    asks.read_exact(&mut greeting).expect("the link stays");
    asks
}

fn ask(asks: &mut std::net::TcpStream, from: u64) {
    asks.write_all(b"\x01\x00\x00\x08").expect("the link stays");
    asks.write_all(&from.to_be_bytes()).expect("the link stays");
}

/// The numbers of a replay, of which some bytes were read already.
fn until_the_end(asks: &mut std::net::TcpStream, mut bytes: Vec<u8>) -> Vec<u64> {
    let mut chunk = vec![0; 1 << 20];
    let mut seen = 0;
    // The end has the number -1.
    while !bytes[seen..].windows(8).any(|number| number == [0xff; 8]) {
        seen = bytes.len().saturating_sub(7);
        let count = asks.read(&mut chunk).expect("the link stays");
        assert!(count > 0, "the link stays");
        bytes.extend_from_slice(&chunk[..count]);
    }
    sequence_numbers(&bytes)
}
