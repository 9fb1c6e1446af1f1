/// How many of something there are now. Each of them holds a [`Counted`], which cannot be copied and is given back when it
/// ends, so nothing is subtracted twice.
#[derive(Debug, Default)]
pub struct Tally(usize);

/// One that a [`Tally`] has counted.
#[derive(Debug)]
#[must_use = "what is counted is given back to its tally when it ends"]
pub struct Counted(());

impl Tally {
    /// Counts one more.
    pub const fn add(&mut self) -> Counted {
        self.0 += 1;
        Counted(())
    }

    /// Counts one less: the one that holds `counted` has ended.
    pub const fn remove(&mut self, counted: Counted) {
        let Counted(()) = counted;
        self.0 -= 1;
    }

    /// How many there are.
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
