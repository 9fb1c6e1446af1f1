//! A Debian package of the command and its services.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::elf::Glibc;
use super::{
    Accompanying, BILL, COMMAND, NAME, install_binary, install_manual, scratch, text, version,
    write,
};
use crate::workspace::{Metadata, run};

/// The units and what they need, by the place that they are installed to.
const INSTALLED: &[(&str, &str)] = &[
    (
        "deploy/systemd/slackwater.service",
        "usr/lib/systemd/system/slackwater.service",
    ),
    (
        "deploy/systemd/slackwater-master.service",
        "usr/lib/systemd/system/slackwater-master.service",
    ),
    (
        "deploy/systemd/slackwater-node.service",
        "usr/lib/systemd/system/slackwater-node.service",
    ),
    (
        "deploy/systemd/slackwater.sysusers",
        "usr/lib/sysusers.d/slackwater.conf",
    ),
];

/// Files that belong to the machine's owner once they are there.
const SETTINGS: &[(&str, &str)] = &[
    ("deploy/systemd/serve.env", "etc/slackwater/serve.env"),
    ("deploy/systemd/master.env", "etc/slackwater/master.env"),
    ("deploy/systemd/node.env", "etc/slackwater/node.env"),
];

/// Scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Packs `binary` and writes the package into `out`.
pub(super) fn make(binary: &Path, metadata: &Metadata, out: &Path) -> Result<PathBuf> {
    let version = version(metadata)?;
    let architecture = architecture(std::env::consts::ARCH)?;
    let folder = scratch("deb")?;
    let root = folder.join(NAME);

    let command = root.join("usr/bin").join(NAME);
    install_binary(binary.into(), &command)?;
    install_manual(&command, &root.join("usr/share"))?;
    compress(&root.join("usr/share/man/man1"))?;
    // Debian's zsh looks for the scripts of packages elsewhere than zsh's own installation does.
    let functions = root.join("usr/share/zsh/vendor-completions");
    fs::rename(root.join("usr/share/zsh/site-functions"), functions)?;
    for (from, to) in INSTALLED.iter().chain(SETTINGS) {
        let content = fs::read(from).with_context(|| format!("cannot read {from}"))?;
        write(&root.join(to), &content)?;
    }
    let with = Accompanying::gather(metadata, COMMAND)?;
    let documents = root.join("usr/share/doc").join(NAME);
    let licence = fs::read_to_string("LICENSE").context("cannot read LICENSE")?;
    write(
        &documents.join("copyright"),
        format!("{licence}\n{}", with.licences).as_bytes(),
    )?;
    write(&documents.join(BILL), with.sbom.as_bytes())?;

    let control = root.join("DEBIAN");
    for script in SCRIPTS {
        let path = control.join(script);
        write(&path, &fs::read(Path::new("deploy/debian").join(script))?)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let settings: String = SETTINGS.iter().map(|(_, to)| format!("/{to}\n")).collect();
    write(&control.join("conffiles"), settings.as_bytes())?;
    let depends = depends(
        Glibc::needed_by(&command)?,
        &run("readelf", &["--wide", "--dynamic", text(&command)?])?,
    );
    let size = kibibytes(&root)?;
    write(
        &control.join("control"),
        control_file(version, architecture, &depends, size).as_bytes(),
    )?;

    fs::create_dir_all(out)?;
    let made = out.join(format!("{NAME}_{version}_{architecture}.deb"));
    run(
        "dpkg-deb",
        &["--root-owner-group", "--build", text(&root)?, text(&made)?],
    )?;
    Ok(made)
}

/// What Debian calls a processor.
fn architecture(ours: &str) -> Result<&'static str> {
    match ours {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no Debian architecture is known for {other}"),
    }
}

/// The packages whose libraries a binary loads, by its dynamic section.
fn depends(glibc: Option<Glibc>, dynamic: &str) -> String {
    let libc = glibc.map(|glibc| format!("libc6 (>= {glibc})"));
    let unwinder = dynamic
        .contains("[libgcc_s.so.1]")
        .then(|| "libgcc-s1".to_owned());
    libc.into_iter()
        .chain(unwinder)
        .collect::<Vec<_>>()
        .join(", ")
}

fn control_file(version: &str, architecture: &str, depends: &str, size: u64) -> String {
    format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Slackwater <slackwater@localhost>\n\
         Depends: {depends}\nRecommends: systemd\nInstalled-Size: {size}\nSection: database\nPriority: optional\n\
         Description: tiered store for the KV cache of LLM serving\n \
         Keeps blocks in DRAM and on SSD and moves them between the two while they\n \
         are in use. Contains the command slackwater, and services for a store of\n \
         one machine and for the master and the nodes of a pool.\n"
    )
}

/// Debian wants manual pages compressed, the same for the same page.
fn compress(pages: &Path) -> Result<()> {
    for page in fs::read_dir(pages)? {
        run("gzip", &["-9", "--no-name", text(&page?.path())?])?;
    }
    Ok(())
}

/// The size of all files below a folder, each rounded up.
fn kibibytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() {
            kibibytes(&entry.path())?
        } else {
            entry.metadata()?.len().div_ceil(1024)
        };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_the_fields_that_dpkg_needs() {
        let glibc = Glibc::promised_by("manylinux_2_28_x86_64");
        let text = control_file("1.2.3", "amd64", &depends(glibc, ""), 42);
        for field in [
            "Package: slackwater\n",
            "Version: 1.2.3\n",
            "Architecture: amd64\n",
            "Maintainer: ",
            "\nDepends: libc6 (>= 2.28)\n",
            "\nInstalled-Size: 42\n",
            "\nDescription: ",
        ] {
            assert!(text.contains(field), "{field}: {text}");
        }
        // Lines after the description's first begin with a blank, and a field stands on one line.
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with("Description"));
        assert!(lines.skip(1).all(|line| line.starts_with(' ')), "{text}");
    }

    #[test]
    fn a_package_depends_on_what_its_binary_loads() {
        let glibc = Glibc::promised_by("manylinux_2_28_x86_64");
        let loaded = " (NEEDED)  Shared library: [libgcc_s.so.1]";
        assert_eq!(depends(glibc, loaded), "libc6 (>= 2.28), libgcc-s1");
        assert_eq!(
            depends(glibc, " (NEEDED)  Shared library: [libc.so.6]"),
            "libc6 (>= 2.28)"
        );
    }

    #[test]
    fn processors_have_other_names_at_debian() {
        assert_eq!(architecture("x86_64").unwrap(), "amd64");
        assert_eq!(architecture("aarch64").unwrap(), "arm64");
        assert!(architecture("riscv64").is_err());
    }

    #[test]
    fn sizes_are_rounded_up_file_by_file() {
        let folder = std::env::temp_dir().join(format!("sizes-{}", std::process::id()));
        write(&folder.join("a/b"), &[0; 1025]).unwrap();
        write(&folder.join("c"), &[0; 1]).unwrap();
        let size = kibibytes(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(size, 3);
    }
}
