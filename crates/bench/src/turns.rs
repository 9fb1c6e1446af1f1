//! Ways of doing the same, measured in turns of about a millisecond each, so that a noisy machine is noisy to all.

use slackwater_wait::now;

use crate::usage::median;

/// The throughput of each way in each turn.
pub(crate) struct Turns(Vec<Vec<f64>>);

impl Turns {
    /// Takes `count` turns of `ways` ways. `run` does one of them once and returns how many bytes that moved.
    ///
    /// # Errors
    /// The first error of `run`.
    pub(crate) fn take<E>(
        count: usize,
        ways: usize,
        mut run: impl FnMut(usize) -> Result<usize, E>,
    ) -> Result<Self, E> {
        let mut gbps = vec![Vec::with_capacity(count); ways];
        for turn in 0..count {
            for at in 0..ways {
                // Each way is the first of some turns.
                let way = (at + turn) % ways;
                let begun = now();
                let bytes = run(way)?;
                let nanos = now().since(begun).as_nanos().max(1);
                gbps[way].push(bytes as f64 / nanos as f64);
            }
        }
        Ok(Self(gbps))
    }

    /// The median throughput of a way, in 10^9 bytes a second.
    pub(crate) fn gbps(&self, way: usize) -> f64 {
        median(&mut self.0[way].clone())
    }

    /// The median of the ratios of each turn, of one way over another.
    pub(crate) fn ratio(&self, way: usize, over: usize) -> f64 {
        let ratios = self.0[way].iter().zip(&self.0[over]);
        median(&mut ratios.map(|(way, over)| way / over).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_first_in_turn_and_the_first_error_ends_it() {
        let mut order = Vec::new();
        let turns = Turns::take(3, 3, |way| {
            order.push(way);
            Ok::<_, ()>(1000)
        });
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        let turns = turns.unwrap();
        assert!(turns.gbps(0) > 0.0 && turns.ratio(1, 1) == 1.0);
        let refused = Turns::take(3, 3, |way| if way == 1 { Err("no") } else { Ok(1) });
        assert_eq!(refused.err(), Some("no"));
    }

    #[test]
    fn a_ratio_is_one_of_each_turn() {
        let turns = Turns(vec![vec![1.0, 10.0, 100.0], vec![2.0, 10.0, 400.0]]);
        assert_eq!((turns.gbps(0), turns.ratio(0, 1)), (10.0, 0.5));
    }
}
