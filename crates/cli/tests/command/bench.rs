//! `slackwater bench`: the keys that scripts read, and nothing left behind.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::place::{PATIENCE, Place, end, object, output, stderr};
use crate::served::until;

#[test]
fn benchmarks_print_the_keys_of_their_contract_and_leave_nothing_behind() {
    let place = Place::new();
    let check = |arguments: &[&str], keys: &[&str]| {
        let output = place.run(&[&["bench"], arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let report = object(&output);
        for key in keys {
            assert!(
                report
                    .pointer(key)
                    .is_some_and(serde_json::Value::is_number),
                "{key}: {report}"
            );
        }
        assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
        report
    };
    let promotion = [
        "/pre/p50_us",
        "/pre/p95_us",
        "/pre/p99_us",
        "/post/p50_us",
        "/speedup/p50",
        "/speedup/p99",
        "/samples",
        "/post_ssd_reads",
        "/promote_delay_p50_us",
    ];
    let few = ["--samples", "20", "--value-bytes", "64KiB", "--dir", "tmp"];
    for form in [&["promotion"][..], &["promotion", "--served"]] {
        check(&[form, &few].concat(), &promotion);
    }
    check(
        &["store", "--passes", "1", "--dir", "tmp"],
        &[
            "/get_into_gbps",
            "/memcpy_gbps",
            "/ratio",
            "/ssd_read_gbps",
            "/raw_ssd_gbps",
            "/ssd_ratio",
        ],
    );
    let small = ["--memory", "8MiB", "--ssd", "64MiB", "--in-flight", "1"];
    let few = ["--requests", "20", "--sessions", "4", "--no-contention"];
    let tiers = [
        &["tiers", "--dir", "tmp", "--io", "pread"],
        &small[..],
        &few,
    ]
    .concat();
    let report = check(&tiers, &["/rows/0/wall_s", "/rows/1/ssd_read_p50_us"]);
    assert_eq!(report["io"], "pread");
    check(
        &["meta", "--objects", "2000", "--samples", "2000"],
        &[
            "/rows/0/objects",
            "/rows/0/lookup_ns",
            "/rows/0/allocate_ns",
            "/rows/0/evict_ns",
            "/rows/0/bytes_per_object",
            "/machine/cores",
        ],
    );
    let one = [
        "--op",
        "read",
        "--blocks",
        "64KiB",
        "--concurrency",
        "1",
        "--batch",
        "1",
        "--window",
        "20ms",
    ];
    check(
        &[&["transfer", "--quick", "--mover", "shm"], &one[..]].concat(),
        &[
            "/rows/0/gbps",
            "/rows/0/cpu_s_per_gb",
            "/rows/0/target_cores",
            "/limits/memcpy_gbps",
            "/machine/cores",
        ],
    );
    let idle = [
        "--idle",
        "0",
        "--rounds",
        "1",
        "--run",
        "20ms",
        "--concurrency",
        "2",
        "--strategies",
        "park",
    ];
    check(
        &[&["wait"], &idle[..]].concat(),
        &["/rows/0/gbps", "/rows/0/cores"],
    );
}

/// `make bench` was said to run every benchmark, and left out those that had come later.
#[test]
fn make_bench_names_every_benchmark() {
    let makefile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Makefile");
    let makefile = std::fs::read_to_string(makefile).unwrap();
    let mut lines = makefile.lines();
    let named = lines.find_map(|line| line.strip_prefix("BENCHMARKS := "));
    let mut named: Vec<&str> = named.unwrap().split(' ').collect();
    let help = String::from_utf8(Place::new().run(&["bench", "--help"]).stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\nOptions:").unwrap();
    let words = commands.lines().filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        line.split(' ').next().filter(|word| !word.is_empty())
    });
    let mut there: Vec<&str> = words
        .filter(|word| !["all", "help"].contains(word))
        .collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
}

/// The CPU time of a master was counted as its node's, since one process was both.
#[test]
fn a_served_store_has_the_cpu_time_of_master_and_node_each_of_its_own_process() {
    let place = Place::new();
    let what = ["--served", "--no-peers", "--ops", "get_into_asked"];
    let sizes = ["--blocks", "4MiB", "--concurrency", "1", "--rounds", "1"];
    let ends = ["--window", "100ms", "--dir", "tmp", "--json"];
    let output = place.run(&[&["bench", "store"], &what[..], &sizes, &ends].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
    let report = object(&output);
    let cores = |row: usize, path: &str| {
        let row = &report["rows"][row];
        assert_eq!(row["path"], path);
        ["node_cores", "master_cores"].map(|key| row[key].as_f64().unwrap())
    };
    // Bytes that leave by TCP cost the node more than the place that is asked for costs the master. On the same host the client
    // takes them from the node's memory by itself.
    let [node, master] = cores(0, "tcp");
    assert!(node > master && master > 0.0, "{report}");
    let [itself, master] = cores(1, "same_host");
    assert!(itself < node && master > 0.0, "{report}");
}

#[test]
fn a_master_is_asked_in_every_way_and_serves_again_after_a_kill() {
    let place = Place::new();
    let report = |arguments: &[&str]| {
        let sizes = ["--objects", "600", "--nodes", "2", "--rounds", "1"];
        let line = [&["bench"], arguments, &sizes, &["--dir", "tmp", "--json"]].concat();
        let output = place.run(&line);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
        assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
        object(&output)
    };
    let grid = [
        "--batch",
        "1,8",
        "--in-flight",
        "5",
        "--clients",
        "1,3",
        "--window",
        "20ms",
    ];
    let master = report(&[&["master"], &grid[..]].concat());
    let mut found = Vec::new();
    for row in master["rows"].as_array().unwrap() {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(
            figure("ops_per_s") > 0.0 && figure("ops_per_master_cpu_s") > 0.0,
            "{row}"
        );
        assert!(
            figure("p50_us") > 0.0 && figure("p50_us") <= figure("p99_us"),
            "{row}"
        );
        let is_alone = row["batch"] == 1 && row["in_flight"] == 1;
        assert_eq!(row["of_bare"].is_number(), is_alone, "{row}");
        assert_eq!(row["objects"], 600);
        let cell = ["op", "batch", "in_flight", "clients"].map(|name| row[name].to_string());
        found.push(cell.join(" ").replace('"', ""));
    }
    let mut expected = Vec::new();
    for op in ["lookup", "exists", "put"] {
        let at_once = if op == "lookup" {
            &["1 5 1", "1 5 3"][..]
        } else {
            &[]
        };
        let cells = [&["1 1 1", "1 1 3"], at_once, &["8 1 1", "8 1 3"]].concat();
        expected.extend(cells.into_iter().map(|cell| format!("{op} {cell}")));
        if op == "exists" {
            expected.push("exists 10000 1 1".to_owned());
        }
    }
    assert_eq!(found, expected);
    let per_object = &master["memory"][0]["resident_bytes_per_object"];
    assert!(per_object.as_f64().unwrap() > 0.0, "{master}");
    assert_eq!(master["bare"].as_array().unwrap().len(), 2);
    assert_eq!(master["bounds"].as_array().unwrap().len(), 4);
    let wrong = place.run(&["bench", "master", "--ops", "get"]);
    assert!(
        stderr(&wrong).contains("one of lookup, exists, put"),
        "{}",
        stderr(&wrong)
    );

    let restart = report(&["restart"]);
    let figure = |name: &str| restart[name].as_f64().unwrap();
    assert_eq!(
        (figure("objects"), figure("nodes"), figure("rounds")),
        (600.0, 2.0, 1.0)
    );
    assert_eq!((figure("lost"), figure("wrong")), (0.0, 0.0));
    let times = ["listening_ms", "first_hit_ms", "all_ms"].map(figure);
    assert!(times[0] > 0.0 && times.is_sorted(), "{restart}");
    for limit in ["empty_start_ms", "asking_ms"] {
        assert!(
            restart["limits"][limit].as_f64().unwrap() > 0.0,
            "{restart}"
        );
    }
    assert_eq!(restart["bounds"].as_array().unwrap().len(), 4);
}

#[test]
fn a_pool_at_rest_is_measured_with_its_clients() {
    let place = Place::new();
    let sizes = ["--nodes", "2", "--clients", "3", "--links", "20"];
    let times = ["--settle", "50ms", "--window", "300ms"];
    let more = ["--dir", "tmp", "--json"];
    let output = place.run(&[&["bench", "idle"], &sizes[..], &times, &more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
    let report = object(&output);
    let figure = |name: &str| report[name].as_f64().unwrap();
    let counts = ["nodes", "clients", "links"].map(figure);
    assert_eq!(counts, [2.0, 3.0, 20.0]);
    assert!(figure("seconds") >= 0.3, "{report}");
    for part in ["master", "node", "client"] {
        let used = figure(&format!("{part}_core_percent"));
        assert!((0.0..=1000.0).contains(&used), "{report}");
    }
    assert!(figure("bytes_per_link") >= 0.0 && figure("bytes_per_client") >= 0.0);
    assert_eq!(report["bounds"].as_array().unwrap().len(), 2);
}

#[test]
fn viewers_of_a_page_are_told_samples_while_gets_are_measured() {
    let place = Place::new();
    let sizes = ["--objects", "600", "--nodes", "2", "--rounds", "1"];
    let load = ["--viewers", "0,1,3", "--clients", "2", "--window", "1500ms"];
    let more = ["--dir", "tmp", "--json"];
    let output = place.run(&[&["bench", "page"], &sizes[..], &load, &more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
    let report = object(&output);
    let rows = report["rows"].as_array().unwrap();
    let viewers: Vec<_> = rows.iter().map(|row| row["viewers"].as_u64()).collect();
    assert_eq!(viewers, [Some(0), Some(1), Some(3)]);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        let is_watched = row["viewers"] != 0;
        assert_eq!(figure("samples_per_s") > 0.0, is_watched, "{row}");
        // A sample has its segments and their nodes.
        assert_eq!(figure("sample_bytes") > 1000.0, is_watched, "{row}");
        assert!(
            figure("gets_per_s") > 0.0 && figure("p99_ratio") > 0.0,
            "{row}"
        );
        assert!(figure("p50_us") <= figure("p99_us"), "{row}");
        assert!(figure("master_cores") > 0.0, "{row}");
        assert!(figure("core_percent_per_viewer").is_finite(), "{row}");
    }
    assert_eq!(report["bounds"].as_array().unwrap().len(), 3);
    let wrong = place.run(&["bench", "page", "--viewers", "17"]);
    assert!(
        stderr(&wrong).contains("pages from 0 to 16"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn promotion_in_a_pool_reads_the_ssd_before_and_memory_after() {
    let place = Place::new();
    let sizes = ["--samples", "24", "--value-bytes", "100KB", "--dir", "tmp"];
    let run = |more: &[&str]| {
        let line = [&["bench", "promotion", "--served"], &sizes[..], more].concat();
        let output = place.run(&line);
        assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
        output
    };
    let output = run(&["--strict", "--json"]);
    let report = object(&output);
    assert_eq!(
        (&report["served"], &report["post_ssd_reads"]),
        (&true.into(), &0.into())
    );
    let rows = report["rows"].as_array().unwrap();
    let whats: Vec<&str> = rows
        .iter()
        .map(|row| row["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        whats,
        [
            "read from SSD",
            "read from memory, after promotion",
            "from the read that earns a promotion to memory"
        ]
    );
    assert!(
        rows.iter()
            .all(|row| row["samples"] == 24 && row["p50_us"].as_f64() > Some(0.0))
    );
    let [per_byte, all] = [
        "ssd_bytes_per_promoted_byte",
        "burst_ssd_bytes_per_promoted_byte",
    ]
    .map(|name| report[name].as_f64().unwrap());
    // Every value was read from SSD by its reader at least, and by its promotion at most once more.
    assert!(per_byte <= 1.1 && (1.0..=2.1).contains(&all), "{report}");
    assert!(report["ssd_reads_per_s"].as_f64() > Some(0.0), "{report}");
    let bounds = report["bounds"].as_array().unwrap();
    assert_eq!(bounds.len(), 5);
    // Timings of a loaded machine may break a bound, and then the code has to say so.
    let broken = bounds.iter().any(|bound| bound["holds"] == false);
    assert_eq!(output.status.code(), Some(i32::from(broken)), "{report}");
}

#[test]
fn promotions_that_would_not_fit_are_refused_before_anything_is_written() {
    let place = Place::new();
    for served in [&[][..], &["--served"]] {
        let sizes = [
            "--samples",
            "1000000",
            "--value-bytes",
            "1GiB",
            "--dir",
            "tmp",
        ];
        let output = place.run(&[&["bench", "promotion"], served, &sizes[..]].concat());
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(
            said.contains("1000000 values of 1GiB need ") && said.contains("fewer --samples"),
            "{said}"
        );
        assert_eq!(std::fs::read_dir(place.temporary()).unwrap().count(), 0);
    }
}

#[test]
fn a_path_is_forced_by_flag_or_variable_and_refused_where_the_processor_lacks_it() {
    let place = Place::new();
    let foreign = if cfg!(target_arch = "x86_64") {
        "neon"
    } else {
        "avx2"
    };
    let short = [
        "--object-bytes",
        "64KiB",
        "--source-bytes",
        "1MiB",
        "--rounds",
        "1",
    ];
    let stored = ["--samples", "20", "--value-bytes", "64KiB", "--dir", "tmp"];
    let check = |arguments: &[&str], more: &[&str], taken: Result<&str, &str>| {
        let line = [&["bench"], arguments, more, &["--json"]].concat();
        let output = place.run(&line);
        match taken {
            Ok(path) => assert_eq!(object(&output)["machine"]["isa"], path, "{line:?}"),
            Err(words) => {
                assert!(!output.status.success(), "{line:?}");
                assert!(stderr(&output).contains(words), "{}", stderr(&output));
            }
        }
    };
    let forced = |line: &[&str], path: &str| {
        let mut command = place.command(line);
        command.env("SLACKWATER_ISA", path).output().unwrap()
    };
    let missing = "this processor has no";
    check(&["copy", "--isa", "portable"], &short, Ok("portable"));
    check(&["copy", "--isa", foreign], &short, Err(missing));
    check(
        &["copy", "--isa", "mmx"],
        &short,
        Err("`mmx` is none of auto, portable"),
    );
    check(&["promotion", "--isa", "portable"], &stored, Ok("portable"));
    check(&["promotion", "--isa", foreign], &stored, Err(missing));
    for (value, words) in [(foreign, missing), ("mmx", "is none of auto")] {
        for line in [&["bench", "copy"][..], &["bench", "store"], &["doctor"]] {
            let output = forced(line, value);
            assert!(!output.status.success(), "{line:?}");
            assert!(stderr(&output).contains(words), "{}", stderr(&output));
        }
    }
    let meta = [
        "bench",
        "meta",
        "--objects",
        "2000",
        "--samples",
        "2000",
        "--json",
    ];
    let report = object(&forced(&meta, "portable"));
    assert_eq!(
        report["machine"]["isa"], "portable",
        "without a flag of its own"
    );
    let doctor = forced(&["doctor"], "portable");
    let said = String::from_utf8(doctor.stdout).unwrap();
    assert!(said.contains("portable instructions"), "{said}");
}

/// An interrupt ended a benchmark with all that it had written left behind: a gigabyte and more. Where this test had inherited that
/// interrupts are ignored, it waited for the end of a benchmark that went on.
#[test]
#[expect(clippy::print_stderr, reason = "says what it leaves out")]
fn an_interrupted_benchmark_leaves_nothing_behind() {
    let sizes = ["--memory", "16MiB", "--ssd", "256MiB", "--dir", "tmp"];
    let long = ["--requests", "1000000", "--no-contention"];
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        if is_ignored(signal) {
            eprintln!("left out: {signal:?} is ignored here, and by all that is started from here");
            continue;
        }
        let place = Place::new();
        let child = begun(&place, &[&["bench", "tiers"], &sizes[..], &long].concat());
        let there = || std::fs::read_dir(place.temporary()).unwrap();
        until("it writes", || {
            there().any(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap().count() > 0)
        });
        // As a terminal does at Ctrl-C.
        kill_process_group(Pid::from_child(&child), signal).unwrap();
        // Its output ends with that of the process that removes what is left.
        let ended = output(child);
        assert_eq!(ended.status.signal(), Some(signal.as_raw()));
        assert_eq!((there().count(), stderr(&ended)), (0, String::new()));
    }
}

/// Compiled peers had a directory by a name that others could have made before, and keys one that nobody removed after a signal.
#[test]
fn a_directory_for_programs_or_keys_is_its_own_and_goes_with_the_benchmark() {
    let pool = ["bench", "pool", "--threads", "1"];
    let shaped = ["bench", "transfer", "--shaped", "4gbit"];
    for (arguments, waits_for) in [(&pool, "cc"), (&shaped, "setpriv")] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            if is_ignored(signal) {
                continue;
            }
            let place = Place::new();
            let child = begun_beside(&place, arguments, waits_for);
            pid_of(&place, waits_for);
            let there = || std::fs::read_dir(place.temporary()).unwrap();
            let found = there().map(|entry| {
                let entry = entry.unwrap();
                let mode = entry.metadata().unwrap().permissions().mode();
                (entry.file_name().into_string().unwrap(), mode & 0o077)
            });
            let found: Vec<(String, u32)> = found.collect();
            let guessed = format!("slackwater-bench-{}", child.id());
            kill_process_group(Pid::from_child(&child), signal).unwrap();
            let ended = output(child);
            assert_eq!(ended.status.signal(), Some(signal.as_raw()));
            assert_eq!((there().count(), stderr(&ended)), (0, String::new()));
            let [(name, of_others)] = &found[..] else {
                panic!("one directory: {found:?}");
            };
            assert_ne!(*name, guessed);
            assert_eq!(*of_others, 0, "others have no business there");
        }
    }
}

/// Of a benchmark that was killed by itself the master and the nodes served on, for ever.
#[test]
fn the_servers_of_a_killed_benchmark_end_with_it() {
    let place = Place::new();
    let few = ["--nodes", "1", "--clients", "1", "--links", "1"];
    let long = ["--settle", "1h", "--dir", "tmp"];
    let mut child = begun(&place, &[&["bench", "idle"], &few[..], &long].concat());
    let there = || std::fs::read_dir(place.temporary()).unwrap();
    until("a node has its files", || {
        there().any(|entry| {
            let kept = std::fs::read_dir(entry.unwrap().path().join("node-0"));
            kept.is_ok_and(|kept| kept.count() > 0)
        })
    });
    child.kill().unwrap();
    // All that it has started has the same pipe for its errors.
    let mut errors = child.stderr.take().unwrap();
    let (ended, heard) = channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let read = errors.read_to_string(&mut said);
        ended.send(read.map(|_| said))
    });
    let said = heard.recv_timeout(PATIENCE);
    if said.is_err() {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    assert_eq!(said.expect("they serve on").unwrap(), "");
    assert_eq!(there().count(), 0);
    child.wait().unwrap();
}

/// What a benchmark measures beside itself ran on when the benchmark was killed, and wrote to a directory that nobody removed.
#[test]
fn a_peer_of_a_killed_benchmark_ends_with_it() {
    let few = ["--requests", "10", "--in-flight", "1", "--rounds", "1"];
    let small = ["--memory", "16MiB", "--ssd", "256MiB", "--dir", "tmp"];
    let beside = ["--no-contention", "--peers", "bin/peer"];
    ends_with_it(
        &[&["bench", "tiers"], &few[..], &small, &beside].concat(),
        "peer",
    );
}

/// A part went on when `bench all` was killed, and so did what the part had started.
#[test]
fn the_parts_of_a_killed_bench_all_end_with_it() {
    let all = ["bench", "all", "--only", "pool", "--quick"];
    ends_with_it(&[&all[..], &["--report", "report"]].concat(), "cc");
}

/// Kills a benchmark by itself while a program runs that it, or what it has started, waits for.
fn ends_with_it(arguments: &[&str], waits_for: &str) {
    let place = Place::new();
    let mut child = begun_beside(&place, arguments, waits_for);
    let pid = pid_of(&place, waits_for);
    child.kill().unwrap();
    child.wait().unwrap();
    until("what it waited for has ended", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        // Who inherits it may not have asked for its end yet.
        status.map_or(true, |status| status.contains(") Z "))
    });
    until("nothing is left behind", || {
        std::fs::read_dir(place.temporary()).unwrap().count() == 0
    });
}

/// `pkill slackwater`, and the end of a service, ended what removes together with the benchmark, and nothing was removed.
#[test]
fn what_removes_is_not_ended_with_the_benchmark() {
    let place = Place::new();
    let directory = place.temporary().join("slackwater-bench-1");
    let remover = |output: Stdio| {
        std::fs::create_dir_all(directory.join("node-0")).unwrap();
        let mut command = place.command(&["bench", "remove-child"]);
        command.arg(&directory).stdin(Stdio::piped()).stdout(output);
        command.spawn().unwrap()
    };
    let mut child = remover(Stdio::piped());
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    assert!(directory.exists());
    drop(child.stdin.take());
    assert!(end(&mut child).success());
    assert!(!directory.exists());

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = remover(writer.into());
    drop(child.stdin.take());
    assert!(end(&mut child).success(), "nobody heard that it is ready");
    assert!(!directory.exists());
}

/// It removed whatever it was given.
#[test]
fn only_the_directory_of_a_benchmark_is_removed() {
    let place = Place::new();
    for path in ["tmp", "tmp/slackwater-bench-1/..", "tmp/slackwater-bench"] {
        std::fs::create_dir_all(place.path("tmp/slackwater-bench")).unwrap();
        std::fs::create_dir_all(place.path("tmp/slackwater-bench-1")).unwrap();
        let output = place.run(&["bench", "remove-child", path]);
        assert_eq!(output.status.code(), Some(1), "{path}");
        let expected = format!("slackwater: {path} is not the directory of a benchmark\n");
        assert_eq!(stderr(&output), expected);
        assert!(place.path("tmp/slackwater-bench").exists(), "{path}");
    }
}

/// Starts one that ends with a signal, in a group of its own, and for which a program of this name is one that does not end.
fn begun_beside(place: &Place, arguments: &[&str], program: &str) -> Child {
    let programs = place.path("bin");
    std::fs::create_dir(&programs).unwrap();
    let path = programs.join(program);
    // A compiler that is killed leaves files behind.
    let leaves = match program {
        "cc" => "mktemp > /dev/null",
        _ => ":",
    };
    // Longer than a test waits for its end.
    let seconds = 2 * PATIENCE.as_secs();
    let script = format!("#!/bin/sh\n{leaves}\necho $$ > {program}.pid\nexec sleep {seconds}\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let mut found = programs.into_os_string();
    found.push(":");
    found.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = place.command(arguments);
    command.env("PATH", found);
    begin(command)
}

/// Waits until the program that does not end runs.
fn pid_of(place: &Place, program: &str) -> u32 {
    let said = || std::fs::read_to_string(place.path(&format!("{program}.pid"))).ok();
    let line = || said().filter(|said| said.ends_with('\n'));
    until("what it waits for runs", || line().is_some());
    line().unwrap().trim().parse().unwrap()
}

/// Starts one that ends with a signal, in a group of its own.
fn begun(place: &Place, arguments: &[&str]) -> Child {
    begin(place.command(arguments))
}

fn begin(mut command: Command) -> Child {
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Whether this process ignores a signal, which is inherited.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    ignored >> (signal.as_raw() - 1) & 1 == 1
}
