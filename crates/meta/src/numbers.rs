//! The numbers that a master gives: each is given once, and later ones are larger.

use slackwater_base::{Planted, planted};
use slackwater_wire::{TicketId, Version};

/// Newest version that a log may report: so many puts are left that there are always newer ones.
pub(crate) const VERSION_MAX: Version = Version(1 << 62);

/// The next numbers.
pub(crate) struct Numbers {
    version: u64,
    ticket: u64,
    /// Of extents, the highest that any segment that is gone was to give next.
    generation: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            version: 1,
            ticket: 1,
            generation: 1,
        }
    }
}

impl Numbers {
    pub(crate) fn version(&mut self) -> Version {
        self.version += 1;
        Version(self.version - 1)
    }

    pub(crate) fn ticket(&mut self) -> TicketId {
        self.ticket += 1;
        TicketId(self.ticket - 1)
    }

    /// The generation of the first extent of a segment: no earlier extent had it, neither of this master nor, where the
    /// node says what is the highest that it knows, of another.
    pub(crate) fn generations_above(&self, known: Option<u64>) -> u64 {
        match known {
            Some(_) if planted(Planted::GenerationsBeginAgain) => 1,
            Some(known) => {
                let known = known.min(VERSION_MAX.0);
                self.version.max(self.generation).max(known + 1)
            }
            None => 1,
        }
    }

    /// A segment is gone whose next extent would have had this generation.
    pub(crate) fn note_generation(&mut self, next: u64) {
        self.generation = self.generation.max(next);
    }

    /// The newest version given so far: what is removed now is not newer.
    pub(crate) fn newest_version(&self) -> Version {
        Version(self.version - 1)
    }

    /// Makes versions begin above this one.
    pub(crate) fn start_above(&mut self, version: Version) {
        if !planted(Planted::VersionsBeginAgain) {
            let version = version.min(VERSION_MAX);
            self.version = self.version.max(version.0 + 1);
            // Nodes that outlive an earlier master still carry its tickets out.
            self.ticket = self.ticket.max(version.0 + 1);
        }
    }
}
