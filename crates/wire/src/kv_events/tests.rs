use std::fmt::Write;

use super::*;

fn held(key: &[u8], tier: SegmentKind) -> Held {
    Held {
        tenant: Tenant::new("acme").unwrap(),
        key: Key::new(key).unwrap(),
        tier,
    }
}

fn events() -> Vec<KvEvent> {
    vec![
        KvEvent::Cleared,
        KvEvent::Stored(held(b"255", SegmentKind::Memory)),
        KvEvent::Stored(held(b"no hash", SegmentKind::Memory)),
        KvEvent::Removed(held(b"model@8@3@-7b@half", SegmentKind::Disk)),
        KvEvent::Stored(held(b"\xff", SegmentKind::Disk)),
    ]
}

/// Batches in every form, one a line: its name, its bytes in hex.
fn golden() -> String {
    let mut text = String::new();
    let of = |dialect| KvEventFormat {
        dialect,
        ..KvEventFormat::default()
    };
    let formats = [
        ("map", of(KvDialect::Map)),
        ("legacy-array", of(KvDialect::LegacyArray)),
        ("rfc1527", of(KvDialect::Rfc1527)),
        (
            "rfc1527-bare",
            KvEventFormat {
                backend: "pool-7".to_owned(),
                model: "qwen".to_owned(),
                block_tokens: 16,
                dp_rank: Some(3),
                with_key: false,
                with_type: false,
                ..of(KvDialect::Rfc1527)
            },
        ),
        (
            "map-of-rank",
            KvEventFormat {
                block_tokens: 256,
                dp_rank: Some(1),
                ..of(KvDialect::Map)
            },
        ),
    ];
    for (name, format) in formats {
        let batch = KvEncoder::new(format).encode(1_760_000_000_250, 41, &events());
        write!(text, "{name} {} {} ", batch.events, batch.unparsed).unwrap();
        for byte in batch.body.unwrap() {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

/// The bytes that readers depend on; `python/tests/test_kv_events.py` reads the same lines as engines' own readers do.
#[test]
fn bytes_of_batches_stay_as_they_are() {
    let (now, kept) = (golden(), include_str!("../../golden/kv-events.txt"));
    assert!(now == kept, "the lines are now:\n{now}");
}

#[test]
fn a_batch_of_which_nothing_can_be_told_has_no_bytes() {
    let unparsed = KvEvent::Stored(held(b"no hash", SegmentKind::Memory));
    let check = |dialect, with_key, told: bool| {
        let format = KvEventFormat {
            dialect,
            with_key,
            ..KvEventFormat::default()
        };
        let batch = KvEncoder::new(format).encode(0, 0, std::slice::from_ref(&unparsed));
        assert_eq!(batch.body.is_some(), told, "{dialect:?} {with_key}");
        assert_eq!(
            [batch.events, batch.unparsed],
            [u64::from(told), u64::from(!told)]
        );
    };
    check(KvDialect::Map, true, false);
    check(KvDialect::LegacyArray, true, false);
    check(KvDialect::Rfc1527, true, true);
    check(KvDialect::Rfc1527, false, false);
}

/// What a batch of events told, in short: `+` stored, `-` removed or `0` cleared, and how many hashes; `.` when nothing.
fn told(encoder: &mut KvEncoder, events: &[KvEvent]) -> String {
    let each = events.iter().map(|event| match encoder.count(event) {
        Said::Known => ".".to_owned(),
        Said::Unparsed => "?".to_owned(),
        Said::Told(hash) => {
            let kind = match event {
                KvEvent::Stored(_) | KvEvent::Repeated(_) => '+',
                KvEvent::Removed(_) => '-',
                KvEvent::Cleared => '0',
            };
            format!("{kind}{}", usize::from(hash.is_some()))
        }
    });
    each.collect::<Vec<_>>().join(" ")
}

/// The first of the ranks of a block that went had routers take the block for gone, although the others were there.
#[test]
fn a_block_of_several_values_is_told_when_the_first_comes_and_when_the_last_goes() {
    let rank = |rank: u32| format!("model@8@{rank}@7b@half");
    let of = |tenant: &str, rank_of: u32, tier| Held {
        tenant: Tenant::new(tenant).unwrap(),
        key: Key::new(rank(rank_of).as_bytes()).unwrap(),
        tier,
    };
    let (memory, disk) = (SegmentKind::Memory, SegmentKind::Disk);
    let events = [
        KvEvent::Stored(of("acme", 0, memory)),
        KvEvent::Stored(of("acme", 1, memory)),
        KvEvent::Stored(of("acme", 1, disk)),
        KvEvent::Removed(of("acme", 0, memory)),
        KvEvent::Stored(of("globex", 0, memory)),
        KvEvent::Removed(of("acme", 1, memory)),
        KvEvent::Removed(of("globex", 0, memory)),
        KvEvent::Removed(of("acme", 1, disk)),
        KvEvent::Stored(of("acme", 0, memory)),
        KvEvent::Stored(of("acme", 1, memory)),
        KvEvent::Cleared,
        KvEvent::Stored(of("acme", 1, memory)),
        KvEvent::Removed(of("acme", 1, memory)),
    ];
    let check = |dialect, with_key, expected: &str| {
        let mut encoder = KvEncoder::new(KvEventFormat {
            dialect,
            with_key,
            ..KvEventFormat::default()
        });
        assert_eq!(told(&mut encoder, &events), expected, "{dialect:?}");
        assert_eq!(encoder.holders.len(), 0, "nothing is held");
    };
    let of_blocks = "+1 . +1 . . . -1 -1 +1 . 00 +1 -1";
    check(KvDialect::Map, true, of_blocks);
    check(KvDialect::LegacyArray, true, of_blocks);
    // It tells tenants apart, and values by their keys.
    let of_values = "+1 +1 +1 -0 +1 -1 -1 -1 +1 +1 00 +1 -1";
    check(KvDialect::Rfc1527, true, of_values);
    check(
        KvDialect::Rfc1527,
        false,
        "+1 . +1 . +1 -1 -1 -1 +1 . 00 +1 -1",
    );
}

#[test]
fn what_one_medium_has_lost_is_still_counted_in_the_other() {
    let mut encoder = KvEncoder::new(KvEventFormat::default());
    let one = |name: &[u8], tier| held(name, tier);
    let (memory, disk) = (SegmentKind::Memory, SegmentKind::Disk);
    let events = [
        KvEvent::Stored(one(b"255", disk)),
        KvEvent::Stored(one(b"0xff", disk)),
        KvEvent::Stored(one(b"255", memory)),
        KvEvent::Removed(one(b"255", memory)),
        KvEvent::Removed(one(b"255", disk)),
        KvEvent::Removed(one(b"0xff", disk)),
    ];
    assert_eq!(told(&mut encoder, &events), "+1 . +1 -1 . -1");
}

#[test]
fn what_is_known_already_is_neither_told_nor_taken_for_unparsed() {
    let mut encoder = KvEncoder::new(KvEventFormat::default());
    let one = |key: &[u8]| KvEvent::Stored(held(key, SegmentKind::Memory));
    let batch = encoder.encode(0, 0, &[one(b"255"), one(b"0xff"), one(b"no hash")]);
    assert_eq!([batch.events, batch.unparsed], [1, 1]);
    let again = encoder.encode(0, 0, &[one(b"0x00ff")]);
    assert_eq!((again.body, again.unparsed), (None, 0));
    let late = [KvEvent::Repeated(held(b"255", SegmentKind::Memory))];
    assert_eq!(encoder.encode(0, 0, &late).events, 1);
    let gone = |key: &[u8]| KvEvent::Removed(held(key, SegmentKind::Memory));
    let gone = [b"255".as_slice(), b"0xff", b"0x00ff"].map(gone);
    assert_eq!(told(&mut encoder, &gone), ". . -1", "it counts for nothing");
}
