/// A count of live things. Each thing holds a [`Counted`], which cannot be copied and is given back when the thing
/// ends, so nothing is subtracted twice.
#[derive(Debug, Default)]
pub struct Tally(usize);

/// The proof that a [`Tally`] has counted one thing.
#[derive(Debug)]
#[must_use = "what is counted is given back to its tally when it ends"]
pub struct Counted(());

impl Tally {
    /// Counts one more.
    pub const fn add(&mut self) -> Counted {
        self.0 += 1;
        Counted(())
    }

    /// Counts one less: the thing that held `counted` has ended.
    pub const fn remove(&mut self, counted: Counted) {
        let Counted(()) = counted;
        self.0 -= 1;
    }

    /// The current count.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_what_was_added_less_what_was_removed() {
        let mut tally = Tally::default();
        let (first, second) = (tally.add(), tally.add());
        assert_eq!(tally.count(), 2);
        tally.remove(first);
        tally.remove(second);
        assert_eq!(tally.count(), 0);
    }
}
