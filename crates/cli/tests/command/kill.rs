//! The process dies at any moment; what it had committed is there afterwards, and nothing that is read is wrong.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use rustix::event::PollFlags;
use slackwater_base::Rng;

use crate::place::{PATIENCE, Place, end, object, ready, stderr};

const KILLS: u64 = 10;

/// Requests whose blocks are more than twice the memory: most of them have left it, for which they must be on SSD.
const COMMITTED_REQUESTS: u64 = 300;

/// What a pipe and the reader behind it may hold of what was written and not yet replayed.
const UNREAD_BYTES: usize = (64 + 8) << 10;

/// Request `number` of a round: the next turn of a conversation, with four blocks that are new.
fn request(round: u64, number: u64) -> String {
    let (session, turn) = (number % 20, number / 20 % 8);
    let first = (number / 160 * 20 + session) * 1000;
    let ids: Vec<u64> = (first..first + 4 * (turn + 1)).collect();
    let mut line = String::new();
    let (at, tokens) = (number * 100, ids.len() * 512);
    writeln!(
        line,
        r#"{{"timestamp":{at},"input_length":{tokens},"output_length":1,"hash_ids":{ids:?},"model":"round {round}"}}"#
    )
    .unwrap();
    line
}

/// Each round goes on in the directory that the round before left, so damage would pile up.
#[test]
fn replays_killed_at_any_moment_leave_a_directory_that_serves_no_wrong_bit() {
    let place = Place::new();
    let sizes = [
        "--memory",
        "8MiB",
        "--ssd",
        "128MiB",
        "--file-bytes",
        "4MiB",
        "--block-bytes",
        "16KiB",
    ];
    let arguments = [&["--json", "--offload", "eager", "--dir", "kv"], &sizes[..]].concat();
    let mut rng = Rng::new(11);
    let mut recovered = 0;
    for round in 0..KILLS {
        // Other traffic each round: what is on SSD already would not be written again.
        let mut command = place.command(&[&["replay", "-"], &arguments[..]].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut trace = child.stdin.take().unwrap();
        let (mut number, mut unread) = (0, 0);
        let replayed = COMMITTED_REQUESTS + rng.below(300);
        while unread < UNREAD_BYTES {
            let line = request(round, number);
            assert!(
                ready(&trace, PollFlags::OUT),
                "nothing was read for {PATIENCE:?}"
            );
            trace.write_all(line.as_bytes()).unwrap();
            number += 1;
            unread += if number > replayed { line.len() } else { 0 };
        }
        child.kill().unwrap();
        end(&mut child);

        // The same traffic again: what the killed run had committed of it is read back and compared.
        std::fs::write(
            place.path("t.jsonl"),
            (0..60)
                .map(|number| request(round, number))
                .collect::<String>(),
        )
        .unwrap();
        let output = place.run(&[&["replay", "t.jsonl"], &arguments[..]].concat());
        assert!(
            output.status.success(),
            "round {round}: {}",
            stderr(&output)
        );
        let outcome = object(&output);
        assert_eq!(outcome["corrupt_reads"], 0, "round {round}");
        assert!(
            outcome["ssd_hits"].as_u64() > Some(0),
            "round {round}: {outcome}"
        );
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path("report/report.json")).unwrap())
                .unwrap();
        recovered += report["store"]["ssd"]["recovered"].as_u64().unwrap();
    }
    assert!(recovered > 0, "a killed run leaves what it has committed");
}
