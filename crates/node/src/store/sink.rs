use super::view::Viewing;

/// Where a value goes.
pub(super) enum Sink<'a> {
    /// The caller's buffer.
    Given(&'a mut [u8]),
    /// Memory that is made when the length is known.
    Fresh(Vec<u8>),
    /// Nowhere: the value is shown where it lies.
    View(Viewing),
}

impl Sink<'_> {
    pub(super) fn fits(&self, bytes: u64) -> bool {
        match self {
            Sink::Given(buffer) => buffer.len() as u64 >= bytes,
            Sink::Fresh(_) | Sink::View(_) => true,
        }
    }

    /// Room for exactly `bytes` bytes, which fit; `None` when views hold all the memory that there is for them.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        match self {
            Sink::Given(buffer) => Some(&mut buffer[..bytes]),
            Sink::Fresh(vector) => {
                vector.resize(bytes, 0);
                Some(vector)
            }
            Sink::View(viewing) => viewing.room(bytes),
        }
    }

    /// What was read into the room for `bytes` bytes.
    pub(super) fn bytes(&self, bytes: usize) -> &[u8] {
        match self {
            Sink::Given(buffer) => &buffer[..bytes],
            Sink::Fresh(vector) => vector,
            Sink::View(viewing) => viewing.read(),
        }
    }
}
