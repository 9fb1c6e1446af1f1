//! What a mover is given.

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_wire::TraceContext;
use slackwater_wire::data::{Capability, Op};

use crate::batch::Part;
use crate::memory::Staged;
use crate::region::Access;

/// One request, resolved: local memory is held, the peer's is named.
#[derive(Debug)]
pub struct Job {
    /// Read or write.
    pub op: Op,
    /// Local memory.
    pub buffers: Buffers,
    /// Memory of the peer.
    pub remote: Remote,
    /// The request is given up after this.
    pub deadline: Instant,
    /// The order among waiting requests.
    pub priority: Priority,
    /// Ends the request.
    pub part: Part,
}

/// Memory of a peer: an offset in one of its regions, and the right to reach it.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// First byte, from the start of the region.
    pub offset: u64,
    /// The right to reach the region that it names.
    pub capability: Capability,
    /// The key that the mover at the peer gave the region, for fabrics that need one.
    pub key: Option<RegionKey>,
    /// The trace that the request belongs to.
    pub trace: Option<TraceContext>,
}

/// The key that the registration of a region gave, where a fabric has such keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

/// The order among waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// In the order of submission.
    #[default]
    Normal,
    /// Before all normal ones to the same peer.
    Urgent,
}

/// Local memory as a list of ranges, held in place.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    spans: Vec<Span>,
    bytes: u64,
}

/// One range of local memory.
#[derive(Clone, Debug)]
pub struct Span {
    start: *mut u8,
    bytes: usize,
    /// The access that holds it; none for memory that the caller of a synchronous transfer holds.
    access: Option<Arc<Access>>,
    /// The lent host memory that it is, when it holds bytes of the device memory of its access.
    loan: Option<Arc<Staged>>,
}

// SAFETY: a span is a range that its access, or its maker's promise, keeps valid on every thread.
unsafe impl Send for Span {}
// SAFETY: as above; its methods only read plain fields.
unsafe impl Sync for Span {}

impl Buffers {
    /// The ranges of these accesses, in order.
    #[must_use]
    pub fn held(accesses: impl IntoIterator<Item = Access>) -> Self {
        let spans = accesses.into_iter().map(|access| {
            let access = Arc::new(access);
            Span {
                start: access.start(),
                bytes: access.bytes() as usize,
                access: Some(access),
                loan: None,
            }
        });
        Self::of(spans.filter(|span| span.bytes > 0).collect())
    }

    /// The range of one access.
    pub fn shared(access: Arc<Access>) -> Self {
        let (start, bytes) = (access.start(), access.bytes() as usize);
        Self::of(vec![Span {
            start,
            bytes,
            access: Some(access),
            loan: None,
        }])
    }

    /// One range that the caller holds.
    ///
    /// # Safety
    /// Until the last clone or cut of it is dropped, `start` is valid for reads and writes of `bytes` bytes (for reads
    /// alone, if it is only ever the source of a write), and nobody else touches them.
    #[must_use]
    pub unsafe fn borrowed(start: *mut u8, bytes: usize) -> Self {
        Self::of(vec![Span {
            start,
            bytes,
            access: None,
            loan: None,
        }])
    }

    /// The first bytes of lent host memory that holds bytes of the device memory under `access`.
    pub fn staged(loan: Staged, bytes: usize, access: Arc<Access>) -> Self {
        let start = loan.start().as_ptr();
        Self::of(vec![Span {
            start,
            bytes: bytes.min(loan.bytes()),
            access: Some(access),
            loan: Some(Arc::new(loan)),
        }])
    }

    fn of(spans: Vec<Span>) -> Self {
        let bytes = spans.iter().map(|span| span.bytes as u64).sum();
        Self { spans, bytes }
    }

    /// Length of all ranges together.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The ranges, in order; none is empty.
    #[must_use]
    #[inline]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether the CPU reaches all of them.
    #[must_use]
    pub fn are_host(&self) -> bool {
        self.spans.iter().all(Span::is_host)
    }

    /// Why what is under way with it is to end, if some of it is in a region of this process that closes.
    pub fn closing(&self) -> Option<Cause> {
        let mut accesses = self.spans.iter().filter_map(Span::access);
        let closing = accesses.any(|access| !access.is_live());
        closing.then(|| Cause::Invalid("the local region is closing".to_owned()))
    }

    /// The `bytes` bytes from `offset`, held like the whole; fewer when the whole ends before.
    #[must_use]
    pub fn cut(&self, offset: u64, bytes: u64) -> Self {
        let (mut skip, mut left) = (offset, bytes);
        let mut spans = Vec::new();
        for span in &self.spans {
            let length = span.bytes as u64;
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = (length - skip).min(left);
            if take == 0 {
                break;
            }
            spans.push(Span {
                start: span.start.wrapping_add(skip as usize),
                bytes: take as usize,
                access: span.access.clone(),
                loan: span.loan.clone(),
            });
            left -= take;
            skip = 0;
        }
        Self::of(spans)
    }
}

impl Span {
    /// Its first byte.
    #[must_use]
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Its length.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The access that holds it.
    #[must_use]
    pub fn access(&self) -> Option<&Arc<Access>> {
        self.access.as_ref()
    }

    /// Whether the CPU reaches it.
    #[must_use]
    #[inline]
    pub fn is_host(&self) -> bool {
        self.loan.is_some()
            || self
                .access
                .as_ref()
                .is_none_or(|access| access.region().memory().location().is_host())
    }
}
