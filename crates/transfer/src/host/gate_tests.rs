//! Windows on extents that are fenced one by one.

use std::sync::Arc;
use std::time::Duration;

use slackwater_wire::data::{Refusal, Rights};

use super::link::WindowError;
use super::service::ServiceLimits;
use super::tests::{Owner, PATIENCE, ask, eventually, owner};
use crate::lender::{Lender, mint};
use crate::memory::Memory;
use crate::region::{Region, Revocation};

const EXTENT: u64 = 4096;

fn lending(rights: Rights) -> (Owner, Arc<Lender>, Arc<Region>) {
    let (owner, lender) = (owner(ServiceLimits::default()), Arc::new(Lender::default()));
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
