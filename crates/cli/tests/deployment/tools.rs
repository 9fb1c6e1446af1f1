//! What only the tools that read these files can say. A tool that is not here is named.

use std::env;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slackwater_base::ByteSize;
use slackwater_node::{Config, Store};
use slackwater_trace::within;
use slackwater_wire::{MetricsFormat, TraceContext, Traceparent};

use super::deploy;

/// Programs that are asked, and how they are had.
const TOOLS: [(&str, &str); 5] = [
    ("promtool", "apt-get install prometheus"),
    ("systemd-analyze", "apt-get install systemd"),
    ("helm", "go install helm.sh/helm/v3/cmd/helm@v3.16.4"),
    (
        "kubeconform",
        "go install github.com/yannh/kubeconform/cmd/kubeconform@latest",
    ),
    ("python3", "apt-get install python3"),
];

/// The outcome of a program, or nothing where there is no such program, which is said.
fn tool(program: &str, arguments: &[&str], folder: &Path) -> Option<Output> {
    tool_reading(Stdio::null(), program, arguments, folder)
}

fn tool_reading(input: Stdio, program: &str, arguments: &[&str], folder: &Path) -> Option<Output> {
    let (_, had_by) = TOOLS.iter().find(|(tool, _)| *tool == program).unwrap();
    let command = match program {
        "python3" => python(),
        other => other.into(),
    };
    let run = Command::new(command)
        .args(arguments)
        .current_dir(folder)
        .stdin(input)
        .output();
    match run {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let asked = arguments.join(" ");
            skipped(&format!("{program} {asked} ({had_by})"));
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// The interpreter that has the packages of the tests, where one is named.
fn python() -> OsString {
    env::var_os("SLACKWATER_PYTHON").unwrap_or_else(|| "python3".into())
}

/// Says what was not checked. What a test that passes prints is shown to nobody; this is.
pub(super) fn skipped(what: &str) {
    let mut all = std::io::stderr().lock();
    writeln!(all, "skipped: {what}").unwrap();
}

fn accepts(program: &str, arguments: &[&str], folder: &str) {
    let Some(output) = tool(program, arguments, &deploy().join(folder)) else {
        return;
    };
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{program}: {said}{complained}");
}

#[test]
fn prometheus_takes_the_alerts_and_its_settings() {
    accepts("promtool", &["check", "rules", "alerts.yaml"], "prometheus");
    accepts(
        "promtool",
        &["test", "rules", "alerts.test.yaml"],
        "prometheus",
    );
    accepts(
        "promtool",
        &["check", "config", "prometheus.yaml"],
        "prometheus",
    );
}

/// Reads OpenMetrics by the reader of Prometheus's own client, where Python has it.
const READ_OPENMETRICS: &str = "import sys
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read
except ImportError:
    sys.exit(77)
print(len(list(read(sys.stdin.read()))))";

/// Each form of the metrics is one that a reader of that form takes.
#[test]
fn readers_of_prometheus_take_the_metrics() {
    let store = Store::open(Config {
        memory: ByteSize::mib(1),
        ..Config::default()
    });
    let store = store.unwrap();
    store.put(b"k", b"value", &Default::default()).unwrap();
    let trace = TraceContext::new(1, 2);
    within(Traceparent(trace), || store.get(b"k", &Default::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |format: MetricsFormat| {
        let path = folder.path().join("metrics");
        std::fs::write(&path, store.metrics_text(format)).unwrap();
        Stdio::from(std::fs::File::open(path).unwrap())
    };
    let plain = file(MetricsFormat::Prometheus);
    let arguments = ["check", "metrics"];
    if let Some(output) = tool_reading(plain, "promtool", &arguments, folder.path()) {
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complained}");
    }
    let open = file(MetricsFormat::OpenMetrics);
    let arguments = ["-c", READ_OPENMETRICS];
    if let Some(output) = tool_reading(open, "python3", &arguments, folder.path()) {
        let complained = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(77) => {
                skipped("OpenMetrics as Prometheus reads it (pip install prometheus-client)")
            }
            code => assert_eq!(code, Some(0), "{complained}"),
        }
    }
}

/// The queries of the dashboard, with Grafana's variables replaced, are ones that Prometheus can read.
#[test]
fn prometheus_takes_the_queries_of_the_dashboard() {
    let text = std::fs::read(deploy().join("grafana/slackwater.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let rules: Vec<Value> = targets
        .flatten()
        .enumerate()
        .map(|(number, target)| {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "5m");
            json!({ "record": format!("query:{number}"), "expr": query })
        })
        .collect();
    assert!(rules.len() > 20, "{rules:?}");
    let folder = tempfile::tempdir().unwrap();
    let groups = json!({ "groups": [{ "name": "queries", "rules": rules }] });
    std::fs::write(folder.path().join("queries.yaml"), groups.to_string()).unwrap();
    let Some(output) = tool(
        "promtool",
        &["check", "rules", "queries.yaml"],
        folder.path(),
    ) else {
        return;
    };
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complained}");
}

#[test]
fn systemd_understands_every_line_of_the_units() {
    let units = [
        "slackwater.service",
        "slackwater-master.service",
        "slackwater-node.service",
    ];
    let arguments = [&["verify", "--man=no"][..], &units].concat();
    let Some(output) = tool("systemd-analyze", &arguments, &deploy().join("systemd")) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // That the program is not installed here is no fault of the units; nor are those of the machine's own units.
    let ours = said.lines().filter(|line| {
        line.contains("slackwater")
            && !line.contains("is not executable")
            && !line.contains("/run/systemd")
    });
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_dashboard_is_what_its_source_says() {
    let folder = deploy().join("grafana");
    let script = "import json, build; print(json.dumps(build.dashboard(), indent=1))";
    let Some(output) = tool("python3", &["-B", "-c", script], &folder) else {
        return;
    };
    let written = std::fs::read(folder.join("slackwater.json")).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stdout == written,
        "`python3 deploy/grafana/build.py` writes it"
    );
}

/// Validates what it reads by the schemas of Kubernetes that a package of Python brings, the newest that it has; prints the
/// names of what was validated.
const CONFORM: &str = "import sys
try:
    import kubernetes_validate, yaml
except ImportError:
    sys.exit(77)
for it in yaml.safe_load_all(sys.stdin):
    if it is None or it['kind'] == 'ServiceMonitor':
        continue
    try:
        kubernetes_validate.validate(it, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        sys.exit(f\"{it['kind']} {list(error.path)}: {error.message}\")
    print(it['kind'])";

/// The kinds of objects that are what the schemas allow, or nothing where there are no schemas; an error says what is not.
fn validated(rendered: &str) -> Option<Result<Vec<String>, String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rendered.yaml");
    std::fs::write(&path, rendered).unwrap();
    let input = Stdio::from(std::fs::File::open(path).unwrap());
    let output = tool_reading(input, "python3", &["-c", CONFORM], folder.path())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.code() {
        Some(77) => {
            skipped("objects by the schemas of Kubernetes (pip install kubernetes-validate)");
            None
        }
        Some(0) => Some(Ok(text(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect())),
        _ => Some(Err(text(&output.stderr))),
    }
}

/// A cluster drops a field that it does not know, in silence; the schemas do not.
#[test]
fn the_schemas_of_kubernetes_refuse_an_unknown_field() {
    let service = |field: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{ name: a }}\nspec: {{ ports: [{{ port: 1, {field}: 1 }}] }}\n---\n"
        )
    };
    let Some(good) = validated(&service("nodePort")) else {
        return;
    };
    assert_eq!(good, Ok(vec!["Service".to_owned()]));
    let refused = validated(&service("nodPort")).unwrap().unwrap_err();
    assert!(refused.contains("'nodPort' was unexpected"), "{refused}");
}

/// What is rendered is what the schemas of Kubernetes allow: those of the package, and for kubeconform those that it fetches.
fn conforms(rendered: &str, kinds: &[&str]) {
    if let Some(validated) = validated(rendered) {
        assert_eq!(
            validated.as_deref(),
            Ok(&kinds
                .iter()
                .map(|kind| (*kind).to_owned())
                .collect::<Vec<_>>()[..])
        );
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rendered.yaml"), rendered).unwrap();
    let arguments = ["-strict", "-ignore-missing-schemas", "rendered.yaml"];
    let Some(output) = tool("kubeconform", &arguments, folder.path()) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    match said.contains("failed downloading schema") {
        true => skipped("kubeconform (the schemas of Kubernetes cannot be fetched)"),
        false => assert!(output.status.success(), "{said}"),
    }
}

#[test]
fn helm_renders_the_chart() {
    let key = "keys.masterPublicKey=abc";
    let render = |more: &[&str]| {
        let arguments = [&["template", "pool", "slackwater"][..], more].concat();
        tool("helm", &arguments, &deploy().join("helm"))
    };
    let Some(without) = render(&[]) else { return };
    let complained = String::from_utf8_lossy(&without.stderr);
    assert!(
        complained.contains("keys.masterPublicKey is needed"),
        "{complained}"
    );
    for (kind, parts) in [
        (
            "StatefulSet",
            [
                "kind: StatefulSet",
                "volumeClaimTemplates",
                "clusterIP: None",
            ],
        ),
        (
            "DaemonSet",
            ["kind: DaemonSet", "hostPath:", "key=\"$NODE_NAME.key\""],
        ),
    ] {
        let kind = format!("node.kind={kind}");
        let output = render(&[
            "--set",
            key,
            "--set",
            &kind,
            "--set",
            "serviceMonitor.enabled=true",
        ])
        .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let common = [
            "kind: PodDisruptionBudget",
            "path: /readyz",
            "secretName: \"slackwater-node\"",
            "kind: ServiceMonitor",
        ];
        for part in common.iter().chain(&parts) {
            assert!(text.contains(part), "{kind}: {part}: {text}");
        }
        let daemon = ["PodDisruptionBudget", "Service", "DaemonSet", "StatefulSet"];
        let stateful = [
            "PodDisruptionBudget",
            "Service",
            "Service",
            "StatefulSet",
            "StatefulSet",
        ];
        conforms(
            &text,
            if kind.ends_with("DaemonSet") {
                &daemon
            } else {
                &stateful
            },
        );
    }
    accepts(
        "helm",
        &["lint", "--strict", "--set", key, "slackwater"],
        "helm",
    );
}
