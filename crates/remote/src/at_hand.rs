//! Short values that lie in memory of this host and are known to: read without a wait.

use slackwater_transfer::Target;
use slackwater_wait::now;
use slackwater_wire::{Key, ReplicaAt};

use crate::{Cancel, Client, GetOptions};

/// The longest value that is at hand: its copy takes less time than it takes threads to pass a lock on.
const BYTES_MAX: usize = 64 << 10;

impl Client {
    /// Reads one value into the front of the caller's buffer, as [`Client::get_into`] does, where this takes a few
    /// microseconds and waits for nobody: the value is short, and lies where this process has looked before and may copy from.
    /// For callers that hold what others wait for, such as an interpreter's lock.
    ///
    /// `None` where it is not so, for whatever reason, and in a process that exports traces; the buffer's bytes are of no
    /// meaning then, and [`Client::get_into`] does what is needed.
    #[must_use]
    pub fn get_into_at_hand(
        &self,
        key: &[u8],
        buffer: &mut [u8],
        options: &GetOptions,
    ) -> Option<usize> {
        let call = &options.call;
        let cancelled = call.cancel.as_ref().is_some_and(Cancel::is_cancelled);
        if cancelled || slackwater_trace::is_recording() {
            return None;
        }
        let key = Key::new(key).ok()?;
        let most = BYTES_MAX.min(buffer.len());
        let located = self
            .locations()
            .find_short(&call.tenant, &key, &options.chain, most)?;
        let object = &located.known.object;
        let into = buffer.get_mut(..usize::try_from(object.bytes).ok()?)?;
        let came = located.rights.iter().find_map(|(extent, capability)| {
            if !object.replicas.contains(&ReplicaAt::Memory(*extent)) {
                return None;
            }
            let target = Target {
                peer: self.link().known_node(capability.claims().incarnation)?,
                offset: extent.offset,
                capability: *capability,
                key: None,
            };
            self.engine().read_at_hand(&target, into)
        });
        // What was copied is the value if its place was granted until now.
        let is_it = came? == object.checksum && now() <= located.known.valid_until;
        is_it.then_some(into.len())
    }
}
