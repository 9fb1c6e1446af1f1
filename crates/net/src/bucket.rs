use std::time::Duration;

use slackwater_base::Instant;

/// So many of something a second, and no more than one second's worth at once.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    /// One that has all its tokens, and gets `rate` of them a second.
    #[must_use]
    pub fn full(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate);
        Self {
            rate,
            tokens: rate,
            at: now,
        }
    }

    /// Takes a token; says whether there was one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }

    /// When there is a token.
    pub fn next_token(&mut self, now: Instant) -> Instant {
        self.refill(now);
        if self.tokens >= 1.0 {
            return now;
        }
        now + Duration::from_secs_f64((1.0 - self.tokens) / self.rate.max(1.0))
    }

    /// Whether nothing was taken lately.
    pub(crate) fn is_full(mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens >= self.rate
    }

    fn refill(&mut self, now: Instant) {
        let earned = now.since(self.at).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + earned).min(self.rate);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_gives_as_many_tokens_as_its_rate_says() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut bucket = TokenBucket::full(4, at(0));
        let mut taken = |millis| (0..9).filter(|_| bucket.take(at(millis))).count();
        assert_eq!([taken(0), taken(500), taken(10_000)], [4, 2, 4]);
        assert_eq!(bucket.next_token(at(10_000)), at(10_250));
        assert!(bucket.take(at(10_250)) && !bucket.is_full(at(11_000)));
    }
}
