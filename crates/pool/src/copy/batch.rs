use std::sync::OnceLock;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_wait::now;

use super::{Isa, Tuning, checksum, copy_checksum_with, copy_with};
use crate::job::{Class, Kind};
use crate::pool::Pool;

/// One copy of a batch: a scatter or gather is a slice of these.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// First byte that is written.
    pub dst: *mut u8,
    /// First byte that is read.
    pub src: *const u8,
    /// How many bytes.
    pub len: usize,
}

/// The outcome of one piece of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The checksum of the bytes written.
    pub checksum: Checksum,
    /// From the moment a thread began with the piece until all of it was written.
    pub took: Duration,
}

/// What one task of a batch copies or sums, in bytes: long beside a claim, short beside a burst.
const TASK_BYTES: usize = 256 << 10;

static COPY: Kind = Kind::new("copy");
static COPY_CHECKSUM: Kind = Kind::new("copy and checksum");
static CHECKSUM: Kind = Kind::new("checksum");

/// Copies all pieces, by as many threads as are free, past the cache if the batch is large enough for that.
///
/// # Safety
/// - The ranges of every piece are valid for the whole call: `src` for reads, `dst` for writes.
/// - No `dst` overlaps anything else of the batch, and nothing else reads or writes it meanwhile. A `src` may be memory
///   that another process writes.
pub unsafe fn copy_all(pool: &Pool, pieces: &[Piece]) {
    let tasks = Tasks::cut(pieces.iter().map(|piece| piece.len));
    let (batch, stores) = (Batch(pieces), Tuning::current().stores(tasks.bytes));
    let copied = pool
        .job(tasks.len())
        .class(Class::Bulk)
        .kind(&COPY)
        .run(|task| {
            let (piece, at, len) = tasks.task(task);
            // SAFETY: the task is a part of a piece that no other task has; the rest is the caller's promise.
            unsafe {
                let (dst, src) = batch.part(piece, at);
                copy_with(Isa::current(), dst, src, len, stores);
            }
        });
    copied.expect("copies do not panic, and the job has no cancel handle");
}

/// [`copy_all`], and for each piece, in order, the checksum of the bytes written and how long it took.
///
/// # Safety
/// As for [`copy_all`].
#[must_use]
pub unsafe fn copy_all_checksum(pool: &Pool, pieces: &[Piece]) -> Vec<Copied> {
    let tasks = Tasks::cut(pieces.iter().map(|piece| piece.len));
    let (batch, stores) = (Batch(pieces), Tuning::current().stores(tasks.bytes));
    // SAFETY: the task is a part of a piece that no other task has; the rest is the caller's promise.
    tasks.sums(pool, &COPY_CHECKSUM, |piece, at, len| unsafe {
        let (dst, src) = batch.part(piece, at);
        copy_checksum_with(Isa::current(), dst, src, len, stores)
    })
}

/// The checksum of each of these byte strings, in order, by as many threads as are free.
#[must_use]
pub fn checksum_all(pool: &Pool, objects: &[&[u8]]) -> Vec<Checksum> {
    let tasks = Tasks::cut(objects.iter().map(|object| object.len()));
    let sums = tasks.sums(pool, &CHECKSUM, |object, at, len| {
        checksum(&objects[object][at..at + len])
    });
    sums.into_iter().map(|summed| summed.checksum).collect()
}

/// The pieces, shared between threads.
struct Batch<'a>(&'a [Piece]);

// SAFETY: tasks use the pointers on disjoint parts, and the caller of the unsafe function that made the batch guarantees
// that its memory is valid.
unsafe impl Sync for Batch<'_> {}

impl Batch<'_> {
    /// # Safety
    /// `at` is within the piece, whose ranges are valid.
    unsafe fn part(&self, piece: usize, at: usize) -> (*mut u8, *const u8) {
        let piece = self.0[piece];
        // SAFETY: the caller's promise.
        unsafe { (piece.dst.add(at), piece.src.add(at)) }
    }
}

/// Objects cut into tasks.
struct Tasks {
    /// The lengths of the objects.
    lens: Vec<usize>,
    /// The number of the first task of each object, and of all at the end.
    firsts: Vec<usize>,
    bytes: usize,
}

impl Tasks {
    fn cut(lens: impl Iterator<Item = usize>) -> Self {
        let (mut next, mut bytes) = (0, 0);
        let (lens, mut firsts): (Vec<_>, Vec<_>) = lens
            .map(|len| {
                let first = next;
                next += len.div_ceil(TASK_BYTES);
                bytes += len;
                (len, first)
            })
            .unzip();
        firsts.push(next);
        Self {
            lens,
            firsts,
            bytes,
        }
    }

    fn len(&self) -> usize {
        self.firsts[self.lens.len()]
    }

    /// The object of a task, and its part of it: offset and length.
    fn task(&self, task: usize) -> (usize, usize, usize) {
        // Objects without bytes have no task: the last one that begins here is the one that has it.
        let object = self.firsts.partition_point(|&first| first <= task) - 1;
        let at = (task - self.firsts[object]) * TASK_BYTES;
        (object, at, TASK_BYTES.min(self.lens[object] - at))
    }

    /// The checksums and times of the objects from those of the tasks.
    fn sums(
        &self,
        pool: &Pool,
        kind: &Kind,
        sum: impl Fn(usize, usize, usize) -> Checksum + Sync,
    ) -> Vec<Copied> {
        let parts: Vec<OnceLock<Part>> = (0..self.len()).map(|_| OnceLock::new()).collect();
        let summed = pool
            .job(self.len())
            .class(Class::Bulk)
            .kind(kind)
            .run(|task| {
                let (object, at, len) = self.task(task);
                let begun = now();
                let checksum = sum(object, at, len);
                let first = parts[task].set(Part {
                    checksum,
                    begun,
                    ended: now(),
                });
                debug_assert!(first.is_ok(), "each task runs once");
            });
        summed.expect("checksums do not panic, and the job has no cancel handle");
        let of_object = |object: usize| {
            let (mut checksum, mut begun, mut ended) =
                (Checksum::of(&[]), Instant::NEVER, Instant::ZERO);
            let tasks = self.firsts[object]..self.firsts[object + 1];
            for (task, part) in tasks.clone().zip(&parts[tasks]) {
                let (_, _, len) = self.task(task);
                let part = part.get().expect("every task has run");
                checksum = checksum.followed_by(part.checksum, len as u64);
                (begun, ended) = (begun.min(part.begun), ended.max(part.ended));
            }
            Copied {
                checksum,
                took: ended.since(begun),
            }
        };
        (0..self.lens.len()).map(of_object).collect()
    }
}

/// The outcome of one task.
#[derive(Debug)]
struct Part {
    checksum: Checksum,
    begun: Instant,
    ended: Instant,
}

#[cfg(test)]
mod tests {
    use slackwater_base::Rng;

    use super::*;
    use crate::config::Config;

    #[test]
    #[cfg_attr(
        miri,
        ignore = "too many bytes for an interpreter; what it calls is tested on fewer"
    )]
    fn batches_copy_and_sum_every_piece() {
        let mut rng = Rng::new(5);
        let pool = Pool::start(&Config::threads(2)).unwrap();
        let lens = [
            0,
            1,
            1000,
            TASK_BYTES,
            0,
            TASK_BYTES + 1,
            3 * TASK_BYTES - 7,
            64,
        ];
        let sources: Vec<Vec<u8>> = lens
            .iter()
            .map(|&len| (0..len).map(|_| rng.next_u64() as u8).collect())
            .collect();
        let expected: Vec<Checksum> = sources.iter().map(|source| Checksum::of(source)).collect();
        let mut targets: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
        let pieces = |targets: &mut Vec<Vec<u8>>| -> Vec<Piece> {
            let pairs = targets.iter_mut().zip(&sources);
            pairs
                .map(|(to, from)| Piece {
                    dst: to.as_mut_ptr(),
                    src: from.as_ptr(),
                    len: from.len(),
                })
                .collect()
        };
        // SAFETY: the pieces are whole vectors that live through the call.
        unsafe { copy_all(&pool, &pieces(&mut targets)) };
        assert!(targets == sources, "copied");
        targets.iter_mut().for_each(|target| target.fill(0));
        // SAFETY: as above.
        let copied = unsafe { copy_all_checksum(&pool, &pieces(&mut targets)) };
        assert!(targets == sources, "copied and summed");
        assert_eq!(
            copied
                .iter()
                .map(|copied| copied.checksum)
                .collect::<Vec<_>>(),
            expected
        );
        let moved = |(copied, len): (&Copied, &usize)| (copied.took > Duration::ZERO) == (*len > 0);
        assert!(copied.iter().zip(&lens).all(moved), "{copied:?}");
        let objects: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        assert_eq!(checksum_all(&pool, &objects), expected);
    }

    #[test]
    fn an_empty_batch_is_nothing() {
        let pool = Pool::start(&Config::threads(2)).unwrap();
        assert_eq!(checksum_all(&pool, &[]), []);
        assert_eq!(checksum_all(&pool, &[b""]), [Checksum::of(b"")]);
    }
}
