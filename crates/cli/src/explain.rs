//! `slackwater explain`: why a store keeps one object, or will let it go.

use std::fs::DirEntry;
use std::io;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use slackwater_base::ByteSize;
use slackwater_node::store::{ExplanationSource, Reason, explain_at};
use slackwater_node::{Config, logging};
use slackwater_wire::{Key, Tenant};

use crate::DONE;
use crate::answer::say;
use crate::args::Explain;
use crate::config::Layers;

pub(crate) fn run(arguments: &Explain, layers: &Layers) -> Result<u8> {
    let config = configure(layers)?;
    logging::init(&config).map_err(anyhow::Error::msg)?;
    let tenant = Tenant::new(&arguments.tenant).context("the tenant has no such name")?;
    let key = Key::new(arguments.key.as_bytes()).context("the key cannot be one")?;
    let explanation = explain_at(&config, &tenant, &key)?;
    let shown = arguments.key.display();
    let Some(reasons) = explanation.reasons else {
        bail!("there is no object with the key {shown}")
    };
    if arguments.json {
        let running = explanation.source == ExplanationSource::RunningStore;
        let shown = shown.to_string();
        say(serde_json::json!({ "key": shown, "running": running, "tiers": reasons }))?;
    } else {
        say(format_args!("{shown}\n{}", sentences(&reasons)))?;
    }
    Ok(DONE)
}

/// The configuration of the store in a directory, with room for all that is in it unless the caller says how much.
fn configure(layers: &Layers) -> Result<Config> {
    let named = layers.with("ssd", "0").load()?.dir;
    let Some(directory) = named else {
        bail!("which store? --dir names its directory")
    };
    if !directory.is_dir() {
        bail!("there is no store in {}", directory.display());
    }
    let held = std::fs::read_dir(&directory)
        .and_then(bytes_of)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let mut config = layers.load()?;
    config
        .default_to("ssd", &ByteSize(2 * held + ByteSize::gib(1).0).to_string())
        .map_err(anyhow::Error::msg)?;
    config
        .default_to("log", "warn")
        .map_err(anyhow::Error::msg)?;
    Ok(config)
}

/// The bytes of files, less those that a running store deletes meanwhile.
fn bytes_of(entries: impl Iterator<Item = io::Result<DirEntry>>) -> io::Result<u64> {
    entries
        .map(|entry| match entry?.metadata() {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        })
        .sum()
}

fn sentences(reasons: &[Reason]) -> String {
    reasons
        .iter()
        .map(|reason| format!("  {}", reason.words))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log file that the running store deleted between the listing and the look at it ended the command.
    #[test]
    fn a_file_that_goes_meanwhile_counts_nothing() {
        let root = tempfile::tempdir().unwrap();
        for name in ["kept", "gone"] {
            std::fs::write(root.path().join(name), [0; 7]).unwrap();
        }
        let entries: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
        std::fs::remove_file(root.path().join("gone")).unwrap();
        assert_eq!(bytes_of(entries.into_iter()).unwrap(), 7);
    }
}
