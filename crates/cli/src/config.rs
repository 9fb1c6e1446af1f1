use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use slackwater_node::Config;
use slackwater_node::config::{ConfigProblem, Explained, Source};

use crate::DONE;
use crate::answer;
use crate::args::Show;
use crate::remote::note;

/// What the command line says about the configuration of the store.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// The file to read.
    pub(crate) file: Option<PathBuf>,
    /// Flags by their names, in order.
    pub(crate) flags: Vec<(String, String)>,
    /// What is wrong with settings of services in the file.
    pub(crate) problems: Vec<ConfigProblem>,
    /// Settings of services in the file that have no effect.
    pub(crate) warnings: Vec<String>,
}

impl Layers {
    /// Reads all layers.
    pub(crate) fn load(&self) -> Result<Config> {
        let loaded = Config::load(self.file.as_deref(), std::env::vars_os(), &self.flags);
        match loaded {
            Ok(config) if self.problems.is_empty() => Ok(config),
            Ok(_) => Err(refuse(&self.problems)),
            Err(problems) => Err(refuse(&[problems, self.problems.clone()].concat())),
        }
    }

    /// The same layers with one more flag, which wins.
    pub(crate) fn with(&self, flag: &str, value: impl Into<String>) -> Self {
        let mut more = self.clone();
        more.flags.push((flag.to_owned(), value.into()));
        more
    }
}

/// Every problem of a configuration, a line each.
pub(crate) fn refuse(problems: &[ConfigProblem]) -> anyhow::Error {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("\n  {problem}"))
        .collect();
    anyhow!("the configuration is wrong:{}", lines.concat())
}

/// The value of an option as people write it.
pub(crate) fn shown(config: &Config, key: &str) -> String {
    Config::option(key)
        .map(|option| (option.show)(config))
        .unwrap_or_default()
}

pub(crate) fn run(arguments: &Show, layers: &Layers) -> Result<u8> {
    let config = layers.load()?;
    if arguments.json {
        answer::say(object(&config))?;
    } else {
        let text = match arguments.explain {
            true => explained(&config),
            false => listed(&config),
        };
        answer::write(text.as_bytes())?;
    }
    config.warnings().iter().for_each(|warning| note(warning));
    Ok(DONE)
}

/// The values in force, as a file that could be read back, with the source of what is not default.
fn listed(config: &Config) -> String {
    let mut lines = config.explain();
    lines.sort_by_key(|line| line.key.contains('.'));
    let mut out = String::new();
    let mut table = "";
    for line in lines {
        let (head, name) = line.key.split_once('.').unwrap_or(("", line.key));
        if head != table {
            out.push_str(&format!("\n[{head}]\n"));
            table = head;
        }
        let value = toml_value(&line.value, line.kind);
        let comment = if line.value.is_empty() { "# " } else { "" };
        let source = match line.source {
            Source::Default => String::new(),
            other => format!("  # {other}"),
        };
        out.push_str(&format!("{comment}{name} = {value}{source}\n"));
    }
    out
}

fn toml_value(value: &str, kind: &str) -> String {
    let bare = matches!(kind, "number" | "true or false");
    if bare {
        value.to_owned()
    } else {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Every option by its name: field names are a contract with scripts.
fn object(config: &Config) -> Value {
    let option = |line: Explained| {
        let about = json!({
            "value": line.value,
            "default": line.default,
            "source": line.source.to_string(),
            "takes": line.takes,
            "env": line.env,
            "flag": format!("--{}", line.flag),
            "about": line.doc,
        });
        (line.key.to_owned(), about)
    };
    let options: serde_json::Map<_, _> = config.explain().into_iter().map(option).collect();
    json!({ "options": options, "warnings": config.warnings() })
}

fn explained(config: &Config) -> String {
    let blocks = config.explain().into_iter().map(|line| {
        let shown = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
        format!(
            "{key}\n  {doc}\n  value    {value} ({source})\n  default  {default}\n  takes    {takes}\n  names    {key} in a file, {env}, --{flag}\n",
            key = line.key,
            doc = line.doc,
            value = shown(&line.value),
            source = line.source,
            default = shown(&line.default),
            takes = line.takes,
            env = line.env,
            flag = line.flag,
        )
    });
    blocks.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[(&str, &str)]) -> Config {
        let flags: Vec<(String, String)> = flags
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Config::load(None, std::iter::empty(), &flags).unwrap()
    }

    #[test]
    fn the_listing_reads_back_as_a_file() {
        let config = config(&[
            ("memory", "512MiB"),
            ("dir", "/a b/\"c\\"),
            ("ssd", "8GiB"),
            ("promotion-limit", "7"),
        ]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.toml");
        std::fs::write(&path, listed(&config)).unwrap();
        let back = Config::load(Some(&path), std::iter::empty(), &[]).unwrap();
        for (one, other) in config.explain().iter().zip(back.explain()) {
            assert_eq!((one.key, &one.value), (other.key, &other.value));
        }
        assert!(listed(&config).contains("memory = \"512MiB\"  # --memory\n"));
    }

    #[test]
    fn the_object_has_every_option_with_its_value_and_where_that_is_from() {
        let object = object(&config(&[("memory", "512MiB")]));
        let options = object["options"].as_object().unwrap();
        assert_eq!(options.len(), Config::OPTIONS.len());
        let memory = &options["memory"];
        assert_eq!(
            (&memory["value"], &memory["source"], &memory["env"]),
            (
                &json!("512MiB"),
                &json!("--memory"),
                &json!("SLACKWATER_MEMORY")
            )
        );
        assert_eq!(options["log"]["source"], "default");
        assert_eq!(object["warnings"], json!([]));
    }

    #[test]
    fn every_option_is_explained_with_all_its_names() {
        let text = explained(&Config::default());
        for option in Config::OPTIONS {
            assert!(
                text.contains(option.doc) && text.contains(&option.env()),
                "{}",
                option.key
            );
        }
    }

    #[test]
    fn only_an_unset_option_takes_another_default() {
        let mut config = config(&[("ssd", "1GiB"), ("dir", "/d")]);
        config.default_to("ssd", "16GiB").unwrap();
        config.default_to("offload", "on-evict").unwrap();
        assert_eq!(config.ssd.to_string(), "1GiB");
        assert_eq!(shown(&config, "offload"), "on-evict");
    }
}
