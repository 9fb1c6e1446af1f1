use std::ops::Deref;

use slackwater_base::Checksum;
use slackwater_wire::SegmentKind;

use crate::client::{Call, only};
use crate::get::{Outcome, Sink};
use crate::waits::here;
use crate::{Client, ClientError, GetOptions};

/// A value that was read into memory of its own, as `&[u8]`: it stays as it is whatever happens to its key, the client and
/// the server meanwhile.
#[derive(Debug)]
pub struct View {
    bytes: Vec<u8>,
    checksum: Checksum,
    kind: SegmentKind,
}

impl View {
    /// What the value was read from.
    #[must_use]
    pub fn kind(&self) -> SegmentKind {
        self.kind
    }

    /// Whether the bytes are those that were put, by their checksum: they were when they came.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        Checksum::of(&self.bytes) == self.checksum
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Client {
    /// Reads one value, and says what from; `None` when there is none.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn view(&self, key: &[u8], options: &GetOptions) -> Result<Option<View>, ClientError> {
        only(self.view_batch(&[key], options))
    }

    /// Reads values, and says what from, a result each.
    pub fn view_batch(
        &self,
        keys: &[&[u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<View>, ClientError>> {
        here(self.call(&options.call).view(keys, options))
    }
}

impl Call<'_> {
    /// Reads values, and says what from, a result each.
    pub(crate) async fn view(
        &self,
        keys: &[&[u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<View>, ClientError>> {
        let mut sinks: Vec<Sink<'_>> = keys.iter().map(|_| Sink::Fresh(Vec::new())).collect();
        let outcomes = self.read(keys, &mut sinks, options).await;
        let view = |(outcome, sink): (Outcome, Sink<'_>)| match (outcome?, sink) {
            (Some(found), Sink::Fresh(bytes)) => Ok(Some(View {
                bytes,
                checksum: found.checksum,
                kind: found.from.kind(),
            })),
            _ => Ok(None),
        };
        outcomes.into_iter().zip(sinks).map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_changed_are_not_intact() {
        let check = |bytes: &[u8], expected: bool| {
            let view = View {
                bytes: bytes.to_vec(),
                checksum: Checksum::of(b"value"),
                kind: SegmentKind::Memory,
            };
            assert_eq!(view.is_intact(), expected, "{bytes:?}");
        };
        check(b"value", true);
        check(b"valuf", false);
        check(b"valu", false);
        check(b"", false);
    }
}
