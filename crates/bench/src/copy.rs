//! `bench copy`: what a verified copy costs beside a plain one.
//!
//! Objects are copied out of memory larger than the cache, into one destination again and again (a staging buffer) or
//! into as much other memory (a cache of blocks); by one thread, and as a batch by the pool. Then each path of
//! instructions that the processor has copies into buffers as users have them: some bytes beside a cache line, and of
//! lengths that end within one.

mod buffers;

use std::hint::black_box;
use std::time::Duration;

use serde::Serialize;
use slackwater_base::Checksum;
use slackwater_pool::copy::{
    Isa, IsaError, Piece, Stores, Tuning, copy_all, copy_all_checksum, copy_checksum_with,
    copy_with,
};
use slackwater_pool::{Config, Pool, PoolError};
use slackwater_wait::now;

use crate::machine::Machine;
use crate::usage::median;
pub use buffers::BufferRow;
use slackwater_report::{Bars, Bound, Page, Table, figure};

/// The sizes and rounds of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of an object, in bytes.
    pub object_bytes: usize,
    /// Memory the objects come from, in bytes: many times the last-level cache.
    pub source_bytes: usize,
    /// Passes over the source by each form, in turns; the medians count.
    pub rounds: usize,
    /// The paths whose buffers are measured, the first of which everything else takes; empty for all that the processor has,
    /// and the one in force.
    pub paths: Vec<Isa>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            object_bytes: 1 << 20,
            source_bytes: 512 << 20,
            rounds: 7,
            paths: Vec::new(),
        }
    }
}

/// Why the benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The pool could not be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A path was asked for that the processor does not have.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// No object fits into the source, or the object is shorter than its offsets.
    #[error(
        "a source of {source_bytes} bytes does not hold two objects of {object_bytes} bytes, or an object is shorter than 4096 bytes"
    )]
    Sizes {
        /// [`Options::source_bytes`].
        source_bytes: usize,
        /// [`Options::object_bytes`].
        object_bytes: usize,
    },
}

/// One form of copy into one kind of destination.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `memcpy`, `memcpy then checksum`, `copy+checksum`, and their streaming and pooled forms.
    pub form: &'static str,
    /// `reused` or `fresh`.
    pub destination: &'static str,
    /// Bytes copied in a nanosecond.
    pub gbps: f64,
    /// The same over that of `memcpy` into this kind of destination.
    pub over_memcpy: f64,
}

/// What the benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `copy`.
    pub bench: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// The size of an object.
    pub object_bytes: usize,
    /// The size from which streaming stores win here, as measured.
    pub streaming_bytes_min: usize,
    /// The path that stores take here unless told otherwise.
    pub isa: &'static str,
    /// One row for each form and destination.
    pub rows: Vec<Row>,
    /// One row for each path, offset and length.
    pub buffers: Vec<BufferRow>,
    /// What should hold, and whether it does.
    pub bounds: Vec<Bound>,
}

/// The shortest object whose buffers can be measured, in bytes.
const OBJECT_BYTES_MIN: usize = 4096;
/// A form of copy over a list of pieces that do not overlap.
type Form<'a> = (&'static str, Box<dyn Fn(&[Piece]) + 'a>);

/// Runs the benchmark.
///
/// # Errors
/// [`CopyError`]: sizes that do not fit, a path that is not there, a pool that could not be started.
///
/// # Panics
/// A copy or a checksum is wrong.
pub fn run(options: &Options) -> Result<Report, CopyError> {
    let count = options.source_bytes / options.object_bytes.max(1);
    if count < 2 || options.object_bytes < OBJECT_BYTES_MIN {
        return Err(CopyError::Sizes {
            source_bytes: options.source_bytes,
            object_bytes: options.object_bytes,
        });
    }
    let paths = chosen(&options.paths)?;
    let pool = Pool::start(&Config::default())?;
    let bytes = count * options.object_bytes;
    let source: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut target = vec![1u8; bytes];
    let mut rows = Vec::new();
    for destination in ["reused", "fresh"] {
        let to = target.as_mut_ptr();
        let pieces: Vec<Piece> = source
            .chunks_exact(options.object_bytes)
            .enumerate()
            .map(|(at, piece)| {
                let offset = if destination == "fresh" {
                    at * options.object_bytes
                } else {
                    0
                };
                Piece {
                    // SAFETY: the target is as large as the source.
                    dst: unsafe { to.add(offset) },
                    src: piece.as_ptr(),
                    len: piece.len(),
                }
            })
            .collect();
        let mut forms = alone();
        if destination == "fresh" {
            // Pieces of a batch go to different places.
            forms.extend(pooled(&pool));
        }
        let gbps = measure(options.rounds, bytes, &forms, &pieces);
        let memcpy = gbps[0];
        rows.extend(forms.iter().zip(gbps).map(|((form, _), gbps)| Row {
            form,
            destination,
            gbps,
            over_memcpy: gbps / memcpy,
        }));
    }
    verify(&source, &mut target, options.object_bytes);
    let buffers = buffers::buffers(options, &paths, &source, &mut target);
    Ok(Report {
        bench: "copy",
        machine: Machine::detect(),
        isa: Isa::current().name(),
        bounds: buffers::bounds(&buffers),
        buffers,
        object_bytes: options.object_bytes,
        streaming_bytes_min: Tuning::measure().streaming_bytes_min,
        rows,
    })
}

/// The paths to measure, the first of which is put in force for everything else of the run.
fn chosen(paths: &[Isa]) -> Result<Vec<Isa>, IsaError> {
    let Some(first) = paths.first() else {
        let available = Isa::ALL.iter().copied().filter(|isa| isa.available());
        return Ok(available.collect());
    };
    if let Some(isa) = paths.iter().copied().find(|isa| !isa.available()) {
        return Err(IsaError::Missing { isa });
    }
    first.install()?;
    Ok(paths.to_vec())
}

/// The forms of one thread; the first is what the others are compared with.
fn alone() -> Vec<Form<'static>> {
    fn each(pieces: &[Piece], copy: impl Fn(&Piece) -> Option<Checksum>) {
        pieces.iter().for_each(|piece| {
            black_box(copy(piece));
        });
    }
    let isa = Isa::current();
    // SAFETY, for every form: the pieces are ranges of two vectors that live through the run, and one thread uses them.
    vec![
        (
            "memcpy",
            Box::new(move |pieces| {
                // SAFETY: see above.
                each(pieces, |p| unsafe {
                    p.src.copy_to_nonoverlapping(p.dst, p.len);
                    None
                });
            }),
        ),
        (
            "memcpy then checksum",
            Box::new(move |pieces| {
                // SAFETY: see above.
                each(pieces, |p| unsafe {
                    p.src.copy_to_nonoverlapping(p.dst, p.len);
                    Some(Checksum::of(std::slice::from_raw_parts(p.dst, p.len)))
                });
            }),
        ),
        (
            "copy+checksum",
            Box::new(move |pieces| {
                // SAFETY: see above.
                each(pieces, |p| unsafe {
                    Some(copy_checksum_with(isa, p.dst, p.src, p.len, Stores::Cached))
                });
            }),
        ),
        (
            "copy, streaming",
            Box::new(move |pieces| {
                // SAFETY: see above.
                each(pieces, |p| unsafe {
                    copy_with(isa, p.dst, p.src, p.len, Stores::Streaming);
                    None
                });
            }),
        ),
        (
            "copy+checksum, streaming",
            Box::new(move |pieces| {
                // SAFETY: see above.
                each(pieces, |p| unsafe {
                    Some(copy_checksum_with(
                        isa,
                        p.dst,
                        p.src,
                        p.len,
                        Stores::Streaming,
                    ))
                });
            }),
        ),
    ]
}

/// The forms of the pool, which take the pieces as one batch.
fn pooled(pool: &Pool) -> Vec<Form<'_>> {
    vec![
        (
            "copy, pool",
            Box::new(|pieces| {
                // SAFETY: the pieces are ranges of two vectors that live through the run and do not overlap.
                unsafe { copy_all(pool, pieces) }
            }),
        ),
        (
            "copy+checksum, pool",
            Box::new(|pieces| {
                // SAFETY: as above.
                black_box(unsafe { copy_all_checksum(pool, pieces) });
            }),
        ),
    ]
}

/// The median throughput of each form, in turns.
fn measure(rounds: usize, bytes: usize, forms: &[Form<'_>], pieces: &[Piece]) -> Vec<f64> {
    let mut times = vec![Vec::new(); forms.len()];
    for _ in 0..rounds.max(1) {
        for ((_, form), times) in forms.iter().zip(&mut times) {
            let start = now();
            form(pieces);
            times.push(now().since(start));
        }
    }
    let gbps = |time: &Duration| bytes as f64 / time.as_nanos() as f64;
    times
        .iter()
        .map(|times| median(&mut times.iter().map(gbps).collect::<Vec<_>>()))
        .collect()
}

/// A fast copy that copies something else would look good.
fn verify(source: &[u8], target: &mut [u8], object_bytes: usize) {
    let (from, to) = (&source[..object_bytes], &mut target[..object_bytes]);
    for stores in [Stores::Cached, Stores::Streaming] {
        to.fill(0);
        let isa = Isa::current();
        // SAFETY: two slices of `object_bytes`, one of them borrowed alone.
        let sum = unsafe {
            copy_checksum_with(isa, to.as_mut_ptr(), from.as_ptr(), object_bytes, stores)
        };
        assert!(
            to == from && sum == Checksum::of(from),
            "a copy with {stores:?} stores differs"
        );
    }
}

const HEADING: [&str; 4] = ["form", "destination", "GB/s", "over memcpy"];
const BUFFER_HEADING: [&str; 6] = [
    "path",
    "offset",
    "bytes",
    "GB/s",
    "over memcpy",
    "over offset 0",
];

impl Report {
    /// The rows as a table of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let tables = [
            self.table(),
            self.buffer_table(),
            Bound::table(&self.bounds),
        ];
        tables.map(|table| table.text()).join("\n")
    }

    /// The report as a page with a chart.
    #[must_use]
    pub fn to_html(&self) -> String {
        let forms: Vec<&str> = alone().iter().map(|(form, _)| *form).collect();
        let group = |destination: &str| {
            let value = |form: &&str| {
                let row = self
                    .rows
                    .iter()
                    .find(|row| row.form == *form && row.destination == destination);
                row.map(|row| row.gbps)
            };
            (
                format!("{destination} destination"),
                forms.iter().map(value).collect(),
            )
        };
        let bars = Bars {
            title: "Throughput of one thread".to_owned(),
            unit: "GB/s, more is better",
            series: forms.iter().map(|&form| form.to_owned()).collect(),
            groups: vec![group("reused"), group("fresh")],
        };
        let streaming = slackwater_base::ByteSize(self.streaming_bytes_min as u64);
        let page = Page {
            title: "Copies and checksums".to_owned(),
            lead: self.machine.line(),
            bars: vec![bars],
            tables: vec![
                self.table(),
                self.buffer_table(),
                Bound::table(&self.bounds),
            ],
            notes: vec![
                format!("Streaming stores win here from {streaming} on."),
                format!("Stores copy by {} here.", self.isa),
            ],
            ..Page::default()
        };
        page.html()
    }

    fn table(&self) -> Table {
        let cells = |row: &Row| {
            vec![
                row.form.to_owned(),
                row.destination.to_owned(),
                figure(row.gbps),
                figure(row.over_memcpy),
            ]
        };
        Table::new("Figures", &HEADING, self.rows.iter().map(cells))
    }

    fn buffer_table(&self) -> Table {
        let cells = |row: &BufferRow| {
            vec![
                row.isa.to_owned(),
                row.offset_bytes.to_string(),
                row.bytes.to_string(),
                figure(row.gbps),
                figure(row.over_memcpy),
                figure(row.over_aligned),
            ]
        };
        Table::new(
            "Copy and checksum by path and buffer",
            &BUFFER_HEADING,
            self.buffers.iter().map(cells),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(paths: Vec<Isa>) -> Options {
        Options {
            object_bytes: 64 << 10,
            source_bytes: 1 << 20,
            rounds: 1,
            paths,
        }
    }

    #[test]
    fn a_short_run_measures_every_form_and_path() {
        let report = run(&short(vec![])).unwrap();
        let paths = Isa::ALL.iter().filter(|isa| isa.available()).count();
        assert_eq!(report.rows.len(), 5 + 7);
        assert_eq!(report.buffers.len(), paths * buffers::OFFSETS.len() * 2);
        assert_eq!(report.bounds.len(), report.buffers.len() * 2);
        assert!(report.rows.iter().all(|row| row.gbps > 0.0), "{report:?}");
        assert!(
            report.buffers.iter().all(|row| row.gbps > 0.0),
            "{report:?}"
        );
        assert!(report.to_html().contains("copy+checksum") && report.to_text().contains("pool"));
        assert!(serde_json::to_value(&report).unwrap()["rows"][0]["gbps"].is_number());
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_its_reason() {
        let check = |options: Options, reason: &str| {
            let error = run(&options).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        let foreign = if Isa::Neon.available() {
            Isa::Avx2
        } else {
            Isa::Neon
        };
        check(short(vec![Isa::Portable, foreign]), "this processor has no");
        check(
            Options {
                object_bytes: 1 << 20,
                ..short(vec![])
            },
            "does not hold two",
        );
        check(
            Options {
                object_bytes: 100,
                ..short(vec![])
            },
            "shorter than 4096",
        );
    }
}
