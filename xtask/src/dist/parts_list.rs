//! List of the program's parts in CycloneDX, for those who look for known faults in what they have installed
//! (SBOM): the crates as cargo resolves them, with the checksums of the lock files, and the eBPF objects.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{VERSION, notices, staging};
use crate::{ebpf_digest, repository};

const LOCKS: [&str; 2] = ["Cargo.lock", "ebpf/Cargo.lock"];

/// Name and version of a crate.
type Name = (String, String);

/// Writes the list of what was built for a target. The same sources give the same list.
pub(super) fn write(target: &str, program: &Path, output: &Path) -> Result<PathBuf> {
    let root = repository::root();
    let mut sums = BTreeMap::new();
    for lock in LOCKS {
        let text = fs::read_to_string(root.join(lock)).with_context(|| format!("reading {lock}"))?;
        sums.extend(checksums(&text));
    }
    let crates = notices::crates(target)?;
    let mut components: Vec<Value> = crates
        .iter()
        .map(|(name, package)| component(name, package.license.as_deref(), sums.get(name)))
        .collect();
    for object in ["ncclflow.x86_64.o", "ncclflow.aarch64.o", "idle.o"] {
        let bytes =
            fs::read(root.join("ebpf/obj").join(object)).with_context(|| format!("reading {object}"))?;
        components.push(json!({
            "type": "file",
            "name": format!("ebpf/obj/{object}"),
            "hashes": [{ "alg": "SHA-256", "content": ebpf_digest::hex(&Sha256::digest(bytes)) }],
        }));
    }
    let program = fs::read(program).context("reading the program")?;
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "properties": [{ "name": "ncclflow:commit-time", "value": staging::source_time()? }],
            "component": {
                "type": "application",
                "bom-ref": format!("pkg:cargo/ncclflow@{VERSION}"),
                "name": "ncclflow",
                "version": VERSION,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "purl": format!("pkg:cargo/ncclflow@{VERSION}"),
                "hashes": [{ "alg": "SHA-256", "content": ebpf_digest::hex(&Sha256::digest(program)) }],
                "properties": [{ "name": "ncclflow:target", "value": target }],
            },
        },
        "components": components,
    });
    let path = output.join(format!("ncclflow-{VERSION}-{target}.cdx.json"));
    fs::write(&path, serde_json::to_string_pretty(&list)? + "\n")
        .with_context(|| format!("writing `{}`", path.display()))?;
    Ok(path)
}

fn component((name, version): &Name, license: Option<&str>, sum: Option<&String>) -> Value {
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component =
        json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl });
    if let Some(license) = license {
        // Older crates write a choice with a slash.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(sum) = sum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

/// Returns the checksums of a lock file. A crate of the repository has none.
fn checksums(lock: &str) -> BTreeMap<Name, String> {
    let field = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    let of =
        |block: &str| Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?));
    lock.split("[[package]]").filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_of_the_program_has_the_checksum_of_its_lock_file() {
        let root = repository::root();
        let read = |lock: &str| fs::read_to_string(root.join(lock)).unwrap();
        let mut sums = checksums(&read("Cargo.lock"));
        let of_program = sums.len();
        sums.extend(checksums(&read("ebpf/Cargo.lock")));
        let lines = read("Cargo.lock").lines().filter(|line| line.starts_with("checksum = ")).count();
        assert_eq!(of_program, lines);
        assert!(sums.values().all(|sum| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit())));
        let Ok(crates) = notices::crates("x86_64-unknown-linux-gnu") else { return };
        let without: Vec<&Name> = crates.keys().filter(|name| !sums.contains_key(name)).collect();
        assert!(without.is_empty() && crates.len() > 50, "{without:?}");
    }

    #[test]
    fn a_component_names_its_crate_its_licence_and_its_checksum() {
        let name = ("serde".to_owned(), "1.0.0".to_owned());
        let component = component(&name, Some("MIT/Apache-2.0"), Some(&"ab".repeat(32)));
        assert_eq!(component["purl"], "pkg:cargo/serde@1.0.0");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "ab".repeat(32));
    }
}
