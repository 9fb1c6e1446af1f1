//! Replays the committed fuzz corpora, and mutations of them, through the functions of the fuzz targets.

#[expect(
    unreachable_pub,
    reason = "public to the fuzz targets, which are crates of their own"
)]
#[path = "../../../fuzz/src/zmtp.rs"]
mod zmtp;

use std::path::Path;

use slackwater_base::Rng;

#[test]
fn corpora_and_their_mutations_break_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in zmtp::TARGETS {
        let mut rng = Rng::new(name.len() as u64);
        let mut seeds = 0;
        for entry in std::fs::read_dir(root.join(name)).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            target(&bytes);
            for _ in 0..40 {
                target(&mutated(&bytes, &mut rng));
            }
            seeds += 1;
        }
        assert!(seeds > 0, "no corpus for {name}");
    }
}

fn mutated(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            _ => bytes.push(0xff),
        }
    }
    bytes
}
