//! What every path has to do, in one place: each test runs every path that the processor has and names the others.

use slackwater_base::Rng;

use super::*;

const GUARD: u8 = 0xa5;

/// Runs one form of copy on every small length and some large ones, at many alignments of both ends, and compares
/// the bytes, the bytes around them, and the checksum if the form has one.
fn check(form: impl Fn(*mut u8, *const u8, usize) -> Option<Checksum>) {
    let mut rng = Rng::new(7);
    let every = if cfg!(miri) { 97 } else { 1 };
    let lengths = (0..1300).chain([4096, 16 * 1024 + 1, 100_003]);
    for len in lengths.step_by(every) {
        let (from, to) = (rng.below(130) as usize, rng.below(130) as usize);
        let source: Vec<u8> = (0..from + len).map(|_| rng.next_u64() as u8).collect();
        let mut target = vec![GUARD; to + len + 64];
        let sum = form(target[to..].as_mut_ptr(), source[from..].as_ptr(), len);
        assert_eq!(
            target[to..to + len],
            source[from..],
            "len {len} from {from} to {to}"
        );
        assert!(
            target[..to]
                .iter()
                .chain(&target[to + len..])
                .all(|&byte| byte == GUARD),
            "len {len} to {to}"
        );
        if let Some(sum) = sum {
            assert_eq!(
                sum,
                Checksum::of(&source[from..]),
                "len {len} from {from} to {to}"
            );
        }
    }
}

/// The paths that this processor has; the others are named, so that a run shows what it did not test.
#[expect(clippy::print_stdout, reason = "a skipped path is named")]
fn paths() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| {
        if !isa.available() {
            println!("skipped: {isa}, which this processor does not have");
        }
        isa.available()
    })
}

#[test]
fn every_path_copies_exactly_and_sums_what_it_copied() {
    for isa in paths() {
        for stores in [Stores::Cached, Stores::Streaming] {
            // SAFETY: `check` hands out ranges of two vectors that live through the call.
            check(|dst, src, len| unsafe {
                copy_with(isa, dst, src, len, stores);
                None
            });
            // SAFETY: as above.
            check(|dst, src, len| unsafe { Some(copy_checksum_with(isa, dst, src, len, stores)) });
        }
        // SAFETY: as above.
        check(|dst, src, len| unsafe {
            copy(dst, src, len);
            Some(checksum_with(isa, std::slice::from_raw_parts(src, len)))
        });
    }
    // SAFETY: as above.
    check(|dst, src, len| unsafe { Some(copy_checksum(dst, src, len)) });
}

/// Every offset of both ends within a line, beside lengths of whole rounds and one byte around them.
#[test]
#[cfg_attr(
    miri,
    ignore = "Miri has the portable path only, which the test above covers"
)]
fn every_alignment_is_copied_and_summed() {
    let source: Vec<u8> = (0..4096u32).map(|at| ((at * 131) >> 3) as u8).collect();
    let mut target = vec![0u8; 4096];
    for isa in paths() {
        for (from, to) in (0..64).flat_map(|from| (0..64).map(move |to| (from, to))) {
            for len in [512, 639, 640, 641, 767, 768, 769, 1024] {
                target.fill(GUARD);
                // SAFETY: both ranges end within their vectors.
                let sum = unsafe {
                    let (dst, src) = (target.as_mut_ptr().add(to), source.as_ptr().add(from));
                    copy_checksum_with(isa, dst, src, len, Stores::Cached)
                };
                let context = format!("{isa}: {len} bytes from {from} to {to}");
                assert_eq!(sum, Checksum::of(&source[from..from + len]), "{context}");
                assert!(
                    target[to..to + len] == source[from..from + len],
                    "{context}"
                );
                assert_eq!(
                    (target[to + len], to == 0 || target[to - 1] == GUARD),
                    (GUARD, true),
                    "{context}"
                );
            }
        }
    }
}

/// The bytes before and behind the whole rounds of a kernel go through a buffer, from which they are stored and summed.
/// The compiler copied them to the destination from the source instead, a second read: a peer that wrote its shared
/// memory in between had bytes delivered that no checksum covered. It does so only when it optimises.
#[test]
#[cfg_attr(miri, ignore = "another thread writes the source, which Miri reports")]
fn a_source_that_changes_meanwhile_is_summed_as_it_was_stored() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    // As many bytes behind the last whole round of every kernel as there can be, over many lines.
    const BEFORE_TAIL: usize = 71 + 512;
    let rounds = if cfg!(debug_assertions) {
        1_000
    } else {
        200_000
    };
    let len = BEFORE_TAIL + 255;
    let source: Vec<AtomicU64> = (0..len / 8 + 1).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let mut target = vec![0u8; 64 + len];
    let at = (target.as_ptr().align_offset(64) + 57) % 64;
    let differs = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u64;
            while !stop.load(Ordering::Relaxed) {
                value = !value;
                for word in &source[BEFORE_TAIL / 8..] {
                    word.store(value, Ordering::Relaxed);
                }
            }
        });
        let mut differs = Vec::new();
        for isa in paths() {
            for stores in [Stores::Cached, Stores::Streaming] {
                let differ = (0..rounds).any(|_| {
                    // SAFETY: both ranges lie within their vectors. The thread above plays the process that writes
                    // the source.
                    let sum = unsafe {
                        let dst = target.as_mut_ptr().add(at);
                        copy_checksum_with(isa, dst, source.as_ptr().cast(), len, stores)
                    };
                    sum != Checksum::of(&target[at..at + len])
                });
                if differ {
                    differs.push((isa, stores));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        differs
    });
    assert_eq!(differs, []);
}

#[test]
fn a_flipped_bit_changes_the_checksum() {
    let mut source = vec![0u8; 4096];
    let mut target = vec![0u8; 4096];
    let clean = Checksum::of(&source);
    for isa in paths() {
        for at in [0, 7, 8, 63, 64, 255, 256, 2048, 4095] {
            source[at] ^= 1;
            // SAFETY: two vectors of 4096 bytes.
            let sum = unsafe {
                let (dst, src) = (target.as_mut_ptr(), source.as_ptr());
                copy_checksum_with(isa, dst, src, 4096, Stores::Cached)
            };
            assert_ne!(sum, clean, "{isa}: byte {at}");
            source[at] ^= 1;
        }
    }
}

/// A kernel that loads or stores a whole vector beyond the end is noticed only where nothing is mapped there.
#[test]
#[cfg_attr(miri, ignore = "Miri maps no memory without access")]
fn no_path_touches_a_byte_beside_its_ranges() {
    let (source, target) = (Fenced::new(), Fenced::new());
    let bytes = Fenced::BYTES;
    for len in [1, 63, 511, 512, 513, 640, 1000, 4095, 8192, bytes] {
        // From the first byte of the pages on, and up to the last.
        for at in [0, bytes - len] {
            for isa in paths() {
                for stores in [Stores::Cached, Stores::Streaming] {
                    // SAFETY: `at + len` bytes of both are mapped, and only this test uses them.
                    let (sum, copied) = unsafe {
                        let (src, dst) = (source.start.add(at), target.start.add(at));
                        dst.write_bytes(GUARD, len);
                        copy_with(isa, dst, src, len, stores);
                        let sum = copy_checksum_with(isa, dst, src, len, stores);
                        (sum, std::slice::from_raw_parts(dst, len))
                    };
                    // SAFETY: as above.
                    let original = unsafe { std::slice::from_raw_parts(source.start.add(at), len) };
                    let context = format!("{isa}, {stores:?}: {len} bytes at {at}");
                    assert!(copied == original, "{context}");
                    assert_eq!(sum, checksum_with(isa, original), "{context}");
                    assert_eq!(sum, Checksum::of(original), "{context}");
                }
            }
        }
    }
}

/// Pages between two others that nobody may touch.
struct Fenced {
    start: *mut u8,
}

impl Fenced {
    const PAGE: usize = 4096;
    const BYTES: usize = 3 * Self::PAGE;

    fn new() -> Self {
        // SAFETY: a new mapping, whose inner pages alone become accessible.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let whole = Self::BYTES + 2 * Self::PAGE;
            let mapped = libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            let start = mapped.cast::<u8>().add(Self::PAGE);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(start.cast(), Self::BYTES, access), 0);
            start
        };
        for at in 0..Self::BYTES {
            // SAFETY: within the pages.
            unsafe { start.add(at).write(((at * 31) >> 3) as u8) };
        }
        Self { start }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and not used any more.
        unsafe {
            libc::munmap(
                self.start.sub(Self::PAGE).cast(),
                Self::BYTES + 2 * Self::PAGE,
            )
        };
    }
}
