//! The contract of movers, checked for each of them by the same cases.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bytes;
mod ends;
mod fabric;
mod late;
mod movers;
mod world;

/// Runs a case over every mover.
fn check(case: impl Fn(&world::World)) {
    for make in movers::worlds() {
        let world = make();
        case(&world);
    }
}
