//! `cargo run --release -p slackwater-bench --example mq [links|rpc]`: the message layer's benchmark on its own, its
//! report as JSON.

use std::io::Write;

use slackwater_bench::mq::{Options, child, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "child") {
        return Ok(child(&arguments[1..])?);
    }
    let this = std::env::current_exe()?;
    let mut options = Options { child: vec![this.into(), "child".into()], ..Options::default() };
    match arguments.first().map(String::as_str) {
        Some("links") => options.rpc_links.clear(),
        Some("rpc") => options.links.clear(),
        _ => {}
    }
    let report = run(&options)?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    Ok(())
}
