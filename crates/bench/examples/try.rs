//! Scratch.
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    match a[1].as_str() {
        "pool" => {
            let mut o = slackwater_bench::pool::Options::default();
            if let Some(t) = a.get(2) {
                o.threads = t.split(',').map(|x| x.parse().unwrap()).collect();
            }
            if let Some(t) = a.get(3) {
                o.tasks = t.split(',').map(|x| Duration::from_micros(x.parse().unwrap())).collect();
            }
            if let Some(t) = a.get(4) {
                o.gaps = t.split(',').map(|x| Duration::from_micros(x.parse().unwrap())).collect();
            }
            if let Some(t) = a.get(5) {
                o.rounds = t.parse().unwrap();
            }
            let r = slackwater_bench::pool::run(&o).unwrap();
            println!("{}", r.to_text());
            for x in &r.ratios {
                println!("{}", serde_json::to_string(x).unwrap());
            }
        }
        "wait" => {
            let mut o = slackwater_bench::wait::Options::default();
            if let Some(t) = a.get(2) {
                o.concurrency = t.split(',').map(|x| x.parse().unwrap()).collect();
            }
            if let Some(t) = a.get(3) {
                o.rounds = t.parse().unwrap();
            }
            if let Some(t) = a.get(4) {
                o.idle = Duration::from_secs(t.parse().unwrap());
            }
            let r = slackwater_bench::wait::run(&o).unwrap();
            println!("{}", r.to_text());
            for x in &r.ratios {
                println!("{}", serde_json::to_string(x).unwrap());
            }
        }
        _ => {}
    }
}
