//! The checker of histories finds what it is for.

use std::time::Duration;

use super::history::{Bounds, Lines, durable, violations};

const BOUNDS: Bounds = Bounds {
    lease: Duration::from_nanos(10),
    call: Duration::from_nanos(50),
};

/// The lines of two processes; the second is dead at 1000.
fn acts(one: &str, other: &str) -> Vec<super::history::Act> {
    let lines = |text: &str| Lines(text.lines().map(|line| line.trim().to_owned()).collect());
    let (one, other) = (lines(one), lines(other));
    [one.acts(1, 2000), other.acts(2, 1000)].concat()
}

const PUT: &str = "b 0 1 100 upsert-disk 7:5
    e 0 1 110 new";

#[test]
fn histories_are_told_apart() {
    let check = |one: &str, other: &str, expected: &[&str]| {
        let found = violations(&acts(&format!("{PUT}\n{one}"), other), BOUNDS);
        let matches = |(found, expected): (&String, &&str)| found.contains(expected);
        let same = found.len() == expected.len() && found.iter().zip(expected).all(matches);
        assert!(same, "{one} / {other}: {found:?}, not {expected:?}");
    };
    let get = "b 1 1 200 get 7\ne 1 1 210 found:5";
    check(get, "", &[]);
    check("b 1 1 200 get 7\ne 1 1 210 missing", "", &[]);
    check("b 1 1 200 get 7\ne 1 1 210 wrong:x", "", &["x"]);
    check("b 1 1 200 get 7\ne 1 1 210 found:6", "", &["no put 6"]);
    check("b 1 1 200 get 8\ne 1 1 210 found:5", "", &["no put 5"]);
    check("b 1 1 10 get 7\ne 1 1 20 found:5", "", &["had not begun"]);
    check("b 1 1 10 exists 7\ne 1 1 20 there", "", &["had not begun"]);
    check(
        "b 1 1 10 exists 9\ne 1 1 20 there",
        "",
        &["nobody has put it"],
    );
    check("b 1 1 200 exists 7\ne 1 1 251 missing", "", &["it took"]);
    // Over at 191 for the reader that did not do it, with the lease.
    for (what, told) in [
        ("remove 7", "removed"),
        ("remove 7", "missing"),
        ("upsert 7:9", "new"),
        ("create 7:9", "new"),
    ] {
        let end = format!("b 0 2 170 {what}\ne 0 2 180 {told}");
        check(&end, "b 1 1 190 get 7\ne 1 1 200 found:5", &[]);
        check(
            &end,
            "b 1 1 191 get 7\ne 1 1 200 found:5",
            &["was over at 180"],
        );
        check(
            &format!("{end}\nb 1 1 181 get 7\ne 1 1 200 found:5"),
            "",
            &["was over"],
        );
        check(
            &format!("{end}\nb 1 1 179 get 7\ne 1 1 200 found:5"),
            "",
            &[],
        );
    }
    let removed = "b 0 2 170 remove 7\ne 0 2 180 removed";
    check(
        removed,
        "b 1 1 181 exists 7\ne 1 1 185 there",
        &["was over"],
    );
    let overlaps = "b 0 2 105 remove 7\ne 0 2 180 removed";
    let late = ["it took"];
    check(overlaps, "b 1 1 300 get 7\ne 1 1 310 found:5", &late);
    // What nobody answered may come later than a removal, and not than a newer put.
    let given_up = "b 0 2 120 upsert 7:6\ne 0 2 130 failed:RPC_FAIL";
    let read = "b 1 1 300 get 7\ne 1 1 310 found:6";
    check(&format!("{given_up}\n{removed}"), read, &[]);
    let replaced = "b 0 3 170 upsert 7:9\ne 0 3 180 new";
    check(&format!("{given_up}\n{replaced}"), read, &["was over"]);
    let existed = "b 0 2 120 create 7:6\ne 0 2 130 existed";
    check(existed, read, &["was not stored"]);
    check("", "b 0 2 120 upsert 7:6", &[]);
}

#[test]
fn what_must_be_there_is_what_nothing_may_have_ended() {
    let check = |one: &str, other: &str, expected: &[(u64, u64)]| {
        let found = durable(&acts(&format!("{PUT}\n{one}"), other));
        let found: Vec<(u64, u64)> = found.into_iter().collect();
        assert_eq!(found, expected, "{one} / {other}");
    };
    check("", "", &[(7, 5)]);
    check("b 0 2 200 get 7\ne 0 2 210 found:5", "", &[(7, 5)]);
    check("b 0 2 200 create 7:6\ne 0 2 210 existed", "", &[(7, 5)]);
    check("b 0 2 200 remove 7\ne 0 2 210 missing", "", &[]);
    check("b 0 2 10 remove 7\ne 0 2 20 missing", "", &[(7, 5)]);
    check("b 0 2 200 upsert 7:6\ne 0 2 210 new", "", &[]);
    check("b 0 2 200 upsert 7:6\ne 0 2 210 failed:X", "", &[]);
    check("b 0 2 200 upsert-disk 7:6\ne 0 2 210 new", "", &[(7, 6)]);
    check("b 0 2 10 upsert 7:6\ne 0 2 20 failed:X", "", &[(7, 5)]);
    check("b 0 2 10 remove 7\ne 0 2 20 failed:X", "", &[]);
    check("", "b 0 2 10 upsert 7:6", &[]);
    check("", "b 0 2 200 remove 7", &[]);
}
