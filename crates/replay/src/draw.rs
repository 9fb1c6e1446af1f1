//! Random draws of the distributions that generated traffic is made of.

use slackwater_base::Rng;

/// A log-normal distribution: its median, and the standard deviation of the logarithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogNormal {
    pub(crate) median: f64,
    pub(crate) sigma: f64,
}

/// A source of draws; a seed determines all of them.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    rng: Rng,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
        }
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.rng.chance(p)
    }

    /// An index below `count` with weight 1 / (index + 1).
    pub(crate) fn zipf(&mut self, count: usize) -> usize {
        let total: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let mut place = self.rng.unit() * total;
        for index in 0..count {
            place -= 1.0 / (index + 1) as f64;
            if place < 0.0 {
                return index;
            }
        }
        count - 1
    }

    /// How often something is done that ends each time with the chance 1 / `mean`; at least once.
    pub(crate) fn geometric(&mut self, mean: f64) -> u64 {
        let mut times = 1;
        while !self.rng.chance(1.0 / mean) {
            times += 1;
        }
        times
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.rng.unit()).ln() * mean
    }

    /// A whole number of at least one.
    pub(crate) fn log_normal(&mut self, shape: LogNormal) -> u64 {
        (self.log_normal_f64(shape).round() as u64).max(1)
    }

    /// By the polar form of Box and Muller (1958), capped at six sigmas.
    pub(crate) fn log_normal_f64(&mut self, LogNormal { median, sigma }: LogNormal) -> f64 {
        let radius = (-2.0 * (1.0 - self.rng.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.rng.unit()).cos();
        median * (sigma * normal.clamp(-6.0, 6.0)).exp()
    }
}

pub(crate) fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
