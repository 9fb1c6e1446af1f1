use std::cell::RefCell;

use slackwater_base::Rng;
use slackwater_wire::TraceContext;

/// The first span of a new trace; none where the operating system gives no randomness.
pub(crate) fn fresh_trace() -> Option<TraceContext> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    TraceContext::new(u128::from_ne_bytes(bytes), fresh_number()?)
}

/// Another span of the same trace.
pub(crate) fn fresh_span(parent: TraceContext) -> Option<TraceContext> {
    TraceContext::new(parent.trace.0.get(), fresh_number()?)
}

fn fresh_number() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// True of this share of the calls.
pub(crate) fn sampled(share: f64) -> bool {
    thread_local! {
        static DICE: RefCell<Option<Rng>> = const { RefCell::new(None) };
    }
    if share <= 0.0 || share >= 1.0 {
        return share > 0.0;
    }
    DICE.with_borrow_mut(|dice| {
        let seeded = || Rng::new(fresh_number().unwrap_or_default());
        dice.get_or_insert_with(seeded).unit() < share
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_calls_is_sampled() {
        let of = |share: f64| (0..10_000).filter(|_| sampled(share)).count();
        assert_eq!((of(0.0), of(1.0), of(f64::NAN)), (0, 10_000, 0));
        let few = of(0.1);
        // Six standard deviations.
        assert!((820..=1180).contains(&few), "{few}");
    }

    #[test]
    fn spans_of_a_trace_have_its_id_and_one_of_their_own() {
        let first = fresh_trace().unwrap();
        let second = fresh_span(first).unwrap();
        assert_eq!(first.trace, second.trace);
        assert_ne!(first.span, second.span);
        assert_ne!(fresh_trace().unwrap().trace, first.trace);
    }
}
