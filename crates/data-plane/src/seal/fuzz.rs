//! What the fuzz target of sealed records does with its bytes. The test below replays its corpus, and mutations of it.

use zeroize::Zeroizing;

use super::{Cipher, Opener, PacketOpener, PacketSealer, RecordKey};

/// Sealed bytes. The first byte chooses between a connection and packets of a host link; two more say where in the genuine
/// bytes a change is, and the rest is laid over them there by exclusive or. With no more than three bytes nothing is changed.
pub fn records(bytes: &[u8]) {
    let [kind, at_high, at_low, change @ ..] = bytes else {
        return;
    };
    let texts: [&[u8]; 3] = [b"", b"seventeen letters", &[7; 5000]];
    let cipher = [Cipher::Aes, Cipher::ChaCha][usize::from(kind / 2 % 2)];
    let key = || RecordKey {
        secret: Zeroizing::new([5; 32]),
        cipher,
    };
    let mut sealer = PacketSealer::new(key());
    let genuine: Vec<Vec<u8>> = texts
        .map(|text| {
            let packet = sealer.seal(&[text]).to_vec();
            sealer.sent();
            packet
        })
        .into();
    let at = usize::from(u16::from_be_bytes([*at_high, *at_low]));
    let mut sealed = genuine.concat();
    let touched = sealed.iter_mut().skip(at).zip(change);
    touched.for_each(|(byte, change)| *byte ^= change);
    // The records before the first one that was changed open, and no other.
    let mut start = 0;
    let whole = genuine.iter().take_while(|packet| {
        let range = start..start + packet.len();
        start = range.end;
        sealed[range] == packet[..]
    });
    let expected: Vec<Vec<u8>> = whole.zip(texts).map(|(_, text)| text.to_vec()).collect();
    if kind % 2 == 0 {
        same_at_any_cut(&[&[1], sealed.as_slice()].concat(), |pieces| {
            let opened = open_all(Opener::proven(key()), &pieces[1..]);
            assert_eq!(opened, expected);
            opened.iter().map(|text| format!("{text:?}")).collect()
        });
        return;
    }
    let (mut opener, mut rest, mut opened) =
        (PacketOpener::new(key()), &mut sealed[..], Vec::new());
    for packet in &genuine {
        let (first, others) = rest.split_at_mut(packet.len());
        rest = others;
        let Ok(text) = opener.open(first) else {
            break;
        };
        opened.push(first[text].to_vec());
    }
    assert_eq!(opened, expected);
}

/// Runs what `run` does with the bytes whole, in two pieces, and byte by byte. The first byte stays a piece of its own.
pub fn same_at_any_cut(bytes: &[u8], run: impl Fn(&[&[u8]]) -> Vec<String>) {
    let Some((first, rest)) = bytes.split_first_chunk::<1>() else {
        return;
    };
    let whole = run(&[first, rest]);
    for cut in [1, rest.len() / 2] {
        if let Some((left, right)) = rest.split_at_checked(cut) {
            assert_eq!(run(&[first, left, right]), whole, "cut at {cut}");
        }
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(run(&single), whole, "byte by byte");
}

fn open_all(mut opener: Opener, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut opened = Vec::new();
    for mut piece in pieces.iter().copied() {
        while !piece.is_empty() {
            let space = opener.space();
            let (now, later) = piece.split_at(space.len().min(piece.len()));
            space[..now.len()].copy_from_slice(now);
            opener.received(now.len());
            piece = later;
            loop {
                match opener.open_next() {
                    Ok(Some(text)) => opened.push(text.to_vec()),
                    Ok(None) => break,
                    Err(_) => return opened,
                }
            }
        }
    }
    opened
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpora;

    #[test]
    fn corpora_and_their_mutations_break_nothing() {
        corpora::replay(&[("transfer_records", records)]);
    }
}
