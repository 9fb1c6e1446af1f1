//! `slackwater topology`: which network interfaces are near which memory.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use comfy_table::{Table, presets};
use serde_json::{Value, json};
use slackwater_net::{Interface, Machine, Topology};

use crate::DONE;
use crate::answer::say;
use crate::printable::printable;

/// See [`crate::args::Command::Topology`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Show {
    /// JSON file that ranks interfaces in the system's stead, checked against this machine
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print one JSON object on standard output instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &Show) -> Result<u8> {
    let mut topology = Topology::of_system()?;
    if let Some(file) = &arguments.file {
        topology = topology.ranked_by(file)?;
    }
    match arguments.json {
        true => say(object(&topology))?,
        false => say(tables(&topology))?,
    }
    Ok(DONE)
}

fn object(topology: &Topology) -> Value {
    let machine = &topology.machine;
    let interface = |one: &Interface| {
        json!({
            "name": one.name, "node": one.node.map(|node| node.0), "speed_mbits": one.speed, "state": one.state,
            "addresses": one.addresses, "rdma": rdma_of(machine, &one.name),
        })
    };
    let interfaces: Vec<Value> = machine.interfaces.iter().map(interface).collect();
    let nodes = machine.nodes.iter();
    let nodes: Vec<Value> = nodes
        .map(|(node, cpus)| json!({ "node": node.0, "cpus": cpus }))
        .collect();
    let rdma = machine.rdma.iter();
    let rdma: Vec<Value> = rdma
        .map(|one| json!({ "name": one.name, "node": one.node.map(|node| node.0) }))
        .collect();
    let gpus = machine.gpus.iter();
    let gpus: Vec<Value> = gpus
        .map(|gpu| {
            let node = gpu.node.map(|node| node.0);
            json!({ "location": gpu.location().to_string(), "pci": gpu.address, "node": node })
        })
        .collect();
    json!({
        "nodes": nodes, "interfaces": interfaces, "rdma": rdma, "gpus": gpus, "locations": topology.by_name(),
        "without_addresses": topology.without_addresses,
    })
}

fn tables(topology: &Topology) -> String {
    let machine = &topology.machine;
    let locations = topology.locations.iter().map(|(location, ranked)| {
        let pci = machine.gpus.iter().find(|gpu| gpu.location() == *location);
        let named = pci.map_or(location.to_string(), |gpu| {
            format!("{location} ({})", gpu.address)
        });
        vec![named, listed(&ranked.near), listed(&ranked.rest)]
    });
    let interfaces = machine.interfaces.iter().map(|one| {
        let addresses: Vec<String> = one.addresses.iter().map(ToString::to_string).collect();
        vec![
            one.name.clone(),
            one.node
                .map_or("unknown".to_owned(), |node| node.to_string()),
            one.speed
                .map_or("unknown".to_owned(), |mbits| format!("{mbits} Mbit/s")),
            one.state.clone(),
            listed(&addresses),
            listed(&rdma_of(machine, &one.name)),
        ]
    });
    let locations = table(&["memory", "near", "rest"], locations.collect());
    let head = [
        "interface",
        "NUMA node",
        "speed",
        "state",
        "addresses",
        "RDMA",
    ];
    let interfaces = match machine.interfaces.is_empty() {
        true => "no network interface has hardware or an address".to_owned(),
        false => table(&head, interfaces.collect()).to_string(),
    };
    match &topology.without_addresses {
        Some(why) => format!("{locations}\n{interfaces}\n{why}"),
        None => format!("{locations}\n{interfaces}"),
    }
}

fn rdma_of(machine: &Machine, interface: &str) -> Vec<String> {
    let devices = machine.rdma.iter();
    devices
        .filter(|device| device.interfaces.iter().any(|name| name == interface))
        .map(|device| device.name.clone())
        .collect()
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(head);
    for row in rows {
        // Names of interfaces are those that somebody gave them.
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    table
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        some => some.join(", "),
    }
}
