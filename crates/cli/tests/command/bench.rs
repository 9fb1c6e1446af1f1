//! `slackwater bench`: the keys that scripts read, and nothing left behind.

use crate::place::{Place, object, stderr};

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
    check(
        &[
            "promotion",
            "--samples",
            "20",
            "--value-bytes",
            "64KiB",
            "--dir",
            "tmp",
        ],
        &promotion,
    );
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
