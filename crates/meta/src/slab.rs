/// Values with dense numbers that are reused. Grows by chunks, so it never copies its values nor reserves twice the
/// memory it needs.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    spare: Vec<u32>,
    next: u32,
}

const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            spare: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.next as usize - self.spare.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let id = self.spare.pop().unwrap_or_else(|| {
            let id = self.next;
            if id as usize == self.chunks.len() * CHUNK {
                self.chunks.push((0..CHUNK).map(|_| None).collect());
            }
            self.next += 1;
            id
        });
        *self.cell(id) = Some(value);
        id
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        let value = self.cell(id).take().expect("only live numbers are removed");
        self.spare.push(id);
        value
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.chunks.get((id >> CHUNK_BITS) as usize)?[id as usize & (CHUNK - 1)].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.chunks.get_mut((id >> CHUNK_BITS) as usize)?[id as usize & (CHUNK - 1)].as_mut()
    }

    /// Numbers below this one may be live.
    pub(crate) fn end(&self) -> u32 {
        self.next
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.next).filter_map(|id| Some((id, self.get(id)?)))
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Option<T>>()
            + self.spare.capacity() * size_of::<u32>()
    }

    fn cell(&mut self, id: u32) -> &mut Option<T> {
        &mut self.chunks[(id >> CHUNK_BITS) as usize][id as usize & (CHUNK - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_reused() {
        let mut slab = Slab::new();
        let ids: Vec<u32> = (0..5000).map(|value| slab.insert(value)).collect();
        assert_eq!(ids, (0..5000).collect::<Vec<_>>());
        assert_eq!(
            (slab.remove(17), slab.len(), slab.get(17)),
            (17, 4999, None)
        );
        assert_eq!(slab.insert(9), 17);
        assert_eq!(slab.iter().count(), 5000);
    }
}
