//! Calls that are futures, driven by the thread of the test.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_remote::{
    Cancel, Client, ClientError, ConnectOptions, GetOptions, PutOptions, RemoveOptions, Stored,
    Waits, here,
};
use slackwater_wire::ErrorCode;

use super::pool::{Node, master};
use super::{Served, stop, until, value};
use crate::place::{PATIENCE, Place};

/// Wakes a thread, and counts how often.
struct Woken(Thread, AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn woken() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken(current(), AtomicUsize::new(0)));
    (Arc::clone(&woken), Waker::from(woken))
}

/// The outcome of a call, and how often it was pending: it is polled when it has woken this thread, and at no other time.
fn drive<T>(call: impl Future<Output = T>) -> (T, usize) {
    drive_and(call, |_, _| {})
}

/// The same, where something else is done whenever it is pending; that is told how often it was, and of its wakes.
fn drive_and<T>(
    call: impl Future<Output = T>,
    meanwhile: impl Fn(usize, &AtomicUsize),
) -> (T, usize) {
    let (woken, waker) = woken();
    let (mut call, mut pending) = (pin!(call), 0);
    let begun = Instant::now();
    loop {
        let before = woken.1.load(Ordering::SeqCst);
        if let Poll::Ready(outcome) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (outcome, pending);
        }
        pending += 1;
        meanwhile(pending, &woken.1);
        while woken.1.load(Ordering::SeqCst) == before {
            assert!(begun.elapsed() < PATIENCE, "never woken");
            park_timeout(PATIENCE);
        }
    }
}

fn once<T>(call: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

/// A pool of one node, and a client whose values go there over TCP, or by memory that it shares.
fn pool(place: &Place, force_tcp: bool) -> (Served, Node, Client) {
    let served = master(place, "127.0.0.1:0", &[]);
    let node = Node::start(place, &served.address, &["--memory", "128MiB"]);
    let client = served.connect_as(ConnectOptions {
        force_tcp,
        ..ConnectOptions::default()
    });
    (served, node, client)
}

fn key(name: u64) -> Vec<u8> {
    format!("k{name}").into_bytes()
}

#[test]
fn a_call_is_pending_until_its_task_is_woken() {
    for force_tcp in [true, false] {
        let place = Place::new();
        let (_served, _node, client) = pool(&place, force_tcp);
        let calls = client.calls(Waits::Task);
        let lengths = [1, 4096, 65_536, 65_537, 1 << 20, 40_000_001];
        let values: Vec<Vec<u8>> = (0..)
            .zip(lengths)
            .map(|(name, length)| value(name, length))
            .collect();
        let entries = (0..).map(key).zip(values.clone()).collect();
        let ((stored, _), pending) = drive(calls.put_batch(entries, PutOptions::default()));
        assert_eq!(stored, vec![Ok(Stored::New); values.len()]);
        assert!(pending > 0, "puts were asked for and written");
        let keys: Vec<Vec<u8>> = (0..values.len() as u64).map(key).collect();
        let (got, pending) = drive(calls.get_batch(keys.clone(), GetOptions::default()));
        assert!(got.into_iter().eq(values.iter().cloned().map(Some).map(Ok)));
        assert!(pending > 0, "their places were asked for");
        let buffers: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; length + 1]).collect();
        let read = calls.get_batch_into(keys.clone(), buffers, GetOptions::default());
        let ((read, buffers), _) = drive(read);
        assert!(read.into_iter().eq(lengths.map(Some).map(Ok)));
        assert!(
            values
                .iter()
                .zip(&buffers)
                .all(|(value, buffer)| *value == buffer[..value.len()])
        );
        let short = calls.get_batch_into(vec![key(1)], vec![vec![0; 4095]], GetOptions::default());
        let ((short, _), _) = drive(short);
        assert!(matches!(
            short[..],
            [Err(ClientError::BufferTooSmall { need: 4096, .. })]
        ));
        let there = drive(calls.exists(vec![key(0), key(99)], Default::default())).0;
        assert_eq!(there, Ok(vec![true, false]));
        let options = RemoveOptions {
            force: true,
            ..RemoveOptions::default()
        };
        let (removed, _) = drive(calls.remove(keys, options));
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
        assert_eq!(drive(calls.stat(key(0), Default::default())).0, Ok(None));
    }
}

#[test]
fn a_call_whose_thread_waits_ends_with_its_first_poll() {
    let place = Place::new();
    let (_served, _node, client) = pool(&place, false);
    let calls = client.calls(Waits::Thread);
    let entries = vec![(key(1), value(1, 1 << 20))];
    let (put, _) = here(calls.put_batch(entries, PutOptions::default()));
    assert_eq!(put, [Ok(Stored::New)]);
    let got = pin!(calls.get_batch(vec![key(1)], GetOptions::default()));
    assert_eq!(once(got), Poll::Ready(vec![Ok(Some(value(1, 1 << 20)))]));
}

/// A call that is dropped in the middle of its transfers waits until nothing touches its memory any more, and not for a node
/// that does not answer.
#[test]
fn a_call_that_is_dropped_ends_what_it_had_under_way() {
    for force_tcp in [true, false] {
        let place = Place::new();
        let (served, node, client) = pool(&place, force_tcp);
        let calls = client.calls(Waits::Task);
        let long = 8 << 20;
        let entries = vec![(key(1), value(1, long))];
        let ((stored, _), _) = drive(calls.put_batch(entries, PutOptions::default()));
        assert_eq!(stored, [Ok(Stored::New)]);
        let get = || calls.get_batch(vec![key(1)], GetOptions::default());
        // From here on it is known where the value is.
        assert_eq!(drive(get()).0, [Ok(Some(value(1, long)))]);
        stop(&node.child);
        stop(&served.child);
        let begun = Instant::now();
        for asked in [true, false] {
            let mut call = Box::pin(match asked {
                true => calls.get_batch(vec![key(2)], GetOptions::default()),
                false => get(),
            });
            let is_pending = once(call.as_mut()).is_pending();
            // A copy within this host may be over before anybody looks.
            assert!(is_pending || !force_tcp && !asked, "{force_tcp} {asked}");
            drop(call);
            let is_idle = || {
                let moved = client.moved();
                moved
                    .iter()
                    .all(|(_, moved)| (moved.active, moved.pending) == (0, 0))
            };
            match force_tcp {
                true => assert!(is_idle(), "nothing is under way"),
                // A copy counts a moment longer than it touches memory.
                false => until("nothing is under way", is_idle),
            }
        }
        assert!(begun.elapsed() < PATIENCE / 4);
        served.signal(Signal::CONT);
        kill_process(Pid::from_child(&node.child), Signal::CONT).unwrap();
        assert_eq!(drive(get()).0, [Ok(Some(value(1, long)))]);
    }
}

#[test]
fn a_cancelled_call_ends_soon_wherever_it_waits() {
    let place = Place::new();
    let (served, node, client) = pool(&place, true);
    let calls = client.calls(Waits::Task);
    let entries = vec![(key(1), value(1, 4 << 20))];
    assert_eq!(
        drive(calls.put_batch(entries, PutOptions::default())).0.0,
        [Ok(Stored::New)]
    );
    let get = |name, cancel: &Cancel| {
        let mut options = GetOptions::default();
        options.call.cancel = Some(cancel.clone());
        calls.get_batch(vec![key(name)], options)
    };
    let read = drive(get(1, &Cancel::new())).0;
    assert_eq!(read, [Ok(Some(value(1, 4 << 20)))]);
    let check = |name, what: &str| {
        let (begun, cancel) = (Instant::now(), Cancel::new());
        // Its task is woken by the cancellation alone.
        let (ended, pending) = drive_and(get(name, &cancel), |_, _| cancel.cancel());
        assert!(pending > 0, "{what}");
        let codes: Vec<_> = ended
            .into_iter()
            .map(|ended| ended.map_err(|error| error.code()))
            .collect();
        assert_eq!(codes, [Err(ErrorCode::Cancelled)], "{what}");
        assert!(begun.elapsed() < PATIENCE / 4, "{what}");
    };
    stop(&node.child);
    check(1, "a node that sends nothing");
    stop(&served.child);
    check(2, "a master that answers nothing");
}

/// A call whose master dies pauses before it asks again.
#[test]
fn a_cancellation_wakes_the_task_of_a_call_that_pauses() {
    let place = Place::new();
    let (served, _node, client) = pool(&place, true);
    let (calls, cancel) = (client.calls(Waits::Task), Cancel::new());
    stop(&served.child);
    let mut options = GetOptions::default();
    options.call.cancel = Some(cancel.clone());
    let get = calls.get_batch(vec![key(1)], options);
    let (ended, pending) = drive_and(get, |pending, woken| match pending {
        1 => served.signal(Signal::KILL),
        _ => {
            let before = woken.load(Ordering::SeqCst);
            cancel.cancel();
            assert!(woken.load(Ordering::SeqCst) > before);
        }
    });
    assert_eq!(pending, 2, "it is over with the next poll");
    let codes = ended
        .into_iter()
        .map(|ended| ended.map_err(|error| error.code()));
    assert!(codes.eq([Err(ErrorCode::Cancelled)]));
}
