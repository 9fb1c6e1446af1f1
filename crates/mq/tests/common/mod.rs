//! A message layer as server, and one as client.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use slackwater_base::Backoff;
use slackwater_mq::*;
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_wait::{Site, Waiting};
use slackwater_zmtp::{KeyPair, SecretKey};

pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) fn keys(seed: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([seed; 32]))
}

pub(crate) fn options(seed: u8) -> Options {
    Options {
        keys: Some(keys(seed)),
        workers: Workers {
            general: 2,
            batch: 1,
            replies: 1,
            admissions: 3,
            lookups: 1,
        },
        linger: Duration::from_millis(500),
        reconnect: Backoff::doubling(Duration::from_millis(20), Duration::from_millis(200)),
        ..Options::default()
    }
}

pub(crate) fn any_port() -> Endpoint {
    Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into())
}

/// One at which nothing listens, with a port below those that the kernel gives out: no other test is given it while a listener
/// of this one is away.
pub(crate) fn lasting_port() -> Endpoint {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = 14_000 + std::process::id() % 1_000 * 8;
    let ports = std::iter::repeat_with(|| own + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = ports.take(100).map(|port| port as u16);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let port = ports.find(is_free).expect("one of them is free");
    Endpoint::Tcp((Ipv4Addr::LOCALHOST, port).into())
}

pub(crate) fn everybody(encrypted: bool) -> ListenOptions {
    listen_options(Admission::Everybody(Level::Basic), encrypted)
}

pub(crate) fn listen_options(admission: Admission, encrypted: bool) -> ListenOptions {
    ListenOptions {
        admission,
        encrypted,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    }
}

/// A server with the commands that most tests need.
pub(crate) fn server_builder(options: Options) -> Builder {
    let mut builder = Builder::new(options);
    let category = |level| Category {
        access: Access {
            level,
            ..Access::default()
        },
        ..Category::default()
    };
    let quick = Category {
        run: Run::Inline,
        ..category(Level::Basic)
    };
    builder
        .category("test", category(Level::Basic))
        .expect("a name");
    builder.category("quick", quick).expect("a name");
    builder
        .category("admin", category(Level::Admin))
        .expect("a name");
    let echo = |call: &Call<'_>| call.reply(call.parts()).expect("a request");
    builder.request_command("test.echo", echo).expect("a name");
    builder.request_command("quick.echo", echo).expect("a name");
    builder.request_command("admin.echo", echo).expect("a name");
    builder
        .request_command("test.panic", |_| panic!("on purpose"))
        .expect("a name");
    builder
        .request_command("test.silent", |_| {})
        .expect("a name");
    builder
}

/// A server with one worker and a queue of one command: `slow.work` reports its begin and holds the worker until it is released;
/// `inline.left` leaves its answer to the same queue.
pub(crate) fn slow_server() -> (Running, Receiver<()>, Sender<()>) {
    let mut builder = Builder::new(Options {
        workers: Workers {
            general: 1,
            ..options(1).workers
        },
        ..options(1)
    });
    let queueing = Queueing {
        queue: Some(1),
        ..Queueing::default()
    };
    let slow = Category {
        queueing,
        ..Category::default()
    };
    builder.category("slow", slow).expect("a name");
    let inline = Category {
        run: Run::Inline,
        ..Category::default()
    };
    builder.category("inline", inline).expect("a name");
    for (command, category) in [("inline.left", "slow"), ("inline.lost", "none")] {
        builder
            .request_command(command, move |call| {
                let answer = |deferred: Deferred| deferred.reply(["later"]);
                call.defer_to(category, 0, answer).expect("a request");
            })
            .expect("a name");
    }
    let ((began, begun), (release, held)) = (channel(), channel());
    let held = Mutex::new(held);
    builder
        .request_command("slow.work", move |call| {
            began.send(()).expect("the test listens");
            // Released, or the test has ended.
            let _ = held.lock().expect("no test panics with it").recv();
            call.reply(["done"]).expect("a request");
        })
        .expect("a name");
    (builder.start().expect("a message layer"), begun, release)
}

/// Listens at any port and returns the address.
pub(crate) fn listen(mq: &Mq, options: &ListenOptions) -> Address {
    let endpoint = mq.listen(&any_port(), options).expect("loopback");
    Address::of(&endpoint, options.encrypted.then(|| mq.public_key()))
}

pub(crate) fn client(seed: u8) -> Running {
    Builder::new(options(seed))
        .start()
        .expect("a message layer")
}

pub(crate) fn connect(mq: &Mq, address: &Address) -> ConnectionId {
    mq.connect_wait(address, &ConnectOptions::default())
        .expect("the server listens")
}

pub(crate) fn ask(
    mq: &Mq,
    to: ConnectionId,
    command: &str,
    parts: &[&[u8]],
) -> Result<Vec<Vec<u8>>, RequestError> {
    let options = RequestOptions {
        timeout: Some(LONG),
        ..RequestOptions::default()
    };
    mq.request_wait(to, command, parts, &options)
        .map(|answer| answer.parts().map(<[u8]>::to_vec).collect())
}

/// Waits until `fact` is true of `mq`, looking again whenever it has counted something or a link has come or gone.
pub(crate) fn until(mq: &Mq, what: &str, mut fact: impl FnMut(&Mq) -> bool) {
    static SITE: Site = Site::new("test, fact");
    let waiting = Waiting::at(&SITE).until(slackwater_wait::now() + LONG);
    loop {
        let seen = mq.metrics().changed().seen();
        if fact(mq) {
            return;
        }
        let outcome = mq.metrics().changed().wait(seen, &waiting);
        assert!(outcome.is_ok() || fact(mq), "never came true: {what}");
    }
}

pub(crate) fn next<T>(receiver: &Receiver<T>, what: &str) -> T {
    receiver
        .recv_timeout(LONG)
        .unwrap_or_else(|_| panic!("nothing came: {what}"))
}
