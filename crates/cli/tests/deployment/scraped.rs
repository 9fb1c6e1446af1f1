//! A Prometheus of this machine scrapes a store by the settings of `deploy/`: its rules are evaluated, and the queries of the
//! dashboard find what they ask for.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::started::{Process, client};
use super::tools::skipped;
use super::{deploy, read};

/// The longest wait for the first scrapes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Panels that show nothing of a store that is alone.
const OF_OTHERS: &[&str] = &["Fill of nodes", "Nodes and clients"];

/// A Prometheus, ended with the test.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended, which the test has told.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Started with the settings of `deploy/`, but for the target and a second between scrapes; nothing where there is none.
    fn scraping(target: &str, folder: &Path) -> Option<Self> {
        let settings = read("prometheus/prometheus.yaml");
        let (of_store, often) = (settings.replace("127.0.0.1:9003", target), "interval: 1s");
        assert_ne!(of_store, settings, "the settings name the admin address");
        let settings = of_store.replace("interval: 15s", often);
        fs::write(folder.join("prometheus.yaml"), settings).unwrap();
        fs::copy(
            deploy().join("prometheus/alerts.yaml"),
            folder.join("alerts.yaml"),
        )
        .unwrap();
        // It takes no port that it chooses itself, and no other test one of this host.
        let free = TcpListener::bind("127.0.0.52:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yaml")
            .arg("--storage.tsdb.path=kept")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, address }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                skipped("queries on a Prometheus that scrapes (apt-get install prometheus)");
                None
            }
            Err(error) => panic!("prometheus: {error}"),
        }
    }

    /// The answer of a path, or nothing while it begins.
    fn asked(&self, path: &str) -> Option<Value> {
        let mut link = TcpStream::connect(&self.address).ok()?;
        write!(
            link,
            "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n",
            self.address
        )
        .ok()?;
        let mut answer = String::new();
        link.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// What a query finds now, each with its labels.
    fn finds(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.asked(&format!("/api/v1/query?query={encoded}"))?;
        match answer["status"].as_str() {
            Some("success") => answer["data"]["result"].as_array().cloned(),
            Some("error") if answer["errorType"] == "bad_data" => panic!("{query}: {answer}"),
            _ => None,
        }
    }

    /// Waits until a query finds something.
    fn until(&mut self, query: &str) {
        let ends = Instant::now() + PATIENCE;
        while self.finds(query).is_none_or(|found| found.is_empty()) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < ends,
                "{query} found nothing; prometheus: {ended:?}"
            );
            // It tells nobody when it has scraped.
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

/// The queries of the dashboard, by the titles of their panels, for Grafana's variables as Grafana would set them.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("grafana/slackwater.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut found = Vec::new();
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let query = query
                .replace("$__rate_interval", "1m")
                .replace("$job", "slackwater")
                .replace("$instance", ".+");
            found.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    found
}

#[test]
fn prometheus_evaluates_the_alerts_and_finds_what_the_dashboard_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let of_ssd = folder.path().join("kv").display().to_string();
    let words = [
        "serve",
        "--memory",
        "16MiB",
        "--ssd",
        "64MiB",
        "--dir",
        &of_ssd,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let store = Process {
        words: words.map(str::to_owned).to_vec(),
        variables: Vec::new(),
    };
    let mut store = store.start();
    let address = store.told("serving at ");
    let page = store.told("admin at ");
    let target = page.strip_prefix("http://").unwrap();
    let Some(mut prometheus) = Prometheus::scraping(target, folder.path()) else {
        return;
    };
    prometheus.until("up{job=\"slackwater\"} == 1");
    let value = folder.path().join("value");
    fs::write(&value, vec![7; 1 << 20]).unwrap();
    client(&[
        "put",
        "k",
        &value.display().to_string(),
        "--connect",
        &address,
    ]);
    client(&["get", "k", "--connect", &address]);
    // Rates are of samples before and after.
    prometheus.until("slackwater_objects == 1 and on () rate(slackwater_puts_total[1m]) > 0");
    prometheus.until("rate(slackwater_hits_total[1m]) > 0");

    let empty: BTreeSet<String> = queries()
        .into_iter()
        .filter(|(_, query)| prometheus.finds(query).unwrap().is_empty())
        .map(|(title, _)| title)
        .collect();
    let expected: BTreeSet<String> = OF_OTHERS.iter().map(|title| (*title).to_owned()).collect();
    assert_eq!(empty, expected, "panels that show nothing of a store");

    let rules = prometheus.asked("/api/v1/rules").unwrap();
    let rules = rules["data"]["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .clone();
    let written = read("prometheus/alerts.yaml").matches("- alert: ").count();
    assert_eq!(rules.len(), written);
    for rule in &rules {
        assert_eq!(
            (&rule["health"], &rule["state"]),
            (&"ok".into(), &"inactive".into()),
            "{rule}"
        );
    }
    // What ends is told.
    drop(store);
    prometheus.until("ALERTS{alertname=\"SlackwaterDown\"}");
}
