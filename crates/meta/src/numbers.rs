//! The numbers that a master gives: each is given once, and later ones are larger.

use slackwater_base::{Planted, planted};
use slackwater_wire::{TicketId, Version};

/// Newest version that a log may report: so many puts are left that there are always newer ones.
pub(crate) const VERSION_MAX: Version = Version(1 << 62);

/// The next numbers.
pub(crate) struct Numbers {
    version: u64,
    ticket: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            version: 1,
            ticket: 1,
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

    /// The newest version given so far: what is removed now is not newer.
    pub(crate) fn newest_version(&self) -> Version {
        Version(self.version - 1)
    }

    /// Makes versions begin above this one.
    pub(crate) fn start_above(&mut self, version: Version) {
        if !planted(Planted::VersionsBeginAgain) {
            let version = version.min(VERSION_MAX);
            self.version = self.version.max(version.0 + 1);
        }
    }
}
