//! Regions whose extents are fenced one by one.

use std::sync::Arc;
use std::time::Duration;

use slackwater_transfer::{
    Engine, EngineError, Extent, GrantSpec, Memory, Op, Refusal, Region, Rights,
};
use slackwater_wire::data::{Ack, Frame, Request};

use crate::lender::{Lender, mint};
use crate::raw::{Raw, data};
use crate::support::*;

const EXTENT: u64 = 4096;

/// An engine with a region of eight extents.
struct Lending {
    engine: Engine,
    region: Arc<Region>,
    lender: Arc<Lender>,
}

fn lending() -> Lending {
    let (engine, lender) = (engine("bob", config()), Arc::new(Lender::default()));
    let memory = Memory::shared(8 * EXTENT as usize).unwrap();
    let region = engine
        .register(lender.region(memory, Rights::BOTH))
        .unwrap();
    Lending {
        engine,
        region,
        lender,
    }
}

impl Lending {
    fn ask(&self, op: Op, id: u64, extent: Extent) -> Frame {
        Frame::Request(Request {
            id,
            op,
            urgent: false,
            offset: extent.offset,
            bytes: extent.bytes,
            time_left_nanos: u64::MAX,
            capability: mint(self.engine.home(), &self.region, extent, op.right()),
            trace: None,
        })
    }

    /// Begins to write an extent: a part of its bytes is sent, the rest is not.
    fn half_written(&self, peer: &mut Raw, id: u64, extent: Extent) {
        peer.send(&[
            self.ask(Op::Write, id, extent),
            data(id, 0, EXTENT as u32, true),
        ]);
        peer.send_bytes(&[7; EXTENT as usize / 2]);
        until("the write is under way", || !self.lender.is_idle(extent));
    }
}

fn answer(id: u64, refusal: Option<Refusal>) -> Option<Frame> {
    let bytes = if refusal.is_none() { EXTENT } else { 0 };
    Some(Frame::Ack(Ack { id, refusal, bytes }))
}

#[test]
fn a_fence_ends_what_is_under_way_at_its_extent_and_nothing_else() {
    let bob = lending();
    // The neighbour's generation is the earlier one: generations of different extents are not compared.
    let [next, one] = [EXTENT, 0].map(|offset| bob.lender.lend(offset, EXTENT));
    let (mut stopped, mut neighbour) = (Raw::connect(&bob.engine, 7), Raw::connect(&bob.engine, 8));
    bob.half_written(&mut stopped, 1, one);
    bob.half_written(&mut neighbour, 1, next);
    bob.lender.fence(one);
    let in_use = [0, EXTENT].map(|offset| bob.lender.live_at(offset));
    assert_eq!(in_use, [None, Some(next)]);
    assert!(!bob.lender.is_idle(one), "nobody told the connection");
    bob.engine.release_extent(bob.region.id(), one);
    // The peer sends nothing more: the fence does not wait for it.
    until("the access has ended", || bob.lender.is_idle(one));
    assert_eq!(stopped.hear(), answer(1, Some(Refusal::Generation)));
    assert_eq!(bob.lender.accesses(next), [Rights::WRITE]);

    let reused = bob.lender.lend(0, EXTENT);
    let bytes = pattern(1, EXTENT as usize);
    bob.region.access(0, EXTENT).unwrap().copy_in(0, &bytes);
    stopped.send_bytes(&[9; EXTENT as usize / 2]);
    stopped.send(&[bob.ask(Op::Write, 2, one)]);
    assert_eq!(stopped.hear(), answer(2, Some(Refusal::Generation)));
    assert!(
        bytes_of(&bob.region, 0, EXTENT as usize) == bytes,
        "a late write changed a byte"
    );

    neighbour.send_bytes(&[8; EXTENT as usize / 2]);
    assert_eq!(neighbour.hear(), answer(1, None));
    neighbour.send(&[
        bob.ask(Op::Write, 2, reused),
        data(2, 0, EXTENT as u32, true),
    ]);
    neighbour.send_bytes(&[6; EXTENT as usize]);
    assert_eq!(neighbour.hear(), answer(2, None));
    until("no access is left", || bob.region.in_flight() == 0);
    assert!(bob.lender.is_idle(reused) && bob.lender.is_idle(next));
}

/// Nobody tells the connection that the extent was fenced; it finds out before it acknowledges.
#[test]
fn a_write_to_an_extent_that_was_fenced_meanwhile_does_not_count() {
    let bob = lending();
    let extent = bob.lender.lend(EXTENT, EXTENT);
    let mut peer = Raw::connect(&bob.engine, 7);
    peer.send(&[
        bob.ask(Op::Write, 1, extent),
        data(1, 0, EXTENT as u32, true),
    ]);
    peer.send_bytes(&[7; EXTENT as usize - 1]);
    until("the write is under way", || !bob.lender.is_idle(extent));
    bob.lender.fence(extent);
    peer.send_bytes(&[7; 1]);
    assert_eq!(peer.hear(), answer(1, Some(Refusal::Generation)));
    assert!(bob.lender.is_idle(extent));
}

#[test]
fn the_gate_decides_about_the_extent_that_was_granted() {
    let bob = lending();
    let live = bob.lender.lend(EXTENT, EXTENT);
    let mut peer = Raw::connect(&bob.engine, 7);
    let mut id = 0;
    let mut check = |extent: Extent, (offset, bytes), refusal: Option<Refusal>| {
        id += 1;
        let Frame::Request(request) = bob.ask(Op::Read, id, extent) else {
            unreachable!("it is a request")
        };
        peer.send(&[Frame::Request(Request {
            offset,
            bytes,
            ..request
        })]);
        let answered = match refusal {
            Some(_) => 0,
            None => {
                assert!(matches!(peer.hear(), Some(Frame::Data(_))));
                peer.skip(bytes as usize);
                bytes
            }
        };
        let answer = Frame::Ack(Ack {
            id,
            refusal,
            bytes: answered,
        });
        assert_eq!(peer.hear(), Some(answer), "{extent:?} {offset} {bytes}");
    };
    check(live, (EXTENT, EXTENT), None);
    check(live, (EXTENT + 9, 3), None);
    check(live, (0, 1), Some(Refusal::Range));
    check(live, (2 * EXTENT, 1), Some(Refusal::Range));
    let earlier = Extent {
        generation: live.generation - 1,
        ..live
    };
    check(earlier, (EXTENT, 1), Some(Refusal::Generation));
    let longer = Extent {
        bytes: 2 * EXTENT,
        ..live
    };
    check(longer, (EXTENT, 1), Some(Refusal::Range));
    let region = Extent {
        offset: 0,
        bytes: bob.region.bytes(),
        generation: bob.region.generation(),
    };
    check(region, (EXTENT, 1), Some(Refusal::Generation));
}

#[test]
fn a_gated_region_is_not_granted_nor_invalidated_as_a_whole() {
    let bob = lending();
    let id = bob.region.id();
    let whole = GrantSpec::whole(&bob.region, Rights::READ);
    let granted = bob.engine.grant(id, &whole);
    assert!(matches!(granted, Err(EngineError::Gated(named)) if named == id));
    let invalidated = bob.engine.invalidate(id, SECOND);
    assert!(matches!(invalidated, Err(EngineError::Gated(named)) if named == id));
    // As a whole it can only go, and what is under way at any extent goes with it.
    let extent = bob.lender.lend(0, EXTENT);
    let mut peer = Raw::connect(&bob.engine, 7);
    bob.half_written(&mut peer, 1, extent);
    bob.engine.unregister(id, 20 * SECOND).unwrap();
    assert!(bob.lender.is_idle(extent));
    assert_eq!(peer.hear(), answer(1, Some(Refusal::Generation)));
}

/// A change of the key revoked everything at once, so each change of the master would have failed every read.
#[test]
fn reads_outlive_a_change_of_the_key_for_a_while_and_writes_do_not() {
    let bob = lending();
    let extent = bob.lender.lend(0, EXTENT);
    let (read, write) = (bob.ask(Op::Read, 1, extent), bob.ask(Op::Write, 2, extent));
    let before = bob.engine.home().capability_secret();
    let mut peer = Raw::connect(&bob.engine, 7);
    let mut reads = |refusal: Option<Refusal>| {
        peer.send(std::slice::from_ref(&read));
        if refusal.is_none() {
            assert!(matches!(peer.hear(), Some(Frame::Data(_))));
            peer.skip(EXTENT as usize);
        }
        assert_eq!(peer.hear(), answer(1, refusal));
        peer.send(&[write, data(2, 0, 0, true)]);
        assert_eq!(peer.hear(), answer(2, Some(Refusal::Forged)));
    };
    bob.engine.home().rotate(Duration::from_secs(3600)).unwrap();
    assert!(bob.engine.home().capability_secret() != before);
    reads(None);
    bob.engine.home().rotate(Duration::ZERO).unwrap();
    reads(Some(Refusal::Forged));
}
