//! How runs of memory are carried: what is registered in requests, the rest while the caller waits.

use slackwater_transfer::{Home, LocalRange, Op, Priority, Request, Target};

use super::failure::Failure;
use super::peer::Peer;
use crate::raw::{Number, Range};

/// Runs of memory here and at a peer.
pub(super) struct Runs {
    local: Vec<Range>,
    remote: Vec<u64>,
}

/// The requests of a call, and the runs that need none.
#[derive(Default)]
pub(super) struct Plan {
    /// For memory that is registered.
    pub(super) requests: Vec<Request>,
    /// Memory none of which is registered, and where its bytes are at the peer.
    pub(super) unregistered: Vec<(Range, Target)>,
}

impl Runs {
    /// `None` when lists do not fit together, or a run is no memory. Runs of no bytes are left out.
    pub(super) fn of(starts: &[Number], addresses: &[Number], lengths: &[Number]) -> Option<Self> {
        if starts.len() != lengths.len() || addresses.len() != lengths.len() {
            return None;
        }
        let mut runs = Self {
            local: Vec::with_capacity(lengths.len()),
            remote: Vec::with_capacity(lengths.len()),
        };
        for ((start, address), length) in starts.iter().zip(addresses).zip(lengths) {
            if length.0 > 0 {
                runs.local.push(Range::new(*start, *length)?);
                runs.remote.push(address.0 as u64);
            }
        }
        Some(runs)
    }

    /// How they are carried. Peers may write registered memory at any time, and a slice over such memory would be undefined
    /// behaviour; so runs are cut where registered memory begins and ends.
    pub(super) fn plan(&self, home: &Home, peer: &Peer, op: Op) -> Result<Plan, Failure> {
        let mut plan = Plan::default();
        let mut registered = None;
        for (run, remote) in self.local.iter().zip(&self.remote) {
            let target = peer.target(*remote, run.bytes() as u64)?;
            if let Some(local) = local(home, *run) {
                plan.requests.push(request(op, local, target));
                continue;
            }
            for piece in run.cut(registered.get_or_insert_with(|| all_registered(home))) {
                let mut target = target;
                target.offset += (piece.start() - run.start()) as u64;
                match local(home, piece) {
                    Some(local) => plan.requests.push(request(op, local, target)),
                    None => plan.unregistered.push((piece, target)),
                }
            }
        }
        Ok(plan)
    }
}

/// A range of memory as requests name it; none when it is not all of one registration.
pub(super) fn local(home: &Home, range: Range) -> Option<LocalRange> {
    let found = home.regions().find(range.start(), range.bytes())?;
    Some(LocalRange {
        region: found.region.id(),
        offset: found.offset,
        bytes: range.bytes() as u64,
    })
}

/// All memory of this process that is registered, or whose registration has not ended yet, by its address.
fn all_registered(home: &Home) -> Vec<Range> {
    let regions = home.regions().all();
    let memory = regions.iter().map(|region| region.memory());
    let memory = memory.filter(|memory| memory.location().is_host());
    let ranges = memory.map(|memory| {
        let start = memory.start().as_ptr().addr();
        Range::new(Number(start), Number(memory.bytes()))
    });
    let mut ranges: Vec<Range> = ranges.flatten().collect();
    ranges.sort_unstable_by_key(|range| range.start());
    ranges
}

fn request(op: Op, local: LocalRange, target: Target) -> Request {
    Request {
        op,
        local: vec![local],
        target,
        timeout: None,
        priority: Priority::default(),
    }
}
