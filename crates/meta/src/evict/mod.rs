//! Which replica of a segment is evicted next: the interface between the catalog and its eviction policies.
//!
//! A policy decides and never acts. It knows the replicas of one segment by dense [`Slot`]s that the catalog assigns,
//! and is told everything that a learning policy needs: chains, sizes, time and hints. The catalog owns leases, pins
//! and reference counts: it excludes a victim that may not be evicted now with [`Evict::exclude`].

mod arc;
mod explain;
mod ghosts;
mod gittins;
mod kind;
mod lru;
mod queued;
mod queues;
mod s3fifo;
mod twoq;
mod wtinylfu;

#[cfg(test)]
mod conformance;

use slackwater_base::Instant;
use slackwater_wire::Expectation;

pub use explain::{Contender, Explanation, Leader, ReturnChance, Standing};
pub use kind::{PolicyKind, UnknownPolicy};

/// One replica of a segment, numbered densely so that a policy keeps its state in arrays. Reused after the replica
/// is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// One block of a chain as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// 64 bits of the key's hash, by which a policy identifies blocks that are not resident.
    pub hash: u64,
    /// The replica, where this segment holds one.
    pub slot: Option<Slot>,
    /// Length of the object in bytes; zero where it is not known.
    pub bytes: u64,
}

/// One request's walk along a chain of blocks, from the root towards the leaf.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    /// The time of the operation.
    pub now: Instant,
    /// The blocks, each the parent of the next.
    pub links: &'a [Link],
    /// The positions in `links` of those that have a slot, in their order, where the caller knows them: nobody then looks for
    /// the few blocks of one segment among the many of a request.
    pub placed: Option<&'a [u32]>,
    /// Hash of the block before the first, when the walk does not begin at the root.
    pub parent: Option<u64>,
    /// Position of the first block in its chain.
    pub position: u32,
    /// Leading blocks that the request found, here or in another tier.
    pub found: u32,
    /// The caller's opaque hint.
    pub hint: Option<u32>,
    /// What the caller expects of the chain.
    pub expect: Option<Expectation>,
    /// Tokens that the request generated, where the caller knows.
    pub output_tokens: Option<u32>,
}

impl<'a> Walk<'a> {
    /// A walk from the root of which nothing else is known, and that found nothing.
    #[must_use]
    pub fn at_root(now: Instant, links: &'a [Link]) -> Self {
        Self {
            now,
            links,
            placed: None,
            parent: None,
            position: 0,
            found: 0,
            hint: None,
            expect: None,
            output_tokens: None,
        }
    }

    /// The links that have a slot, with their positions in `links`, from the root on.
    pub fn placed(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, &'a Link, Slot)> + Clone + use<'a> {
        let links = self.links;
        let (known, all) = match self.placed {
            Some(placed) => (placed, 0..0),
            None => (&[][..], 0..links.len()),
        };
        // One of the two is empty.
        let positions = known.iter().map(|at| *at as usize).chain(all);
        positions.filter_map(move |at| Some((at, &links[at], links[at].slot?)))
    }
}

/// Steps of [`Evict::warm`].
pub const WARM_STEPS: usize = 3;

/// A policy of eviction for one segment.
///
/// The calls for a slot: `insert` → any number of `read`, `exclude`/`include` → `remove` or `evicted`. Excluded slots
/// are never victims. Every method but `on_deadline` is on the request path and takes constant time a link.
pub trait Evict: Send {
    /// The name of the policy in configuration and reports.
    fn name(&self) -> &'static str;

    /// A request read along this chain. Links without a slot were misses here.
    fn read(&mut self, walk: &Walk<'_>);

    /// Reads ahead what a read of this block will need, as far as it can be found after the earlier of [`WARM_STEPS`] steps: a
    /// caller that does a step for many blocks before the next one overlaps their cache misses. The number follows from what
    /// was read, and says nothing.
    fn warm(&self, _slot: Slot, _step: usize) -> u32 {
        0
    }

    /// The links that have a slot became resident in this segment. Links without one were not placed here.
    fn insert(&mut self, walk: &Walk<'_>);

    /// [`Evict::insert`] of one block that came from another tier, whose instance of the same policy knew it.
    fn insert_as(&mut self, now: Instant, link: Link, standing: Standing) {
        self.insert(&Walk {
            position: standing.position,
            ..Walk::at_root(now, &[link])
        });
    }

    /// The replica is gone for a reason other than eviction: removed, replaced, or its owner lost.
    fn remove(&mut self, slot: Slot);

    /// The replica to be dropped next; the same answer until a call reports that it was
    /// evicted, removed, excluded, read or inserted anew. `None` when every resident slot is excluded.
    fn victim(&mut self, now: Instant) -> Option<Slot>;

    /// The replica was dropped because [`Evict::victim`] named it, or because its group was evicted.
    fn evicted(&mut self, now: Instant, slot: Slot);

    /// The replica may not be evicted now: it is leased, pinned, in use, or leaving already.
    fn exclude(&mut self, slot: Slot);

    /// As [`Evict::exclude`], for the replica that [`Evict::victim`] named and that is leaving: the blocks before it
    /// may be evicted next.
    fn mark_leaving(&mut self, slot: Slot) {
        self.exclude(slot);
    }

    /// The replica may be evicted again, at the age that it had before it was excluded.
    fn include(&mut self, slot: Slot);

    /// Sets the bytes of the segment, by which policies size their parts and ghosts.
    fn set_capacity(&mut self, bytes: u64);

    /// Sets the tokens that a block holds, for policies that learn from the length of a request. The default is 512.
    fn set_block_tokens(&mut self, _tokens: u32) {}

    /// Whether this segment, being full, would keep a block that arrived now, rather than evict it first. Asked before
    /// an object is copied from one tier to another.
    fn would_keep(&mut self, _now: Instant, _link: Link) -> bool {
        true
    }

    /// [`Evict::would_keep`] for a block with the standing that another tier's instance of the same policy returned.
    fn would_keep_as(&mut self, now: Instant, link: Link, _standing: Standing) -> bool {
        self.would_keep(now, link)
    }

    /// Whether a resident block is worth being written again where it is: the log of an SSD empties the file that it lies in.
    fn would_move(&mut self, _now: Instant, _slot: Slot, _bytes: u64) -> bool {
        true
    }

    /// What is known of a resident block, for the instance of another tier. `None` for policies that learn nothing.
    fn standing(&self, _now: Instant, _slot: Slot) -> Option<Standing> {
        None
    }

    /// Why a resident block is kept, for people to read. `None` for policies that only keep an order.
    fn explain(&self, _now: Instant, _slot: Slot) -> Option<Explanation> {
        None
    }

    /// Which rule a policy with several follows now. `None` for policies of one rule.
    fn leader(&self) -> Option<Leader> {
        None
    }

    /// When [`Evict::on_deadline`] wants to run next: work that must not be on the request path, such as estimation.
    ///
    /// Only reads, insertions, [`Evict::restore`] and [`Evict::on_deadline`] may bring it forward, and a new policy has none:
    /// nobody asks at other times.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// A bounded step of scheduled work, at most a millisecond.
    fn on_deadline(&mut self, _now: Instant) {}

    /// Memory of the policy's own state, in bytes.
    fn overhead_bytes(&self) -> usize;

    /// The part of [`Evict::overhead_bytes`] that does not grow with the number of slots: learned tables.
    fn fixed_bytes(&self) -> usize {
        0
    }

    /// What was learned, for [`Evict::restore`] after a restart. Empty for policies that learn nothing.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores what [`Evict::save`] returned.
    ///
    /// # Errors
    /// Says what is wrong with the bytes; the policy then starts fresh.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        if bytes.is_empty() {
            Ok(())
        } else {
            Err(RestoreError::Foreign)
        }
    }
}

/// Why saved policy state is not restored.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RestoreError {
    /// It was not written by this policy, or by another version of it.
    #[error("the saved tables belong to another policy or version")]
    Foreign,
    /// Its checksum is wrong.
    #[error("the saved tables are damaged")]
    Damaged,
}
