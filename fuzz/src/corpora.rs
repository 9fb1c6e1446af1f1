//! The committed corpora, replayed by the tests of the crates that the targets are of.

use std::path::{Path, PathBuf};

use slackwater_base::Rng;

/// A file of the corpus of a target, or the folder of them.
pub(crate) fn file(target: &str, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    root.join(target).join(name)
}

/// What a target does with its bytes, behind its name.
type Named<'a> = (&'a str, fn(&[u8]));

/// Gives the files of its corpus to each target, and mutations of them.
pub(crate) fn replay(targets: &[Named<'_>]) {
    for (name, target) in targets {
        let mut rng = Rng::new(name.len() as u64);
        let mut seeds = 0;
        for entry in std::fs::read_dir(file(name, "")).expect("the folder of the corpus") {
            let path = entry.expect("a file of the corpus").path();
            let bytes = std::fs::read(path).expect("a file of the corpus");
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
