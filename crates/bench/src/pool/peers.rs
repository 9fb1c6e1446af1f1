//! Other pools: rayon in this process, OpenMP and oneTBB as programs compiled for the run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::bursts::{Bursts, Times};
use super::samples::Samples;
use crate::tied;

/// A program that runs bursts.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    env: Vec<(&'static str, &'static str)>,
}

/// The sources, compiled where the benchmark runs.
const SOURCES: [(&str, &str); 3] = [
    ("bursts.h", include_str!("../../peers/bursts.h")),
    ("openmp.c", include_str!("../../peers/openmp.c")),
    ("tbb.cpp", include_str!("../../peers/tbb.cpp")),
];

/// The directory of the peers: their sources, and what is compiled of them.
#[derive(Debug)]
pub(crate) struct Workshop(PathBuf);

impl Workshop {
    pub(crate) fn new(directory: &Path) -> std::io::Result<Self> {
        let directory = std::path::absolute(directory)?;
        for (name, source) in SOURCES {
            std::fs::write(directory.join(name), source)?;
        }
        Ok(Self(directory))
    }

    /// OpenMP of the C compiler, with this wait policy.
    pub(crate) fn openmp(&self, policy: &'static str) -> Result<Program, String> {
        let path = self.compile("cc", "openmp.c", &["-O2", "-fopenmp"])?;
        // A user's own settings would make the two rows equal.
        Ok(Program {
            path,
            env: vec![("OMP_WAIT_POLICY", policy), ("OMP_DYNAMIC", "false")],
        })
    }

    /// oneTBB, where its headers and library are installed.
    pub(crate) fn tbb(&self) -> Result<Program, String> {
        let path = self.compile("c++", "tbb.cpp", &["-O2", "-std=c++17", "-ltbb"])?;
        Ok(Program {
            path,
            env: Vec::new(),
        })
    }

    fn compile(&self, compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
        let target = self.0.join(source.replace('.', "-"));
        if target.exists() {
            return Ok(target);
        }
        let mut command = Command::new(compiler);
        command
            // Where the run is killed, what the compiler has started does not hear of it, and leaves its files there.
            .env("TMPDIR", &self.0)
            .arg("-o")
            .arg(&target)
            .arg(self.0.join(source))
            .args(flags);
        let output = tied::output(command);
        let output = output.map_err(|error| format!("no compiler `{compiler}`: {error}"))?;
        if output.status.success() {
            return Ok(target);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let first = errors
            .lines()
            .find(|line| line.contains("error"))
            .or_else(|| errors.lines().next());
        Err(format!(
            "`{compiler}` could not build it: {}",
            first.unwrap_or("no message").trim()
        ))
    }
}

impl Program {
    pub(crate) fn run(&self, threads: usize, bursts: &Bursts) -> Result<Times, String> {
        let mut command = Command::new(&self.path);
        let numbers = [bursts.steps, bursts.gap.as_nanos() as u64];
        command
            .envs(self.env.iter().copied())
            .arg(threads.to_string())
            .args(numbers.map(|n| n.to_string()));
        command.args([bursts.tokens, bursts.layers, bursts.warmup].map(|n| n.to_string()));
        command.args(bursts.tasks.iter().map(usize::to_string));
        let output =
            tied::output(command).map_err(|error| format!("could not be started: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "{}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let times = parse(&String::from_utf8_lossy(&output.stdout), bursts.tasks.len());
        times.ok_or_else(|| "gave no times".to_owned())
    }
}

/// Reads `wall cpu`, the samples and then one length a line, all times in nanoseconds; so many lengths are a layer.
fn parse(text: &str, layer: usize) -> Option<Times> {
    let mut lines = text.lines();
    let (wall, cpu) = lines.next()?.split_once(' ')?;
    let nanos = |text: &str| text.trim().parse().ok().map(Duration::from_nanos);
    let counts = lines
        .next()?
        .split_whitespace()
        .map(|word| word.parse().ok());
    let counts: Vec<u64> = counts.collect::<Option<_>>()?;
    let [compute, clock, rest] = counts[..] else {
        return None;
    };
    let lengths: Vec<Duration> = lines.map(nanos).collect::<Option<_>>()?;
    Some(Times {
        wall: nanos(wall)?,
        cpu: nanos(cpu)?,
        layers: lengths.len() / layer,
        lengths,
        samples: Some(Samples {
            compute,
            clock,
            rest,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_program_are_read_and_nonsense_is_not() {
        let times = parse("100 200\n7 8 9\n30\n40\n", 2).unwrap();
        let samples = Samples {
            compute: 7,
            clock: 8,
            rest: 9,
        };
        assert_eq!(
            (
                times.wall.as_nanos(),
                times.cpu.as_nanos(),
                times.lengths.len(),
                times.layers,
                times.samples,
            ),
            (100, 200, 2, 1, Some(samples))
        );
        for nonsense in ["", "100\n", "1 2\n1 2\n", "1 2\n1 2 3\nx\n"] {
            assert!(parse(nonsense, 2).is_none(), "{nonsense}");
        }
    }
}
