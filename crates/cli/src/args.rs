use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use slackwater_base::ByteSize;
use slackwater_meta::evict::PolicyKind;
use slackwater_node::Config;
use slackwater_node::config::Role;
use slackwater_replay::{AgentTraffic, Hints, Traffic, UnknownVariant, Variant};

use crate::bench::Bench;
use crate::settings::{CommandLine, Filed};

/// A tiered store for the KV cache of LLM serving: DRAM over SSD, with promotion on hit.
#[derive(Debug, Parser)]
#[command(
    name = "slackwater",
    version,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    /// TOML file with options of the store and settings of services
    #[arg(
        long,
        global = true,
        env = "SLACKWATER_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub(crate) config: Option<PathBuf>,

    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a trace of requests from a store and check every byte
    ///
    /// For each request, in order: reads the longest present prefix of its block chain, compares every bit of it, and
    /// puts the rest. Ends with a table, report.html and report.json. The exit code is 1 if a read was corrupt, and 130
    /// if Ctrl-C cut the run short (the report then covers what was done).
    Replay(Replay),
    /// Compare eviction policies on a trace, without any I/O
    ///
    /// Replays the trace against each policy at each size and prints the share of blocks that were there after all
    /// blocks before them, beside what an eviction that knows the future reaches.
    Policy(Policy),
    /// Say how much memory and SSD a trace is worth
    ///
    /// Replays the trace without I/O at many sizes of memory over many of SSD, and tells the hit rate of each tier, the
    /// prefill that is saved, where reading a block is slower than computing it again, and the smallest sizes that are
    /// nearly as good as the best, with the configuration to paste.
    Size(crate::size::Size),
    /// Put two runs side by side: reports of replay, policy or bench
    ///
    /// Prints every figure that both reports have, their ratio, and how far runs of the same side are apart where there are
    /// several.
    Compare(crate::compare::Compare),
    /// Say why an object is kept, or will go
    ///
    /// Tells what the eviction of each tier has learned of a key: its class, when it was last read, how likely such
    /// objects return, and what holding it is worth beside what goes next. Asks the store that runs in --dir; when none
    /// runs there, reads what the last one left, without changing it. Ages begin anew when a store is opened.
    Explain(Explain),
    /// Serve a store to other processes until Ctrl-C or SIGTERM
    ///
    /// Master and node in one process. Requests come in at --listen; bytes go between clients and the store's memory by
    /// transfers of their own. Without keys only this machine can connect, and every process of it may. SIGHUP reads the
    /// allow-list and the token again. The exit code is 0 after SIGTERM, and 130 after Ctrl-C.
    Serve(crate::serve::Serve),
    /// Be the master of a pool whose nodes are other processes
    ///
    /// Requests of clients and nodes come in at --listen; bytes go between clients and nodes. Has no memory of its own:
    /// `slackwater node` lends it. SIGHUP reads the allow-list and the token again. The exit code is 0 after SIGTERM,
    /// and 130 after Ctrl-C.
    Master(crate::pool::Master),
    /// Lend memory and an SSD to the master of a pool
    ///
    /// Waits for a master that is not there yet or was lost. SIGHUP reads the allow-list again. The exit code is 0 after
    /// SIGTERM, and 130 after Ctrl-C.
    Node(crate::pool::Node),
    /// Put one value into a served store
    Put(crate::remote::Put),
    /// Write one value of a served store to standard output
    ///
    /// The exit code is 1 if there is no such key.
    Get(crate::remote::Get),
    /// List keys of a served store, in byte order
    Ls(crate::remote::Ls),
    /// Show what a served store knows about a key
    Stat(crate::remote::Stat),
    /// Remove keys from a served store
    Rm(crate::remote::Rm),
    /// Copy a value into the memory of other nodes of a pool
    ///
    /// Needs the right of an operator, as do mv, drain and jobs. The exit code is 1 if a copy could not be made.
    Cp(crate::jobs::Cp),
    /// Move a value from the memory of one node of a pool to another's
    Mv(crate::jobs::Mv),
    /// Empty nodes of a pool: what only they hold goes elsewhere, and nothing new comes to them
    ///
    /// Values are read where they are until they are elsewhere. The exit code is 1 if something was left: the nodes still
    /// take nothing new then, so that the drain can be begun again once there is room. `slackwater jobs --cancel JOB` ends a
    /// drain, or undoes one that is done.
    Drain(crate::jobs::Drain),
    /// List the jobs of a pool, or cancel one
    Jobs(crate::jobs::Jobs),
    /// Show what a served store or the master of a pool does: rates, hits by tier, segments, nodes, jobs
    ///
    /// Asks the admin address each second. q and Ctrl-C end it. Where standard output is no terminal, pages follow one
    /// another.
    Top(crate::top::Top),
    /// Measure parts of Slackwater beside the machine's limits and beside peers
    #[command(subcommand)]
    Bench(Bench),
    /// Show the configuration in force and where each value comes from
    Config(Show),
    /// Check what the machine offers: pages, limits, io_uring, NUMA, disk
    Doctor(Doctor),
    /// Show which network interfaces are near which memory
    ///
    /// Lists for the memory of each NUMA node (`cpu:N`) and of each GPU (`cuda:N`, by PCI address) the interfaces to prefer
    /// and the rest: by NUMA node, and for a GPU by steps over PCI. The object `locations` of --json is what a file for
    /// --file and for SLACKWATER_TCP_TOPOLOGY holds. The exit code is 1 if the file is wrong for this machine.
    Topology(crate::topology::Show),
    /// Make, show and allow keys of the message layer
    #[command(subcommand)]
    Keys(crate::tools::Keys),
    /// Talk to the message layer by hand
    #[command(subcommand)]
    Mq(crate::tools::Mq),
    /// Print the script by which a shell completes commands and flags
    ///
    /// For bash: `slackwater completions bash > ~/.local/share/bash-completion/completions/slackwater`.
    Completions(crate::manual::Completions),
    /// Write the manual pages
    Man(crate::manual::Pages),
}

/// Where requests come from.
#[derive(Clone, Debug, Args)]
pub(crate) struct Origin {
    /// Trace in the published JSONL format (timestamp, input_length, output_length, hash_ids, optional hint
    /// and expect); `-` reads standard input
    #[arg(required_unless_present = "generate", conflicts_with = "generate")]
    pub(crate) trace: Option<PathBuf>,

    /// Take generated multi-turn chat traffic instead of a trace
    #[arg(long, long_help = format!("Take generated traffic instead of a trace: {}", Traffic::STATISTICS))]
    pub(crate) generate: bool,

    /// Requests to generate
    #[arg(long, default_value_t = Traffic::default().requests, conflicts_with = "trace", value_name = "N")]
    pub(crate) requests: u64,

    /// People who chat at a time in generated traffic
    #[arg(long, default_value_t = Traffic::default().sessions, conflicts_with = "trace", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) sessions: u32,

    /// Median time in seconds that people think before they ask again, in generated traffic
    #[arg(long, default_value_t = Traffic::default().think_seconds, conflicts_with = "trace", value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) think: u32,

    /// What generated traffic follows from: the same seed gives the same requests
    #[arg(long, default_value_t = Traffic::default().seed, conflicts_with = "trace", value_name = "N")]
    pub(crate) seed: u64,

    /// Stop after this many requests
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// See [`Command::Replay`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Replay {
    /// Where requests come from.
    #[command(flatten)]
    pub(crate) origin: Origin,

    /// Size of a block's value
    #[arg(long, default_value = "64KiB", value_name = "SIZE", value_parser = block_bytes)]
    pub(crate) block_bytes: ByteSize,

    /// Tokens of a block: a last block that the prompt does not fill is then not put, as engines do [default: put all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block_tokens: Option<u64>,

    /// Pace of arrival: max, or a multiple of the trace's own, such as 1x or 20x
    #[arg(long, default_value = "max", value_name = "PACE", value_parser = pace)]
    pub(crate) speed: Pace,

    /// Show the live page of the store while the replay runs, at this loopback address; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, require_equals = true, default_missing_value = LIVE)]
    pub(crate) live: Option<SocketAddr>,

    /// Directory for report.html and report.json
    #[arg(long, default_value = "report", value_name = "DIR")]
    pub(crate) report: PathBuf,

    /// Print one JSON object on standard output instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the page of a replay is, unless it is said.
const LIVE: &str = "127.0.0.1:9003";

/// See [`Command::Policy`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Policy {
    /// Where requests come from.
    #[command(flatten)]
    pub(crate) origin: Origin,

    /// Sizes of the cache, in blocks
    #[arg(long, default_value = "1000,3000,10000,20000,30000", value_name = "N,…", value_delimiter = ',',
          value_parser = blocks)]
    pub(crate) sizes: Vec<usize>,

    /// Also replay two tiers: memory of each size over an SSD of so many blocks
    #[arg(long, value_name = "N", value_parser = blocks)]
    pub(crate) ssd: Option<usize>,

    /// Policies to compare [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = policy)]
    pub(crate) policies: Vec<PolicyKind>,

    /// Tokens of a block: a last block that the prompt does not fill is never kept
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) block_tokens: u32,

    /// Judge the default policy on named traffics beside lru, s3fifo, arc and twoq, or the last of --policies beside
    /// the others; fails where it has fewer hits than the best of them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = traffic, conflicts_with = "ssd",
          long_help = format!("Judge the default policy on named traffics beside lru, s3fifo, arc and twoq, or the last \
of --policies beside the others. Fails where it has fewer hits than the best of them, by more than 0.003 of all blocks, \
over the whole traffic or over its second half: the first half is for choosing parameters. `all` names every traffic: \
the trace as it is, its halves swapped, its time stretched and shrunk by 4, two copies with ids of their own, agents \
after its first half, chains read once as 3 of 10 blocks, agents alone, and generated chat with five seeds and three \
times to think. {}", AgentTraffic::STATISTICS))]
    pub(crate) traffic: Vec<Named>,

    /// Also give this share of the requests a hint, and show what policies gain by it
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with_all = ["traffic", "ssd"],
          long_help = format!("Also give this share of the requests (0 to 1) a hint as an engine could know it, in the \
place of the trace's own, and show what policies gain by it. The hint is {}", Hints::MEANING))]
    pub(crate) hints: Option<f64>,

    /// Directory for policy.html and policy.json [default: none is written]
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// Print one JSON object on standard output instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// See [`Command::Explain`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Explain {
    /// Key of the object
    pub(crate) key: OsString,

    /// Tenant of the key [default: the default tenant]
    #[arg(long, default_value = "", value_name = "TENANT")]
    pub(crate) tenant: String,

    /// Print one JSON object on standard output instead of sentences
    #[arg(long)]
    pub(crate) json: bool,
}

/// See [`Command::Config`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Show {
    /// Also say what each option does, its default, and all its names
    #[arg(long)]
    pub(crate) explain: bool,

    /// Print all of that as one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// See [`Command::Doctor`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Doctor {
    /// Print one JSON object on standard output instead of the list
    #[arg(long)]
    pub(crate) json: bool,
}

/// How fast requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// One after the other.
    Max,
    /// At their times, divided by this.
    Times(f64),
}

/// What a command line says, with the file that it names.
#[derive(Debug)]
pub(crate) struct Parsed {
    /// The command itself.
    pub(crate) cli: Cli,
    /// The options of the store as flags of their layer.
    pub(crate) flags: Vec<(String, String)>,
    /// Settings of services that the file has.
    pub(crate) filed: Filed,
}

/// Reads a command line, and settings of services out of the file that it or the environment names.
pub(crate) fn parse<I>(arguments: I) -> Result<Parsed, clap::Error>
where
    I: IntoIterator<Item: Into<OsString>>,
{
    let words: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let (mut command, line) = (command(), CommandLine::of(&words));
    let filed = Filed::read(&command, &line, |name| std::env::var_os(name));
    let matches = command
        .try_get_matches_from_mut(line.with(filed.flags()))
        .map_err(|error| refused_here(&mut command, line.name, error))
        .map_err(|error| filed.placed(&mut command, error))?;
    reads_file(&mut command, &matches)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let flags = matches
        .subcommand()
        .map(|(_, matches)| store_flags(matches))
        .unwrap_or_default();
    Ok(Parsed { cli, flags, filed })
}

/// Refuses a file that a command would not read. As a variable it is for all commands of a shell.
fn reads_file(command: &mut clap::Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((name, of_command)) = matches.subcommand() else {
        return Ok(());
    };
    let given = of_command.value_source("config") == Some(ValueSource::CommandLine);
    if !given || configured().any(|(configured, _)| configured == name) {
        return Ok(());
    }
    let all: Vec<&str> = configured().map(|(name, _)| name).collect();
    let refusal = format!(
        "--config has no effect in `slackwater {name}`, which reads no file of options; these do: {}",
        all.join(", ")
    );
    let own = command.find_subcommand_mut(name);
    let own = own.expect("it was found in the line");
    Err(own.error(ErrorKind::UnknownArgument, refusal))
}

/// Says why a command does not take an option of the store, and which one does.
fn refused_here(
    command: &mut clap::Command,
    name: Option<&str>,
    error: clap::Error,
) -> clap::Error {
    let told = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(told))) => told.clone(),
        _ => return error,
    };
    let role = (ROLES.iter()).find_map(|(of, role)| (Some(*of) == name).then_some((*of, *role)));
    let flag = told.trim_start_matches('-');
    let option = Config::OPTIONS.iter().find(|option| option.flag() == flag);
    let refusal = option
        .zip(role)
        .and_then(|(option, (of, role))| Some((of, role.refusal(option.key)?)));
    match refusal {
        None => error,
        Some((of, refusal)) => command
            .find_subcommand_mut(of)
            .expect("the roles are those of commands")
            .error(ErrorKind::UnknownArgument, format!("{told} {refusal}")),
    }
}

/// What the processes of commands with options of the store are.
const ROLES: [(&str, Role); 5] = [
    ("replay", Role::Store),
    ("explain", Role::Store),
    ("serve", Role::Server),
    ("master", Role::Master),
    ("node", Role::Node),
];

/// The whole command line, with a flag for every option of the store where a store is opened or described.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let of_all = command.get_arguments();
    let file: Vec<Arg> = of_all
        .filter(|argument| argument.get_id() == "config")
        .map(|argument| argument.clone().hide(true))
        .collect();
    command.mut_subcommands(|subcommand| {
        match configured().find(|(name, _)| *name == subcommand.get_name()) {
            Some((_, role)) => subcommand
                .next_help_heading("Store")
                .args(store_arguments(role)),
            // It is refused there: see [`reads_file`].
            None => subcommand.args(file.clone()),
        }
    })
}

/// The commands that read options of the store, with what their processes are, where they are one thing.
fn configured() -> impl Iterator<Item = (&'static str, Option<Role>)> {
    let any = ["config", "doctor"].map(|name| (name, None));
    let roles = ROLES.map(|(name, role)| (name, Some(role)));
    roles.into_iter().chain(any)
}

/// Options that `-h` shows; `--help` shows all.
const COMMON: &[&str] = &[
    "memory",
    "ssd",
    "dir",
    "policy",
    "offload",
    "promotion.enabled",
    "io",
];

/// A flag for every option that has an effect in a process of this role, or for all of them.
fn store_arguments(role: Option<Role>) -> impl Iterator<Item = Arg> {
    let options = Config::OPTIONS.iter();
    options
        .filter(move |option| role.is_none_or(|role| role.uses(option.key)))
        .map(|option| {
            Arg::new(option.key)
                .long(option.flag())
                .value_name(value_name(option.kind))
                .help(option.doc)
                .long_help(format!(
                    "{} ({}; default: {})",
                    option.doc,
                    option.kind,
                    shown_default(option)
                ))
                .hide_short_help(!COMMON.contains(&option.key))
        })
}

/// `size` as `SIZE`, `one of a, b` as `a|b`.
fn value_name(kind: &str) -> String {
    match kind.strip_prefix("one of ") {
        Some(words) => words.replace(", ", "|"),
        None if kind == "true or false" => "true|false".to_owned(),
        None => kind.split(' ').next().unwrap_or(kind).to_uppercase(),
    }
}

fn shown_default(option: &slackwater_node::config::OptionSpec) -> String {
    let default = option.default();
    if default.is_empty() {
        "none".to_owned()
    } else {
        default
    }
}

fn store_flags(matches: &ArgMatches) -> Vec<(String, String)> {
    let given = |option: &slackwater_node::config::OptionSpec| {
        let value = matches.try_get_one::<String>(option.key).ok().flatten()?;
        Some((option.flag(), value.clone()))
    };
    Config::OPTIONS.iter().filter_map(given).collect()
}

pub(crate) fn block_bytes(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|error: slackwater_base::ParseUnitError| error.to_string())?;
    match size.0 {
        0 => Err("a block needs at least one byte".to_owned()),
        bytes if bytes > BLOCK_BYTES_MAX.0 => {
            Err(format!("{size} is over the limit of {BLOCK_BYTES_MAX}"))
        }
        _ => Ok(size),
    }
}

const BLOCK_BYTES_MAX: ByteSize = ByteSize::gib(1);

fn blocks(text: &str) -> Result<usize, String> {
    let size = text.replace('_', "").parse().ok().filter(|size| *size > 0);
    size.ok_or_else(|| "expected a number of blocks, one or more".to_owned())
}

pub(crate) fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse()
        .map_err(|error: slackwater_meta::evict::UnknownPolicy| error.to_string())
}

/// One traffic, or all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// `all`.
    All,
    /// By its name.
    One(Variant),
}

fn traffic(text: &str) -> Result<Named, String> {
    if text.trim() == "all" {
        return Ok(Named::All);
    }
    let parsed = text.parse().map(Named::One);
    parsed.map_err(|error: UnknownVariant| error.to_string())
}

/// Reads a number above zero.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above zero".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn pace(text: &str) -> Result<Pace, String> {
    if text == "max" {
        return Ok(Pace::Max);
    }
    let factor = text
        .strip_suffix('x')
        .and_then(|number| number.parse::<f64>().ok());
    let factor = factor.filter(|factor| factor.is_finite() && *factor > 0.0);
    factor
        .map(Pace::Times)
        .ok_or_else(|| "expected max, or a positive multiple such as 1x or 20x".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// With `SLACKWATER_LISTEN` or `SLACKWATER_CONNECT` in its environment, no command opened a store any more: the variable
    /// was taken for an option of the store that does not exist.
    #[test]
    fn every_variable_of_a_command_may_be_set_where_a_store_is_opened() {
        fn variables(command: &clap::Command) -> Vec<OsString> {
            let own = command
                .get_arguments()
                .filter_map(|argument| argument.get_env());
            let below = command.get_subcommands().flat_map(variables);
            own.map(ToOwned::to_owned).chain(below).collect()
        }
        let command = command();
        let all = variables(&command);
        assert!(all.iter().any(|name| name == "SLACKWATER_CONNECT"));
        for name in all {
            let value = OsString::from("x");
            let loaded =
                slackwater_node::Config::load(None, [(name.clone(), value)].into_iter(), &[]);
            let told = loaded.err().unwrap_or_default();
            let unknown = |problem: &slackwater_node::config::ConfigProblem| {
                problem.message.contains("there is no option")
            };
            assert!(!told.iter().any(unknown), "{}: {told:?}", name.display());
        }
    }

    /// An option that a process takes has an effect there, and a refusal says where it has one.
    #[test]
    fn a_process_takes_the_options_that_have_an_effect_there() {
        let check = |command: &str, flag: &str, value: &str, refusal: &str| {
            for line in [
                vec!["slackwater", command, flag, value],
                vec!["slackwater", command, &format!("{flag}={value}")],
            ] {
                match parse(&line) {
                    Ok(_) => assert_eq!(refusal, "", "{line:?}"),
                    Err(error) => {
                        let said = error.to_string();
                        let begin = format!("error: {flag} has no effect in {refusal}");
                        assert!(!refusal.is_empty() && said.starts_with(&begin), "{said}");
                        assert_eq!(error.exit_code(), 2);
                    }
                }
            }
        };
        let in_master = "a master: it is a node's: give it to `slackwater node`";
        let in_node = "a node: it is the master's: give it to `slackwater master`";
        for (flag, value, of_node) in [
            ("--memory", "1GiB", true),
            ("--ssd", "1GiB", true),
            ("--dir", "/d", true),
            ("--io", "pread", true),
            ("--policy", "lru", false),
            ("--lease-ttl", "1s", false),
            ("--evict-block-tokens", "64", false),
            ("--promotion-enabled", "false", false),
        ] {
            check("master", flag, value, if of_node { in_master } else { "" });
            check("node", flag, value, if of_node { "" } else { in_node });
            check("serve", flag, value, "");
        }
        for command in ["master", "node", "serve"] {
            check(command, "--log", "warn", "");
            check(command, "--evict-high", "95%", "");
            let opens = "it is for programs that open a store themselves";
            let whom = match command {
                "serve" => "a served store",
                "node" => "a node",
                _ => "a master",
            };
            for (flag, value) in [("--views-limit", "1"), ("--huge-pages", "off")] {
                check(command, flag, value, &format!("{whom}: {opens}"));
            }
        }
        let mode = "a served store: it is the master's: give it to `slackwater master`";
        check("serve", "--replication-mode", "enforce", mode);
    }

    /// `slackwater bench tiers --config FILE` took a file, even a wrong one, and measured with the defaults.
    #[test]
    fn a_file_that_is_not_read_is_refused() {
        let check = |line: &str, taken: bool| {
            let parsed = parse(line.split(' '));
            match parsed {
                Ok(_) => assert!(taken, "{line}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        !taken && said.contains("--config has no effect in"),
                        "{said}"
                    );
                    assert_eq!(error.exit_code(), 2);
                }
            }
        };
        check("slackwater bench tiers --config f", false);
        check("slackwater --config f bench tiers", false);
        check("slackwater get k --config=f", false);
        check("slackwater keys new k --config f", false);
        check("slackwater replay t --config f", true);
        check("slackwater --config f config", true);
        check("slackwater doctor --config f", true);
        check("slackwater get k", true);
    }

    #[test]
    fn store_options_become_flags_of_their_layer() {
        let line = [
            "slackwater",
            "replay",
            "t.jsonl",
            "--memory",
            "512MiB",
            "--promotion-threshold=3",
            "--speed",
            "20x",
        ];
        let Parsed { cli, flags, .. } = parse(line).unwrap();
        let pair = |flag: &str, value: &str| (flag.to_owned(), value.to_owned());
        assert_eq!(
            flags,
            [pair("memory", "512MiB"), pair("promotion-threshold", "3")]
        );
        let Command::Replay(replay) = cli.command else {
            panic!("{:?}", cli.command)
        };
        assert_eq!(
            (replay.speed, replay.block_bytes),
            (Pace::Times(20.0), ByteSize::kib(64))
        );
    }

    #[test]
    fn wrong_lines_say_what_would_be_right() {
        let check = |line: &[&str], message: &str| {
            let error = parse([&["slackwater"], line].concat())
                .unwrap_err()
                .to_string();
            assert!(error.contains(message), "{line:?}: {error}");
        };
        check(&["replay"], "<TRACE>");
        check(
            &["replay", "t", "--generate"],
            "cannot be used with '--generate'",
        );
        check(
            &["replay", "t", "--seed", "3"],
            "'[TRACE]' cannot be used with '--seed <N>'",
        );
        check(
            &["replay", "t", "--speed", "fast"],
            "expected max, or a positive multiple such as 1x or 20x",
        );
        check(
            &["replay", "t", "--speed", "0x"],
            "expected max, or a positive multiple such as 1x or 20x",
        );
        check(
            &["replay", "t", "--block-bytes", "0"],
            "a block needs at least one byte",
        );
        check(
            &["replay", "t", "--block-bytes", "4 pages"],
            "unknown unit `pages`",
        );
        check(&["replay", "t", "--memroy", "1GiB"], "'--memory'");
        check(&["replai"], "'replay'");
        check(
            &["policy", "t", "--sizes", "1000,0"],
            "expected a number of blocks, one or more",
        );
        check(&["policy", "t", "--policies", "lru,fifi"], "fifi");
    }

    #[test]
    fn help_reads_well() {
        let mut command = Cli::command();
        insta::assert_snapshot!("help", command.render_help().to_string());
        let replay = command.find_subcommand_mut("replay").unwrap().clone();
        insta::assert_snapshot!(
            "help_of_replay",
            replay
                .bin_name("slackwater replay")
                .render_help()
                .to_string()
        );
    }

    #[test]
    fn choices_name_their_values() {
        assert_eq!(value_name("one of lru, s3fifo"), "lru|s3fifo");
        assert_eq!(
            (value_name("ratio from 0 to 1"), value_name("true or false")),
            ("RATIO".into(), "true|false".into())
        );
    }
}
