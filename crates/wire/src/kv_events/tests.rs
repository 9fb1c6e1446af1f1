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
        let batch = format.encode(1_760_000_000_250, 41, &events());
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
        let batch = format.encode(0, 0, std::slice::from_ref(&unparsed));
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
