//! What the files of `deploy/` start is started: by their own words, at free ports and in a place of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use slackwater_node::Config;

use super::{deploy, read};

/// A process of an example: its words and its variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Process {
    pub(super) words: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
}

/// Where containers keep what is to stay.
const STATE: &str = "/var/lib/slackwater";

impl Process {
    /// The same with a part of every word and value replaced.
    fn with(&self, from: &str, to: &str) -> Self {
        let replaced = |text: &String| text.replace(from, to);
        let variables = self.variables.iter();
        Self {
            words: self.words.iter().map(replaced).collect(),
            variables: variables
                .map(|(name, value)| (name.clone(), replaced(value)))
                .collect(),
        }
    }

    /// The same with another value of a variable that it has.
    fn setting(mut self, name: &str, value: &str) -> Self {
        let known = self.variables.iter_mut().find(|(known, _)| known == name);
        known.unwrap_or_else(|| panic!("{name} is not set")).1 = value.to_owned();
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater"));
        command
            .args(&self.words)
            .env_clear()
            .env("SLACKWATER_LOG", "error")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    pub(super) fn start(&self) -> Started {
        let mut child = self.command().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Started { child, lines }
    }

    /// Its options, as they stand in the file.
    fn check_options(&self) {
        let pairs = self.variables.iter().cloned();
        let pairs = pairs.map(|(name, value)| (name.into(), value.into()));
        let loaded = Config::load(None, pairs, &[]);
        assert!(loaded.is_ok(), "{self:?}: {loaded:?}");
    }
}

/// A process, ended with the test.
pub(super) struct Started {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    /// What follows these words on the next line.
    pub(super) fn told(&mut self, words: &str) -> String {
        let line = self
            .lines
            .next()
            .unwrap_or_else(|| panic!("it ended before `{words}`"));
        let line = line.unwrap();
        let rest = line.strip_prefix(words);
        rest.unwrap_or_else(|| panic!("`{words}` is not in {line}"))
            .to_owned()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended, which the test has told.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of `[a, b]`, as YAML and Containerfiles have them.
fn listed(text: &str) -> Vec<String> {
    let inner = text
        .trim()
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'));
    let inner = inner.unwrap_or_else(|| panic!("{text} is no list"));
    let words = inner.split(',').map(|word| word.trim().trim_matches('"'));
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The services of the Compose file that are ours, by their names.
fn composed(text: &str) -> BTreeMap<String, Process> {
    let mut found: BTreeMap<String, Process> = BTreeMap::new();
    let mut anchors: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let (mut name, mut anchor) = (String::new(), None);
    let services = text.lines().skip_while(|line| *line != "services:").skip(1);
    for line in services.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let depth = line.len() - line.trim_start().len();
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        let value = value.trim();
        match (depth, key) {
            (2, service) => name = service.to_owned(),
            (4, "<<") => _ = found.insert(name.clone(), Process::default()),
            (4, "command") => {
                if let Some(process) = found.get_mut(&name) {
                    process.words = listed(value);
                }
            }
            (4, "environment") => {
                anchor = value.strip_prefix('&').map(str::to_owned);
                if let Some(known) = value.strip_prefix('*') {
                    found.get_mut(&name).unwrap().variables = anchors[known].clone();
                }
            }
            (6, variable) if variable.starts_with("SLACKWATER_") => {
                let pair = (variable.to_owned(), value.to_owned());
                found.get_mut(&name).unwrap().variables.push(pair.clone());
                if let Some(anchor) = &anchor {
                    anchors.entry(anchor.clone()).or_default().push(pair);
                }
            }
            _ => {}
        }
    }
    found
}

/// Runs a client to its end.
pub(super) fn client(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater"));
    command.args(words).env_clear().stdin(Stdio::null());
    let output = command.output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {complained}");
    output
}

#[test]
fn the_compose_example_is_a_pool_that_keeps_a_value() {
    let services = composed(&read("compose/compose.yaml"));
    let names: Vec<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["master", "node-1", "node-2"]);
    services.values().for_each(Process::check_options);
    let place = tempfile::tempdir().unwrap();
    let state = |name: &str| place.path().join(name).display().to_string();
    for name in &names {
        std::fs::create_dir(state(name)).unwrap();
    }
    let free = "127.0.0.1:0";
    let master = services["master"].with(STATE, &state("master"));
    let master = master
        .setting("SLACKWATER_LISTEN", free)
        .setting("SLACKWATER_ADMIN", free);
    let mut master = master.start();
    let address = master.told("serving at ");
    let mut nodes = Vec::new();
    for name in &names[1..] {
        let node = services[*name].with(STATE, &state(name));
        // What they lend there is more than a test may take.
        let node = node
            .setting("SLACKWATER_MEMORY", "16MiB")
            .setting("SLACKWATER_SSD", "64MiB");
        let mut node = node.setting("SLACKWATER_MASTER", &address).start();
        node.told("node ");
        nodes.push(node);
    }
    let value = place.path().join("value");
    std::fs::write(&value, b"kept").unwrap();
    client(&[
        "put",
        "k",
        &value.display().to_string(),
        "--connect",
        &address,
    ]);
    assert_eq!(client(&["get", "k", "--connect", &address]).stdout, b"kept");
    assert!(Path::new(&state("node-1")).join("node").is_dir());
}

/// The values of the chart that stand at its paths: `master.port` and the like.
fn values(text: &str) -> BTreeMap<String, String> {
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut found = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        let depth = line.len() - line.trim_start().len();
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        path.retain(|(above, _)| *above < depth);
        path.push((depth, key.to_owned()));
        let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
        found.insert(names.join("."), value.trim().trim_matches('"').to_owned());
    }
    found
}

/// What a template is without Helm: values by their names, a release that is called pool.
fn rendered(text: &str, values: &BTreeMap<String, String>, key: &str) -> String {
    let mut parts = text.split("{{");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (action, rest) = part.split_once("}}").unwrap();
        let action = action.trim_matches(['-', ' ']);
        let action = action.strip_suffix("| quote").unwrap_or(action).trim();
        all += match action {
            ".Release.Name" => "pool",
            "$key" => key,
            _ => action
                .strip_prefix(".Values.")
                .and_then(|path| values.get(path))
                .map_or("", String::as_str),
        };
        all += rest;
    }
    all
}

/// The process of a template: what is run, and the variables that have values of their own.
fn templated(text: &str) -> Process {
    let args = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("args: "));
    let variables = text.lines().filter_map(|line| {
        let inner = line.trim().strip_prefix("- { name: ")?.strip_suffix(" }")?;
        let (name, value) = inner.split_once(", value: ")?;
        let is_ours = name.starts_with("SLACKWATER_");
        is_ours.then(|| (name.to_owned(), value.trim_matches('"').to_owned()))
    });
    Process {
        words: listed(args.unwrap()),
        variables: variables.collect(),
    }
}

/// Every word and value of the chart is taken, up to the keys, which are secrets of a cluster.
#[test]
fn the_processes_of_the_chart_begin_and_miss_nothing_but_their_keys() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().display().to_string();
    let values = values(&read("helm/slackwater/values.yaml"));
    let key_file = format!("{state}/made.key");
    client(&["keys", "new", &key_file]);
    let shown = String::from_utf8(client(&["keys", "show", &key_file]).stdout).unwrap();
    let key = shown
        .split_whitespace()
        .find(|word| word.len() == 64)
        .unwrap();
    for (template, variables) in [("master", 5), ("node", 7)] {
        let text = read(&format!("helm/slackwater/templates/{template}.yaml"));
        let process = templated(&rendered(&text, &values, key));
        assert_eq!(process.words[0], template);
        assert_eq!(process.variables.len(), variables, "{process:?}");
        assert!(
            process.variables.iter().all(|(_, value)| !value.is_empty()),
            "{process:?}"
        );
        process.check_options();
        let process = process.with(STATE, &state).with("$(POD_IP)", "127.0.0.1");
        let mut process = process.with("/keys/", &format!("{state}/"));
        if template == "node" {
            // What it lends there is more than a test may take, if it got so far.
            let less = process.setting("SLACKWATER_MEMORY", "16MiB");
            process = less.setting("SLACKWATER_SSD", "64MiB");
        }
        let output = process.command().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{process:?}: {said}");
        let missing = if template == "master" {
            "token"
        } else {
            "own.key"
        };
        assert!(
            said.contains(&format!("{state}/{missing}")),
            "{process:?}: {said}"
        );
    }
}

/// The fields of the chart's objects, but for those of Prometheus' operator. Rendered, the objects were decoded strictly into
/// the types of k8s.io/api v0.31.3, where nothing was unknown. A field that is not here is a mistake, or is to be decoded so once more.
const FIELDS: &str = "\
    accessModes affinity allowPrivilegeEscalation apiVersion args automountServiceAccountToken capabilities \
    clusterIP command containerPort containers cpu defaultMode drop emptyDir enableServiceLinks env \
    failureThreshold fieldPath fieldRef fsGroup fsGroupChangePolicy hostPath httpGet image imagePullPolicy \
    imagePullSecrets initContainers initialDelaySeconds kind labels limits livenessProbe matchLabels \
    maxUnavailable medium memory metadata mountPath name nodeSelector path periodSeconds podManagementPolicy port \
    ports publishNotReadyAddresses readOnly readOnlyRootFilesystem readinessProbe replicas requests resources \
    rollingUpdate runAsGroup runAsNonRoot runAsUser seccompProfile secret secretName securityContext selector \
    serviceName sizeLimit spec startupProbe storage storageClassName targetPort tcpSocket template \
    terminationGracePeriodSeconds timeoutSeconds tolerations type updateStrategy value valueFrom \
    volumeClaimTemplates volumeMounts volumes";

/// Names at the beginning of a value, outside comments and what Helm replaces.
fn fields(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let actions = text.split("{{");
    let plain = actions.map(|part| part.split_once("}}").map_or(part, |(_, rest)| rest));
    let words = plain.flat_map(|part| part.split([' ', '\n', ',', '{']));
    let names = words.filter_map(|word| word.strip_suffix(':'));
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|it| it.is_ascii_alphabetic());
    names.filter(is_name).map(str::to_owned).collect()
}

/// A cluster drops what it does not know, in silence, where nobody asks for strict validation.
#[test]
fn the_chart_has_no_field_that_a_cluster_does_not_know() {
    let known = FIELDS.split_whitespace().map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    for name in ["master.yaml", "node.yaml", "_helpers.tpl"] {
        found.append(&mut fields(&read(&format!(
            "helm/slackwater/templates/{name}"
        ))));
    }
    let beside: Vec<&String> = found.symmetric_difference(&known).collect();
    assert_eq!(beside, Vec::<&String>::new());
    let wrong = fields("spec:\n  - { nam: x, {{ .a }} replica: 3 }\n  # no: field\n");
    assert_eq!(wrong, ["nam", "replica", "spec"].map(str::to_owned).into());
}

/// What the packaging leaves is what the container is made of, and it runs as the user that the chart says.
#[test]
fn the_container_holds_what_the_packaging_makes() {
    let file = read("container/Containerfile");
    let instruction = |name: &str| {
        let found = file
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let makefile = std::fs::read_to_string(deploy().join("../Makefile")).unwrap();
    let variable = |name: &str| {
        let found = makefile
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} := ")));
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let packaged = variable("PACKAGED").replace("$(PACKAGED_FOR)", &variable("PACKAGED_FOR"));
    assert_eq!(instruction("ARG"), format!("BINARY={packaged}"));
    assert_eq!(variable("SLACKWATER"), "target/release/slackwater");
    let ignored = read("container/Containerfile.containerignore");
    let let_through: Vec<&str> = ignored.lines().collect();
    let materials = variable("MATERIALS");
    let expected = [
        "*",
        &format!("!{packaged}"),
        "!target/release/slackwater",
        &format!("!{materials}"),
        "!LICENSE",
    ];
    assert_eq!(let_through, expected);

    let copies: Vec<&str> = file
        .lines()
        .filter(|line| line.starts_with("COPY "))
        .collect();
    let documents = format!("COPY LICENSE {materials}/ /usr/share/doc/slackwater/");
    assert_eq!(copies, ["COPY ${BINARY} /usr/bin/slackwater", &documents]);
    assert_eq!(listed(&instruction("ENTRYPOINT")), ["/usr/bin/slackwater"]);
    assert_eq!(instruction("WORKDIR"), STATE);
    assert_eq!(instruction("VOLUME"), STATE);
    let default = Process {
        words: listed(&instruction("CMD")),
        variables: Vec::new(),
    };
    let free = [
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "none",
        "--memory",
        "16MiB",
    ];
    let words = default.words.into_iter().chain(free.map(str::to_owned));
    let mut served = Process {
        words: words.collect(),
        variables: Vec::new(),
    }
    .start();
    assert!(served.told("serving at ").starts_with("tcp://127.0.0.1:"));

    let user = instruction("USER");
    let chart = read("helm/slackwater/templates/_helpers.tpl");
    let of_chart = |name: &str| {
        let found = chart
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")));
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert_eq!(
        user,
        format!("{}:{}", of_chart("runAsUser"), of_chart("runAsGroup"))
    );
}
