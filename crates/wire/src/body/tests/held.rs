//! Reports of what nodes hold in their own format.

use super::*;

fn message(reports: Vec<Report>) -> Reports {
    Reports {
        epoch: Epoch(4),
        taken: 17,
        first: 1 << 33,
        clock_nanos: 1 << 50,
        reports,
    }
}

fn holds(entries: Vec<Published>) -> Report {
    Report::Holds {
        segment: extent().segment,
        entries,
        ahead: false,
    }
}

fn announce(entries: Vec<ReportedEntry>) -> Report {
    let segment = SegmentId(3);
    Report::Announce { segment, entries }
}

/// An extent of which nothing is said that need not be.
fn bare() -> Published {
    Published {
        pin: Pin::None,
        durability: Durability::Memory,
        group: None,
        chain: ChainPlace::default(),
        ..published()
    }
}

fn record(tenant: &str, key: &[u8]) -> ReportedEntry {
    ReportedEntry {
        entry: DiskEntry {
            tenant: Tenant::new(tenant).unwrap(),
            key: Key::new(key).unwrap(),
            version: Version(u64::MAX),
        },
        bytes: u64::MAX,
        checksum: Checksum(u64::MAX),
    }
}

/// Everything that the format has a place for.
fn listed() -> Vec<Report> {
    let chains = [
        ChainPlace {
            parent: Some(u64::MAX),
            ..ChainPlace::default()
        },
        ChainPlace {
            hint: Some(7),
            expect: Some(Expectation::Ends),
            ..ChainPlace::default()
        },
        ChainPlace {
            position: u32::MAX,
            expect: Some(Expectation::Continues),
            output_tokens: Some(0),
            ..ChainPlace::default()
        },
    ];
    let of_chains = chains.map(|chain| Published { chain, ..bare() });
    let of_pins = [Pin::Soft(None), Pin::Hard].map(|pin| Published { pin, ..bare() });
    let of_tenants = ["default", "acme", "b", "acme"].map(|tenant| Published {
        entry: record(tenant, &[0xff; 1024]).entry,
        ..published()
    });
    let all = [bare(), published()].into_iter();
    let all = all.chain(of_chains).chain(of_pins).chain(of_tenants);
    let records = [("b", b"k"), ("default", b"l"), ("b", b"m")];
    let records = records.map(|(tenant, key)| record(tenant, key));
    vec![holds(all.collect()), announce(records.into())]
}

/// The same, and what it has no place for.
fn everything() -> Reports {
    let other = Published {
        extent: ExtentRef {
            incarnation: Incarnation(9),
            ..extent()
        },
        ..bare()
    };
    let long = Published {
        pin: Pin::Soft(Some(Duration::MAX)),
        ..bare()
    };
    let mut all = reports();
    all.extend(listed());
    all.extend([
        holds(vec![]),
        announce(vec![]),
        holds(vec![bare(), other]),
        holds(vec![long]),
    ]);
    message(all)
}

#[test]
fn reports_say_the_same_in_either_format() {
    let check = |reports: Reports, format: u8| {
        let body = encode_reports(HELD, &reports).unwrap();
        assert_eq!(body[0], format, "{reports:?}");
        assert_eq!(decode::<Reports>(&body).as_ref(), Ok(&reports));
        for reads in [FORMAT, LOOK_UPS] {
            let plain = encode_reports(reads, &reports).unwrap();
            assert_eq!(plain, encode(&reports).unwrap(), "an earlier release");
        }
    };
    check(everything(), HELD);
    check(message(vec![]), FORMAT);
    check(message(vec![Report::Fenced(vec![extent()])]), FORMAT);
    check(message(vec![holds(vec![bare(); BATCH_KEYS_MAX])]), HELD);
    for report in reports() {
        let is_listed = matches!(report, Report::Holds { .. } | Report::Announce { .. });
        check(message(vec![report]), if is_listed { HELD } else { FORMAT });
    }
}

/// A kind of report that a master does not know would have its link closed as malformed.
#[test]
fn a_master_of_an_earlier_release_is_not_asked_what_it_does_not_know() {
    let told = |reads: u8| {
        let asking = vec![
            Report::Fenced(vec![extent()]),
            Report::Emptying(vec![entry()]),
            holds(vec![bare()]),
        ];
        let body = encode_reports(reads, &message(asking)).unwrap();
        decode::<Reports>(&body).unwrap().reports
    };
    let (before, after) = (Report::Fenced(vec![extent()]), holds(vec![bare()]));
    let known = [before.clone(), Report::Dropped(vec![]), after.clone()];
    for reads in [FORMAT, LOOK_UPS, HELD] {
        assert_eq!(told(reads), known, "one that reads {reads}");
    }
    assert_eq!(
        told(EMPTYING),
        [before, Report::Emptying(vec![entry()]), after]
    );
}

/// Of a million values the names of fields were four fifths.
#[test]
fn an_entry_is_little_longer_than_what_it_says() {
    let many = message(vec![holds(vec![bare(); 1000])]);
    let bytes = encode_reports(HELD, &many).unwrap().len();
    assert!(bytes < 85 * 1000, "{bytes}");
    assert!(encode(&many).unwrap().len() > 3 * bytes);
    let many = message(vec![announce(vec![record("b", b"key"); 1000])]);
    let bytes = encode_reports(HELD, &many).unwrap().len();
    assert!(bytes < 40 * 1000, "{bytes}");
}

#[test]
fn what_is_no_message_is_refused() {
    let all = everything();
    let body = encode_reports(HELD, &all).unwrap();
    for end in 1..body.len() {
        assert!(decode::<Reports>(&body[..end]).is_err(), "cut at {end}");
    }
    let longer = [body.as_slice(), &[0]].concat();
    assert_eq!(decode::<Reports>(&longer), Err(BodyError::Trailing));
    // Whatever is there, it is read or refused.
    let all = message(listed());
    let body = encode_reports(HELD, &all).unwrap();
    for at in 1..body.len() {
        for flip in [1, 0x80, 0xff] {
            let mut other = body.clone();
            other[at] ^= flip;
            if let Ok(read) = decode::<Reports>(&other) {
                assert_ne!(read, all, "the byte at {at} says nothing");
            }
        }
    }
}

/// A peer that claims a list of a million entries gets no memory for it.
#[test]
fn lists_are_as_long_as_what_is_there() {
    let one = message(vec![holds(vec![bare()])]);
    let body = encode_reports(HELD, &one).unwrap();
    let entries = 1 + 36 + 1 + 15;
    assert_eq!(body[entries..entries + 4], [1, 0, 0, 0]);
    let claims = |count: u32| {
        let mut body = body.clone();
        body[entries..entries + 4].copy_from_slice(&count.to_le_bytes());
        decode::<Reports>(&body)
    };
    assert_eq!(claims(1), Ok(one));
    for count in [2, BATCH_KEYS_MAX as u32 + 1, u32::MAX] {
        assert!(claims(count).is_err(), "{count}");
    }
    let tenants = entries - 2;
    let mut none = body.clone();
    none[tenants..tenants + 2].copy_from_slice(&[0, 0]);
    assert!(
        decode::<Reports>(&none).is_err(),
        "an entry without a tenant"
    );
}

/// The bytes of a release are read by the next one: a change here is a change of the format.
#[test]
fn the_bytes_of_what_nodes_hold_stay_as_they_are() {
    let reports = message(vec![
        holds(vec![published(), bare()]),
        announce(vec![record("b", b"k")]),
    ]);
    let body = encode_reports(HELD, &reports).unwrap();
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("held.txt").trim());
}
