//! `slackwater doctor`: what the machine offers, what is missing, and what to do about it.

mod checks;
mod facts;

use anyhow::Result;
use serde::Serialize;

use crate::answer;
use crate::args::Doctor;
use crate::config::Layers;
use crate::{DONE, WRONG};
use checks::{Check, Verdict, examine};
use facts::Facts;

pub(crate) fn run(arguments: &Doctor, layers: &Layers) -> Result<u8> {
    // A size of SSD without a directory is a fair question to a doctor: it is asked of the working directory.
    let mut config = match layers.load() {
        Ok(config) => config,
        Err(_) => layers.with("dir", ".").load()?,
    };
    config.default_to("dir", ".").map_err(anyhow::Error::msg)?;
    let checks = examine(&Facts::gather(&config), &config);
    let worst = checks
        .iter()
        .map(|check| check.verdict)
        .max()
        .unwrap_or(Verdict::Ok);
    if arguments.json {
        let findings = Findings {
            verdict: worst,
            checks: &checks,
        };
        answer::say(serde_json::to_string(&findings)?)?;
    } else {
        answer::write(listed(&checks).as_bytes())?;
    }
    Ok(if worst == Verdict::Fail { WRONG } else { DONE })
}

#[derive(Serialize)]
struct Findings<'a> {
    verdict: Verdict,
    checks: &'a [Check],
}

fn listed(checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        out.push_str(&format!(
            "{:<4}  {:<width$}  {}\n",
            check.verdict.word(),
            check.name,
            check.found
        ));
        if let Some(advice) = &check.advice {
            out.push_str(&format!("{:<4}  {:<width$}  → {advice}\n", "", ""));
        }
    }
    out
}
