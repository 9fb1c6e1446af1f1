use super::Slot;

/// `N` queues over the slots of one segment, each from hot to cold, which the queue policies are built on.
///
/// A excluded slot keeps its place until it becomes the coldest of its queue; only then it is removed from the order,
/// and when it is included it returns to the cold end. So exclusion costs nothing, an excluded replica keeps its age,
/// and a queue full of leased slots is walked once, not at every eviction. Sixteen bytes a slot.
#[derive(Debug)]
pub(super) struct Queues<const N: usize> {
    nodes: Vec<Node>,
    ends: [Ends; N],
    resident: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hotter: u32,
    colder: u32,
    /// Length in units of [`UNIT_BYTES`]: only the proportions of the queues depend on it.
    units: u32,
    /// Which queue, or [`ABSENT`].
    queue: u8,
    /// The policy's own small counter.
    mark: u8,
    excluded: bool,
    /// Excluded and out of the queue's order.
    aside: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    hot: u32,
    cold: u32,
    units: u64,
    slots: usize,
}

const NONE: u32 = u32::MAX;
const ABSENT: u8 = u8::MAX;
const UNIT_BYTES: u64 = 256;
const NO_NODE: Node = Node {
    hotter: NONE,
    colder: NONE,
    units: 0,
    queue: ABSENT,
    mark: 0,
    excluded: false,
    aside: false,
};

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            ends: [Ends {
                hot: NONE,
                cold: NONE,
                units: 0,
                slots: 0,
            }; N],
            resident: 0,
        }
    }
}

impl<const N: usize> Queues<N> {
    /// Reads the nodes of these slots and their neighbours ahead of their moves, first all nodes and then all neighbours,
    /// so that cache misses overlap.
    pub(super) fn warm(&self, slots: impl Iterator<Item = Slot> + Clone) {
        let units = |at: u32| self.nodes.get(at as usize).map_or(0, |node| node.units);
        let seen = slots.clone().fold(0, |seen, slot| seen ^ units(slot.0));
        std::hint::black_box(seen);
        let nodes = slots.filter_map(|slot| self.nodes.get(slot.0 as usize));
        let seen = nodes.fold(0, |seen, node| {
            seen ^ units(node.hotter) ^ units(node.colder)
        });
        std::hint::black_box(seen);
    }

    /// Which queue `slot` is in.
    pub(super) fn queue(&self, slot: Slot) -> Option<usize> {
        let node = self.nodes.get(slot.0 as usize)?;
        (node.queue != ABSENT).then_some(usize::from(node.queue))
    }

    /// Slots in all queues.
    pub(super) const fn resident(&self) -> usize {
        self.resident
    }

    /// Slots in `queue`, those aside included.
    pub(super) const fn slots(&self, queue: usize) -> usize {
        self.ends[queue].slots
    }

    /// Size of `queue`, in units of no meaning outside comparisons.
    pub(super) const fn units(&self, queue: usize) -> u64 {
        self.ends[queue].units
    }

    /// Size of all queues.
    pub(super) fn all_units(&self) -> u64 {
        self.ends.iter().map(|ends| ends.units).sum()
    }

    pub(super) fn mark(&self, slot: Slot) -> u8 {
        self.nodes[slot.0 as usize].mark
    }

    pub(super) fn set_mark(&mut self, slot: Slot, mark: u8) {
        self.nodes[slot.0 as usize].mark = mark;
    }

    /// Puts a new slot at the hot end of `queue`, included and with mark zero.
    pub(super) fn insert(&mut self, slot: Slot, queue: usize, bytes: u64) {
        self.remove(slot);
        let at = slot.0 as usize;
        grow(&mut self.nodes, at, NO_NODE);
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES))
            .unwrap_or(u32::MAX)
            .max(1);
        self.nodes[at] = Node {
            units,
            queue: queue as u8,
            ..NO_NODE
        };
        self.resident += 1;
        self.count_in(at);
        self.link_hot(slot.0);
    }

    /// Takes `slot` out; false when it was in no queue.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        if self.queue(slot).is_none() {
            return false;
        }
        self.unlink(slot.0);
        let at = slot.0 as usize;
        self.count_out(at);
        self.nodes[at] = NO_NODE;
        self.resident -= 1;
        true
    }

    /// Moves `slot` to the hot end of `queue`.
    pub(super) fn move_to(&mut self, slot: Slot, queue: usize) {
        self.unlink(slot.0);
        let at = slot.0 as usize;
        self.count_out(at);
        self.nodes[at].queue = queue as u8;
        self.count_in(at);
        self.link_hot(slot.0);
    }

    /// The coldest slot of `queue` that is not excluded.
    pub(super) fn coldest(&mut self, queue: usize) -> Option<Slot> {
        loop {
            let cold = self.ends[queue].cold;
            if cold == NONE {
                return None;
            }
            if !self.nodes[cold as usize].excluded {
                return Some(Slot(cold));
            }
            self.unlink(cold);
            self.nodes[cold as usize].aside = true;
        }
    }

    pub(super) fn exclude(&mut self, slot: Slot) {
        if self.queue(slot).is_some() {
            self.nodes[slot.0 as usize].excluded = true;
        }
    }

    pub(super) fn include(&mut self, slot: Slot) {
        let Some(queue) = self.queue(slot) else {
            return;
        };
        let node = &mut self.nodes[slot.0 as usize];
        node.excluded = false;
        if !std::mem::take(&mut node.aside) {
            return;
        }
        let cold = std::mem::replace(&mut self.ends[queue].cold, slot.0);
        node.hotter = cold;
        node.colder = NONE;
        match cold {
            NONE => self.ends[queue].hot = slot.0,
            _ => self.nodes[cold as usize].colder = slot.0,
        }
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    fn count_in(&mut self, at: usize) {
        let node = self.nodes[at];
        let ends = &mut self.ends[usize::from(node.queue)];
        ends.units += u64::from(node.units);
        ends.slots += 1;
    }

    fn count_out(&mut self, at: usize) {
        let node = self.nodes[at];
        let ends = &mut self.ends[usize::from(node.queue)];
        ends.units -= u64::from(node.units);
        ends.slots -= 1;
    }

    fn link_hot(&mut self, slot: u32) {
        let queue = usize::from(self.nodes[slot as usize].queue);
        let hot = std::mem::replace(&mut self.ends[queue].hot, slot);
        let node = &mut self.nodes[slot as usize];
        node.hotter = NONE;
        node.colder = hot;
        match hot {
            NONE => self.ends[queue].cold = slot,
            _ => self.nodes[hot as usize].hotter = slot,
        }
    }

    /// Removes a slot from the order, if it is in it.
    fn unlink(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        if std::mem::take(&mut node.aside) {
            return;
        }
        let (hotter, colder, queue) = (node.hotter, node.colder, usize::from(node.queue));
        match hotter {
            NONE => self.ends[queue].hot = colder,
            _ => self.nodes[hotter as usize].colder = colder,
        }
        match colder {
            NONE => self.ends[queue].cold = hotter,
            _ => self.nodes[colder as usize].hotter = hotter,
        }
    }
}

/// Makes `list[at]` exist. Grows by a sixteenth rather than by doubling, so that little memory is unused.
#[inline]
pub(super) fn grow<T: Clone>(list: &mut Vec<T>, at: usize, empty: T) {
    if at < list.len() {
        return;
    }
    if at >= list.capacity() {
        let wanted = (at + 1).max(list.len() + list.len() / 16 + 16);
        list.reserve_exact(wanted - list.len());
    }
    list.resize(at + 1, empty);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_slot_is_neither_younger_nor_lost() {
        let mut queues = Queues::<1>::default();
        for slot in 0..4 {
            queues.insert(Slot(slot), 0, 1);
        }
        queues.exclude(Slot(0));
        queues.exclude(Slot(2));
        assert_eq!(queues.coldest(0), Some(Slot(1)), "slot 0 is excluded");
        queues.include(Slot(2));
        queues.include(Slot(0));
        let mut order = Vec::new();
        while let Some(slot) = queues.coldest(0) {
            order.push(slot.0);
            queues.remove(slot);
        }
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
