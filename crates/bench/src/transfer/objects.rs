//! Blocks with a capability each, as the objects of a store have, beside the same blocks under one capability for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use slackwater_base::BLOCK_BYTES;
use slackwater_report::{Bound, Table, figure};
use slackwater_transfer::{
    Capability, CapabilityKey, Engine, Extent, Gate, GateAccess, GenerationTable, Grant, Home,
    Refusal, Region, Rights, Target,
};
use slackwater_wire::Incarnation;
use zerocopy::{FromBytes, IntoBytes};

use super::ends::number;
use super::grid::{Cell, Pair};
use super::raw::MESSAGE;
use super::{BenchError, Carrier, Direction, Options, Place, Report, wrapped};
use crate::usage::median;

/// Most objects of a row: more of the smallest would only be a longer line between two processes.
const OBJECTS_MAX: usize = 4096;
/// Turns of the two for each round of a run: a ratio near one is to be told from another.
const TURNS: usize = 3;

/// Two loads that differ in their capabilities alone.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectsRow {
    /// What carried the bytes.
    pub mover: Carrier,
    /// Bytes of an object.
    pub block: usize,
    /// Threads, each with one batch of reads under way.
    pub concurrency: usize,
    /// Objects of a batch.
    pub batch: usize,
    /// Bytes moved in a nanosecond under one capability.
    pub gbps_of_one: f64,
    /// The same with a capability for each object.
    pub gbps_of_each: f64,
    /// The second over the first, in turns: the median.
    pub each_over_one: f64,
}

/// What the requests of a load are aimed at.
#[derive(Clone, Copy)]
pub(super) enum Aim<'a> {
    /// All of the target's memory, block after block.
    Memory(Target),
    /// Objects, in turn.
    Objects(&'a Objects, Grants),
}

/// The capabilities of a load on objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grants {
    One,
    Each,
}

/// A gate to extents that are all in use for ever. As with a store's, a reader of the host that has shown one capability sees for
/// itself that an extent is still in its use.
#[derive(Debug)]
pub(super) struct AllLive {
    generations: GenerationTable,
    begun: AtomicU64,
}

/// Objects of a target that lie equally far apart.
pub(super) struct Objects {
    whole: Target,
    stride: usize,
    capabilities: Vec<Capability>,
}

impl Aim<'_> {
    /// Where the block at `at` of an endless row of them is, in memory of `bytes`.
    pub(super) fn target(self, at: usize, block: usize, bytes: usize) -> Target {
        match self {
            Self::Memory(target) => Target {
                offset: wrapped(at * block, block, bytes) as u64,
                ..target
            },
            Self::Objects(objects, grants) => {
                let number = at % objects.capabilities.len();
                Target {
                    offset: (number * objects.stride) as u64,
                    capability: match grants {
                        Grants::One => objects.whole.capability,
                        Grants::Each => objects.capabilities[number],
                    },
                    ..objects.whole
                }
            }
        }
    }
}

impl AllLive {
    pub(super) fn over(bytes: usize) -> Result<Arc<dyn Gate>, BenchError> {
        let generations = GenerationTable::create(bytes as u64, BLOCK_BYTES);
        Ok(Arc::new(Self {
            generations: generations.map_err(BenchError::io("make a table of generations"))?,
            begun: AtomicU64::new(0),
        }))
    }
}

impl Gate for AllLive {
    fn begin(&self, _: Extent, _: Rights) -> Result<GateAccess, Refusal> {
        Ok(GateAccess(self.begun.fetch_add(1, Ordering::Relaxed)))
    }

    fn is_live(&self, _: GateAccess) -> bool {
        true
    }

    fn end(&self, _: GateAccess) {}

    fn generations(&self) -> Option<&GenerationTable> {
        Some(&self.generations)
    }
}

impl Objects {
    /// Of what [`grant`] has said.
    pub(super) fn of(whole: Target, stride: &str, capabilities: &str) -> Result<Self, BenchError> {
        let unclear = || BenchError::Arguments(vec!["objects".to_owned(), capabilities.to_owned()]);
        let capabilities: Vec<Vec<u8>> =
            serde_json::from_str(capabilities).map_err(|_| unclear())?;
        let read = |bytes: &Vec<u8>| Capability::read_from_bytes(bytes).map_err(|_| unclear());
        Ok(Self {
            whole,
            stride: number(stride)?,
            capabilities: capabilities.iter().map(read).collect::<Result<_, _>>()?,
        })
    }
}

/// A capability for a part of a region that is lent, minted as a store's master does it.
pub(super) fn mint(
    home: &Home,
    region: &Region,
    (offset, bytes): (u64, u64),
    rights: Rights,
) -> Capability {
    CapabilityKey::new(&home.capability_secret()).mint(&Grant {
        incarnation: home.incarnation(),
        region: region.id().index(),
        generation: 1,
        offset,
        bytes,
        rights,
        tenant: 0,
        holder: Incarnation(0),
        expires_nanos: u64::MAX,
        nonce: 0,
    })
}

/// A capability for each of so many objects of a region: how far apart they lie, and the capabilities.
pub(super) fn grant(engine: &Engine, region: &Region, block: usize) -> String {
    let bytes = region.bytes() as usize;
    let count = (bytes / block.max(1)).clamp(1, OBJECTS_MAX);
    let stride = bytes / count / block * block;
    let one = |number: usize| {
        let place = ((number * stride) as u64, block as u64);
        mint(engine.home(), region, place, Rights::READ)
            .as_bytes()
            .to_vec()
    };
    let capabilities: Vec<Vec<u8>> = (0..count).map(one).collect();
    let capabilities = serde_json::to_string(&capabilities).expect("bytes are always JSON");
    format!("{stride} {capabilities}")
}

/// The loads: many small ones, whose cost a capability is the largest part of, and large ones.
fn cells(options: &Options) -> Vec<Cell> {
    let small = options.blocks.iter().copied().min().unwrap_or(MESSAGE);
    let mut loads = vec![(small, 1, 1), (small, 16, 1), (small, 1, 128)];
    loads.extend([(MESSAGE, 1, 1), (MESSAGE, 16, 16)]);
    loads.sort_unstable();
    loads.dedup();
    let cell = |(block, concurrency, batch)| Cell {
        direction: Direction::Read,
        block,
        concurrency,
        batch,
    };
    loads.into_iter().map(cell).collect()
}

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    if !options.directions.contains(&Direction::Read) {
        report.notes.push(
            "no objects with a capability each: they are read, and writes alone were asked for"
                .into(),
        );
        return Ok(());
    }
    for &carrier in &options.carriers {
        if options.place(carrier) != Place::Cpu {
            let name = carrier.name();
            report.notes.push(format!(
                "no objects with a capability each by {name}: memory of the host alone is lent so"
            ));
            continue;
        }
        let mut pair = Pair::lending(options, carrier)?;
        for cell in cells(options) {
            pair.name_objects(cell.block)?;
            report.objects.push(row(options, &mut pair, carrier, cell)?);
        }
    }
    Ok(())
}

fn row(
    options: &Options,
    pair: &mut Pair,
    carrier: Carrier,
    cell: Cell,
) -> Result<ObjectsRow, BenchError> {
    let (mut of_one, mut of_each, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS * options.rounds.max(1) {
        // What a machine does to the first of two it does to each in turn.
        let turns = match turn % 2 {
            0 => [Grants::One, Grants::Each],
            _ => [Grants::Each, Grants::One],
        };
        let (mut one, mut each) = (0.0, 0.0);
        for grants in turns {
            let moved = pair.objects_round(cell, grants, options.window.as_millis())?;
            match grants {
                Grants::One => one = moved.gbps,
                Grants::Each => each = moved.gbps,
            }
        }
        of_one.push(one);
        of_each.push(each);
        ratios.push(each / one);
    }
    Ok(ObjectsRow {
        mover: carrier,
        block: cell.block,
        concurrency: cell.concurrency,
        batch: cell.batch,
        gbps_of_one: median(&mut of_one),
        gbps_of_each: median(&mut of_each),
        each_over_one: median(&mut ratios),
    })
}

impl ObjectsRow {
    pub(super) fn bound(&self) -> Bound {
        let Self {
            mover,
            block,
            concurrency,
            batch,
            ..
        } = self;
        let what = format!(
            "{} read of {} {concurrency}x{batch}: a capability for each object over one for all",
            mover.name(),
            slackwater_base::ByteSize(*block as u64)
        );
        Bound::at_least(what, self.each_over_one, 0.95)
    }

    pub(super) fn table(rows: &[Self]) -> Option<Table> {
        let cells = |row: &Self| {
            let names = [
                row.mover.name().to_owned(),
                slackwater_base::ByteSize(row.block as u64).to_string(),
                row.concurrency.to_string(),
                row.batch.to_string(),
            ];
            let figures = [row.gbps_of_one, row.gbps_of_each, row.each_over_one];
            names.into_iter().chain(figures.map(figure)).collect()
        };
        let heading = [
            "mover",
            "block",
            "threads",
            "batch",
            "one capability, GB/s",
            "one for each, GB/s",
            "ratio",
        ];
        (!rows.is_empty()).then(|| {
            Table::new(
                "Reads of objects with a capability each",
                &heading,
                rows.iter().map(cells),
            )
        })
    }
}
