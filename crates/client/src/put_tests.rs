use std::time::Duration;

use slackwater_base::{Checksum, Instant, Rng};
use slackwater_wire::{ErrorCode, ExtentRef, Incarnation, Key, PutEntry, SegmentId, Tenant};

use super::*;

fn extent() -> ExtentRef {
    ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        offset: 0,
        bytes: 4096,
        generation: 1,
    }
}

fn granted(version: u64) -> PutStarted {
    PutStarted::Granted {
        version: Version(version),
        extents: vec![extent()],
    }
}

fn key(name: &str) -> Key {
    Key::try_from(name).unwrap()
}

fn put(names: &[&str], attempts: u32) -> (PutFlow, Vec<Action>) {
    let entries = names
        .iter()
        .map(|name| PutEntry {
            key: key(name),
            bytes: 100,
        })
        .collect();
    let start = PutStart {
        tenant: Tenant::DEFAULT,
        entries,
        chain: Default::default(),
        config: Default::default(),
    };
    let options = FlowOptions {
        deadline: Instant::ZERO + Duration::from_secs(5),
        attempts,
        backoff: FlowOptions::BACKOFF,
        jitter: Rng::new(1),
    };
    let mut out = vec![];
    let flow = PutFlow::start(start, options, &mut out);
    assert!(matches!(&out[..], [Action::Ask(Request::PutStart(_))]));
    out.clear();
    (flow, out)
}

const NOW: Instant = Instant::ZERO;
const SUM: Checksum = Checksum(9);

#[test]
fn what_is_written_whole_is_published_and_the_rest_revoked() {
    let (mut flow, mut out) = put(&["a", "b", "c", "d"], 1);
    let started = vec![
        granted(1),
        PutStarted::Exists,
        granted(2),
        PutStarted::Failed(ErrorCode::NoAvailableHandle),
    ];
    flow.on_reply(NOW, Reply::PutStart(started), &mut out);
    assert!(matches!(
        &out[..],
        [
            Action::Write { index: 0, .. },
            Action::Write { index: 2, .. }
        ]
    ));
    out.clear();
    flow.on_written(2, Err(WriteFailure::Transfer), &mut out);
    assert!(out.is_empty(), "one write is still under way");
    flow.on_written(0, Ok(SUM), &mut out);
    let revoke = Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("c"), Version(2))],
    };
    let done = PutDone {
        key: key("a"),
        version: Version(1),
        checksum: SUM,
    };
    let end = Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts: vec![done],
    });
    assert_eq!(out, [Action::Tell(revoke), Action::Ask(end)]);
    flow.on_reply(NOW, Reply::Each(vec![Ok(())]), &mut out);
    let outcomes = [
        PutOutcome::Stored,
        PutOutcome::Existed,
        PutOutcome::Failed(ErrorCode::TransferFail),
        PutOutcome::Failed(ErrorCode::NoAvailableHandle),
    ];
    assert_eq!(flow.outcomes().unwrap(), outcomes);
    assert_eq!(flow.next_deadline(), None);
}

#[test]
fn a_put_of_nothing_but_existing_keys_ends_at_once() {
    let (mut flow, mut out) = put(&["a"], 1);
    flow.on_reply(NOW, Reply::PutStart(vec![PutStarted::Exists]), &mut out);
    assert_eq!(
        (flow.outcomes().unwrap(), out),
        (vec![PutOutcome::Existed], vec![])
    );
}

#[test]
fn a_busy_master_is_asked_again_and_a_refusing_one_is_not() {
    let (mut flow, mut out) = put(&["a"], 2);
    flow.on_reply(NOW, Reply::Failed(ErrorCode::RpcFail), &mut out);
    let again = flow.next_deadline().unwrap();
    flow.on_deadline(again, &mut out);
    assert!(
        matches!(&out[..], [Action::Ask(Request::PutStart(start))] if start.entries.len() == 1)
    );
    flow.on_reply(
        again,
        Reply::Failed(ErrorCode::TenantQuotaExceeded),
        &mut out,
    );
    assert_eq!(
        flow.outcomes().unwrap(),
        [PutOutcome::Failed(ErrorCode::TenantQuotaExceeded)]
    );
}

#[test]
fn a_put_whose_end_is_not_answered_is_unknown_never_stored() {
    let (mut flow, mut out) = put(&["a"], 1);
    flow.on_reply(NOW, Reply::PutStart(vec![granted(1)]), &mut out);
    flow.on_written(0, Ok(SUM), &mut out);
    flow.on_link_lost(NOW);
    assert_eq!(flow.outcomes().unwrap(), [PutOutcome::Unknown]);
}

#[test]
fn a_write_still_under_way_at_the_deadline_is_revoked() {
    let (mut flow, mut out) = put(&["a", "b"], 1);
    flow.on_reply(NOW, Reply::PutStart(vec![granted(1), granted(2)]), &mut out);
    flow.on_written(0, Ok(SUM), &mut out);
    out.clear();
    flow.on_deadline(flow.next_deadline().unwrap(), &mut out);
    let revoke = Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("b"), Version(2))],
    };
    assert_eq!(out, [Action::Tell(revoke)]);
    let outcomes = [
        PutOutcome::Unknown,
        PutOutcome::Failed(ErrorCode::DeadlinePassed),
    ];
    assert_eq!(flow.outcomes().unwrap(), outcomes);
}
