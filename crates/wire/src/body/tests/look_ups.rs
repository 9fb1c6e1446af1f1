//! Answers to look-ups in their own format.

use super::*;
use crate::data::{Capability, CapabilityKey, Grant, MacKind, Rights};

const OWNER_BYTES: usize = 50;

/// The right to read an object at an extent, as a master mints it.
fn right(extent: &ExtentRef, bytes: u64, expires_nanos: u64) -> Capability {
    let key = CapabilityKey::new(&[3; 32]);
    let kind = MacKind::up_to(extent.segment.0 as u8 % 2);
    key.making(kind).mint(&Grant {
        incarnation: Incarnation(extent.incarnation.0 + 1),
        region: extent.segment.0 + 2,
        generation: extent.generation,
        offset: extent.offset,
        bytes,
        rights: Rights::READ,
        tenant: 0,
        holder: Incarnation(77),
        expires_nanos,
        nonce: 1 << 40 | extent.generation,
    })
}

fn at(segment: u32, generation: u64) -> ExtentRef {
    ExtentRef {
        segment: SegmentId(segment),
        generation,
        ..extent()
    }
}

fn found(replicas: &[ReplicaAt]) -> Lookup {
    Lookup::Found(Object {
        version: Version(1 << 40),
        bytes: 5000,
        checksum: Checksum(u64::MAX - 1),
        replicas: replicas.into(),
        lease: Duration::from_millis(10_500),
        guard: None,
    })
}

/// An answer with the rights to all that it names.
fn answered(lookups: Vec<Lookup>) -> Answered {
    let reply = Reply::Get(lookups);
    let rights = reply.extents();
    let rights = rights.iter().map(|it| right(&it.extent, it.bytes, 9 << 50));
    Answered {
        epoch: Epoch(4),
        capabilities: rights.collect(),
        reply,
    }
}

/// An answer with everything that the format has a place for.
fn everything() -> Answered {
    let memory = |segment, generation| ReplicaAt::Memory(at(segment, generation));
    let disk = ReplicaAt::Disk {
        node: NodeId(3),
        segment: SegmentId(9),
    };
    let mut all = answered(vec![
        found(&[memory(1, 5)]),
        Lookup::Missing,
        found(&[memory(2, 6), disk, memory(1, 7)]),
        Lookup::NotReady,
        Lookup::Failed(ErrorCode::InvalidParams),
        found(&[disk]),
        found(&[memory(1, 8)]),
        found(&[memory(2, 9)]),
        found(&[]),
    ]);
    // The clock of a node was heard anew in between, and a node has left.
    all.capabilities[3] = right(&at(1, 8), 5000, 10 << 50);
    all.capabilities[4] = Capability::VOID;
    all
}

#[test]
fn an_answer_says_the_same_in_either_format() {
    let check = |answered: Answered, format: u8| {
        let body = encode_for(LOOK_UPS, &answered).unwrap();
        assert_eq!(body[0], format, "{answered:?}");
        assert_eq!(decode::<Answered>(&body).as_ref(), Ok(&answered));
        let plain = encode_for(FORMAT, &answered).unwrap();
        assert_eq!(plain, encode(&answered).unwrap(), "an earlier release");
        assert_eq!(decode::<Answered>(&plain), Ok(answered));
    };
    check(everything(), LOOK_UPS);
    check(answered(vec![]), LOOK_UPS);
    check(answered(vec![Lookup::Missing; BATCH_KEYS_MAX]), LOOK_UPS);
    // What it has no place for.
    check(answered(vec![Lookup::Missing; BATCH_KEYS_MAX + 1]), FORMAT);
    let one = || answered(vec![found(&[ReplicaAt::Memory(at(1, 5))])]);
    let other = |change: &dyn Fn(&mut Object)| {
        let mut answered = one();
        if let Reply::Get(lookups) = &mut answered.reply {
            lookups.extend(one().reply.into_lookups());
            if let Some(Lookup::Found(object)) = lookups.last_mut() {
                change(object);
            }
        }
        answered.capabilities.push(answered.capabilities[0]);
        answered
    };
    check(other(&|_| {}), LOOK_UPS);
    check(other(&|object| object.guard = Some(GuardId(1))), FORMAT);
    check(other(&|object| object.lease *= 2), FORMAT);
    check(other(&|object| object.bytes += 1), FORMAT);
    let with = |rights: Vec<Capability>| Answered {
        capabilities: rights,
        ..one()
    };
    check(with(vec![]), FORMAT);
    check(with(vec![right(&at(1, 5), 5000, 1); 2]), FORMAT);
    check(with(vec![right(&at(1, 6), 5000, 1)]), FORMAT);
    check(with(vec![right(&at(1, 5), 4999, 1)]), FORMAT);
    let beyond = ExtentRef {
        offset: 1,
        ..at(1, 5)
    };
    check(with(vec![right(&beyond, 5000, 1)]), FORMAT);
    // Bits that this release knows nothing of, beside claims of the same extent.
    for (byte, bits) in [(12, 4 | 1), (14, 1), (15, 1)] {
        let mut bytes = right(&at(1, 5), 5000, 1).to_bytes();
        bytes[byte] = bits;
        check(with(vec![Capability::from_bytes(&bytes)]), FORMAT);
    }
    let done = Answered {
        reply: Reply::Done,
        ..with(vec![])
    };
    check(done, FORMAT);
}

/// An item was 230 bytes, most of them names and what the capability beside it said again.
#[test]
fn an_item_of_a_batch_is_short() {
    let batch = |items: u64| {
        let items = (0..items).map(|n| found(&[ReplicaAt::Memory(at(n as u32 % 4, n))]));
        encode_for(LOOK_UPS, &answered(items.collect())).unwrap()
    };
    assert_eq!(batch(1024).len() - batch(1023).len(), 76);
    assert_eq!(batch(4).len(), 1 + 22 + 4 * (76 + OWNER_BYTES));
}

#[test]
fn bytes_stay_what_they_are() {
    let mut text = String::new();
    for byte in encode_for(LOOK_UPS, &everything()).unwrap() {
        write!(text, "{byte:02x}").unwrap();
    }
    assert_eq!(text, include_str!("look_ups.txt").trim_end());
}

#[test]
fn nothing_shorter_or_longer_is_an_answer() {
    let body = encode_for(LOOK_UPS, &everything()).unwrap();
    for end in 0..body.len() {
        assert!(decode::<Answered>(&body[..end]).is_err(), "cut at {end}");
    }
    let longer = [body.as_slice(), &[0]].concat();
    assert_eq!(decode::<Answered>(&longer), Err(BodyError::Trailing));
}

#[test]
fn what_is_unknown_is_refused() {
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let mut body = encode_for(LOOK_UPS, &everything()).unwrap();
        change(&mut body);
        let error = decode::<Answered>(&body).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let header = 1 + 22;
    let items = header + 4 * OWNER_BYTES;
    check(&|body| body[items] = 4, "an unknown kind of item");
    check(&|body| body[items + 26] = 4, "a place without an owner");
    check(&|body| body[header - 3] = 0x20, "more items than");
    check(&|body| body[0] = LOOK_UPS + 1, "of format 3");
    // Other messages have no such format.
    let body = encode_for(LOOK_UPS, &everything()).unwrap();
    let found = LOOK_UPS;
    assert_eq!(decode::<Reply>(&body), Err(BodyError::Format { found }));
}

/// One key with a code of a newer master made the answers to all keys of a batch unreadable, where named fields took it
/// for an internal error of that key.
#[test]
fn an_unknown_error_code_is_that_of_its_key_alone() {
    let one = found(&[ReplicaAt::Memory(at(1, 5))]);
    let sent = answered(vec![Lookup::Failed(ErrorCode::ALL[0]), one.clone()]);
    let mut body = encode_for(LOOK_UPS, &sent).unwrap();
    let code = 1 + 22 + OWNER_BYTES + 1;
    body[code..code + 4].fill(0x7f);
    let read = decode::<Answered>(&body).unwrap();
    let unknown = Lookup::Failed(ErrorCode::InternalError);
    assert_eq!(read.reply, Reply::Get(vec![unknown, one]));
}

/// The number that stands for a log would make logs of its places.
#[test]
fn no_owner_has_the_number_of_logs() {
    let owners = u32::from(u16::MAX) + 1;
    let per_item = owners / BATCH_KEYS_MAX as u32;
    let item = |n: u32| {
        let segments = n * per_item..(n + 1) * per_item;
        let places: Vec<_> = segments.map(|of| ReplicaAt::Memory(at(of, 5))).collect();
        found(&places)
    };
    let all = answered((0..BATCH_KEYS_MAX as u32).map(item).collect());
    let body = encode_for(LOOK_UPS, &all).unwrap();
    assert_eq!(body[0], FORMAT);
    assert_eq!(decode::<Answered>(&body), Ok(all));
}

impl Reply {
    fn into_lookups(self) -> Vec<Lookup> {
        match self {
            Reply::Get(lookups) => lookups,
            _ => Vec::new(),
        }
    }
}

proptest! {
    /// Whatever stands there, reading it ends, and takes memory in proportion to it.
    #[test]
    fn any_bytes_are_an_answer_or_none(changed in any::<(u16, u8)>(), cut in any::<u16>()) {
        let mut body = encode_for(LOOK_UPS, &everything()).unwrap();
        let at = 1 + usize::from(changed.0) % (body.len() - 1);
        body[at] = changed.1;
        if let Ok(read) = decode::<Answered>(&body) {
            let again = encode_for(LOOK_UPS, &read).unwrap();
            prop_assert_eq!(decode::<Answered>(&again), Ok(read));
        }
        body.truncate(usize::from(cut) % body.len());
        prop_assert!(decode::<Answered>(&body).is_err());
    }
}
