//! A wheel that has both: the Python module as maturin built it, and the command.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::elf::Glibc;
use super::{
    Accompanying, BILL, Binary, THIRD_PARTY, install_binary, install_manual, scratch, text, write,
};
use crate::workspace::run;

/// Adds the command, its manual, the licences and the bill of materials to `wheel`, and writes it into `out`.
pub(super) fn make(
    binary: Binary<'_>,
    (wheel, with): (&Path, &Accompanying),
    python: &Path,
    out: &Path,
) -> Result<PathBuf> {
    let name = wheel
        .file_name()
        .context("--wheel names no file")?
        .to_string_lossy();
    let identity = identity(&name).with_context(|| format!("{name} is not named as wheels are"))?;
    let folder = scratch("wheel")?;
    let tool = |arguments: &[&str]| run(text(python)?, &[&["-m", "wheel"], arguments].concat());
    tool(&["unpack", "--dest", text(&folder)?, text(wheel)?])?;
    let root = folder.join(&identity);
    let (data, info) = (
        root.join(format!("{identity}.data")),
        root.join(format!("{identity}.dist-info")),
    );

    let command = data.join("scripts").join(super::NAME);
    install_binary(binary, &command)?;
    if let (Some(needed), Some(promised)) = (Glibc::needed_by(&command)?, Glibc::promised_by(&name))
    {
        ensure!(
            needed <= promised,
            "{} needs glibc {needed}, and the wheel promises to run with {promised}: build it for that one",
            binary.file.display()
        );
    }
    install_manual(binary.native.unwrap_or(&command), &data.join("data/share"))?;
    write(
        &info.join("licenses").join(THIRD_PARTY),
        with.licences.as_bytes(),
    )?;
    write(&info.join("sboms").join(BILL), with.sbom.as_bytes())?;
    let file = info.join("METADATA");
    let metadata = fs::read_to_string(&file).context("a wheel has METADATA")?;
    fs::write(
        &file,
        with_licence_file(&metadata).context("METADATA names no licence file")?,
    )?;

    fs::create_dir_all(out)?;
    tool(&["pack", "--dest-dir", text(out)?, text(&root)?])?;
    let made = out.join(&*name);
    ensure!(made.is_file(), "{} was not made", made.display());
    Ok(made)
}

/// `slackwater-0.1.0` of a wheel's name.
fn identity(wheel: &str) -> Option<String> {
    let mut parts = wheel.strip_suffix(".whl")?.split('-');
    let identity = format!("{}-{}", parts.next()?, parts.next()?);
    (parts.count() == 3).then_some(identity)
}

/// Adds our file to the licence files that the metadata names, after the last of them.
fn with_licence_file(metadata: &str) -> Option<String> {
    let start = metadata.rfind("\nLicense-File: ")? + 1;
    let end = start + metadata[start..].find('\n')? + 1;
    let (before, after) = metadata.split_at(end);
    Some(format!("{before}License-File: {THIRD_PARTY}\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_is_known_by_its_first_two_names() {
        let check = |wheel: &str, found: Option<&str>| {
            assert_eq!(identity(wheel).as_deref(), found, "{wheel}");
        };
        check(
            "slackwater-0.1.0-cp311-abi3-linux_x86_64.whl",
            Some("slackwater-0.1.0"),
        );
        check("slackwater-0.1.0.tar.gz", None);
        check("slackwater.whl", None);
    }

    #[test]
    fn our_licence_file_follows_the_others() {
        let check = |before: &str, after: Option<&str>| {
            assert_eq!(with_licence_file(before).as_deref(), after, "{before}");
        };
        check(
            "Name: x\nLicense-File: LICENSE\nRequires-Python: >=3.11\n",
            Some(
                "Name: x\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-LICENSES.txt\nRequires-Python: >=3.11\n",
            ),
        );
        check("Name: x\n", None);
    }
}
