//! The CURVE handshake byte for byte as libsodium makes it from the same keys (`vectors/make.py`).

mod common;

use common::*;
use slackwater_zmtp::*;

fn vectors(name: &str) -> Vec<Vec<u8>> {
    let lines = include_str!("vectors/curve.txt").lines();
    lines
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .map(|hex| {
            (0..hex.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex"))
                .collect()
        })
        .collect()
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = match u8::try_from(body.len()) {
        Ok(short) => vec![flags, short],
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    frame.extend_from_slice(body);
    frame
}

#[test]
fn client_and_server_write_the_bytes_of_libsodium() {
    let mut client = End::new(curve_client(SocketType::Dealer, 1, 2), 3);
    let mut server = End::new(curve_server(SocketType::Router, 2), 4);
    let command = |name: &str| frame(4, &vectors(name)[0]);

    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
    assert_eq!(client.wire[64..], command("hello"));
    server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
    assert_eq!(server.wire, command("welcome"));
    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
    assert_eq!(client.wire, command("initiate"));
    server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
    server.handle(Input::Admit(Verdict::Accept));
    assert_eq!(server.wire, command("ready"));
    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));

    client.send(&[b"first", b""]).unwrap();
    assert_eq!(
        client.wire,
        vectors("up")
            .iter()
            .flat_map(|body| frame(0, body))
            .collect::<Vec<_>>()
    );
    server.send(&[b"answer"]).unwrap();
    assert_eq!(server.wire, frame(0, &vectors("down")[0]));
    server.handle(Input::Bytes(&client.wire));
    client.handle(Input::Bytes(&server.wire));
    assert_eq!(server.messages(), [Message::of(["first", ""])]);
    assert_eq!(client.messages(), [Message::of(["answer"])]);
}
