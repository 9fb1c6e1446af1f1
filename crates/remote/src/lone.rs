//! One value that is known to lie in one place in memory: read there at once. The steps of a flow take as long as the bytes of a short
//! value.

use slackwater_client::Located;
use slackwater_wait::{failpoint, now};
use slackwater_wire::{Object, ReplicaAt};

use crate::carry::{Carrier, Source};
use crate::get::{Found, Sink};
use crate::locations::Rights;

impl Carrier<'_> {
    /// Reads the value into its sink. `None` where it lies in several places, is not read whole, or did not come as it was put: a
    /// flow goes on with what is known then. It does not wait again for a node that was silent here.
    pub(crate) async fn read_lone(
        &mut self,
        located: &Located<Rights>,
        sink: &mut Sink<'_>,
    ) -> Option<Found> {
        let object = &located.known.object;
        let [(extent, capability)] = &located.rights[..] else {
            return None;
        };
        let source = Source {
            capability: *capability,
            offset: extent.offset,
            into: self.whole(object, sink)?,
            is_last: object.replicas.len() == 1,
        };
        failpoint("get.located");
        let checksum = self.read(source).await.ok()?;
        let is_it = checksum == object.checksum && now() <= located.known.valid_until;
        is_it.then_some(Found {
            bytes: object.bytes as usize,
            version: object.version,
            checksum,
            from: ReplicaAt::Memory(*extent),
        })
    }

    /// The memory for the whole of an object, where it goes to one place and there is room.
    fn whole<'s>(&self, object: &Object, sink: &'s mut Sink<'_>) -> Option<&'s mut [u8]> {
        let length = usize::try_from(object.bytes).ok()?;
        match sink {
            Sink::Given(buffer) => buffer.get_mut(..length),
            Sink::Fresh(value) if object.bytes <= self.link.value_bytes_max() => {
                value.resize(length, 0);
                Some(value)
            }
            Sink::Fresh(_) | Sink::Parts(_) | Sink::Session { .. } => None,
        }
    }
}
