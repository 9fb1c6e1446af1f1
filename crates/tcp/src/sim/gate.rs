//! The gate of the simulated target: the lender of the other tests, and its mistakes.

use slackwater_engine::{Extent, Gate, GateAccess};
use slackwater_wire::data::{Refusal, Rights};

use super::Bug;
use crate::lender::Lender;

#[derive(Debug)]
pub(super) struct SimulatedGate {
    pub(super) lender: Lender,
    pub(super) bug: Option<Bug>,
}

impl Gate for SimulatedGate {
    fn begin(&self, extent: Extent, rights: Rights) -> Result<GateAccess, Refusal> {
        match (self.lender.live_at(extent.offset), self.bug) {
            (Some(live), Some(Bug::GenerationOfRegion)) => self.lender.begin(live, rights),
            _ => self.lender.begin(extent, rights),
        }
    }

    fn is_live(&self, access: GateAccess) -> bool {
        self.lender.is_live(access)
    }

    fn end(&self, access: GateAccess) {
        if self.bug != Some(Bug::EndNotTold) {
            self.lender.end(access);
        }
    }
}
