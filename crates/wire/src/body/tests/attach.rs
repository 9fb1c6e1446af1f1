//! Messages between nodes and the master.

use super::*;
use crate::data::{Capability, MacKind};

fn hellos() -> Vec<NodeHello> {
    let mount = |segment, kind| Mount {
        segment: SegmentId(segment),
        name: "a".into(),
        node: NodeId(300),
        incarnation: Incarnation(1 << 60),
        kind,
        bytes: 1 << 30,
        host: "h".into(),
        generations: None,
        watermarks: None,
    };
    let Some(Welcome { nodes, .. }) = welcomes().pop() else {
        unreachable!("there is one")
    };
    let of = |macs: MacKind| NodeHello {
        epoch: Epoch(4),
        node: NodeId(300),
        life: NodeLife([1, u64::MAX]),
        welcomed: true,
        taken: 17,
        segments: vec![
            mount(600, SegmentKind::Memory),
            mount(601, SegmentKind::Disk),
        ],
        memory: MemoryAccess {
            contact: nodes[0].clone(),
            region: 2,
            secret: Secret([7; 32]),
            clock_nanos: 1 << 50,
            macs: macs.number(),
        },
    };
    // One that has watermarks of its own.
    let mut kept = of(MacKind::LATEST);
    kept.segments[0].watermarks = Some(Watermarks {
        low: 0.25,
        high: 0.5,
    });
    vec![of(MacKind::default()), of(MacKind::LATEST), kept]
}

fn node_welcomes() -> Vec<NodeWelcome> {
    let refused = Attached::Refused(ErrorCode::RoleNotPermitted);
    let of = |attached, reads| NodeWelcome {
        epoch: Epoch(4),
        attached,
        reads,
    };
    vec![
        of(Attached::New { floor: 1 << 40 }, FORMAT),
        of(Attached::Resumed { taken: 3 }, FORMAT),
        of(Attached::Unknown, FORMAT),
        of(refused, FORMAT),
        of(Attached::Resumed { taken: 3 }, HELD),
    ]
}

fn order_messages() -> Vec<Orders> {
    let message = |orders, asks| Orders {
        epoch: Epoch(4),
        taken: 3,
        first: 18,
        orders,
        asks,
    };
    // Earlier releases do not say the second, and pass over what is asked.
    vec![
        message(orders(), false),
        message(vec![Order::Published(Vec::new())], true),
    ]
}

fn report_messages() -> Vec<Reports> {
    vec![Reports {
        epoch: Epoch(4),
        taken: 17,
        first: 4,
        clock_nanos: 1 << 50,
        reports: reports(),
    }]
}

fn announced_first() -> Vec<AnnounceFirst> {
    vec![AnnounceFirst {
        epoch: Epoch(4),
        names: vec![(entry().tenant, entry().key)],
    }]
}

fn checks() -> Vec<CheckWritten> {
    vec![CheckWritten {
        epoch: Epoch(4),
        written: vec![Written {
            extent: extent(),
            bytes: 5000,
            checksum: Checksum(7),
        }],
    }]
}

fn checked() -> Vec<WrittenChecked> {
    [Ok(()), Err(ErrorCode::ChecksumMismatch)]
        .map(|result| WrittenChecked {
            epoch: Epoch(4),
            result,
        })
        .into()
}

fn stage_requests() -> Vec<StageRecord> {
    let record = record_reads().remove(0);
    [None, Some([9; 32])]
        .map(|holder| StageRecord {
            record: record.clone(),
            holder,
            lease: Duration::from_secs(5),
        })
        .into()
}

fn copies() -> Vec<CopyBytes> {
    vec![CopyBytes {
        epoch: Epoch(4),
        contact: hellos()[0].memory.contact.clone(),
        capability: Capability::from_bytes(&[7; Capability::BYTES]),
        offset: 4096,
        bytes: 5000,
        checksum: Checksum(7),
        target: extent(),
    }]
}

fn copied() -> Vec<BytesCopied> {
    [Ok(()), Err(ErrorCode::TransferFail)]
        .map(|result| BytesCopied {
            epoch: Epoch(4),
            result,
        })
        .into()
}

fn leaves() -> Vec<NodeLeave> {
    vec![NodeLeave {
        epoch: Epoch(4),
        time: Duration::from_secs(30),
    }]
}

fn left() -> Vec<NodeLeft> {
    [Ok(Box::new(job_state())), Err(ErrorCode::RoleNotPermitted)]
        .map(|result| NodeLeft {
            epoch: Epoch(4),
            result,
        })
        .into()
}

#[test]
fn messages_survive_and_nothing_shorter_or_longer_is_one() {
    round_trips(&hellos());
    round_trips(&node_welcomes());
    round_trips(&order_messages());
    round_trips(&report_messages());
    round_trips(&announced_first());
    round_trips(&checks());
    round_trips(&checked());
    round_trips(&stage_requests());
    round_trips(&copies());
    round_trips(&copied());
    round_trips(&leaves());
    round_trips(&left());
}

/// The bytes of a release are read by the next one: a change here is a change of the format.
#[test]
fn the_bytes_between_nodes_and_masters_stay_as_they_are() {
    let mut found = String::new();
    lines(&hellos(), &mut found);
    lines(&node_welcomes(), &mut found);
    lines(&order_messages(), &mut found);
    lines(&report_messages(), &mut found);
    lines(&announced_first(), &mut found);
    lines(&checks(), &mut found);
    lines(&checked(), &mut found);
    lines(&stage_requests(), &mut found);
    lines(&copies(), &mut found);
    lines(&copied(), &mut found);
    lines(&leaves(), &mut found);
    lines(&left(), &mut found);
    let golden = include_str!("golden.txt");
    for (found, golden) in found.lines().zip(golden.lines()) {
        assert_eq!(found, golden);
    }
    assert!(
        found.lines().count() == golden.lines().count(),
        "all kinds:\n{found}"
    );
}

/// A sender bounds what is under way by what it believes to be the length of its messages.
#[test]
fn no_order_or_report_is_longer_than_it_says() {
    let longest = ExtentRef {
        segment: SegmentId(u32::MAX),
        incarnation: Incarnation(u64::MAX),
        offset: u64::MAX,
        bytes: u64::MAX,
        generation: u64::MAX,
    };
    let task = OffloadTask {
        ticket: TicketId(u64::MAX),
        entry: DiskEntry {
            version: Version(u64::MAX),
            ..entry()
        },
        bytes: u64::MAX,
        checksum: Checksum(u64::MAX),
        source: longest,
        promised: true,
    };
    let more = [
        Order::Offload(vec![task; 40]),
        Order::Fence(vec![longest; 40]),
        Order::Published(vec![
            Published {
                extent: longest,
                bytes: u64::MAX,
                checksum: Checksum(u64::MAX),
                writer: ClientId(u64::MAX),
                pin: Pin::Soft(Some(Duration::MAX)),
                ..published()
            };
            40
        ]),
    ];
    for order in orders().into_iter().chain(more) {
        assert!(body_of(&order).len() <= order.bytes(), "{order:?}");
    }
    for report in reports() {
        assert!(body_of(&report).len() <= report.bytes(), "{report:?}");
    }
}

/// Clients of the last release name no node when they give memory back.
#[test]
fn a_release_without_a_node_is_for_the_masters_own_memory() {
    #[derive(serde::Serialize)]
    struct Old {
        client: ClientId,
        generation: u64,
    }
    let old = Old {
        client: ClientId(7),
        generation: 9,
    };
    let read = decode::<Release>(&body_of(&old)).unwrap();
    assert_eq!((read.generation, read.node), (9, NodeId(0)));
}

#[test]
fn a_secret_is_not_shown() {
    assert_eq!(format!("{:?}", hellos()[0].memory.secret), "Secret(..)");
}

/// A batch is cut by what it lists: one message of many items is as long as many of one.
#[test]
fn orders_and_reports_say_how_many_items_they_list() {
    let order = Order::Fence(vec![extent(); 3]);
    let report = Report::Dropped(vec![entry(); 4]);
    assert_eq!((order.items(), report.items()), (3, 4));
    assert_eq!(Order::Fence(Vec::new()).items(), 1);
}

/// A node of an earlier release takes the orders, and says how far it came when it reports.
#[test]
fn what_a_master_asks_travels_behind_what_earlier_releases_know() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct OldOrders {
        epoch: Epoch,
        taken: u64,
        first: u64,
        orders: Vec<Order>,
    }
    let [_, asks] = order_messages().try_into().unwrap();
    let old: OldOrders = rmp_serde::from_slice(&body_of(&asks)[1..]).unwrap();
    assert_eq!((old.first, &old.orders), (asks.first, &asks.orders));
    let unasked = Orders {
        asks: false,
        ..asks
    };
    assert_eq!(body_of(&unasked), body_of(&old));
    assert_eq!(decode::<Orders>(&body_of(&old)), Ok(unasked));
}
