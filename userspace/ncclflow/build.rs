//! Embeds the committed eBPF object, and stops the build when it was not made from the sources beside it. Also
//! gives the hashes of the scripts and styles of a report, by which its page allows them and nothing else, and
//! what `--version` says of the build.

#[path = "../../ebpf/digest.rs"]
mod ebpf_digest;

use std::{env, fs, path::Path, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

const REMEDY: &str = "run `cargo xtask make ebpf`, or set NCCLFLOW_EBPF to an object that you built yourself";

fn main() {
    println!("cargo::rerun-if-env-changed=NCCLFLOW_EBPF");
    if let Err(problem) = embed().and_then(|()| hash_report()).and_then(|()| describe_build()) {
        println!("cargo::error={problem}");
    }
}

/// What the program is made of, but for what `embed` watches.
const SOURCES: [&str; 6] = [
    "Cargo.toml",
    "userspace/cpython/src",
    "userspace/flow/src",
    "userspace/nccl-library/src",
    "userspace/ncclflow/src",
    "userspace/torch/src",
];

fn describe_build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=NCCLFLOW_COMMIT");
    let target = env::var("TARGET").map_err(|error| format!("TARGET: {error}"))?;
    let named = env::var("NCCLFLOW_COMMIT").ok().filter(|commit| !commit.is_empty());
    let root = root()?;
    let commit = named.or_else(|| commit(root)).unwrap_or_else(|| "unknown".to_owned());
    // A change of these builds the program again in any case, and can make it another than the commit's.
    for path in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo::rustc-env=NCCLFLOW_BUILD_TARGET={target}");
    println!("cargo::rustc-env=NCCLFLOW_BUILD_COMMIT={commit}");
    Ok(())
}

/// The commit that is checked out, with `-dirty` where the sources differ from it. `None`: this is no clone, or there
/// is no git.
fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        // A tarball that is unpacked in somebody's clone is none of it.
        git.current_dir(root).env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root));
        let output = git.arg("--no-optional-locks").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim_end().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Its log grows with each commit and checkout. A file that is not there would run this script in every build.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let changed = ["status", "--porcelain", "--untracked-files=no", "--", "common", "ebpf"];
    let is_clean = git(&[&changed[..], &SOURCES].concat())?.is_empty();
    Some(if is_clean { hash } else { format!("{hash}-dirty") })
}

fn root() -> Result<&'static Path, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).ok_or_else(|| "the crate has no folders above it".to_owned())
}

/// Scripts and styles, and the variables that have their hashes.
const REPORT: [(&str, &str); 9] = [
    ("uplot/uPlot.min.css", "UPLOT_CSS"),
    ("report.css", "CSS"),
    ("uplot/uPlot.iife.min.js", "UPLOT_JS"),
    ("base.js", "BASE_JS"),
    ("topology.js", "TOPOLOGY_JS"),
    ("matrix.js", "MATRIX_JS"),
    ("timeline.js", "TIMELINE_JS"),
    ("tables.js", "TABLES_JS"),
    ("report.js", "JS"),
];

/// As a Content-Security-Policy has them: SHA-256 in Base64.
fn hash_report() -> Result<(), String> {
    for (file, variable) in REPORT {
        let path = format!("assets/report/{file}");
        println!("cargo::rerun-if-changed={path}");
        let bytes = fs::read(&path).map_err(|error| format!("reading `{path}`: {error}"))?;
        let hash = BASE64_STANDARD.encode(Sha256::digest(&bytes));
        println!("cargo::rustc-env=NCCLFLOW_REPORT_{variable}={hash}");
    }
    Ok(())
}

fn embed() -> Result<(), String> {
    let out = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let object = match env::var_os("NCCLFLOW_EBPF") {
        Some(path) => read(Path::new(&path))?,
        None => committed_object()?,
    };
    let sha256 = ebpf_digest::hex(&Sha256::digest(&object));
    println!("cargo::rustc-env=NCCLFLOW_BUILD_EBPF={}", sha256.get(..12).unwrap_or_default());
    let embedded = Path::new(&out).join("ncclflow.o");
    fs::write(&embedded, object).map_err(|error| format!("writing `{}`: {error}", embedded.display()))
}

fn committed_object() -> Result<Vec<u8>, String> {
    let arch =
        env::var("CARGO_CFG_TARGET_ARCH").map_err(|error| format!("CARGO_CFG_TARGET_ARCH: {error}"))?;
    let root = root()?;
    let inputs =
        ebpf_digest::input_files(root).map_err(|error| format!("listing the eBPF sources: {error}"))?;
    let object_path = root.join(format!("ebpf/obj/ncclflow.{arch}.o"));
    let manifest_path = root.join("ebpf/obj/MANIFEST");
    for path in inputs.iter().chain([&object_path, &manifest_path]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    // A source file that is added changes no file listed above, but its folder.
    for folder in ["common/src", "ebpf/src"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }

    let manifest = String::from_utf8_lossy(&read(&manifest_path)?).into_owned();
    let stated = |key: &str| manifest.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let digest =
        ebpf_digest::of_inputs(root).map_err(|error| format!("reading the eBPF sources: {error}"))?;
    if stated("inputs-sha256") != Some(digest.as_str()) {
        return Err(format!("the committed eBPF object was built from other sources than these: {REMEDY}"));
    }
    let object = read(&object_path)?;
    let sha256 = ebpf_digest::hex(&Sha256::digest(&object));
    if stated(&format!("{arch}-sha256")) != Some(sha256.as_str()) {
        return Err(format!("`{}` is not the object of its MANIFEST: {REMEDY}", object_path.display()));
    }
    Ok(object)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("reading `{}`: {error}: {REMEDY}", path.display()))
}
