//! What a disk, a directory or an option can have wrong with it, and what the command says then.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::place::{Place, end, open, output, stderr};

const CHAT: [&str; 6] = [
    "--generate",
    "--sessions",
    "20",
    "--block-bytes",
    "32KiB",
    "--json",
];
const SIZES: [&str; 6] = ["--memory", "8MiB", "--ssd", "64MiB", "--flush-delay", "2ms"];

/// Log lines in a file were full of the escapes that colour them on a terminal.
#[test]
fn log_lines_are_coloured_on_a_terminal_alone() {
    let place = Place::new();
    let played = ["replay", "--requests", "1", "--log", "info"];
    let ended = place.run(&[&played[..], &CHAT, &SIZES].concat());
    let told = stderr(&ended);
    assert!(told.contains("the log is open"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
}

/// `slackwater policy … | head -1` ended with a panic, and a full disk below the answer went unsaid.
#[test]
fn an_answer_that_cannot_be_written_is_said_and_one_that_nobody_reads_is_not() {
    let place = Place::new();
    for arguments in [
        &["config"][..],
        &["doctor"],
        &["topology"],
        &["completions", "bash"],
        &["policy", "--generate", "--requests", "50", "--sizes", "9"],
        &[
            "policy",
            "--generate",
            "--requests",
            "50",
            "--sizes",
            "9",
            "--json",
        ],
        &[
            "size",
            "--generate",
            "--requests",
            "50",
            "--kv-bytes-per-token",
            "1",
        ],
    ] {
        let to = |out: Stdio| {
            let mut command = place.command(arguments);
            output(piped(&mut command).stdout(out).spawn().unwrap())
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let unread = to(writer.into());
        assert_eq!(
            unread.status.code(),
            Some(0),
            "{arguments:?}: {}",
            stderr(&unread)
        );
        assert_eq!(stderr(&unread), "", "{arguments:?}");
        let full = std::fs::File::options().write(true).open("/dev/full");
        let full = to(full.unwrap().into());
        assert_eq!(full.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&full).contains("standard output: No space left"),
            "{arguments:?}: {}",
            stderr(&full)
        );
    }
}

/// `slackwater config` showed a configuration without what opening a store with it warns of.
#[test]
fn a_configuration_is_shown_with_its_warnings() {
    let place = Place::new();
    let shown = place.run(&["config", "--dir", "d"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(
        stderr(&shown).contains("`dir` has no effect: `ssd` is 0"),
        "{}",
        stderr(&shown)
    );
    let quiet = place.run(&["config"]);
    assert_eq!(stderr(&quiet), "");
}

/// A replay in `directory` that cannot begin: one line on standard error, which holds `words`.
fn refused(place: &Place, directory: &str, words: &[&str]) {
    let output = place.run(
        &[
            &["replay", "--requests", "10", "--dir", directory],
            &CHAT[..],
            &SIZES[..],
        ]
        .concat(),
    );
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        output.stdout.is_empty() && said.lines().count() == 1,
        "{said}"
    );
    for word in words {
        assert!(said.matches(word).count() == 1, "{word} once: {said}");
    }
}

#[test]
fn a_directory_with_a_foreign_log_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let file = place.path("kv/log-0000000000000001.slack");
    let mut foreign = b"\x7fELF-something".to_vec();
    foreign.resize(8192, 0);
    std::fs::create_dir(place.path("kv")).unwrap();
    std::fs::write(&file, &foreign).unwrap();
    refused(
        &place,
        "kv",
        &[
            "log file 1 is not a Slackwater log",
            "choose another directory",
        ],
    );
    assert!(std::fs::read(&file).unwrap() == foreign);
}

#[test]
fn a_second_opener_is_told_the_first_ones_pid() {
    let place = Place::new();
    let mut first = open(
        &place,
        &[
            &["--requests", "1000000", "--dir", "kv"],
            &CHAT[..5],
            &SIZES[..],
        ]
        .concat(),
    );
    refused(
        &place,
        "kv",
        &[&format!("held by another process (pid {})", first.id())],
    );
    first.kill().unwrap();
    end(&mut first);
    place.replay(&[&["--requests", "10", "--dir", "kv"], &CHAT[..5], &SIZES[..]].concat());
}

/// Nobody may make a file below `/proc/self/net`, root included: permission bits would not stop root.
#[test]
fn a_directory_that_cannot_be_written_is_named() {
    refused(
        &Place::new(),
        "/proc/self/net",
        &["cannot write to it", "os error"],
    );
}

#[test]
fn sizes_that_make_no_sense_are_refused_all_at_once() {
    let place = Place::new();
    let wrong = [
        "--memory",
        "0",
        "--ssd",
        "1KiB",
        "--flush-delay",
        "5parsecs",
    ];
    let output = place.run(&[&["replay", "--generate"], &wrong[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    for said in [
        "--memory: memory: 0B must be at least 1MiB",
        "`5parsecs` is not a duration",
    ] {
        assert!(
            stderr(&output).contains(said),
            "{said}: {}",
            stderr(&output)
        );
    }
    let output = place.run(&["replay", "--generate", "--ssd", "1KiB"]);
    assert!(
        stderr(&output).contains("--ssd: ssd: 1KiB must be at least 4MiB"),
        "{}",
        stderr(&output)
    );
    let output = place.run(&["replay", "--generate", "--block-bytes", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("a block needs at least one byte"),
        "{}",
        stderr(&output)
    );
}

/// A file system of its own, 48 MiB in memory, of which a file takes nearly all: the log cannot be written, and what
/// is in memory is served all the same. When the file is gone, another run writes its log.
#[test]
#[expect(clippy::print_stderr, reason = "what is not tested is said")]
fn a_full_disk_leaves_memory_at_work_and_the_log_begins_when_there_is_room() {
    const SCRIPT: &str = "mkdir kv && mount -t tmpfs -o size=48m none kv && head -c 47M /dev/zero > kv/ballast && \
                          \"$@\" && rm kv/ballast && exec \"$@\"";
    let place = Place::new();
    if let Err(why) = may_mount() {
        // The one thing that a test cannot make for itself: said, so that nobody takes it for tested.
        eprintln!(
            "skipped: a full disk needs a mount of its own, and this machine gives none: {why}"
        );
        return;
    }
    let arguments = [
        &["replay", "--requests", "100", "--dir", "kv"],
        &CHAT[..],
        &SIZES[..],
    ]
    .concat();
    let replay = place.command(&arguments);
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-ec", SCRIPT, "sh"])
        .arg(replay.get_program())
        .args(replay.get_args());
    let path = std::env::var_os("PATH").expect("the tools of the script are found by it");
    command
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", path)
        .env("TMPDIR", place.temporary());
    let Output {
        status,
        stdout,
        stderr,
    } = output(piped(&mut command).spawn().unwrap());
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{said}");
    let runs: Vec<Value> = String::from_utf8_lossy(&stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [full, roomy] = &runs[..] else {
        panic!("two runs: {runs:?}")
    };
    let count = |run: &Value, key: &str| run[key].as_u64().unwrap();
    for run in &runs {
        assert_eq!(
            (count(run, "requests"), count(run, "corrupt_reads")),
            (100, 0),
            "{run}"
        );
        assert!(count(run, "memory_hits") > 0, "{run}");
    }
    assert_eq!(
        (count(full, "offloads"), count(full, "ssd_hits")),
        (0, 0),
        "{full}"
    );
    assert!(
        count(roomy, "offloads") > 0 && count(roomy, "ssd_hits") > 0,
        "{roomy}"
    );
}

/// Whether a process may mount a file system that only it sees.
fn may_mount() -> Result<(), String> {
    let mut command = Command::new("unshare");
    let child = piped(command.args([
        "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt",
    ]))
    .spawn();
    let output = output(child.map_err(|error| error.to_string())?);
    if output.status.success() {
        Ok(())
    } else {
        Err(stderr(&output).trim().to_owned())
    }
}

fn piped(command: &mut Command) -> &mut Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
}
