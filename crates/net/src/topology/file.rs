//! The file that ranks interfaces in the system's stead.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use slackwater_base::{Location, NoLocation};

use super::{Machine, Ranked};

const FILE_BYTES_MAX: u64 = 1 << 20;
const SHAPE: &str = r#"expected {"cpu:0": [["near interface", …], ["another", …]], …}"#;

/// The interfaces of each location that the file names.
pub(super) fn read(file: &Path) -> Result<BTreeMap<Location, Ranked>, String> {
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let read = opened
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(format!("more than {FILE_BYTES_MAX} bytes; {SHAPE}"));
    }
    let locations: Locations =
        serde_json::from_str(&text).map_err(|error| format!("{error}; {SHAPE}"))?;
    let mut ranked = BTreeMap::new();
    for (name, lists) in locations.0 {
        let location = name.parse().map_err(|NoLocation(name)| unknown(&name))?;
        if ranked.insert(location, lists).is_some() {
            return Err(format!("`{name}` is there twice: keep one"));
        }
    }
    Ok(ranked)
}

/// Whether the machine has all locations and interfaces, and each interface is in one list once.
pub(super) fn check(ranked: &BTreeMap<Location, Ranked>, machine: &Machine) -> Result<(), String> {
    for (location, Ranked { near, rest }) in ranked {
        check_location(*location, machine)?;
        let mut before: Vec<&str> = Vec::new();
        for name in near.iter().chain(rest) {
            if !machine.interfaces.iter().any(|one| one.name == *name) {
                let known = machine.interfaces.iter().map(|one| one.name.as_str());
                return Err(format!(
                    "{location}: this machine has no interface `{name}` (it has: {})",
                    listed(known)
                ));
            }
            if before.contains(&name.as_str()) {
                return Err(format!("{location}: `{name}` is there twice: keep one"));
            }
            before.push(name);
        }
    }
    Ok(())
}

fn check_location(location: Location, machine: &Machine) -> Result<(), String> {
    match location {
        Location::Cpu(node) if machine.nodes.iter().any(|(id, _)| id.0 == node) => Ok(()),
        Location::Cpu(node) => {
            let nodes: Vec<String> = machine.nodes.iter().map(|(id, _)| id.to_string()).collect();
            let known = listed(nodes.iter().map(String::as_str));
            Err(format!(
                "`{location}`: this machine has no NUMA node {node} (it has: {known})"
            ))
        }
        // Which GPUs a process has depends on its environment, too.
        Location::Cuda(_) => Ok(()),
        Location::Host | Location::Files | Location::Software(_) => {
            Err(unknown(&location.to_string()))
        }
    }
}

fn unknown(location: &str) -> String {
    format!(
        "`{location}` is no location with interfaces near it: write `cpu:N` for a NUMA node or `cuda:N` for a GPU"
    )
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    }
}

/// All entries of the object, a second one of a name included.
struct Locations(Vec<(String, Ranked)>);

impl<'de> Deserialize<'de> for Locations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Locations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of locations of memory")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Locations, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Locations(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
