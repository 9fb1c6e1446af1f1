/// Samples of a run of unknown length in bounded memory: when it is full, every second sample goes and the stride
/// between samples doubles.
#[derive(Clone, Debug)]
pub struct Series<T> {
    samples: Vec<T>,
    limit: usize,
    stride: u64,
    offered: u64,
}

impl<T> Series<T> {
    /// A series of at most `limit` samples, kept even and at least 2.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            samples: Vec::new(),
            limit: (limit / 2).max(1) * 2,
            stride: 1,
            offered: 0,
        }
    }

    /// Offers the next sample, which is made only when it is kept.
    pub fn offer(&mut self, sample: impl FnOnce() -> T) {
        self.offered += 1;
        if !self.offered.is_multiple_of(self.stride) {
            return;
        }
        if self.samples.len() == self.limit {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride *= 2;
        }
        if self.offered.is_multiple_of(self.stride) {
            self.samples.push(sample());
        }
    }

    /// Adds the state at the end of the run, unless the last sample is of the same moment.
    pub fn finish(&mut self, sample: impl FnOnce() -> T) {
        if !self.offered.is_multiple_of(self.stride) || self.samples.is_empty() {
            self.samples.push(sample());
        }
    }

    /// The samples kept, in order.
    #[must_use]
    pub fn samples(&self) -> &[T] {
        &self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stay_evenly_spaced_and_bounded() {
        for length in [0u64, 1, 5, 8, 9, 100, 12_345] {
            let mut series = Series::with_limit(8);
            for moment in 1..=length {
                series.offer(|| moment);
            }
            let kept = series.samples();
            assert!(kept.len() <= 8, "{length}: {kept:?}");
            let stride = kept.first().copied().unwrap_or(1);
            assert!(
                kept.iter()
                    .enumerate()
                    .all(|(index, moment)| *moment == stride * (index as u64 + 1)),
                "{kept:?}"
            );
            assert!(length < 8 || kept.len() >= 4, "{length}: {kept:?}");
        }
    }

    #[test]
    fn the_end_is_kept_once() {
        let mut series = Series::with_limit(4);
        for moment in 1..=7 {
            series.offer(|| moment);
        }
        series.finish(|| 7);
        assert_eq!(series.samples(), [2, 4, 6, 7]);
        let mut series = Series::with_limit(4);
        series.offer(|| 1);
        series.finish(|| 1);
        assert_eq!(series.samples(), [1]);
    }
}
