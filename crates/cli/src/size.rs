//! `slackwater size`: how much memory and SSD a load is worth.

mod models;
mod page;
mod plan;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use slackwater_base::{ByteSize, ParseUnitError};
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::Trace;
use slackwater_node::Config;
use slackwater_report::{Table, Unit};

use crate::DONE;
use crate::answer;
use crate::args::{Origin, policy};
use crate::policy::{known, progress_bar};
use crate::source::Source;
use models::{MODELS, Model};
use plan::{Facts, Point, choose, doubling};

/// The load and the machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct Size {
    /// Where requests come from.
    #[command(flatten)]
    origin: Origin,

    /// Model whose KV cache is kept; its bytes a token follow from its published configuration
    #[arg(long, value_name = "NAME", value_parser = model, required_unless_present = "kv_bytes_per_token",
          long_help = format!("Model whose KV cache of 16 bits is kept; its bytes a token follow from its published \
configuration. Known: {}", known_models()))]
    model: Option<&'static Model>,

    /// Bytes of KV cache a token, for other models and for quantised caches
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    kv_bytes_per_token: Option<u64>,

    /// Tokens of prompts that the machine computes a second; without it hits are counted, and no time
    #[arg(long, value_name = "N", value_parser = crate::args::positive)]
    prefill_tokens_per_s: Option<f64>,

    /// Sizes of memory [default: seven, from 1/64 of everything that the trace names up to all of it]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = |size: &str| taken("memory", size))]
    memory: Vec<ByteSize>,

    /// Sizes of SSD below each of them; 0 is none [default: none, and seven like those of memory]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = |size: &str| taken("ssd", size))]
    ssd: Vec<ByteSize>,

    /// Bytes that the SSD moves a second, all SSDs of a pool together; `slackwater bench store` measures one
    #[arg(long, value_name = "SIZE", default_value = "3GB", value_parser = speed)]
    ssd_rate: ByteSize,

    /// Bytes that come from another machine a second; 3GB is a network of 25 Gbit/s
    #[arg(long, value_name = "SIZE", default_value = "3GB", value_parser = speed)]
    network_rate: ByteSize,

    /// Tokens of a block of the trace
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    block_tokens: u32,

    /// Eviction policy of both tiers
    #[arg(long, default_value_t = Config::default().policy, value_name = "NAME", value_parser = policy)]
    policy: PolicyKind,

    /// Directory for size.html and size.json [default: none is written]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Print one JSON object on standard output instead of the tables
    #[arg(long)]
    json: bool,
}

/// The answer as `--json` prints it: field names are a contract with scripts.
#[derive(Clone, Debug, Serialize)]
struct Answer {
    /// What the trace is called.
    source: String,
    requests: usize,
    /// Blocks that requests name, each time.
    blocks: usize,
    /// Different blocks.
    distinct_blocks: usize,
    /// Bytes of all different blocks.
    footprint_bytes: u64,
    policy: &'static str,
    /// How the bytes a token come about.
    kv_source: String,
    facts: Facts,
    ssd: plan::Source,
    network: plan::Source,
    points: Vec<Point>,
    /// The smallest that is worth nearly as much as the best.
    chosen: Option<Point>,
    /// A file for `--config` with the chosen sizes.
    configuration: Option<String>,
}

/// A store takes no less, and more does no harm.
const MEMORY_MIN: ByteSize = ByteSize::mib(1);
const SSD_MIN: ByteSize = ByteSize::mib(4);
/// More bytes of different blocks than these are a mistake.
const FOOTPRINT_BYTES_MAX: u64 = 1 << 60;

pub(crate) fn run(arguments: &Size) -> Result<u8> {
    let answer = answer(arguments)?;
    if let Some(directory) = &arguments.report {
        write(directory, &answer)?;
    }
    let text = match arguments.json {
        true => serde_json::to_string(&answer)? + "\n",
        false => answer.text(),
    };
    answer::write(text.as_bytes())?;
    Ok(DONE)
}

fn answer(arguments: &Size) -> Result<Answer> {
    let source = Source::open(&arguments.origin)?;
    let label = source.label.clone();
    let requests = source.collect::<Result<Vec<_>>>()?;
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
        bail!("{label} holds no request");
    };
    let seconds = last.at.saturating_sub(first.at).as_secs_f64();
    let (kv_bytes_per_token, kv_source) = match (arguments.model, arguments.kv_bytes_per_token) {
        (Some(model), _) => (model.kv_bytes_per_token(), model.source()),
        (None, Some(bytes)) => (bytes, "given".to_owned()),
        (None, None) => bail!("--model or --kv-bytes-per-token is needed"),
    };
    let defaults = Config::default();
    let facts = Facts {
        block_tokens: arguments.block_tokens,
        kv_bytes_per_token,
        prefill_tokens_per_s: arguments.prefill_tokens_per_s,
        ssd_bytes_per_s: arguments.ssd_rate.0 as f64,
        network_bytes_per_s: arguments.network_rate.0 as f64,
        memory_high: defaults.evict_high.0,
        ssd_high: defaults.evict_ssd_high.0,
        seconds: (seconds > 0.0).then_some(seconds),
    };
    let trace = Trace::new(requests.into_iter().map(known), arguments.block_tokens);
    let footprint_bytes = (trace.distinct_blocks() as u64)
        .checked_mul(facts.block_bytes())
        .filter(|bytes| *bytes < FOOTPRINT_BYTES_MAX)
        .context("the blocks of this trace are too many bytes: --kv-bytes-per-token or --block-tokens is too large")?;
    let points = replay(arguments, &facts, &trace, footprint_bytes);
    let chosen = choose(&points).cloned();
    Ok(Answer {
        source: label,
        requests: trace.requests(),
        blocks: trace.references(),
        distinct_blocks: trace.distinct_blocks(),
        footprint_bytes,
        policy: arguments.policy.name(),
        kv_source,
        ssd: facts.source(facts.ssd_bytes_per_s),
        network: facts.source(facts.network_bytes_per_s),
        configuration: chosen.as_ref().map(|point| configuration(arguments, point)),
        facts,
        points,
        chosen,
    })
}

/// One point for each size of memory and of SSD, in this order.
fn replay(arguments: &Size, facts: &Facts, trace: &Trace, footprint: u64) -> Vec<Point> {
    // What may be filled must hold all of it.
    let whole = |high: f64| (footprint as f64 / high).ceil() as u64;
    let memory = sizes(&arguments.memory, || doubling(whole(facts.memory_high)));
    let ssd = sizes(&arguments.ssd, || {
        std::iter::once(0)
            .chain(doubling(whole(facts.ssd_high)))
            .collect()
    });
    let bar = progress_bar();
    bar.set_length((memory.len() * ssd.len()) as u64);
    let mut points = Vec::new();
    for &memory in &memory {
        for &ssd in &ssd {
            points.push(facts.point(trace, arguments.policy, memory, ssd));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    points
}

/// A size that a store takes for this option.
fn taken(option: &str, size: &str) -> Result<ByteSize, String> {
    Config::default().default_to(option, size)?;
    size.parse()
        .map_err(|error: ParseUnitError| error.to_string())
}

fn sizes(given: &[ByteSize], otherwise: impl FnOnce() -> Vec<u64>) -> Vec<u64> {
    if given.is_empty() {
        return otherwise();
    }
    let mut sizes: Vec<u64> = given.iter().map(|size| size.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn configuration(arguments: &Size, point: &Point) -> String {
    let memory = ByteSize(point.memory_bytes.max(MEMORY_MIN.0));
    let mut text = format!("memory = \"{memory}\"\n");
    if point.ssd_bytes > 0 {
        let ssd = ByteSize(point.ssd_bytes.max(SSD_MIN.0));
        text += &format!("ssd = \"{ssd}\"\ndir = \"/var/lib/slackwater/store\"\n");
    }
    text += &format!("policy = \"{}\"\n", arguments.policy.name());
    text += &format!("\n[evict]\nblock_tokens = {}\n", arguments.block_tokens);
    text
}

impl Answer {
    fn text(&self) -> String {
        let mut text = self.lead() + "\n\n";
        for table in self.tables() {
            text += &format!("{}\n{}\n", table.title, table.text());
        }
        for sentence in self.sentences() {
            text += &(sentence + "\n");
        }
        if let Some(configuration) = &self.configuration {
            text += &format!("\n{configuration}\n");
        }
        text
    }

    fn lead(&self) -> String {
        format!(
            "{}: {} requests name {} blocks of {} tokens, {} of them different: {} of KV cache at {} bytes a token ({}).",
            self.source,
            self.requests,
            self.blocks,
            self.facts.block_tokens,
            self.distinct_blocks,
            ByteSize(self.footprint_bytes),
            self.facts.kv_bytes_per_token,
            self.kv_source,
        )
    }

    /// What follows from the figures, a sentence each.
    fn sentences(&self) -> Vec<String> {
        let source = |name: &str, source: &plan::Source| {
            let verdict = match source.slower_than_computing {
                None => "",
                Some(true) => ", which it is here: recompute instead",
                Some(false) => ", which it is not here",
            };
            format!(
                "A block takes {} from {name}. Computing it again is faster where prefill does more than {:.0} tokens a \
                 second{verdict}.",
                Unit::Micros.format(source.block_s * 1e6),
                source.breaks_even_at_tokens_per_s,
            )
        };
        let mut sentences = vec![
            source("SSD", &self.ssd),
            source("another machine", &self.network),
        ];
        if self.points.iter().any(|point| !point.bearable) {
            sentences.push("Sizes marked with * ask more of the SSD than it can do.".to_owned());
        }
        sentences.push(match &self.chosen {
            Some(point) => format!(
                "The smallest memory that is within 2 % of the best: {} over {} of SSD ({} hits, {} in memory).",
                ByteSize(point.memory_bytes),
                ByteSize(point.ssd_bytes),
                Unit::Share.format(point.hit_rate),
                Unit::Share.format(point.memory_hit_rate),
            ),
            None => "No size is worth anything: the trace repeats nothing that fits.".to_owned(),
        });
        sentences
    }

    /// The figures, a row for each size of memory and a column for each of SSD.
    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![
            self.table("Hits in both tiers", |point| {
                Unit::Share.format(point.hit_rate)
            }),
            self.table("Hits in memory", |point| {
                Unit::Share.format(point.memory_hit_rate)
            }),
        ];
        if self
            .points
            .iter()
            .any(|point| point.seconds_saved_per_hour.is_some())
        {
            let saved = |point: &Point| {
                point
                    .seconds_saved_per_hour
                    .map_or(f64::NAN, |seconds| seconds)
            };
            tables.push(self.table("Prefill seconds saved an hour", |point| {
                Unit::Seconds.format(saved(point))
            }));
        } else if self
            .points
            .iter()
            .any(|point| point.tokens_saved_per_hour.is_some())
        {
            let saved = |point: &Point| {
                point
                    .tokens_saved_per_hour
                    .map_or(f64::NAN, |tokens| tokens)
            };
            tables.push(self.table("Prompt tokens saved an hour", |point| {
                Unit::Count.format(saved(point))
            }));
        }
        tables
    }

    fn table(&self, title: &str, value: impl Fn(&Point) -> String) -> Table {
        let rows: Vec<&[Point]> = self.rows().collect();
        let columns = rows.first().copied().unwrap_or_default().iter();
        let head = columns.map(|point| format!("SSD {}", ByteSize(point.ssd_bytes)));
        let head: Vec<String> = std::iter::once("memory".to_owned()).chain(head).collect();
        let cell = |point: &Point| {
            let mark = if point.bearable { "" } else { "*" };
            format!("{}{mark}", value(point))
        };
        let cells = |row: &&[Point]| {
            let memory = ByteSize(row[0].memory_bytes).to_string();
            std::iter::once(memory)
                .chain(row.iter().map(cell))
                .collect()
        };
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        Table::new(title, &head, rows.iter().map(cells))
    }

    /// The points of one size of memory each.
    fn rows(&self) -> impl Iterator<Item = &[Point]> {
        self.points
            .chunk_by(|one, other| one.memory_bytes == other.memory_bytes)
    }
}

fn write(directory: &Path, answer: &Answer) -> Result<()> {
    let place = || format!("cannot write the report into {}", directory.display());
    fs::create_dir_all(directory).with_context(place)?;
    fs::write(directory.join("size.html"), page::page(answer).html()).with_context(place)?;
    let json = serde_json::to_string_pretty(answer)? + "\n";
    fs::write(directory.join("size.json"), json).with_context(place)
}

fn model(text: &str) -> Result<&'static Model, String> {
    let known = || {
        format!(
            "known are {}; others by --kv-bytes-per-token",
            known_models()
        )
    };
    Model::find(text).ok_or_else(known)
}

fn known_models() -> String {
    let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    names.join(", ")
}

fn speed(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|error: slackwater_base::ParseUnitError| error.to_string())?;
    if size.0 == 0 {
        return Err("expected a size above zero, such as 3GB".to_owned());
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of a few small blocks was answered with a configuration that no store opens.
    #[test]
    fn the_least_of_a_configuration_is_what_a_store_takes() {
        let check = |option: &str, size: ByteSize, takes: bool| {
            let taken = taken(option, &format!("{}B", size.0));
            assert_eq!(taken.is_ok(), takes, "{option} {size}: {taken:?}");
        };
        for (option, least) in [("memory", MEMORY_MIN), ("ssd", SSD_MIN)] {
            check(option, least, true);
            check(option, ByteSize(least.0 - 1), false);
        }
        check("ssd", ByteSize(0), true);
    }
}
