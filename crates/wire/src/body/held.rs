//! Reports of what a node holds in a fixed layout, which is format 3: of a million values the names of the fields alone were
//! a few hundred megabytes, and a third of the work of the master that reads them.
//!
//! After the format byte come a [`Header`] and its reports: a byte each that says which kind it is, and what belongs to it.
//! [`HOLDS`] and [`ANNOUNCE`] are followed by a [`Listed`], the names of its tenants, each after a byte with its length, and
//! the entries. An entry is an [`Extent`] and what it says there is, if it is one of memory, an [`Object`], and the key. Any
//! other report, and one that says what the layout has no place for, is MessagePack after its length. All numbers are
//! little-endian.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::Checksum;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fixed::{Reader, malformed};
use super::{BodyError, HELD, pack, unpack};
use crate::limits::BATCH_KEYS_MAX;
use crate::{
    ChainPlace, ClientId, DiskEntry, Durability, Epoch, Expectation, ExtentRef, Incarnation, Key,
    Pin, Published, Report, ReportedEntry, Reports, SegmentId, Tenant, Version,
};

/// What is said once of a whole message.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    epoch: U64,
    taken: U64,
    first: U64,
    clock_nanos: U64,
    reports: U32,
}

/// What is said once of a report.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Listed {
    segment: U32,
    /// Of memory; zero of a log.
    incarnation: U64,
    /// Whether it is said before its turn: one or zero.
    ahead: u8,
    tenants: U16,
    entries: U32,
}

/// Where a value is in memory, and what of it a log does not keep. What `says` names follows, in the order of its bits.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extent {
    offset: U64,
    bytes: U64,
    generation: U64,
    writer: U64,
    /// In its chain.
    position: U32,
    pin: u8,
    durability: u8,
    expectation: u8,
    says: u8,
}

/// A value. `key_bytes` bytes of its key follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Object {
    version: U64,
    bytes: U64,
    checksum: U64,
    /// The number of its tenant.
    tenant: U16,
    key_bytes: U16,
}

const PLAIN: u8 = 0;
const HOLDS: u8 = 1;
const ANNOUNCE: u8 = 2;

const SOFT: u8 = 1;
const HARD: u8 = 2;

/// How many nanoseconds of a soft pin are left.
const LEFT: u8 = 1;
const GROUP: u8 = 2;
const PARENT: u8 = 4;
const HINT: u8 = 8;
const OUTPUT_TOKENS: u8 = 16;

/// The message in this layout; none where nothing of it would be shorter.
pub(super) fn encode(message: &Reports) -> Option<Vec<u8>> {
    let is_listed =
        |report: &Report| matches!(report, Report::Holds { .. } | Report::Announce { .. });
    if !message.reports.iter().any(is_listed) {
        return None;
    }
    let header = Header {
        epoch: message.epoch.0.into(),
        taken: message.taken.into(),
        first: message.first.into(),
        clock_nanos: message.clock_nanos.into(),
        reports: u32::try_from(message.reports.len()).ok()?.into(),
    };
    let mut body = vec![HELD];
    body.extend_from_slice(header.as_bytes());
    for report in &message.reports {
        let begun = body.len();
        if listed(report, &mut body).is_none() {
            body.truncate(begun);
            let mut plain = Vec::new();
            pack(report, &mut plain).ok()?;
            body.push(PLAIN);
            body.extend_from_slice(&u32::try_from(plain.len()).ok()?.to_le_bytes());
            body.extend_from_slice(&plain);
        }
    }
    Some(body)
}

/// Writes a report; none when the layout has no place for what it says.
fn listed(report: &Report, body: &mut Vec<u8>) -> Option<()> {
    match report {
        Report::Holds {
            segment,
            entries,
            ahead,
        } => {
            let incarnation = entries.first().map_or(0, |it| it.extent.incarnation.0);
            let tenants = Tenants::of(entries.iter().map(|it| &it.entry));
            body.push(HOLDS);
            tenants.begin(*segment, incarnation, *ahead, entries.len(), body)?;
            for published in entries {
                let extent = &published.extent;
                if (extent.segment, extent.incarnation.0) != (*segment, incarnation) {
                    return None;
                }
                place(published, body)?;
                let (bytes, checksum) = (published.bytes, published.checksum);
                tenants.object(&published.entry, bytes, checksum, body)?;
            }
        }
        Report::Announce { segment, entries } => {
            let tenants = Tenants::of(entries.iter().map(|it| &it.entry));
            body.push(ANNOUNCE);
            tenants.begin(*segment, 0, false, entries.len(), body)?;
            for reported in entries {
                tenants.object(&reported.entry, reported.bytes, reported.checksum, body)?;
            }
        }
        _ => return None,
    }
    Some(())
}

fn place(published: &Published, body: &mut Vec<u8>) -> Option<()> {
    let (extent, chain) = (&published.extent, &published.chain);
    let (pin, left) = match published.pin {
        Pin::None => (0, None),
        Pin::Soft(left) => (SOFT, left),
        Pin::Hard => (HARD, None),
    };
    let left = left.map(|left| u64::try_from(left.as_nanos())).transpose();
    let left = left.ok()?.map(u64::to_le_bytes);
    let group = published.group.map(u64::to_le_bytes);
    let parent = chain.parent.map(u64::to_le_bytes);
    let hint = chain.hint.map(u32::to_le_bytes);
    let output_tokens = chain.output_tokens.map(u32::to_le_bytes);
    let optional: [(u8, Option<&[u8]>); 5] = [
        (LEFT, left.as_ref().map(|it| it.as_slice())),
        (GROUP, group.as_ref().map(|it| it.as_slice())),
        (PARENT, parent.as_ref().map(|it| it.as_slice())),
        (HINT, hint.as_ref().map(|it| it.as_slice())),
        (
            OUTPUT_TOKENS,
            output_tokens.as_ref().map(|it| it.as_slice()),
        ),
    ];
    let said = optional.iter().filter(|(_, value)| value.is_some());
    let place = Extent {
        offset: extent.offset.into(),
        bytes: extent.bytes.into(),
        generation: extent.generation.into(),
        writer: published.writer.0.into(),
        position: chain.position.into(),
        pin,
        durability: match published.durability {
            // Nodes need not know how many have it.
            Durability::Memory | Durability::Replicated => 0,
            Durability::Disk => 1,
        },
        expectation: match chain.expect {
            None => 0,
            Some(Expectation::Continues) => 1,
            Some(Expectation::Ends) => 2,
        },
        says: said.fold(0, |says, (bit, _)| says | bit),
    };
    body.extend_from_slice(place.as_bytes());
    let values = optional.iter().filter_map(|(_, value)| *value);
    values.for_each(|value| body.extend_from_slice(value));
    Some(())
}

/// The tenants of a report, by their numbers.
struct Tenants<'a> {
    names: Vec<&'a Tenant>,
    numbers: BTreeMap<&'a Tenant, u16>,
}

impl<'a> Tenants<'a> {
    fn of(entries: impl Iterator<Item = &'a DiskEntry>) -> Self {
        let mut all = Self {
            names: Vec::new(),
            numbers: BTreeMap::new(),
        };
        for entry in entries {
            let tenant = &entry.tenant;
            // Mostly all are of one.
            if all.names.last() != Some(&tenant) && !all.numbers.contains_key(tenant) {
                // Of more than there are numbers for, the report is not written.
                all.numbers.insert(tenant, all.names.len() as u16);
                all.names.push(tenant);
            }
        }
        all
    }

    fn begin(
        &self,
        segment: SegmentId,
        incarnation: u64,
        ahead: bool,
        entries: usize,
        body: &mut Vec<u8>,
    ) -> Option<()> {
        if entries > BATCH_KEYS_MAX {
            return None;
        }
        let listed = Listed {
            segment: segment.0.into(),
            incarnation: incarnation.into(),
            ahead: ahead.into(),
            tenants: u16::try_from(self.names.len()).ok()?.into(),
            entries: (entries as u32).into(),
        };
        body.extend_from_slice(listed.as_bytes());
        for tenant in &self.names {
            let name = tenant.name().as_bytes();
            body.push(u8::try_from(name.len()).ok()?);
            body.extend_from_slice(name);
        }
        Some(())
    }

    fn object(
        &self,
        entry: &DiskEntry,
        bytes: u64,
        checksum: Checksum,
        body: &mut Vec<u8>,
    ) -> Option<()> {
        let key = entry.key.as_bytes();
        let tenant = match self.names.as_slice() {
            [_] => 0,
            _ => *self.numbers.get(&entry.tenant)?,
        };
        let object = Object {
            version: entry.version.0.into(),
            bytes: bytes.into(),
            checksum: checksum.0.into(),
            tenant: tenant.into(),
            key_bytes: u16::try_from(key.len()).ok()?.into(),
        };
        body.extend_from_slice(object.as_bytes());
        body.extend_from_slice(key);
        Some(())
    }
}

/// The message of these bytes, which follow the format byte.
pub(super) fn decode(body: &[u8]) -> Result<Reports, BodyError> {
    let mut reader = Reader(body);
    let header: &Header = reader.take()?;
    let count = header.reports.get() as usize;
    if count > BATCH_KEYS_MAX {
        return Err(malformed("more reports than a message has"));
    }
    let mut reports = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        reports.push(match *reader.take::<u8>()? {
            PLAIN => {
                let bytes = reader.take::<U32>()?.get() as usize;
                unpack(reader.all(bytes)?)?
            }
            HOLDS => reader.holds()?,
            ANNOUNCE => reader.announce()?,
            _ => return Err(malformed("an unknown kind of report")),
        });
    }
    reader.end()?;
    Ok(Reports {
        epoch: Epoch(header.epoch.get()),
        taken: header.taken.get(),
        first: header.first.get(),
        clock_nanos: header.clock_nanos.get(),
        reports,
    })
}

impl<'a> Reader<'a> {
    fn holds(&mut self) -> Result<Report, BodyError> {
        let (listed, tenants) = self.listed()?;
        let segment = SegmentId(listed.segment.get());
        let incarnation = Incarnation(listed.incarnation.get());
        let ahead = match listed.ahead {
            0 => false,
            1 => true,
            _ => return Err(malformed("a turn that is none")),
        };
        let mut entries = self.room_for(listed, size_of::<Extent>() + size_of::<Object>());
        for _ in 0..listed.entries.get() {
            let place: &Extent = self.take()?;
            let says = |bit| place.says & bit != 0;
            if place.says >= OUTPUT_TOKENS << 1 {
                return Err(malformed("an extent of which something unknown is said"));
            }
            let left = self.long(says(LEFT))?.map(Duration::from_nanos);
            let group = self.long(says(GROUP))?;
            let chain = ChainPlace {
                parent: self.long(says(PARENT))?,
                position: place.position.get(),
                hint: self.short(says(HINT))?,
                expect: match place.expectation {
                    0 => None,
                    1 => Some(Expectation::Continues),
                    2 => Some(Expectation::Ends),
                    _ => return Err(malformed("an unknown expectation")),
                },
                output_tokens: self.short(says(OUTPUT_TOKENS))?,
            };
            let reported = self.reported(&tenants)?;
            entries.push(Published {
                extent: ExtentRef {
                    segment,
                    incarnation,
                    offset: place.offset.get(),
                    bytes: place.bytes.get(),
                    generation: place.generation.get(),
                },
                entry: reported.entry,
                bytes: reported.bytes,
                checksum: reported.checksum,
                writer: ClientId(place.writer.get()),
                pin: match (place.pin, left) {
                    (0, None) => Pin::None,
                    (SOFT, left) => Pin::Soft(left),
                    (HARD, None) => Pin::Hard,
                    _ => return Err(malformed("an unknown pin")),
                },
                durability: match place.durability {
                    0 => Durability::Memory,
                    1 => Durability::Disk,
                    _ => return Err(malformed("an unknown durability")),
                },
                group,
                chain,
            });
        }
        Ok(Report::Holds {
            segment,
            entries,
            ahead,
        })
    }

    fn announce(&mut self) -> Result<Report, BodyError> {
        let (listed, tenants) = self.listed()?;
        if (listed.incarnation.get(), listed.ahead) != (0, 0) {
            return Err(malformed("a log of which something unknown is said"));
        }
        let mut entries = self.room_for(listed, size_of::<Object>());
        for _ in 0..listed.entries.get() {
            entries.push(self.reported(&tenants)?);
        }
        let segment = SegmentId(listed.segment.get());
        Ok(Report::Announce { segment, entries })
    }

    fn listed(&mut self) -> Result<(&'a Listed, Vec<Tenant>), BodyError> {
        let listed: &Listed = self.take()?;
        if listed.entries.get() as usize > BATCH_KEYS_MAX
            || listed.tenants.get() as usize > BATCH_KEYS_MAX
        {
            return Err(malformed("more entries than a report has"));
        }
        let mut tenants = Vec::new();
        for _ in 0..listed.tenants.get() {
            let bytes = *self.take::<u8>()?;
            let name = std::str::from_utf8(self.all(bytes.into())?);
            let name = name.map_err(|error| malformed(&error.to_string()))?;
            let tenant = Tenant::new(name);
            tenants.push(tenant.map_err(|error| malformed(&error.to_string()))?);
        }
        Ok((listed, tenants))
    }

    /// For the entries that are listed, in proportion to what is there: an entry has so many bytes at least.
    fn room_for<T>(&self, listed: &Listed, least: usize) -> Vec<T> {
        let listed = listed.entries.get() as usize;
        Vec::with_capacity(listed.min(self.0.len() / least))
    }

    fn reported(&mut self, tenants: &[Tenant]) -> Result<ReportedEntry, BodyError> {
        let object: &Object = self.take()?;
        let key = Key::new(self.all(object.key_bytes.get().into())?);
        let tenant = tenants.get(usize::from(object.tenant.get()));
        Ok(ReportedEntry {
            entry: DiskEntry {
                tenant: tenant
                    .ok_or_else(|| malformed("an entry without a tenant"))?
                    .clone(),
                key: key.map_err(|error| malformed(&error.to_string()))?,
                version: Version(object.version.get()),
            },
            bytes: object.bytes.get(),
            checksum: Checksum(object.checksum.get()),
        })
    }

    fn long(&mut self, is_said: bool) -> Result<Option<u64>, BodyError> {
        let value = is_said.then(|| self.take::<U64>()).transpose()?;
        Ok(value.map(|value| value.get()))
    }

    fn short(&mut self, is_said: bool) -> Result<Option<u32>, BodyError> {
        let value = is_said.then(|| self.take::<U32>()).transpose()?;
        Ok(value.map(|value| value.get()))
    }
}
