//! All parts of the program, and their licences: `THIRD-PARTY-LICENSES` in the packages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{programs, repository, tool};

/// Name of the file in the packages.
pub(super) const NAME: &str = "THIRD-PARTY-LICENSES";

/// Beginnings of the names of files that have a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Programs that are shipped: the command, and the eBPF object that it carries.
const PROGRAMS: [(&str, &str); 2] = [("Cargo.toml", "ncclflow"), ("ebpf/Cargo.toml", "ncclflow-ebpf")];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Package {
    id: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) license: Option<String>,
    repository: Option<String>,
    /// Source of the crate; `None` for one of this repository.
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// Kind; `None` for a part of the program. Others are for its build and its tests.
    kind: Option<String>,
}

/// Parts of the program that are no crate: name, version, licence and origin, and the file with the text.
const EMBEDDED: [(&str, &str); 1] = [(
    "uPlot 1.6.32: MIT, https://github.com/leeoniya/uPlot (in the pages of `ncclflow report`)",
    "userspace/analysis/assets/report/uplot/LICENSE",
)];

/// Makes the text: each crate of the program with its licence, and each text once. An error if a crate has no
/// licence.
pub(super) fn notices(target: &str) -> Result<String> {
    render(crates(target)?.values())
}

/// Returns the crates from elsewhere that are part of what is shipped, by name and version.
pub(super) fn crates(target: &str) -> Result<BTreeMap<(String, String), Package>> {
    let mut crates: BTreeMap<(String, String), Package> = BTreeMap::new();
    for (manifest, program) in PROGRAMS {
        let metadata = metadata(manifest, target)?;
        for package in parts(&metadata, program)? {
            crates.insert((package.name.clone(), package.version.clone()), package);
        }
    }
    Ok(crates)
}

fn metadata(manifest: &str, target: &str) -> Result<Metadata> {
    let mut cargo = Command::new(programs::cargo());
    cargo.current_dir(repository::root()).args(["metadata", "--format-version", "1", "--locked"]);
    // The eBPF side has one target, which cargo knows only with the nightly options of its build.
    if manifest == "Cargo.toml" {
        cargo.args(["--filter-platform", target]);
    }
    let text = tool::output(cargo.args(["--manifest-path", manifest]))?;
    serde_json::from_slice(&text).with_context(|| format!("reading what `cargo metadata` says of {manifest}"))
}

/// Returns the crates from elsewhere that are part of the program.
fn parts(metadata: &Metadata, program: &str) -> Result<Vec<Package>> {
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let root = metadata.packages.iter().find(|package| package.name == program && package.source.is_none());
    let root = root.with_context(|| format!("there is no package `{program}`"))?;
    let (mut seen, mut open) = (BTreeSet::new(), vec![root.id.as_str()]);
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("`{id}` is not resolved"))?;
        let is_part = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        open.extend(node.deps.iter().filter(is_part).map(|dependency| dependency.pkg.as_str()));
    }
    let parts = seen.into_iter().filter_map(|id| packages.get(id)).filter(|package| package.source.is_some());
    Ok(parts.map(|package| Package::clone(package)).collect())
}

fn render<'a>(crates: impl Iterator<Item = &'a Package>) -> Result<String> {
    let mut list = String::new();
    // Crates by text.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in crates {
        let Package { name, version, repository, .. } = package;
        let Some(license) = &package.license else { bail!("{name} {version} does not say its licence") };
        let repository = repository.as_deref().unwrap_or("https://crates.io");
        writeln!(list, "{name} {version}: {license}, {repository}")?;
        let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
        for text in license_texts(folder)? {
            texts.entry(text).or_default().push(format!("{name} {version}"));
        }
    }
    for (line, license) in EMBEDDED {
        writeln!(list, "{line}")?;
        let path = repository::root().join(license);
        let text = fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))?;
        let name = line.split(':').next().unwrap_or(line);
        texts.entry(text).or_default().push(name.to_owned());
    }
    let mut out = format!(
        "ncclflow is made of these crates besides its own. Where there is a choice of licences, ours is MIT, or else\nApache-2.0.\n\n{list}"
    );
    let mut texts: Vec<(String, Vec<String>)> = texts.into_iter().collect();
    texts.sort_by(|(_, one), (_, other)| one.cmp(other));
    for (text, whose) in texts {
        writeln!(out, "\n{}\n{}\n\n{}", "=".repeat(100), whose.join(", "), text.trim_end())?;
    }
    Ok(out)
}

/// Reads the files of licences and notices at the top of a crate's folder.
fn license_texts(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("listing `{}`", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|beginning| name.starts_with(beginning)) {
            let bytes = fs::read(&path).with_context(|| format!("reading `{}`", path.display()))?;
            texts.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The notices name what `cargo tree` says, independently.
    #[test]
    fn every_crate_of_the_program_is_named_and_those_of_tests_are_not() {
        let version = Command::new(programs::cargo()).arg("--version").output();
        let has_cargo = version.is_ok_and(|version| version.status.success());
        if !test_support::need("cargo", has_cargo, "run the tests as the user who built them") {
            return;
        }
        let target = "x86_64-unknown-linux-gnu";
        let text = notices(target).unwrap();
        let mut tree = programs::cargo_command("tree");
        tree.args(["--package", "ncclflow", "--edges", "normal", "--prefix", "none", "--target", target]);
        let tree = String::from_utf8(tool::output(&mut tree).unwrap()).unwrap();
        // A crate of ours has its folder behind its version.
        for line in tree.lines().filter(|line| !line.contains(" (/")) {
            let mut words = line.split_whitespace();
            let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
            let named = format!("{name} {}: ", version.trim_start_matches('v'));
            assert!(text.contains(&named), "{named} is missing");
        }
        assert!(text.contains("\naya-ebpf "), "the eBPF object's");
        assert!(!text.contains("\ntempfile "), "only tests use it");
        assert!(text.contains("Permission is hereby granted, free of charge"));
        assert!(text.contains("\nuPlot 1.6.32: MIT") && text.contains("Copyright (c) 2022 Leon Sorokin"));
    }
}
