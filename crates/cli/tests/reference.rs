//! The reference pages are generated from the code that they speak of, and this test fails when they are not current.

mod deployment;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use slackwater_base::ByteSize;
use slackwater_node::pool::{MasterOptions, MasterServer};
use slackwater_node::{Config, Operated, Store};
use slackwater_wire::{Class, ErrorCode, MetricsFormat};

const UPDATE: &str = "SLACKWATER_UPDATE_REFERENCE";

/// Compares a page with what the code says now, or writes it when asked to.
fn check(name: &str, page: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(name);
    if env::var_os(UPDATE).is_some() {
        fs::create_dir_all(path.parent().expect("the page lies in a folder"))
            .expect("the folder can be made");
        return fs::write(&path, page).expect("the page can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let again = format!("{UPDATE}=1 cargo test -p slackwater-cli --test reference");
    assert!(
        written == page,
        "docs/reference/{name} is not current: `{again}` writes it"
    );
}

#[test]
fn configuration_is_current() {
    let mut page = String::from(
        "# Options\n\nGenerated from the code. Layers, weakest first: defaults, file, environment, flags.\n\n\
         | in a file | environment | flag | takes | default | what it does |\n|---|---|---|---|---|---|\n",
    );
    for option in Config::default().explain() {
        let (key, env, flag, takes) = (option.key, option.env, option.flag, option.takes);
        writeln!(
            page,
            "| `{key}` | `{env}` | `--{flag}` | {takes} | `{}` | {} |",
            option.default, option.doc
        )
        .unwrap();
    }
    check("configuration.md", &page);
}

#[test]
fn errors_are_current() {
    let mut page = String::from(
        "# Error codes\n\nGenerated from the code. The class alone says what a caller does: *retry* within the deadline, \
         *refused* never again, *gone* start over or take it as a miss, *fatal* stop and report. Codes from 0 to -2000 are \
         those that integrations know; ours lie below.\n\n| number | name | class | meaning |\n|---|---|---|---|\n",
    );
    for code in ErrorCode::ALL {
        let class = match code.class() {
            Class::Retry => "retry",
            Class::Refused => "refused",
            Class::Gone => "gone",
            Class::Fatal => "fatal",
        };
        writeln!(
            page,
            "| {} | {} | {class} | {} |",
            code.number(),
            code.name(),
            code.meaning()
        )
        .unwrap();
    }
    check("errors.md", &page);
}

#[test]
fn metrics_are_current() {
    let store = Store::open(Config {
        memory: ByteSize::mib(1),
        ..Config::default()
    })
    .unwrap();
    let text = store.metrics_text(MetricsFormat::Prometheus);
    let mut page = String::from(
        "# Metrics\n\nGenerated from the code: what a store counts (`Store::metrics_text`, in Python `Store.metrics`), in the text \
         form of Prometheus. Times are in seconds, sizes in bytes.\n\n",
    );
    let all = families(&mut page, &text, &[]);
    let options = MasterOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        ..MasterOptions::default()
    };
    let master = MasterServer::start(&Config::default(), &options).unwrap();
    let of_master = master.operated().metrics_text(MetricsFormat::Prometheus);
    deployment::check_queries(&[&text, &of_master]);
    page.push_str(
        "\nThe master of a pool counts what a store's master does, over all nodes, and these; those of KV events a served store counts \
         too:\n\n",
    );
    families(&mut page, &of_master, &all);
    assert!(
        page.lines().count() > 20,
        "metrics without help lines:\n{text}"
    );
    check("metrics.md", &page);
}

/// Adds a table of the metrics in a text, without those named; gives the names of all.
fn families(page: &mut String, text: &str, without: &[String]) -> Vec<String> {
    page.push_str("| name | kind | what it counts |\n|---|---|---|\n");
    let kinds: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let helps = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("# HELP ")?;
        rest.split_once(' ')
    });
    let mut names = Vec::new();
    for (name, help) in helps {
        let kind = kinds.iter().find(|(other, _)| *other == name);
        let (_, kind) = kind.expect("every metric has a kind");
        if !without.iter().any(|other| other == name) {
            writeln!(page, "| `{name}` | {kind} | {help} |")
                .expect("writing to a string does not fail");
        }
        names.push(name.to_owned());
    }
    names
}
