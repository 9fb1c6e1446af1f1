use std::time::Duration;

use slackwater_base::Rng;

/// The pauses between retries: doubling from `first` to `max`, each shortened by chance to between half and all of it,
/// so that those who failed together do not return together (Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
    rng: Rng,
}

impl Backoff {
    /// Pauses from `first` up to `max`, with randomness from `rng`.
    #[must_use]
    pub fn new(first: Duration, max: Duration, rng: Rng) -> Self {
        Self {
            first,
            max: max.max(first),
            next: first,
            rng,
        }
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.max);
        full.mul_f64(0.5 + self.rng.unit() / 2.0)
    }

    /// A try succeeded: the next failure starts over.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_limit_and_keep_half() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(2_000), Rng::new(3));
        for full in [100, 200, 400, 800, 1_600, 2_000, 2_000] {
            let pause = backoff.pause();
            assert!(
                pause >= ms(full) / 2 && pause <= ms(full),
                "{pause:?} of {full} ms"
            );
        }
        backoff.reset();
        assert!(backoff.pause() <= ms(100));
    }
}
