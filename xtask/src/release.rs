//! The checklist of a release: `cargo xtask release --dry-run` walks it. Every step is looked at, also behind one that
//! failed; what only people can do is printed at the end. Nothing is changed and nothing leaves the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Metadata, run};
use crate::{book, deps, figures, homes, layers, links, package, tidy, words};

/// The commit whose checks and tests all passed, as `make test` notes it.
const TESTED: &str = "target/.tested";
/// Where packages are left.
const DIST: &str = "dist";
/// Where `make docs` leaves the site.
const SITE: &str = "target/book/site";

/// What a package must hold beside the module or the units.
const IN_WHEEL: &[&str] = &[
    ".data/scripts/slackwater",
    ".data/data/share/man/man1/slackwater.1",
    ".dist-info/licenses/THIRD-PARTY-LICENSES.txt",
    ".dist-info/sboms/slackwater.cdx.json",
];
/// What the package `mooncake` must hold, which runs on that wheel.
const IN_DROP_IN: &[&str] = &[
    "mooncake.py",
    ".dist-info/METADATA",
    ".dist-info/entry_points.txt",
    ".dist-info/RECORD",
];
const IN_DEBIAN: &[&str] = &[
    "/usr/bin/slackwater",
    "/usr/lib/systemd/system/slackwater.service",
    "/usr/lib/systemd/system/slackwater-master.service",
    "/usr/lib/systemd/system/slackwater-node.service",
    "/usr/share/man/man1/slackwater.1.gz",
    "/usr/share/doc/slackwater/copyright",
    "/usr/share/doc/slackwater/slackwater.cdx.json",
];

/// `cargo xtask release --dry-run`.
pub(crate) fn walk(arguments: &[String]) -> Result<Vec<String>> {
    ensure!(
        arguments == ["--dry-run"],
        "usage: cargo xtask release --dry-run; the release itself is made by hand, as its last lines say"
    );
    let metadata = Metadata::read()?;
    let version = package::version(&metadata)?;
    let steps: [(&str, Result<String>); 12] = [
        ("clean tree", clean()),
        ("branch", on_main()),
        ("versions", versions(&metadata, version)),
        ("changelog", changelog(version)),
        ("tag", tag(version)),
        ("checks of the house", house()),
        ("tests", tested()),
        ("licences and SBOM", materials(&metadata)),
        ("wheel", wheel("slackwater", version, IN_WHEEL)),
        (
            "wheel of `mooncake`",
            wheel("slackwater_mooncake", version, IN_DROP_IN),
        ),
        ("Debian package", debian(version)),
        ("documents", documents()),
    ];
    told(&steps, version)
}

/// The steps and how each went; an error where one failed.
fn told(steps: &[(&str, Result<String>)], version: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (name, outcome) in steps {
        let (word, said) = match outcome {
            Ok(found) => ("ok    ", found.clone()),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        lines.push(format!(
            "{word}  {name:<20}  {}",
            said.replace('\n', "\n        ")
        ));
    }
    let failed = steps.iter().filter(|(_, outcome)| outcome.is_err()).count();
    if failed > 0 {
        let count = steps.len();
        bail!(
            "{}\n{failed} of {count} steps failed: there is nothing to release yet",
            lines.join("\n")
        );
    }
    lines.push(format!("left to do by hand for {version}:"));
    let by_hand = [
        "read the changelog once more, and set the day of the release behind its heading"
            .to_owned(),
        format!("git tag --sign v{version} && git push origin v{version}"),
        format!("upload what is in {DIST}, with its SHA-256 sums"),
        "build the container from the wheel, and push it; set its tag in the chart".to_owned(),
        format!("publish {SITE}"),
        "raise the version, and begin its heading in the changelog".to_owned(),
    ];
    lines.extend(by_hand.iter().map(|what| format!("  - {what}")));
    Ok(lines)
}

fn clean() -> Result<String> {
    let changed = run("git", &["status", "--porcelain"])?;
    ensure!(
        changed.is_empty(),
        "commit or remove these:\n{}",
        changed.trim_end()
    );
    Ok("everything is committed".to_owned())
}

fn on_main() -> Result<String> {
    let branch = run("git", &["branch", "--show-current"])?;
    ensure!(
        branch.trim() == "main",
        "releases are made from main, not from `{}`",
        branch.trim()
    );
    Ok("main".to_owned())
}

fn versions(metadata: &Metadata, version: &str) -> Result<String> {
    let mut places: Vec<(String, String)> = metadata
        .members()
        .map(|member| (member.name.clone(), member.version.clone()))
        .collect();
    let chart = "deploy/helm/slackwater/Chart.yaml";
    let text = fs::read_to_string(chart).context(chart)?;
    for name in ["version", "appVersion"] {
        places.push((format!("{chart}: {name}"), of_yaml(&text, name)));
    }
    let project = "python/mooncake/pyproject.toml";
    let text = fs::read_to_string(project).context(project)?;
    let table: toml::Table = text.parse().context(project)?;
    let found = table
        .get("project")
        .and_then(|project| project.get("version"));
    let found = found.and_then(toml::Value::as_str).unwrap_or_default();
    places.push((project.to_owned(), found.to_owned()));
    agree(version, &places)
}

fn agree(version: &str, places: &[(String, String)]) -> Result<String> {
    let others: Vec<String> = places
        .iter()
        .filter(|(_, found)| found != version)
        .map(|(place, found)| format!("{place}: `{found}`"))
        .collect();
    ensure!(
        others.is_empty(),
        "not {version} everywhere:\n{}",
        others.join("\n")
    );
    Ok(format!("{version} in {} places", places.len()))
}

/// The value of a name at the beginning of a line, without quotes.
fn of_yaml(text: &str, name: &str) -> String {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value
        .unwrap_or_default()
        .trim()
        .trim_matches('"')
        .to_owned()
}

fn changelog(version: &str) -> Result<String> {
    let file = "CHANGELOG.md";
    entry(&fs::read_to_string(file).context(file)?, version)
}

/// The version's entry must be the first, and say something.
fn entry(text: &str, version: &str) -> Result<String> {
    let mut entries = text.split("\n## ").skip(1);
    let first = entries.next().context("the changelog has no version")?;
    let (heading, body) = first.split_once('\n').unwrap_or((first, ""));
    let named = heading.split_whitespace().next().unwrap_or_default();
    ensure!(
        named == version,
        "its first version is `{named}`, not {version}"
    );
    let facts = body.lines().filter(|line| line.starts_with("- ")).count();
    ensure!(facts > 0, "the entry of {version} says nothing");
    Ok(format!("{facts} entries for {version}"))
}

fn tag(version: &str) -> Result<String> {
    let tag = format!("v{version}");
    let tags = run("git", &["tag", "--list", &tag])?;
    ensure!(
        tags.trim().is_empty(),
        "{tag} is there already: raise the version"
    );
    Ok(format!("{tag} is free"))
}

fn house() -> Result<String> {
    run("cargo", &["fmt", "--all", "--", "--check"]).context("cargo fmt --all")?;
    let checks = [
        layers::check,
        tidy::check,
        words::check,
        homes::check,
        deps::check,
        figures::check,
        links::check,
    ];
    let mut told = Vec::new();
    for check in checks {
        told.extend(check()?);
    }
    Ok(told.join("\n"))
}

fn tested() -> Result<String> {
    let head = run("git", &["rev-parse", "HEAD"])?;
    same_commit(head.trim(), fs::read_to_string(TESTED).ok().as_deref())
}

fn same_commit(head: &str, tested: Option<&str>) -> Result<String> {
    match tested.map(str::trim) {
        Some(tested) if tested == head => Ok(format!("`make test` passed at {head}")),
        Some(tested) => bail!("`make test` passed at {tested}, and this is {head}: run it again"),
        None => bail!("`make test` has not passed here: run it at {head}"),
    }
}

fn materials(metadata: &Metadata) -> Result<String> {
    let (licences, bill) = package::accompanying(metadata)?;
    let parsed: serde_json::Value = serde_json::from_str(&bill)?;
    let listed = parsed["components"].as_array().map_or(0, Vec::len);
    ensure!(listed > 0, "the bill of materials lists nothing");
    Ok(format!(
        "{listed} components, {} bytes of licences",
        licences.len()
    ))
}

fn wheel(package: &str, version: &str, needed: &[&str]) -> Result<String> {
    let file = packed(
        |name| name.starts_with(&format!("{package}-{version}-")) && name.ends_with(".whl"),
        "make wheel",
    )?;
    let listing = run(
        "python3",
        &["-m", "zipfile", "--list", &file.to_string_lossy()],
    )?;
    holds(&listing, needed)?;
    Ok(file.display().to_string())
}

fn debian(version: &str) -> Result<String> {
    let file = packed(
        |name| name.starts_with(&format!("slackwater_{version}")) && name.ends_with(".deb"),
        "make deb",
    )?;
    let listing = run("dpkg-deb", &["--contents", &file.to_string_lossy()])?;
    holds(&listing, IN_DEBIAN)?;
    Ok(file.display().to_string())
}

/// The package of this name that was made after the last commit.
fn packed(named: impl Fn(&str) -> bool, command: &str) -> Result<PathBuf> {
    let mut found = None;
    for entry in fs::read_dir(DIST).into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if named(&name) {
            found = Some(path);
        }
    }
    let file = found.with_context(|| format!("there is none in {DIST}: {command}"))?;
    newer(&file, command)?;
    Ok(file)
}

/// Whether a file was written after the last commit.
fn newer(file: &Path, command: &str) -> Result<()> {
    let seconds = run("git", &["show", "--no-patch", "--format=%ct", "HEAD"])?;
    let committed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.trim().parse()?);
    let written = fs::metadata(file)?.modified()?;
    ensure!(
        written >= committed,
        "{} is older than the last commit: {command}",
        file.display()
    );
    Ok(())
}

/// Whether a listing has a line that ends with each of these.
fn holds(listing: &str, needed: &[&str]) -> Result<()> {
    let has = |end: &str| {
        let mut words = listing.split_whitespace();
        words.any(|word| word.ends_with(end))
    };
    let missing: Vec<&str> = needed.iter().copied().filter(|end| !has(end)).collect();
    ensure!(missing.is_empty(), "it lacks {}", missing.join(", "));
    Ok(())
}

fn documents() -> Result<String> {
    let start = Path::new(SITE).join("index.html");
    ensure!(start.exists(), "there is no site: make docs");
    newer(&start, "make docs")?;
    Ok(book::check_site(Path::new(SITE))?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is good or, if not, that it says why.
    fn check(outcome: Result<String>, expected: Result<&str, &str>) {
        let (outcome, words) = match (outcome, expected) {
            (Ok(said), Ok(words)) => (said, words),
            (Err(error), Err(words)) => (format!("{error:#}"), words),
            (outcome, expected) => panic!("{outcome:?} is not {expected:?}"),
        };
        assert!(outcome.contains(words), "{outcome} does not say {words}");
    }

    #[test]
    fn one_version_that_differs_fails() {
        let places = |versions: &[&str]| -> Vec<(String, String)> {
            let numbered = versions.iter().enumerate();
            numbered
                .map(|(place, version)| (format!("p{place}"), (*version).to_owned()))
                .collect()
        };
        check(agree("1.2.0", &places(&["1.2.0", "1.2.0"])), Ok("2 places"));
        check(
            agree("1.2.0", &places(&["1.2.0", "1.1.0"])),
            Err("p1: `1.1.0`"),
        );
        check(agree("1.2.0", &places(&[""])), Err("p0: ``"));
        assert_eq!(
            of_yaml(
                "name: x\nversion: 1.2.0\nappVersion: \"1.3.0\"\n",
                "version"
            ),
            "1.2.0"
        );
        assert_eq!(
            of_yaml("version: 1.2.0\nappVersion: \"1.3.0\"\n", "appVersion"),
            "1.3.0"
        );
        assert_eq!(of_yaml("name: x\n", "version"), "");
    }

    #[test]
    fn the_changelog_begins_with_the_version() {
        let log = "# Changes\n\n## 1.2.0\n\n- one\n- two\n\n## 1.1.0\n\n- old\n";
        check(entry(log, "1.2.0"), Ok("2 entries"));
        check(entry(log, "1.1.0"), Err("first version is `1.2.0`"));
        check(
            entry("# Changes\n\n## 1.2.0 (1 May)\n\n- one\n", "1.2.0"),
            Ok("1 entries"),
        );
        check(
            entry("# Changes\n\n## 1.2.0\n\n## 1.1.0\n\n- old\n", "1.2.0"),
            Err("says nothing"),
        );
        check(entry("# Changes\n", "1.2.0"), Err("no version"));
    }

    #[test]
    fn tests_count_for_the_commit_that_they_ran_at() {
        check(same_commit("abc", Some("abc\n")), Ok("passed at abc"));
        check(same_commit("abc", Some("def\n")), Err("run it again"));
        check(same_commit("abc", None), Err("has not passed"));
    }

    #[test]
    fn a_package_holds_all_that_it_must() {
        let listing = "-rwxr-xr-x root/root 5 2026 ./usr/bin/slackwater\n./usr/share/man/man1/slackwater.1.gz\n";
        let needed = ["/usr/bin/slackwater", "/man1/slackwater.1.gz"];
        check(holds(listing, &needed).map(|()| String::new()), Ok(""));
        let more = ["/usr/bin/slackwater", "/copyright"];
        check(
            holds(listing, &more).map(|()| String::new()),
            Err("lacks /copyright"),
        );
    }

    #[test]
    fn one_step_that_failed_fails_the_walk_and_hides_no_other() {
        let steps = [
            ("one", Ok("fine".to_owned())),
            ("two", Err(anyhow::anyhow!("broken"))),
            ("three", Ok("fine too".to_owned())),
        ];
        let error = told(&steps, "1.2.0").unwrap_err().to_string();
        let says = ["one", "broken", "fine too", "1 of 3 steps failed"];
        assert!(says.iter().all(|words| error.contains(words)), "{error}");
        assert!(!error.contains("git tag"), "{error}");
        let good = told(&[("one", Ok("fine".to_owned()))], "1.2.0").unwrap();
        assert!(
            good.iter()
                .any(|line| line.contains("git tag --sign v1.2.0"))
        );
    }

    #[test]
    fn only_a_dry_run_is_walked() {
        assert!(walk(&[]).is_err() && walk(&["--now".to_owned()]).is_err());
    }
}
