use std::fmt;

/// A multipart message: one buffer and the places of its parts in it.
///
/// Messages of up to six parts take one allocation.
#[derive(Clone, Default)]
pub struct Message {
    bytes: Vec<u8>,
    ranges: Ranges,
}

#[derive(Clone)]
enum Ranges {
    Few { count: u32, at: [(u32, u32); 6] },
    Many(Vec<(u32, u32)>),
}

impl Message {
    /// A message without parts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with room for so many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ranges: Ranges::default(),
        }
    }

    /// A message of `parts`.
    pub fn of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut message = Self::new();
        for part in parts {
            message.push(part.as_ref());
        }
        message
    }

    /// Appends a part.
    ///
    /// # Panics
    /// When the message would reach 4 GiB.
    pub fn push(&mut self, part: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(part);
        self.add_range(start, self.bytes.len());
    }

    /// The number of parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.as_slice().len()
    }

    /// Whether there is no part at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Part `index`.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = *self.ranges.as_slice().get(index)?;
        Some(&self.bytes[start as usize..end as usize])
    }

    /// Part `index`, to write over.
    pub fn part_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let (start, end) = *self.ranges.as_slice().get(index)?;
        Some(&mut self.bytes[start as usize..end as usize])
    }

    /// All parts in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.ranges
            .as_slice()
            .iter()
            .map(|(start, end)| &self.bytes[*start as usize..*end as usize])
    }

    /// The payload of all parts together, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    pub(crate) fn from_store(bytes: Vec<u8>, ranges: RangesBuilder) -> Self {
        Self {
            bytes,
            ranges: ranges.0,
        }
    }

    fn add_range(&mut self, start: usize, end: usize) {
        self.ranges.add(start, end);
    }
}

/// The places of the parts of a message that is still arriving.
#[derive(Clone, Default)]
pub(crate) struct RangesBuilder(Ranges);

impl RangesBuilder {
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.0.add(start, end);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_slice().len()
    }
}

impl Ranges {
    fn as_slice(&self) -> &[(u32, u32)] {
        match self {
            Ranges::Few { count, at } => &at[..*count as usize],
            Ranges::Many(all) => all,
        }
    }

    fn add(&mut self, start: usize, end: usize) {
        let fits = |n: usize| u32::try_from(n).expect("messages stay below 4 GiB by their limit");
        let range = (fits(start), fits(end));
        match self {
            Ranges::Few { count, at } if (*count as usize) < at.len() => {
                at[*count as usize] = range;
                *count += 1;
            }
            Ranges::Few { at, .. } => {
                let mut all = at.to_vec();
                all.push(range);
                *self = Ranges::Many(all);
            }
            Ranges::Many(all) => all.push(range),
        }
    }
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges::Few {
            count: 0,
            at: [(0, 0); 6],
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.parts().eq(other.parts())
    }
}

impl Eq for Message {}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.parts().map(|part| part.escape_ascii().to_string()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order_at_any_number() {
        for count in [0usize, 1, 6, 7, 64] {
            let parts: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; i]).collect();
            let message = Message::of(&parts);
            assert_eq!(message.len(), count);
            assert_eq!(
                message.parts().map(<[u8]>::to_vec).collect::<Vec<_>>(),
                parts
            );
            assert_eq!(message.part(count), None);
            assert_eq!(
                message.payload_bytes(),
                parts.iter().map(Vec::len).sum::<usize>()
            );
        }
    }
}
