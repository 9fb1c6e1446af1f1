//! `bench transfer` between two machines: `--serve` on one and `--target` on the other, or both ends of a shaped link here.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use slackwater_base::ByteSize;
use slackwater_bench::tied;
use slackwater_bench::transfer::{self, Across, FarEnd, ServeOptions};
use slackwater_mq::Address;

use super::args::{Output, Transfer};
use super::passing::Passing;
use super::{Shown, ourselves, this_program};
use crate::args::block_bytes;
use crate::interrupt::Interrupt;
use crate::remote::note;
use crate::service::code;

/// Between two machines.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Between two machines")]
pub(crate) struct Machines {
    /// Be the far end of runs from another machine, one after the other, until Ctrl-C
    #[arg(
        long,
        group = "ends",
        conflicts_with_all = ["target", "shaped", "mover", "device", "op", "blocks", "concurrency", "batch", "window", "rounds",
                              "loops", "quick", "waits", "trials", "torture", "no_rows", "python", "no_peers", "json", "report",
                              "strict"]
    )]
    serve: bool,

    /// Where the far end listens; bytes come to free ports of the same address [default: 127.0.0.1:50061]
    #[arg(long, requires = "serve", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// Memory that a run may ask of the far end [default: 1GiB]
    #[arg(long, requires = "serve", value_name = "SIZE", value_parser = block_bytes)]
    memory: Option<ByteSize>,

    /// Measure against a far end: HOST:PORT on this machine, else the curve:// address that it prints
    #[arg(
        long,
        group = "ends",
        conflicts_with_all = ["shaped", "mover", "device", "waits", "trials", "torture", "no_rows", "python", "no_peers"],
        value_name = "ADDRESS",
        value_parser = far_address
    )]
    target: Option<Address>,

    /// Our secret key, as `slackwater keys new` makes it, at both ends: for any address that is not loopback
    #[arg(long, requires = "ends", value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// The keys that may connect to the far end, as `slackwater keys allow` enters them
    #[arg(long, requires_all = ["serve", "key_file"], value_name = "FILE")]
    allow: Option<PathBuf>,

    /// What the report says of the link to the far end, such as "25 GbE, one switch"
    #[arg(long, requires = "target", value_name = "TEXT")]
    link: Option<String>,

    /// Measure between two networks on this machine whose link has this rate, such as 4gbit; over loopback, as the report then says,
    /// where none can be made (unshare, ip, tc)
    #[arg(
        long,
        conflicts_with_all = ["mover", "device", "waits", "trials", "torture", "no_rows", "python", "no_peers"],
        value_name = "RATE",
        value_parser = rate
    )]
    shaped: Option<String>,
}

/// Where a far end listens that was not told.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50061);

const MEMORY: ByteSize = ByteSize(1 << 30);

/// Both ends of a cable, each in a network of its own, made without any right of the machine: `$1` is its rate, what follows
/// the arguments of the benchmark. Whatever it starts ends with it: it is the first of its own process numbers.
const SHAPED: &str = r#"
set -eu
rate=$1 keys=$2; shift 2
unshare --net sleep infinity & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link set lo up
ip link add here type veth peer name there
ip link set there netns $other
there() { nsenter --target $other --net "$@"; }
ip address add 10.213.0.1/24 dev here
ip link set here up
there ip address add 10.213.0.2/24 dev there
there ip link set there up
tc qdisc add dev here root tbf rate "$rate" burst 1mb latency 50ms
there tc qdisc add dev there root tbf rate "$rate" burst 1mb latency 50ms
"#;

/// What follows once there is a link.
const MEASURED: &str = r#"
sw() { "$SLACKWATER" "$@"; }
sw keys new "$keys/far" >&2
sw keys allow "$keys/list" "$(sw keys new "$keys/near" | sed -n 's/^hex *//p')" >&2
mkfifo "$keys/said"
there "$SLACKWATER" bench transfer --serve --listen 10.213.0.2:50061 --key-file "$keys/far" --allow "$keys/list" > "$keys/said" &
read -r _ _ far < "$keys/said"
sw bench transfer --target "$far" --key-file "$keys/near" --link "two networks of one machine, shaped to $rate by tbf" "$@"
"#;

impl Machines {
    /// What the command does if it is not about this machine alone: the exit code.
    pub(super) fn run(&self, transfer: &Transfer) -> Result<Option<u8>> {
        if self.serve {
            return self.serve().map(Some);
        }
        if let Some(far) = &self.target {
            let across = Across {
                far: far.clone(),
                key_file: self.key_file.clone(),
                link: self.link.clone(),
            };
            return measure(transfer, &across).map(Some);
        }
        match &self.shaped {
            Some(rate) => shaped(transfer, rate).map(Some),
            None => Ok(None),
        }
    }

    fn serve(&self) -> Result<u8> {
        let interrupt = Interrupt::install()?;
        let options = ServeOptions {
            listen: self.listen.unwrap_or(LISTEN),
            key_file: self.key_file.clone(),
            allow: self.allow.clone(),
            memory: self.memory.unwrap_or(MEMORY),
        };
        let far = FarEnd::start(options, note)?;
        // The process that started this one may have closed its output.
        let mut out = std::io::stdout();
        let _ = writeln!(out, "serving at {}", far.address()).and_then(|()| out.flush());
        interrupt.wait();
        drop(far);
        Ok(code(&interrupt))
    }
}

fn measure(arguments: &Transfer, across: &Across) -> Result<u8> {
    let report = transfer::run_across(&arguments.options(ourselves("transfer-child")?), across)?;
    show(&report, &arguments.output)
}

/// Prints and keeps a report of transfers.
pub(super) fn show(report: &transfer::Report, output: &Output) -> Result<u8> {
    let (text, html) = (report.to_text(), Some(report.to_html()));
    Shown {
        text,
        html,
        ..Shown::plain("transfer", report)?
    }
    .show(output)
}

/// Runs this command again between two networks, or here over loopback with the reason in the report.
fn shaped(arguments: &Transfer, rate: &str) -> Result<u8> {
    let directory = Passing::anywhere()?;
    let keys = directory.path();
    if let Err(why) = networks(SHAPED, rate, keys, Stdio::null(), Stdio::piped()) {
        let why = why.to_string();
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        return over_loopback(
            arguments,
            &format!("loopback, not shaped: this machine gives no networks of one's own: {why}"),
        );
    }
    let script = format!("{SHAPED}{MEASURED}");
    let status = networks(&script, rate, keys, Stdio::inherit(), Stdio::inherit());
    match status {
        Ok(()) => Ok(crate::DONE),
        Err(NotMade {
            code: Some(code), ..
        }) if u8::try_from(code).is_ok() => Ok(code as u8),
        Err(error) => bail!("the run between two networks ended without a report: {error}"),
    }
}

/// Why a script did not do its work.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct NotMade {
    code: Option<i32>,
    why: String,
}

/// Runs a script with networks of its own, and this command's other arguments.
fn networks(
    script: &str,
    rate: &str,
    keys: &Path,
    out: Stdio,
    errors: Stdio,
) -> Result<(), NotMade> {
    let failed = |why: String| NotMade { code: None, why };
    let program = this_program().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("setpriv");
    // It ends with this process, and all that it starts with it.
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
    ]);
    command.args([
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        script,
        "sh",
        rate,
    ]);
    command.arg(keys).args(others(std::env::args().skip(1)));
    command
        .env("SLACKWATER", program)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors);
    let output = command
        .spawn()
        .and_then(Child::wait_with_output)
        .map_err(|error| failed(format!("setpriv: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NotMade {
        code: output.status.code(),
        why: if said.is_empty() {
            output.status.to_string()
        } else {
            said
        },
    })
}

/// The arguments of `bench transfer` without `--shaped`.
fn others(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut arguments = arguments.skip_while(|word| word != "transfer").skip(1);
    let mut others = Vec::new();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--shaped" => drop(arguments.next()),
            word if word.starts_with("--shaped=") => {}
            _ => others.push(word),
        }
    }
    others
}

/// A far end in a process of its own; killed when dropped.
struct Local(Child);

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn over_loopback(arguments: &Transfer, why: &str) -> Result<u8> {
    note(why);
    let mut command = Command::new(this_program()?);
    command
        .args(["bench", "transfer", "--serve", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut local = Local(tied::start(command).context("cannot start a far end")?);
    let mut said = String::new();
    if let Some(out) = local.0.stdout.take() {
        BufReader::new(out)
            .read_line(&mut said)
            .context("cannot listen to the far end")?;
    }
    let Some(address) = said.trim().strip_prefix("serving at ") else {
        bail!(
            "the far end on loopback did not start: it said `{}`",
            said.trim()
        );
    };
    let across = Across {
        far: far_address(address).map_err(anyhow::Error::msg)?,
        key_file: None,
        link: Some(why.to_owned()),
    };
    measure(arguments, &across)
}

fn far_address(text: &str) -> Result<Address, String> {
    let whole = match text.contains("://") {
        true => text.to_owned(),
        false => format!("tcp://{text}"),
    };
    let address: Address = whole
        .parse()
        .map_err(|error| format!("{error}; give HOST:PORT or curve://HOST:PORT/KEY"))?;
    match address.place {
        slackwater_mq::Place::Tcp { .. } => Ok(address),
        slackwater_mq::Place::Ipc(_) => {
            Err("a far end has a TCP address: give HOST:PORT or curve://HOST:PORT/KEY".to_owned())
        }
    }
}

/// A rate as `tc` reads it, of bits only: its own words for bytes differ by one letter.
fn rate(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let number = ["kbit", "mbit", "gbit"]
        .iter()
        .find_map(|unit| lower.strip_suffix(unit));
    let good = number
        .and_then(|number| number.parse::<u32>().ok())
        .is_some_and(|number| number > 0);
    good.then_some(lower)
        .ok_or_else(|| "expected a whole number and kbit, mbit or gbit, such as 4gbit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_end_is_named_by_its_place_or_by_what_it_printed() {
        assert_eq!(far_address("127.0.0.1:5"), far_address("tcp://127.0.0.1:5"));
        let key = "5".repeat(64);
        assert!(
            far_address(&format!("curve://far:5/{key}"))
                .unwrap()
                .key
                .is_some()
        );
        for wrong in ["far", "far:0", "ipc:///tmp/far", "curve://far:5"] {
            assert!(
                far_address(wrong).unwrap_err().contains("HOST:PORT"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn rates_have_a_unit_of_bits() {
        assert_eq!(rate("4Gbit"), Ok("4gbit".to_owned()));
        for wrong in [
            "4",
            "4g",
            "0mbit",
            "1.5gbit",
            "4gbps",
            "gbit",
            "4gbit; true",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_is_repeated_without_the_link() {
        let of = |line: &str| others(line.split_whitespace().map(str::to_owned)).join(" ");
        assert_eq!(
            of("bench transfer --quick --shaped 4gbit --json"),
            "--quick --json"
        );
        assert_eq!(of("bench transfer --shaped=4gbit --op read"), "--op read");
    }
}
