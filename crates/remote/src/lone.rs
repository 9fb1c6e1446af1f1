//! One value that is known to lie in one place in memory: read there at once. The steps of a flow take as long as the bytes of a short
//! value.

use slackwater_client::Located;
use slackwater_wait::{failpoint, now};
use slackwater_wire::{Key, Object, ReplicaAt};

use crate::carry::{Carrier, NotMoved, Source};
use crate::get::{Found, Sink};
use crate::locations::{LocationCache, Rights};

/// What came of it.
pub(crate) enum Lone {
    Read(Found),
    /// It did not come as it was put: what was known of it is forgotten, and has to be asked for.
    Forgotten,
    /// It lies in several places, or is not read whole.
    Other,
}

impl Carrier<'_> {
    /// Reads the value into its sink.
    pub(crate) async fn read_lone(
        &mut self,
        locations: &LocationCache,
        (key, located): (&Key, &Located<Rights>),
        sink: &mut Sink<'_>,
    ) -> Lone {
        let object = &located.known.object;
        let ([(extent, capability)], Some(into)) = (&located.rights[..], self.whole(object, sink))
        else {
            return Lone::Other;
        };
        let from = ReplicaAt::Memory(*extent);
        let source = Source {
            capability: *capability,
            offset: extent.offset,
            into,
            is_last: object.replicas.len() == 1,
        };
        failpoint("get.located");
        match self.read(source).await {
            Ok(checksum) if checksum == object.checksum && now() <= located.known.valid_until => {
                return Lone::Read(Found {
                    bytes: object.bytes as usize,
                    version: object.version,
                    checksum,
                    from,
                });
            }
            // Its node may be gone, and with it everything that was there; a caller out of time has not learnt that.
            Err(NotMoved::Failed) if now() < self.until => locations.forget_all(),
            Ok(_) | Err(_) => locations.forget(std::slice::from_ref(key)),
        }
        Lone::Forgotten
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
