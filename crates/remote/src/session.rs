use std::sync::OnceLock;

use slackwater_wire::{ErrorCode, Key, Version};

use crate::get::{Outcome, Part, Sink};
use crate::waits::here;
use crate::{Client, ClientError, GetOptions};

/// A value that is read a part at a time, as layers of a model are: all parts are of one put.
///
/// Each call reads the bytes that it asks for and no others, where the value is known to be: the client looks it up once, and
/// again when the lease of that look-up is over. What is on SSD alone is read whole with the first part, and kept by the
/// session. A session holds nothing at the server, so that a value in memory may be evicted, removed or replaced between two
/// calls; the session has expired then.
#[derive(Debug)]
pub struct ReadSession {
    key: Vec<u8>,
    /// The put that the first part was of.
    version: OnceLock<Version>,
    /// The value, where it was on SSD.
    kept: OnceLock<Vec<u8>>,
}

impl ReadSession {
    /// A session that has read nothing yet.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            version: OnceLock::new(),
            kept: OnceLock::new(),
        }
    }

    /// The key of the value.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The length of the value, where what was read is of the session's put.
    fn settle(&self, outcome: Outcome, sink: Sink<'_>) -> Result<usize, ClientError> {
        let found = outcome?;
        let of_it =
            found.filter(|found| *self.version.get_or_init(|| found.version) == found.version);
        let Some(found) = of_it else {
            return Err(ClientError::Refused {
                key: Key::new(&self.key)?,
                code: ErrorCode::LeaseExpired,
            });
        };
        if let Sink::Session {
            mut parts,
            kept: Some(value),
        } = sink
        {
            copy_out(self.kept.get_or_init(|| value), &mut parts);
        }
        Ok(found.bytes)
    }
}

impl Client {
    /// Reads parts of the values of sessions, as [`Client::get_parts`] does, and says the length of each value.
    ///
    /// A session whose value is not there, or is of another put than the parts before, ends with
    /// [`ErrorCode::LeaseExpired`]; what its parts were read into is of no meaning then.
    pub fn read_sessions(
        &self,
        sessions: &[&ReadSession],
        parts: Vec<Vec<Part<'_>>>,
        options: &GetOptions,
    ) -> Vec<Result<usize, ClientError>> {
        let (count, given) = (sessions.len(), parts.len());
        if count != given {
            let wrong = ClientError::BufferCount {
                keys: count,
                buffers: given,
            };
            return vec![Err(wrong); count];
        }
        let (mut asked, mut sinks) = (Vec::new(), Vec::new());
        let mut lengths = Vec::with_capacity(count);
        for (session, mut parts) in sessions.iter().zip(parts) {
            lengths.push(Ok(session.kept.get().map_or(0, Vec::len)));
            match session.kept.get() {
                Some(value) => copy_out(value, &mut parts),
                None => {
                    asked.push(lengths.len() - 1);
                    sinks.push(Sink::Session { parts, kept: None });
                }
            }
        }
        let keys: Vec<&[u8]> = asked.iter().map(|place| sessions[*place].key()).collect();
        let call = self.call(&options.call);
        let outcomes = here(call.read(&keys, &mut sinks, options));
        for ((place, outcome), sink) in asked.into_iter().zip(outcomes).zip(sinks) {
            lengths[place] = sessions[place].settle(outcome, sink);
        }
        lengths
    }
}

/// Copies the parts that lie in a value.
fn copy_out(value: &[u8], parts: &mut [Part<'_>]) {
    for part in parts {
        if part.is_in(value.len() as u64) {
            let from = part.from as usize;
            part.into.copy_from_slice(&value[from..][..part.into.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Checksum;
    use slackwater_wire::{NodeId, ReplicaAt, SegmentId};

    use super::*;
    use crate::get::Found;

    fn found(version: u64, bytes: usize) -> Found {
        Found {
            bytes,
            version: Version(version),
            checksum: Checksum(1),
            from: ReplicaAt::Disk {
                node: NodeId(1),
                segment: SegmentId(1),
            },
        }
    }

    #[test]
    fn parts_of_another_put_are_not_of_the_session() {
        let session = ReadSession::new(b"k");
        let check = |version: Option<u64>, expected: Result<usize, ErrorCode>| {
            let found = version.map(|version| found(version, 100));
            let settled = session.settle(Ok(found), Sink::Parts(Vec::new()));
            assert_eq!(
                settled.map_err(|error| error.code()),
                expected,
                "{version:?}"
            );
        };
        let expired = Err(ErrorCode::LeaseExpired);
        check(None, expired);
        check(Some(7), Ok(100));
        check(Some(7), Ok(100));
        check(Some(8), expired);
        check(None, expired);
        check(Some(7), Ok(100));
    }

    #[test]
    fn what_came_whole_is_kept_and_copied_to_the_parts_that_lie_in_it() {
        let session = ReadSession::new(b"k");
        let (mut inside, mut outside) = ([0; 2], [0; 2]);
        let parts = vec![
            Part {
                from: 3,
                into: &mut inside,
            },
            Part {
                from: 4,
                into: &mut outside,
            },
        ];
        let kept = Some(b"value".to_vec());
        let settled = session.settle(Ok(Some(found(1, 5))), Sink::Session { parts, kept });
        assert_eq!(settled, Ok(5));
        assert_eq!((inside, outside), (*b"ue", [0; 2]));
        assert_eq!(session.kept.get().map(Vec::as_slice), Some(&b"value"[..]));
    }
}
