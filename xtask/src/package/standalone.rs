//! One file that runs on any Linux of its processor: the command with its C library inside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{NAME, install_binary, scratch, text, version};
use crate::workspace::{Metadata, run};

/// What is put and read back: longer than one piece of a transfer's buffers.
const TRIED_BYTES: usize = 1_000_000;

/// Puts `binary` without its symbols into `out`, once it has served, put and read a value.
pub(super) fn make(binary: &Path, metadata: &Metadata, out: &Path) -> Result<PathBuf> {
    needs_nothing(&run(
        "readelf",
        &["--wide", "--program-headers", "--dynamic", text(binary)?],
    )?)
    .with_context(|| binary.display().to_string())?;
    let (version, processor) = (version(metadata)?, std::env::consts::ARCH);
    let made = out.join(format!("{NAME}-{version}-linux-{processor}"));
    install_binary(binary.into(), &made)?;
    let tried = attempt(&made);
    if tried.is_err() {
        fs::remove_file(&made)?;
    }
    tried.context("the binary was made, and does not work")?;
    Ok(made)
}

/// Whether the headers of a binary name neither a loader nor a library.
fn needs_nothing(headers: &str) -> Result<()> {
    let of = |mark: &str| headers.lines().find(|line| line.contains(mark));
    for mark in ["INTERP", "(NEEDED)"] {
        if let Some(line) = of(mark) {
            ensure!(false, "it is not static: {}", line.trim());
        }
    }
    Ok(())
}

/// Serves a store, and puts and reads a value by the command.
fn attempt(binary: &Path) -> Result<()> {
    let folder = scratch("standalone")?;
    let (put, got) = (folder.join("put"), folder.join("got"));
    let value: Vec<u8> = (0..TRIED_BYTES).map(|at| (at % 251) as u8).collect();
    fs::write(&put, &value)?;
    let mut command = Command::new(binary.canonicalize()?);
    let arguments = [
        "serve",
        "--memory",
        "16MiB",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "none",
        "--log",
        "off",
    ];
    let mut server = Server(command.args(arguments).stdout(Stdio::piped()).spawn()?);
    let said = server.0.stdout.take().context("its output is read here")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    let address = line.trim().strip_prefix("serving at ");
    let address = address.with_context(|| format!("it says `{}`", line.trim()))?;
    let command = text(binary)?;
    run(command, &["put", "k", text(&put)?, "--connect", address])?;
    run(
        command,
        &["get", "k", "--output", text(&got)?, "--connect", address],
    )?;
    ensure!(
        fs::read(&got)? == value,
        "what it reads is not what was put"
    );
    Ok(())
}

/// Ends with its owner.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_needs_a_loader_or_a_library_is_not_static() {
        let check = |headers: &str, good: bool| {
            assert_eq!(needs_nothing(headers).is_ok(), good, "{headers}");
        };
        check("  LOAD  0x0\n  GNU_STACK 0x0\n", true);
        check("  INTERP  0x318\n", false);
        check(" 0x01 (NEEDED)  Shared library: [libc.so.6]\n", false);
    }

    #[test]
    fn a_binary_that_does_not_serve_is_told() {
        let error = attempt(Path::new("/bin/true")).unwrap_err();
        assert!(error.to_string().contains("it says ``"), "{error:#}");
    }
}
