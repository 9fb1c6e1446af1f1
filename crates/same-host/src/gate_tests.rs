//! Windows on extents that are fenced one by one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_engine::{
    Buffers, Cause, Home, Memory, Mover, Region, Remote, Revocation, SingleRequest, Target,
};
use slackwater_wait::{Event, now};
use slackwater_wire::data::{Capability, Op, Refusal, Rights, Segment};

use super::carry::{CopyRequest, NotCopied, carry};
use super::copy_threads::CopyThreads;
use super::core::{Core, CoreState, LinkState};
use super::link::WindowError;
use super::mover::{HostLimits, HostMover};
use super::service::ServiceLimits;
use super::tests::{Owner, PATIENCE, ask, eventually, owner, reaching};
use super::window::OpenWindow;
use crate::lender::{Lender, mint};

const EXTENT: u64 = 4096;

fn lending(rights: Rights) -> (Owner, Arc<Lender>, Arc<Region>) {
    lending_by(Lender::default(), rights)
}

fn lending_by(lender: Lender, rights: Rights) -> (Owner, Arc<Lender>, Arc<Region>) {
    let (owner, lender) = (owner(ServiceLimits::default()), Arc::new(lender));
    let memory = Memory::shared(4 * EXTENT as usize).unwrap();
    let regions = owner.life.regions();
    let region = regions.register(lender.region(memory, rights)).unwrap();
    (owner, lender, region)
}

#[test]
fn a_fence_waits_for_the_copies_at_its_extent_and_touches_no_neighbour() {
    let (far, lender, region) = lending(Rights::BOTH);
    let near = owner(ServiceLimits::default());
    let link = far.link(&near);
    // The neighbour's generation is the earlier one: generations of different extents are not compared.
    let [next, one] = [EXTENT, 0].map(|offset| lender.lend(offset, EXTENT));
    let [old, neighbour] = [one, next].map(|extent| mint(&far.life, &region, extent, Rights::BOTH));
    let (window, beside) = (ask(&link, old).unwrap(), ask(&link, neighbour).unwrap());
    let (copying, copying_beside) = (window.mark().unwrap(), beside.mark().unwrap());

    lender.fence(one);
    far.service.invalidate(&Revocation {
        region: region.id(),
        extent: Some(one),
    });
    assert!(copying.is_stale() && window.mark().is_err());
    assert!(!lender.is_idle(one), "a copy is under way");
    assert!(!copying_beside.is_stale() && beside.mark().is_ok());
    assert!(
        copying.finish().is_err(),
        "the copy that was under way does not count"
    );
    eventually("the end of the access", || lender.is_idle(one));
    assert!(copying_beside.finish().is_ok());

    let reused = lender.lend(0, EXTENT);
    assert!(matches!(
        ask(&link, old),
        Err(WindowError::Refused(Refusal::Generation))
    ));
    let again = mint(&far.life, &region, reused, Rights::READ);
    assert!(ask(&link, again).unwrap().mark().is_ok());
    assert!(beside.mark().is_ok());
}

/// A window was admitted as a read if its capability allowed reading, and could be written through all the same.
#[test]
fn a_window_is_admitted_with_all_that_can_be_done_through_it() {
    let (far, lender, region) = lending(Rights::BOTH);
    let (readable, _, read_only) = lending(Rights::READ);
    let near = owner(ServiceLimits::default());
    let extent = lender.lend(0, EXTENT);
    let link = far.link(&near);
    for rights in [Rights::READ, Rights::WRITE, Rights::BOTH] {
        let window = ask(&link, mint(&far.life, &region, extent, rights)).unwrap();
        assert_eq!(lender.accesses(extent).last(), Some(&rights));
        drop(window);
    }
    let beyond = mint(&readable.life, &read_only, extent, Rights::BOTH);
    assert!(matches!(
        ask(&readable.link(&near), beyond),
        Err(WindowError::Refused(Refusal::Rights))
    ));
}

#[test]
fn a_capability_of_the_previous_key_opens_no_window() {
    let (far, lender, region) = lending(Rights::BOTH);
    let near = owner(ServiceLimits::default());
    let link = far.link(&near);
    let extent = lender.lend(0, EXTENT);
    let old = mint(&far.life, &region, extent, Rights::READ);
    let window = ask(&link, old).unwrap();
    far.life.rotate(PATIENCE).unwrap();
    assert!(window.mark().is_err() && lender.is_idle(extent));
    // It is not refused: it holds for a while, where each use is asked for.
    assert!(matches!(ask(&link, old), Err(WindowError::NoAttach(_))));
    assert!(lender.is_idle(extent));
    far.life.rotate(Duration::ZERO).unwrap();
    assert!(matches!(
        ask(&link, old),
        Err(WindowError::Refused(Refusal::Forged))
    ));
}

/// Reads an extent through a window, with its checksum.
fn read(window: &OpenWindow, capability: Capability) -> Result<(Vec<u8>, Checksum), NotCopied> {
    let mut into = vec![0; EXTENT as usize];
    // SAFETY: the buffer outlives the request, and nothing else touches it.
    let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
    let remote = Remote {
        offset: capability.claims().offset,
        capability,
        key: None,
        trace: None,
    };
    let request = CopyRequest {
        op: Op::Read,
        buffers: &buffers,
        remote: &remote,
        deadline: now() + PATIENCE,
        part: None,
        submitted_bytes: EXTENT,
        checksum: true,
    };
    let summed = carry(&request, window, &CopyThreads::start(1).unwrap())?;
    drop(buffers);
    Ok((into, summed.unwrap()))
}

/// Each read of a small object asked its owner for a window of its own, which took ten times as long as the copy.
#[test]
fn one_window_is_for_all_reads_of_a_region_whose_generations_are_seen() {
    let table = Lender::with_table(4 * EXTENT, EXTENT);
    let (far, lender, region) = lending_by(table, Rights::BOTH);
    let near = owner(ServiceLimits::default());
    let link = far.link(&near);
    let [one, two] = [0, EXTENT].map(|offset| lender.lend(offset, EXTENT));
    let [first, second] = [one, two].map(|extent| mint(&far.life, &region, extent, Rights::READ));
    for (extent, byte) in [(one, 1), (two, 2)] {
        let whole = region.access(extent.offset, EXTENT).unwrap();
        whole.copy_in(0, &[byte; EXTENT as usize]);
    }
    let (mut opened, _) = link.ask(&[first, second], None, now() + PATIENCE).unwrap();
    assert!(matches!(opened.pop(), Some(Err(WindowError::Before))));
    let window = opened.pop().unwrap().unwrap();
    assert!(window.is_on_region() && !window.is_writable());
    assert!(lender.is_idle(one), "nobody waits for its readers");
    for (capability, byte) in [(first, 1), (second, 2)] {
        let bytes = vec![byte; EXTENT as usize];
        let (got, summed) = read(&window, capability).unwrap();
        assert!(got == bytes && summed == Checksum::of(&bytes));
    }
    lender.fence(one);
    far.service.invalidate(&Revocation {
        region: region.id(),
        extent: Some(one),
    });
    let refused = read(&window, first).unwrap_err();
    assert!(
        matches!(
            refused,
            NotCopied::Failed(Cause::Refused(Refusal::Generation))
        ),
        "{refused:?}"
    );
    assert!(read(&window, second).is_ok() && !window.is_over());
    let again = mint(&far.life, &region, lender.lend(0, EXTENT), Rights::READ);
    assert!(read(&window, again).is_ok());
    // A right to write is for its extent alone, and its copies are waited for.
    let write = ask(&link, mint(&far.life, &region, two, Rights::BOTH)).unwrap();
    assert!(!write.is_on_region() && !lender.is_idle(two));
    far.life.rotate(PATIENCE).unwrap();
    assert!(window.is_over() && matches!(read(&window, again), Err(NotCopied::Stale)));
    assert!(
        matches!(ask(&link, again), Err(WindowError::NoAttach(_))),
        "it is of the old key"
    );
}

/// Callers that read a region for the first time found a question under way. Each asked when it was its turn, though the
/// window of the first is on all of the region: as many slots at the owner as callers, and again after each new key.
#[test]
fn callers_that_wait_to_read_find_the_window_of_the_first() {
    let table = Lender::with_table(4 * EXTENT, EXTENT);
    let (far, lender, region) = lending_by(table, Rights::BOTH);
    let near = owner(ServiceLimits::default());
    let local = near.region(Memory::anonymous(8).unwrap());
    let (link, extent) = (far.link(&near), lender.lend(0, EXTENT));
    let segment = Segment {
        name: "test".to_owned(),
        incarnation: far.life.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host: None,
    };
    let state = CoreState {
        link: LinkState::Open(Arc::clone(&link)),
        ..CoreState::default()
    };
    let core = Arc::new(Core {
        segment: Arc::new(segment),
        service: Arc::clone(&near.service),
        copy_threads: CopyThreads::start(1).unwrap(),
        fallback: None,
        limits: HostLimits::default(),
        state: Mutex::new(state),
        wanted: Event::new(),
        flow: Arc::default(),
    });
    let mut rounds = 0;
    // A busy machine may take from a caller the moment for which it waits by itself.
    for _ in 0..1000 {
        far.life.rotate(PATIENCE).unwrap();
        let capability = mint(&far.life, &region, extent, Rights::READ);
        let read = || SingleRequest {
            op: Op::Read,
            buffers: Buffers::held(vec![local.access(0, 8).unwrap()]),
            remote: Remote {
                offset: 0,
                capability,
                key: None,
                trace: None,
            },
            deadline: now() + PATIENCE,
            checksum: false,
            may_wait: true,
        };
        let under_way = link.turn();
        let (waited, windows) = std::thread::scope(|threads| {
            let asks = [(); 4].map(|()| threads.spawn(|| core.ask_for_window(&read())));
            let is_over = || asks.iter().any(|ask| ask.is_finished());
            eventually("all wait", || link.waiting() == 4 || is_over());
            let waited = !is_over();
            drop(under_way);
            (waited, asks.map(|ask| ask.join().unwrap()))
        });
        let windows: Vec<_> = windows.into_iter().flatten().collect();
        if waited && windows.len() == 4 {
            let [first, others @ ..] = &windows[..] else {
                unreachable!()
            };
            let first = first.as_ref().unwrap();
            let is_first = |other: &Result<_, _>| Arc::ptr_eq(first, other.as_ref().unwrap());
            assert!(others.iter().all(is_first));
            assert!(first.mark().is_ok() && far.service.counts().1 == 1);
            rounds += 1;
        }
        if rounds == 2 {
            return;
        }
    }
    panic!("no caller waited long enough");
}

/// Bytes that were read while the extent got another use do not count.
#[test]
fn a_read_is_judged_after_its_last_byte() {
    let table = Lender::with_table(4 * EXTENT, EXTENT);
    let (far, lender, region) = lending_by(table, Rights::BOTH);
    let near = owner(ServiceLimits::default());
    let extent = lender.lend(0, EXTENT);
    let capability = mint(&far.life, &region, extent, Rights::READ);
    let window = ask(&far.link(&near), capability).unwrap();
    let (claims, link) = (capability.claims(), window.link());
    assert!(super::carry::under_mark(&window, &claims, |_| Ok(())).is_ok());
    // The window stays open, and its owner alive: nothing but the generation tells.
    let judged = super::carry::under_mark(&window, &claims, |_| {
        lender.fence(extent);
        Ok(())
    });
    assert!(
        matches!(
            judged,
            Err(NotCopied::Failed(Cause::Refused(Refusal::Generation)))
        ),
        "{judged:?}"
    );
    assert!(!window.is_over() && !link.is_gone());
}

/// A write under a right to read looked for a window of its own, which the owner answered with the one on all of the region:
/// it asked again as fast as it was answered, until its deadline.
#[test]
fn a_write_under_a_right_to_read_is_refused_at_once() {
    let table = Lender::with_table(4 * EXTENT, EXTENT);
    let (life, lender) = (Home::open().unwrap(), Arc::new(table));
    let far = HostMover::start(&life, HostLimits::default(), None).unwrap();
    let memory = Memory::shared(4 * EXTENT as usize).unwrap();
    let region = lender.region(memory, Rights::BOTH);
    let region = life.regions().register(region).unwrap();
    let right = mint(&life, &region, lender.lend(0, EXTENT), Rights::READ);
    let (engine, peer) = reaching(life.incarnation(), far.contact(), HostLimits::default());
    let target = Target {
        peer,
        offset: 0,
        capability: right,
        key: None,
    };
    for _ in 0..2 {
        let written = engine.write_now(&target, &[7; 8], PATIENCE);
        assert_eq!(written, Err(Cause::Refused(Refusal::Rights)));
    }
    assert_eq!(engine.read_now(&target, &mut [0; 8], PATIENCE), Ok(()));
    engine.close();
}

/// How many kibibytes of the mappings of this length have pages in this process.
fn resident_kib(bytes: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut is_it) = (0, false);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((begin, end)) = first.split_once('-')
            && let Some(address) = u64::from_str_radix(begin, 16)
                .ok()
                .zip(u64::from_str_radix(end, 16).ok())
        {
            is_it = address.1 - address.0 == bytes;
        } else if is_it && first == "Rss:" {
            found += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    found
}

/// A client that put one value after another, and read none, mapped all of its node's memory for each: the last window there
/// was dropped before the next one was asked for, and each page of a value was touched for the first time in every put.
#[test]
fn extents_that_are_written_one_after_another_share_a_mapping() {
    // No other memory of this process is as long.
    let bytes = 37 * EXTENT;
    let (life, lender) = (Home::open().unwrap(), Arc::new(Lender::default()));
    let far = HostMover::start(&life, HostLimits::default(), None).unwrap();
    let region = lender.region(Memory::shared(bytes as usize).unwrap(), Rights::BOTH);
    let region = life.regions().register(region).unwrap();
    let (engine, peer) = reaching(life.incarnation(), far.contact(), HostLimits::default());
    let before = resident_kib(bytes);
    for number in 1..=8 {
        let extent = lender.lend(number * EXTENT, EXTENT);
        let capability = mint(&life, &region, extent, Rights::BOTH);
        let target = Target {
            peer,
            offset: number * EXTENT,
            capability,
            key: None,
        };
        assert_eq!(engine.write_now(&target, &[7; 8], PATIENCE), Ok(()));
        lender.fence(extent);
        far.invalidate(&Revocation {
            region: region.id(),
            extent: Some(extent),
        });
        // At least: where pages are large, or come several at a time, there are more.
        assert!(
            resident_kib(bytes) - before >= number * EXTENT / 1024,
            "the pages of earlier writes are gone"
        );
    }
    engine.close();
}
