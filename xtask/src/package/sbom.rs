//! The software bill of materials, as CycloneDX 1.5 in JSON: the same for the same lock file.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::vendored::Vendored;
use super::{Contents, NAME, version};
use crate::workspace::{Metadata, Package};

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Everything that `shipped` names, with its licence, its checksum, and what it is built from.
pub(super) fn render(metadata: &Metadata, shipped: &[&Package], of: Contents) -> Result<String> {
    let lock = fs::read_to_string("Cargo.lock").context("cannot read Cargo.lock")?;
    let lock: Lock = toml::from_str(&lock).context("Cargo.lock is not what was expected")?;
    let checksums: BTreeMap<_, _> = lock
        .package
        .into_iter()
        .filter_map(|locked| Some(((locked.name, locked.version), locked.checksum?)))
        .collect();
    let whole = format!("pkg:pypi/{NAME}@{}", version(metadata)?);
    let faces = shipped
        .iter()
        .filter(|package| of.faces.contains(&package.name.as_str()));
    let mut dependencies = vec![json!({
        "ref": whole,
        "dependsOn": faces.map(|face| reference(face)).collect::<Vec<_>>(),
    })];
    dependencies.extend(shipped.iter().map(|package| {
        let below = metadata.built_from(package);
        let below = below.filter(|other| shipped.iter().any(|package| package.id == other.id));
        json!({ "ref": reference(package), "dependsOn": below.map(reference).collect::<Vec<_>>() })
    }));
    let alone = of
        .vendored
        .iter()
        .map(|part| json!({ "ref": part.purl, "dependsOn": [] }));
    dependencies.extend(alone);
    let components: Vec<Value> = shipped
        .iter()
        .map(|package| component(package, &checksums))
        .chain(of.vendored.iter().map(part))
        .collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": whole,
            "name": NAME,
            "version": version(metadata)?,
            "purl": whole,
            "licenses": [{ "expression": "Apache-2.0" }],
        } },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

fn part(part: &Vendored) -> Value {
    json!({
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "licenses": [{ "expression": part.licence }],
    })
}

fn component(package: &Package, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    });
    if let Some(licence) = &package.license {
        // Before there were expressions, a slash stood for a choice.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(checksum) = checksums.get(&(package.name.clone(), package.version.clone())) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{COMMAND, LIBRARY, WHEEL, metadata, shipped};
    use super::*;

    fn listed(features: &str, of: Contents) -> Value {
        let given = [("features", features.into())].into();
        let metadata = metadata(&given, of).unwrap();
        let shipped = shipped(&metadata, of).unwrap();
        serde_json::from_str(&render(&metadata, &shipped, of).unwrap()).unwrap()
    }

    fn root() {
        // Tests run in the folder of the crate, the command in that of the workspace.
        let _ = std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    }

    #[test]
    fn every_crate_is_there_once_with_its_licence_and_checksum_and_every_arrow_ends_at_one() {
        root();
        let bill = listed("", WHEEL);
        let components = bill["components"].as_array().unwrap();
        let references: BTreeSet<&str> = components
            .iter()
            .map(|component| component["bom-ref"].as_str().unwrap())
            .collect();
        assert_eq!(references.len(), components.len());
        assert!(components.len() > 100, "{}", components.len());
        for component in components {
            assert!(
                component["licenses"][0]["expression"].is_string(),
                "{component}"
            );
            let name = component["name"].as_str().unwrap();
            let ours = name.starts_with("slackwater-")
                || WHEEL.vendored.iter().any(|part| part.name == name);
            let checksum = component["hashes"][0]["content"].as_str();
            assert_eq!(checksum.map(str::len), (!ours).then_some(64), "{component}");
        }
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), components.len() + 1);
        assert_eq!(
            dependencies[0]["dependsOn"].as_array().unwrap().len(),
            WHEEL.faces.len()
        );
        let ends = dependencies
            .iter()
            .flat_map(|line| line["dependsOn"].as_array().unwrap());
        for end in ends {
            assert!(references.contains(end.as_str().unwrap()), "{end}");
        }
        let of = |name: &str| {
            let line = dependencies.iter().find(|line| {
                line["ref"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("pkg:cargo/{name}@"))
            });
            line.unwrap()["dependsOn"].to_string()
        };
        assert!(of("slackwater-cli").contains("pkg:cargo/clap@"));
        // What only tests need is not shipped.
        assert!(!of("slackwater-cli").contains("pkg:cargo/insta@"));
        // Nor is a crate built from what only its tests need, though others are.
        assert!(
            references
                .iter()
                .any(|crates| crates.starts_with("pkg:cargo/tempfile@"))
        );
        assert!(!of("slackwater-node").contains("pkg:cargo/tempfile@"));
    }

    #[test]
    fn a_list_is_of_what_was_built_and_of_no_more() {
        root();
        let check = |features: &str, of: Contents, expected: [bool; 4]| {
            let bill = listed(features, of).to_string();
            let names = [
                "pkg:cargo/clap@",
                "pkg:cargo/pyo3@",
                "pkg:npm/uplot@",
                "pkg:cargo/opentelemetry_sdk@",
            ];
            assert_eq!(
                names.map(|name| bill.contains(name)),
                expected,
                "{features}"
            );
        };
        check("", WHEEL, [true, true, true, false]);
        check("otel", WHEEL, [true, true, true, true]);
        check("", COMMAND, [true, false, true, false]);
        check("otel", COMMAND, [true, false, true, true]);
        check("", LIBRARY, [false; 4]);
    }
}
