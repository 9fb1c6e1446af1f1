//! Reads bodies that are not MessagePack but records of fixed lengths, with little-endian numbers.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::BodyError;

/// What is still to be read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &mut self,
    ) -> Result<&'a T, BodyError> {
        let (value, rest) = T::ref_from_prefix(self.0).map_err(|_| ends_early())?;
        self.0 = rest;
        Ok(value)
    }

    pub(super) fn all<T: FromBytes + Immutable + Unaligned>(
        &mut self,
        count: usize,
    ) -> Result<&'a [T], BodyError> {
        let all = <[T]>::ref_from_prefix_with_elems(self.0, count);
        let (values, rest) = all.map_err(|_| ends_early())?;
        self.0 = rest;
        Ok(values)
    }

    /// Nothing may follow.
    pub(super) fn end(self) -> Result<(), BodyError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(BodyError::Trailing),
        }
    }
}

pub(super) fn malformed(what: &str) -> BodyError {
    BodyError::Malformed {
        what: what.to_owned(),
    }
}

fn ends_early() -> BodyError {
    malformed("a message that ends early")
}
