use super::super::AesLibrary;
use super::*;

fn ends(cipher: Cipher) -> (Sealer, Opener) {
    let key = || RecordKey {
        secret: Zeroizing::new([5; 32]),
        cipher,
    };
    (Sealer::after(key(), Vec::new()), Opener::proven(key()))
}

fn record(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
    let taken = sealer.seal(|record| record.extend_from_slice(text));
    assert_eq!(taken, text.len());
    let bytes = sealer.pending().to_vec();
    sealer.wrote(bytes.len());
    bytes
}

fn arrive(opener: &mut Opener, bytes: &[u8]) {
    opener.space()[..bytes.len()].copy_from_slice(bytes);
    opener.received(bytes.len());
}

#[test]
fn records_open_in_order_whole_or_in_pieces() {
    for cipher in [Cipher::Aes, Cipher::ChaCha] {
        let (mut sealer, mut opener) = ends(cipher);
        for bytes in [0, 1, 17, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX, 5] {
            let text: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
            let sealed = record(&mut sealer, &text);
            let (first, second) = sealed.split_at(sealed.len() / 3);
            arrive(&mut opener, first);
            assert_eq!(opener.open_next(), Ok(None));
            arrive(&mut opener, second);
            assert_eq!(opener.open_next(), Ok(Some(text.as_slice())));
        }
    }
}

/// The peer opens no longer one: it would end the connection far from the mistake.
#[test]
fn a_record_that_is_longer_than_the_peer_opens_is_not_sealed() {
    let seal = |bytes: usize| {
        let (mut sealer, _) = ends(Cipher::ChaCha);
        std::panic::catch_unwind(move || {
            sealer.seal(|record| record.resize(record.len() + bytes, 7))
        })
    };
    assert_eq!(seal(RECORD_BYTES_MAX).ok(), Some(RECORD_BYTES_MAX));
    assert!(seal(RECORD_BYTES_MAX + 1).is_err());
}

/// A connection took 128 KiB as soon as its peer had greeted, before the peer had proven anything.
#[test]
fn a_peer_has_little_room_before_its_proof_has_opened() {
    let key = || RecordKey {
        secret: Zeroizing::new([5; 32]),
        cipher: Cipher::ChaCha,
    };
    let (mut sealer, mut opener) = (Sealer::after(key(), Vec::new()), Opener::new(key()));
    assert_eq!(opener.space().len(), PROOF_SPACE);
    // The start of the second record comes with the first one.
    let (proof, text) = (record(&mut sealer, b""), vec![7; RECORD_BYTES_MAX]);
    let second = record(&mut sealer, &text);
    let (with_proof, rest) = second.split_at(PROOF_SPACE - proof.len());
    arrive(&mut opener, &[&proof, with_proof].concat());
    assert!(
        opener.space().is_empty(),
        "what is not opened takes no more"
    );
    assert_eq!(opener.open_next(), Ok(Some(&b""[..])));
    assert_eq!(opener.open_next(), Ok(None));
    arrive(&mut opener, rest);
    assert_eq!(opener.open_next(), Ok(Some(text.as_slice())));
}

/// A record may not depend on which library seals it.
#[test]
fn records_are_those_of_other_libraries() {
    // From RustCrypto's aes-gcm 0.10 and from ring 0.17.
    let known = [
        (
            Cipher::Aes,
            "140000007d9a30f0a921ea3eb65467024db1caaf4bc0c9c3ab758a5e8e8167bc130abefa496960cb",
        ),
        (
            Cipher::ChaCha,
            "14000000a541fb4bda503557fd8097900ee070f61dae979d2247d069cb90372a80eba4b4969090d0",
        ),
    ];
    let check = |sealer: &mut Sealer, expected: &str, what: &str| {
        let sealed = record(sealer, b"twenty bytes of text");
        let found: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected, "{what}");
    };
    for (cipher, expected) in known {
        check(&mut ends(cipher).0, expected, &format!("{cipher:?}"));
    }
    for library in AesLibrary::ALL {
        let (mut sealer, _) = ends(Cipher::Aes);
        sealer.direction.aead = AeadKey::aes(*library, &[5; 32]);
        check(&mut sealer, known[0].1, library.name());
    }
}

#[test]
fn what_is_changed_repeated_or_left_out_does_not_open() {
    for cipher in [Cipher::Aes, Cipher::ChaCha] {
        let sealed = record(&mut ends(cipher).0, b"twenty bytes of text");
        for bit in 0..sealed.len() * 8 {
            let (mut opener, mut changed) = (ends(cipher).1, sealed.clone());
            changed[bit / 8] ^= 1 << (bit % 8);
            arrive(&mut opener, &changed);
            // With a longer length the opener waits for more bytes, and the record fails then.
            let opened = opener.open_next().map(|text| text.map(<[u8]>::to_vec));
            assert!(
                matches!(opened, Err(SealError::Record) | Ok(None)),
                "{cipher:?}, bit {bit}"
            );
        }
        let (mut sealer, mut opener) = ends(cipher);
        let (first, second) = (
            record(&mut sealer, b"first"),
            record(&mut sealer, b"second"),
        );
        arrive(&mut opener, &[first.as_slice(), &first].concat());
        assert_eq!(opener.open_next(), Ok(Some(b"first".as_slice())));
        assert_eq!(opener.open_next(), Err(SealError::Record));
        let mut opener = ends(cipher).1;
        arrive(&mut opener, &second);
        assert_eq!(opener.open_next(), Err(SealError::Record));
    }
}

fn packet_ends() -> (PacketSealer, PacketOpener) {
    let key = || RecordKey {
        secret: Zeroizing::new([5; 32]),
        cipher: Cipher::ChaCha,
    };
    (PacketSealer::new(key()), PacketOpener::new(key()))
}

#[test]
fn a_packet_is_one_record_and_one_that_was_not_sent_has_no_number() {
    let (mut sealer, mut opener) = packet_ends();
    let mut exchange = |parts: &[&[u8]]| {
        let mut packet = sealer.seal(parts).to_vec();
        sealer.sent();
        let text = opener.open(&mut packet)?;
        Ok::<_, SealError>(packet[text].to_vec())
    };
    assert_eq!(exchange(&[b"one", b" packet"]).unwrap(), b"one packet");
    assert_eq!(exchange(&[]).unwrap(), b"");
    let long = vec![7; RECORD_BYTES_MAX];
    assert_eq!(exchange(&[&long]).unwrap(), long);
    let stream = record(&mut ends(Cipher::ChaCha).0, b"twenty bytes of text");
    let (mut sealer, mut opener) = packet_ends();
    assert_eq!(sealer.seal(&[b"twenty bytes of text"]), stream);
    // The socket was full: another question goes out in its place.
    let mut other = sealer.seal(&[b"other"]).to_vec();
    sealer.sent();
    assert!(opener.open(&mut other).is_ok());
}

#[test]
fn a_packet_that_was_changed_cut_repeated_or_left_out_does_not_open() {
    let (mut sealer, _) = packet_ends();
    let first = sealer.seal(&[b"first"]).to_vec();
    sealer.sent();
    let second = sealer.seal(&[b"second"]).to_vec();
    let check = |packets: &[&[u8]], opened: usize| {
        let mut opener = packet_ends().1;
        let opens = |packet: &&&[u8]| opener.open(&mut packet.to_vec()).is_ok();
        assert_eq!(packets.iter().take_while(opens).count(), opened);
    };
    check(&[&first, &second], 2);
    check(&[&first, &first], 1);
    check(&[&second], 0);
    for bytes in 0..first.len() {
        check(&[&first[..bytes]], 0);
    }
    for bit in 0..first.len() * 8 {
        let mut changed = first.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        check(&[&changed], 0);
    }
    check(&[&[first.as_slice(), &second].concat()], 0);
}

#[test]
fn both_ends_of_packets_take_the_next_key_at_the_same_packet() {
    let (mut sealer, mut opener) = packet_ends();
    sealer.direction.count = RECORDS_PER_KEY - 1;
    opener.direction.count = RECORDS_PER_KEY - 1;
    for text in [b"last".as_slice(), b"first of the next", b"second"] {
        // The second time is that which goes out.
        sealer.seal(&[b"not sent"]);
        let mut packet = sealer.seal(&[text]).to_vec();
        sealer.sent();
        let found = opener.open(&mut packet).unwrap();
        assert_eq!(&packet[found], text);
    }
    assert_eq!(sealer.direction.count, 2);
}

#[test]
fn both_ends_take_the_next_key_at_the_same_record() {
    let (mut sealer, mut opener) = ends(Cipher::ChaCha);
    sealer.direction.count = RECORDS_PER_KEY - 1;
    opener.direction.count = RECORDS_PER_KEY - 1;
    for text in [b"last".as_slice(), b"first of the next", b"second"] {
        arrive(&mut opener, &record(&mut sealer, text));
        assert_eq!(opener.open_next(), Ok(Some(text)));
    }
    assert_ne!(*sealer.direction.key.secret, [5; 32]);
    assert_eq!(sealer.direction.count, 2);
}

/// The key that followed could have been written down and never used: both ends would go on with the first one, open each other's
/// records, and use its nonces a second time.
#[test]
fn the_first_record_of_the_next_key_is_sealed_with_that_key() {
    for cipher in [Cipher::Aes, Cipher::ChaCha] {
        let (mut sealer, _) = ends(cipher);
        sealer.direction.count = RECORDS_PER_KEY;
        let found = record(&mut sealer, b"first of the next");
        let next = RecordKey {
            secret: expand(&[5; 32], b"next"),
            cipher,
        };
        let mut fresh = Sealer::after(next, Vec::new());
        assert_eq!(
            found,
            record(&mut fresh, b"first of the next"),
            "{cipher:?}"
        );
        assert_ne!(found, record(&mut ends(cipher).0, b"first of the next"));
    }
}
