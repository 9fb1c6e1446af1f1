//! Memory of a store that other processes reach: its region, the capabilities for it, and room in it for records of the
//! SSD.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::{
    Engine, Extent, Memory, RegionId, RegionSpec, RegisterError, Rights, Segment as Contact,
};
use slackwater_wait::now;
use slackwater_wire::data::MacKind;
use slackwater_wire::{ErrorCode, MemoryAccess, ReadRecord, Release, Secret, StagedRecord};
use slackwater_zmtp::PublicKey;

use super::minter::Minter;
use super::staging::{Borrower, Staging};
use crate::region::{Access, Grant};
use crate::store::{GRANULE, no_randomness};
use crate::{OpenError, Store, StoreError};

/// See the module.
pub(crate) struct ServedMemory {
    pub(crate) store: Store,
    pub(crate) transfers: Transfers,
    minter: Mutex<Arc<Minter>>,
    staging: Staging,
}

/// How long reads go on that were permitted with the key before: as long as leases last by default.
const READS_OUTLIVE_KEY: Duration = Duration::from_secs(10);

/// The transfers of other processes at the memory.
#[derive(Clone)]
pub(crate) struct Transfers {
    pub(crate) engine: Engine,
    region: RegionId,
}

impl Transfers {
    /// Ends those at extents that were fenced or sealed.
    pub(crate) fn release(&self, extents: &[Extent]) {
        for extent in extents {
            self.engine.release_extent(self.region, *extent);
        }
    }
}

impl ServedMemory {
    /// Registers the memory of a store, with `staging` bytes behind that of its extents.
    ///
    /// # Errors
    /// When no mover takes it.
    pub(crate) fn new(
        store: Store,
        engine: Engine,
        staging: ByteSize,
    ) -> Result<Self, RegisterError> {
        let served = store.served().expect("it was opened to be served");
        let region = engine.register(RegionSpec {
            memory: Memory::mapped(Arc::clone(&store.segment().region)),
            rights: Rights::BOTH,
            gate: Some(Arc::clone(&served.gate) as Arc<dyn slackwater_transfer::Gate>),
        })?;
        let memory = store.config().memory.0;
        let staging = Staging::new(Arc::clone(&served.gate), memory, staging, GRANULE);
        Ok(Self {
            minter: Mutex::new(Arc::new(Minter::own(&engine, region.id()))),
            transfers: Transfers {
                engine,
                region: region.id(),
            },
            staging,
            store,
        })
    }

    /// How other processes reach it.
    pub(crate) fn contact(&self) -> &Contact {
        self.transfers.engine.segment()
    }

    /// The same, with what it takes to permit it.
    pub(crate) fn access(&self) -> MemoryAccess {
        MemoryAccess {
            contact: self.contact().clone(),
            region: self.transfers.region.index(),
            secret: Secret(self.transfers.engine.home().capability_secret()),
            clock_nanos: now().as_nanos(),
            macs: MacKind::LATEST.number(),
        }
    }

    /// What makes capabilities for it in this process.
    pub(crate) fn minter(&self) -> Arc<Minter> {
        Arc::clone(&self.minter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes another key, which the next master is told: with the old one no write is permitted any more, and reads for some
    /// seconds, so that those go on that an earlier master permitted.
    ///
    /// # Errors
    /// Without randomness; the old key stays.
    pub(crate) fn rotate_key(&self) -> Result<(), OpenError> {
        let rotated = self.transfers.engine.home().rotate(READS_OUTLIVE_KEY);
        rotated.map_err(no_randomness)?;
        let minter = Arc::new(Minter::own(&self.transfers.engine, self.transfers.region));
        *self.minter.lock().unwrap_or_else(PoisonError::into_inner) = minter;
        Ok(())
    }

    /// Reads a record of the SSD into memory that is lent to a client, or to all clients of its key.
    ///
    /// # Errors
    /// When the record is gone or too long, or too much is lent.
    pub(crate) fn stage(
        &self,
        key: Option<PublicKey>,
        record: &ReadRecord,
        lease: Duration,
    ) -> Result<StagedRecord, ErrorCode> {
        if record.bytes == 0 || record.bytes > self.staging.bytes_max() {
            return Err(ErrorCode::ValueTooLong);
        }
        let (client, mut released) = (record.client, Vec::new());
        let borrower = Borrower { client, key };
        let room = self
            .staging
            .take(now(), borrower, record.bytes, &mut released);
        self.transfers.release(&released);
        let room = room.ok_or(ErrorCode::TaskPendingLimitExceeded)?;
        let mut span = TraceSpan::here("slackwater.node.ssd_read", SpanKind::Internal);
        span.note("slackwater.bytes", record.bytes);
        let filled = self.store.read_record(record);
        drop(span);
        let filled = filled.map_err(|error: StoreError| error.code());
        let value = filled.and_then(|value| value.ok_or(ErrorCode::ReplicaIsGone));
        let value = match value {
            Ok(value) => value,
            Err(code) => {
                self.staging
                    .give_back(client, room.generation, &mut Vec::new());
                return Err(code);
            }
        };
        let mapping = &self.store.segment().region;
        // SAFETY: the room was taken for this record alone, and nobody has a right to it before it is lent below.
        let grant = unsafe { Grant::new(mapping, room.offset, room.bytes, Access::Write) };
        let mut grant = grant.ok_or(ErrorCode::InternalError)?;
        // The store has compared the checksum of what it read; the reader compares that of what it gets.
        let _ = grant.copy_in(&value);
        drop(grant);
        self.staging.lend(now(), room.generation, lease);
        let extent = Extent {
            bytes: record.bytes,
            ..room
        };
        Ok(StagedRecord {
            generation: room.generation,
            node: self.store.node(),
            offset: room.offset,
            capability: self.minter().mint(extent, Rights::READ, lease, key),
        })
    }

    /// Takes staged memory back from a client before its time.
    pub(crate) fn give_back(&self, release: &Release) {
        let mut released = Vec::new();
        let lent = self
            .staging
            .give_back(release.client, release.generation, &mut released);
        // The time that a reader waited for bytes that did not come says nothing of their way.
        if let Some(since) = lent
            && release.fetched
        {
            self.store.fetched(since.until(now()));
        }
        self.transfers.release(&released);
    }
}
