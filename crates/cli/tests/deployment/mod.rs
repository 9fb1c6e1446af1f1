//! What lies in `deploy/` names only what there is: metrics, labels, options and flags.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod scraped;
mod started;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use slackwater_node::Config;

/// The folder, and everything in it.
pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(name: &str) -> String {
    let path = deploy().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The labels of each metric that has been exported, by the metric's name.
type Exported = BTreeMap<String, BTreeSet<String>>;

/// Reads what a process exports; a histogram has three names.
fn exported(text: &str, all: &mut Exported) {
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            if kind == "histogram" {
                for part in ["_bucket", "_sum", "_count"] {
                    all.entry(format!("{name}{part}")).or_default();
                }
            } else {
                all.entry(name.to_owned()).or_default();
            }
        } else if let Some((name, rest)) = line.split_once('{') {
            let labels = rest.split('}').next().unwrap();
            let labels = labels
                .split("\",")
                .filter_map(|label| label.split('=').next());
            all.entry(name.to_owned())
                .or_default()
                .extend(labels.map(str::to_owned));
        }
    }
}

/// A metric in a query, with the labels that it is selected by.
fn used(text: &str) -> Vec<(String, Vec<String>)> {
    let is_name =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let mut found = Vec::new();
    for (start, _) in text.match_indices("slackwater_") {
        let rest = &text[start..];
        let name: String = rest.chars().take_while(|letter| is_name(*letter)).collect();
        let selector = rest[name.len()..].strip_prefix('{').unwrap_or_default();
        let selector = selector.split('}').next().unwrap_or_default();
        let labels = selector.split(',').filter_map(|matcher| {
            let end = matcher.find(['=', '!'])?;
            Some(matcher[..end].trim().to_owned())
        });
        found.push((name, labels.collect()));
    }
    found
}

/// Labels that Prometheus gives to everything.
const OF_PROMETHEUS: &[&str] = &["job", "instance"];

/// Queries of dashboards and alerts name metrics and labels that processes export, `texts` being what a store and a master
/// export.
pub(crate) fn check_queries(texts: &[&str]) {
    let mut all = Exported::new();
    texts.iter().for_each(|text| exported(text, &mut all));
    let mut queries = 0;
    for file in ["grafana/slackwater.json", "prometheus/alerts.yaml"] {
        // In JSON the quotes of labels are escaped.
        for (name, labels) in used(&read(file).replace("\\\"", "\"")) {
            let known = all.get(&name);
            let known = known.unwrap_or_else(|| panic!("{file}: nothing exports `{name}`"));
            for label in labels
                .iter()
                .filter(|label| !OF_PROMETHEUS.contains(&label.as_str()))
            {
                assert!(
                    known.is_empty() || known.contains(label),
                    "{file}: `{name}` has no label `{label}`, but {known:?}"
                );
            }
            queries += 1;
        }
    }
    assert!(queries > 30, "only {queries} uses of metrics were found");
}

#[test]
fn a_wrong_query_would_be_found() {
    let mut all = Exported::new();
    exported(
        "# TYPE slackwater_hits_total counter\nslackwater_hits_total{tier=\"ssd\",op=\"a,b\"} 1\n# TYPE slackwater_t histogram\n",
        &mut all,
    );
    assert_eq!(
        all["slackwater_hits_total"],
        ["op", "tier"].map(str::to_owned).into()
    );
    assert!(all.contains_key("slackwater_t_bucket") && !all.contains_key("slackwater_t"));
    let of = |query: &str| used(query).pop().unwrap();
    assert_eq!(
        of("rate(slackwater_hits_total{tier=\"ssd\",job=~\"a\"}[5m])"),
        (
            "slackwater_hits_total".to_owned(),
            vec!["tier".to_owned(), "job".to_owned()]
        )
    );
    assert_eq!(
        of("slackwater_objects > 0"),
        ("slackwater_objects".to_owned(), vec![])
    );
}

/// The help of a command, which names its flags and variables.
fn help(command: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args([command, "--help"])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// The words of `text` that begin with `beginning`, up to the first letter that cannot belong to them.
fn words<'a>(text: &'a str, beginning: &str) -> BTreeSet<&'a str> {
    let belongs = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    let starts = text.match_indices(beginning).map(|(start, _)| start);
    let separate = |start: &usize| !text[..*start].ends_with(belongs);
    starts
        .filter(separate)
        .map(|start| {
            let rest = &text[start..];
            &rest[..rest.find(|letter| !belongs(letter)).unwrap_or(rest.len())]
        })
        .collect()
}

/// Whether a process whose help this is takes the variable.
fn takes(help: &str, variable: &str) -> bool {
    let options = Config::default().explain();
    match options.iter().find(|option| option.env == variable) {
        // The help of a command has the flags of the options that it takes.
        Some(option) => words(help, "--").contains(format!("--{}", option.flag).as_str()),
        None => words(help, "SLACKWATER_").contains(variable),
    }
}

#[test]
fn services_are_set_by_variables_and_flags_that_they_take() {
    for (command, unit) in [("serve", ""), ("master", "-master"), ("node", "-node")] {
        let help = help(command);
        let settings = read(&format!("systemd/{command}.env"));
        let variables = words(&settings, "SLACKWATER_");
        assert!(variables.len() > 3, "{command}: {variables:?}");
        for variable in variables {
            assert!(takes(&help, variable), "{command}.env: {variable}");
        }
        let unit = read(&format!("systemd/slackwater{unit}.service"));
        assert!(unit.contains(&format!("EnvironmentFile=/etc/slackwater/{command}.env\n")));
        let line = unit
            .lines()
            .find(|line| line.starts_with("ExecStart="))
            .unwrap();
        assert!(
            line.starts_with(&format!("ExecStart=/usr/bin/slackwater {command}")),
            "{line}"
        );
        for flag in words(line, "--") {
            assert!(words(&help, "--").contains(flag), "{line}: {flag}");
        }
    }
}

#[test]
fn a_variable_that_a_process_does_not_take_would_be_found() {
    let (master, node) = (help("master"), help("node"));
    for (variable, by_master, by_node) in [
        ("SLACKWATER_ADMIN_TOKEN_FILE", true, None),
        ("SLACKWATER_POLICY", true, Some(false)),
        ("SLACKWATER_SSD", false, Some(true)),
        ("SLACKWATER_LISTENS", false, Some(false)),
    ] {
        assert_eq!(takes(&master, variable), by_master, "{variable}");
        if let Some(by_node) = by_node {
            assert_eq!(takes(&node, variable), by_node, "{variable}");
        }
    }
}

/// The values of the files are ones that their options take.
#[test]
fn settings_of_services_can_be_read() {
    for command in ["serve", "master", "node"] {
        let settings = read(&format!("systemd/{command}.env"));
        let pairs = settings
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let (name, value) = line
                    .split_once('=')
                    .unwrap_or_else(|| panic!("{command}: {line}"));
                (name.into(), value.into())
            });
        let loaded = Config::load(None, pairs, &[]);
        assert!(loaded.is_ok(), "{command}.env: {loaded:?}");
    }
}

#[test]
fn containers_are_set_by_variables_that_there_are() {
    let mut all = Vec::new();
    files(&deploy(), &mut all);
    assert!(all.len() > 15, "{all:?}");
    let helps = ["serve", "master", "node"].map(help);
    for file in all {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        for variable in words(&text, "SLACKWATER_") {
            let taken = helps.iter().any(|help| takes(help, variable));
            assert!(taken, "{}: nothing takes {variable}", file.display());
        }
    }
}
