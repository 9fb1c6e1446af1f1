//! Verified copies by each path into buffers as users have them.

use std::convert::Infallible;
use std::hint::black_box;

use serde::Serialize;
use slackwater_pool::copy::{Isa, Piece, Stores, copy_checksum_with};
use slackwater_report::Bound;

use super::Options;
use crate::turns::Turns;

/// Verified copies by one path, from pages into buffers of one kind, rotating over memory that no cache holds. Ratios are
/// medians of those of each turn.
#[derive(Clone, Debug, Serialize)]
pub struct BufferRow {
    /// The path of instructions.
    pub isa: &'static str,
    /// Bytes from the start of a cache line to the start of the destination.
    pub offset_bytes: usize,
    /// The length of a copy.
    pub bytes: usize,
    /// Bytes copied and summed in a nanosecond.
    pub gbps: f64,
    /// The same over that of `memcpy` between the same buffers.
    pub over_memcpy: f64,
    /// The same over that of this path at offset 0.
    pub over_aligned: f64,
}

/// A cache line, in bytes.
const LINE: usize = 64;
/// Where destinations begin, in bytes beyond a cache line: `malloc`, `bytearray` and numpy give 0, 8 and 16.
pub(super) const OFFSETS: [usize; 4] = [0, 8, 16, OFFSET_MAX];
const OFFSET_MAX: usize = 63;
/// What an odd length is shorter than an object by.
const ODD_BYTES: usize = 1021;
/// The granularity of a store's memory, in bytes.
const PAGE: usize = 4096;
/// What one way copies in a turn, in bytes: about a millisecond.
const TURN_BYTES: usize = 8 << 20;
/// Turns of the buffers in a round.
const TURNS_A_ROUND: usize = 8;

/// One way to copy into one kind of buffer.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    offset: usize,
    /// `None` is a plain `memcpy`.
    isa: Option<Isa>,
}

/// Copies by each path into destinations at each offset, of whole and of odd lengths, beside `memcpy` to the same.
pub(super) fn buffers(
    options: &Options,
    paths: &[Isa],
    source: &[u8],
    target: &mut [u8],
) -> Vec<BufferRow> {
    let isas: Vec<Option<Isa>> = std::iter::once(None)
        .chain(paths.iter().copied().map(Some))
        .collect();
    let ways: Vec<Way> = OFFSETS
        .iter()
        .flat_map(|&offset| isas.iter().map(move |&isa| Way { offset, isa }))
        .collect();
    let mut rows = Vec::new();
    for bytes in [
        options.object_bytes - OFFSET_MAX - 1 - LINE,
        options.object_bytes - ODD_BYTES,
    ] {
        let turns = turns(options, bytes, &ways, source, target);
        let find = |offset: usize, isa: Option<Isa>| {
            let found = ways.iter().position(|way| *way == Way { offset, isa });
            found.expect("every way is measured")
        };
        for (at, way) in ways.iter().enumerate() {
            let Some(isa) = way.isa else { continue };
            rows.push(BufferRow {
                isa: isa.name(),
                offset_bytes: way.offset,
                bytes,
                gbps: turns.gbps(at),
                over_memcpy: turns.ratio(at, find(way.offset, None)),
                over_aligned: turns.ratio(at, find(0, way.isa)),
            });
        }
    }
    rows
}

/// In a turn every way copies a few objects that no other has touched for long, so that no cache holds them.
fn turns(options: &Options, bytes: usize, ways: &[Way], source: &[u8], target: &mut [u8]) -> Turns {
    let stride = options.object_bytes;
    // Values lie on pages in a store. The last slot is left out for the bytes in front of the first page and line.
    let (from, to) = (
        source.as_ptr().align_offset(PAGE),
        target.as_ptr().align_offset(LINE),
    );
    let slots = source.len() / stride - 1;
    let few = (TURN_BYTES / stride).clamp(1, slots);
    let mut next = 0;
    let turns = Turns::take(options.rounds.max(1) * TURNS_A_ROUND, ways.len(), |way| {
        let Way { offset, isa } = ways[way];
        for number in 0..few {
            let slot = (next + number) % slots * stride;
            let piece = Piece {
                // SAFETY: offset, line and copy are no longer than an object, and another one follows.
                dst: unsafe { target.as_mut_ptr().add(slot + to + offset) },
                src: source[slot + from..].as_ptr(),
                len: bytes,
            };
            match isa {
                None => plain(piece),
                Some(isa) => verified(isa, piece),
            }
        }
        next = (next + few) % slots;
        Ok::<_, Infallible>(few * bytes)
    });
    turns.unwrap_or_else(|never| match never {})
}

fn plain(piece: Piece) {
    // SAFETY: the piece is a range of two vectors that live through the run, and one thread uses them.
    unsafe { piece.src.copy_to_nonoverlapping(piece.dst, piece.len) };
    black_box(piece.dst);
}

fn verified(isa: Isa, piece: Piece) {
    // SAFETY: as in `plain`, and the path was found available.
    let sum = unsafe { copy_checksum_with(isa, piece.dst, piece.src, piece.len, Stores::Cached) };
    black_box(sum);
}

/// No buffer should cost much more than an aligned one, and a verified copy little more than a plain one.
pub(super) fn bounds(rows: &[BufferRow]) -> Vec<Bound> {
    let over_memcpy_min = |isa: &str| match isa {
        "avx512" | "avx2" => 0.9,
        "sse" | "neon" => 0.75,
        _ => 0.5,
    };
    let judge = |row: &BufferRow| {
        let BufferRow {
            isa,
            offset_bytes,
            bytes,
            over_memcpy,
            over_aligned,
            ..
        } = row;
        let what = |what: &str| format!("{isa}, {bytes} bytes at offset {offset_bytes}: {what}");
        [
            Bound::at_least(what("over memcpy"), *over_memcpy, over_memcpy_min(isa)),
            Bound::at_least(what("over offset 0"), *over_aligned, 0.95),
        ]
    };
    rows.iter().flat_map(judge).collect()
}
