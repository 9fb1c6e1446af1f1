//! `slackwater explain`: what eviction thinks of one object.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use slackwater_base::ByteSize;
use slackwater_node::store::Reason;
use slackwater_node::{Config, Store, logging};
use slackwater_wire::Tenant;

use crate::DONE;
use crate::args::Explain;
use crate::config::Layers;

#[expect(clippy::print_stdout, reason = "the answer of the command")]
pub(crate) fn run(arguments: &Explain, layers: &Layers) -> Result<u8> {
    let config = configure(layers)?;
    logging::init(&config).map_err(anyhow::Error::msg)?;
    let tenant = Tenant::new(&arguments.tenant).context("the tenant has no such name")?;
    let store = Store::open(config).context("cannot open the store")?;
    let reasons = store.explain(arguments.key.as_bytes(), &tenant);
    let closed = store.close();
    let shown = arguments.key.display();
    let Some(reasons) = reasons? else {
        bail!("there is no object with the key {shown}")
    };
    closed.context("the store could not be closed")?;
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "key": shown.to_string(), "tiers": reasons })
        );
    } else {
        println!("{shown}\n{}", sentences(&reasons));
    }
    Ok(DONE)
}

/// The store of a directory as it was left: with room for all that is in it, so that nothing goes by being looked at.
fn configure(layers: &Layers) -> Result<Config> {
    let named = layers.with("ssd", "0").load()?.dir;
    let Some(directory) = named else {
        bail!("which store? --dir names its directory")
    };
    if !directory.is_dir() {
        bail!("there is no store in {}", directory.display());
    }
    let held =
        bytes_below(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut config = layers.load()?;
    config
        .default_to("ssd", &ByteSize(2 * held + ByteSize::gib(1).0).to_string())
        .map_err(anyhow::Error::msg)?;
    config
        .default_to("log", "warn")
        .map_err(anyhow::Error::msg)?;
    Ok(config)
}

fn bytes_below(directory: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(directory)?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum()
}

fn sentences(reasons: &[Reason]) -> String {
    reasons
        .iter()
        .map(|reason| format!("  {}", reason.words))
        .collect::<Vec<_>>()
        .join("\n")
}
