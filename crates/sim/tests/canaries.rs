//! Would the simulator notice? Each planted bug must be caught within a bounded number of seeds.

use slackwater_base::Planted;
use slackwater_sim::run::run_seed;

/// Seeds tried for each bug. The same seeds hold without it: `seeds.rs` says so.
const SEEDS: u64 = 2000;

#[test]
fn every_planted_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| ()));
    let caught = |bug: Planted| {
        let seeds = (0..SEEDS).find_map(|seed| Some((seed, run_seed(seed, Some(bug)).violation?.1)));
        (bug, seeds)
    };
    let (left, right) = Planted::ALL.split_at(Planted::ALL.len() / 2);
    let results: Vec<_> = std::thread::scope(|scope| {
        let other = scope.spawn(|| right.iter().map(|bug| caught(*bug)).collect::<Vec<_>>());
        let mut results: Vec<_> = left.iter().map(|bug| caught(*bug)).collect();
        results.extend(other.join().unwrap());
        results
    });
    let _ = std::panic::take_hook();
    let missed: Vec<_> = results.iter().filter(|(_, found)| found.is_none()).map(|(bug, _)| bug).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}\ncaught: {results:#?}");
    for (bug, found) in &results {
        if let Some((seed, violation)) = found {
            println!("{bug:?}: seed {seed}, {}", violation.invariant);
        }
    }
}
