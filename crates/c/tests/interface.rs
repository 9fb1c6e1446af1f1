//! The interface as C and C++ see it: the header is that of the code, nothing else is exported, and the examples work.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use slackwater_base::ByteSize;
use slackwater_node::Config;
use slackwater_node::serve::{ServeOptions, Server};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The header is made anew with `SLACKWATER_HEADER=write cargo test -p slackwater-c header`.
#[test]
fn the_header_is_that_of_the_code() {
    let mut made = Vec::new();
    cbindgen::generate(HERE).unwrap().write(&mut made);
    let path = header();
    if std::env::var_os("SLACKWATER_HEADER").is_some_and(|what| what == "write") {
        fs::write(&path, &made).unwrap();
    }
    let there = fs::read(&path).unwrap_or_default();
    assert!(
        there == made,
        "{} is not what the code says: SLACKWATER_HEADER=write cargo test -p slackwater-c header",
        path.display()
    );
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let symbols = run(Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library("so")));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let text = fs::read_to_string(header()).unwrap();
    let declared: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    assert!(declared.len() > 70, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn the_examples_work_with_either_library() {
    let place = tempfile::tempdir().unwrap();
    // The name that the shared library is looked for by.
    symlink(library("so"), place.path().join("libslackwater.so.0")).unwrap();
    for kind in ["so", "a"] {
        for (source, arguments, expected) in [
            ("store.c", true, "128 blocks there and back\n"),
            (
                "transfer.c",
                false,
                "524288 bytes there, and as many back\n",
            ),
            ("workers.cc", false, "100000 numbers added\n"),
            ("messages.cc", false, "answered by tcp\n"),
        ] {
            let program = built(place.path(), source, kind);
            let store = arguments.then(serve);
            let address = store
                .iter()
                .map(|store| format!("tcp://{}", store.address()));
            let mut command = Command::new(&program);
            command.args(address).env("LD_LIBRARY_PATH", place.path());
            let output = run(&mut command);
            assert_eq!(
                String::from_utf8(output.stdout).unwrap(),
                expected,
                "{source} {kind}"
            );
        }
    }
}

/// A store of this process.
fn serve() -> Server {
    let config = Config {
        memory: ByteSize::mib(16),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = ServeOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        ..ServeOptions::default()
    };
    Server::start(config, &options).unwrap()
}

/// The program of an example, without a warning, with the shared or the static library.
fn built(place: &Path, source: &str, kind: &str) -> PathBuf {
    let program = place.join(format!("{source}-{kind}"));
    let (compiler, standard) = match source.ends_with(".c") {
        true => ("cc", "-std=gnu11"),
        false => ("c++", "-std=c++17"),
    };
    let mut command = Command::new(compiler);
    command
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(Path::new(HERE).join("include"))
        .arg(Path::new(HERE).join("examples").join(source))
        .arg(library(kind));
    // What the standard library of Rust and ours ask of the system.
    command.args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    run(&mut command);
    program
}

fn header() -> PathBuf {
    Path::new(HERE).join("include/slackwater.h")
}

/// Where the libraries lie that this test was built with.
fn folder() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

fn library(kind: &str) -> PathBuf {
    folder().join(format!("libslackwater.{kind}"))
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {:?}: {said}",
        output.status
    );
    output
}
