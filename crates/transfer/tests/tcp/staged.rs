//! A slow device, and the answers that are allowed while its copies are under way.

use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use slackwater_base::Instant;
use slackwater_transfer::stage::StagedMover;
use slackwater_transfer::{
    Access, Engine, Home, Location, Memory, Mover, Op, Region, RegionSpec, Rights, Segment, Stage,
    StageError, Staged, StagingTurn, Tcp,
};
use slackwater_wire::data::{Frame, Refusal};

use crate::raw::{Raw, ask, data};
use crate::support::*;

pub(crate) const CHUNK: usize = 64;

/// A stage whose copies end when the test says so.
#[derive(Debug)]
struct Slow {
    copies: Mutex<Sender<Copying>>,
}

/// A copy under way; its access is held until it ends.
pub(crate) struct Copying {
    access: Arc<Access>,
    done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
}

impl Copying {
    /// Ends it: its access first, like a device that has released the memory.
    pub(crate) fn end(self, result: Result<(), StageError>) {
        drop(self.access);
        (self.done)(result);
    }
}

impl Slow {
    fn begin(
        &self,
        access: Arc<Access>,
        done: impl FnOnce(Result<(), StageError>) + Send + 'static,
    ) {
        // A test that has ended receives nothing any more.
        let _ = self.copies.lock().unwrap().send(Copying {
            access,
            done: Box::new(done),
        });
    }
}

fn lent(bytes: usize) -> Staged {
    let mut memory = vec![0u8; bytes].into_boxed_slice();
    let start = NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: the box is kept by what is lent, and nobody else has its address.
    unsafe { Staged::new(start, bytes, memory) }
}

impl Stage for Slow {
    fn chunk_bytes(&self) -> usize {
        CHUNK
    }

    fn fetch(
        &self,
        access: Arc<Access>,
        _offset: u64,
        bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    ) {
        self.begin(access, move |result| done(result.map(|()| lent(bytes))));
    }

    fn lend(
        &self,
        _access: &Access,
        bytes: usize,
        _until: Instant,
        _free: Box<dyn FnOnce(StagingTurn) + Send>,
    ) -> Option<Staged> {
        Some(lent(bytes))
    }

    fn load(
        &self,
        access: Arc<Access>,
        _offset: u64,
        into: Staged,
        _bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    ) {
        self.begin(access, move |result| done(result.map(|()| into)));
    }

    fn store(
        &self,
        access: Arc<Access>,
        _offset: u64,
        from: Staged,
        _bytes: usize,
        done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
    ) {
        self.begin(access, move |result| {
            drop(from);
            done(result);
        });
    }
}

/// An engine with one region on a slow device, and the copies to it.
pub(crate) fn slow_engine(bytes: usize) -> (Engine, Arc<Region>, Receiver<Copying>) {
    let life = Home::open().unwrap();
    let tcp = Arc::new(Tcp::start(&life, config()).unwrap());
    let (begun, copies) = channel();
    let stage = Arc::new(Slow {
        copies: Mutex::new(begun),
    });
    let segment = Segment {
        name: "slow".to_owned(),
        incarnation: life.incarnation(),
        addresses: tcp.addresses().to_vec(),
        public_key: None,
        host: None,
    };
    let address = NonNull::new(std::ptr::without_provenance_mut(0x1000)).unwrap();
    // SAFETY: nobody looks at memory of a device but its stage, and this one does not.
    let memory =
        unsafe { Memory::borrowed(address, bytes, Location::Software(0)) }.staged_by(stage);
    let wires: Vec<Arc<dyn Mover>> = vec![tcp];
    let movers: Vec<Arc<dyn Mover>> = vec![wires[0].clone(), Arc::new(StagedMover::over(wires))];
    let engine = Engine::assemble(life, segment, movers);
    let region = engine
        .register(RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    (engine, region, copies)
}

fn begun(copies: &Receiver<Copying>) -> Copying {
    copies.recv_timeout(20 * SECOND).expect("a copy begins")
}

fn said_of(id: u64, refusal: Option<Refusal>, heard: Option<Frame>) {
    assert!(
        matches!(heard, Some(Frame::Ack(ack)) if ack.id == id && ack.refusal == refusal),
        "{heard:?}"
    );
}

/// The next frame that the peer receives is the answer to this: nothing was sent before.
fn nothing_is_said(peer: &mut Raw) {
    peer.send(&[Frame::Ping { token: 9 }]);
    assert_eq!(peer.hear(), Some(Frame::Pong { token: 9 }));
}

/// A write to a device was refused while a copy of it was under way. Its peer wrote something else there, was told that it
/// was done, and the late copy put the old bytes over it.
#[test]
fn a_cancelled_write_is_answered_when_its_copies_have_ended() {
    let (bob, there, copies) = slow_engine(2 * CHUNK);
    let capability = grant(&bob, &there);
    let mut peer = Raw::connect(&bob, 7);
    peer.send(&[
        ask(Op::Write, 1, capability, 2 * CHUNK as u64),
        data(1, 0, CHUNK as u32, false),
    ]);
    peer.send_bytes(&[1; CHUNK]);
    let copy = begun(&copies);
    peer.send(&[Frame::Cancel { id: 1 }]);
    nothing_is_said(&mut peer);
    copy.end(Ok(()));
    said_of(1, Some(Refusal::Cancelled), peer.hear());
    peer.send(&[
        ask(Op::Write, 2, capability, CHUNK as u64),
        data(2, 0, CHUNK as u32, true),
    ]);
    peer.send_bytes(&[2; CHUNK]);
    begun(&copies).end(Ok(()));
    said_of(2, None, peer.hear());
    until("nothing is at the region", || there.in_flight() == 0);
}

#[test]
fn a_write_to_a_region_that_closes_is_answered_when_its_copies_have_ended() {
    let (bob, there, copies) = slow_engine(2 * CHUNK);
    let mut peer = Raw::connect(&bob, 7);
    peer.send(&[
        ask(Op::Write, 1, grant(&bob, &there), 2 * CHUNK as u64),
        data(1, 0, CHUNK as u32, false),
    ]);
    peer.send_bytes(&[1; CHUNK]);
    let copy = begun(&copies);
    let closing = std::thread::spawn({
        let (bob, id) = (bob.clone(), there.id());
        move || bob.invalidate(id, 20 * SECOND)
    });
    until("the region closes", || there.is_closing());
    nothing_is_said(&mut peer);
    copy.end(Ok(()));
    closing.join().unwrap().unwrap();
    // The rest of its payload is thrown away.
    peer.send(&[data(1, CHUNK as u64, CHUNK as u32, true)]);
    peer.send_bytes(&[1; CHUNK]);
    said_of(1, Some(Refusal::Generation), peer.hear());
    nothing_is_said(&mut peer);
}

/// The last look at the region before an acknowledgement could be left out unnoticed: a write whose last copy ended
/// after its region had begun to close was acknowledged, though its owner counted on nothing more being applied.
#[test]
fn a_write_is_not_acknowledged_once_its_region_closes() {
    let (bob, there, copies) = slow_engine(CHUNK);
    let mut peer = Raw::connect(&bob, 7);
    peer.send(&[
        ask(Op::Write, 1, grant(&bob, &there), CHUNK as u64),
        data(1, 0, CHUNK as u32, true),
    ]);
    peer.send_bytes(&[1; CHUNK]);
    let copy = begun(&copies);
    // The region alone: no loop is told of it, so that only the look before the acknowledgement can find it.
    there.close();
    copy.end(Ok(()));
    said_of(1, Some(Refusal::Generation), peer.hear());
    nothing_is_said(&mut peer);
}

#[test]
fn a_copy_that_fails_is_told_when_the_others_have_ended() {
    let (bob, there, copies) = slow_engine(2 * CHUNK);
    let mut peer = Raw::connect(&bob, 7);
    let bytes = 2 * CHUNK;
    peer.send(&[
        ask(Op::Write, 1, grant(&bob, &there), bytes as u64),
        data(1, 0, bytes as u32, true),
    ]);
    peer.send_bytes(&vec![1; bytes]);
    let [first, second] = [begun(&copies), begun(&copies)];
    first.end(Err(StageError("broken".to_owned())));
    nothing_is_said(&mut peer);
    second.end(Ok(()));
    said_of(1, Some(Refusal::Memory), peer.hear());
}

/// The end of a copy of one write counted for another under the same id, and the count of copies went below zero.
#[test]
fn a_number_is_taken_until_its_copies_have_ended() {
    let (bob, there, copies) = slow_engine(2 * CHUNK);
    let capability = grant(&bob, &there);
    let mut peer = Raw::connect(&bob, 7);
    peer.send(&[
        ask(Op::Write, 1, capability, 2 * CHUNK as u64),
        data(1, 0, CHUNK as u32, false),
    ]);
    peer.send_bytes(&[1; CHUNK]);
    let copy = begun(&copies);
    peer.send(&[
        Frame::Cancel { id: 1 },
        ask(Op::Write, 1, capability, CHUNK as u64),
    ]);
    assert_eq!(peer.hear(), None);
    copy.end(Ok(()));
    nothing_is_said(&mut Raw::connect(&bob, 7));
}

/// A chunk that came out of the device for a read that was given up was sent as the answer to another one.
#[test]
fn a_read_that_is_cancelled_keeps_its_number_until_its_chunk_is_out() {
    let (bob, there, copies) = slow_engine(2 * CHUNK);
    let capability = grant(&bob, &there);
    let mut peer = Raw::connect(&bob, 7);
    peer.send(&[ask(Op::Read, 1, capability, CHUNK as u64)]);
    let copy = begun(&copies);
    peer.send(&[Frame::Cancel { id: 1 }]);
    said_of(1, Some(Refusal::Cancelled), peer.hear());
    peer.send(&[ask(Op::Read, 1, capability, 8)]);
    assert_eq!(peer.hear(), None);
    copy.end(Ok(()));
    until("nothing is at the region", || there.in_flight() == 0);
}
