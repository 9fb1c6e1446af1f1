//! Replays the committed fuzz corpora, and mutations of them, through the functions of the fuzz targets.

#[expect(
    unreachable_pub,
    reason = "public to the fuzz targets, which are crates of their own"
)]
#[path = "../../../fuzz/src/zmtp.rs"]
mod zmtp;

#[path = "../../../fuzz/src/corpora.rs"]
mod corpora;

#[test]
fn corpora_and_their_mutations_break_nothing() {
    corpora::replay(&zmtp::TARGETS);
}
