//! The process dies at any moment; what it had committed is there afterwards, and nothing that is read is wrong.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{PATIENCE, Place, bytes_below, end, object, stderr};
use slackwater_base::Rng;

const KILLS: u64 = 10;

/// A log that began its fourth file has filled more than two, and at most two batches, no longer than a file each, are
/// under way: something is committed.
const COMMITTED_BYTES: u64 = 3 * (4 << 20) + 1;

/// Each round goes on in the directory that the round before left, so damage would pile up.
#[test]
fn replays_killed_at_any_moment_leave_a_directory_that_serves_no_wrong_bit() {
    let place = Place::new();
    let directory = place.path("kv");
    let sizes = ["--memory", "8MiB", "--ssd", "128MiB", "--file-bytes", "4MiB", "--block-bytes", "16KiB"];
    let mode = ["--offload", "eager", "--dir", directory.to_str().unwrap(), "--generate", "--sessions", "50"];
    let arguments = [&["--json"], &sizes[..], &mode[..]].concat();
    let mut rng = Rng::new(11);
    let mut recovered = 0;
    for round in 0..KILLS {
        // Other traffic each round: what is on SSD already would not be written again.
        let seed = (100 + round).to_string();
        let endless = [&["replay", "--requests", "1000000", "--seed", &seed], &arguments[..]].concat();
        let mut child = place.command(&endless).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        grown_by(&directory, COMMITTED_BYTES + rng.below(16 << 20));
        child.kill().unwrap();
        end(&mut child);

        // The same traffic again: what the killed run had committed of it is read back and compared.
        let output = place.run(&[&["replay", "--requests", "60", "--seed", &seed], &arguments[..]].concat());
        assert!(output.status.success(), "round {round}: {}", stderr(&output));
        let outcome = object(&output);
        assert_eq!(outcome["corrupt_reads"], 0, "round {round}");
        assert!(outcome["ssd_hits"].as_u64() > Some(0), "round {round}: {outcome}");
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path("report/report.json")).unwrap()).unwrap();
        recovered += report["store"]["ssd"]["recovered"].as_u64().unwrap();
    }
    assert!(recovered > 0, "a killed run leaves what it has committed");
}

/// Returns when the files have become this much longer, or the log has gone round.
fn grown_by(directory: &std::path::Path, bytes: u64) {
    let patience = Instant::now() + PATIENCE;
    let (mut last, mut grown) = (bytes_below(directory), 0);
    while grown < bytes {
        assert!(Instant::now() < patience, "nothing is written to the log");
        std::thread::sleep(Duration::from_millis(1));
        let now = bytes_below(directory);
        grown += now.saturating_sub(last);
        last = now;
    }
}
