//! The transfer benchmark end to end, small: every row is there and its figures make sense, and a survivor of a killed
//! process accounts for every request.

use std::time::Duration;

use slackwater_bench::transfer::{Carrier, Direction, Options, Place, Report, child, run};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "child") {
        return child(&arguments[1..]).expect("the parent speaks to this process as its own");
    }
    rows_limits_and_waits_are_filled();
    trials_are_filled();
    survivors_account_for_every_request();
    device_memory_is_measured_and_named();
    a_device_that_is_not_there_is_an_error();
}

fn small() -> Options {
    let this = std::env::current_exe().expect("this is a program");
    Options {
        carriers: vec![Carrier::Tcp, Carrier::Shm],
        blocks: vec![4 << 10, 1 << 20],
        concurrency: vec![1, 3],
        batches: vec![1, 4],
        window: Duration::from_millis(40),
        rounds: 1,
        memory_bytes: 4 << 20,
        loops: vec![1, 3],
        python: Some("no-such-python".into()),
        child: vec![this.into(), "child".into()],
        ..Options::default()
    }
}

fn rows_limits_and_waits_are_filled() {
    let waits = vec!["park".to_owned(), "adaptive".to_owned()];
    let report = run(&Options { waits, ..small() }).expect("loopback");
    assert_eq!(report.rows.len(), 2 * 2 * 2 * 4);
    for row in &report.rows {
        assert!(row.gbps > 1e-3 && row.gbps < 1e3, "{row:?}");
        assert!(row.p50_us > 0.0 && row.p50_us <= row.p99_us, "{row:?}");
        assert!(
            row.initiator_cores > 0.0 && row.target_cores >= 0.0 && row.cpu_s_per_gb > 0.0,
            "{row:?}"
        );
        assert!(
            row.gbps_over_limit.is_some_and(|ratio| ratio > 0.0),
            "{row:?}"
        );
    }
    let loops: Vec<_> = report.loops.iter().map(|row| (row.loops, row.op)).collect();
    let [read, write] = [Direction::Read, Direction::Write];
    assert_eq!(loops, [(1, read), (3, read), (1, write), (3, write)]);
    for row in &report.loops {
        assert!(
            row.gbps > 1e-3 && row.p50_us <= row.p99_us && row.gbps_over_one.is_some(),
            "{row:?}"
        );
    }
    assert_eq!(report.objects.len(), 2 * 5);
    for row in &report.objects {
        assert!(
            row.gbps_of_one > 1e-3 && row.gbps_of_each > 1e-3 && row.each_over_one > 0.0,
            "{row:?}"
        );
    }
    let lone = |row: &&slackwater_bench::transfer::Row| row.gbps_over_request.is_some();
    assert_eq!(
        report.rows.iter().filter(lone).count(),
        2,
        "one block of 1 MiB under way over TCP, each way"
    );
    let free = report
        .latency
        .iter()
        .filter(|latency| latency.placement == "free")
        .count();
    assert_eq!(free, 2, "each way");
    assert!(
        report
            .latency
            .iter()
            .all(|latency| latency.ratio > 0.0 && latency.rounds == 1),
        "{:?}",
        report.latency
    );
    assert!(
        report.notes.iter().any(|note| note.starts_with("no peer")),
        "{:?}",
        report.notes
    );
    assert_eq!((report.waits.len(), report.wait_ratios.len()), (4, 2));
    let bounds = report.to_json()["bounds"].to_string();
    for promise in [
        "shm read 1 MiB 1x1: GB/s over the limit",
        "over our TCP (a copy past the cache",
        "on one cpu: p50",
    ] {
        assert!(bounds.contains(promise), "{promise}: {bounds}");
    }
    fields_are_those_of_the_contract(&report);
}

/// The trials were run by hand alone: what they start said words that nobody understood.
fn trials_are_filled() {
    let report = run(&Options {
        rows: false,
        trials: true,
        ..small()
    });
    let report = report.expect("loopback");
    assert!(
        report
            .idle
            .as_ref()
            .is_some_and(|idle| idle.connections >= 1000),
        "{:?}",
        report.idle
    );
    assert_eq!(report.dead_peers.len(), 2);
    let from: Vec<_> = report.handshakes.iter().map(|row| row.from).collect();
    assert_eq!(
        from,
        ["one address", "an address each"],
        "{:?}",
        report.notes
    );
    for row in &report.handshakes {
        assert!(
            row.made_per_second > 100.0
                && row.flooded_gbps > 1e-3
                && row.flooded_over_elsewhere > 0.0,
            "{row:?}"
        );
    }
}

fn fields_are_those_of_the_contract(report: &Report) {
    let json = report.to_json();
    for field in [
        "gbps",
        "p50_us",
        "p99_us",
        "initiator_cores",
        "target_cores",
        "cpu_s_per_gb",
    ] {
        assert!(json["rows"][0][field].is_number(), "{field}: {json}");
    }
    assert_eq!(
        ["mover", "device", "op"].map(|field| &json["rows"][0][field]),
        ["tcp", "cpu", "read"]
    );
    let shape = ["block", "concurrency", "batch"].map(|field| json["rows"][0][field].as_u64());
    assert_eq!(shape, [Some(4096), Some(1), Some(1)]);
    for field in [
        "blocking_socket_gbps",
        "blocking_socket_cpu_s_per_gb",
        "memcpy_gbps",
        "nt_memcpy_gbps",
    ] {
        assert!(
            json["limits"][field]
                .as_f64()
                .is_some_and(|value| value > 0.0),
            "{field}: {json}"
        );
    }
    // Where the kernel forbids it or iperf3 is missing, there is a note instead.
    for (field, note) in [
        ("cma_gbps", "no cross-memory attach"),
        ("iperf3_gbps", "no iperf3"),
    ] {
        let noted = report.notes.iter().any(|text| text.starts_with(note));
        assert_eq!(json["limits"][field].is_number(), !noted, "{field}: {json}");
    }
    assert!(
        json["peers"].is_object() && json["machine"]["cores"].is_number(),
        "{json}"
    );
    let (text, html) = (report.to_text(), report.to_html());
    for word in ["Bounds", "Limits", "blocking socket", "adaptive", "no peer"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(html.contains("<svg") && html.contains("Throughput: shm, write, batches of 4"));
}

fn survivors_account_for_every_request() {
    let options = Options {
        rows: false,
        torture: 2,
        directions: vec![Direction::Read],
        ..small()
    };
    let report = run(&options).expect("loopback");
    let parts: Vec<_> = report
        .torture
        .iter()
        .map(|torture| (torture.mover, torture.killed, torture.kills))
        .collect();
    let (tcp, shm) = (Carrier::Tcp, Carrier::Shm);
    assert_eq!(
        parts,
        [
            (tcp, "target", 2),
            (tcp, "initiator", 2),
            (shm, "target", 2),
            (shm, "initiator", 2)
        ]
    );
    for torture in &report.torture {
        let ended: u32 = torture.causes.values().sum();
        let submitted = if torture.killed == "target" {
            2 * 1024
        } else {
            0
        };
        assert_eq!(
            (torture.completed + ended, torture.requests),
            (submitted, submitted),
            "{torture:?}"
        );
        assert!(!torture.causes.contains_key("Dropped"), "{torture:?}");
        assert_eq!(torture.after.accesses, 0, "{torture:?}");
    }
}

fn device_memory_is_measured_and_named() {
    let software = Options {
        carriers: vec![Carrier::Gpu],
        place: Some(Place::Software),
        blocks: vec![64 << 10],
        ..small()
    };
    let report = run(&software).expect("the software device needs no other");
    assert_eq!(report.rows.len(), 2 * 4);
    assert!(
        report
            .rows
            .iter()
            .all(|row| row.device == Place::Software && row.gbps > 0.0),
        "{:?}",
        report.rows
    );
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("nothing of a GPU")),
        "{:?}",
        report.notes
    );
}

fn a_device_that_is_not_there_is_an_error() {
    let options = Options {
        carriers: vec![Carrier::Gpu],
        blocks: vec![4096],
        ..small()
    };
    match run(&options) {
        Ok(report) => assert!(
            report.rows.iter().all(|row| row.gbps > 0.0),
            "a machine with a GPU measures it"
        ),
        Err(error) => assert!(error.to_string().contains("cuda"), "{error}"),
    }
    let error = run(&Options {
        blocks: vec![0],
        ..small()
    })
    .expect_err("nothing to measure");
    assert_eq!(
        error.to_string(),
        "blocks, threads and batches are each one or more"
    );
    let device = Options {
        carriers: vec![Carrier::Shm],
        place: Some(Place::Software),
        ..small()
    };
    let error = run(&device).expect_err("device memory is not shared");
    assert_eq!(error.to_string(), "shm carries host memory alone");
}
