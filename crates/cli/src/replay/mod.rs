//! `slackwater replay`: a trace of requests, served and checked.

mod figures;
mod outcome;
mod player;
mod progress;
mod report;
mod tally;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use slackwater_admin::Admin;
use slackwater_node::{Config, Stats, Store, logging};
use slackwater_replay::Series;
use tempfile::TempDir;

use crate::admin::answer_for;
use crate::answer::say;
use crate::args::{Pace, Replay};
use crate::config::{Layers, refuse};
use crate::interrupt::Interrupt;
use crate::source::Source;
use crate::{DONE, INTERRUPTED, usage};
use outcome::{Cost, Outcome, Skipped, read_delay_s};
use player::{Cache, Player};
use progress::Progress;
use report::{Moment, Record};
use tally::ReplayCounts;

/// Options of a replay where no layer sets them: both tiers at work, and a quiet log beside the progress bar.
const DEFAULTS: [(&str, &str); 4] = [
    ("ssd", "16GiB"),
    ("offload", "on-evict"),
    ("promotion.enabled", "true"),
    ("log", "warn"),
];

/// Memory of values for generated traffic, which holds about 900 MiB in blocks of 64 KiB: with the default memory of a
/// store it would never reach the SSD.
const GENERATED_MEMORY: &str = "128MiB";

/// Points of the report's charts.
const MOMENTS_MAX: usize = 120;

pub(crate) fn run(arguments: &Replay, layers: Layers) -> Result<u8> {
    let interrupt = Interrupt::install()?;
    let (mut config, directory) = configure(layers)?;
    if arguments.origin.generate {
        config
            .default_to("memory", GENERATED_MEMORY)
            .map_err(anyhow::Error::msg)?;
    }
    if let Some(tokens) = arguments.block_tokens {
        config
            .default_to("evict.block_tokens", &tokens.to_string())
            .map_err(anyhow::Error::msg)?;
    }
    logging::init(&config).map_err(anyhow::Error::msg)?;
    let mut source = Source::open(&arguments.origin)?;
    let store = Store::open(config.clone()).context("cannot open the store")?;
    let live = arguments.live.map(|listen| show_live(&store, listen));
    let live = live.transpose()?;
    let played = play(arguments, &mut source, &store, &interrupt);
    drop(live);
    let closed = store.clone().close();
    let unwritten_at_close = store.stats().ssd.map_or(0, |ssd| ssd.unwritten_at_close);
    drop(store);
    let kept = directory.is_none();
    drop(directory);
    let Run {
        tally,
        stats,
        mut outcome,
        moments,
        end,
    } = played;
    outcome.unwritten_at_close = unwritten_at_close;
    let end = match end {
        End::Broken(error) if outcome.requests == 0 => return Err(error),
        end => end,
    };
    let cut_short = match &end {
        End::Whole => None,
        End::Interrupted => Some("interrupted".to_owned()),
        End::Broken(error) => Some(format!("{error:#}")),
    };
    let record = Record {
        source: &source.label,
        config: &config,
        block_bytes: arguments.block_bytes.0,
        cut_short: cut_short.as_deref(),
        tally: &tally,
        stats: &stats,
        outcome: &outcome,
        moments: moments.samples(),
    };
    let html = record.write(&arguments.report)?;
    show(&record, &html, arguments.json)?;
    if kept {
        closed.context("the store could not be closed")?;
    }
    match end {
        End::Broken(error) => Err(error),
        _ if outcome.corrupt_reads > 0 => {
            bail!("{} blocks were not what was put", outcome.corrupt_reads)
        }
        End::Interrupted => Ok(INTERRUPTED),
        End::Whole => Ok(DONE),
    }
}

/// Serves the live page of the store, and says where.
fn show_live(store: &Store, listen: SocketAddr) -> Result<Admin> {
    let admin = answer_for(store, "a replay in this process", listen)?;
    // Standard output is for the result.
    let address = admin.address();
    let _ = writeln!(std::io::stderr(), "live at http://{address}");
    Ok(admin)
}

/// The configuration of a replay: its own defaults below every layer, and a directory that goes with the run where
/// none was named.
fn configure(layers: Layers) -> Result<(Config, Option<TempDir>)> {
    let named = layers.with("ssd", "0").load()?.dir;
    let directory = match named {
        Some(_) => None,
        None => Some(
            tempfile::Builder::new()
                .prefix("slackwater-")
                .tempdir()
                .context("cannot make a directory")?,
        ),
    };
    let layers = match &directory {
        Some(directory) => layers.with("dir", directory.path().display().to_string()),
        None => layers,
    };
    let mut config = layers.load()?;
    for (key, value) in DEFAULTS {
        config.default_to(key, value).map_err(anyhow::Error::msg)?;
    }
    if config.ssd.0 == 0 {
        config.dir = None;
    }
    let problems = config.problems();
    if problems.is_empty() {
        Ok((config, directory))
    } else {
        Err(refuse(&problems))
    }
}

/// What a run gave.
struct Run {
    tally: ReplayCounts,
    stats: Stats,
    outcome: Outcome,
    moments: Series<Moment>,
    end: End,
}

/// Why a run ended.
enum End {
    Whole,
    Interrupted,
    Broken(anyhow::Error),
}

fn play(arguments: &Replay, source: &mut Source, cache: &dyn Cache, interrupt: &Interrupt) -> Run {
    let mut player = Player::new(cache, source.identity, arguments.block_bytes.0 as usize);
    player.block_tokens = arguments.block_tokens;
    let mut moments = Series::with_limit(MOMENTS_MAX);
    let mut progress = Progress::start(source.total);
    let (started, cpu_before) = (Instant::now(), usage::cpu_seconds());
    let mut trace_s = 0.0;
    let end = loop {
        if interrupt.requested() {
            break End::Interrupted;
        }
        let request = match source.next() {
            None => break End::Whole,
            Some(Err(error)) => break End::Broken(error),
            Some(Ok(request)) => request,
        };
        if let Pace::Times(factor) = arguments.speed
            && interrupt.sleep_until(started + request.at.div_f64(factor))
        {
            break End::Interrupted;
        }
        // Leases and the ages of blocks are the trace's, however fast it is played.
        if let Err(error) = cache.skip_to(request.at) {
            break End::Broken(error.into());
        }
        if let Err(error) = player.play(&request) {
            break End::Broken(error.into());
        }
        trace_s = request.at.as_secs_f64();
        let tally = player.tally();
        moments.offer(|| moment(tally, &cache.stats(), trace_s, started));
        progress.tick(source.done(), tally, || cache.stats());
    };
    progress.finish();
    let tally = player.into_tally();
    let end = match end {
        End::Whole if tally.requests == 0 => {
            End::Broken(anyhow::anyhow!("{} holds no request", source.label))
        }
        other => other,
    };
    let stats = cache.stats();
    moments.finish(|| moment(&tally, &stats, trace_s, started));
    let cost = Cost {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: usage::cpu_seconds() - cpu_before,
        peak_rss_bytes: usage::peak_rss_bytes(),
    };
    let outcome = Outcome::new(&tally, &stats, cost);
    Run {
        tally,
        stats,
        outcome,
        moments,
        end,
    }
}

fn moment(tally: &ReplayCounts, stats: &Stats, trace_s: f64, started: Instant) -> Moment {
    Moment {
        trace_s,
        wall_s: started.elapsed().as_secs_f64(),
        requests: tally.requests,
        blocks: tally.blocks,
        memory_hits: tally.memory_hits,
        ssd_hits: tally.ssd_hits,
        put_bytes: tally.put_bytes,
        memory_used_bytes: stats.memory.used_bytes,
        ssd_used_bytes: stats.ssd.map_or(0, |ssd| ssd.used_bytes),
        promotions: stats.promotions.completed,
        evictions: stats.evictions.count,
        offloads: stats.offloads.completed,
        not_written: Skipped::of(&stats.offloads),
        ssd_read_delay_s: read_delay_s(stats),
    }
}

fn show(record: &Record<'_>, html: &Path, json: bool) -> Result<()> {
    if json {
        return say(serde_json::to_string(record.outcome)?);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.add_rows(record.figures());
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(format_args!("{table}\nreport: {}", html.display()))?;
    match record.cut_short {
        Some(why) => say(format_args!("cut short: {why}")),
        None => Ok(()),
    }
}
