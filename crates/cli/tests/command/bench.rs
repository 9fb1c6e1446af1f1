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
